"""The demo: that it moves what it says, that it sees a wrong byte, and that it ends whatever its engines do."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from nixldesc import DlistPair
from nixldesc._cli.demo import decode as decode_module
from nixldesc._cli.demo import prefill as prefill_module
from nixldesc._cli.demo import rank as rank_module
from nixldesc._cli.demo import run as run_module
from nixldesc._cli.demo import watch
from nixldesc._cli.demo.model import DECODE, KINDS, PREFILL, REQUESTS, Engine, draw_tables
from nixldesc._cli.demo.truth import content, write_request
from nixldesc._cli.demo.wire import Channel, Gone
from nixldesc._cli.main import main
from nixldesc._cli.screen import Screen

Tell = Callable[[str], None]


@pytest.fixture
def without_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "why_no_nixl", lambda: "as the test says")


def loopback_figures() -> dict[str, Any]:
    mains = {"prefill": prefill_module.prefill, "decode": decode_module.decode}
    return watch.run_engines(Screen(io.StringIO(), None), "loopback", mains, processes=False)


# ------------------------------------------------------------------------------------------------ what is to be moved


@pytest.mark.parametrize("engine", [PREFILL, DECODE])
def test_block_tables_are_those_of_a_long_running_engine(engine: Engine) -> None:
    tables = draw_tables(engine)
    for group in range(3 if engine is DECODE else 2):
        used = [block for of_request in tables for block in of_request[group]]
        assert len(set(used)) == len(used)
        steps = {b - a for of_request in tables for a, b in itertools.pairwise(of_request[group])}
        # Runs up, runs down, and jumps between them; of a state there is one block.
        assert (steps >= {1, -1} and len(steps) > 2) or (group == engine.groups[2] and not steps)
    for request, of_request in zip(REQUESTS, tables, strict=True):
        for tokens, group in zip(engine.block_tokens, engine.groups, strict=True):
            assert len(of_request[group]) == (-(-request.tokens // tokens) if tokens else 1)


def test_the_two_engines_are_as_different_as_the_story_says() -> None:
    assert (PREFILL.tp_size, DECODE.tp_size) == (4, 2)
    assert PREFILL.block_tokens[0] != DECODE.block_tokens[0]
    assert len(set(PREFILL.groups)) == 2 and len(set(DECODE.groups)) == 3
    assert {request.how for request in REQUESTS} == {"READ", "WRITE"}
    assert any(request.cached for request in REQUESTS if request.how == "READ")
    # A cached prefix ends where blocks end, on both sides.
    assert all(request.cached % tokens == 0 for request in REQUESTS for tokens in (16, 32))


def test_content_depends_on_everything() -> None:
    whole = content("l0 K", 1, range(6), range(7), range(64))
    others = [content("l0 V", 1, range(6), range(7), range(64)), content("l0 K", 2, range(6), range(7), range(64))]
    moved = [np.roll(whole, 1, axis) for axis in range(3)]
    for other in others + moved:
        assert 0.95 < (whole != other).mean() < 1.0  # one in 256 is equal by chance
    part = content("l0 K", 1, range(2, 5), range(3, 6), range(10, 20))
    np.testing.assert_array_equal(whole[2:5, 3:6, 10:20], part)


@pytest.mark.parametrize("engine", [PREFILL, DECODE])
def test_the_truth_fills_what_the_layout_says_is_there(engine: Engine) -> None:
    """The NumPy views and the sections are written down apart; the bytes of a request's blocks are the same."""
    request = REQUESTS[3]
    table = draw_tables(engine)[request.number]
    layout = engine.layout(0, 0)
    last = layout.regions[-1]
    size = last.base_addr + last.num_blocks * last.block_stride
    touched = np.zeros(size, dtype=bool)
    for untouched in (0, 255):  # whatever a byte must be, it differs from one of the two
        memory = np.full(size, untouched, np.uint8)
        write_request(memory, engine, 0, request, table, 0, len(table[engine.groups[0]]) * engine.block_tokens[0])
        touched |= memory != untouched
    for region in layout.regions:
        (group,) = region.groups or ()
        for block in range(region.num_blocks):
            at = region.base_addr + block * region.block_stride
            assert touched[at : at + region.block_len].all() == (block in table[group])
            assert touched[at : at + region.block_stride].sum() == (block in table[group]) * region.block_len


# --------------------------------------------------------------------------------------------------- the whole way


@pytest.mark.usefixtures("without_nixl")
def test_the_demo_runs_without_nixl_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0] == (
        "NIXL is not available here (as the test says), so the engines are two threads and the LoopbackAgent copies "
        "the bytes; pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1 brings the real one."
    )
    assert "... decode: request 2: READ in merge order\n" in out
    assert "... prefill: pushing request 5\n" in out
    assert "\nEvery byte is right.\n" in out
    assert "decode 1 reads prefill 3" in out and "prefill 0 writes decode 0" in out
    assert len([line for line in out.splitlines() if line.startswith(("attention ", "latent ", "state "))]) == 3


def test_the_figures_are_those_of_the_model() -> None:
    """Bytes and ids counted from the model's shapes: 3 attention layers of 2 x 8 heads x 128 bytes, and so on."""
    result = loopback_figures()
    assert result["wrong"] == []
    state = 2 * ((512 + 64 + 64) * 3 * 2 + 16 * 32 * 64 * 4)
    for request, facts in zip(REQUESTS, result["requests"], strict=True):
        moved = -(-request.tokens // 16) * 16 - request.cached
        nbytes = moved * (3 * 2 * 8 * 128 + 2 * 6 * 576) + state  # the latent cache goes to each of two ranks
        assert (facts["given"]["nbytes"], facts["merge"]["nbytes"]) == (nbytes, nbytes)
        # Ids of both sides: a run for each head, K and V, 16 tokens and layer; a latent block for each rank and layer;
        # and of the state x, B, C and SSM of two layers from each of four ranks.
        runs = moved // 16 * (3 * 2 * 8 + 2 * 6) + 2 * 4 * 4
        assert facts["ids"] == 2 * runs
        assert facts["merge"]["ops"] <= facts["given"]["ops"] <= runs
    by_kind = {facts["kind"]: facts for facts in result["kinds"]}
    assert tuple(by_kind) == KINDS
    for order in ("given", "merge"):
        assert sum(facts[order] for facts in by_kind.values()) == sum(r[order]["ops"] for r in result["requests"])
    assert by_kind["latent"]["merge"] < by_kind["latent"]["given"]
    # Five reads, four peers that read, two orders, three times each.
    assert result["heard"] == 5 * 4 * 2 * 3
    assert [peer["posts"] for peer in result["peers"]] == ["READ"] * 4 + ["WRITE"] * 4


@pytest.mark.skipif(find_spec("nixl") is None, reason="nixl is not installed")
def test_the_demo_runs_over_nixl() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nixldesc", "demo"], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Two engines in two processes, NIXL " in done.stdout
    assert "\nEvery byte is right.\n" in done.stdout


# ------------------------------------------------------------------------------------------------ what goes wrong


def run_spoiled(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["demo"]) == 1
    out, err = capsys.readouterr()
    assert "Every byte is right" not in out
    assert err == ""
    return [line for line in out.splitlines() if line.startswith("WRONG: ")]


@pytest.mark.usefixtures("without_nixl")
def test_one_wrong_byte_in_a_source_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefill rank 2 has one byte of request 1 wrong: K of its second head (head 5), layer 1, token 20, byte 7."""

    def write(memory: Any, engine: Engine, tp_rank: int, request: Any, tables: Any, first: int, last: int) -> None:
        write_request(memory, engine, tp_rank, request, tables, first, last)
        if (tp_rank, request.number) == (2, 1):
            pages = memory[320 * 8192 :][: 320 * 8192].reshape(320, 2, 2, 16, 128)
            pages[tables[0][1], 0, 1, 4, 7] ^= 0xFF

    monkeypatch.setattr(prefill_module, "write_request", write)
    block = draw_tables(DECODE)[1][1][0]
    # Decode rank 1 holds heads 4 to 7 in blocks of 32 tokens: [K, V][4 heads][32][128].
    byte = (1 * 32 + 20) * 128 + 7
    lines = run_spoiled(capsys)
    assert [line.partition(": 0x")[0] for line in lines] == [
        f"WRONG: {order} order, decode rank 1: 1 byte wrong; the first is byte {byte:,} of block {block} of region "
        "'attention.1'"
        for order in ("given", "merge")
    ]


@pytest.mark.usefixtures("without_nixl")
def test_a_byte_that_nobody_was_to_write_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pull = decode_module._Decode.pull

    def spoil(engine: Any, request: Any, order: Any) -> Any:
        engine.ranks[0].memory[-1] = 0x99  # padding of the last state block
        return pull(engine, request, order)

    monkeypatch.setattr(decode_module._Decode, "pull", spoil)
    lines = run_spoiled(capsys)
    assert len(lines) == 2
    assert all(line.endswith("of block 15 of region 'state.1': 0x99, must be 0x55") for line in lines)


@pytest.mark.usefixtures("without_nixl")
def test_the_second_round_is_not_taken_for_granted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that moves nothing in merge order must not be saved by what the given order has left behind."""
    pull = decode_module._Decode.pull

    def move_nothing(engine: Any, request: Any, order: Any) -> Any:
        before = [rank.memory.copy() for rank in engine.ranks]
        moved = pull(engine, request, order)
        if order == "merge" and request.number == 3:
            for rank, memory in zip(engine.ranks, before, strict=True):
                rank.memory[:] = memory
        return moved

    monkeypatch.setattr(decode_module._Decode, "pull", move_nothing)
    lines = run_spoiled(capsys)
    assert [line.partition(":")[2].partition(":")[0] for line in lines] == [
        " merge order, decode rank 0",
        " merge order, decode rank 1",
    ]


@pytest.mark.usefixtures("without_nixl")
def test_a_write_into_prefill_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    serve = prefill_module._serve

    def spoil(ranks: Any, *more: Any) -> int:
        ranks[3].memory[0] ^= 1
        return serve(ranks, *more)

    monkeypatch.setattr(prefill_module, "_serve", spoil)
    assert run_spoiled(capsys) == ["WRONG: prefill's memory has changed, and nobody was to write there"]


@pytest.mark.usefixtures("without_nixl")
def test_a_wrong_count_of_operations_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DlistPair, "merged_ops", lambda *_: 1)
    lines = run_spoiled(capsys)
    assert [line.split(" wire")[0].rpartition(" ")[0] for line in lines] == [
        "WRONG: given order: NIXL counts",
        "WRONG: merge order: NIXL counts",
    ]


@pytest.mark.usefixtures("without_nixl")
@pytest.mark.parametrize("module", [prefill_module, decode_module])
def test_an_engine_that_fails_is_named(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever engine it is; the other one, which then finds nobody at the socket, is not what is reported."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(module, "prepare_peers", fail)
    name = module.__name__.rpartition(".")[2]
    assert main(["demo"]) == 1
    out, err = capsys.readouterr()
    assert "Every byte is right" not in out
    assert err.startswith(f"nixldesc demo: {name}: RuntimeError: no memory left (in fail, line ")
    assert "(while planning and preparing the pu" in err
    assert err.count("\n") == 1


def test_why_there_is_no_nixl_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    assert "nixl" in rank_module.why_no_nixl()


# --------------------------------------------------------------------------------------- engines in real processes


def ends_well(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    tell("nothing much")
    channel.send({"step": "hello"})
    return channel.receive("hello") | {"kind": kind}


def exits(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    tell("leaving")
    os._exit(3)


def is_killed(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    tell("crashing")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def raises(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    tell("trying")
    raise ValueError("a bad idea")


def is_silent(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    tell("sleeping")
    time.sleep(600)
    return {}


ENDS = {
    exits: "bad: its process ended with exit code 3 (while leaving)",
    is_killed: "bad: its process was ended by signal 9 (while crashing)",
    raises: "bad: ValueError: a bad idea (in raises, line ",
    is_silent: "nothing happens for 3 s: ",
}


def run_two(bad: Any, *, first: bool, processes: bool = True) -> dict[str, Any]:
    mains = {"bad": bad, "good": ends_well} if first else {"good": ends_well, "bad": bad}
    return watch.run_engines(Screen(io.StringIO(), None), "some", mains, processes=processes)


def test_two_processes_talk_and_end() -> None:
    assert run_two(ends_well, first=True) == {"step": "hello", "kind": "some"}


@pytest.mark.parametrize("bad", ENDS)
def test_however_a_process_ends_it_is_reported(bad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if bad is is_silent:
        monkeypatch.setattr(watch, "SILENCE", 3.0)
    with pytest.raises(watch.DemoError) as caught:
        run_two(bad, first=False)
    assert str(caught.value).startswith(ENDS[bad])


def test_a_thread_that_fails_is_reported() -> None:
    words = r"^bad: ValueError: a bad idea \(in raises, line \d+\) \(while trying\)$"
    with pytest.raises(watch.DemoError, match=words):
        run_two(raises, first=True, processes=False)


def holds_and_needs() -> dict[str, Any]:
    """Return an engine that fails and then lets go of what its peer needs, and that peer; of each call its own."""
    gone = threading.Event()

    class Held:
        """The end of it is heard."""

        def __del__(self) -> None:
            gone.set()
            time.sleep(1.0)  # the thread that lets go of it is slow, as on a busy machine

    def fails_and_lets_go(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
        held = Held()
        raise RuntimeError(f"the reason, holding {type(held).__name__}")

    def needs_what_is_held(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
        assert gone.wait(20)
        raise RuntimeError("agent 'bad' does not live in this process")

    return {"bad": fails_and_lets_go, "good": needs_what_is_held}


@pytest.mark.parametrize("order", [["bad", "good"], ["good", "bad"]])
def test_who_fails_because_the_others_agents_went_is_not_believed(order: list[str]) -> None:
    """The engine that failed was named only after its agents had gone: under load the other one spoke first."""
    mains = holds_and_needs()
    with pytest.raises(watch.DemoError, match=r"^bad: RuntimeError: the reason"):
        watch.run_engines(Screen(io.StringIO(), None), "some", {name: mains[name] for name in order}, processes=False)


def leaves_and_raises(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    channel.close()
    time.sleep(1.0)  # the other one complains first
    raise ValueError("the reason")


def leaves(kind: str, channel: Channel, tell: Tell) -> dict[str, Any]:
    channel.close()
    return {}


def test_who_lost_its_peer_is_believed_last() -> None:
    with pytest.raises(watch.DemoError, match=r"^bad: ValueError: the reason"):
        run_two(leaves_and_raises, first=False, processes=False)
    with pytest.raises(watch.DemoError, match=r"^good: the other engine has gone"):
        run_two(leaves, first=False, processes=False)


def test_a_channel_says_when_the_other_end_has_gone() -> None:
    mine, yours = map(Channel, Pipe())
    yours.send({"step": "hello", "blob": "x" * 100_000})
    yours.close()
    assert mine.receive("hello")["blob"] == "x" * 100_000
    with pytest.raises(Gone, match="the other engine has gone"):
        mine.receive()
    with pytest.raises(Gone, match="the other engine has gone"):
        mine.send({"step": "hello"})
    mine.close()


def test_a_channel_refuses_what_is_not_due() -> None:
    mine, yours = map(Channel, Pipe())
    yours.send({"step": "bye"})
    with pytest.raises(ValueError, match="the other engine says 'bye', but 'hello' is due"):
        mine.receive("hello")
    mine.close()
    yours.close()
