"""Every refusal of an array or a mesh by its class and its words: what people get wrong, said in their dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from refusals import Case, array_regions, check, mesh_ranges, no, refusals

from nixldesc import GeometryError

CACHE = np.zeros((6, 4, 8, 16), np.float16)  # blocks, heads, tokens, head dimension
AXES = "block head token byte"
WHAT = "array 'l0': "


def regions(array: Any = CACHE, axes: Any = AXES, **how: Any) -> Any:
    return lambda: array_regions("l0", array, axes, **how)


def strided(shape: tuple[int, ...], *elements: int) -> Any:
    return np.lib.stride_tricks.as_strided(CACHE, shape, [2 * step for step in elements])


class Meta:
    """A tensor on torch's "meta" device: a shape without memory."""

    shape, dtype, device = (6, 16), "torch.float16", "meta"

    def __init__(self, device: str = "meta") -> None:
        self.device = device

    def data_ptr(self) -> int:
        return 0

    def stride(self) -> tuple[int, int]:
        return 16, 1

    def element_size(self) -> int:
        return 2


class OnGpu:
    def __init__(self) -> None:
        self.__cuda_array_interface__ = {"shape": (6, 16), "typestr": "<f2", "data": (0x1000, False), "version": 3}


ARRAYS = {
    "a list": no(
        regions([[1, 2]], "block byte"), TypeError, WHAT, "__array_interface__", "data_ptr", "[[1, 2]] (list)"
    ),
    "an address": no(regions(0x7F000000), TypeError, WHAT, "expected an array", "(int)"),
    "a meta tensor without base_addr": no(
        regions(Meta(), "block byte"), GeometryError, WHAT, "has no memory of its own", "meta tensor", "give base_addr"
    ),
    "a GPU without a number": no(
        regions(OnGpu(), "block byte"), GeometryError, WHAT, "does not say which VRAM device", "give device_id"
    ),
    "a tensor on some GPU": no(
        regions(Meta("cuda"), "block byte", base_addr=1), GeometryError, WHAT, "which VRAM device", "give device_id"
    ),
    "base_addr is a float": no(regions(base_addr=1.5), TypeError, WHAT, "base_addr must be an int", "1.5 (float)"),
    "device_id is a word": no(regions(device_id="cuda:0"), TypeError, WHAT, "device_id must be an int", "'cuda:0'"),
    "mem_type is empty": no(regions(mem_type=""), GeometryError, WHAT, "mem_type must not be empty"),
    "an empty array": no(
        regions(CACHE[:0]), GeometryError, WHAT, "dimension 'block' is empty", "shape is (0, 4, 8, 16)"
    ),
}


@refusals(ARRAYS)
def test_arrays(case: Case) -> None:
    check(case)


DIMENSIONS = {
    "an axis too few": no(
        regions(axes="block token byte"),
        GeometryError,
        WHAT,
        "3 axes ('block', 'token', 'byte')",
        "4 dimensions",
        "shape (6, 4, 8, 16)",
    ),
    "an axis too many": no(regions(axes="kv " + AXES), GeometryError, WHAT, "5 axes", "4 dimensions"),
    "commas": no(regions(axes="block,head,token,byte"), GeometryError, WHAT, "1 axes ('block,head,token,byte',)"),
    "axes is None": no(regions(axes=None), TypeError, "axes must be several names", "None (NoneType)"),
    "an axis is a number": no(
        regions(axes=["block", "head", 2, "byte"]), TypeError, "axes[2] must be a str", "2 (int)"
    ),
    "a name twice": no(regions(axes="block head head byte"), GeometryError, WHAT, "names 'head' twice"),
    "byte is not last": no(
        regions(axes="block head byte token"),
        GeometryError,
        WHAT,
        "dimension 'byte' has a stride of 16 elements (32 bytes)",
        "must be the last dimension, contiguous",
        "1 element (2 bytes)",
    ),
    "byte is sliced": no(
        regions(CACHE[..., ::2]), GeometryError, "dimension 'byte' has a stride of 2 elements (4 bytes)", "contiguous"
    ),
    "a name is no str": no(
        lambda: array_regions(None, CACHE, AXES), TypeError, "name must be a str", "None (NoneType)"
    ),
    "no name at all": no(lambda: array_regions("", CACHE, AXES), GeometryError, "array ''", "name may be empty only"),
}


@refusals(DIMENSIONS)
def test_dimensions(case: Case) -> None:
    check(case)


RANGES = {
    "of the wrong length": no(
        regions(ranges={"head": (0, 8)}),
        GeometryError,
        WHAT,
        "ranges['head'] is [0, 8), 8 indices, but the dimension has 4",
        "the global indices that this array holds",
    ),
    "not a pair": no(
        regions(ranges={"head": (1, 2, 3)}), TypeError, "ranges['head'] must be (start, stop)", "(1, 2, 3)"
    ),
    "a number": no(regions(ranges={"head": 4}), TypeError, "ranges['head'] must be (start, stop)", "4 (int)"),
    "of floats": no(regions(ranges={"head": (0.0, 4.0)}), TypeError, "ranges['head'] must be an int", "0.0 (float)"),
    "of no dimension": no(
        regions(ranges={"heads": (0, 4)}),
        GeometryError,
        WHAT,
        "ranges speaks of dimension 'heads'",
        "axes are ('block'",
    ),
    "no mapping": no(regions(ranges=[(0, 4)]), TypeError, WHAT, "ranges must be a mapping", "(list)"),
    "negative": no(regions(ranges={"head": (-4, 0)}), GeometryError, WHAT, "[-4, 0)", "begin at 0"),
    "of tokens": no(
        regions(ranges={"token": (8, 16)}), GeometryError, "ranges['token'] is [8, 16)", "'token' counts from 0"
    ),
    "of blocks": no(regions(ranges={"block": (6, 12)}), GeometryError, "ranges['block']", "'block' counts from 0"),
    "of a dimension of sections": no(
        regions(ranges={"head": (4, 8)}, names={"head": list("abcd")}),
        GeometryError,
        "ranges['head'] is [4, 8)",
        "its indices are sections of their own",
    ),
}


@refusals(RANGES)
def test_ranges(case: Case) -> None:
    check(case)


NAMES = {
    "too few": no(
        regions(names={"head": ["a", "b"]}),
        GeometryError,
        WHAT,
        "names['head'] has 2 names",
        "4 indices of the dimension",
    ),
    "a bare str": no(regions(names={"head": "abcd"}), TypeError, WHAT, "names['head'] must be several names", "'abcd'"),
    "of no dimension": no(
        regions(names={"kv": ["k", "v"]}), GeometryError, "names speaks of dimension 'kv'", "axes are"
    ),
    "of blocks": no(regions(names={"block": list("abcdef")}), GeometryError, "'block' cannot be sections of their own"),
    "twice the same": no(regions(names={"head": list("abca")}), GeometryError, WHAT, "two sections the name 'l0.a'"),
    "twice the same, over two dimensions": no(
        regions(np.zeros((2, 2, 3)), "a b block", names={"a": ["x", "x.y"], "b": ["y.z", "z"]}),
        GeometryError,
        "two sections the name 'l0.x.y.z'",
    ),
}


@refusals(NAMES)
def test_names(case: Case) -> None:
    check(case)


STRIDES = {
    "broadcast": no(
        regions(np.broadcast_to(CACHE[:, :1], CACHE.shape)),
        GeometryError,
        WHAT,
        "dimension 'head' has a stride of 0 elements (0 bytes)",
        "is broadcast: its 4 indices are the same bytes",
    ),
    "blocks backwards": no(
        regions(CACHE[::-1]),
        GeometryError,
        WHAT,
        "'block' has a stride of -512 elements (-1024 bytes)",
        "steps backwards",
    ),
    "every second block backwards": no(
        regions(CACHE[::-2]), GeometryError, "'block' has a stride of -1024 elements (-2048 bytes)", "steps backwards"
    ),
    "a sliding window of blocks": no(
        regions(strided((5, 1024), 512, 1), "block byte"),
        GeometryError,
        "dimension 'block' has a stride of 512 elements (1024 bytes)",
        "dimension 'byte' inside it covers 2048 bytes",
        "overlap",
    ),
    "heads that overlap": no(
        regions(strided((2, 4, 8), 64, 4, 1), "block head byte"),
        GeometryError,
        "dimension 'head' has a stride of 4 elements (8 bytes)",
        "dimension 'byte' inside it covers 16 bytes",
    ),
    "layers that overlap": no(
        regions(strided((2, 4, 8), 16, 8, 1), "layer block byte", names={"layer": ["a", "b"]}),
        GeometryError,
        "dimension 'layer' has a stride of 16 elements (32 bytes)",
        "dimension 'block' inside it covers 64 bytes",
    ),
    "two alike": no(
        regions(strided((4, 2, 8), 8, 8, 1), "block head byte"),
        GeometryError,
        "has a stride of 8 elements (16 bytes)",
        "overlap",
    ),
    "records": no(
        regions(np.zeros((3, 4), [("a", "<f4"), ("b", "<f2", (3,))])["b"][:, ::-1], "block token x"),
        GeometryError,
        "dimension 'token' has a stride of -5 elements (-10 bytes)",
    ),
    "half an element": no(
        regions(np.zeros((3, 4), [("a", "u1", (2,)), ("b", "<f4")])["b"][:, ::-1], "block token"),
        GeometryError,
        "dimension 'token' has a stride of -1.50 elements (-6 bytes)",
    ),
    "tokens outside blocks": no(
        regions(CACHE, "token head block byte"),
        GeometryError,
        WHAT,
        "dimension 'token' has a stride of 512 elements (1024 bytes), further than dimension 'block'",
        "16 elements (32 bytes)",
        "tokens lie inside a block",
    ),
}


@refusals(STRIDES)
def test_strides(case: Case) -> None:
    check(case)


MESHES = {
    "a rank too many": no(
        lambda: mesh_ranges((8,), (2, 2), (0, None), 4), GeometryError, "rank 4", "a mesh (2, 2) has 4 ranks"
    ),
    "a negative rank": no(lambda: mesh_ranges((8,), (2,), (0,), -1), GeometryError, "rank -1 is out of range"),
    "a rank of a kind": no(lambda: mesh_ranges((8,), (2,), (0,), 1.0), TypeError, "rank must be an int", "1.0 (float)"),
    "a placement too few": no(
        lambda: mesh_ranges((8,), (2, 2), (0,), 0), GeometryError, "1 placements for a mesh of 2 dimensions"
    ),
    "a dimension that is not": no(
        lambda: mesh_ranges((8, 8), (2,), (2,), 0), GeometryError, "placements[0] shards dimension 2", "2 dimensions"
    ),
    "words": no(
        lambda: mesh_ranges((8,), (2,), ("Shard(0)",), 0), TypeError, "placements[0] must be an int", "'Shard(0)'"
    ),
    "one placement": no(lambda: mesh_ranges((8,), (2,), 0, 0), TypeError, "placements must be a sequence", "0 (int)"),
    "a mesh of nothing": no(lambda: mesh_ranges((8,), (2, 0), (0, 0), 0), GeometryError, "mesh (2, 0)", "below 1"),
    "a shape below nothing": no(lambda: mesh_ranges((-8,), (2,), (0,), 0), GeometryError, "shape (-8,)", "below 0"),
    "one number": no(lambda: mesh_ranges(8, (2,), (0,), 0), TypeError, "shape must be a sequence of ints", "8 (int)"),
}


@refusals(MESHES)
def test_meshes(case: Case) -> None:
    check(case)


def test_sliced_blocks_and_layers_are_what_their_strides_say() -> None:
    """A slice is not refused: block id i is the i-th block of the slice."""
    (every_second,) = array_regions("l0", CACHE[1::2], AXES)
    assert (every_second.num_blocks, every_second.block_stride, every_second.block_len) == (3, 2048, 1024)
    assert every_second.base_addr == CACHE.ctypes.data + 1024
