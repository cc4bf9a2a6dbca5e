"""Prefill on one vLLM engine, decode on another: do the tokens stay the same?    run.py MODELS OUT [WORD...]

Each case is one pair of engines (producer to consumer, TP size and tokens per block of each), run with vLLM's own
connector and with nixldesc's, over real NIXL. Five prompts, then the same with 45 tokens more, of which the consumer
has a prefix already (where vLLM caches any); 24 tokens each, greedy. What counts as right, prompt by prompt: the tokens
of vLLM's own pair; where that does not work, of its pair of equal blocks, as large as the producer's: it has computed
the same cache. WORDs choose suites by their names.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import engines
from engines import Engine, EngineError

# Lengths of which blocks of 32 and of 64 cache equally many tokens: what a producer computes again in the second round
# is not bit for bit what it has computed in the first, so the consumer must have the same of both.
LENGTHS = (90, 650, 64, 65, 31)
PROMPTS = [[(7 * i * i + 3 * i + 11 * j) % 1000 + 5 for i in range(n)] for j, n in enumerate(LENGTHS)]
ROUNDS = (PROMPTS, [prompt + [17, 18, 19] * 15 for prompt in PROMPTS])
TO_P = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
Side = tuple[int, int]  # TP size, tokens in a block (0: vLLM's choice)
MODULES = {"stock": None, "nixldesc": "fenced", "wrong": "wrong_by_one"}


@dataclass(frozen=True)
class Case:
    """One pair of engines. `stock`: what vLLM's own does; it may be "not run"."""

    src: Side
    dst: Side
    mode: Literal["pull", "push"] = "pull"
    stock: Literal["works", "other tokens", "refuses", "not run"] = "works"
    control: bool = False

    def __str__(self) -> str:
        (src_tp, src_block), (dst_tp, dst_block) = self.src, self.dst
        blocks = f", blocks of {src_block} to {dst_block}" if src_block else ""
        return f"{self.mode}, TP {src_tp} to {dst_tp}{blocks}"

    def runs(self) -> list[str]:
        stock = [] if self.stock == "not run" else ["stock"]
        return [*stock, "nixldesc", *(["wrong"] if self.control else [])]


@dataclass(frozen=True)
class Suite:
    """Cases of one model whose engines live at the same time."""

    model: str
    title: str
    dtype: str
    cases: tuple[Case, ...]
    llm: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model} {self.title}"


ONE_AT_A_TIME = {"max_num_seqs": 1}  # tokens do not depend on who else is in the batch


def _both_ways(mode: Literal["pull", "push"], block: int = 0) -> tuple[Case, ...]:
    return Case((2, block), (1, block), mode), Case((1, block), (2, block), mode)


SUITES = (
    Suite(
        "attention",
        "pull",
        "float32",
        (
            Case((1, 32), (1, 32), control=True),
            Case((1, 64), (1, 64)),
            Case((1, 32), (1, 64), stock="other tokens"),
            Case((1, 64), (1, 32), stock="refuses"),
        ),
    ),
    Suite(
        "attention",
        "push",
        "float32",
        (
            Case((1, 32), (1, 32), "push"),
            Case((1, 64), (1, 64), "push"),
            Case((1, 32), (1, 64), "push", "not run"),  # vLLM's P refuses, and D is not told: it waits
            Case((1, 64), (1, 32), "push", "not run"),
        ),
    ),
    Suite("attention", "TP", "float32", _both_ways("pull", 32)),
    Suite("attention", "TP push", "float32", _both_ways("push", 32)),
    Suite(
        "mla",
        "pull and push",
        "bfloat16",
        (
            Case((1, 32), (1, 32), control=True),
            Case((1, 64), (1, 64)),
            Case((1, 32), (1, 64), stock="other tokens"),
            Case((1, 64), (1, 32), stock="refuses"),
            Case((1, 32), (1, 32), "push"),
        ),
        ONE_AT_A_TIME,
    ),
    Suite("mla", "TP", "bfloat16", _both_ways("pull"), ONE_AT_A_TIME),
    Suite("mla", "TP push", "bfloat16", _both_ways("push"), ONE_AT_A_TIME),
    Suite(
        "hybrid",
        "pull and push",
        "bfloat16",
        (
            Case((1, 384), (1, 384), control=True),
            Case((1, 512), (1, 512)),
            Case((1, 384), (1, 512), stock="refuses"),
            Case((1, 512), (1, 384), stock="refuses"),
            Case((1, 384), (1, 384), "push"),
            Case((1, 384), (1, 512), "push", "not run"),
            Case((1, 512), (1, 384), "push", "not run"),
        ),
        ONE_AT_A_TIME,
    ),
    Suite("hybrid", "TP", "bfloat16", _both_ways("pull"), ONE_AT_A_TIME),
    Suite("hybrid", "TP push", "bfloat16", _both_ways("push"), ONE_AT_A_TIME),
    Suite(
        "one_head",
        "of a hybrid",
        "bfloat16",
        (
            Case((1, 1152), (1, 1152)),
            Case((1, 1152), (2, 1152)),
            Case((1, 1152), (2, 1152), "push", "other tokens"),
        ),
        ONE_AT_A_TIME,
    ),
)


@dataclass
class Outcome:
    """What one run of a case gave: tokens and the engines' own figures, or the words of a failure."""

    tokens: list[list[int]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    def equal(self, other: list[list[int]]) -> int:
        return sum(mine == theirs for mine, theirs in zip(self.tokens, other, strict=False))


class Bench:
    """The engines of one suite, which live at the same time."""

    def __init__(self, suite: Suite, models: Path, out: Path) -> None:
        self.suite, self.out, self.requests = suite, out, 0
        self.base = {
            "model": str(models / suite.model),
            "dtype": suite.dtype,
            "skip_tokenizer_init": True,
            "max_model_len": 1024,
            "enforce_eager": True,
            "seed": 0,
            "kv_cache_memory_bytes": 64 << 20,
            "max_num_seqs": 8,
            "disable_log_stats": False,
            **suite.llm,
        }
        self.engines: dict[tuple[Any, ...], Engine] = {}
        self.single = self._engine("single", None, suite.cases[0].dst[1], 1, "pull")
        self.single.ask("forget")  # up: vLLM has looked at the model's class, in a process of its own, and remembers it
        for case in suite.cases:
            for who in case.runs():
                self.pair(case, who)

    def _engine(self, role: str, module: str | None, block: int, tp: int, mode: str) -> Engine:
        key = (role, module, block, tp, mode)
        if key not in self.engines:
            llm = {**self.base, "tensor_parallel_size": tp, **({"block_size": block} if block else {})}
            if role != "single":
                llm["kv_transfer_config"] = {
                    "kv_connector": {"pull": "NixlConnector", "push": "NixlPushConnector"}[mode],
                    "kv_role": role,
                    "kv_buffer_device": "cpu",
                    **({"kv_connector_module_path": module} if module else {}),
                }
            name = f"{self.suite.name}-{role}-{module or 'stock'}-{tp}x{block}-{mode}".replace(" ", "-")
            self.engines[key] = Engine(name, llm, self.out / f"{name}.log")
        return self.engines[key]

    def pair(self, case: Case, who: str) -> tuple[Engine, Engine]:
        module = MODULES[who]
        producer = "fenced" if module else None  # the control is wrong on one side only
        (src_tp, src_block), (dst_tp, dst_block) = case.src, case.dst
        return (
            self._engine("kv_producer", producer, src_block, src_tp, case.mode),
            self._engine("kv_consumer", module, dst_block, dst_tp, case.mode),
        )

    def alike(self, case: Case) -> bool:
        """Whether blocks of two sizes were asked for and vLLM made them of one: its MLA does, on a CPU without AMX."""
        if case.src[1] == case.dst[1]:
            return False
        return len({engine.ask("blocks")["tokens"] for engine in self.pair(case, "nixldesc")}) == 1

    def alone(self) -> list[list[int]]:
        tokens = []
        for prompts in ROUNDS:
            tokens += self.single.ask("generate", prompts=prompts, max_tokens=24)["tokens"]
        return tokens

    def run(self, case: Case, who: str) -> Outcome:
        src, dst = self.pair(case, who)
        outcome = Outcome()
        began = time.time()
        try:
            for engine in (src, dst):
                engine.ask("forget")  # what an earlier case has left in its prefix cache
            before = self._figures(src, dst)
            for prompts in ROUNDS:
                self.requests += len(prompts)  # a router gives both sides one id; a push is matched by it
                words = {"prompts": prompts, "first": self.requests}
                filled = src.ask("generate", **words, max_tokens=1, kv=[TO_P] * len(prompts))
                answer = dst.ask("generate", **words, max_tokens=24, kv=filled["kv"])
                if {"length"} != set(answer["finish"]):
                    raise EngineError(f"requests ended with {answer['finish']}")
                outcome.tokens += answer["tokens"]
            after = self._figures(src, dst)
            outcome.figures = {key: int(after[key] - before[key]) for key in after}
        except EngineError as error:
            outcome.failure = str(error)
        outcome.figures["seconds"] = round(time.time() - began, 1)
        return outcome

    def _figures(self, src: Engine, dst: Engine) -> dict[str, float]:
        src_says, dst_says = (engine.ask("metrics")["metrics"] for engine in (src, dst))
        return {
            "bytes": sum(says["nixl_bytes_transferred"] for says in (src_says, dst_says)),
            "operations": sum(says["nixl_num_descriptors"] for says in (src_says, dst_says)),
            "external hits": dst_says["external_prefix_cache_hits"],
            "failures": sum(says["nixl_num_failed_transfers"] for says in (src_says, dst_says)),
        }

    def stop(self) -> None:
        for engine in self.engines.values():
            engine.hang_up()
        for engine in self.engines.values():
            engine.stop()


def verdicts(case: Case, ran: dict[str, Outcome], alone: list[list[int]], expected: list[list[int]]) -> Iterator[str]:
    """Yield what is wrong with a case."""
    stock, ours, count = ran.get("stock", Outcome()), ran["nixldesc"], len(alone)
    if case.stock == "works" and (stock.failure or len(stock.tokens) != count):
        yield f"vLLM's own pair did not work: {stock.failure}"
    elif case.stock == "other tokens" and (stock.failure or stock.equal(expected) == count):
        yield f"vLLM's own pair gave {stock.equal(expected)} of {count} right; known not to give all: {stock.failure}"
    elif case.stock == "refuses" and not stock.failure:
        yield f"vLLM's own pair did not refuse; {stock.equal(expected)} of {count} right"
    if ours.failure or ours.equal(expected) != count:
        yield f"nixldesc: {ours.equal(expected)} of {count} right {ours.failure}"
    if ours.figures.get("failures"):
        yield f"nixldesc: {ours.figures['failures']} failed transfers"
    if case.stock == "works" and ours.figures.get("external hits") != stock.figures.get("external hits"):
        yield f"external hits: stock {stock.figures}, nixldesc {ours.figures}"
    if not ours.figures.get("bytes"):
        yield "nixldesc: NIXL moved nothing"
    if "wrong" in ran and (ran["wrong"].failure or ran["wrong"].equal(expected)):
        yield f"the control, one block off, gave {ran['wrong'].equal(expected)} of {count} right {ran['wrong'].failure}"


def line(who: str, outcome: Outcome, alone: list[list[int]], expected: list[list[int]]) -> str:
    if outcome.failure:
        return f"    {who:9} {outcome.failure}"
    counts = f"{outcome.equal(alone)} of {len(alone)} as a single engine, {outcome.equal(expected)} as vLLM's own pair"
    return f"    {who:9} {counts}; {outcome.figures}"


def run_suite(suite: Suite, models: Path, out: Path) -> list[dict[str, Any]]:
    print(f"{suite.name} ({suite.dtype})", flush=True)
    bench, report = Bench(suite, models, out), []
    try:
        alone, worked = bench.alone(), {}
        for case in suite.cases:
            if bench.alike(case):
                print(f"  not run {case}: vLLM has blocks of one size here")
                continue
            ran = {who: bench.run(case, who) for who in case.runs()}
            if case.stock == "works":
                worked[case.src] = ran["stock"].tokens
            expected = worked[case.src]
            wrong = list(verdicts(case, ran, alone, expected))
            print(f"  {'FAILED' if wrong else 'ok':6} {case}", *(f"    {words}" for words in wrong), sep="\n")
            print(*(line(who, outcome, alone, expected) for who, outcome in ran.items()), sep="\n", flush=True)
            report.append(
                {
                    "suite": suite.name,
                    "case": str(case),
                    "wrong": wrong,
                    "prompts": len(alone),
                    "runs": {
                        who: {
                            "failure": outcome.failure,
                            "as a single engine": outcome.equal(alone),
                            "as vLLM's own pair": outcome.equal(expected),
                            **outcome.figures,
                        }
                        for who, outcome in ran.items()
                    },
                }
            )
    finally:
        bench.stop()
    return report


def main() -> None:
    models, out, *chosen = sys.argv[1:]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    began, report = time.time(), []
    print(f"vLLM imported in {engines.import_vllm():.0f} s", flush=True)
    for suite in SUITES:
        if not chosen or any(word in suite.name for word in chosen):
            try:
                report += run_suite(suite, Path(models), folder)
            except EngineError as error:
                print(f"  FAILED {error}", flush=True)
                report.append({"suite": suite.name, "wrong": [str(error)]})
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    failed = sum(bool(case["wrong"]) for case in report)
    print(f"{len(report) - failed} of {len(report)} cases as they should be, in {time.time() - began:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
