"""pytest -p swapped: vLLM's unit tests with its methods shadowed by ours (shim.py).

Every call runs both and the test fails where they differ in value, shape or refusal; vLLM's result is used. Blocks that
overlap and ids beyond a pool, which a few tests have, nixldesc refuses; that is counted. At the end stands how many
calls were compared: none would prove nothing, and is an error.
"""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import shim
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, tp_mapping

import nixldesc

METHODS = [
    "_apply_dcp_prefix_caching",
    "_apply_prefix_caching",
    "_apply_prefix_caching_by_region",
    "_block_ids_by_region",
    "_block_strided_descs",
    "_build_fa_local",
    "_build_fa_remote",
    "_build_local_splits_from_plan",
    "_build_mamba_local",
    "_build_mamba_remote",
    "_compute_desc_ids",
    "_logical_to_kernel_block_ids",
    "_map_block_ids_for_block_size_ratio",
    "get_mapped_blocks",
]
CALLS: Counter[str] = Counter()
DIFFER: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()
# Some tests have blocks that overlap, some ids beyond their pool (20 of 2); vLLM takes both, a Layout neither.
IMPOSSIBLE = ("less than block_len", "is out of range, region")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ("array", value.shape, [int(item) for item in value.ravel()])
    if isinstance(value, np.generic):
        return int(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _outcome(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    """What it returns (a generator as a list), or what it raises: where vLLM refuses, so must we."""
    try:
        value = call(*args, **kwargs)
        return (list(value) if inspect.isgenerator(value) else value), None
    except Exception as error:
        return None, error


def _shadowed(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours = getattr(shim, name)

    @functools.wraps(theirs)
    def both(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += 1
        want, refusal = _outcome(theirs, args, kwargs)
        got, our_refusal = _outcome(ours, args, kwargs)
        if isinstance(our_refusal, nixldesc.NixldescError) and any(word in str(our_refusal) for word in IMPOSSIBLE):
            REFUSED[name] += 1
            return want
        if (refusal is None) != (our_refusal is None) or _plain(want) != _plain(got):
            DIFFER[name] += 1
            raise AssertionError(f"{name}: vLLM {want!r} / {refusal!r}, nixldesc {got!r} / {our_refusal!r}")
        if refusal is not None:
            raise refusal
        return iter(want) if inspect.isgeneratorfunction(theirs) else want

    return both


def pytest_collection() -> None:
    """Install before the test modules are imported: they take names from vLLM's modules."""
    worker = base_worker.NixlBaseConnectorWorker
    for name in METHODS:
        theirs = inspect.getattr_static(worker, name)
        if isinstance(theirs, staticmethod):
            setattr(worker, name, staticmethod(_shadowed(name, theirs.__func__)))
        else:
            setattr(worker, name, _shadowed(name, theirs))
    theirs = tp_mapping.compute_tp_mapping
    both = _shadowed("compute_tp_mapping", theirs)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("compute_tp_mapping") is theirs:
            module.compute_tp_mapping = both


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM's tests collect garbage after each one, which is nothing to a CPU but half of the time."""
    for item in items:
        item.add_marker(pytest.mark.skip_global_cleanup)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name in [*METHODS, "compute_tp_mapping"]:
        terminalreporter.write_line(
            f"shadowed {name}: {CALLS[name]} calls compared, {DIFFER[name]} differ, {REFUSED[name]} refused"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.testscollected > 700 and any(not CALLS[name] for name in [*METHODS, "compute_tp_mapping"]):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
