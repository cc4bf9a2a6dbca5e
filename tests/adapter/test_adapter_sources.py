"""One request over all sources of a plan: one Transfer, each source told once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from agents import painted

import nixldesc
from nixldesc import Axis, BlockIdError, Blocks, Layout, PeerMismatchError, Region, Section, TransferError
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent

HEADS, TOKENS, HEAD = 4, 2, 8
N = 8  # blocks


def engine(agent: LoopbackAgent, start: int, stop: int, seed: int) -> tuple[Any, Layout, Any]:
    """Heads `start` to `stop` of one cache, [block][head][token][byte]."""
    page = Section("k", (Axis("head", start, stop), Axis("token", 0, TOKENS), Axis("byte", 0, HEAD)), 1)
    memory = painted(N * page.nbytes, seed)
    layout = Layout([Region("k", memory.ctypes.data, page.nbytes, N, mem_type="DRAM", sections=(page,))])
    return memory.reshape(N, stop - start, TOKENS * HEAD), layout, register(agent, layout)


class Two:
    """Decode "d" has all heads; prefill "p0" and "p1" have half of them each, "p2" another cache."""

    def __init__(self) -> None:
        self.p = {rank: LoopbackAgent(f"p{rank}") for rank in range(3)}
        self.d = LoopbackAgent("d")
        sides = {rank: engine(self.p[rank], 2 * rank, 2 * rank + 2, rank) for rank in range(2)}
        self.src = {rank: memory for rank, (memory, _, _) in sides.items()}
        self.dst, mine, held = engine(self.d, 0, HEADS, 9)
        self.held = [held, *(registration for *_, registration in sides.values())]
        for rank in range(2):
            self.d.add_remote_agent(self.p[rank].get_agent_metadata())
        self.made = nixldesc.plan(mine, {rank: layout for rank, (_, layout, _) in sides.items()})
        self.peers = prepare(self.d, {0: "p0", 1: b"p1".decode()}, self.made, local="dst")

    def told(self) -> dict[int, list[bytes]]:
        return {rank: self.p[rank].get_new_notifs().get("d", []) for rank in range(2)}

    def moved(self, src: dict[int, int], dst: int) -> bool:
        return all((self.dst[dst, 2 * r : 2 * r + 2] == self.src[r][src[r]]).all() for r in src)

    def land(self, *peers: str) -> None:
        for handle in self.d._xfers.values():
            if handle.remote.name in peers:
                handle.polls_left = 1

    def close(self) -> None:
        self.peers.release()
        for registration in self.held:
            registration.release()
        assert self.d.live() == {"ranges": 0, "dlists": 0, "xfers": 0}


def test_a_request_from_two_sources_is_one_transfer() -> None:
    two = Two()
    assert list(two.peers.peers) == [0, 1] and "0: 'p0', 1: 'p1'" in repr(two.peers)
    with two.peers.start({0: [[3]], 1: [[5]], 7: "whoever"}, [[6]], notify=b"r") as transfer:  # type: ignore[dict-item]
        assert transfer.wait(10) == "DONE"
        assert (transfer.peer, transfer.operation, len(transfer.handles)) == ("p0, p1", "READ", 2)
        assert transfer.nbytes == HEADS * TOKENS * HEAD and transfer.num_descs == transfer.wire_ops == 2
    assert two.moved({0: 3, 1: 5}, 6)
    assert two.told() == {0: [b"r"], 1: [b"r"]}
    two.close()


def test_sections_are_looked_for_over_all_sources() -> None:
    two = Two()
    with two.peers.start({0: [[3]], 1: [[5]]}, [[6]], sections=iter(["k"])) as transfer:  # read once, not once a source
        assert transfer.num_descs == 2
    with pytest.raises(PeerMismatchError, match="peer 'p0', 'p1': no section 'w' is moved; sections are 'k'"):
        two.peers.start({0: [[3]], 1: [[5]]}, [[6]], sections=["w"])
    two.close()


def test_every_handle_of_every_source_is_made_before_the_first_is_posted() -> None:
    two = Two()
    two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r").release()
    steps = [step for step, _ in two.d.journal if step in ("make", "post", "release_xfer")]
    assert steps == ["make", "make", "post", "post", "release_xfer", "release_xfer"]
    two.d.fail("make", after=1)
    with pytest.raises(TransferError, match="peer 'p1', READ DRAM to DRAM: make failed"):
        two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"never")
    assert two.told() == {0: [b"r"], 1: [b"r"]} and two.d.live()["xfers"] == 0
    two.close()


def test_each_source_is_told_when_its_own_share_is_there() -> None:
    two = Two()
    two.d.polls = math.inf
    transfer = two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r")
    assert transfer.poll() == "PROC" and two.told() == {0: [], 1: []}
    two.land("p1")
    assert transfer.poll() == "PROC" and two.told() == {0: [], 1: [b"r"]}
    with pytest.raises(TransferError, match="peer 'p0', 'p1': 1 transfers are still in flight"):
        two.peers.release()
    with pytest.raises(TransferError, match="peer 'p1': 1 transfers are still in flight"):
        two.peers.peers[1].release()
    two.land("p0")
    assert transfer.poll() == "DONE" and two.told() == {0: [b"r"], 1: []}
    transfer.release()
    two.close()


def test_a_source_with_nothing_to_send_is_told_at_once() -> None:
    """A message of its own, since no handle carries it; nobody hears it when another's handle cannot be made."""
    two = Two()
    two.d.polls = math.inf
    transfer = two.peers.start({0: [[3]], 1: [Blocks([], skip=1)]}, [[6]], notify=b"r")
    assert two.told() == {0: [], 1: [b"r"]}
    two.land("p0")
    assert transfer.wait(10) == "DONE" and two.told() == {0: [b"r"], 1: []}
    transfer.release()
    two.d.polls = 0
    with two.peers.start({0: [], 1: []}, [], notify=b"none") as nothing:
        assert nothing.poll() == "DONE" and nothing.handles == () and nothing.nbytes == 0
    assert two.told() == {0: [b"none"], 1: [b"none"]}
    two.d.fail("make")
    with pytest.raises(TransferError):
        two.peers.start({0: [[3]], 1: [Blocks([], skip=1)]}, [[6]], notify=b"never")
    assert two.told() == {0: [], 1: []}
    two.close()


def test_a_rank_that_is_named_and_sends_nothing_is_told_of_every_request() -> None:
    two = Two()
    two.peers.release()
    two.d.add_remote_agent(two.p[2].get_agent_metadata())
    two.peers = prepare(two.d, {2: "p2", 0: "p0", 1: "p1"}, two.made)
    assert two.peers.peers[2].pairs == ()
    two.d.polls = math.inf
    with two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r") as transfer:  # no tables of p2: it needs none
        assert len(transfer.handles) == 2 and two.told() == {0: [], 1: []}
        assert two.p[2].get_new_notifs() == {"d": [b"r"]}
        two.land("p0", "p1")
        assert transfer.wait(10) == "DONE" and two.told() == {0: [b"r"], 1: [b"r"]}
        assert two.p[2].get_new_notifs() == {}
    with two.peers.start({0: [], 1: []}, []) as silent:
        assert silent.poll() == "DONE" and two.p[2].get_new_notifs() == {}
    with pytest.raises(BlockIdError, match="src_blocks has no tables of source 1"):
        two.peers.start({0: [[3]], 2: [[3]]}, [[6]], notify=b"never")
    assert two.p[2].get_new_notifs() == {}
    two.close()


def test_a_failure_of_one_source_fails_the_request_and_it_is_not_told() -> None:
    two = Two()
    two.d.polls = 1
    two.d.fail("poll", "NIXL_ERR_REMOTE_DISCONNECT", after=1)
    with two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r") as transfer:
        assert transfer.wait(10) == "ERR"
        assert str(transfer.error).startswith("peer 'p1', READ DRAM to DRAM: poll failed with NIXL_ERR_REMOTE")
    assert two.told()[1] == [] and two.d.live()["xfers"] == 0
    two.close()


@pytest.mark.parametrize("last", [False, True])
def test_one_source_hangs_and_is_abandoned_the_other_is_drained(last: bool) -> None:
    two = Two()
    two.d.polls = math.inf
    transfer = two.peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r")
    if last:
        two.land("p0")
        assert transfer.poll() == "PROC"
    two.peers.peers[1].abandon()
    if not last:
        assert transfer.poll() == "PROC" and transfer.error is None  # p0 still writes
        assert two.d.live() == {"ranges": 1, "dlists": 2, "xfers": 1}
        two.land("p0")
    assert transfer.poll() == "ERR" and two.d.live()["xfers"] == 0
    error = transfer.error
    assert error is not None and str(error).startswith("peer 'p1', READ DRAM to DRAM: abandoned; NIXL has not")
    at = two.dst[6, 2:].ctypes.data
    assert error.in_doubt == two.peers.in_doubt == ((at, 2 * TOKENS * HEAD, 0, "DRAM"),)
    assert two.told()[1] == []
    transfer.release()
    with pytest.raises(TransferError, match="peer 'p1' was abandoned"):
        two.peers.start({0: [[3]], 1: [[5]]}, [[6]])
    two.d.polls = 0
    with two.peers.peers[0].start([[3]], [[6]]) as alone:
        assert alone.wait(10) == "DONE"
    two.peers.release()
    two.held[0].release(in_doubt=True)
    two.close()


def test_what_cannot_be_prepared_or_started_over_sources() -> None:
    two = Two()
    before = two.d.live()
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        ({0: "p0"}, two.made, "dst", PeerMismatchError, "no peer name for source 1; the plan takes from 0, 1"),
        ({0: "p0", 1: 5}, two.made, "dst", TypeError, "peer name of source 1 must be a str"),
        ({0: "p0", 1: "p1"}, two.made, "src", ValueError, "several sources have one reader"),
        ({0: "p0", 1: "p1"}, two.made[0], "dst", TypeError, "a whole Plan is expected"),
        ({0: "p0", 1: "stranger"}, two.made, "dst", TransferError, "peer 'stranger', list of 8 DRAM descriptors"),
    ]
    for names, made, local, error, words in cases:
        with pytest.raises(error, match=words):
            prepare(two.d, names, made, local=local)
        assert two.d.live() == before
    with pytest.raises(BlockIdError, match="src_blocks has no tables of source 1"):
        two.peers.start({0: [[1]]}, [[1]])
    with pytest.raises(BlockIdError):
        two.peers.start({0: [[1]], 1: [[N]]}, [[1]])
    assert two.d.live() == before
    two.close()


def test_leaving_with_an_exception_leaves_all_sources() -> None:
    two = Two()
    two.d.polls = math.inf
    with pytest.raises(KeyboardInterrupt), two.peers as peers, peers.start({0: [[3]], 1: [[5]]}, [[6]], notify=b"r"):
        raise KeyboardInterrupt
    two.land("p0", "p1")
    for _ in range(3):
        prepare(two.d, "d", ()).release()
    assert two.told() == {0: [b"r"], 1: [b"r"]}
    two.close()
