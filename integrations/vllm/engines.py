"""Real vLLM engines on a CPU, many from one import: the parent imports vLLM once and forks every engine.

An engine is a process (with TP 2: a front and two workers, forked as well) that answers JSON lines on a socket.
"""

import contextlib
import json
import multiprocessing
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 900

ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in the process that we fork
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SSM_CONV_STATE_LAYOUT": "DS",  # a single engine's states as the connectors' engines keep them
    "VLLM_TARGET_DEVICE": "cpu",
}


def import_vllm() -> float:
    """Import what every engine needs, before the first fork; return the seconds it took."""
    began = time.time()
    os.environ.update(ENVIRONMENT)
    import vllm
    import vllm.distributed.device_communicators.cpu_communicator as communicator
    import vllm.model_executor.model_loader.default_loader
    import vllm.v1.attention.backends.cpu_attn
    import vllm.v1.engine.core
    import vllm.v1.executor.multiproc_executor as executor
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker  # noqa: F401

    # Workers of TP 2 are forked too: a spawned one would import everything again.
    executor.get_mp_context = lambda: multiprocessing.get_context("fork")
    # vLLM's all-reduce through shared memory spins without yielding: on two busy cores TP 2 never ends. Gloo sleeps.
    communicator.CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    return time.time() - began


def free_ports() -> Iterator[int]:
    """Yield ports below those that systems give to whoever asks for any; another run begins at others."""
    for port in range(20_000 + os.getpid() * 64 % 12_000, 32_768):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


_PORTS = free_ports()


class EngineError(RuntimeError):
    """The engine has ended, or said that a request failed."""


class Engine:
    """One vLLM engine in a forked process."""

    def __init__(self, name: str, llm: dict[str, Any], log: Path) -> None:
        self.name, self.log, self._up = name, log, False
        here, there = socket.socketpair()
        here.settimeout(PATIENCE_SECONDS)
        port = next(_PORTS)
        self.pid = os.fork()
        if self.pid == 0:
            here.close()
            _child(llm, there, log, port)
        there.close()
        self._talk, self._lines = here, here.makefile("rw")

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """Send a command and return the answer; the first waits until the engine is up."""
        if not self._up:
            self._answer()
            self._up = True
        self._lines.write(json.dumps({"do": do, **words}) + "\n")
        self._lines.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise EngineError(f"{self.name} has said nothing for {PATIENCE_SECONDS} s: see {self.log}") from None
        if not line:
            raise EngineError(f"{self.name} has ended: see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer

    def hang_up(self) -> None:
        """Tell it to end; closing would not, for engines that were forked later hold this end too."""
        with contextlib.suppress(OSError):  # it has ended
            self._talk.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Wait for its end; end it if that takes long, with its children: a process group of its own."""
        self._lines.close()
        self._talk.close()
        for _ in range(100):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                return
            time.sleep(0.1)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _child(llm: dict[str, Any], lines: socket.socket, log: Path, port: int) -> None:
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
    try:
        _serve(llm, lines)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _serve(llm: dict[str, Any], lines: socket.socket) -> None:
    from vllm import LLM

    began = time.time()
    engine = LLM(**llm)
    with lines.makefile("rw") as talk:
        talk.write(json.dumps({"up": round(time.time() - began, 1)}) + "\n")
        talk.flush()
        while line := _next_line(engine, lines, talk):
            words = json.loads(line)
            try:
                answer = globals()[f"_{words.pop('do')}"](engine, **words)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            talk.write(json.dumps(answer) + "\n")
            talk.flush()


def _next_line(engine: Any, lines: socket.socket, talk: Any) -> str:
    """Wait for a command; meanwhile a producer has pushes to begin and leases to end, which happens in steps."""
    core = engine.llm_engine.engine_core.engine_core
    while not select.select([lines], [], [], 0.01 if core.scheduler.has_requests() else None)[0]:
        engine.llm_engine.step()
    return talk.readline()


def _generate(
    engine: Any, prompts: list[list[int]], max_tokens: int, kv: list[Any] | None = None, first: int = 0
) -> dict[str, Any]:
    from vllm import SamplingParams

    engine.request_counter.counter = first
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": words} if words else None,
        )
        for words in kv or [None] * len(prompts)
    ]
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "finish": [output.outputs[0].finish_reason for output in outputs],
        "kv": [output.kv_transfer_params for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
    }


def _forget(engine: Any) -> dict[str, Any]:
    """Empty the prefix cache, which a block that is held (not yet fetched, say) prevents."""
    core = engine.llm_engine.engine_core.engine_core
    began = time.time()
    while not engine.reset_prefix_cache():
        if time.time() - began > 60:
            raise RuntimeError("the prefix cache cannot be emptied: blocks are held")
        if core.scheduler.has_requests():
            engine.llm_engine.step()
        time.sleep(0.01)
    return {}


def _blocks(engine: Any) -> dict[str, Any]:
    """Tokens in a block, as vLLM has it in the end: a backend may insist on its own."""
    return {"tokens": engine.llm_engine.vllm_config.cache_config.block_size}


def _metrics(engine: Any) -> dict[str, Any]:
    found = {
        metric.name.removeprefix("vllm:"): metric.value if hasattr(metric, "value") else metric.sum
        for metric in engine.get_metrics()
        if "nixl" in metric.name or "external_prefix" in metric.name
    }
    return {"metrics": found, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}
