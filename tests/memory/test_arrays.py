"""Regions of arrays: NumPy, which knows where an index lies, is the oracle of every byte that moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cached_arrays import Array, caches, move, stored
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import (
    Axis,
    GeometryError,
    Layout,
    Region,
    Section,
    array_regions,
    attention_sections,
    mla_sections,
    state_sections,
)

# ------------------------------------------------------------------------------------------ every stride order

LETTERS = "abcdefgh"


@st.composite
def transfers(draw: st.DrawFn) -> Any:
    """Two caches of one kind, each in an order of its own; the destination holds a box of what the source holds."""
    free = draw(st.lists(st.sampled_from(["head", "row", "expert", "token", "byte"]), max_size=4, unique=True))
    named = draw(st.lists(st.sampled_from(["kv", "layer"]), max_size=2, unique=True))
    axes = draw(st.permutations([*free, *named, *draw(st.sampled_from([["block"], ["block"], []]))][:5]))
    dtype = draw(st.sampled_from(["u1", "u2", "f4", "c16"]))
    src_sizes, dst_sizes, dst_at, src_ranges, dst_ranges = {}, {}, {}, {}, {}
    for axis in axes:
        size = src_sizes[axis] = dst_sizes[axis] = draw(st.integers(1, 4))
        dst_at[axis] = 0
        if axis in ("head", "row", "expert"):
            origin = draw(st.integers(0, 3))
            begin = draw(st.integers(0, size - 1))
            dst_sizes[axis], dst_at[axis] = draw(st.integers(1, size - begin)), begin
            if origin or draw(st.booleans()):
                src_ranges[axis] = (origin, origin + size)
            dst_ranges[axis] = (origin + begin, origin + begin + dst_sizes[axis])
        if axis == "block":
            dst_sizes[axis] = draw(st.integers(1, 4))
    names = {axis: tuple(LETTERS[: src_sizes[axis]]) for axis in named if axis in axes}
    src, dst = draw(caches(src_sizes, dtype)), draw(caches(dst_sizes, dtype))
    blocks = min(src_sizes.get("block", 1), dst_sizes.get("block", 1))
    tables = [draw(st.permutations(range(sizes.get("block", 1))))[:blocks] for sizes in (src_sizes, dst_sizes)]
    return src, dst, src_ranges, dst_ranges, dst_at, names, tables


@given(transfers(), st.sampled_from(["cache", ""]))
def test_what_moves_between_two_arrays_is_what_numpy_indexes(transfer: Any, name: str) -> None:
    src, dst, src_ranges, dst_ranges, dst_at, names, (src_blocks, dst_blocks) = transfer
    name = name or ("cache" if not names else "")
    src_layout = Layout(array_regions(name, src.view, src.axes, ranges=src_ranges, names=names))
    dst_layout = Layout(array_regions(name, dst.view, " ".join(dst.axes), ranges=dst_ranges, names=names))
    src.fill(1)
    dst.fill(2)

    # The truth: the box of the source, assigned to the destination as NumPy does.
    before = dst.memory.copy()
    order = sorted(dst.axes, key=lambda axis: axis != "block")
    sizes = dict(zip(dst.axes, dst.view.shape, strict=True))
    box = [src_blocks if axis == "block" else slice(dst_at[axis], dst_at[axis] + sizes[axis]) for axis in order]
    filled = [dst_blocks if axis == "block" else slice(None) for axis in order]
    dst.by(*order)[(*filled, ...)] = src.by(*order)[(*box, ...)]
    expected = dst.memory.copy()
    dst.memory[...] = before

    move(src_layout, dst_layout, src_blocks, dst_blocks)
    assert np.array_equal(dst.memory, expected)


# ------------------------------------------------------------------------------------------ ready-made pages

HEADS, TOKENS, BLOCKS, WIDTH = 4, 8, 5, 6


def numbered(*shape: int, dtype: Any = np.float16) -> Array:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def by_hand(array: Array, page: tuple[Section, ...], name: str = "by hand") -> Region:
    """The region that a user without `array_regions` writes for a C-contiguous array of blocks."""
    return Region(name, array.ctypes.data, page[-1].end, len(array), mem_type="DRAM", sections=page)


def both_ways(made: tuple[Region, ...], by: tuple[Region, ...], arrays: tuple[list[Array], list[Array]]) -> None:
    """Move blocks 3 and 1 of the one to blocks 2 and 0 of the other, then back; `arrays` have the block first."""
    for src, dst, srcs, dsts in ((made, by, *arrays), (by, made, *arrays[::-1])):
        for array in dsts:
            array[...] = 0
        expected = [array.copy() for array in dsts]
        for one, other in zip(srcs, expected, strict=True):
            one[...] = numbered(*one.shape, dtype=one.dtype)
            other[[2, 0]] = one[[3, 1]]
        move(Layout(src), Layout(dst), [3, 1], [2, 0])
        for array, wanted in zip(dsts, expected, strict=True):
            np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("order", ["HND", "NHD"])
@pytest.mark.parametrize("seen", ["HND", "NHD"])
def test_a_cache_of_packed_heads_is_the_ready_made_page(order: Any, seen: str) -> None:
    """Stored in `order` here, in HND there; `seen` through a view of either order."""
    words, sizes = {"H": "head", "N": "token", "D": "byte"}, {"H": HEADS, "N": TOKENS, "D": WIDTH}
    stored = numbered(BLOCKS, *(sizes[letter] for letter in order))
    view = stored.transpose(0, *(order.index(letter) + 1 for letter in seen))
    made = array_regions("l0", view, ["block", *(words[letter] for letter in seen)], ranges={"head": (4, 8)})
    how: Any = {"num_kv_heads": 8, "tp_size": 2, "tp_rank": 1, "block_tokens": TOKENS, "dtype": "float16"}
    page = attention_sections("l0", token_head_bytes=2 * WIDTH, order=order, **how)
    assert made[0].sections == page
    there = numbered(BLOCKS, HEADS, TOKENS, WIDTH)
    other = by_hand(there, attention_sections("l0", token_head_bytes=2 * WIDTH, **how))
    here = stored.transpose(0, *(order.index(letter) + 1 for letter in "HND"))
    both_ways(made, (other,), ([here], [there]))


def test_k_and_v_inside_a_block_or_outside_are_the_same_two_sections() -> None:
    how: Any = {"num_kv_heads": HEADS, "tp_size": 1, "tp_rank": 0, "block_tokens": TOKENS, "dtype": "float16"}
    page = attention_sections("l0", token_head_bytes=2 * WIDTH, kv="blocks_first", **how)
    inside, outside = numbered(BLOCKS, 2, HEADS, TOKENS, WIDTH), numbered(2, BLOCKS, HEADS, TOKENS, WIDTH)
    named: Any = {"names": {"kv": ("k", "v")}}
    one = array_regions("l0", inside, "block kv head token byte", **named)
    two = array_regions("l0", outside, "kv block head token byte", **named)
    assert one[0].sections == page
    assert [(region.name, region.sections[0].name) for region in two] == [("l0.k", "l0.k"), ("l0.v", "l0.v")]
    both_ways(one, (by_hand(there := inside.copy(), page),), ([inside], [there]))
    both_ways(two, one, ([outside[0], outside[1]], [inside[:, 0], inside[:, 1]]))
    # A view that names the dimensions the other way round says the same of the same memory.
    assert array_regions("l0", inside.swapaxes(0, 1), "kv block head token byte", **named) == one


def test_a_latent_cache_in_padded_rows_is_the_ready_made_page() -> None:
    rows = numbered(BLOCKS, 200)
    latent = rows[:, 16 : 16 + TOKENS * WIDTH].reshape(BLOCKS, TOKENS, WIDTH)
    assert np.shares_memory(rows, latent)
    made = array_regions("l0", latent, "block token byte")
    (page,) = mla_sections("l0", block_tokens=TOKENS, token_bytes=2 * WIDTH, dtype="float16")
    assert (made[0].block_stride, made[0].block_len, made[0].sections) == (400, TOKENS * WIDTH * 2, (page,))
    there = numbered(BLOCKS, TOKENS, WIDTH)
    both_ways(made, (by_hand(there, (page,)),), ([latent], [there]))


@pytest.mark.parametrize("order", ["DS", "SD"])
def test_the_states_of_a_recurrent_layer_are_the_ready_made_page(order: Any) -> None:
    widths, rows = {"x": 6, "B": 2, "C": 2}, 3
    shape = (10, rows) if order == "DS" else (rows, 10)
    axes = "block channel row" if order == "DS" else "block row channel"
    conv, ssm = numbered(BLOCKS, *shape), numbered(BLOCKS, 4, 2, 3)
    channels = conv if order == "DS" else conv.swapaxes(1, 2)
    made: list[Region] = []
    begin = 0
    for part, width in widths.items():
        own = conv[:, begin : begin + width] if order == "DS" else conv[..., begin : begin + width]
        made += array_regions(f"l1.{part}", own, axes, ranges={"channel": (width, 2 * width)})
        begin += width
    made += array_regions("l1.ssm", ssm, "block head state1 state2", ranges={"head": (4, 8)})
    page = state_sections(
        "l1",
        projections={part: 2 * width for part, width in widths.items()},
        conv_rows=rows,
        conv_itemsize=2,
        ssm_shape=(8, 2, 3),
        ssm_itemsize=2,
        tp_size=2,
        tp_rank=1,
        conv_order=order,
        dtype="float16",
    )
    there = np.zeros((BLOCKS, conv[0].size + ssm[0].size), np.float16)
    there_conv = there[:, : conv[0].size].reshape(BLOCKS, *shape)
    there_ssm = there[:, conv[0].size :].reshape(BLOCKS, 4, 2, 3)
    assert np.shares_memory(there, there_conv) and np.shares_memory(there, there_ssm)
    there_channels = there_conv if order == "DS" else there_conv.swapaxes(1, 2)
    both_ways(tuple(made), (by_hand(there, page),), ([channels, ssm], [there_channels, there_ssm]))


@pytest.mark.parametrize(
    "memory", ["layer block head token byte", "block layer head token byte", "block head layer token byte"]
)
def test_the_layers_of_a_cross_layer_cache_are_sections_of_their_own(memory: str) -> None:
    sizes = {"layer": 3, "block": BLOCKS, "head": HEADS, "token": TOKENS, "byte": WIDTH}
    layers = ("l0", "l1", "l2")
    cache = stored(memory.split(), sizes, "float16", {})
    seen = cache.by("layer", "block", "head", "token", "byte")
    made = array_regions("", seen, "layer block head token byte", names={"layer": layers})
    assert [section.name for region in made for section in region.sections] == list(layers)
    assert [region.name for region in made] == (list(layers) if memory[0] == "l" else ["l0..l2"])
    there = [numbered(BLOCKS, HEADS, TOKENS, WIDTH) for _ in layers]
    one_each = [
        region
        for name, array in zip(layers, there, strict=True)
        for region in array_regions(name, array, "block head token byte")
    ]
    both_ways(made, tuple(one_each), (list(seen), there))


def test_two_named_dimensions_stand_in_the_order_of_names() -> None:
    cache = numbered(2, 3, BLOCKS, TOKENS, WIDTH)
    names = {"layer": ("l0", "l1", "l2"), "kv": ("k", "v")}
    made = array_regions("", cache, "kv layer block token byte", names=names)
    assert [region.name for region in made] == ["l0.k", "l1.k", "l2.k", "l0.v", "l1.v", "l2.v"]
    assert array_regions("", cache.swapaxes(0, 1), "layer kv block token byte", names=names) == made
    other = array_regions("mtp", cache, "kv layer block token byte", names=dict(reversed(names.items())))
    assert [region.sections[0].name for region in other[:2]] == ["mtp.k.l0", "mtp.k.l1"]


# ------------------------------------------------------------------------------------------ parts, weights, fields


def test_heads_outside_the_blocks_are_parts_of_one_section() -> None:
    cache = numbered(HEADS, BLOCKS, TOKENS, WIDTH)
    made = array_regions("l0", cache, "head block token byte", ranges={"head": (4, 8)})
    assert [region.name for region in made] == ["l0[head=4]", "l0[head=5]", "l0[head=6]", "l0[head=7]"]
    assert [region.sections[0].axes[0].start for region in made] == [4, 5, 6, 7]
    assert {region.sections[0].name for region in made} == {"l0"}
    there = numbered(BLOCKS, HEADS, TOKENS, WIDTH)
    page = array_regions("l0", there, "block head token byte", ranges={"head": (4, 8)})
    both_ways(made, page, (list(cache), [there[:, head] for head in range(HEADS)]))


def test_experts_in_allocations_of_their_own_are_parts_of_what_one_allocation_holds() -> None:
    apart = {expert: numbered(3, 4) + expert for expert in (0, 2, 5)}
    made = [
        region
        for expert, matrix in apart.items()
        for region in array_regions("w13", matrix[None], "expert row column", ranges={"expert": (expert, expert + 1)})
    ]
    assert [region.name for region in made] == ["w13", "w13[expert=2]", "w13[expert=5]"]
    together = np.zeros((1, 3, 4), np.float16)
    for expert, matrix in apart.items():
        move(
            Layout(made),
            Layout(array_regions("w13", together, "expert row column", ranges={"expert": (expert, expert + 1)})),
            [0],
            [0],
        )
        np.testing.assert_array_equal(together[0], matrix)


def test_a_shard_in_two_pieces_fills_from_a_whole_one() -> None:
    whole, low, high = numbered(10, 4), np.zeros((3, 4), np.float16), np.zeros((2, 4), np.float16)
    pieces = (
        *array_regions("w", low, "row column", ranges={"row": (1, 4)}),
        *array_regions("w", high, "row column", ranges={"row": (8, 10)}),
    )
    assert [region.name for region in pieces] == ["w[row=1:4]", "w[row=8:10]"]
    move(Layout(array_regions("w", whole, "row column")), Layout(pieces), [0], [0])
    np.testing.assert_array_equal(low, whole[1:4])
    np.testing.assert_array_equal(high, whole[8:])


def test_a_weight_is_one_block_of_all_its_dimensions() -> None:
    whole = numbered(12, 10, dtype=np.float32)
    rows, columns = np.zeros((4, 10), np.float32), np.zeros((12, 5), np.float32).T
    src = array_regions("up.weight", whole, "row column")
    for array, axes, ranges, truth in (
        (rows, "row column", {"row": (8, 12)}, whole[8:]),
        (columns, ["column", "row"], {"column": (5, 10)}, whole[:, 5:].T),
    ):
        (region,) = array_regions("up.weight", array, axes, ranges=ranges)
        assert (region.num_blocks, region.sections[0].itemsize, region.sections[0].dtype) == (1, 4, "float32")
        move(Layout(src), Layout([region]), [0], [0])
        np.testing.assert_array_equal(array, truth)


def test_a_field_of_records_is_an_array_like_any_other() -> None:
    records = np.zeros((BLOCKS, 4), [("scale", "<f4"), ("data", "u1", (12,))])
    records["data"] = np.arange(BLOCKS * 48).reshape(BLOCKS, 4, 12)
    records["scale"] = 0.5
    here = (
        *array_regions("d", records["data"], "block token byte"),
        *array_regions("s", records["scale"], "block token"),
    )
    assert [(region.block_len, region.block_stride) for region in here] == [(60, 64), (52, 64)]
    data, scales = np.zeros((BLOCKS, 4, 12), np.uint8), np.zeros((BLOCKS, 4), np.float32)
    there = (*array_regions("d", data, "block token byte"), *array_regions("s", scales, "block token"))
    move(Layout(here), Layout(there), [3, 1], [2, 0])
    np.testing.assert_array_equal(data[[2, 0]], records["data"][[3, 1]])
    assert scales.tolist() == [[0.5] * 4, [0] * 4, [0.5] * 4, [0] * 4, [0] * 4]


def test_the_stride_of_a_dimension_of_one_does_not_matter() -> None:
    whole = numbered(3, 1, 4)
    odd = np.lib.stride_tricks.as_strided(whole, whole.shape, (8, 0, 2))
    longest = np.lib.stride_tricks.as_strided(whole, whole.shape, (8, 4096, 2))
    regions = [array_regions("l0", array, "block head byte") for array in (whole, odd, longest)]
    assert [region.sections[0].strides for (region,) in regions] == [(8, 1)] * 3
    one = np.lib.stride_tricks.as_strided(whole, (2, 1, 4), (8, -64, 2))
    (alone, other) = array_regions("l0", one, "kv block byte", names={"kv": ("k", "v")})[0].sections
    assert (alone.name, alone.offset, other.name, other.offset) == ("l0.k", 0, "l0.v", 8)


# ------------------------------------------------------------------------------------------ whose memory it is


class Tensor:
    """What of a torch tensor is needed, over no memory at all; `device` may be a str or an object that shows as one."""

    def __init__(self, shape: tuple[int, ...], stride: tuple[int, ...], device: Any, pointer: int, dtype: str) -> None:
        self.shape, self._stride, self.device, self._pointer = shape, stride, device, pointer
        self.dtype = f"torch.{dtype}"

    def data_ptr(self) -> int:
        return self._pointer

    def stride(self) -> tuple[int, ...]:
        return self._stride

    def element_size(self) -> int:
        return 2


class OnGpu:
    """What CuPy's arrays say; `dtype` is the array's own where the type string has no word for it."""

    def __init__(self, strides: tuple[int, ...] | None = None, typestr: str = "<f2") -> None:
        self.__cuda_array_interface__ = {
            "shape": (6, 4, 8),
            "typestr": typestr,
            "data": (0x7F00_0000, False),
            "strides": strides,
            "version": 3,
        }


def tensor(device: Any, pointer: int = 0x7F00_0000) -> Tensor:
    return Tensor((6, 4, 8), (64, 8, 1), device, pointer, "bfloat16")


def test_a_tensor_says_its_memory_and_its_device() -> None:
    for device, memory in {
        "cpu": ("DRAM", 0),
        "cuda:1": ("VRAM", 1),
        "cuda:0": ("VRAM", 0),
        "xpu:3": ("VRAM", 3),
    }.items():
        (region,) = array_regions("l0", tensor(device), "block token byte", groups=(2,))
        assert (region.mem_type, region.device_id, region.base_addr, region.groups) == (*memory, 0x7F00_0000, (2,))
        assert (region.block_len, region.block_stride, region.num_blocks) == (64, 128, 6)
        assert region.sections[0].dtype == "bfloat16"


def test_what_is_given_goes_before_what_the_tensor_says() -> None:
    (region,) = array_regions(
        "l0", tensor("cuda:1"), "block token byte", mem_type="DRAM", device_id=7, base_addr=0x1000
    )
    assert (region.mem_type, region.device_id, region.base_addr) == ("DRAM", 7, 0x1000)
    (region,) = array_regions("l0", tensor("cuda"), "block token byte", device_id=3)
    assert (region.mem_type, region.device_id) == ("VRAM", 3)
    (region,) = array_regions("l0", np.zeros((6, 8), np.uint8), "block byte", mem_type="FILE", device_id=9, base_addr=0)
    assert (region.mem_type, region.device_id, region.base_addr) == ("FILE", 9, 0)


def test_a_meta_tensor_is_described_where_it_will_be() -> None:
    (region,) = array_regions("l0", tensor("meta", 0), "block token byte", base_addr=0x1000)
    assert (region.mem_type, region.device_id, region.base_addr) == ("VRAM", 0, 0x1000)


def test_an_array_on_a_gpu_is_on_the_device_that_is_given() -> None:
    (region,) = array_regions("l0", OnGpu(), "block token byte", device_id=2)
    assert (region.mem_type, region.device_id, region.base_addr, region.block_stride) == ("VRAM", 2, 0x7F00_0000, 64)
    (region,) = array_regions("l0", OnGpu((256, 32, 2)), "block token byte", device_id=2)
    assert (region.block_stride, region.sections[0].strides) == (256, (32, 1))


def test_a_tensor_is_asked_before_its_interface() -> None:
    """One on a GPU has both, and only its `device` says which."""

    class Both(Tensor, OnGpu):
        def __init__(self) -> None:
            OnGpu.__init__(self)
            Tensor.__init__(self, (6, 4, 8), (32, 8, 1), "cuda:5", 0x1000, "float16")

    assert array_regions("l0", Both(), "block token byte")[0].device_id == 5


def test_the_label_is_the_arrays_own_word_for_its_dtype() -> None:
    """So that bfloat16 is never taken for float16, nor for two bytes of anything."""

    class Named(OnGpu):
        dtype = "bfloat16"

    labels = [
        array_regions("l0", array, "block token byte", device_id=0)[0].sections[0].dtype
        for array in (OnGpu(), Named(typestr="<V2"), np.zeros((6, 4, 8), ">f2"), np.zeros((6, 4, 8), "i1"))
    ]
    assert labels == ["float16", "bfloat16", ">f2", "int8"]


def test_an_interface_may_keep_its_data_in_a_buffer() -> None:
    class Buffered:
        def __init__(self, memory: bytearray) -> None:
            self.__array_interface__ = {
                "shape": (3, 4),
                "typestr": "|u1",
                "data": memory,
                "offset": 2,
                "strides": (8, 1),
                "version": 3,
            }

    memory = bytearray(range(32))
    (region,) = array_regions("l0", Buffered(memory), "block byte")
    there = np.zeros((3, 4), np.uint8)
    move(Layout([region]), Layout(array_regions("l0", there, "block byte")), [2, 0], [0, 1])
    assert there.tolist() == [[18, 19, 20, 21], [2, 3, 4, 5], [0, 0, 0, 0]]


def test_what_a_blocks_bytes_mean_may_be_said_of_an_arrays_region() -> None:
    """A CPU backend keeps keys [dim][token] behind a tensor of [token][dim]: the array knows where the blocks are."""
    pool = np.zeros((10, 2, 4, 8), np.float16)
    (region,) = array_regions("l0", pool[::2], "block head token dim", groups=(3,), ranges={"head": (2, 4)})
    axes = [Axis("head", 2, 4), Axis("dim", 0, 8), Axis("token", 0, 4)]
    again = region.with_sections([Section("l0.k", axes, 2)])
    assert [axis.name for axis in again.sections[0].axes] == ["head", "dim", "token"]
    assert (again.base_addr, again.num_blocks, again.block_stride) == (pool.ctypes.data, 5, 2 * pool[0].nbytes)
    assert (again.groups, again.mem_type, again.name) == ((3,), "DRAM", region.name)
    shorter = region.with_sections([Section("s", (), 16), Section("t", (), 8, offset=24)])
    assert (shorter.block_len, shorter.block_stride, shorter.reach) == (32, region.block_stride, 32)
    assert Layout([shorter]).table().tolist() == [[pool.ctypes.data, 32, 0, 2 * pool[0].nbytes, 5]]
    pieces = Region.segmented("pool", 32, [(0, 4), (4096, 2)]).with_sections([Section("s", (), 16)])
    assert Layout([pieces]).table().tolist() == [[0, 16, 0, 32, 4], [4096, 16, 0, 32, 2]]


def test_sections_of_a_region_are_sections_and_there_are_some() -> None:
    region = Region("k", 0, 16, 4)
    with pytest.raises(GeometryError, match="region 'k': sections is empty: a block holds at least one"):
        region.with_sections([])
    with pytest.raises(TypeError, match="region 'k': sections must be Section objects, got 3"):
        region.with_sections([3])  # type: ignore[list-item]
    with pytest.raises(GeometryError, match="region 'k': a region cut into sub_blocks has no sections"):
        Region("k", 0, 16, 4, sub_blocks=2).with_sections([Section("s", (), 16)])
