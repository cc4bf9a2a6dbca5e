"""NIXL handles from plans: register, prepare once per peer, start one transfer per request.

The only part of nixldesc that knows NIXL. It takes an agent (``nixl.nixl_agent``, or anything with those methods, as
``nixldesc.testing.LoopbackAgent``) and never makes one, nor imports nixl: ROCm's ``nixl_rocm``, which has the same
Python API, is taken too but was never run here. Facts about NIXL were measured with nixl 1.5.1 and 1.4.1, UCX and
POSIX plugins, host memory; nixl 1.5.0, which vLLM 0.33.0 pins, takes N x 5 lists as 1.5.1 does.

A rank of the decode side, D, reads from a rank of the prefill side, P. Here both live in one process:

>>> import numpy as np
>>> from nixldesc import Layout, Region, plan
>>> from nixldesc.testing import LoopbackAgent
>>> buffer_p, buffer_d = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
>>> layout_p = Layout([Region("k", buffer_p.ctypes.data, 16, 4, mem_type="DRAM")])
>>> layout_d = Layout([Region("k", buffer_d.ctypes.data, 16, 4, mem_type="DRAM")])
>>> agent_p, agent_d = LoopbackAgent("p"), LoopbackAgent("d")

Once: register, exchange agent metadata and layouts, plan, prepare. Per request: start, wait, release.

>>> with register(agent_p, layout_p), register(agent_d, layout_d):
...     _ = agent_d.add_remote_agent(agent_p.get_agent_metadata())
...     with prepare(agent_d, "p", plan(layout_d, {0: layout_p}), local="dst") as peer:
...         with peer.start([[3, 2]], [[0, 1]], notify=b"request 7 has arrived") as transfer:
...             transfer.wait(timeout=10)
'DONE'
>>> buffer_d[:32].tolist() == [*range(48, 64), *range(32, 48)]
True
>>> agent_p.get_new_notifs()
{'d': [b'request 7 has arrived']}

*Threads.* An agent of sync mode NONE (the default of nixl's Python API without a listener thread) takes no lock: it,
and all that is made from it here, belongs to one thread at a time. STRICT (one lock) and RW (readers and writers)
allow any thread. In no mode may two threads use one transfer handle at once; a Transfer sees to that itself.
Finalisers run in whatever thread drops the last reference, so under NONE release explicitly.

*Order of release.* Transfers, then peers, then registrations. NIXL keeps plain pointers to a registration in its
prepared lists, and a transfer made from them after deregistration crashes the process; so each step here refuses while
the one before it is not done. Memory must stay allocated while a transfer that uses it is in flight.

*Leaving ``with``.* A block that ends well waits up to 30 seconds for what is in flight, then raises TransferError,
which is an exception on its way for the blocks around it: 30 seconds in all. With an exception on its way nothing
waits and the exception stays on top; what is left is logged, and released when it has landed, by whoever starts,
prepares or releases next. At the interpreter's end nothing is released; what is in flight has five seconds to land.

*Giving up on a dead peer.* A killed peer is an error at once; one that hangs leaves its transfers at "PROC" for ever,
and all releases refuse. With a limit of your own::

    if transfer.wait(timeout=60) == "PROC":
        peer.abandon()            # "ERR", in doubt; lists and metadata of the peer are gone, other peers go on
        transfer.release()
        quarantine(peer.in_doubt)  # (addr, len, device_id, mem_type): NIXL may still write there

Memory in doubt is not written by anybody else but may be by NIXL, until the agent is gone (measured over tcp: 64 MiB
arrived after the release of transfer, lists and registration). Keep its blocks out of use, and the memory allocated;
``Registration.release`` refuses it, unless ``in_doubt=True``. ``agent.remove_remote_agent`` under a transfer leaves
its end in doubt in the same way, and does no more. PORTING.md has the recipe as a program.

*Notifications.* A message goes with its own transfer: where one request is several transfers, the last one's message
says nothing of the others. Storage plugins carry none (nixl 1.5.1): an agent that has POSIX alone refuses ``notify=``
before anything moves, one with UCX beside it sends the message when the bytes are stored.

*Logs.* Refusals (warnings) and failures (errors) go to the logger ``nixldesc`` besides being raised or told.
"""

from __future__ import annotations

from nixldesc.adapter.agent import Agent, Status
from nixldesc.adapter.peer import PreparedPeer
from nixldesc.adapter.preparing import prepare
from nixldesc.adapter.registration import Registration, register
from nixldesc.adapter.sources import PreparedSources
from nixldesc.adapter.transfer import Transfer, settled

__all__ = [
    "Agent",
    "PreparedPeer",
    "PreparedSources",
    "Registration",
    "Status",
    "Transfer",
    "prepare",
    "register",
    "settled",
]
