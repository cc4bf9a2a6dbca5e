"""One script, two agents: what LoopbackAgent does and refuses is what NIXL does and refuses.

Each step of the script is asked of a pair of LoopbackAgents and of a pair of real agents (UCX and POSIX plugins, host
memory); results, refusals (status word or class of exception) and operation counts must be equal. Where LoopbackAgent
is stricter, a step of its own shows what NIXL lets pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agents import notifs, painted, real_agent, run, takes_strided, until
from hypothesis import given, settings
from hypothesis import strategies as st

from nixldesc.testing import LoopbackAgent, LoopbackError

L = 64  # bytes of a block
N = 16  # blocks of a buffer
SIZE = N * L

Step = Callable[["World"], Any]


class World:
    """Agent "a" of one kind has added "b", and each has a buffer; agent "f" has a's buffer and a file.

    They are two because NIXL, where several backends could do, takes any (a DRAM to DRAM transfer of an agent to itself
    goes to POSIX, which refuses).
    """

    def __init__(self, make: Callable[[str], Any], file: int) -> None:
        self.make_agent, self.file = make, file
        self.a, self.b, self.f = make("a"), make("b"), make("f")
        self.mine, self.theirs = np.zeros(SIZE + 64, np.uint8), painted(SIZE + 64, 1)
        # The last bytes are a registration of their own, touching the first.
        self.at = {"": self.mine.ctypes.data, "b": self.theirs.ctypes.data}
        for agent, at in (self.a, self.at[""]), (self.b, self.at["b"]):
            agent.register_memory([(at, SIZE, 0, ""), (at + SIZE, 64, 0, "")], "DRAM")
        self.f.register_memory([(self.at[""], SIZE, 0, "")], "DRAM")
        self.f.register_memory([(0, SIZE, file, "")], "FILE")
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.strided = takes_strided(self.a)
        self.held: list[Any] = []

    def blocks(self, *blocks: int, owner: str = "", step: int = L, size: int = L) -> Any:
        """A dense list of some blocks."""
        return self.prep(owner, np.array([(self.at[owner] + step * k, size, 0) for k in blocks], np.uint64))

    def rows(self, *rows: tuple[int, int, int, int], owner: str = "", device: int = 0, mem_type: str = "DRAM") -> Any:
        """A strided list; a row is (offset, len, stride, count)."""
        at = self.at[owner]
        table = np.array([(at + o, size, device, step, count) for o, size, step, count in rows], np.uint64)
        return self.prep(owner, table.reshape(-1, 5), mem_type)

    def prep(self, owner: Any, descs: Any, mem_type: Any = "DRAM") -> Any:
        self.held.append(self.a.prep_xfer_dlist(owner, descs, mem_type))
        return self.held[-1]

    def make(self, local: Any, local_ids: Any, remote: Any, remote_ids: Any, **more: Any) -> Any:
        operation = more.pop("operation", "READ")
        self.held.append(self.a.make_prepped_xfer(operation, local, local_ids, remote, remote_ids, **more))
        return self.held[-1]

    def count(self, *args: Any, **more: Any) -> tuple[str, int, int]:
        """Make and run a transfer: how it ended, its operations and bytes."""
        xfer = self.make(*args, **more)
        state = run(self.a, xfer)
        told = self.a.get_xfer_telemetry(xfer)
        return state, told.descCount, told.totalBytes

    def outcome(self, step: Step) -> str:
        """What a step returns, or the status word or class of what it raises."""
        try:
            result = repr(step(self))
        except Exception as e:
            word = str(e).partition(":")[0].strip()
            result = word if word.startswith("NIXL_") else type(e).__name__
        finally:
            for handle in reversed(self.held):
                handle.release()
            self.held.clear()
        return result


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """A world of real agents and one of LoopbackAgents."""
    path = tmp_path_factory.mktemp("conformance")
    files = [os.open(path / name, os.O_RDWR | os.O_CREAT) for name in ("real", "loopback")]
    real = World(lambda name: real_agent(name, "POSIX" if name == "f" else "UCX"), files[0])
    yield real, World(lambda name: LoopbackAgent(name, strided=real.strided), files[1])
    for fd in files:
        os.close(fd)


# ------------------------------------------------------------------------------------------------------- the script


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def both(w: World, *blocks: int, **more: Any) -> tuple[Any, Any]:
    return w.blocks(*blocks, **more), w.blocks(*blocks, owner="b", **more)


def same(w: World, listed: tuple[int, ...], some: Any, **more: Any) -> Any:
    """Count a transfer of the same ids of the same blocks on both sides."""
    local, remote = both(w, *listed, **more)
    return w.count(local, some, remote, some)


def whole(w: World, local: Any, remote: Any, name: str = "b") -> Any:
    sides = [w.a.get_xfer_descs(np.array(rows, np.uint64), "DRAM") for rows in (local, remote)]
    w.held.append(w.a.initialize_xfer("READ", *sides, name))
    return run(w.a, w.held[-1]), w.a.get_xfer_telemetry(w.held[-1]).descCount


class Files:
    """Transfers of agent "f" between the buffer and the file."""

    def __init__(self, w: World) -> None:
        self.w = w

    def prep(self, owner: str, mem_type: str, blocks: range = range(N)) -> Any:
        base, device = (self.w.at[""], 0) if mem_type == "DRAM" else (0, self.w.file)
        descs = np.array([(base + k * L, L, device) for k in blocks], np.uint64)
        self.w.held.append(self.w.f.prep_xfer_dlist(owner, descs, mem_type))
        return self.w.held[-1]

    def count(
        self, operation: str, memory: Any, file: Any, *, mems: tuple[str, str] = ("DRAM", "FILE"), message: bytes = b""
    ) -> tuple[str, int, int]:
        sides = self.prep("", mems[0]), memory, self.prep("f", mems[1]), file
        self.w.held.append(self.w.f.make_prepped_xfer(operation, *sides, message))
        state = run(self.w.f, self.w.held[-1])
        told = self.w.f.get_xfer_telemetry(self.w.held[-1])
        return state, told.descCount, told.totalBytes


def stale(w: World, *, make_first: bool) -> Any:
    """Use a list or a transfer of a peer that was removed and added again."""
    local, remote = both(w, 0, 1)
    xfer = w.make(local, ids(0), remote, ids(0)) if make_first else None
    w.a.remove_remote_agent("b")
    w.a.add_remote_agent(w.b.get_agent_metadata())
    return run(w.a, xfer) if make_first else w.make(local, ids(0), remote, ids(0)) and "made"


def posted_twice(w: World) -> Any:
    local, remote = both(w, 0, 1)
    xfer = w.make(local, ids(0), remote, ids(1), notif_msg=b"posted")
    states = [run(w.a, xfer), run(w.a, xfer)]
    return states, notifs(w.b, 2)


def told(w: World, message: Any) -> Any:
    local, remote = both(w, 0)
    return w.count(local, ids(0), remote, ids(0), notif_msg=message), notifs(w.b, 1)


def looked_up(w: World) -> Any:
    w.a.send_notif("b", b"request-1")
    seen = []
    until(lambda: w.b.update_notifs().get("a") == [b"request-1"])
    for tag, prefix in ((b"quest", True), (b"quest", False), (b"quest", False)):
        seen.append(w.b.check_remote_xfer_done("a", tag, tag_is_prefix=prefix))
    return seen, w.b.notifs["a"]


def round_trip(w: World) -> Any:
    """Blocks 3, 1, 2 to the file's 0, 1, 2 and back to 8, 9, 10."""
    w.mine[:] = painted(len(w.mine), 7)
    counts = [Files(w).count("WRITE", ids(3, 1, 2), ids(0, 1, 2)), Files(w).count("READ", ids(8, 9, 10), ids(0, 1, 2))]
    return counts, os.fstat(w.file).st_size, w.mine.tobytes().hex()


def too_short(w: World) -> Any:
    os.truncate(w.file, L)
    return Files(w).count("READ", ids(0), ids(9))


def replaced_peer(w: World) -> Any:
    other = w.make_agent("b")
    return w.a.add_remote_agent(other.get_agent_metadata())


# What NIXL knows since 1.5 (1.4.1 takes no N x 5, makes transfers of stale lists, and calls a short file DONE).
SINCE_1_5: dict[str, Step] = {
    "rows": lambda w: type(w.rows((0, L, L, N))).__name__ != "",
    "rows of int64": lambda w: w.prep("", np.array([(w.at[""], L, 0, L, N)], np.int64)) is not None,
    "zero length": lambda w: w.rows((0, 0, L, N)),
    "zero stride": lambda w: w.rows((0, L, 0, 1)),
    "zero count": lambda w: w.rows((0, L, L, 0)),
    "stride below length": lambda w: w.rows((0, L, L - 1, N)),
    "one block needs no stride": lambda w: w.rows((0, L, 1 << 60, 1)) is not None,
    "no rows": lambda w: w.rows(),
    "beyond the registration": lambda w: w.rows((L, L, L, N)),
    "over two registrations": lambda w: w.rows((0, L, L, N + 1)),
    "another device": lambda w: w.rows((0, L, L, N), device=1),
    "another memory": lambda w: w.rows((0, L, L, N), mem_type="VRAM"),
    "unknown memory type": lambda w: w.rows((0, L, L, N), mem_type="XRAM"),
    "no memory type": lambda w: w.prep("", np.zeros((1, 5), np.uint64), None),
    "rows of float": lambda w: w.prep("", np.zeros((1, 5))),
    "rows of Fortran": lambda w: w.prep("", np.zeros((5, 2), np.uint64).T),
    "rows that overlap": lambda w: w.rows((0, L, L, N), (0, L, L, N)) is not None,
    "rows merge": lambda w: w.count(w.rows((0, L, L, N)), ids(*range(N)), w.rows((0, L, L, N), owner="b"), range(N)),
    "rows across": lambda w: w.count(
        w.rows((0, L, L, 8), (8 * L, L, L, 8)), ids(*range(N)), w.rows((0, L, L, 4), (4 * L, L, L, 12), owner="b"),
        ids(*range(N)),
    ),
    "rows padded": lambda w: w.count(
        w.rows((0, L, 2 * L, 8)), ids(*range(8)), w.rows((0, L, L, 8), owner="b"), ids(*range(8))
    ),
    "rows of one": lambda w: w.count(
        w.rows(*((k * L, L, L, 1) for k in range(4))), ids(0, 1, 2, 3), w.rows((0, L, L, 4), owner="b"), ids(0, 1, 2, 3)
    ),
    "rows against dense": lambda w: w.count(w.rows((0, L, L, 4)), ids(0, 1, 2), w.blocks(*range(4), owner="b"),
                                            ids(1, 2, 3)),
    "stale list": lambda w: stale(w, make_first=False),
    "file too short": too_short,
    "rows unmerged": lambda w: w.count(
        w.rows((0, L, L, 4)), ids(0, 1, 2), w.rows((0, L, L, 4), owner="b"), ids(0, 1, 2), skip_desc_merge=True
    ),
}  # fmt: skip

SCRIPT: dict[str, Step] = {
    # Lists.
    "dense": lambda w: w.blocks(0, 1, 2) is not None,
    "dense of int64": lambda w: w.prep("", np.array([(w.at[""], L, 0)], np.int64)) is not None,
    "dense of tuples": lambda w: w.prep("", [(w.at[""], L, 0)]) is not None,
    "the peer's name as bytes": lambda w: w.prep(b"b", np.array([(w.at["b"], L, 0)], np.uint64)) is not None,
    "itself as peer": lambda w: w.prep("a", np.array([(w.at[""], L, 0)], np.uint64)) is not None,
    "unknown agent": lambda w: w.prep("c", np.array([(w.at[""], L, 0)], np.uint64)),
    "agent named 5": lambda w: w.prep(5, np.array([(w.at[""], L, 0)], np.uint64)),
    "dense beyond": lambda w: w.blocks(N + 1),
    "dense over two registrations": lambda w: w.blocks(N - 1, size=L + 1),
    "dense of float": lambda w: w.prep("", np.zeros((1, 3))),
    "dense of int32": lambda w: w.prep("", np.zeros((1, 3), np.int32)),
    "dense of Fortran": lambda w: w.prep("", np.zeros((3, 2), np.uint64).T),
    "dense without type": lambda w: w.prep("", np.zeros((1, 3), np.uint64), None),
    "four columns": lambda w: w.prep("", np.zeros((1, 4), np.uint64)),
    "one dimension": lambda w: w.prep("", np.zeros(3, np.uint64)),
    "nothing": lambda w: w.prep("", None),
    # Indices.
    "no indices": lambda w: w.count(w.blocks(0), ids(), w.blocks(0, owner="b"), ids()),
    "no indices in a list": lambda w: w.count(w.blocks(0), [], w.blocks(0, owner="b"), []),
    "unequal counts": lambda w: w.count(w.blocks(0, 1), ids(0, 1), w.blocks(0, owner="b"), ids(0)),
    "beyond the local list": lambda w: w.count(w.blocks(0, 1), ids(0, 2), w.blocks(0, 1, owner="b"), ids(0, 1)),
    "beyond the remote list": lambda w: w.count(w.blocks(0, 1), ids(0, 1), w.blocks(0, 1, owner="b"), ids(0, 2)),
    "negative": lambda w: w.count(w.blocks(0, 1), ids(0, -1), w.blocks(0, 1, owner="b"), ids(0, 1)),
    "two dimensions": lambda w: w.count(w.blocks(0), ids(0).reshape(1, 1), w.blocks(0, owner="b"), ids(0)),
    "no dimension": lambda w: w.count(w.blocks(0), np.array(0, np.int32), w.blocks(0, owner="b"), ids(0)),
    "list": lambda w: same(w, (0, 1, 2), [0, 1]),
    "tuple": lambda w: same(w, (0, 1, 2), (2, 1)),
    "range": lambda w: same(w, (0, 1, 2), range(3)),
    "int64": lambda w: same(w, (0, 1, 2), np.array([0, 2])),
    "uint32": lambda w: same(w, (0, 1, 2), np.array([0, 2], np.uint32)),
    "int8": lambda w: same(w, (0, 1, 2), np.array([0, 2], np.int8)),
    "every other": lambda w: same(w, (0, 1, 2), np.arange(3, dtype=np.int32)[::2]),
    # Sides.
    "sides swapped": lambda w: w.count(w.blocks(0, owner="b"), ids(0), w.blocks(0), ids(0)),
    "local twice": lambda w: w.count(w.blocks(0), ids(0), w.blocks(1), ids(0)),
    "unequal lengths": lambda w: w.count(w.blocks(0, size=32), ids(0), w.blocks(0, owner="b"), ids(0)),
    "unknown operation": lambda w: w.count(w.blocks(0), ids(0), w.blocks(0, owner="b"), ids(0), operation="read"),
    "a message that is None": lambda w: w.count(w.blocks(0), ids(0), w.blocks(0, owner="b"), ids(0), notif_msg=None),
    # Operations.
    "ascending": lambda w: same(w, tuple(range(N)), ids(*range(N))),
    "descending": lambda w: same(w, tuple(range(N)), ids(*reversed(range(N)))),
    "shuffled": lambda w: same(w, tuple(range(N)), ids(3, 4, 9, 10, 11, 2, 0, 1)),
    "again": lambda w: same(w, tuple(range(4)), ids(0, 1, 1, 2)),
    "padded": lambda w: same(w, tuple(range(6)), ids(*range(6)), step=2 * L),
    "one side steps": lambda w: w.count(w.blocks(0, 1, 2), ids(0, 1, 2), w.blocks(0, 1, 2, owner="b"), ids(2, 1, 0)),
    "folded by spacing": lambda w: same(w, (0, 2, 3, 4), ids(1, 2)),
    "folded by spacing, whole": lambda w: same(w, (0, 2, 3, 4), ids(0, 1, 2, 3)),
    "folded backwards": lambda w: same(w, (2, 0, 1), ids(0, 1, 2)),
    "folded behind": lambda w: same(w, (2, 0, 1), ids(1, 2)),
    "folded apart": lambda w: same(w, (0, 5, 6, 7), ids(1, 2, 3)),
    "folded equal": lambda w: same(w, (0, 0, 1), ids(1, 2)),
    "folded twice": lambda w: same(w, (0, 1, 1, 2, 3), ids(2, 3, 4)),
    "write": lambda w: w.count(w.blocks(0, 1), ids(0, 1), w.blocks(4, 5, owner="b"), ids(0, 1), operation="WRITE"),
    # States and messages.
    "asked before posted": lambda w: w.a.check_xfer_state(w.make(w.blocks(0), ids(0), w.blocks(0, owner="b"), ids(0))),
    "counted before posted": lambda w: w.a.get_xfer_telemetry(
        w.make(w.blocks(0), ids(0), w.blocks(0, owner="b"), ids(0))
    ),
    "posted twice": posted_twice,
    "message": lambda w: told(w, b"message"),
    "message as str": lambda w: told(w, "message"),
    "message as bytearray": lambda w: told(w, bytearray(b"message")),
    "sent": lambda w: (w.a.send_notif("b", b"sent"), notifs(w.b, 1)),
    "sent empty": lambda w: (w.a.send_notif("b", b""), notifs(w.b, 1)),
    "sent to bytes": lambda w: (w.a.send_notif(b"b", "sent"), notifs(w.b, 1)),
    "sent to itself": lambda w: (w.a.send_notif("a", b"sent"), notifs(w.a, 1)),
    "sent to nobody": lambda w: w.a.send_notif("c", b"sent"),
    "sent None": lambda w: w.a.send_notif("b", None),
    "looked up": looked_up,
    # Whole lists.
    "whole": lambda w: whole(w, [(w.at[""] + L * k, L, 0) for k in range(4)],
                             [(w.at["b"] + L * k, L, 0) for k in range(4)]),
    "whole, to itself": lambda w: whole(w, [(w.at[""], L, 0)], [(w.at[""] + L, L, 0)], "a"),
    "whole, unknown": lambda w: whole(w, [(w.at[""], L, 0)], [(w.at["b"], L, 0)], "c"),
    "whole, unequal": lambda w: whole(w, [(w.at[""], L, 0)], [(w.at["b"], L, 0)] * 2),
    "whole, unequal lengths": lambda w: whole(w, [(w.at[""], L, 0)], [(w.at["b"], 32, 0)]),
    "whole, unregistered": lambda w: whole(w, [(w.at[""], L, 0)], [(64, L, 0)]),
    # Memory and peers.
    "register nothing at null": lambda w: w.a.register_memory([(0, 8, 0, "")], "DRAM"),
    "register three": lambda w: w.a.register_memory([(64, 8, 0)], "DRAM"),
    "register without type": lambda w: w.a.register_memory([(64, 8, 0, "")]),
    "register unknown type": lambda w: w.a.register_memory([(64, 8, 0, "")], "XRAM"),
    "register a block device": lambda w: w.a.register_memory([(0, 8, 0, "")], "BLOCK"),
    "old words for memory": lambda w: w.prep("", np.array([(w.at[""], L, 0)], np.uint64), "cpu") is not None,
    "deregister what is not": lambda w: w.a.deregister_memory(w.a.get_reg_descs([(w.at[""] + 8, 8, 0, "")], "DRAM")),
    "metadata again": lambda w: w.a.add_remote_agent(w.b.get_agent_metadata()),
    "metadata of itself": lambda w: w.a.add_remote_agent(w.a.get_agent_metadata()),
    "metadata of nobody": lambda w: w.a.add_remote_agent(b"junk"),
    "metadata of a namesake": replaced_peer,
    "remove nobody": lambda w: w.a.remove_remote_agent("c"),
    # Files.
    "file round trip": round_trip,
    "file with a message": lambda w: Files(w).count("WRITE", ids(0), ids(0), message=b"message"),
    "file as local side": lambda w: Files(w).count("READ", ids(0), ids(0), mems=("FILE", "DRAM")),
    "file to file": lambda w: Files(w).count("READ", ids(0), ids(1), mems=("FILE", "FILE")),
    "file of the peer": lambda w: w.prep("b", np.array([(0, L, w.file)], np.uint64), "FILE"),
    "file beyond": lambda w: Files(w).prep("f", "FILE", range(N + 1)),
    "stale transfer": lambda w: stale(w, make_first=True),
}  # fmt: skip


@pytest.mark.parametrize("step", [*SINCE_1_5, *SCRIPT])
def test_both_kinds_of_agent_answer_alike(worlds: tuple[World, World], step: str) -> None:
    if step in SINCE_1_5 and not worlds[0].strided:
        pytest.skip("this NIXL is older than 1.5")
    real, loopback = (world.outcome({**SINCE_1_5, **SCRIPT}[step]) for world in worlds)
    assert loopback == real


@given(data=st.data())
@settings(max_examples=100)
def test_both_kinds_of_agent_move_and_count_alike(worlds: tuple[World, World], data: st.DataObject) -> None:
    """Any rows, any ids, either operation: equal bytes on both sides and an equal number of operations."""
    draw = data.draw
    rows = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=4)
    lists = [
        [(L * first, L, L * step, count) for first, step, count in draw(rows, label=side)]
        for side in ("local rows", "remote rows")
    ]
    most = min(sum(count for *_, count in side) for side in lists) - 1
    pairs = draw(st.lists(st.tuples(st.integers(0, most), st.integers(0, most)), min_size=1, max_size=12))
    runs = draw(st.integers(1, 4))  # neighbours, so that something merges
    chosen = [np.array([x + k for x in side for k in range(runs) if x + k <= most], np.int32)
              for side in zip(*pairs, strict=True)]  # fmt: skip
    size = min(map(len, chosen))
    operation = draw(st.sampled_from(("READ", "WRITE")))
    seed = draw(st.integers(0, 99))
    seen = []
    for w in worlds:
        w.mine[:], w.theirs[:] = painted(len(w.mine), seed), painted(len(w.theirs), seed + 1)
        if w.strided:
            sides = [w.rows(*side, owner=owner) for side, owner in zip(lists, ("", "b"), strict=True)]
        else:
            sides = [
                w.prep(owner, np.array([(w.at[owner] + at + k * step, L, 0) for at, _, step, count in side
                                        for k in range(count)], np.uint64))
                for side, owner in zip(lists, ("", "b"), strict=True)
            ]  # fmt: skip
        counted = w.outcome(
            lambda w, sides=sides: w.count(  # type: ignore[misc]
                sides[0], chosen[0][:size], sides[1], chosen[1][:size], operation=operation
            )
        )
        seen.append((counted, w.mine.tobytes(), w.theirs.tobytes()))
    assert seen[0] == seen[1]


# ------------------------------------------------------------------------------------ what NIXL lets pass in silence


def released_twice(w: World) -> Any:
    handle = w.blocks(0)
    w.held.remove(handle)
    return [w.a.release_dlist_handle(handle) for _ in range(2)]


def deregistered_early(w: World) -> Any:
    more = np.zeros(L, np.uint8)
    registered = w.a.register_memory([(more.ctypes.data, L, 0, "")], "DRAM")
    handle = w.a.prep_xfer_dlist("", np.array([(more.ctypes.data, L, 0)], np.uint64), "DRAM")
    try:
        return w.a.deregister_memory(registered)  # making a transfer from the list now would crash the process
    finally:
        handle.release()


SILENT: dict[str, Step] = {
    "an index of 2**32 + 5": lambda w: w.count(
        w.blocks(*range(N)), np.array([2**32 + 5]), w.blocks(0, owner="b"), ids(0)
    ),
    "an index of 7.9": lambda w: w.count(w.blocks(*range(N)), np.array([7.9]), w.blocks(0, owner="b"), ids(0)),
    "an index of True": lambda w: w.count(w.blocks(0, 1), [True], w.blocks(0, owner="b"), ids(0)),
    "a mask": lambda w: w.count(w.blocks(0, 1), np.array([True]), w.blocks(0, owner="b"), ids(0)),
    "a row that wraps": lambda w: w.rows((0, L, 1 << 63, 3)) is not None,
    "a descriptor of no bytes": lambda w: w.blocks(0, size=0) is not None,
    "a range of no bytes": lambda w: w.a.register_memory([(w.at[""], 0, 0, "")], "DRAM") is not None,
    "a file that is not open": lambda w: w.f.register_memory([(0, 8, 10**6, "")], "FILE") is not None,
    "a second release": released_twice,
    "deregistering what a list names": deregistered_early,
}


@pytest.mark.parametrize("step", SILENT)
def test_what_nixl_lets_pass_is_refused_here(worlds: tuple[World, World], step: str) -> None:
    real, loopback = worlds
    if not real.strided and step == "a row that wraps":
        pytest.skip("this NIXL is older than 1.5")
    assert not real.outcome(SILENT[step]).startswith("NIXL_")
    with pytest.raises((LoopbackError, TypeError)):
        SILENT[step](loopback)
    for handle in loopback.held:
        handle.release()
    loopback.held.clear()
