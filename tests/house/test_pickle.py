"""Everything that a worker may hand to another process survives it: equal, with the same hash, and it works there."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Hashable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import strangers

from nixldesc import (
    Axis,
    BlockIdError,
    Blocks,
    DlistPair,
    GeometryError,
    Layout,
    NixldescError,
    PeerMismatchError,
    Plan,
    Region,
    Section,
    TransferError,
    plan,
)

WAYS: dict[str, Callable[[Any], Any]] = {
    **{
        f"protocol {n}": lambda value, n=n: pickle.loads(pickle.dumps(value, n))  # type: ignore[misc]
        for n in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
every_way = pytest.mark.parametrize("way", [pytest.param(way, id=title) for title, way in WAYS.items()])


# ----------------------------------------------------------------------------------------------------- errors


def refusal(do: Callable[[], object]) -> Exception:
    with pytest.raises(NixldescError) as caught:
        do()
    return caught.value


ONE = Layout([Region("k", 0, 16, 8)])
ERRORS = {
    "NixldescError": NixldescError("what", "where"),
    "GeometryError": refusal(lambda: Layout([Region("k", 0, 0, 8)])),
    "BlockIdError": refusal(lambda: ONE.desc_ids([[9]])),
    "PeerMismatchError": refusal(lambda: plan(ONE, {})),
    "TransferError": TransferError("peer 'prefill-0', DRAM to VRAM: post failed"),
    "no words": TransferError(),
}


@every_way
@pytest.mark.parametrize("name", ERRORS)
def test_an_error(name: str, way: Callable[[Any], Any]) -> None:
    error = ERRORS[name]
    again = way(error)
    assert type(again) is type(error)
    assert again is not error
    assert str(again) == str(error)
    assert again.args == error.args
    with pytest.raises(type(error)):
        raise again


def test_each_error_is_among_them() -> None:
    assert {type(error) for error in ERRORS.values()} == {
        NixldescError,
        GeometryError,
        BlockIdError,
        PeerMismatchError,
        TransferError,
    }


# ----------------------------------------------------------------------------------------------------- values


def tp(tp_rank: int, tp_size: int, tokens: int, base: int, **how: Any) -> Layout:
    heads = 4 // tp_size
    page = Section(
        "l0", (Axis("head", tp_rank * heads, (tp_rank + 1) * heads), Axis("token", 0, tokens), Axis("byte", 0, 8)), 1
    )
    return Layout(
        [
            Region("l0", base, page.end, 30, groups=(0,), sections=[page]),
            Region("state", base + 2**20, 96, 9, groups=(1,), block_stride=128),
        ],
        **how,
    )


def made() -> Plan:
    """Two sources, unequal block sizes (so that derived regions are cut), a section without a source."""
    dst = tp(0, 1, 8, 2**40)
    extra = Layout([*dst.regions, Region("draft", 2**30, 16, 4)])
    srcs = {rank: tp(rank, 2, 12, 2**41) for rank in range(2)}
    return plan(extra, srcs, dst_rank=0, dst_size=1, allow_missing=["draft"])


def made_with_cp() -> Plan:
    srcs = {r: tp(0, 1, 8, 2**41, cp_rank=r, cp_size=2) for r in (0, 1)}
    return plan(tp(0, 1, 8, 2**40, cp_rank=1, cp_size=3), srcs, dst_rank=0, dst_size=1)


def used(layout: Layout) -> Layout:
    """With all that is prepared on first use."""
    layout.table(), layout.row_index(), hash(layout), layout.signature()
    layout.desc_ids([[], [], []])
    return layout


def pairs() -> dict[str, DlistPair]:
    cut, whole = made(), made_with_cp()
    return {
        "plain": DlistPair(ONE, Layout([Region("d", 4096, 16, 8, mem_type="DRAM")])),
        "cut": cut[0][0],
        "of the other source": cut[1][0],
        "under context parallelism": whole[1][0],
    }


VALUES: dict[str, Hashable] = {
    "Axis": Axis("head", 2, 4),
    "Section": Section("l0", (Axis("head", 2, 4), Axis("token", 0, 4)), 2, offset=8, strides=(64, 8), dtype="bf16"),
    "Section without cp": Section("l0", [Axis("token", 0, 4)], 2, cp=False),
    "Region": Region("k", 4096, 16, 8, block_stride=32, groups=(1, 0), mem_type="FILE", device_id=7),
    "cut Region": Region("k", 4096, 16, 8, sub_blocks=3, sub_stride=32, block_stride=128),
    **{f"Layout {i}": layout for i, layout in enumerate(strangers.layouts())},
    "used Layout": used(tp(1, 2, 16, 4096, cp_rank=1, cp_size=2)),
    **{f"DlistPair, {name}": pair for name, pair in pairs().items()},
    "Blocks of a list": Blocks([3, 1, 2], skip=5),
    "Blocks of a tuple": Blocks((3, 1)),
    "Blocks of nothing": Blocks([]),
    "Blocks of a range": Blocks(range(3, 9, 2), skip=1),
    "Blocks here and there": Blocks([3, 1, 2], at=[0, 4, 2**40]),
}


@every_way
@pytest.mark.parametrize("name", VALUES)
def test_a_value(name: str, way: Callable[[Any], Any]) -> None:
    value = VALUES[name]
    again = way(value)
    assert type(again) is type(value)
    assert again == value
    assert hash(again) == hash(value)
    assert len({again, value}) == 1
    assert repr(again) == repr(value)


@every_way
def test_blocks_of_an_array(way: Callable[[Any], Any]) -> None:
    blocks = Blocks(np.array([3, 1, 2], np.uint16), skip=2)
    again = way(blocks)
    assert again == blocks == Blocks([3, 1, 2], skip=2)
    assert hash(again) == hash(blocks) == hash(Blocks([3, 1, 2], skip=2))
    assert again.ids.dtype == np.uint16


@every_way
def test_a_layout_works_as_before(way: Callable[[Any], Any]) -> None:
    for layout in strangers.layouts():
        again = way(used(layout))
        assert again.table().tobytes() == layout.table().tobytes()
        assert not again.table().flags.writeable
        assert not again.starts.flags.writeable
        assert again.starts.tolist() == layout.starts.tolist()
        assert again.signature() == layout.signature()
        assert again.to_dict() == layout.to_dict()


@every_way
@pytest.mark.parametrize("name", pairs())
def test_a_pair_works_as_before(name: str, way: Callable[[Any], Any]) -> None:
    pair = pairs()[name]
    blocks = [Blocks([4, 2, 6, 1], skip=1), Blocks([0, 1])], [Blocks([3, 5, 7, 1, 2], skip=1), Blocks([6, 0])]
    ids = pair.desc_ids(*blocks)
    again = way(pair)
    assert again.origin == pair.origin
    assert again.mem_types == pair.mem_types
    assert [got.tolist() for got in again.desc_ids(*blocks)] == [given.tolist() for given in ids]
    assert again.merged_ops(*ids) == pair.merged_ops(*ids)
    assert again.moves(*ids).tolist() == pair.moves(*ids).tolist()
    assert len(ids[0]) > 0


@every_way
@pytest.mark.parametrize("make", [made, made_with_cp])
def test_a_plan(make: Callable[[], Plan], way: Callable[[Any], Any]) -> None:
    original = make()
    again = way(original)
    assert type(again) is Plan
    assert again == original == make()
    assert list(again) == list(original)
    assert (again.missing, again.unused) == (original.missing, original.unused)
    assert repr(again) == repr(original)
    src, dst = {0: [[1, 2], [3]], 1: [[4], [5]]}, [Blocks([6, 7, 8]), Blocks([0, 1])]
    assert again.undelivered(src, [*dst]) == original.undelivered(src, [*dst]) != []


# ------------------------------------------------------------------------------------------- another process


READ = """
import pickle, sys
values = pickle.load(sys.stdin.buffer)
again = [pickle.loads(pickle.dumps(value)) for value in values]
assert again == values
assert [hash(value) for value in again] == [hash(value) for value in values]
assert all(value in {other: None} for value, other in zip(values, again))
sys.stdout.buffer.write(pickle.dumps(again))
"""


def test_there_and_back() -> None:
    """Strings hash otherwise in another interpreter; a hash that was kept must not travel."""
    values = list(VALUES.values())
    for value in values:
        hash(value)
    there = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", READ], input=pickle.dumps(values), env=there, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    again = pickle.loads(done.stdout)
    assert again == values
    assert [hash(value) for value in again] == [hash(value) for value in values]


# --------------------------------------------------------------------------------------------------- as values


@pytest.mark.parametrize("name", VALUES)
def test_a_value_does_not_change(name: str) -> None:
    value: Any = VALUES[name]
    field = value.__slots__[-1]
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, None)
    with pytest.raises(FrozenInstanceError):
        delattr(value, field)
    with pytest.raises((AttributeError, TypeError)):  # slots; CPython 3.10 words it as a TypeError
        value.other = None
    assert not hasattr(value, "__dict__")


def test_what_differs_is_not_equal() -> None:
    values = list(VALUES.values())
    for i, one in enumerate(values):
        for other in values[i + 1 :]:
            assert one != other
        assert one != "k"
    pair = pairs()["cut"]
    assert DlistPair(pair.src, pair.dst) != pair, "where its lists stand is part of a pair"


def test_a_broken_pickle_is_proven_again() -> None:
    """A layout is made anew from what was pickled, so nothing arrives that could not have been made."""
    broken = Layout([Region("k", 0, 16, 8)])
    broken._cache["regions"] = (Region("k", 0, 16, 8, block_stride=8),)
    with pytest.raises(GeometryError, match="block_stride is 8 bytes"):
        pickle.loads(pickle.dumps(broken))
