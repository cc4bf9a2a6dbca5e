"""The demo from its first line to its exit code."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

from nixldesc._cli.demo.decode import decode
from nixldesc._cli.demo.model import DECODE, MODEL, PREFILL, Engine
from nixldesc._cli.demo.prefill import prefill
from nixldesc._cli.demo.rank import why_no_nixl
from nixldesc._cli.demo.report import report
from nixldesc._cli.demo.watch import DemoError, run_engines
from nixldesc._cli.screen import Screen, say

__all__ = ["demo"]


def demo(screen: Screen) -> int:
    """Move the requests of the model, show the figures, and return 0 if every byte was right, else 1."""
    why_not = why_no_nixl()
    if why_not:
        say(
            screen,
            f"NIXL is not available here ({why_not}), so the engines are two threads and the LoopbackAgent copies the "
            "bytes; pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1 brings the real one.",
        )
    else:
        say(screen, f"Two engines in two processes, NIXL {version('nixl')} over UCX, host memory.")
    say(
        screen,
        f"A hybrid model: {MODEL.attention_layers} attention layers of {MODEL.kv_heads} KV heads (HND), "
        f"{MODEL.latent_layers} latent (MLA), {MODEL.state_layers} state (Mamba2).",
    )
    for engine in (PREFILL, DECODE):
        say(screen, _engine_words(engine))
    began = time.perf_counter()
    kind = "loopback" if why_not else "nixl"
    try:
        result = run_engines(screen, kind, {"prefill": prefill, "decode": decode}, processes=not why_not)
    except DemoError as error:
        sys.stderr.write(f"nixldesc demo: {error}\n")
        return 1
    right = report(screen, result)
    screen.line(f"All of it took {time.perf_counter() - began:.1f} s.")
    return 0 if right else 1


def _engine_words(engine: Engine) -> str:
    attention, latent, _ = engine.block_tokens
    a, b, c = engine.groups
    return (
        f"{engine.name:<7} TP {engine.tp_size}, blocks of {attention} (attention) and {latent} (latent) tokens, "
        f"groups: attention {a}, latent {b}, state {c}."
    )
