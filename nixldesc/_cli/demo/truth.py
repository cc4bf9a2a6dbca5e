"""What every byte must be: a function of its section, its global indices and its token position, and of nothing else.

Memory is written through NumPy views of the shapes that an engine documents ([block][K, V][head][token][byte] and so
on). Nothing here knows of sections, plans, descriptors or ids, so it cannot share a mistake with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nixldesc._cli.demo.model import KINDS, MODEL, Engine, Request

__all__ = ["content", "write_request"]

Bytes = NDArray[np.uint8]

#: Odd and far apart, so that no two small index tuples add up to the same.
_STEPS = (2654435761, 2246822519, 3266489917, 668265263)


class _Part(NamedTuple):
    """One array of a layer inside a rank's blocks: view[block] has the axes of `ranges`, behind that of its tokens."""

    name: str
    view: Bytes
    ranges: tuple[range, ...]


def content(name: str, request: int, *ranges: range) -> Bytes:
    """Return the bytes of an array at the given global indices (one range for each axis).

    >>> whole = content("attention.0 K", 7, range(4), range(8), range(16))
    >>> bool((whole[2:4, 3:] == content("attention.0 K", 7, range(2, 4), range(3, 8), range(16))).all())
    True
    >>> bool((whole == content("attention.1 K", 7, range(4), range(8), range(16))).all())
    False
    """
    value = np.full([len(r) for r in ranges], crc32(f"{name} {request}".encode()), np.uint32)
    for axis, (indices, step) in enumerate(zip(ranges, _STEPS, strict=False)):
        shape = [1] * len(ranges)
        shape[axis] = len(indices)
        value += (np.arange(indices.start, indices.stop, dtype=np.uint32) * np.uint32(step)).reshape(shape)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        value ^= value >> np.uint32(shift)
        value *= np.uint32(factor)
    return (value >> np.uint32(24)).astype(np.uint8)


def write_request(
    memory: Bytes,
    engine: Engine,
    tp_rank: int,
    request: Request,
    tables: Sequence[Sequence[int]],
    first: int,
    last: int,
) -> None:
    """Write what a request's blocks must hold for its tokens [first, last), and its state."""
    for kind, part in _parts(memory, engine, tp_rank):
        tokens, _, group = engine.of(kind)
        if not tokens:
            part.view[tables[group][0]] = content(part.name, request.number, *part.ranges)
            continue
        whole = content(part.name, request.number, range(first, last), *part.ranges)
        for entry, block in enumerate(tables[group]):
            start, stop = max(first, entry * tokens), min(last, (entry + 1) * tokens)
            if start < stop:
                held = part.view[block]
                held[start - entry * tokens : stop - entry * tokens] = whole[start - first : stop - first]


def _parts(memory: Bytes, engine: Engine, tp_rank: int) -> Iterator[tuple[str, _Part]]:
    """Yield each kind of layer with the arrays of all its layers, which are views into a rank's memory."""
    make = {"attention": _attention, "latent": _latent, "state": _state}
    at = 0
    for kind in KINDS:
        tokens, number, _ = engine.of(kind)
        size = {
            "attention": 2 * MODEL.kv_heads // engine.tp_size * tokens * MODEL.head_bytes,
            "latent": tokens * MODEL.latent_bytes,
            "state": engine.state_stride,
        }[kind]
        for layer in MODEL.layers(kind):
            blocks = memory[at : at + number * size].reshape(number, size)
            yield from ((kind, part) for part in make[kind](layer, blocks, engine, tp_rank))
            at += number * size


def _share(size: int, engine: Engine, tp_rank: int) -> range:
    each = size // engine.tp_size
    return range(tp_rank * each, (tp_rank + 1) * each)


def _attention(layer: str, blocks: Bytes, engine: Engine, tp_rank: int) -> Iterator[_Part]:
    heads, tokens = _share(MODEL.kv_heads, engine, tp_rank), engine.of("attention")[0]
    view = blocks.reshape(len(blocks), 2, len(heads), tokens, MODEL.head_bytes).swapaxes(2, 3)
    for number, name in enumerate("KV"):
        yield _Part(f"{layer} {name}", view[:, number], (heads, range(MODEL.head_bytes)))


def _latent(layer: str, blocks: Bytes, engine: Engine, tp_rank: int) -> Iterator[_Part]:
    view = blocks.reshape(len(blocks), engine.of("latent")[0], MODEL.latent_bytes)
    yield _Part(layer, view, (range(MODEL.latent_bytes),))


def _state(layer: str, blocks: Bytes, engine: Engine, tp_rank: int) -> Iterator[_Part]:
    at = 0
    arrays = [(name, (width, MODEL.conv_rows, MODEL.conv_bytes)) for name, width in MODEL.conv_channels]
    for name, (width, *inner) in [*arrays, ("SSM", (*MODEL.ssm_shape, MODEL.ssm_bytes))]:
        held = _share(width, engine, tp_rank)
        size = len(held) * int(np.prod(inner))
        view = blocks[:, at : at + size].reshape(len(blocks), len(held), *inner)
        yield _Part(f"{layer} {name}", view, (held, *map(range, inner)))
        at += size
