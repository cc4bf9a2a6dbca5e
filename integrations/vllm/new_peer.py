"""A new peer at vLLM's own worker and at ours: what each computes between a peer's message and its prepared lists.

    new_peer.py BENCH MODEL [KIND...]      nixldesc's bench folder, a model of vLLM's; in the folder of its unit tests

vLLM 0.33.0: the message decoded, then `add_remote_agent`, on a worker as its own unit tests make one: caches are
registered, NIXL's calls return at once, so what is timed is vLLM's arithmetic with its checks and its bookkeeping.
nixldesc: the same peer's Layout decoded, `from_dict`, `plan`, both tables; an engine of that shape is connected, as
vLLM's local list is there. "Met first" is the first of its shape: ours has forgotten what it knew, vLLM its local list
cut for that many ranks. Processor time, in turns, medians of 180 rounds.

Nothing is timed before the lists of both ways are shown to move the same bytes of some blocks. Blocks of 16 tokens; of
the hybrid 272, the least multiple of 16 that holds its states, for vLLM cuts a page of attention for eight ranks with
the padding in it. Not timed: sockets, NIXL, the envelope of the handshake and its hash, block ids of a request.
"""

from __future__ import annotations

import logging
import sys
from itertools import count
from time import thread_time
from typing import Any
from unittest.mock import MagicMock, patch

import msgspec
import torch
from tests.v1.kv_connector.unit.utils import create_vllm_config
from vllm.config import set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1 import kv_cache_interface as caches
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

sys.path.insert(0, sys.argv[1])
import handshake as plain
import measure
import peer_rows

from nixldesc._memory import forget

BLOCKS = 4
TOKENS = {"GQA": plain.BLOCK_TOKENS, "MLA": plain.BLOCK_TOKENS, "hybrid": 272}
SOME = [(0, 0), (7, 3), (plain.BLOCKS - 1, 1)]  # block of the peer, block of the worker
ENCODE, DECODE = msgspec.msgpack.encode, msgspec.msgpack.Decoder().decode
READ = msgspec.msgpack.Decoder(NixlAgentMetadata).decode


class Nixl:
    """Every call returns at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.lists: list[Any] = []

    def get_reg_descs(self, data: Any, mem_type: str) -> Any:
        return data

    get_xfer_descs = get_reg_descs

    def prep_xfer_dlist(self, agent: str, descs: Any, mem_type: str | None = None) -> int:
        self.lists.append((agent, descs))
        return len(self.lists)

    def add_remote_agent(self, metadata: bytes) -> str:
        return "peer"

    def get_agent_metadata(self) -> bytes:
        return b"agent"

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **how: None


def specs_of(kind: str) -> list[Any]:
    """One cache group's spec, of plain.layout's sizes; of a hybrid two of states, which lie in the same tensors."""
    if kind == "MLA":
        return [caches.MLAAttentionSpec(TOKENS[kind], num_kv_heads=1, head_size=576, dtype=torch.float16)]
    spec = caches.FullAttentionSpec(TOKENS[kind], num_kv_heads=plain.KV_HEADS, head_size=128, dtype=torch.float16)
    if kind == "GQA":
        return [spec]
    state = caches.MambaSpec(
        TOKENS[kind],
        shapes=((sum(plain.PROJECTIONS.values()), plain.CONV_ROWS), plain.SSM),
        dtypes=(torch.float16, torch.float16),
        page_size_padded=spec.page_size_bytes,
        mamba_type=MambaAttentionBackendEnum.MAMBA2,
    )
    return [spec, state, state]


def worker_of(kind: str, tensors: int, model: str) -> Any:
    """A decode worker of TP 1 that has registered its caches, and then believes them to lie where ours do."""
    specs = specs_of(kind)
    page, views, found, groups = specs[0].page_size_bytes, {}, [], []
    for number, spec in enumerate(specs):
        groups.append(caches.KVCacheGroupSpec([f"{plain.name(i)}.{number}" for i in range(tensors)], spec))
    for i in range(tensors):
        raw = torch.zeros(BLOCKS * page, dtype=torch.int8)
        for number, spec in enumerate(specs):
            name = f"{plain.name(i)}.{number}"
            found.append(caches.KVCacheTensor(BLOCKS * page, [name], layer_stride=page, block_stride=page))
            if number:
                views[name] = raw.view(BLOCKS, page)
            else:
                layout = caches.KVCacheLayout.LBHNC
                (views[name],) = caches.create_kv_cache_views(raw, spec, BLOCKS, layout, found[-1])
    config = create_vllm_config(
        model=model, block_size=TOKENS[kind], hf_overrides={"num_key_value_heads": plain.KV_HEADS}
    )
    config.cache_config.kv_cache_layout = "LBHNC"
    config.cache_config.enable_prefix_caching = len(specs) == 1
    backend = MagicMock()
    backend.get_supported_kernel_block_sizes.return_value = [TOKENS[kind]]
    backend.get_name.return_value = "FLASHMLA" if kind == "MLA" else "FLASH_ATTN"
    backend.full_cls_name.return_value = "backend"
    with (
        patch.object(base_worker, "NixlWrapper", Nixl),
        patch.object(base_worker, "get_tensor_model_parallel_rank", return_value=0),
        patch.object(base_worker, "get_tensor_model_parallel_world_size", return_value=1),
        patch.object(base_worker, "get_current_attn_backends", return_value=[backend]),
        patch("vllm.model_executor.layers.mamba.mamba_utils.get_conv_state_layout", return_value="DS"),
        set_current_vllm_config(config),
    ):
        worker = NixlPullConnectorWorker(config, "decode", caches.KVCacheConfig(BLOCKS, found, groups))
        worker.use_mla = kind == "MLA"
        worker.register_kv_caches(views)
        worker.kv_caches_base_addr["decode"][0] = [plain.DST_BASE + i * plain.TENSOR for i in range(tensors)]
        _, worker.src_blocks_data = worker.register_local_xfer_handler(TOKENS[kind])
    worker.nixl_wrapper.lists.clear()
    return worker


class Theirs:
    """vLLM's worker meeting engines, each time one that it has not met."""

    def __init__(self, kind: str, tensors: int, peers: int, model: str) -> None:
        self.kind, self.apart = kind, kind == "MLA"  # eight engines of a replicated cache, or eight ranks of one
        self.worker = worker_of(kind, tensors, model)
        self.hello = READ(self.worker.xfer_handshake_metadata.agent_metadata_bytes)
        tp = 1 if self.apart else peers
        self.hello.ssm_sizes = tuple(size // tp for size in self.hello.ssm_sizes)
        self.tp, tokens = tp, TOKENS[kind]
        self.srcs = [plain.layout(kind, tensors, tp, r % tp, plain.SRC_BASE + r, tokens) for r in range(peers)]
        self.dst = plain.layout(kind, tensors, 1, 0, plain.DST_BASE, tokens)
        self.ready: list[tuple[str, int, bytes]] = []
        self.number = count()

    def send(self) -> None:
        """Encode the messages of another engine, or of eight."""
        engine = f"engine-{next(self.number)}"
        for rank, src in enumerate(self.srcs):
            mine = [region for region in src.regions if not region.name.endswith(".state")]
            self.hello.engine_id = f"{engine}-{rank}" if self.apart else engine
            self.hello.kv_caches_base_addr = [region.base_addr for region in mine]
            self.hello.block_lens = [length // self.tp for length in self.worker.block_len_per_layer]
            self.hello.block_strides = self.hello.block_lens
            self.hello.num_blocks, self.hello.region_num_blocks = plain.BLOCKS, [plain.BLOCKS] * len(mine)
            self.ready.append((self.hello.engine_id, 0 if self.apart else rank, ENCODE(self.hello)))

    def meet(self) -> None:
        """What is timed."""
        for _, rank, message in self.ready:
            self.worker.add_remote_agent(READ(message), rank, self.tp)

    def lists(self) -> plain.Tables:
        """What the meeting has prepared: each rank's list, and this worker's, which is cut if there are many ranks."""
        made = self.worker.nixl_wrapper.lists
        theirs = [rows for agent, rows in made if agent == "peer"]
        cut = [rows for agent, rows in made if agent == "NIXL_INIT_AGENT"]
        return list(zip(theirs, cut or [self.worker.src_blocks_data] * len(theirs), strict=True))

    def part(self) -> None:
        """Forget them, as vLLM does; the next ones have sent their messages."""
        for engine, _, _ in self.ready:
            self.worker._remote_agents.setdefault(engine, {})
            self.worker._cleanup_remote_engine(engine, log_eviction=False)
        self.ready.clear()
        self.worker.nixl_wrapper.lists.clear()
        self.send()


def moved(tables: plain.Tables) -> Any:
    """What the rows are like on the peer's side, and the bytes that move for some blocks, however cut into rows."""
    for src, dst in tables:
        if (src[:, 1] != dst[:, 1]).any():
            raise SystemExit("rows of unequal lengths")
    like = [sorted({tuple(row) for row in src[:, 2:].tolist()}) for src, _ in tables]
    return like, [
        peer_rows.moved([(at(src, theirs), at(dst, mine)) for src, dst in tables]).tolist() for theirs, mine in SOME
    ]


def at(table: Any, block: int) -> Any:
    """The rows, beginning at that block."""
    rows = table.copy()
    rows[:, 0] += block * rows[:, 3]
    return rows


def line(kind: str, tensors: int, peers: int, model: str) -> str:
    theirs = Theirs(kind, tensors, peers, model)
    sent = [ENCODE(src.to_dict()) for src in theirs.srcs]
    met = [{0: message} for message in sent] if theirs.apart else [dict(enumerate(sent))]

    def ours() -> list[plain.Tables]:
        return [plain.ours(theirs.dst, messages, DECODE) for messages in met]

    theirs.send()
    theirs.meet()
    if moved(theirs.lists()) != moved([pair for tables in ours() for pair in tables]):
        raise SystemExit(f"{kind}, {peers}: the two would move other bytes")
    connected = [plain.planned(theirs.dst, messages, DECODE) for messages in met]
    again = race(theirs, ours, lambda: None)
    del connected
    anew = race(theirs, ours, lambda: (forget(), theirs.worker.src_xfer_handles_by_tp_ratio.clear()))
    what = f"{tensors:>3} tensors {kind:6} {peers} peer{'s' * (peers > 1):1}"
    return what + "".join(
        f" {found.baseline * 1e6:>9,.0f} {found.ours * 1e6:>7,.0f} {found.ratio:>6.2f}x" for found in (again, anew)
    )


def race(theirs: Theirs, ours: Any, between: Any) -> measure.Race:
    rounds = []
    with measure.no_collector():
        for _ in range(200):
            theirs.part()
            between()
            rounds.append((measure.once(theirs.meet, clock=thread_time), measure.once(ours, clock=thread_time)))
    return measure.summary(rounds[20:])


if __name__ == "__main__":
    logging.disable(logging.INFO)
    print("                      met again: vLLM us, ours    ratio   met first: the same")
    for kind in sys.argv[3:] or plain.KINDS:
        for tensors in (32, 80):
            for peers in (1, 8):
                print(line(kind, tensors, peers, sys.argv[2]), flush=True)
