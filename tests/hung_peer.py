"""A peer in a process of its own, over tcp, that can be stopped: what tests of dead and hung peers read from.

Run as a program it registers a buffer of ones, says where it is, and waits for the end of its input.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 64 << 20
BLOCK = 1 << 20
NAME = "hung-peer"


def main() -> None:
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(NAME, nixl_agent_config(backends=["UCX"]))
    memory = np.ones(SIZE, np.uint8)
    agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    sys.stdout.write(f"here: {base64.b64encode(agent.get_agent_metadata()).decode()} {memory.ctypes.data}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


class Peer:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"UCX_TLS": "tcp"},
        )
        if self.process.stdout is None:
            raise OSError("no pipe")
        for line in self.process.stdout:
            if line.startswith("here: "):
                _, metadata, addr = line.split()
                self.metadata, self.addr = base64.b64decode(metadata), int(addr)
                return
        raise OSError("the peer did not come up")

    def layout(self) -> Any:
        from nixldesc import Layout, Region

        return Layout([Region("k", self.addr, BLOCK, SIZE // BLOCK, mem_type="DRAM")])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def run(code: str, *, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python in a process whose NIXL speaks tcp alone, and that finds this module."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = os.environ | {"UCX_TLS": "tcp", "PYTHONPATH": path, "UCX_LOG_LEVEL": "error"}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, env=env, timeout=timeout
    )


def until(happens: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    main()
