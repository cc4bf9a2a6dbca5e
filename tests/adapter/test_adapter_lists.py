"""The adapter's prepared lists and registrations: shared, dense for an old NIXL, released once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agents import painted
from engines import SIDES, Engine, L, N, Pair, local_preps, moved, shifted

import nixldesc
from nixldesc import (
    DlistPair,
    GeometryError,
    Layout,
    PeerMismatchError,
    Region,
    TransferError,
)
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


# ------------------------------------------------------------------------------------------------------ prepared lists


def test_a_list_that_cannot_be_prepared_leaves_none(pair: Pair) -> None:
    for after in range(4):
        pair.mine.fail("prep", "NIXL_ERR_NOT_FOUND", after=after)
        del pair.mine.journal[:]
        before = pair.mine.live()
        # Other layouts than those of pair.peer, so that nothing is shared.
        parts = [(Layout(s.regions[:1]), Layout(d.regions[:1])) for s, d in pair.peer.pairs]
        fresh = [DlistPair(shifted(s), shifted(d)) for s, d in parts]
        with pytest.raises(
            TransferError,
            match=rf"peer '{pair.theirs.name}', list of 7 [DV]RAM descriptors.*: prepare failed with NIXL_ERR_NOT_F",
        ):
            prepare(pair.mine, pair.theirs.name, fresh, local=pair.local)
        assert pair.mine.live() == before
        numbers = [int(what) for _, what in pair.steps("release_dlist")]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) == after
    pair.close()


def test_peers_share_the_local_list_and_the_last_releases_it(pair: Pair) -> None:
    third = Engine("third", 5)
    pair.mine.add_remote_agent(third.agent.get_agent_metadata())
    assert local_preps(pair) == 2  # DRAM and VRAM
    src, dst = (third, pair.d) if pair.local == "dst" else (pair.p, third)
    pairs = nixldesc.plan(dst.layout, {0: src.layout})
    more = prepare(pair.mine, "third", pairs, local=pair.local)
    assert local_preps(pair) == 2
    assert pair.mine.live()["dlists"] == 6
    pair.peer.release()
    assert pair.mine.live()["dlists"] == 4
    with more.start([[3]], [[0]]) as transfer:
        assert transfer.wait(10) == "DONE"
    more.release()
    assert pair.mine.live()["dlists"] == 0
    third.registration.release()
    pair.close()


def test_a_failed_prepare_keeps_the_shared_list_of_others(pair: Pair) -> None:
    pair.mine.fail("prep", after=1)
    with pytest.raises(TransferError):
        prepare(pair.mine, pair.theirs.name, pair.plan, local=pair.local)
    assert pair.mine.live()["dlists"] == 4
    with pair.peer.start([[3]], [[0]]) as transfer:
        assert transfer.wait(10) == "DONE"
    pair.close()


def test_what_a_failed_prepare_could_not_release_is_tried_again(pair: Pair) -> None:
    fresh = [(shifted(Layout(s.regions[:1])), shifted(Layout(d.regions[:1]))) for s, d in pair.peer.pairs]
    before = pair.mine.live()["dlists"]
    pair.mine.fail("prep", after=3)
    pair.mine.fail("release_dlist", times=4)  # three lists, and the last of them again
    with pytest.raises(TransferError, match="prepare failed with NIXL_ERR_BACKEND"):
        prepare(pair.mine, pair.theirs.name, fresh, local=pair.local)
    assert pair.mine.live()["dlists"] == before + 1
    with prepare(pair.mine, pair.theirs.name, (), local=pair.local):
        assert pair.mine.live()["dlists"] == before
    pair.close()


def test_agents_do_not_share_lists() -> None:
    first, second = Pair("dst"), Pair("dst")
    assert local_preps(first) == local_preps(second) == 2
    first.close()
    second.close()


def test_lists_are_released_once_the_last_prepared_first(pair: Pair) -> None:
    pair.close()
    pair.peer.release()
    numbers = [int(what) for _, what in pair.steps("release_dlist")]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 4
    with pytest.raises(TransferError, match=f"peer '{pair.theirs.name}' was released; nothing can be started any more"):
        pair.peer.start([[3]], [[0]])
    with pytest.raises(TransferError, match="was released"):
        pair.peer.start([[]], [[]], notify=b"never")
    assert pair.theirs.get_new_notifs() == {}
    assert "released" in repr(pair.peer)


def test_a_list_that_nixl_will_not_release_is_tried_again(pair: Pair) -> None:
    pair.mine.fail("release_dlist", after=1)
    with pytest.raises(
        TransferError,
        match=f"peer '{pair.theirs.name}', list of 8 VRAM descriptors: release failed with NIXL_ERR_BACKEND",
    ):
        pair.peer.release()
    assert pair.mine.live()["dlists"] == 1
    pair.close()


# -------------------------------------------------------------------------------------------------------- registration


def test_registration_is_released_once_and_in_reverse() -> None:
    engine = Engine("e", 1)
    engine.registration.release()
    engine.registration.release()
    steps = [(step, what.split()[0]) for step, what in engine.agent.journal]
    assert steps == [
        ("register", "DRAM"),
        ("register", "VRAM"),
        ("deregister", "VRAM"),
        ("deregister", "DRAM"),
    ]
    assert repr(engine.registration) == "<Registration of 2 ranges, released>"


def test_memory_that_an_agent_names_as_its_own_peer_stays_registered() -> None:
    agent, memory = LoopbackAgent("a"), painted(2 * N * L, 1)
    here, there = (Layout([Region("k", memory.ctypes.data + i * N * L, L, N, mem_type="DRAM")]) for i in range(2))
    held = register(agent, here), register(agent, there)
    with prepare(agent, "a", DlistPair(there, here), local="dst"):
        for registration in held:
            with pytest.raises(TransferError, match="1 prepared lists still name this memory"):
                registration.release()
    for registration in held:
        registration.release()
    assert agent.live()["ranges"] == 0


def test_a_failed_registration_leaves_nothing() -> None:
    engine = Engine("e", 1)
    engine.registration.release()
    engine.agent.fail("register", after=1)
    with pytest.raises(TransferError, match="register of 1 VRAM ranges failed with NIXL_ERR_BACKEND"):
        register(engine.agent, engine.layout)
    assert engine.agent.live()["ranges"] == 0


def test_a_registration_that_nixl_keeps_is_tried_again() -> None:
    engine = Engine("e", 1)
    engine.agent.fail("deregister")
    with pytest.raises(TransferError, match="deregister failed with NIXL_ERR_BACKEND"):
        engine.registration.release()
    assert engine.agent.live()["ranges"] == 1
    engine.registration.release()
    assert engine.agent.live()["ranges"] == 0


def test_given_ranges_must_hold_every_region() -> None:
    engine = Engine("e", 1)
    k, v = ((r.base_addr, r.span, r.device_id, r.mem_type) for r in engine.layout.regions)
    for ranges in ([k], [k, (v[0], v[1] - 1, *v[2:])], [k, (v[0], v[1], 0, "VRAM")], [k, (v[0], v[1], 1, "DRAM")],
                   [k, (v[0], L, 1, "VRAM"), (v[0] + L, v[1] - L, 1, "VRAM")]):  # fmt: skip
        with pytest.raises(
            GeometryError,
            match=rf"region 'v' \(VRAM of device 1, bytes .*\) is not inside one of the {len(ranges)} ranges",
        ):
            register(engine.agent, engine.layout, ranges)
    with register(engine.agent, engine.layout, iter([v, k])) as registration:
        assert registration.ranges == (v, k)
    for junk in (5, "abcd", (1, 2, 3), (1.0, 2, 3, "DRAM"), (1, 2, 3, None)):
        with pytest.raises(TypeError, match=r"ranges\[0\]"):
            register(engine.agent, engine.layout, [junk])  # type: ignore[list-item]
    engine.registration.release()


# ----------------------------------------------------------------------------------------------------- old NIXL, N x 3


@pytest.mark.parametrize("local", SIDES)
def test_an_old_nixl_gets_dense_lists(local: Any) -> None:
    pair = Pair(local, strided=False)
    with pair.peer.start([[3, 2]], [[0, 5]], notify=b"done") as transfer:
        assert transfer.wait(10) == "DONE"
    assert moved(pair, [3, 2], [0, 5])
    pair.close()


def test_an_old_nixl_is_asked_for_strided_lists_once_per_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = LoopbackAgent("a", strided=False)
    asked = []
    prep = agent.prep_xfer_dlist

    def counting(name: str, descs: Any, mem_type: str) -> Any:
        asked.append(descs.shape[1])
        return prep(name, descs, mem_type)

    monkeypatch.setattr(agent, "prep_xfer_dlist", counting)
    memory = painted(2 * N * L, 1)
    layouts = [Layout([Region("k", memory.ctypes.data + i * N * L, L, N, mem_type="DRAM")]) for i in range(2)]
    with (
        register(agent, layouts[0]),
        register(agent, layouts[1]),
        prepare(agent, "a", DlistPair(*layouts), local="dst"),
    ):
        assert asked == [5, 3, 3]
        with prepare(agent, "a", DlistPair(*reversed(layouts)), local="dst"):
            assert asked == [5, 3, 3, 3, 3]


def test_a_dense_list_beyond_the_limit_is_refused_and_leaves_nothing() -> None:
    old = Pair("dst", strided=False, dense_limit=N * 24)
    old.peer.release()
    with pytest.raises(
        TransferError,
        match=r"peer 'p', list of 8 DRAM descriptors, local: this NIXL takes no N x 5 lists \(nixl >= 1.5 does\), and "
        r"the N x 3 list would take 192 bytes, more than dense_limit = 191",
    ) as caught:
        prepare(old.mine, "p", old.plan, local="dst", dense_limit=191)
    assert isinstance(caught.value.__cause__, TypeError)
    old.close()
    Pair("dst", dense_limit=0).close()  # N x 5 needs no such room


def test_a_type_error_of_both_forms_is_told(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise TypeError("no such overload\nmany more lines")

    monkeypatch.setattr(pair.theirs, "prep_xfer_dlist", refuse)
    with pytest.raises(TransferError, match=r"prepare failed with TypeError: no such overload$"):
        prepare(pair.theirs, "x", pair.plan, local=pair.local)
    assert pair.theirs.live()["dlists"] == 0
    pair.close()


# ----------------------------------------------------------------------------------------------------- what is refused


def test_what_can_be_prepared(pair: Pair) -> None:
    both = pair.plan[0]
    unlike = both[0].src, both[0].dst
    nothing = nixldesc.plan(pair.d.layout, {}, allow_missing=("k", "v"))
    cases: list[tuple[Any, int]] = [
        (pair.plan, 2), (both, 2), (list(both), 2), (both[0], 1), (unlike, 1), ([unlike, both[1]], 2), ((), 0),
        ([], 0), (nothing, 0),
    ]  # fmt: skip
    for given, count in cases:
        with prepare(pair.mine, pair.theirs.name.encode(), given, local=pair.local) as peer:
            assert len(peer.pairs) == count
            assert peer.name == pair.theirs.name
    pair.close()


def test_what_cannot_be_prepared(pair: Pair) -> None:
    several = nixldesc.plan(pair.d.layout, {r: Layout([pair.p.layout.regions[r]]) for r in range(2)})
    cases: list[tuple[Any, type[Exception], str]] = [
        (several, PeerMismatchError, r"the plan has 2 source ranks \(0, 1\): prepare each with plan\[rank\]"),
        ((pair.p.layout, pair.d.layout), PeerMismatchError, "the src layout has regions in DRAM and VRAM"),
        ("plan", TypeError, "expected a Plan, DlistPairs or"),
        (None, TypeError, "expected a Plan, DlistPairs or"),
        (pair.p.layout, TypeError, "expected a Plan, DlistPairs or"),
        ([pair.p.layout], TypeError, "expected a DlistPair or"),
        ((pair.p.layout, 5), TypeError, "expected a DlistPair or"),
        ([(pair.p.layout,)], TypeError, "expected a DlistPair or"),
    ]
    before = pair.mine.live()
    for given, error, words in cases:
        with pytest.raises(error, match=words):
            prepare(pair.mine, "x", given, local=pair.local)
    with pytest.raises(ValueError, match="local must be 'dst' or 'src'"):
        prepare(pair.mine, "x", pair.plan, local="here")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="peer_name must be a str"):
        prepare(pair.mine, 5, pair.plan, local="dst")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="dense_limit must be an int"):
        prepare(pair.mine, "x", pair.plan, local="dst", dense_limit=1e9)  # type: ignore[call-overload]
    assert pair.mine.live() == before
    pair.close()


@pytest.mark.parametrize("pair", ["dst"], indirect=True)
def test_the_agent_is_the_destination_unless_said(pair: Pair) -> None:
    with prepare(pair.mine, pair.theirs.name, pair.plan) as peer:
        assert peer.operation == "READ"
    pair.close()


def test_unregistered_memory_is_told_what_to_do() -> None:
    memory, mine, theirs = np.zeros(64, np.uint8), LoopbackAgent("mine"), LoopbackAgent("theirs")
    layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
    mine.add_remote_agent(theirs.get_agent_metadata())
    with pytest.raises(TransferError, match=r"has this agent registered that memory \(register\("):
        prepare(mine, "theirs", (layout, layout))
    with register(mine, layout), pytest.raises(TransferError, match="had the peer registered that memory before"):
        prepare(mine, "theirs", (layout, layout))
