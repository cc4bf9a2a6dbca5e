"""Whatever comes in as `out` is filled or refused by class and words; a refusal of any kind leaves it as it was."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from doors import ENDLESS, GOOD, LAYOUT, PAIR, misaligned
from refusals import DlistPair, Layout, expand_table, frozen, ints, kernel_blocks, region

from nixldesc import BlockIdError
from nixldesc.kernels import _kernels


class Filled(NamedTuple):
    """A door that fills `out`: the call for ids and out; the out of a good call for [5, 0, 63], and what it holds."""

    call: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    dtype: Any
    good: Any


SPARE = ints(3)

FILLED = {
    "Layout.desc_ids": Filled(lambda ids, out: LAYOUT.desc_ids([ids], out=out), (3,), np.int32, [5, 0, 63]),
    "pair.desc_ids src": Filled(
        lambda ids, out: PAIR.desc_ids([ids], [[1, 2, 3]], out=(out, SPARE)), (3,), np.int32, [5, 0, 63]
    ),
    "pair.desc_ids dst": Filled(
        lambda ids, out: PAIR.desc_ids([[1, 2, 3]], [ids], out=(SPARE, out)), (3,), np.int32, [0, 5, 63]
    ),
    "kernel_blocks": Filled(lambda ids, out: kernel_blocks(ids, 1, out=out), (3,), np.int32, [5, 0, 63]),
    "pair.moves": Filled(
        lambda ids, out: PAIR.moves(ids, [0, 1, 2], out=out),
        (3, 3),
        np.uint64,
        [[0x1050, 0x9000, 16], [0x1000, 0x9010, 16], [0x13F0, 0x9020, 16]],
    ),
}
every_filled = pytest.mark.parametrize("door", [pytest.param(door, id=title) for title, door in FILLED.items()])


class Lying(np.ndarray[Any, Any]):
    """An array that claims to be as long as ever is needed."""

    def __len__(self) -> int:
        return 3


def spoiled(door: Filled) -> dict[str, tuple[Any, type[Exception]]]:
    """Outs that must be refused; all hold sevens."""
    ndim, longer = len(door.shape), (door.shape[0] * 2, *door.shape[1:])
    return {
        "short": (np.full((door.shape[0] - 1, *door.shape[1:]), 7, door.dtype), ValueError),
        "long": (np.full(longer, 7, door.dtype), ValueError),
        "empty": (np.full((0, *door.shape[1:]), 7, door.dtype), ValueError),
        "with gaps": (np.full(longer, 7, door.dtype)[::2], ValueError),
        "backwards": (np.full(door.shape, 7, door.dtype)[::-1], ValueError),
        "a dimension more": (np.full((1, *door.shape), 7, door.dtype), ValueError),
        "a dimension less": (np.full(door.shape, 7, door.dtype).reshape(-1)[: 1 if ndim == 1 else None], ValueError),
        "0-d": (np.full((), 7, door.dtype), ValueError),
        "read-only": (frozen(np.full(door.shape, 7, door.dtype)), ValueError),
        "misaligned": (
            misaligned([7] * int(np.prod(door.shape)), door.dtype).reshape(door.shape),
            ValueError,
        ),
        "of another size": (np.full(door.shape, 7, np.int16), TypeError),
        "of another sign": (np.full(door.shape, 7, np.uint32 if door.dtype == np.int32 else np.int64), TypeError),
        "of floats": (np.full(door.shape, 7, np.float32 if door.dtype == np.int32 else np.float64), TypeError),
        "of swapped bytes": (np.full(door.shape, 7, np.dtype(door.dtype).newbyteorder()), TypeError),
        "of objects": (np.full(door.shape, 7, object), TypeError),
        "lying": (np.full((2, *door.shape[1:]), 7, door.dtype).view(Lying), ValueError),
        "a list": ([7] * 3, TypeError),
        "bytes": (b"7" * 12, TypeError),
        "a bytearray": (bytearray(b"7" * 12), TypeError),
        "a memoryview": (np.full(door.shape, 7, door.dtype).data, TypeError),
        "an int": (7, TypeError),
    }


@every_filled
@pytest.mark.parametrize("kind", spoiled(FILLED["kernel_blocks"]))
def test_an_out_that_does_not_fit(door: Filled, kind: str) -> None:
    out, error = spoiled(door)[kind]
    before = np.array(out)
    with pytest.raises(error, match="out ") as caught:
        door.call(GOOD, out)
    assert type(caught.value) is error
    assert (np.array(out) == before).all()
    assert not SPARE.any()
    assert filled(door) == door.good


def filled(door: Filled) -> Any:
    """What a good call writes; what it returns shares its memory."""
    out = np.full(door.shape, 7, door.dtype)
    result = door.call(GOOD, out)
    assert any(np.shares_memory(out, part) for part in (result if isinstance(result, tuple) else (result,)))
    SPARE[:] = 0
    return out.tolist()


@every_filled
@pytest.mark.parametrize(
    "bad", [2**31, -1, None, 1.0, "1", ENDLESS], ids=lambda bad: f"{bad!r:.9}" if bad != ENDLESS else "endless"
)
def test_out_is_untouched_by_a_refused_request(door: Filled, bad: Any) -> None:
    out = np.full(door.shape, 7, door.dtype)
    with pytest.raises((BlockIdError, TypeError)):
        door.call([5, 0, bad], out)
    assert (out == 7).all()
    assert not SPARE.any()
    assert filled(door) == door.good


@pytest.mark.parametrize("merge", [False, True])
def test_moves_out_is_untouched_where_a_late_id_does_not_pair(merge: bool) -> None:
    regions = [region("a", blocks=4), region("b", 0x9000, 32, blocks=4)]
    pair = DlistPair(Layout(regions), Layout(regions))
    out = np.full((3, 3), 7, np.uint64)
    for ids in ([0, 1, 8], [0, 1, 4]):  # out of range; 32 bytes against 16
        with pytest.raises(BlockIdError, match="position 2"):
            pair.moves(ids, [0, 1, 2], merge=merge, out=out)
    assert (out == 7).all()


@every_filled
def test_out_that_is_an_input(door: Filled) -> None:
    memory = np.zeros(24, np.int32)
    out = memory[: 18 if door.dtype == np.uint64 else 3].view(door.dtype).reshape(door.shape)
    for ids in (memory[:3], memory[1:4], memory[:3][::-1], memory[:6].view(np.int64)):
        with pytest.raises(ValueError, match="out shares memory with an input"):
            door.call(ids, out)
        assert not memory.any()


def test_out_that_is_the_other_out() -> None:
    memory = ints(5)
    for outs in ((memory[:3], memory[:3]), (memory[:3], memory[2:]), (memory[2:], memory[:3])):
        with pytest.raises(ValueError, match="out shares memory with an input"):
            PAIR.desc_ids([GOOD], [GOOD], out=outs)
    assert not memory.any()


@pytest.mark.parametrize(
    "out", [(), (ints(3),), [ints(3), ints(3)], (None, None), (ints(3), None), ints(6).reshape(2, 3)]
)
def test_outs_that_are_no_pair(out: Any) -> None:
    with pytest.raises(TypeError, match="out must be "):
        PAIR.desc_ids([GOOD], [GOOD], out=out)


class Claiming(np.ndarray[Any, Any]):
    """An array that claims a shape which its memory does not have."""

    claimed: tuple[int, ...] = ()

    def __getattribute__(self, name: str) -> Any:
        if name in ("shape", "ndim"):
            claimed = super().__getattribute__("claimed")
            return claimed if name == "shape" else len(claimed)
        return super().__getattribute__(name)


def claiming(array: Any, shape: tuple[int, ...]) -> Any:
    view = array.view(Claiming)
    view.claimed = shape
    return view


@every_filled
@pytest.mark.parametrize("short", [0, 1, 2])
def test_an_out_that_claims_a_shape(door: Filled, short: int) -> None:
    """What counts is the memory that there is: sevens behind it stay."""
    memory = np.full((16, *door.shape[1:]), 7, door.dtype)
    with pytest.raises(ValueError, match="out "):
        door.call(GOOD, claiming(memory[:short], door.shape))
    assert (memory == 7).all()
    door.call(GOOD, claiming(memory[: door.shape[0]], door.shape))
    assert memory[: door.shape[0]].tolist() == door.good
    assert (memory[door.shape[0] :] == 7).all()
    SPARE[:] = 0


def test_a_table_that_claims_a_shape() -> None:
    memory = np.full((8, 3), 7, np.uint64)
    with pytest.raises(ValueError, match=r"out has shape \(2, 3\), the result \(5, 3\)"):
        expand_table(np.array([(0x1000, 16, 0, 16, 5)], np.uint64), claiming(memory[:2], (5, 3)))
    with pytest.raises(ValueError, match="out has shape"):
        expand_table(np.array([(0x1000, 16, 0, 16, 5)], np.uint64), claiming(np.zeros((5, 1), np.uint64), (5, 3)))
    assert (memory == 7).all()
    for shape in ((1, 3), (2, 2), (4,)):
        with pytest.raises(ValueError, match="table must be C-contiguous and aligned, of shape"):
            expand_table(claiming(np.ones(shape, np.uint64), (1, 5)))


@every_filled
@pytest.mark.parametrize("spell", [memoryview, lambda ids: array.array("i", ids)], ids=["memoryview", "array.array"])
def test_out_that_is_the_memory_of_another_spelling(door: Filled, spell: Any) -> None:
    words = array.array("i", [0] * 24)
    whole = np.frombuffer(words, np.int32)
    out = whole[: 18 if door.dtype == np.uint64 else 3].view(door.dtype).reshape(door.shape)
    with pytest.raises(ValueError, match="out shares memory with an input"):
        door.call(memoryview(words)[:3], out)
    if door.dtype == np.int32:
        three = array.array("i", GOOD)
        with pytest.raises(ValueError, match="out shares memory with an input"):
            door.call(three, np.frombuffer(three, np.int32))
        assert three.tolist() == GOOD
    assert not any(words)
    assert door.call(spell(memoryview(array.array("i", GOOD))), np.zeros(door.shape, door.dtype)) is not None
    SPARE[:] = 0


@pytest.mark.parametrize("program", [_kernels.PairProgram, _kernels.LayoutProgram])
def test_a_program_is_never_without_its_parts(program: Any) -> None:
    with pytest.raises(TypeError):
        program.__new__(program)
    with pytest.raises(TypeError):
        program()
    with pytest.raises(TypeError):
        program.__new__(program, *[None] * (5 if program is _kernels.PairProgram else 3))
