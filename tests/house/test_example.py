"""examples/connector.py moves every byte to where it belongs, pulling and pushing.

The truth is one tensor of the whole model, [layer][head][token][byte]; each rank's memory is read
and written as a NumPy view of the shape that its engine documents. No arithmetic of the library.
"""

import importlib.util
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nixldesc import Blocks
from nixldesc.testing import LoopbackAgent

if TYPE_CHECKING:
    from examples import connector
else:
    _PATH = Path(__file__).resolve().parents[2] / "examples" / "connector.py"
    _SPEC = importlib.util.spec_from_file_location("connector", _PATH)
    connector = importlib.util.module_from_spec(_SPEC)
    sys.modules["connector"] = connector
    _SPEC.loader.exec_module(connector)

LAYERS, HEADS, TOKENS, BYTES = 3, 4, 64, 32
UNTOUCHED = 0xEE
REQUEST = "request 1"

Bytes = NDArray[np.uint8]
numbers = itertools.count()


def nixl(name: str) -> Any:
    api = pytest.importorskip("nixl._api", reason="nixl is not installed")
    return api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))


@dataclass
class Side:
    """One engine: its ranks and, for each, its memory and a block table of its own."""

    engine: Any
    ranks: list[Any]
    memory: list[Bytes]
    tables: list[list[int]]

    def heads(self, rank: int) -> list[int]:
        tp = self.engine.tp_size
        return [h for h in range(HEADS) if h * tp // HEADS == rank or h == rank * HEADS // tp]

    def filled(self, rank: int, truth: Bytes, cached: int) -> Bytes:
        """A copy of the rank's memory with the truth in the blocks of its table after `cached`."""
        memory, size = self.memory[rank].copy(), self.engine.block_tokens
        for i, block in list(enumerate(self.tables[rank]))[cached:]:
            memory[:, block] = truth[:, self.heads(rank), i * size : (i + 1) * size]
        return memory


def make_side(kind: Any, engine: Any, agent: Callable[[str], Any]) -> Side:
    side = Side(engine, [], [], [])
    for rank in range(engine.tp_size):
        shape = (LAYERS, engine.num_blocks, len(side.heads(rank)), engine.block_tokens, BYTES)
        side.memory.append(np.full(shape, UNTOUCHED, dtype=np.uint8))
        order = np.random.default_rng(rank).permutation(engine.num_blocks).tolist()
        side.tables.append(order[: TOKENS // engine.block_tokens])
        mine = agent(f"{kind.__name__} {rank}, {next(numbers)}")
        side.ranks.append(kind(mine, engine, rank, side.memory[rank].ctypes.data))
    return side


def meet(one: Side, other: Side) -> None:
    hellos = [rank.hello() for rank in other.ranks]
    for rank in one.ranks:
        rank.meet(hellos)


def run(mode: str, src: Side, dst: Side, cached: int) -> list[Any]:
    """Do the request and return the ranks that are to hear of its end."""
    src_ids = dict(enumerate(src.tables))
    # The cached prefix is not in decode's list; `skip` says where the list begins.
    dst_ids = {rank: Blocks(table[cached:], cached) for rank, table in enumerate(dst.tables)}
    if mode == "pull":
        for rank in src.ranks:
            rank.lend(REQUEST)
        for rank in dst.ranks:
            rank.pull(REQUEST, src_ids, dst_ids[rank.tp_rank])
    else:
        for rank in dst.ranks:
            rank.expect(REQUEST)
        for rank in src.ranks:
            rank.push(REQUEST, src_ids[rank.tp_rank], dst_ids)
    posting, waiting = (dst, src) if mode == "pull" else (src, dst)
    for rank in posting.ranks:
        rank.wait()
    return waiting.ranks


def settle(rank: Any) -> list[str]:
    deadline = time.monotonic() + 10
    done: list[str] = rank.poll()
    while rank.awaited and time.monotonic() < deadline:
        done += rank.poll()
    return done


# prefill's and decode's TP size, tokens in a block of each, blocks that decode has cached
SHAPES = {
    "equal": (2, 2, 8, 8, 0),
    "gather, cached prefix": (4, 2, 8, 8, 2),
    "scatter, other block size": (2, 4, 8, 16, 1),
    "replicated heads on prefill": (8, 2, 16, 8, 0),
    "replicated heads on decode": (1, 8, 8, 8, 3),
}
OVER_NIXL = ("gather, cached prefix", "scatter, other block size")  # its agents are slow to make


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize(
    ("agent", "shape"),
    [
        *(pytest.param(LoopbackAgent, SHAPES[name], id=f"loopback, {name}") for name in SHAPES),
        *(pytest.param(nixl, SHAPES[name], id=f"nixl, {name}") for name in OVER_NIXL),
    ],
)
def test_every_byte_arrives(agent: Callable[[str], Any], shape: tuple[int, int, int, int, int], mode: str) -> None:
    src_tp, dst_tp, src_tokens, dst_tokens, cached = shape
    truth = np.random.default_rng(7).integers(0, 256, (LAYERS, HEADS, TOKENS, BYTES), np.uint8)
    src = make_side(connector.Prefill, connector.Engine(src_tp, src_tokens, 24), agent)
    dst = make_side(connector.Decode, connector.Engine(dst_tp, dst_tokens, 20), agent)
    for rank in range(src_tp):
        src.memory[rank][:] = src.filled(rank, truth, cached=0)
    expected = [dst.filled(rank, truth, cached) for rank in range(dst_tp)]

    meet(src, dst)
    meet(dst, src)
    told = run(mode, src, dst, cached)
    assert [settle(rank) for rank in told] == [[REQUEST]] * len(told)
    for rank, memory in enumerate(dst.memory):
        np.testing.assert_array_equal(memory, expected[rank], err_msg=f"decode rank {rank}")
    for one in (*src.ranks, *dst.ranks):
        one.handles.close()


def test_it_is_short() -> None:
    assert Path(connector.__file__).read_text().count("\n") < 160


def test_as_a_program_it_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    connector.main()
    # Two blocks of 16 tokens, three layers, 32 bytes: two of the four heads from either rank.
    each = 2 * 16 * 3 * 32 * 2
    assert capsys.readouterr().out.splitlines() == [
        f"Prefill {rank}: {each:,} bytes are in decode's blocks 6 and 1; free again: ['request 1']" for rank in (0, 1)
    ]
