"""Peers that hang, through NIXL itself over tcp, each story in a process of its own (what goes wrong may crash it)."""

from __future__ import annotations

import pytest
from hung_peer import run

pytest.importorskip("nixl._api", reason="nixl is not installed: no real transfers")

BEGIN = """
import gc, os, signal, sys, time
import numpy as np
from nixl._api import nixl_agent, nixl_agent_config
from hung_peer import BLOCK, NAME, SIZE, Peer, until
from nixldesc import DlistPair, Layout, Region, TransferError
from nixldesc.adapter import prepare, register
peer_process = Peer()
memory = np.zeros(SIZE, np.uint8)
layout = Layout([Region("k", memory.ctypes.data, BLOCK, SIZE // BLOCK, mem_type="DRAM")])
agent = nixl_agent("me", nixl_agent_config(backends=["UCX"]))
registration = register(agent, layout)
agent.add_remote_agent(peer_process.metadata)
peer = prepare(agent, NAME, DlistPair(peer_process.layout(), layout))
with peer.start([[0]], [[0]]) as first:  # the connection stands
    if first.wait(30) != "DONE":
        sys.exit(f"first: {first.error}")
every = [list(range(1, SIZE // BLOCK))]
"""


def story(code: str) -> list[str]:
    done = run(BEGIN + code)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return [line for line in done.stdout.splitlines() if line.startswith("> ")]


def test_a_hung_peer_is_abandoned_and_the_agent_goes_on() -> None:
    """The whole recipe. That bytes land afterwards shows what the doubt is about: it is NIXL's, not ours to end."""
    assert story("""
peer_process.stop()
transfer = peer.start(every, every, notify=b"never")
print(">", transfer.wait(0.3))
try:
    transfer.release()
except TransferError as e:
    print("> still in flight" if "still in flight" in str(e) else e)
began = time.monotonic()
peer.abandon()
print(">", time.monotonic() - began < 5, transfer.poll(), "abandoned" in str(transfer.error))
print(">", peer.in_doubt == transfer.error.in_doubt == ((memory.ctypes.data + BLOCK, SIZE - BLOCK, 0, "DRAM"),))
transfer.release()
peer.release()
try:
    registration.release()
except TransferError as e:
    print("> in doubt" if "are in doubt" in str(e) else e)

# The agent goes on with another peer, over other memory.
other = Peer.__new__(Peer)
spare = np.zeros(4 * BLOCK, np.uint8)
there = np.full(4 * BLOCK, 5, np.uint8)
second = nixl_agent("second", nixl_agent_config(backends=["UCX"]))
mine, theirs = (Layout([Region("k", m.ctypes.data, BLOCK, 4, mem_type="DRAM")]) for m in (spare, there))
with register(agent, mine), register(second, theirs):
    agent.add_remote_agent(second.get_agent_metadata())
    with prepare(agent, "second", DlistPair(theirs, mine)) as healthy:
        with healthy.start([[0, 1, 2, 3]], [[0, 1, 2, 3]]) as through:
            print(">", through.wait(30), bool((spare == 5).all()))

# What the doubt is about.
before = int(memory.sum())
peer_process.go_on()
print("> landed late:", until(lambda: int(memory.sum()) > before))
peer_process.end()
registration.release(in_doubt=True)
print("> released")
""") == [
        "> PROC",
        "> still in flight",
        "> True ERR True",
        "> True",
        "> in doubt",
        "> DONE True",
        "> landed late: True",
        "> released",
    ]


def test_removing_a_peer_under_a_transfer_leaves_its_memory_in_doubt() -> None:
    assert story("""
peer_process.stop()
transfer = peer.start(every, every)
print(">", transfer.wait(0.1))
agent.remove_remote_agent(NAME)
print(">", transfer.wait(10), "poll failed with NIXL_ERR_NOT_FOUND; NIXL has not confirmed" in str(transfer.error))
print(">", transfer.error.in_doubt == ((memory.ctypes.data + BLOCK, SIZE - BLOCK, 0, "DRAM"),))
transfer.release()
peer.release()
try:
    registration.release()
except TransferError as e:
    print("> in doubt" if "are in doubt" in str(e) else e)
peer_process.end()
registration.release(in_doubt=True)
""") == ["> PROC", "> ERR True", "> True", "> in doubt"]


def test_a_killed_peer_is_an_error_without_doubt() -> None:
    assert story("""
peer_process.stop()
transfer = peer.start(every, every)
print(">", transfer.wait(0.1))
peer_process.end()
print(">", transfer.wait(30), transfer.error.in_doubt)
transfer.release()
peer.release()
registration.release()
""") == ["> PROC", "> ERR ()"]


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_the_interpreter_ends_with_a_transfer_in_flight(end: str) -> None:
    """`memory` is freed before the agent that writes to it."""
    assert story(f"""
transfer = peer.start(every, every)
print(">", transfer.poll(), flush=True)
import atexit  # what is registered last runs first
atexit.register(lambda: print("> ends"))
{end}
""") == ["> PROC", "> ends"]


def test_the_interpreter_ends_with_a_peer_that_hangs() -> None:
    assert story("""
peer_process.stop()
transfer = peer.start(every, every)
print(">", transfer.poll(), flush=True)
import os, subprocess  # nobody else would end it
subprocess.Popen(["sh", "-c", f"sleep 15; kill -9 {peer_process.process.pid}"], stdout=subprocess.DEVNULL,
                 stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
""") == ["> PROC"]


def test_handlers_that_poll_and_release_whenever_they_like() -> None:
    """A timer of half a millisecond against a main thread that does the same: no dead-lock, no crash."""
    words = story("""
transfers, errors = [], []
def handler(number, frame):
    for transfer in list(transfers):
        try:
            if transfer.poll() != "PROC":
                transfer.release()
        except TransferError as e:
            errors.append(str(e))
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
deadline = time.monotonic() + 3
count = 0
while time.monotonic() < deadline:
    transfer = peer.start([[1, 2]], [[1, 2]])
    transfers.append(transfer)
    while True:
        try:
            state = transfer.wait(10)
            transfer.release()
            break
        except TransferError as e:
            errors.append(str(e))
    transfers.remove(transfer)
    count += 1
signal.setitimer(signal.ITIMER_REAL, 0, 0)
print(">", count > 10, {("is busy" in words) for words in errors} <= {True})
peer.release()
registration.release()
peer_process.end()
""")
    assert words == ["> True True"]
