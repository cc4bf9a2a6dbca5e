"""What `start` passes on to the ids, and what it refuses first."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import SIDES, Engine, L, N, Pair, in_threads, moved

from nixldesc import DlistPair, GeometryError, Layout, PeerMismatchError, Region, TransferError
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_every_option_reaches_the_ids(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    desc_ids = DlistPair.desc_ids

    def told(self: DlistPair, *tables: Any, **options: Any) -> Any:
        given.append(options)
        return desc_ids(self, *tables)

    monkeypatch.setattr(DlistPair, "desc_ids", told)
    options: dict[str, Any] = {"tokens": 5, "complete": True, "null_block": 0, "order": "given"}
    pair.peer.start([[3]], [[0]], **options).release()
    assert given == [options, options]
    monkeypatch.undo()
    with pytest.raises(TypeError, match="best"):
        pair.peer.start([[3]], [[0]], best=True)
    with pytest.raises(TypeError, match="start takes no out="):
        pair.peer.start([[3]], [[0]], out=())
    pair.close()


def test_sections_are_taken_from_the_pairs_that_have_them(pair: Pair) -> None:
    """The cache "k" is in DRAM, "v" in VRAM: each of the two pairs has one of them."""
    before = pair.d.blocks(0)
    with pair.peer.start([[3]], [[0]], sections=["v"], notify=b"v") as transfer:
        assert transfer.wait(10) == "DONE" and len(transfer.handles) == 1
    assert pair.d.blocks(0) == [before[0], pair.p.blocks(3)[1]]
    with pair.peer.start([[3]], [[0]], sections=iter(["v", "k"])) as transfer:
        assert transfer.wait(10) == "DONE" and len(transfer.handles) == 2
    assert moved(pair, [3], [0])
    with pytest.raises(PeerMismatchError, match="no section 'w' is moved; sections are 'k', 'v'"):
        pair.peer.start([[3]], [[0]], sections=["v", "w"])
    with pytest.raises(TypeError, match="sections"):
        pair.peer.start([[3]], [[0]], sections="v")
    pair.close()


def test_a_message_that_no_backend_can_carry(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """NIXL says so when the bytes are on their way; here nothing has begun."""
    monkeypatch.setattr(pair.mine, "backends", {"POSIX": 1, "GDS": 2}, raising=False)
    nothing: list[list[int]] = [[]]
    for tables in ([[3]], nothing):
        with pytest.raises(TransferError, match=r"needs a backend that can .* this agent has POSIX, GDS alone"):
            pair.peer.start(tables, tables, notify=b"r")
    assert pair.steps("make") == []
    pair.peer.start([[3]], [[0]]).release()
    monkeypatch.setattr(pair.mine, "backends", {"POSIX": 1, "UCX": 2}, raising=False)
    pair.peer.start([[3]], [[0]], notify=b"r").release()
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"r"]}
    pair.close()


def test_a_slice_for_a_peer_of_several_pairs_is_refused(pair: Pair) -> None:
    with pytest.raises(PeerMismatchError, match="has 2 list pairs, which count their regions apart"):
        pair.peer.start([[3]], [[0]], regions=slice(0, 1))
    pair.peer.start([[3]], [[0]], regions=slice(None)).release()
    assert moved(pair, [3], [0])
    pair.close()


# ---------------------------------------------------------------------------------------- what keeps handles apart


class Permissive(LoopbackAgent):
    """An agent that looks at nothing, as NIXL does: what is refused is the adapter's doing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.releasing = 0
        self.at_once = 0
        self.released: list[int] = []

    def _check_unused(self, left: Any) -> None:
        pass

    def release_xfer_handle(self, handle: Any) -> None:
        self.releasing += 1
        self.at_once = max(self.at_once, self.releasing)
        threading.Event().wait(0.02)
        self.releasing -= 1
        self.released.append(handle.number)
        self._xfers.pop(handle.number, None)


class Self:
    """A permissive agent as its own peer: blocks of one buffer."""

    def __init__(self) -> None:
        self.agent, self.memory = Permissive("a"), np.zeros(4 * N * L, np.uint8)
        self.at = self.memory.ctypes.data

    def layout(self, first: int, count: int = N) -> Layout:
        return Layout([Region("k", self.at + first * L, L, count, mem_type="DRAM")])

    def register(self, first: int, count: int) -> Any:
        return register(self.agent, self.layout(first, count))


def test_two_threads_release_one_transfer_and_each_handle_goes_once() -> None:
    own = Self()
    with own.register(0, 4 * N):
        with prepare(own.agent, "a", (own.layout(0), own.layout(N))) as peer:
            for _ in range(3):
                transfer = peer.start_ids(0, [1], [2])
                in_threads(transfer.release, 4)
    assert own.agent.at_once == 1
    assert own.agent.released == sorted(set(own.agent.released)) and len(own.agent.released) == 3


def test_memory_that_begins_before_the_list_is_not_deregistered_under_it() -> None:
    own = Self()
    held = own.register(0, 2 * N)
    rest = own.register(2 * N, N)
    peer = prepare(own.agent, "a", (own.layout(N - 1, 2), own.layout(2 * N, 2)))
    for registration in held, rest:
        with pytest.raises(TransferError, match="1 prepared lists still name this memory"):
            registration.release()
    peer.release()
    held.release()
    rest.release()


def test_memory_that_a_second_peer_names_is_not_deregistered_after_the_first() -> None:
    engine, own = Engine("other", 1), Self()
    own.agent.add_remote_agent(engine.agent.get_agent_metadata())
    held = own.register(0, N)
    theirs = Layout(engine.layout.regions[:1])
    first, second = (prepare(own.agent, "other", (theirs, own.layout(0))) for _ in range(2))
    for peer in first, second:
        with pytest.raises(TransferError, match="1 prepared lists still name this memory"):
            held.release()
        peer.release()
    held.release()
    assert own.agent.live()["ranges"] == 0
    engine.registration.release()


def test_memory_is_free_when_its_own_lists_are_gone_whatever_others_name() -> None:
    engine, own = Engine("other", 1), Self()
    own.agent.add_remote_agent(engine.agent.get_agent_metadata())
    held, also = own.register(0, N), own.register(N, N)
    theirs = Layout(engine.layout.regions[:1])
    first, second = (prepare(own.agent, "other", (theirs, own.layout(at))) for at in (0, N))
    first.release()
    held.release()
    with pytest.raises(TransferError, match="1 prepared lists still name this memory"):
        also.release()
    second.release()
    also.release()
    engine.registration.release()


def test_raw_ids_are_the_callers_to_change_afterwards() -> None:
    own = Self()
    given: list[Any] = []
    make = own.agent.make_prepped_xfer

    def noted(*args: Any) -> Any:
        given.extend(args)
        return make(*args)

    own.agent.make_prepped_xfer = noted  # type: ignore[method-assign, assignment]
    src, dst = np.array([1], np.int32), np.array([2], np.int32)
    with own.register(0, 4 * N), prepare(own.agent, "a", (own.layout(0), own.layout(N))) as peer:
        with peer.start_ids(0, src, dst):
            sent = [item for item in given if isinstance(item, np.ndarray)]
            assert len(sent) == 2 and not any(np.shares_memory(a, b) for a in sent for b in (src, dst))


def test_wait_without_a_limit_does_not_give_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of pauses, told by a clock that runs fast."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda _: now.__setitem__(0, now[0] + 3600.0))
    pair.mine.polls = 1000
    transfer = pair.peer.start([[3]], [[0]])
    assert transfer.wait(7200) == "PROC"
    assert transfer.wait() == "DONE"
    transfer.release()
    pair.close()


# ------------------------------------------------------------------------------------------------------ registration


def test_each_segment_of_a_region_may_lie_in_another_range() -> None:
    own = Self()
    cut = Layout([Region.segmented("k", L, [(own.at, 3), (own.at + 8 * L, 2)], mem_type="DRAM")])
    apart = [(own.at, 3 * L, 0, "DRAM"), (own.at + 7 * L, 3 * L, 0, "DRAM")]
    with register(own.agent, cut, apart):
        with prepare(own.agent, "a", (cut, own.layout(8, 2))) as peer, peer.start_ids(0, [4], [0]) as transfer:
            assert transfer.wait(10) == "DONE"
    words = (
        f"region 'k', segment 1 \\(DRAM of device 0, bytes {own.at + 8 * L:#x} to {own.at + 10 * L:#x}\\) is not inside"
    )
    with pytest.raises(GeometryError, match=words):
        register(own.agent, cut, [apart[0], (own.at + 8 * L, 2 * L - 1, 0, "DRAM")])


def test_many_segments_and_many_ranges_are_no_square() -> None:
    count = 30_000
    segments = np.zeros((count, 3), np.uint64)
    segments[:, 0], segments[:, 1] = 4096 + np.arange(count) * 64, 2
    layout = Layout([Region.segmented("k", 16, segments, mem_type="DRAM")])
    ranges = [(4096 + i * 64, 32, 0, "DRAM") for i in range(count)][::-1]
    agent = LoopbackAgent("a")
    agent.fail("register")
    with pytest.raises(TransferError, match="register of 30000 DRAM ranges failed"):
        register(agent, layout, ranges)
    with pytest.raises(GeometryError, match="segment 7 "):
        register(agent, layout, [item for item in ranges if item[0] != 4096 + 7 * 64])


def test_objects_are_registered_by_their_keys() -> None:
    told: list[Any] = []

    class Bucket(LoopbackAgent):
        def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: Any = ()) -> Any:
            told.append((reg_list, mem_type))
            return super().register_memory([item for item in reg_list if mem_type == "DRAM"][:1] or [DRAM], "DRAM")

    memory = np.zeros(64, np.uint8)
    DRAM = (memory.ctypes.data, 64, 0, "")
    objects = Layout([Region.segmented("o", L, [(0, 2, 7), (0, 2, 8)], mem_type="OBJ")])
    with register(Bucket("a"), objects, keys={8: "request/8"}):
        assert told == [([(0, 2 * L, 7, ""), (0, 2 * L, 8, "request/8")], "OBJ")]
    with pytest.raises(GeometryError, match=r"keys name device 9, which is no object \(mem_type 'OBJ'\) to register"):
        register(Bucket("a"), objects, keys={9: "x"})
    for junk in (["x"], {7: 5}, {"7": "x"}):
        with pytest.raises(TypeError, match="keys"):
            register(Bucket("a"), objects, keys=junk)  # type: ignore[arg-type]


def test_memory_types_and_ranges_that_cannot_be(tmp_path: Path) -> None:
    agent, memory = LoopbackAgent("a"), np.zeros(64, np.uint8)
    at = memory.ctypes.data
    with pytest.raises(GeometryError, match=r"region 'k': mem_type 'dram' is none that NIXL knows \(DRAM, .*'DRAM' me"):
        register(agent, Layout([Region("k", at, 8, 8, mem_type="dram")]))
    layout = Layout([Region("k", at, 8, 8, mem_type="DRAM")])
    with pytest.raises(GeometryError, match=r"ranges\[0\]: mem_type 'RAM' is none that NIXL knows"):
        register(agent, layout, [(at, 64, 0, "RAM")])
    for bad in ((at, 0, 0, "DRAM"), (-1, 64, 0, "DRAM"), (2**64 - 1, 2, 0, "DRAM")):
        with pytest.raises(GeometryError, match=r"ranges\[0\] must lie inside 2\*\*64 bytes and not be empty"):
            register(agent, layout, [bad])
    dram = Layout([Region("k", at, 8, 8, mem_type="dram")])
    with pytest.raises(GeometryError, match="the src layout: mem_type 'dram'"):
        prepare(agent, "a", (dram, layout))
    with open(os.devnull) as closed, pytest.raises(TransferError, match="has the agent a backend for FILE"):
        agent.fail("register")
        register(agent, Layout([Region("f", 0, 8, 8, mem_type="FILE", device_id=closed.fileno())]))


def test_both_kinds_of_agent_take_the_old_names_of_memory() -> None:
    buffer = np.zeros(64, np.uint8)
    host = Layout([Region("k", buffer.ctypes.data, 16, 4, mem_type="cpu")])
    with register(LoopbackAgent("old names"), host) as registered:
        assert registered.ranges[0][2:] == (0, "cpu")


def test_memory_that_is_not_on_a_gpu_is_hinted_at_by_the_old_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = LoopbackAgent("no gpu")
    monkeypatch.setattr(agent, "register_memory", lambda *_: (_ for _ in ()).throw(RuntimeError("NIXL_ERR_BACKEND")))
    with pytest.raises(TransferError, match=r"1 cuda ranges failed with NIXL_ERR_BACKEND; is this host memory\?"):
        register(agent, Layout([Region("k", 4096, 16, 4, mem_type="cuda")]))
