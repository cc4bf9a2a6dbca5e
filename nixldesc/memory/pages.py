"""Ready-made pages: the sections of the blocks that today's engines keep.

Each function describes what *one rank* holds and returns a tuple of sections; several of them, at their offsets, make
a packed row. Nothing here is special to the planner: a page of your own is a tuple of :class:`nixldesc.Section`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from nixldesc._check import as_int, as_name, as_names, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.sections import BYTE, TOKEN, Axis, Section
from nixldesc.memory.shards import shard_range

__all__ = ["attention_sections", "mla_sections", "state_sections"]


def _one_of(value: object, allowed: tuple[str, ...], what: str) -> None:
    if value not in allowed:
        raise GeometryError(f"{what} must be one of {', '.join(map(repr, allowed))}, got {brief(value)}")


def attention_sections(
    name: str,
    *,
    num_kv_heads: int,
    tp_size: int,
    tp_rank: int,
    block_tokens: int,
    token_head_bytes: int,
    order: Literal["HND", "NHD"] = "HND",
    kv: Literal["packed", "blocks_first"] = "packed",
    offset: int = 0,
    dtype: str = "",
    cp: bool = True,
) -> tuple[Section, ...]:
    """Return the page of an attention layer on rank `tp_rank` of `tp_size` (axes head, token and byte).

    `num_kv_heads` is the model's; with more ranks than heads each head is replicated (:func:`shard_range`).
    ``kv="packed"``: K and V of a token and head lie together in one section `name` and `token_head_bytes` covers
    both. ``kv="blocks_first"``: all K of the block, then all V, sections ``name.k`` and ``name.v``, and
    `token_head_bytes` is each one's; it pairs with engines that keep K and V in separate regions.
    ``order="HND"`` stores ``[head][token][byte]``, ``"NHD"`` ``[token][head][byte]``. `offset` in bytes. `dtype` and
    `cp` as in :class:`nixldesc.Section` (``cp=False``: whole on every context-parallel rank).

    Raises :class:`GeometryError` for sizes that do not divide and for unknown words.

    >>> page = attention_sections("l0", num_kv_heads=8, tp_size=4, tp_rank=1, block_tokens=16, token_head_bytes=256,
    ...                           kv="blocks_first")
    >>> [(s.name, s.axes[0], s.offset, s.end) for s in page]  # doctest: +NORMALIZE_WHITESPACE
    [('l0.k', Axis(name='head', start=2, stop=4), 0, 8192),
     ('l0.v', Axis(name='head', start=2, stop=4), 8192, 16384)]
    """
    _one_of(order, ("HND", "NHD"), "order")
    _one_of(kv, ("packed", "blocks_first"), "kv")
    head = Axis("head", *shard_range(num_kv_heads, tp_size, tp_rank))
    token, byte = Axis(TOKEN, 0, block_tokens), Axis(BYTE, 0, token_head_bytes)
    axes = (head, token, byte) if order == "HND" else (token, head, byte)
    if kv == "packed":
        return (Section(name, axes, 1, offset=offset, dtype=dtype, cp=cp),)
    as_name(name, "name")
    k = Section(f"{name}.k", axes, 1, offset=offset, dtype=dtype, cp=cp)
    return k, Section(f"{name}.v", axes, 1, offset=k.end, dtype=dtype, cp=cp)


def mla_sections(
    name: str, *, block_tokens: int, token_bytes: int, offset: int = 0, dtype: str = "", cp: bool = True
) -> tuple[Section, ...]:
    """Return the page of a latent (MLA) cache: the same on every rank, axes token and byte.

    >>> mla_sections("l0", block_tokens=64, token_bytes=1152)[0].nbytes
    73728
    """
    axes = (Axis(TOKEN, 0, block_tokens), Axis(BYTE, 0, token_bytes))
    return (Section(name, axes, 1, offset=offset, dtype=dtype, cp=cp),)


def state_sections(
    name: str,
    *,
    projections: Mapping[str, int],
    conv_rows: int,
    conv_itemsize: int,
    ssm_shape: Sequence[int] | None,
    ssm_itemsize: int,
    tp_size: int,
    tp_rank: int,
    conv_order: Literal["DS", "SD"] = "DS",
    replicated: Iterable[str] = (),
    offset: int = 0,
    dtype: str = "",
) -> tuple[Section, ...]:
    """Return the page of a recurrent layer: the conv state's projections, then the SSM state.

    `projections` maps a projection's name to its *global* width, in memory order: Mamba1 ``{"x": ...}``, Mamba2
    ``{"x": ..., "B": ..., "C": ...}``, GDN and KDA ``{"q": ..., "k": ..., "v": ...}``. ``conv_order="DS"`` stores
    ``[width][rows]``, one projection after the other; ``"SD"`` stores ``[rows][all widths]``, each projection's
    columns side by side. The SSM state follows, C-contiguous, of global `ssm_shape` (None: there is none), sharded
    on its first axis. Every width is sharded over the ranks but those named in `replicated` (``"ssm"`` for the
    state). Item sizes and `offset` in bytes. Sections ``name.<projection>`` (axes channel, row) and ``name.ssm``.

    Raises :class:`GeometryError` for sizes that do not divide, unknown words and unknown `replicated` names.

    >>> page = state_sections("l1", projections={"x": 8, "B": 2, "C": 2}, conv_rows=3, conv_itemsize=2,
    ...                       ssm_shape=(4, 8), ssm_itemsize=4, tp_size=2, tp_rank=1, replicated=("B", "C"))
    >>> [(s.name, s.axes[0].start, s.axes[0].stop, s.offset) for s in page]
    [('l1.x', 4, 8, 0), ('l1.B', 0, 2, 24), ('l1.C', 0, 2, 36), ('l1.ssm', 2, 4, 48)]
    """
    _one_of(conv_order, ("DS", "SD"), "conv_order")
    as_name(name, "name")
    if not isinstance(projections, Mapping):
        raise TypeError(f"projections must map names to global widths, got {brief(projections)}")
    whole = set(as_names(replicated, "replicated"))
    known = {*projections, "ssm"}
    if "ssm" in projections or not whole <= known:
        odd = sorted(whole - known) or ["ssm"]
        raise GeometryError(f"{name}: {odd[0]!r} is no projection; projections are {sorted(projections)}")

    def held(part: str, size: int) -> tuple[int, int]:
        return (0, size) if part in whole else shard_range(size, tp_size, tp_rank)

    channels = {part: Axis("channel", *held(part, width)) for part, width in projections.items()}
    row = Axis("row", 0, conv_rows)
    item = as_int(conv_itemsize, "conv_itemsize")
    columns = sum(axis.size for axis in channels.values())
    sections, at = [], offset
    for part, channel in channels.items():
        if conv_order == "DS":
            axes, strides, step = (channel, row), (conv_rows * item, item), conv_rows * item * channel.size
        else:
            axes, strides, step = (row, channel), (columns * item, item), item * channel.size
        sections.append(Section(f"{name}.{part}", axes, item, offset=at, strides=strides, dtype=dtype))
        at += step
    if ssm_shape is not None:
        if not is_many(ssm_shape) or not len(ssm_shape):
            raise TypeError(f"ssm_shape must be the sizes of the state's axes, or None; got {brief(ssm_shape)}")
        at = offset + columns * conv_rows * item
        first = Axis("head", *held("ssm", ssm_shape[0]))
        rest = (Axis(f"state{i}", 0, size) for i, size in enumerate(ssm_shape[1:], 1))
        sections.append(Section(f"{name}.ssm", (first, *rest), ssm_itemsize, offset=at, dtype=dtype))
    return tuple(sections)
