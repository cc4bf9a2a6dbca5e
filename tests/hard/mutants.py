"""Plants bugs of one line, one at a time, and runs the tests that should notice: a survivor fails it.

    python tests/hard/mutants.py [COUNT [SEED [WORD]]]      COUNT of them (default 200), in modules whose path has WORD

Bugs are drawn evenly over all modules and kernels: another comparison, another operator, a number one too large, a
check left out, `and` for `or`, `min` for `max`. Modules are changed in a copy of the package under build/mutants, in
which a test process forks off one that has pytest but not yet the library, so that a bug costs the tests and little
else. Each bug in a kernel costs a build. A test that never ends or eats all memory has noticed, too.

A survivor that nothing could notice is listed in `tests/hard/mutants_listed.txt`, with the reason. The seed is printed.
"""

from __future__ import annotations

import ast
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
LISTED = Path(__file__).with_name("mutants_listed.txt")
#: Of all bugs, one in so many is in a kernel (as long as kernels have as many places).
KERNEL_SHARE = 8

#: Which tests should notice, quickest first: by the longest beginning of the module's path that is here.
TESTS: dict[str, str] = {
    "_check.py": "memory/test_words.py memory/test_marks_of_layouts.py request/test_words_requests.py "
    "request/test_hostile_out.py planning/test_words_plans.py",
    "_memory.py": "planning/test_known.py",
    "errors.py": "memory/test_words.py",
    "kernels": "memory/test_plain_data.py memory/test_marks_of_layouts.py request/test_marks_of_requests.py "
    "request/test_words_requests.py request/test_words_pairs.py "
    "request/test_positions.py "
    "memory/test_layout_oracle.py request/test_hostile.py request/test_hostile_out.py request/test_hostile_code.py "
    "request/test_whole_requests.py request/test_pair_properties.py planning/test_cases.py "
    "testing/test_painted_kinds.py",
    "memory": "memory/test_words.py memory/test_marks_of_layouts.py memory/test_words_arrays.py "
    "request/test_words_requests.py "
    "memory/test_mesh_ranges.py memory/test_segments.py "
    "memory/test_layout_oracle.py memory/test_arrays.py planning/test_words_plans.py planning/test_once_wrong.py "
    "planning/test_cases.py house/test_pickle.py house/test_layout_examples.py memory/test_stranger_objects.py "
    "memory/test_stranger.py",
    "planning": "planning/test_meeting.py planning/test_marks_of_plans.py planning/test_bind.py "
    "planning/test_limits_and_costs.py "
    "planning/test_words_plans.py planning/test_once_wrong.py "
    "planning/test_source_ranks_cp.py planning/test_plan_desc_ids.py planning/test_known.py planning/test_boxes.py "
    "planning/test_many_segments.py planning/test_shared_tables.py request/test_whole_requests.py "
    "planning/test_cases_2.py planning/test_cases.py request/test_positions.py planning/test_costs_of_strangers.py",
    "request": "request/test_words_requests.py request/test_marks_of_requests.py "
    "request/test_words_pairs.py request/test_positions.py "
    "request/test_whole_requests.py request/test_forgotten_groups.py request/test_hostile.py "
    "request/test_hostile_out.py request/test_pair_properties.py planning/test_cases.py "
    "planning/test_once_wrong.py house/test_pickle.py testing/test_painted_kinds.py",
    "adapter": "adapter/test_marks_of_adapter.py adapter/test_adapter.py adapter/test_adapter_ids.py "
    "adapter/test_adapter_lists.py adapter/test_adapter_failures.py adapter/test_adapter_state.py "
    "adapter/test_adapter_release.py adapter/test_adapter_doubt.py adapter/test_adapter_leaving.py "
    "adapter/test_adapter_options.py adapter/test_adapter_sources.py adapter/test_adapter_async.py "
    "adapter/test_adapter_signals.py testing/test_conformance.py",
    "testing": "testing/test_painted_oracle.py testing/test_painted.py testing/test_loopback.py "
    "testing/test_loopback_refusals.py testing/test_conformance.py testing/test_strategies.py "
    "testing/test_painted_kinds.py planning/test_cases.py",
    "_cli": "_cli/test_cli.py _cli/test_cli_check.py",
}
#: The demo is two processes that move gigabytes: it has `make demo` and its own tests.
SKIPPED = ("__init__.py", "_version.py", "__main__.py", "_cli/demo")


class Bug(NamedTuple):
    """A line of a file, as it is and as it would be."""

    path: str
    line: int
    was: str
    now: str

    def words(self) -> str:
        return f"{self.path}:{self.line}: {self.was.strip()}  ->  {self.now.strip()}"

    def key(self) -> tuple[str, str, str]:
        """What it is listed by: line numbers change."""
        return self.path, self.was.strip(), self.now.strip()


def tests_of(path: str) -> list[str]:
    """The tests that should notice, and the module's own examples."""
    begin = max((key for key in TESTS if path.startswith(key)), key=len)
    files = [f"tests/{name}" for name in TESTS[begin].split()]
    own = [] if path.endswith((".pyx", ".pxi")) else ["--pyargs", "nixldesc." + path[:-3].replace("/", ".")]
    return [*files, *own]


# ------------------------------------------------------------------------------------------------------ planting

_COMPARED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
_COMPARED |= {ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.In: ("in", "not in")}
_OPERATED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*")}
_OPERATED |= {ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>")}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}


class _Planter:
    """Every bug that can be planted in a module: each node of its tree may be written otherwise."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.lines, self.tree = path, source.split("\n"), ast.parse(source)

    def bugs(self) -> Iterator[Bug]:
        for node in _nodes(self.tree):
            yield from self.operators(node)
            yield from self.values(node)
            yield from self.steps(node)

    def at(self, node: ast.expr | ast.stmt, text: str) -> Iterator[Bug]:
        """`text` instead of a node that stands in one line."""
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            yield self.within(node.lineno, node.col_offset, node.end_col_offset, text)

    def within(self, line: int, start: int, stop: int, text: str) -> Bug:
        was = self.lines[line - 1].encode()
        return Bug(self.path, line, self.lines[line - 1], (was[:start] + text.encode() + was[stop:]).decode())

    def text(self, node: ast.expr) -> str:
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Bug]:
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        start, stop = left.end_col_offset, right.col_offset
        text = self.lines[right.lineno - 1].encode()[start:stop].decode()
        if f" {old} " in text:
            yield self.within(right.lineno, start, stop, text.replace(f" {old} ", f" {new} ", 1))

    def operators(self, node: ast.AST) -> Iterator[Bug]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            yield from self.between(node.left, node.comparators[0], *_COMPARED[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATED:
            yield from self.between(node.left, node.right, *_OPERATED[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from self.between(node.values[0], node.values[1], *words)

    def values(self, node: ast.AST) -> Iterator[Bug]:
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 2**31:
            yield from self.at(node, str(node.value + 1))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from self.at(node, f"({self.text(node.operand)})")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            yield from self.at(node.func, _CALLED[node.func.id])

    def steps(self, node: ast.AST) -> Iterator[Bug]:
        if isinstance(node, (ast.If, ast.IfExp)) and node.test.lineno == node.test.end_lineno:
            yield from self.at(node.test, f"(not ({self.text(node.test)}))")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self.at(node, "pass")  # a check, or anything else that is done for what it does


def python_bugs(path: str, source: str) -> Iterator[Bug]:
    """Every bug that can be planted in a module."""
    return _Planter(path, source).bugs()


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, no text, nothing of `__repr__` and of overloads."""
    for name, field in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for node in field if isinstance(field, list) else [field]:
            if not isinstance(node, ast.AST) or isinstance(
                node, (ast.JoinedStr, ast.ImportFrom, ast.Import, ast.Raise)
            ):
                continue
            if isinstance(node, ast.FunctionDef) and (node.name == "__repr__" or _is_overload(node)):
                continue
            yield node
            yield from _nodes(node)


def _is_overload(node: ast.FunctionDef) -> bool:
    """Whether only a type checker reads it."""
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


_IN_KERNELS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == ")]
_IN_KERNELS += [(" + 1", ""), (" - 1", ""), (" += 1", " += 2"), (" and ", " or "), (" or ", " and "), (" * ", " + ")]
_IN_KERNELS += [(" + ", " - "), (" = 0", " = 1"), (" // ", " * ")]


def kernel_bugs(path: str, source: str) -> Iterator[Bug]:
    """Every bug that can be planted in a kernel's file."""
    inside = False
    for number, line in enumerate(source.split("\n"), 1):
        texts = line.count('"""')
        inside ^= texts % 2 == 1
        code = line.split("#", 1)[0]
        if inside or texts or not code.startswith("    ") or re.search(r"cdef [^=]*$|cimport|import |\"", code):
            continue
        for old, new in _IN_KERNELS:
            if old in code:
                yield Bug(path, number, line, line.replace(old, new, 1))


def bugs() -> dict[str, list[Bug]]:
    """All bugs by file."""
    found = {}
    package = ROOT / "nixldesc"
    for file in sorted(package.rglob("*")):
        path = file.relative_to(package).as_posix()
        if path.endswith(SKIPPED[0]) or path.startswith(SKIPPED[1:]) or file.suffix not in (".py", ".pyx", ".pxi"):
            continue
        made = (python_bugs if file.suffix == ".py" else kernel_bugs)(path, file.read_text())
        found[path] = [bug for bug in dict.fromkeys(made) if bug.was != bug.now]
    return {path: made for path, made in found.items() if made}


def draw(rng: random.Random, count: int, word: str) -> list[Bug]:
    """So many bugs, evenly over the files; kernels take their share."""
    by_file = {path: rng.sample(made, len(made)) for path, made in bugs().items() if word in path}
    kernels = [path for path in by_file if not path.endswith(".py")]
    modules = [path for path in by_file if path.endswith(".py")]
    drawn: list[Bug] = []
    for paths, most in ((kernels, count // KERNEL_SHARE if modules else count), (modules, count)):
        paths = rng.sample(paths, len(paths))
        end = min(len(drawn) + most, count)
        while len(drawn) < end and any(by_file[path] for path in paths):
            for path in paths:
                if by_file[path] and len(drawn) < end:
                    drawn.append(by_file[path].pop())
    return drawn


# ------------------------------------------------------------------------------------------------------- running


class Run(NamedTuple):
    """How the tests of one bug ended."""

    noticed: bool
    how: str
    seconds: float
    processor: float = 0.0  # seconds, too


def run_tests(arguments: list[str], log: Path, seconds: int) -> Run:
    """Fork a process that runs tests against the copy; more processor than `seconds` counts as noticed."""
    began = time.monotonic()
    child = os.fork()
    if not child:
        _in_child(arguments, log, seconds)
    _, status, usage = os.wait4(child, 0)
    took = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return Run(True, signal.Signals(os.WTERMSIG(status)).name, *took)
    code = os.WEXITSTATUS(status)
    return Run(code != 0, {0: "passed", 1: "failed", 2: "no import"}.get(code, f"status {code}"), *took)


#: Hypothesis is there before pytest looks for it: that its own assertions are not rewritten is no matter here.
_EARLY = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


def _in_child(arguments: list[str], log: Path, seconds: int) -> None:
    code = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        signal.alarm(seconds * 20)  # a test that only waits uses no processor
        os.chdir(COPY)
        os.environ["HYPOTHESIS_PROFILE"] = "quick"
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(COPY))
        import pytest

        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", _EARLY, *arguments]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def build() -> bool:
    """Build the copy's kernels; False where a bug does not compile."""
    shutil.rmtree(COPY / "build", ignore_errors=True)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    done = subprocess.run(command, cwd=COPY, capture_output=True, check=False)
    return done.returncode == 0


def copied() -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "nixldesc", COPY / "nixldesc", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "nixldesc" / "kernels", COPY / "whole")
    # The tests as they are now, too: a run takes long, and somebody may be at work here.
    shutil.copytree(ROOT / "tests", COPY / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "examples", COPY / "examples")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, COPY)


def tried(bug: Bug, log: Path, seconds: int) -> Run:
    """Plant a bug, run, take it out again."""
    file = COPY / "nixldesc" / bug.path
    source = file.read_text()
    lines = source.split("\n")
    lines[bug.line - 1] = bug.now
    file.write_text("\n".join(lines))
    kernel = not bug.path.endswith(".py")
    try:
        if kernel and not build():
            return Run(True, "no build", 0.0)
        return run_tests(tests_of(bug.path), log, seconds)
    finally:
        file.write_text(source)
        if kernel:
            for built in (COPY / "whole").glob("*.so"):
                shutil.copy(built, COPY / "nixldesc" / "kernels")


def listed() -> set[tuple[str, str, str]]:
    """Bugs that nothing can notice: `path: line -> line   # reason`, in blocks of four lines."""
    found = set()
    for block in LISTED.read_text().split("\n\n") if LISTED.exists() else []:
        rows = [row for row in block.strip().split("\n") if not row.startswith("#")]
        if len(rows) == 4:
            found.add((rows[0].strip(), rows[1].strip(), rows[2].strip()))
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(count: int, seed: int, word: str) -> int:
    say(f"seed={seed} count={count} word={word!r}")
    drawn, known = draw(random.Random(seed), count, word), listed()
    copied()
    log = COPY / "log"
    limits: dict[str, int] = {}
    survivors, excused, killed, spared = [], 0, 0, 0
    for number, bug in enumerate(drawn, 1):
        tests = tests_of(bug.path)
        kind = " ".join(tests[:3])
        if kind not in limits:  # without any bug they must pass
            whole = run_tests(tests, log, 3600)
            if whole.noticed:
                say(f"without any bug, the tests of {bug.path} fail:\n{log.read_text()[-3000:]}")
                return 2
            limits[kind] = int(whole.processor * 3) + 20
        if bug.key() in known:
            spared += 1
            continue
        run = tried(bug, log, limits[kind])
        killed += run.noticed
        say(f"{number}/{len(drawn)} {run.how} {run.seconds:.1f} s  {bug.words()}")
        if not run.noticed:
            survivors.append(bug)
    excused = spared
    for bug in survivors:
        say(f"SURVIVED {bug.words()}")
    say(f"planted={len(drawn)} killed={killed} survived={len(survivors)} listed={excused} seed={seed}")
    return 1 if survivors else 0


if __name__ == "__main__":
    import hypothesis  # noqa: F401  before the fork, so that each child has them
    import numpy  # noqa: F401
    import pytest  # noqa: F401

    words = sys.argv[1:]
    chosen = int(words[1]) if words[1:] else random.SystemRandom().randrange(2**32)
    sys.exit(main(int(words[0]) if words else 200, chosen, words[2] if words[2:] else ""))
