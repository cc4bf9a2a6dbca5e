"""An S3 store on the loopback address, in a process of its own, and real agents that know it (NIXL's OBJ plugin).

Needs no network: ``moto.server`` keeps the objects in its memory. Run as a script it is the store: it prints its port,
then answers each line of its input with what it holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agents import real_agent

BUCKET = "blocks"
_LOGIN = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}


class ObjectStore:
    """A running store."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._port = int(self._answer())

    def _answer(self) -> str:
        if self._process.stdout is None:
            raise ValueError("the store's output is not ours to read")
        for line in self._process.stdout:
            if line.startswith("store: "):
                return line.removeprefix("store: ")
        raise RuntimeError("the store ended")

    def objects(self) -> dict[str, bytes]:
        """Every object by its key."""
        if self._process.stdin is None:
            raise ValueError("the store's input is not ours to write")
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return {key: bytes.fromhex(told) for key, told in json.loads(self._answer()).items()}

    def agent(self, name: str) -> Any:
        """A real agent with the OBJ plugin, which keeps its objects here."""
        agent = real_agent(name, plugins=())
        if "OBJ" not in agent.get_plugin_list():
            pytest.skip("this NIXL has no OBJ plugin: no real objects")
        agent.create_backend("OBJ", {
            "bucket": BUCKET, "endpoint_override": f"http://127.0.0.1:{self._port}", "scheme": "http",
            "use_virtual_addressing": "false", "req_checksum": "required",
            "access_key": _LOGIN["aws_access_key_id"], "secret_key": _LOGIN["aws_secret_access_key"],
            "region": _LOGIN["region_name"],
        })  # fmt: skip
        return agent


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a store; skips where moto is not installed."""
    pytest.importorskip("moto", reason="moto is not installed: no objects")
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            yield ObjectStore(process)
        finally:
            process.kill()


def serve() -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **_LOGIN)
    client.create_bucket(Bucket=BUCKET)
    say(str(port))
    for _ in sys.stdin:
        keys = [found["Key"] for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]
        held = {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read().hex() for key in keys}
        say(json.dumps(held))


def say(words: str) -> None:
    sys.stdout.write(f"store: {words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
