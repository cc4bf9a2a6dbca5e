"""Rules of the house that no reviewer should have to check (CONTRIBUTING.md draws the house).

The rules about sources read the checkout's files, so they hold for modules that nothing imports.
Each finder of offences is first shown an offence.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from agents import real_agent, takes_strided

import nixldesc
from nixldesc.kernels import _kernels

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nixldesc"

# The house from the ground up. A room imports only what stands before it; in a room no circle (see below).
# A module or room that is not here has no place in the house yet.
ORDER = [
    "_version",
    "errors",
    "kernels",
    "_check",
    "_memory",
    "memory",
    "request",
    "planning",
    "__init__",  # the public names: what stands above may use all of them
    "adapter",
    "testing",
    "_cli",
    "__main__",
]

# ---------------------------------------------------------------------- Cython sources

SAFETY = "boundscheck|wraparound|initializedcheck|nonecheck|overflowcheck|cdivision"


def safety_directives(source: str) -> list[str]:
    """Lines that set a safety directive: in a `# cython:` header, a decorator or a with block."""
    header = re.compile(rf"#\s*cython\s*:.*\b({SAFETY})\b")
    code = re.compile(rf"\b({SAFETY})\b")
    return [line for line in source.splitlines() if header.search(line) or code.search(line.split("#", 1)[0])]


@pytest.mark.parametrize(
    "planted",
    [
        "# cython: language_level=3, boundscheck=False",
        "#cython:cdivision=True",
        "@cython.wraparound(False)",
        "    with cython.overflowcheck(False):",
        "from cython import initializedcheck",
    ],
)
def test_a_safety_directive_is_found(planted: str) -> None:
    source = f"import x\n{planted}\n# plain words about boundscheck are fine\n"
    assert safety_directives(source) == [planted]


def test_safety_directives_stand_only_in_setup_py() -> None:
    sources = [path for suffix in ("pyx", "pxd", "pxi") for path in PACKAGE.rglob(f"*.{suffix}")]
    assert sources
    assert {str(path): safety_directives(path.read_text()) for path in sources} == {str(path): [] for path in sources}


def test_the_build_under_test_is_the_one_asked_for() -> None:
    """A suite that runs "checked" against an unchecked extension shows nothing."""
    machine_code = Path(_kernels.__file__).read_bytes()
    found = (
        "asan"
        if b"__asan_report" in machine_code
        else "checked"
        if b"RaiseBufferIndexError" in machine_code  # called at each checked index
        else "release"
    )
    assert found == os.environ.get("NIXLDESC_BUILD", "release")


# ---------------------------------------------------------------------- Python sources


def library_modules() -> list[str]:
    """The package's modules as dotted names below `nixldesc` ("layout", "testing.loopback")."""
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py"))


def tree(module: str) -> ast.Module:
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())


def imported(nodes: ast.AST, package: str = "") -> Iterator[str]:
    """Full names of all that is imported anywhere in `nodes`, a module directly in `package`."""
    for node in ast.walk(nodes):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base += [node.module] if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else "?"


def touches(names: Iterator[str], package: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for name in names)


def test_imports_are_found_wherever_they_hide() -> None:
    hidden = ast.parse(
        "from . import a\nfrom .b import c\nfrom .. import d\nfrom p.e import f\n"
        "def g():\n    import nixl._api as n\n    importlib.import_module('torch')\n"
    )
    assert sorted(imported(hidden, "p.q")) == [
        "nixl._api",
        "p.d",
        "p.e.f",
        "p.q.a",
        "p.q.b.c",
        "torch",
    ]
    assert touches(imported(hidden), "nixl")
    assert not touches(iter(["nixldesc.nixl", "nixlish"]), "nixl")


def test_only_the_top_of_the_house_touches_nixl() -> None:
    offenders = [name for name in library_modules() if touches(imported(tree(name)), "nixl")]
    allowed = re.compile(r"(adapter|testing|__main__|_cli)\b")
    assert [name for name in offenders if not allowed.match(name)] == []


def floor(name: str) -> str:
    """Where a module or one of its names stands: "nixldesc.memory.rows.expand_table" in "rows"."""
    first = name.removeprefix("nixldesc").removeprefix(".").split(".")[0]
    is_module = any(PACKAGE.glob(f"{first}.p*")) or (PACKAGE / first).is_dir()
    return first if first and is_module else "__init__"


def test_a_name_stands_where_its_module_does() -> None:
    assert floor("nixldesc.errors.GeometryError") == "errors"
    assert floor("nixldesc.kernels._kernels") == "kernels"
    assert floor("nixldesc.testing.loopback.LoopbackAgent") == "testing"
    assert floor("nixldesc") == floor("nixldesc.Layout") == "__init__"


def test_no_room_imports_upward() -> None:
    upward = []
    for module in library_modules():
        here = floor(module)
        for name in imports_of(module):
            below = floor(name)
            same_room = below == here and "." in module
            if not same_room and ORDER.index(below) >= ORDER.index(here):
                upward.append(f"nixldesc.{module} imports {name}")
    assert upward == []


def imports_of(module: str) -> list[str]:
    """Full names of what a module imports of this package."""
    package = ".".join(["nixldesc", *module.split(".")[:-1]])
    return [name for name in imported(tree(module), package) if touches(iter([name]), "nixldesc")]


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Every module from which arrows lead back to itself, with the way."""
    found = []
    for start in arrows:
        ways = [[start]]
        seen = {start}
        while ways:
            way = ways.pop()
            for there in sorted(arrows.get(way[-1], ())):
                if there == start:
                    found.append([*way, start])
                if there not in seen:
                    seen.add(there)
                    ways.append([*way, there])
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [["a", "b", "a"], ["b", "a", "b"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checking count: a reader follows them too."""
    modules = {name for name in library_modules() if name != "__init__"}
    arrows: dict[str, set[str]] = {}
    for module in modules:
        arrows[module] = set()
        for name in imports_of(module):
            below = name.removeprefix("nixldesc.")
            while below and below not in modules:
                below = below.rpartition(".")[0]
            arrows[module] |= {below} - {"", module}
    assert circles(arrows) == []


def test_only_the_first_step_of_a_recipe_looks_at_layouts() -> None:
    """What overlaps and what is sent follows from the families alone: a step is read without those before."""
    steps = ["boxes", "sources", "steps", "meeting", "overlap", "template", "block_tables", "sendings"]
    looks = {
        step for step in ("families", *steps) if touches(iter(imports_of(f"planning.{step}")), "nixldesc.memory.layout")
    }
    assert looks == {"families"}


def test_no_assert_guards_input() -> None:
    offenders = [
        f"{module}:{node.lineno}"
        for module in library_modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Assert)
    ]
    assert offenders == []


# ---------------------------------------------------------------------- at run time


def modules_loaded_by(code: str) -> set[str]:
    """sys.modules of a fresh interpreter after `code`; warnings are errors there."""
    report = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", report], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_loads_nothing_optional() -> None:
    loaded = modules_loaded_by("import nixldesc")
    assert "nixldesc.kernels._kernels" in loaded
    optional = {"nixl", "torch", "hypothesis", "rich", "pytest", "Cython"}
    assert {name for name in loaded if name.split(".")[0] in optional} == set()
    assert loaded & {"nixldesc.adapter", "nixldesc.testing"} == set()


def test_the_adapter_loads_without_nixl() -> None:
    loaded = modules_loaded_by("import nixldesc.adapter")
    assert {name for name in loaded if name.split(".")[0] in {"nixl", "torch"}} == set()


def test_help_on_the_testing_kit_needs_no_hypothesis() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import pydoc, nixldesc.testing\n"
        "assert 'block_tables' in pydoc.render_doc(nixldesc.testing)"
    )
    assert "nixldesc.testing.strategies" in modules_loaded_by(code)


def test_the_head_of_help_names_all_that_is_public() -> None:
    """What pydoc prints of each class is half Python's own, so the page begins with the whole list by task."""
    head = (nixldesc.__doc__ or "").partition(">>>")[0]
    assert [name for name in nixldesc.__all__ if name[0] != "_" and not re.search(rf"\b{name}\b", head)] == []


def test_the_nixl_under_test_is_the_one_asked_for() -> None:
    """With an old one the adapter's tests are tests of its fallback, if it is really old."""
    agent = real_agent("house")
    version = importlib.metadata.version("nixl")
    assert version == os.environ.get("NIXLDESC_NIXL", version)
    assert takes_strided(agent) == ([int(part) for part in version.split(".")[:2]] >= [1, 5])


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a GIL")
def test_the_package_leaves_a_free_threaded_python_free() -> None:
    # -W error: CPython warns when it must switch the GIL on for a module.
    code = "import sys, nixldesc; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_version_is_said_once() -> None:
    assert nixldesc.__version__ == importlib.metadata.version("nixldesc")
    assert f"## {nixldesc.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# ---------------------------------------------------------------------- documentation


def test_the_page_on_where_it_is_decided_names_files_of_the_house() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("### Where is it decided?")[2].partition("###")[0]
    rows = [row.split("|")[2] for row in page.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`([\w/]+\.(?:py|pxi))`", row)
        assert named, row
        room = (PACKAGE / named[0]).parent  # the files beside the first one go without their folder
        assert [name for name in named if not ((PACKAGE / name).is_file() or (room / name).is_file())] == [], row


DOCUMENTED = ["nixldesc", "nixldesc.adapter", "nixldesc.testing"]
# An example of these would show how to raise, and nobody but the library does.
NO_EXAMPLE = {
    "NixldescError",
    "GeometryError",
    "BlockIdError",
    "PeerMismatchError",
    "TransferError",
}


def public_names(module: ModuleType) -> Iterator[tuple[str, object]]:
    """The functions and classes of `__all__`."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            yield name, value


def public_members(cls: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties that the class itself defines, with their docstrings."""
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        value = getattr(value, "__func__", value)
        if inspect.isroutine(value) or isinstance(value, property):
            yield name, inspect.getdoc(value) or ""


def examples(doc: str) -> str:
    """The lines of code in the docstring's doctests."""
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", doc, flags=re.MULTILINE))


@pytest.mark.parametrize("module_name", DOCUMENTED)
def test_every_public_name_is_described_and_shown(module_name: str) -> None:
    module = importlib.import_module(module_name)
    assert module.__doc__
    missing = []
    for name, value in public_names(module):
        doc = inspect.getdoc(value) or ""
        if not doc:
            missing.append(f"{name}: no docstring")
        if not examples(doc) and name not in NO_EXAMPLE:
            missing.append(f"{name}: no example")
        if inspect.isclass(value):
            members = dict(public_members(value))
            shown = "\n".join(map(examples, [doc, *members.values()]))
            missing += [f"{name}.{member}: no docstring" for member, text in members.items() if not text]
            missing += [
                f"{name}.{member}: no example shows it" for member in members if not re.search(rf"\b{member}\b", shown)
            ]
    assert not missing, "\n".join(missing)
