"""nixldesc: descriptor tables and descriptor ids for moving KV caches with NIXL.

Two workers describe what their memory is; the overlap of the two descriptions is everything a transfer needs::

    Region, Layout            what one rank has registered: regions of equally spaced blocks
    Section, Axis             what the bytes of one block mean, in global indices
    array_regions             the same from an array: its shape and strides say where everything lies
    attention_sections, mla_sections, state_sections      ready-made pages
    mesh_ranges, shard_range  what a rank holds of a sharded tensor, of an axis
    plan -> Plan              destination layout + source layouts -> DlistPair per source: every byte exactly once
    source_ranks              whom to ask before any layout is known; reader_counts: when a source's blocks are free
    DlistPair.desc_ids        a request's block lists (BlockIds) -> int32 descriptor ids for both prepared lists
    Blocks                    where a block list starts (a cached prefix, a tail)
    kernel_blocks             logical to kernel block ids; align_blocks: two lists by position, without a pair
    expand_table              rows (addr, len, dev, stride, count) -> a row per descriptor
    NixldescError             what is raised: GeometryError, BlockIdError, PeerMismatchError, TransferError

and then :mod:`nixldesc.adapter` turns pairs into prepared NIXL handles, :mod:`nixldesc.testing` helps to test a
connector without a GPU. Importing this package loads neither of them, nor nixl.

>>> def rank(base_addr):
...     return Layout([Region("layer0", base_addr, 4096, 100), Region("layer1", base_addr + 409600, 4096, 100)])
>>> made = plan(rank(0x100000), {0: rank(0x900000)})
>>> pair, = made[0]
>>> src_ids, dst_ids = pair.desc_ids([[7, 8, 9]], [[42, 43, 44]])
>>> pair.moves(src_ids, dst_ids, merge=True).tolist()
[[9465856, 1220608, 12288], [9875456, 1630208, 12288]]
"""

from nixldesc._version import __version__
from nixldesc.errors import (
    BlockIdError,
    GeometryError,
    NixldescError,
    PeerMismatchError,
    TransferError,
)
from nixldesc.memory.arrays import array_regions
from nixldesc.memory.ids import BlockIds
from nixldesc.memory.layout import Layout
from nixldesc.memory.pages import attention_sections, mla_sections, state_sections
from nixldesc.memory.region import Region
from nixldesc.memory.rows import expand_table
from nixldesc.memory.sections import Axis, Section
from nixldesc.memory.shards import mesh_ranges, shard_range
from nixldesc.planning.plan import Plan, plan, reader_counts
from nixldesc.planning.replicas import source_ranks
from nixldesc.request.align import align_blocks
from nixldesc.request.blocks import Blocks
from nixldesc.request.kernel_blocks import kernel_blocks
from nixldesc.request.pair import DlistPair

__all__ = [
    "Axis",
    "BlockIdError",
    "BlockIds",
    "Blocks",
    "DlistPair",
    "GeometryError",
    "Layout",
    "NixldescError",
    "PeerMismatchError",
    "Plan",
    "Region",
    "Section",
    "TransferError",
    "__version__",
    "align_blocks",
    "array_regions",
    "attention_sections",
    "expand_table",
    "kernel_blocks",
    "mesh_ranges",
    "mla_sections",
    "plan",
    "reader_counts",
    "shard_range",
    "source_ranks",
    "state_sections",
]
