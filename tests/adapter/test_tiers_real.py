"""Tiers through NIXL's own plugins: memory registered in pieces (UCX), files (POSIX) and objects (OBJ, a local store).

A token's bytes are numbers that name it: layer, head, token. So what arrives in a pool of another TP size and another
block size is compared with what the request's tokens are, not with what any plan says::

    pool, TP 2     l0 | head 0 head 1 |  l1 | head 0 head 1 |        a region per layer, blocks of 8 tokens
    tier           | l0 head 0..3 | l1 head 0..3 |                   one block for all layers, 16 tokens; a file per
                                                                     64 blocks, or an object per block
    pool, TP 4     l0 | head 2 |  l1 | head 2 |                      blocks of 4 tokens
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Bytes, notifs, painted, real_agent, takes_strided
from numpy.typing import NDArray
from object_store import ObjectStore, object_store

from nixldesc import Blocks, GeometryError, Layout, Region, Section, TransferError, attention_sections, plan
from nixldesc.adapter import prepare, register

LAYERS, HEADS, ITEM = 2, 4, 8
#: The tier's tokens in a block.
TIER_TOKENS = 16

_number = iter(range(10**6))


def name() -> str:
    """Agents of one process need names of their own."""
    return f"tier{next(_number)}"


def truth(tokens: int) -> NDArray[np.uint64]:
    """The cache itself: uint64[layer, head, token], each item its own number."""
    layer, head, token = np.ogrid[:LAYERS, :HEADS, :tokens]
    return np.array(layer * 1_000_000 + head * 10_000 + token + 1, np.uint64)


def heads_of(layer: int, tp: int, rank: int, tokens: int, order: Any = "HND") -> tuple[Section, ...]:
    return attention_sections(
        f"l{layer}", num_kv_heads=HEADS, tp_size=tp, tp_rank=rank, block_tokens=tokens, token_head_bytes=ITEM,
        order=order,
    )  # fmt: skip


class Pool:
    """One rank's cache on an agent of its own: a region per layer, heads outermost."""

    def __init__(self, agent: Any, tp: int, rank: int, tokens: int, blocks: int) -> None:
        self.agent, self.tokens = agent, tokens
        self.first, self.heads = HEADS // tp * rank, HEADS // tp
        self.cache = np.zeros((LAYERS, blocks, self.heads, tokens), np.uint64)
        size = self.heads * tokens * ITEM
        self.layout = Layout([
            Region(f"l{layer}", self.cache.ctypes.data + layer * blocks * size, size, blocks, mem_type="DRAM",
                   sections=heads_of(layer, tp, rank, tokens))
            for layer in range(LAYERS)
        ])  # fmt: skip

    def place(self, blocks: Sequence[int], skip: int = 0) -> Iterator[tuple[slice, int, slice]]:
        """Which tokens of the sequence lie in which block and where in it."""
        for n, block in enumerate(blocks, skip):
            yield slice(n * self.tokens, (n + 1) * self.tokens), block, slice(0, self.tokens)

    def fill(self, blocks: Sequence[int], cache: NDArray[np.uint64]) -> None:
        mine = slice(self.first, self.first + self.heads)
        for tokens, block, inside in self.place(blocks):
            self.cache[:, block, :, inside] = cache[:, mine, tokens]

    def want(self, blocks: Sequence[int], skip: int, cache: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The cache as it must be afterwards: these blocks and nothing else."""
        found = np.zeros_like(self.cache)
        mine = slice(self.first, self.first + self.heads)
        for tokens, block, inside in self.place(blocks, skip):
            found[:, block, :, inside] = cache[:, mine, tokens]
        return found


def tier_page() -> tuple[Section, ...]:
    """All layers and heads of a block, one after the other."""
    size = HEADS * TIER_TOKENS * ITEM
    return tuple(
        Section(section.name, section.axes, section.itemsize, offset=layer * size)
        for layer in range(LAYERS)
        for section in heads_of(layer, 1, 0, TIER_TOKENS)
    )


PAGE = LAYERS * HEADS * TIER_TOKENS * ITEM


def moved(agent: Any, plans: Any, local: Any, src: Any, dst: Any) -> None:
    """One request, within one agent."""
    [pairs] = plans
    with prepare(agent, agent.name, pairs, local=local) as peer:
        with peer.start(src, dst) as transfer:
            assert transfer.wait(30) == "DONE", transfer.error


# -- registered in pieces ----------------------------------------------------------------------


@pytest.mark.parametrize("local", ["dst", "src"])
def test_a_buffer_registered_in_pieces(local: Any) -> None:
    """NIXL refuses a row across two registrations, even touching ones; in segments the bytes are exact."""
    length, count = 64, 24
    prefill, decode = real_agent(name()), real_agent(name())
    if not takes_strided(prefill):
        pytest.skip("without N x 5 lists no row crosses a registration")
    there, here = painted(length * count, 1), painted(length * count, 2)
    whole = Layout([Region("k", there.ctypes.data, length, count, mem_type="DRAM")])
    own = Layout([Region("k", here.ctypes.data, length, count, mem_type="DRAM")])
    at = there.ctypes.data
    ranges = [(at + a * length, (b - a) * length, 0, "DRAM") for a, b in ((0, 7), (7, 16), (16, 24))]
    mine, theirs = (decode, prefill) if local == "dst" else (prefill, decode)
    before = there.copy()
    with pytest.raises(GeometryError, match="'k'"):
        register(prefill, whole, ranges)
    with register(prefill, whole.split_at(ranges), ranges), register(decode, own):
        mine.add_remote_agent(theirs.get_agent_metadata())
        with pytest.raises(TransferError, match="NIXL_ERR_NOT_FOUND"):
            prepare(mine, theirs.name, plan(own, {0: whole})[0], local=local)
        cut = whole.split_at(ranges)
        [pair] = plan(own, {0: cut})[0]
        src, dst = [[23, 6, 7, 8, 15, 16, 0]], [[3, 4, 5, 6, 7, 8, 20]]
        with prepare(mine, theirs.name, [pair], local=local) as peer:
            with peer.start(src, dst, notify=b"done") as transfer:
                assert transfer.wait(30) == "DONE", transfer.error
                told = notifs(theirs, 1)
                telemetry = mine.get_xfer_telemetry(transfer.handles[0])
        ids = pair.desc_ids(src, dst)
        assert telemetry.descCount == pair.merged_ops(*ids) == 6  # 23 | 6 | 7 8 | 15 | 16 | 0: not across a bound
        assert told == {mine.name: [b"done"]}
    want = painted(length * count, 2).reshape(count, length)
    want[dst[0]] = before.reshape(count, length)[src[0]]
    assert (here.reshape(count, length) == want).all()
    assert (there == before).all()


# -- files -------------------------------------------------------------------------------------

BLOCKS_PER_FILE = 64


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    found = [os.open(tmp_path / f"file{n}", os.O_RDWR | os.O_CREAT) for n in range(3)]
    for fd in found:
        os.ftruncate(fd, BLOCKS_PER_FILE * PAGE)
    yield found
    for fd in found:
        os.close(fd)


def files(fds: Sequence[int]) -> Layout:
    segments = [(0, BLOCKS_PER_FILE, fd) for fd in fds]
    return Layout([Region.segmented("tier", PAGE, segments, mem_type="FILE", sections=tier_page())])


def test_a_pool_in_files_read_by_another_tp_size(fds: Sequence[int]) -> None:
    """TP 2 with blocks of 8 tokens writes, TP 4 with blocks of 4 reads, from inside a file and across two."""
    tokens = 7 * TIER_TOKENS
    cache = truth(tokens)
    tier = files(fds)
    slots = [63, 64, 130, 2, 127, 128, 65]  # blocks of the tier, in all three files
    writers = [Pool(real_agent(name(), "POSIX"), 2, rank, 8, 40) for rank in range(2)]
    written = np.zeros((3 * BLOCKS_PER_FILE, LAYERS, HEADS, TIER_TOKENS), np.uint64)
    for n, slot in enumerate(slots):
        written[slot] = cache[:, :, n * TIER_TOKENS : (n + 1) * TIER_TOKENS]
    for rank, pool in enumerate(writers):
        blocks = np.random.default_rng(rank).permutation(40)[: tokens // 8].tolist()
        pool.fill(blocks, cache)
        with register(pool.agent, pool.layout), register(pool.agent, tier):
            made = plan(tier, {n: one.layout for n, one in enumerate(writers)})
            moved(pool.agent, [made[rank]], "src", [blocks], [slots])
    stored = np.stack([np.frombuffer(os.pread(fd, BLOCKS_PER_FILE * PAGE, 0), np.uint64) for fd in fds])
    assert (stored.reshape(written.shape) == written).all()

    skip = 5  # the reader has its first five blocks of four tokens: it starts inside the tier's second
    for rank in range(4):
        pool = Pool(real_agent(name(), "POSIX"), 4, rank, 4, 40)
        blocks = np.random.default_rng(9 + rank).permutation(40)[: tokens // 4 - skip].tolist()
        with register(pool.agent, pool.layout), register(pool.agent, tier):
            made = plan(pool.layout, {0: tier})
            moved(pool.agent, [made[0]], "dst", [slots], [Blocks(blocks, skip)])
        assert (pool.cache == pool.want(blocks, skip, cache)).all()


# -- objects -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def objects(first_device: int, count: int) -> Layout:
    segments = [(0, 1, device) for device in range(first_device, first_device + count)]
    return Layout([Region.segmented("tier", PAGE, segments, mem_type="OBJ", sections=tier_page())])


@pytest.mark.parametrize("named", [True, False], ids=["keys given", "keys by default"])
def test_a_host_tier_in_objects_read_by_another_tp_size(store: ObjectStore, named: bool) -> None:
    """A WRITE replaces an object, so whole blocks go out; ranges of objects come back, heads of them to TP 2."""
    count, tokens = 6, 3 * TIER_TOKENS
    cache = truth(tokens)
    first = 5000 if named else 7000
    tier = objects(first, count)
    keys = {first + n: f"model/layer-all/{n:04x}" for n in range(count)} if named else None
    slots = [4, 1, 3]
    host: Bytes = np.zeros(10 * PAGE, np.uint8)
    memory = Layout([Region("tier", host.ctypes.data, PAGE, 10, mem_type="DRAM", sections=tier_page())])
    pages = host.view(np.uint64).reshape(10, LAYERS, HEADS, TIER_TOKENS)
    for n, block in enumerate((7, 0, 8)):
        pages[block] = cache[:, :, n * TIER_TOKENS : (n + 1) * TIER_TOKENS]
    agent = store.agent(name())
    with register(agent, memory), register(agent, tier, keys=keys):
        moved(agent, [plan(tier, {0: memory})[0]], "src", [[7, 0, 8]], [slots])
    held = store.objects()
    for n, slot in enumerate(slots):
        key = keys[first + slot] if keys else str(first + slot)
        page = cache[:, :, n * TIER_TOKENS : (n + 1) * TIER_TOKENS]
        assert held[key] == page.tobytes()

    skip = 1  # the reader's blocks hold eight tokens, and it has the first: half of the first object
    for rank in range(2):
        pool = Pool(store.agent(name()), 2, rank, 8, 12)
        blocks = [9, 2, 11, 3, 0]
        with register(pool.agent, pool.layout), register(pool.agent, tier, keys=keys):
            made = plan(pool.layout, {0: tier})
            assert made.undelivered({0: [slots]}, [Blocks(blocks, skip)]) == []
            moved(pool.agent, [made[0]], "dst", [slots], [Blocks(blocks, skip)])
        assert (pool.cache == pool.want(blocks, skip, cache)).all()


def test_an_object_that_is_not_there(store: ObjectStore) -> None:
    """NIXL says so when the read is under way. The store's words of regret are then in the block: it holds nothing."""
    agent = store.agent(name())
    host: Bytes = np.zeros(PAGE, np.uint8)
    memory = Layout([Region("tier", host.ctypes.data, PAGE, 1, mem_type="DRAM", sections=tier_page())])
    tier = objects(9000, 2)
    with register(agent, memory), register(agent, tier, keys={9000: "nobody", 9001: "nowhere"}):
        with prepare(agent, agent.name, plan(memory, {0: tier})[0], local="dst") as peer:
            with peer.start([[1]], [[0]]) as transfer:
                assert transfer.wait(30) == "ERR"
                assert "OBJ to DRAM" in str(transfer.error)
    assert host.tobytes().startswith(b"<?xml") or not host.any()
