"""The adapter's whole life, in any order and with failures at any step.

A machine of hypothesis prepares, starts, polls, awaits, releases, abandons, leaves by an exception and drops at will,
while the agent fails, stays in flight and refuses to release as told, and peers are removed under it. Throughout: no
handle is released twice, none while in flight unless its end is told as in doubt, no list under a transfer, nobody is
notified of a failure, and whoever is told "DONE" has notified. At the end nothing is left.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from agents import painted
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import nixldesc
from nixldesc import Layout, Region, TransferError
from nixldesc.adapter import PreparedPeer, Transfer, doubt, prepare, register
from nixldesc.testing import LoopbackAgent

# What is dropped warns; that is shown elsewhere.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

L = 8
N = 6
STATUS = st.sampled_from(["NIXL_ERR_BACKEND", "NIXL_ERR_REMOTE_DISCONNECT", "ERR"])


class WatchfulAgent(LoopbackAgent):
    """Knows which lists each transfer was made of, and notes what must never happen."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made_of: dict[int, tuple[int, int]] = {}
        self.offences: list[str] = []
        self.cancelled: list[Any] = []

    def make_prepped_xfer(self, operation: str, local: Any, li: Any, remote: Any, ri: Any, *more: Any) -> Any:
        xfer = super().make_prepped_xfer(operation, local, li, remote, ri, *more)
        self.made_of[xfer.number] = (local.number, remote.number)
        return xfer

    def release_dlist_handle(self, handle: Any) -> None:
        if handle.number not in self._dlists:
            self.offences.append(f"list {handle.number} was released twice")
        for number, xfer in self._xfers.items():
            if xfer.state == "PROC" and handle.number in self.made_of[number]:
                self.offences.append(f"list {handle.number} was released under transfer {number}")
        super().release_dlist_handle(handle)

    def release_xfer_handle(self, handle: Any) -> None:
        if handle.number not in self._xfers:
            self.offences.append(f"transfer {handle.number} was released twice")
        if handle.state == "PROC":
            self.cancelled.append(handle)
        super().release_xfer_handle(handle)

    def forget_faults(self, *steps: str) -> None:
        kept = [fault for fault in self._faults if steps and fault.step not in steps]
        self._faults[:] = kept


class Engine:
    """An agent with DRAM and pretended VRAM."""

    def __init__(self, name: str, seed: int) -> None:
        self.agent = WatchfulAgent(name)
        self.memory = painted(2 * N * L, seed)
        at = self.memory.ctypes.data
        self.layout = Layout(
            [
                Region("k", at, L, N, mem_type="DRAM"),
                Region("v", at + N * L, L, N, mem_type="VRAM"),
            ]
        )
        self.registration = register(self.agent, self.layout)

    def block(self, block: int) -> Any:
        return self.memory.reshape(2, N, L)[:, block]


class Started:
    """What is known of a transfer: its last poll and what it promised."""

    def __init__(self, transfer: Transfer, peer: Engine, message: bytes) -> None:
        self.transfer, self.peer, self.message = transfer, peer, message
        self.state = "PROC"


async def awaited(transfer: Transfer) -> str:
    return await transfer


class AdapterLife(RuleBasedStateMachine):
    peers = Bundle("peers")
    transfers = Bundle("transfers")

    @initialize(target=peers, local=st.sampled_from(["dst", "src"]))
    def engines(self, local: Any) -> tuple[list[PreparedPeer], Engine]:
        self.me = Engine("me", 1)
        self.others = [Engine(f"other{i}", 2 + i) for i in range(2)]
        for other in self.others:
            self.me.agent.add_remote_agent(other.agent.get_agent_metadata())
        self.received: dict[str, list[bytes]] = {other.agent.name: [] for other in self.others}
        self.failed: set[bytes] = set()
        self.succeeded: dict[bytes, str] = {}
        self.open: list[Started] = []
        self.held: list[list[Any]] = []  # whatever a bundle may still refer to
        self.count = 0
        return self.prepared(0, local)

    def prepared(self, other: int, local: Any) -> tuple[list[PreparedPeer], Engine]:
        """One PreparedPeer in a list (none, if that failed), so that it can be dropped whoever refers to the list."""
        engine, held = self.others[other], []
        src, dst = (engine, self.me) if local == "dst" else (self.me, engine)
        with self.may_be_refused():
            made = nixldesc.plan(dst.layout, {0: src.layout})
            held.append(prepare(self.me.agent, engine.agent.name, made, local=local))
        self.held.append(held)
        return held, engine

    @contextmanager
    def may_be_refused(self) -> Iterator[None]:
        """What NIXL refuses comes as TransferError, and as nothing else."""
        words = ""
        try:
            yield
        except TransferError as e:
            words = str(e)
        assert not words or re.search("failed with NIXL_ERR|in flight|was released|was abandoned", words), words

    # What the agent is told, besides what comes with a rule.

    @rule(step=st.sampled_from(["poll", "notify"]), status=STATUS, after=st.integers(0, 3))
    def fail(self, step: str, status: str, after: int) -> None:
        status = "NIXL_ERR_BACKEND" if step == "notify" and status == "ERR" else status
        self.me.agent.fail(step, status, after=after)

    @rule(step=st.sampled_from(["release_xfer", "release_dlist"]), after=st.integers(0, 2))
    def refuse_a_release(self, step: str, after: int) -> None:
        self.me.agent.fail(step, "NIXL_ERR_REPOST_ACTIVE", after=after)

    @rule()
    def land(self) -> None:
        """What is in flight may be done at the next poll."""
        for xfer in self.me.agent._xfers.values():
            xfer.polls_left = 1

    # What a connector does.

    @rule(
        target=peers,
        other=st.integers(0, 1),
        local=st.sampled_from(["dst", "src"]),
        fails_at=st.sampled_from([None, None, None, None, 0, 1, 2, 3]),
    )
    def prepare(self, other: int, local: Any, fails_at: int | None) -> tuple[list[PreparedPeer], Engine]:
        if fails_at is not None:
            self.me.agent.fail("prep", after=fails_at)
        made = self.prepared(other, local)
        self.me.agent.forget_faults("prep")
        return made

    @rule(
        target=transfers,
        peer=peers,
        pairs=st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=3, unique_by=lambda p: p[1]),
        raw=st.sampled_from([False, False, True]),
        polls=st.sampled_from([0, 1, 3, 10_000]),
        fault=st.sampled_from([None, None, "make", "post", "poll"]),
        after=st.integers(0, 1),
        status=STATUS,
    )
    def start(
        self,
        peer: Any,
        pairs: list[tuple[int, int]],
        raw: bool,
        polls: int,
        fault: str | None,
        after: int,
        status: str,
    ) -> list[Started]:
        held, engine = peer
        if not held:
            return []
        self.count += 1
        message = b"%d" % self.count
        src, dst = [s for s, _ in pairs], [d for _, d in pairs]
        agent = self.me.agent
        agent.polls = polls
        if fault is not None:
            agent.fail(fault, "NIXL_ERR_BACKEND" if fault == "make" and status == "ERR" else status, after=after)
        made: list[Transfer] = []
        with self.may_be_refused():
            if raw:
                ids = np.array(src, np.int64), np.array(dst, np.int32)
                made.append(held[0].start_ids(self.count % 2, *ids, notify=message))
            else:
                made.append(held[0].start([src], [dst], notify=message))
        agent.forget_faults("make", "post")
        if not made:
            self.failed.add(message)
            return []
        started = Started(made[0], engine, message)
        self.open.append(started)
        self.held.append([started])
        return self.held[-1]

    @rule(other=st.integers(0, 1))
    def remove_and_add_the_peer(self, other: int) -> None:
        """Behind the adapter's back, as a connector does that does not know better."""
        self.me.agent.remove_remote_agent(self.others[other].agent.name)
        self.me.agent.add_remote_agent(self.others[other].agent.get_agent_metadata())

    @rule(peer=peers)
    def abandon(self, peer: Any) -> None:
        held, engine = peer
        for prepared in held:
            prepared.abandon()
            self.me.agent.add_remote_agent(engine.agent.get_agent_metadata())  # it is back at once

    @rule(transfer=transfers, cancelled=st.booleans())
    def wait_in_a_loop(self, transfer: list[Started], cancelled: bool) -> None:
        async def run(started: Started) -> None:
            task = asyncio.ensure_future(awaited(started.transfer))
            await asyncio.sleep(0)
            if cancelled:
                task.cancel()
                await asyncio.wait([task])
            else:
                self.land()
                self.note(started, await task)

        for started in transfer:
            if started in self.open:
                asyncio.run(run(started))

    @rule(transfer=consumes(transfers))
    def leave_by_an_exception(self, transfer: list[Started]) -> None:
        for started in transfer:
            if started in self.open:
                self.open.remove(started)
                with pytest.raises(KeyError), started.transfer:
                    raise KeyError
        started = None  # type: ignore[assignment]
        transfer.clear()

    @rule(transfer=transfers)
    def poll(self, transfer: list[Started]) -> None:
        for started in transfer:
            if started in self.open:
                self.note(started, started.transfer.poll())

    @rule(transfer=transfers)
    def wait(self, transfer: list[Started]) -> None:
        self.land()
        for started in transfer:
            if started in self.open:
                self.note(started, started.transfer.wait(timeout=30))
                assert started.state != "PROC"

    def note(self, started: Started, state: str) -> None:
        assert started.state in ("PROC", state), "a settled transfer stays as it is"
        started.state = state
        error = started.transfer.error
        assert (error is not None) == (state == "ERR")
        if error is not None:
            assert f"peer '{started.peer.agent.name}'" in str(error)
            assert "failed with" in str(error) or "abandoned" in str(error)
            assert ("has not confirmed" in str(error)) <= bool(error.in_doubt)
            self.failed.add(started.message)
        elif state == "DONE":
            self.succeeded[started.message] = started.peer.agent.name

    @rule(transfer=transfers, timeout=st.sampled_from([0, 0.001]))
    def release_transfer(self, transfer: list[Started], timeout: float) -> None:
        for started in transfer:
            with self.may_be_refused():
                started.transfer.release(timeout)
                if started in self.open:
                    self.note(started, started.transfer.poll())
                    self.open.remove(started)
                assert started.transfer.handles == ()

    @rule(transfer=consumes(transfers))
    def drop_transfer(self, transfer: list[Started]) -> None:
        for started in transfer:
            if started in self.open:
                self.open.remove(started)
        started = None  # type: ignore[assignment]
        transfer.clear()

    @rule(peer=peers, timeout=st.sampled_from([0, 0.001]))
    def release_peer(self, peer: Any, timeout: float) -> None:
        for held in peer[0]:
            with self.may_be_refused():
                held.release(timeout)

    @rule(peer=consumes(peers))
    def drop_peer(self, peer: Any) -> None:
        peer[0].clear()

    # What holds at all times.

    @invariant()
    def nobody_hears_of_a_failure(self) -> None:
        for other in self.others:
            name = other.agent.name
            self.received[name] += other.agent.get_new_notifs().get("me", [])
            assert len(set(self.received[name])) == len(self.received[name]), "a message came twice"
            assert not self.failed.intersection(self.received[name]), "notified of a failure"
        for message, name in self.succeeded.items():
            assert message in self.received[name], "told DONE, but the peer was not notified"

    @invariant()
    def no_handle_is_released_twice_or_in_use(self) -> None:
        agent = self.me.agent
        assert agent.offences == []
        # What was released in flight is in doubt: its memory cannot be deregistered by accident.
        doubted = {span for whose, noted in doubt._doubts.values() if whose() is agent for span in noted}
        for handle in agent.cancelled:
            for op in handle.ops:
                assert any(a <= op.local_addr and op.local_addr + op.length <= a + n for a, n, *_ in doubted)

    def teardown(self) -> None:
        if not hasattr(self, "me"):
            return
        agent = self.me.agent
        agent.forget_faults()
        self.land()
        for started in self.open:
            self.note(started, started.transfer.wait(timeout=30))
            started.transfer.release()
        self.nobody_hears_of_a_failure()
        self.open.clear()
        for held in self.held:
            held.clear()
        # Since CPython 3.13 an error that went through a context manager may hold its frames until then.
        gc.collect()
        # A last caller looks after what finalisers could not release at the time.
        for _ in range(10):
            with prepare(agent, "me", (), local="dst"):
                pass
        assert agent.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
        self.no_handle_is_released_twice_or_in_use()
        if agent.cancelled:
            with pytest.raises(TransferError, match="are in doubt"):
                self.me.registration.release()
        self.me.registration.release(in_doubt=bool(doubt.in_doubt(agent, self.me.registration.ranges)))
        for other in self.others:
            other.registration.release()


AdapterLife.TestCase.settings = settings(stateful_step_count=40)
TestAdapterLife = AdapterLife.TestCase
