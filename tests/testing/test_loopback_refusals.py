"""What LoopbackAgent refuses, and that it says why."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from loopbacks import L, N, Two, blocks, table

from nixldesc.testing import LoopbackAgent, LoopbackError

ROWS = {
    "zero length": ((0, 0, 0, L, 1), "NIXL_ERR_NOT_FOUND: row 0: len is 0, it must be positive"),
    "zero count": ((0, L, 0, L, 0), "NIXL_ERR_NOT_FOUND: row 0: count is 0, it must be positive"),
    "stride below length": ((0, L, 0, L - 1, 2), "NIXL_ERR_NOT_FOUND: row 0: stride 15 is less than len 16"),
    "beyond the buffer": ((L, L, 0, L, N), "NIXL_ERR_NOT_FOUND: row 0: DRAM .* is not inside one registered range"),
    "another device": ((0, L, 3, L, N), "NIXL_ERR_NOT_FOUND: row 0: .* of device 3 is not inside"),
    "wrapping": ((0, L, 0, 1 << 63, 3), r"NIXL_ERR_NOT_FOUND: row 0: 3 blocks of 16 bytes, .* leave 2\*\*64"),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_are_refused_with_the_reason(case: str) -> None:
    two = Two()
    (addr, *rest), words = ROWS[case]
    with pytest.raises(LoopbackError, match=words):
        two.a.prep_xfer_dlist("", table((two.at_mine + addr, *rest)), "DRAM")
    with pytest.raises(LoopbackError, match=words):
        two.a.prep_xfer_dlist("b", table((two.at_theirs + addr, *rest)), "DRAM")
    assert two.a.live()["dlists"] == 2


def test_more_descriptors_than_int32_ids_are_refused() -> None:
    two = Two()
    with pytest.raises(LoopbackError, match="2147483648 descriptors: ids are int32"):
        two.a.prep_xfer_dlist("", table((two.at_mine, 1, 0, 1, 1 << 31)), "DRAM")


def test_two_registrations_that_touch_are_still_two() -> None:
    agent, buffer = LoopbackAgent("a"), np.zeros(64, np.uint8)
    at = buffer.ctypes.data
    agent.register_memory(table((at, 32, 0), (at + 32, 32, 0)), "DRAM")
    agent.prep_xfer_dlist("", table((at, 16, 0, 16, 2), (at + 32, 16, 0, 16, 2)), "DRAM")
    with pytest.raises(LoopbackError, match="is not inside one registered range"):
        agent.prep_xfer_dlist("", table((at, 16, 0, 16, 4)), "DRAM")


@pytest.mark.parametrize(
    ("given_list", "error", "words"),
    [
        (np.zeros((1, 5)), ValueError, "must be uint64 or int64, got float64"),
        (np.zeros((2, 5), np.uint64).T.copy().T, ValueError, "C-contiguous"),
        (np.zeros((0, 5), np.uint64), LoopbackError, "NIXL_ERR_NOT_FOUND: the list is empty"),
        (np.zeros((1, 4), np.uint64), TypeError, "incompatible"),
        (np.zeros(3, np.uint64), TypeError, "incompatible"),
        ([], TypeError, "expected a list of 3-tuples"),
        (None, TypeError, "expected a list of 3-tuples"),
        ([(1, 2)], TypeError, "expected a list of 3-tuples"),
        ([[1, 2, 3]], TypeError, "expected a list of 3-tuples"),
        ([(-1, 2, 0)], TypeError, "expected a list of 3-tuples"),
        ([(1.5, 2, 0)], TypeError, "expected a list of 3-tuples"),
    ],
)
def test_lists_of_another_kind_are_refused(given_list: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Two().a.prep_xfer_dlist("", given_list, "DRAM")


def test_a_list_needs_a_memory_type_and_an_agent_that_is_known() -> None:
    two = Two()
    row = table((two.at_mine, L, 0, L, N))
    with pytest.raises(ValueError, match="needs mem_type"):
        two.a.prep_xfer_dlist("", row)
    with pytest.raises(TypeError, match="needs mem_type"):
        two.a.prep_xfer_dlist("", row[:, :3].copy())
    with pytest.raises(KeyError, match="XRAM"):
        two.a.prep_xfer_dlist("", row, "XRAM")
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_FOUND: no agent 'c' was added"):
        two.a.prep_xfer_dlist("c", row, "DRAM")
    with pytest.raises(TypeError, match="an agent's name must be str or bytes, got 5"):
        two.a.prep_xfer_dlist(5, row, "DRAM")  # type: ignore[arg-type]


def test_an_old_nixl_takes_no_strided_list() -> None:
    two = Two(strided=False)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        two.a.prep_xfer_dlist("", table((two.at_mine, L, 0, L, N)), "DRAM")
    two.a.prep_xfer_dlist("", table(*((two.at_mine + L * k, L, 0) for k in range(N))), "DRAM")


@pytest.mark.parametrize(
    ("local_ids", "remote_ids", "error", "words"),
    [
        ([], [], LoopbackError, "NIXL_ERR_INVALID_PARAM: 0 local and 0 remote indices"),
        ([0, 1], [0], LoopbackError, "NIXL_ERR_INVALID_PARAM: 2 local and 1 remote indices"),
        ([0, N], [0, 1], LoopbackError, "NIXL_ERR_INVALID_PARAM: local index 1 is 8, the list has 8 descriptors"),
        ([0, 1], [0, -1], LoopbackError, "NIXL_ERR_INVALID_PARAM: remote index 1 is -1, the list has 8"),
        # What NIXL casts in silence.
        (np.array([2**32 + 5]), [0], LoopbackError, "local index 0 is 4294967301, the list has 8"),
        (np.array([2**63], np.uint64), [0], LoopbackError, "local index 0 is 9223372036854775808"),
        ([2**80], [0], LoopbackError, "local index 0 is 1208925819614629174706176"),
        (np.array([7.9]), [0], TypeError, "local indices have dtype float64, which NIXL would truncate"),
        (np.array([True]), [0], TypeError, "local indices have dtype bool"),
        ([0], [True], TypeError, "remote index 0 is True, which is not an int"),
        ([0], ["1"], TypeError, "remote index 0 is '1'"),
        ([0], [1.0], TypeError, "remote index 0 is 1.0"),
        (np.array([[0]], np.int32), [0], ValueError, r"local indices must be one-dimensional, got shape \(1, 1\)"),
    ],
)
def test_indices_are_refused_with_the_reason(
    local_ids: Any, remote_ids: Any, error: type[Exception], words: str
) -> None:
    two = Two()
    with pytest.raises(error, match=words):
        two.make(local_ids, remote_ids)
    assert two.a.live()["xfers"] == 0


def test_transfers_are_refused_with_the_reason() -> None:
    two = Two()
    half = two.a.prep_xfer_dlist("", table((two.at_mine, L // 2, 0, L, N)), "DRAM")
    mixed = two.a.prep_xfer_dlist("", table((two.at_mine, L, 0, L, 4), (two.at_mine + 4 * L, L // 2, 0, L, 4)), "DRAM")
    with pytest.raises(LoopbackError, match="position 1: local descriptor 4 has 8 bytes, remote descriptor 2 has 16"):
        two.a.make_prepped_xfer("READ", mixed, [1, 4], two.remote, [1, 2])
    for sides in (two.remote, two.local), (two.local, half), (two.remote, two.remote):
        with pytest.raises(LoopbackError, match="the local side must be local, the remote side remote"):
            two.a.make_prepped_xfer("READ", sides[0], [0], sides[1], [0])
    with pytest.raises(KeyError, match="read"):
        two.make([0], [0], "read")
    with pytest.raises(TypeError, match="a notification must be bytes, got None"):
        two.make([0], [0], message=None)  # type: ignore[arg-type]
    with pytest.raises(LoopbackError, match="no agent 'q' was added"):
        two.a.send_notif("q", b"")
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_POSTED"):
        two.a.check_xfer_state(two.make([0], [0]))
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_POSTED"):
        two.a.get_xfer_telemetry(two.make([0], [0]))
    two.a.polls = 1
    xfer = two.make([0], [0])
    two.a.transfer(xfer)
    with pytest.raises(LoopbackError, match=r"NIXL_ERR_REPOST_ACTIVE: .* is still in flight"):
        two.a.transfer(xfer)


def test_a_handle_is_released_once() -> None:
    two = Two()
    xfer = two.make([0], [0])
    xfer.release()
    with pytest.raises(LoopbackError, match="was released before"):
        two.a.release_xfer_handle(xfer)
    with pytest.raises(LoopbackError, match="was released before"):
        two.a.transfer(xfer)
    two.local.release()
    with pytest.raises(LoopbackError, match="was released before"):
        two.a.release_dlist_handle(two.local)
    with pytest.raises(LoopbackError, match="was released before"):
        two.make([0], [0])
    assert two.a.live() == {"ranges": 1, "dlists": 1, "xfers": 0}


def test_memory_stays_registered_while_a_list_names_it() -> None:
    two = Two()
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_ALLOWED: prepared list 1 still names DRAM"):
        two.a.deregister_memory(two.registered)
    two.local.release()
    two.a.deregister_memory(two.registered)  # the peer's memory is not in the way
    with pytest.raises(LoopbackError, match=r"NIXL_ERR_NOT_FOUND: .* is not registered"):
        two.a.deregister_memory(two.registered)


def test_a_transfer_over_memory_deregistered_meanwhile_fails() -> None:
    two = Two()
    xfer = two.make([0], [0], message=b"never")
    two.local.release()
    two.a.deregister_memory(two.registered)
    with pytest.raises(LoopbackError, match=r"NIXL_ERR_BACKEND: .* of 'a' is registered no more"):
        two.a.transfer(xfer)
    with pytest.raises(LoopbackError, match="NIXL_ERR_BACKEND: this transfer has failed before"):
        two.a.check_xfer_state(xfer)
    assert two.b.get_new_notifs() == {}


@pytest.mark.parametrize(
    ("descs", "mem_type", "error", "words"),
    [
        ([(64, 0, 0, "")], "DRAM", LoopbackError, "NIXL_ERR_INVALID_PARAM: .* is empty"),
        ([(0, 8, 0, "")], "DRAM", LoopbackError, "NIXL_ERR_BACKEND: .* starts at the null address"),
        ([(2**64 - 8, 16, 0, "")], "VRAM", LoopbackError, r"leaves 2\*\*64"),
        ([(0, 8, 10**6, "")], "FILE", LoopbackError, "NIXL_ERR_BACKEND: file descriptor 1000000 is not open"),
        ([(0, 8, 0, "")], "BLOCK", LoopbackError, "NIXL_ERR_NOT_FOUND: no backend for BLOCK here"),
        ([(64, 8, 0)], "DRAM", TypeError, "expected a list of 4-tuples"),
        ([(64, 8, 0, "")], None, TypeError, "needs mem_type"),
        ([(64, 8, 0, "")], "dram", KeyError, "dram"),
    ],
)
def test_ranges_are_refused_with_the_reason(
    descs: Any, mem_type: str | None, error: type[Exception], words: str
) -> None:
    agent = LoopbackAgent("a")
    with pytest.raises(error, match=words):
        agent.register_memory(descs, mem_type)
    assert agent.live()["ranges"] == 0


def test_a_peer_is_known_by_what_its_metadata_said() -> None:
    two = Two()
    more = np.zeros(L, np.uint8)
    row = table((more.ctypes.data, L, 0, L, 1))
    two.b.register_memory(row[:, :3].copy(), "DRAM")
    with pytest.raises(LoopbackError, match="is not inside one registered range"):
        two.a.prep_xfer_dlist("b", row, "DRAM")
    assert two.a.add_remote_agent(two.b.get_agent_metadata()) == b"b"
    two.a.prep_xfer_dlist(b"b", row, "DRAM")
    assert two.a.transfer(two.make([0], [0])) == "DONE"  # lists prepared before are good still

    with pytest.raises(LoopbackError, match="NIXL_ERR_INVALID_PARAM: this is this agent's own metadata"):
        two.a.add_remote_agent(two.a.get_agent_metadata())
    for junk in (b"", b"junk", b"[]", b"{}", b'{"loopback": 1, "name": "c", "ranges": [1]}'):
        with pytest.raises(LoopbackError, match="NIXL_ERR_MISMATCH: this is no metadata of a LoopbackAgent"):
            two.a.add_remote_agent(junk)


def test_a_removed_peer_leaves_stale_lists_and_transfers() -> None:
    two = Two()
    xfer = two.make([0], [0])
    namesake = LoopbackAgent("b")
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_ALLOWED: another agent 'b' is known"):
        two.a.add_remote_agent(namesake.get_agent_metadata())
    two.a.remove_remote_agent("b")
    two.a.remove_remote_agent("b")
    two.a.add_remote_agent(two.b.get_agent_metadata())
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_FOUND: agent 'b' was removed"):
        two.make([0], [0])
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_FOUND: agent 'b' was removed"):
        two.a.transfer(xfer)


def test_a_peer_that_is_gone() -> None:
    two = Two()
    told = two.b.get_agent_metadata()
    xfer = two.make([0], [0])
    del two.b
    gc.collect()
    with pytest.raises(LoopbackError, match="NIXL_ERR_REMOTE_DISCONNECT: agent 'b' is gone"):
        two.a.transfer(xfer)
    with pytest.raises(LoopbackError, match="NIXL_ERR_REMOTE_DISCONNECT: agent 'b' is gone"):
        two.a.send_notif("b", b"")
    with pytest.raises(LoopbackError, match="agent 'b' does not live in this process"):
        LoopbackAgent("c").add_remote_agent(told)


def test_whole_lists_are_moved_without_joining() -> None:
    two = Two()
    lists = [two.a.get_xfer_descs(table(*((at + L * k, L, 0) for k in range(3))), "DRAM")
             for at in (two.at_mine, two.at_theirs)]  # fmt: skip
    xfer = two.a.initialize_xfer("READ", lists[0], two.a.get_xfer_descs(lists[1]), "b", b"whole")
    assert two.a.transfer(xfer) == "DONE"
    assert two.a.get_xfer_telemetry(xfer).descCount == 3
    assert blocks(two.mine)[:3] == blocks(two.theirs)[:3]
    assert two.b.get_new_notifs() == {"a": [b"whole"]}
    outside = two.a.get_xfer_descs([(64, L, 0)], "DRAM")
    one = two.a.get_xfer_descs([(two.at_mine, L, 0)], "DRAM")
    for sides, name, words in (
        ((one, lists[1]), "b", "1 local and 3 remote"),
        ((one, outside), "b", "is not inside one registered range"),
        ((outside, one), "a", "is not inside one registered range"),
        ((one, one), "c", "no agent 'c'"),
    ):
        with pytest.raises(LoopbackError, match=words):
            two.a.initialize_xfer("READ", *sides, name)
