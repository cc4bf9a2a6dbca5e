"""The adapter through NIXL itself: UCX and POSIX plugins, host memory, under the NIXL that is installed.

What depends on N x 5 lists is skipped under nixl < 1.5; all the rest runs under both, so that the N x 3 fallback is
shown to deliver the same bytes. Random engines go through NIXL in test_painted_nixl.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Bytes, notifs, painted, real_agent, takes_strided, until

import nixldesc
from nixldesc import Blocks, DlistPair, GeometryError, Layout, Region, TransferError, attention_sections
from nixldesc.adapter import prepare, register

L = 64
N = 12


def names() -> Iterator[str]:
    """Agents of one process need names of their own."""
    number = 0
    while True:
        number += 1
        yield f"agent{number}"


NAMES = names()


class Engine:
    """A real agent and one buffer, registered whole."""

    def __init__(self, size: int, seed: int, *backends: str) -> None:
        self.name = next(NAMES)
        self.agent = real_agent(self.name, *backends)
        self.buffer = painted(size, seed)
        self.at = self.buffer.ctypes.data
        self.registration = register(self.agent, self.regions((0, size, size, 1)), [(self.at, size, 0, "DRAM")])

    def regions(self, *rows: tuple[int, int, int, int]) -> Layout:
        """Regions r0, r1, ...; a row is (offset, block_len, block_stride, num_blocks)."""
        return Layout(
            [
                Region(f"r{i}", self.at + offset, size, count, block_stride=stride, mem_type="DRAM")
                for i, (offset, size, stride, count) in enumerate(rows)
            ]
        )


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Source and destination, who know one another."""
    src, dst = Engine(1 << 16, 1), Engine(1 << 16, 2)
    src.agent.add_remote_agent(dst.agent.get_agent_metadata())
    dst.agent.add_remote_agent(src.agent.get_agent_metadata())
    yield src, dst
    for engine in (src, dst):
        engine.registration.release()


def apply(pair: DlistPair, ids: tuple[Any, Any], src: Engine, dst: Engine) -> Bytes:
    """The destination's buffer as it should be."""
    want = dst.buffer.copy()
    for a, b in zip(*(side.tolist() for side in ids), strict=True):
        (start, size, _), (end, *_) = pair.src.address(a), pair.dst.address(b)
        want[end - dst.at : end - dst.at + size] = src.buffer[start - src.at : start - src.at + size]
    return want


# ------------------------------------------------------------------------------------------------- bytes and counts


@pytest.mark.parametrize("local", ["dst", "src"])
def test_shuffled_blocks_of_padded_regions(engines: tuple[Engine, Engine], local: Any) -> None:
    src, dst = engines
    pair = DlistPair(
        src.regions((0, L, L, N), (4096, L, 3 * L, N), (32768, 32, 32, N)),
        dst.regions((64, L, 2 * L, N), (8192, L, L, N), (40000, 32, 48, N)),
    )
    rng = np.random.default_rng(7)
    tables = [[rng.permutation(N)[:7].tolist()] for _ in range(2)]
    want = apply(pair, pair.desc_ids(*tables), src, dst)
    mine, theirs = (dst, src) if local == "dst" else (src, dst)
    with prepare(mine.agent, theirs.name, pair, local=local) as peer:
        with peer.start(*tables, notify=b"request") as transfer:
            assert transfer.wait(20) == "DONE"
        assert (dst.buffer == want).all()
        assert notifs(theirs.agent, 1) == {mine.name: [b"request"]}
        with peer.start([[]], [[]], notify=b"nothing") as transfer:
            assert transfer.wait(20) == "DONE"
        assert notifs(theirs.agent, 1) == {mine.name: [b"nothing"]}


@pytest.mark.parametrize("local", ["dst", "src"])
def test_unequal_block_sizes_and_tp(engines: tuple[Engine, Engine], local: Any) -> None:
    """16 tokens a block on one side and 8 on the other, 4 heads against 2 of them, a cached prefix."""
    src, dst = engines

    def layer(engine: Engine, tokens: int, tp: int, rank: int, blocks: int) -> Layout:
        sections = attention_sections(
            "k", num_kv_heads=4, tp_size=tp, tp_rank=rank, block_tokens=tokens, token_head_bytes=16
        )
        size = max(section.end for section in sections)
        return Layout([Region("k", engine.at, size, blocks, mem_type="DRAM", sections=sections)])

    [pair] = nixldesc.plan(layer(dst, 8, 2, 1, 40), {0: layer(src, 16, 1, 0, 20)})[0]
    tables = [[Blocks([3, 17, 5])], [Blocks([30, 2, 9, 8], skip=2)]]
    want = apply(pair, pair.desc_ids(*tables), src, dst)
    mine, theirs = (dst, src) if local == "dst" else (src, dst)
    with prepare(mine.agent, theirs.name, pair, local=local) as peer, peer.start(*tables) as transfer:
        assert transfer.wait(20) == "DONE"
    assert (dst.buffer == want).all()


RUNS = {
    "contiguous": ([*range(N)], [*range(N)]),
    "descending": ([*range(N)][::-1], [*range(N)][::-1]),
    "shuffled": ([5, 6, 7, 0, 2, 3, 11], [1, 2, 3, 9, 7, 8, 0]),
    "one side descending": ([0, 1, 2, 3], [7, 6, 5, 4]),
    "to the end": ([N - 2, N - 1], [N - 2, N - 1]),
    "one": ([4], [0]),
}


@pytest.mark.parametrize("order", ["merge", "given"])
@pytest.mark.parametrize("run", RUNS)
def test_merged_ops_is_what_nixl_counts(engines: tuple[Engine, Engine], run: str, order: Any) -> None:
    """Over dense, padded and touching regions: rows are where merging ends."""
    src, dst = engines
    if not takes_strided(dst.agent):
        pytest.skip("nixl < 1.5 folds N x 3 lists into rows of its own")
    pair = DlistPair(
        src.regions((0, L, L, N), (N * L, L, L, N), (8192, L, 2 * L, N), (16384, L, L, N)),
        dst.regions((0, L, L, N), (N * L, L, L, N), (8192, L, L, N), (16384, L, 80, N)),
    )
    blocks = [[side] for side in RUNS[run]]
    ids = pair.desc_ids(*blocks, order=order)
    with prepare(dst.agent, src.name, pair, local="dst") as peer:
        with peer.start(*blocks, order=order) as transfer:
            assert transfer.wait(20) == "DONE"
            [handle] = transfer.handles
            told = dst.agent.get_xfer_telemetry(handle)
            assert told.descCount == pair.merged_ops(*ids)
            assert told.totalBytes == L * len(ids[0])
        whole = np.arange(pair.src.num_descs, dtype=np.int32)  # ids run on from row to row
        with peer.start_ids(0, whole, whole) as transfer:
            assert transfer.wait(20) == "DONE"
            assert dst.agent.get_xfer_telemetry(transfer.handles[0]).descCount == pair.merged_ops(whole, whole)


# ------------------------------------------------------------------------------------------------------------ files


@pytest.fixture
def fds(tmp_path: Path) -> Iterator[list[int]]:
    """Three open files, empty."""
    opened = [os.open(tmp_path / f"file{i}", os.O_RDWR | os.O_CREAT) for i in range(3)]
    yield opened
    for fd in opened:
        os.close(fd)


def test_blocks_to_files_and_back(fds: Sequence[int]) -> None:
    """The object tier's way of calling: block ids on one side, 0..n-1 of a file per request on the other."""
    engine = Engine(N * L, 1, "POSIX")
    memory = Layout([Region("k", engine.at, L, N, mem_type="DRAM")])
    files = Layout([Region(f"request{fd}", 0, L, 4, mem_type="FILE", device_id=fd) for fd in fds])
    stored = {0: [7, 0, 3, 2], 1: [11], 2: [4, 5, 6]}
    blocks = engine.buffer.reshape(N, L).copy()
    with register(engine.agent, files):
        with prepare(engine.agent, engine.name, (memory, files), local="src") as tier:
            for file, ids in stored.items():
                slots = np.arange(len(ids), dtype=np.int32) + 4 * file
                with tier.start_ids(0, np.array(ids, np.int32), slots) as transfer:
                    assert transfer.wait(20) == "DONE"
        for file, ids in stored.items():
            assert os.pread(fds[file], 5 * L, 0) == blocks[ids].tobytes()
        engine.buffer[:] = 0
        with prepare(engine.agent, engine.name, (files, memory), local="dst") as tier:
            with tier.start_ids(0, np.array([1, 4, 10, 9]), np.array([0, 1, 2, 3])) as transfer:
                assert transfer.wait(20) == "DONE"
    assert (engine.buffer.reshape(N, L)[:4] == blocks[[0, 11, 6, 5]]).all()
    assert not engine.buffer[4 * L :].any()
    engine.registration.release()


@pytest.mark.parametrize("local", ["dst", "src"])
def test_block_tables_against_a_file(fds: Sequence[int], local: Any) -> None:
    """A file can be a region like any other: offset for address, file descriptor for device."""
    engine = Engine(N * L, 1, "POSIX")
    memory = Layout([Region("k", engine.at, L, N, mem_type="DRAM")])
    os.pwrite(fds[0], painted(2 * N * L, 5).tobytes(), 0)
    file = Layout([Region("k", 0, L, N, block_stride=2 * L, mem_type="FILE", device_id=fds[0])])
    src, dst = (file, memory) if local == "dst" else (memory, file)
    in_file = np.frombuffer(os.pread(fds[0], 2 * N * L, 0), np.uint8).reshape(N, 2, L).copy()
    in_memory = engine.buffer.reshape(N, L).copy()
    with register(engine.agent, file), prepare(engine.agent, engine.name, DlistPair(src, dst), local=local) as peer:
        with peer.start([[3, 11, 0]], [[5, 6, 1]]) as transfer:
            assert transfer.wait(20) == "DONE"
    if local == "dst":
        in_memory[[5, 6, 1]] = in_file[[3, 11, 0], 0]
    else:
        in_file[[5, 6, 1], 0] = in_memory[[3, 11, 0]]
    assert (engine.buffer.reshape(N, L) == in_memory).all()
    assert os.pread(fds[0], 2 * N * L, 0) == in_file.tobytes()
    engine.registration.release()


def test_a_message_that_no_backend_can_carry_is_refused(fds: Sequence[int]) -> None:
    """Of an agent with POSIX alone: it could store the bytes, but tell nobody; so nothing is begun."""
    engine = Engine(N * L, 1, "POSIX")
    memory = Layout([Region("k", engine.at, L, N, mem_type="DRAM")])
    file = Layout([Region("k", 0, L, N, mem_type="FILE", device_id=fds[0])])
    with (
        register(engine.agent, file),
        prepare(engine.agent, engine.name, DlistPair(memory, file), local="src") as peer,
    ):
        for blocks in [3], []:
            with pytest.raises(TransferError, match="this agent has POSIX alone: make it with backends="):
                peer.start([blocks], [blocks], notify=b"never")
        assert os.pread(fds[0], L, 0) == b""
        with peer.start([[3]], [[0]]) as transfer:
            assert transfer.wait(20) == "DONE"
    engine.registration.release()


def test_memory_of_the_wrong_type_is_told_what_to_look_at(engines: tuple[Engine, Engine]) -> None:
    host = np.zeros(64, np.uint8)
    with pytest.raises(TransferError, match=r"NIXL_ERR_\w+; is this host memory\? that is mem_type='DRAM'"):
        register(engines[0].agent, Layout([Region("k", host.ctypes.data, 8, 8)]))
    with pytest.raises(TransferError, match="has the agent a backend for FILE\\? it has UCX"):
        register(engines[0].agent, Layout([Region("k", 0, 8, 8, mem_type="FILE", device_id=1)]))
    with pytest.raises(GeometryError, match=r"region 'k': mem_type 'dram' is none that NIXL knows .*; is 'DRAM' meant"):
        register(engines[0].agent, Layout([Region("k", host.ctypes.data, 8, 8, mem_type="dram")]))
    with register(engines[0].agent, Layout([Region("k", host.ctypes.data, 8, 8, mem_type="cpu")])):
        pass  # NIXL's old name for it, which it still takes


# ----------------------------------------------------------------------------------------------------- mixed memory


class Mixed:
    """One agent as its own peer: cache "k" in DRAM (UCX), cache "f" in a file on the source side (POSIX)."""

    def __init__(self, fd: int, local: Any) -> None:
        self.name, self.local, self.fd = next(NAMES), local, fd
        self.agent = real_agent(self.name, "UCX", "POSIX")
        self.memory = [painted(N * L, seed) for seed in range(3)]
        self.file = painted(N * L, 3)
        os.pwrite(fd, self.file.tobytes(), 0)
        k_here, k_there, f_here = (buffer.ctypes.data for buffer in self.memory)
        # NIXL takes any backend that both sides have: so each memory has one.
        self.registered = [
            (self.agent.register_memory(descs, mem, backends=[backend]), backend)
            for descs, mem, backend in (
                ([(k_here, N * L, 0, ""), (k_there, N * L, 0, "")], "DRAM", "UCX"),
                ([(f_here, N * L, 0, "")], "DRAM", "POSIX"),
                ([(0, N * L, fd, "")], "FILE", "POSIX"),
            )
        ]
        here = Layout([Region("k", k_here, L, N, mem_type="DRAM"), Region("f", f_here, L, N, mem_type="DRAM")])
        there = Layout(
            [Region("k", k_there, L, N, mem_type="DRAM"), Region("f", 0, L, N, mem_type="FILE", device_id=fd)]
        )
        self.src, self.dst = (there, here) if local == "dst" else (here, there)
        self.plan = nixldesc.plan(self.dst, {0: self.src})

    def blocks(self, where: str) -> Any:
        """Both caches of one side, [cache, block, byte]."""
        k_here, k_there, f_here = self.memory
        in_file = np.frombuffer(os.pread(self.fd, N * L, 0), np.uint8)
        sides = {"here": (k_here, f_here), "there": (k_there, in_file)}
        return np.stack([buffer.reshape(N, L) for buffer in sides[where]])

    def close(self) -> None:
        for descs, backend in reversed(self.registered):
            self.agent.deregister_memory(descs, backends=[backend])


@pytest.mark.parametrize("local", ["dst", "src"])
def test_mixed_memory_in_one_request(fds: Sequence[int], local: Any) -> None:
    mixed = Mixed(fds[0], local)
    assert len(mixed.plan[0]) == 2
    here, there = mixed.blocks("here"), mixed.blocks("there")
    with prepare(mixed.agent, mixed.name, mixed.plan, local=local) as peer:
        with peer.start([[1, 2, 7]], [[5, 3, 0]], notify=b"both") as transfer:
            assert transfer.wait(20) == "DONE"
            assert [mixed.agent.query_xfer_backend(handle) for handle in transfer.handles] == ["UCX", "POSIX"]
        assert notifs(mixed.agent, 1) == {mixed.name: [b"both"]}
    if local == "dst":
        here[:, [5, 3, 0]] = there[:, [1, 2, 7]]
    else:
        there[:, [5, 3, 0]] = here[:, [1, 2, 7]]
    assert (mixed.blocks("here") == here).all() and (mixed.blocks("there") == there).all()
    mixed.close()


def test_a_failure_of_one_memory_fails_the_request_and_nobody_is_told(fds: Sequence[int]) -> None:
    mixed = Mixed(fds[0], "dst")
    if not takes_strided(mixed.agent):
        pytest.skip("nixl < 1.5 reports a short file as DONE")
    with prepare(mixed.agent, mixed.name, mixed.plan, local="dst") as peer:
        os.ftruncate(fds[0], L)
        with peer.start([[1, 2]], [[5, 3]], notify=b"never") as transfer:
            assert transfer.wait(20) == "ERR"
            assert transfer.handles == ()
            assert f"peer {mixed.name!r}, READ FILE to DRAM: " in str(transfer.error)
            assert str(transfer.error).endswith("failed with NIXL_ERR_BACKEND")
        # The lists are good for the next request.
        os.pwrite(fds[0], mixed.file.tobytes(), 0)
        with peer.start([[1, 2]], [[5, 3]], notify=b"at last") as transfer:
            assert transfer.wait(20) == "DONE"
        assert notifs(mixed.agent, 1) == {mixed.name: [b"at last"]}
    mixed.close()


# ------------------------------------------------------------------------------------------------------- refusals


def test_what_nixl_does_not_know_is_refused_and_leaves_nothing(engines: tuple[Engine, Engine]) -> None:
    src, dst = engines
    good = DlistPair(src.regions((0, L, L, N)), dst.regions((0, L, L, N)))
    beyond = DlistPair(src.regions((0, L, L, N)), dst.regions(((1 << 16) - L, L, L, 2)))
    unknown = DlistPair(src.regions(((1 << 16) - L, L, L, 2)), dst.regions((0, L, L, N)))
    for pairs, peer_name, words in (
        ([good, beyond], src.name, f"peer {src.name!r}, list of 2 DRAM descriptors, local: prepare failed with "),
        ([good, unknown], src.name, f"peer {src.name!r}, list of 2 DRAM descriptors: prepare failed with "),
        ([good], "nobody", "peer 'nobody', list of 12 DRAM descriptors: prepare failed with "),
    ):
        with pytest.raises(TransferError) as caught:
            prepare(dst.agent, peer_name, pairs, local="dst")
        assert str(caught.value).partition("; ")[0] == words + "NIXL_ERR_NOT_FOUND"
        assert "registered that memory" in str(caught.value)
    # Nothing is left that would keep the memory registered.
    dst.registration.release()
    with pytest.raises(TransferError, match="register of 1 DRAM ranges failed with NIXL_ERR_BACKEND"):
        register(dst.agent, Layout([Region("r", 0, 8, 1, mem_type="DRAM")]), [(0, 8, 0, "DRAM")])


def test_memory_cannot_be_deregistered_under_prepared_lists(engines: tuple[Engine, Engine]) -> None:
    """NIXL lets it pass, and crashes the process when a transfer is made from the list."""
    src, dst = engines
    pair = DlistPair(src.regions((0, L, L, N)), dst.regions((0, L, L, N)))
    with prepare(dst.agent, src.name, pair, local="dst") as peer:
        with pytest.raises(TransferError, match="1 prepared lists still name this memory"):
            dst.registration.release()
        with peer.start([[1]], [[2]]) as transfer:
            assert transfer.wait(20) == "DONE"


def test_a_removed_peer_is_an_error_of_its_own(engines: tuple[Engine, Engine]) -> None:
    src, dst = engines
    if not takes_strided(dst.agent):
        pytest.skip("nixl < 1.5 makes transfers of stale lists")
    pair = DlistPair(src.regions((0, L, L, N)), dst.regions((0, L, L, N)))
    with prepare(dst.agent, src.name, pair, local="dst") as peer:
        dst.agent.remove_remote_agent(src.name)
        with pytest.raises(TransferError) as caught:
            peer.start([[1]], [[2]], notify=b"never")
        assert str(caught.value) == f"peer {src.name!r}, READ DRAM to DRAM: make failed with NIXL_ERR_NOT_FOUND"


def test_a_peer_that_died_is_reported_and_all_is_released() -> None:
    src, dst = Engine(N * L, 1), Engine(N * L, 2)
    dst.agent.add_remote_agent(src.agent.get_agent_metadata())
    pair = DlistPair(src.regions((0, L, L, N)), dst.regions((0, L, L, N)))
    peer = prepare(dst.agent, src.name, pair, local="dst")
    with peer.start([[1]], [[2]]) as transfer:
        assert transfer.wait(20) == "DONE"
    src.registration.release()
    name = src.name
    del src, transfer
    gc.collect()

    def is_noticed() -> bool:
        with peer.start([[1]], [[2]], notify=b"never") as transfer:
            return transfer.wait(20) == "ERR" and transfer.handles == ()

    assert until(is_noticed)
    with peer.start([[]], [[]], notify=b"never") as transfer:
        assert transfer.wait(20) == "ERR"
        assert str(transfer.error).startswith(f"peer {name!r}, READ: notify failed with NIXL_ERR_")
    peer.release()
    dst.registration.release()


def test_several_threads_over_an_agent_that_locks() -> None:
    api = pytest.importorskip("nixl._api", reason="nixl is not installed: no real transfers")
    strict = api.nixl_agent_config(sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
    src = Engine(N * L, 1)
    memory = painted(4 * N * L, 2)
    agent = api.nixl_agent(next(NAMES), strict)
    agent.add_remote_agent(src.agent.get_agent_metadata())
    remote = src.regions((0, L, L, N))
    failures: list[BaseException] = []

    def work(part: int) -> None:
        try:
            local = Layout([Region("r0", memory.ctypes.data + part * N * L, L, N, mem_type="DRAM")])
            for shift in range(10):
                ids = [(block + shift) % N for block in range(N)]
                with prepare(agent, src.name, DlistPair(remote, local), local="dst") as peer:
                    with peer.start([ids], [[*range(N)]]) as transfer:
                        assert transfer.wait(20) == "DONE"
                mine = memory[part * N * L : (part + 1) * N * L].reshape(N, L)
                assert (mine == src.buffer.reshape(N, L)[ids]).all()
        except BaseException as e:
            failures.append(e)

    whole = Layout([Region("r", memory.ctypes.data, memory.nbytes, 1, mem_type="DRAM")])
    with register(agent, whole):
        threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []
    src.registration.release()
