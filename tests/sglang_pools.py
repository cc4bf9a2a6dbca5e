"""SGLang's own memory pools, from its published wheel, without the GPU packages that its module imports.

The classes, their tensors and their lists for disaggregation are SGLang's code, run as it stands. What that module
imports from elsewhere (Triton kernels, platform checks, environment switches) is stood in for; on a CPU none of it has
a part in where a pool's tensors lie.

NIXLDESC_SGLANG names a folder that holds the unpacked wheel: ``pip download --no-deps sglang==0.5.23`` and unzip.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

#: The modules that are really SGLang's; their packages are not run, everything else is stood in for.
REAL = ("sglang.srt.mem_cache.memory_pool", "sglang.srt.mem_cache.layout.token_major")
PACKAGES = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.layout")
#: What a stand-in must answer: a plain CPU, no switch set, no memory pool of its own.
ANSWERS: dict[str, Any] = {
    "is_cpu": lambda: True,
    "ceil_align": lambda x, align: -(-x // align) * align,
    "maybe_init_custom_mem_pool": lambda device: (False, None, None),
    **{f"is_{word}": (lambda: False) for word in ("cuda", "hip", "npu", "xpu", "gfx95_supported", "fp8_fnuz")},
    "cpu_has_amx_support": lambda: False,
    "UnquantizedKVCacheMethod": type("UnquantizedKVCacheMethod", (), {}),
}


def folder() -> Path | None:
    """Where the wheel is unpacked, if it is."""
    path = Path(os.environ.get("NIXLDESC_SGLANG", "/nowhere"))
    return path if (path / "sglang" / "srt" / "mem_cache" / "memory_pool.py").exists() else None


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        answer = ANSWERS.get(name) or MagicMock(name=f"{self.__name__}.{name}")
        if name == "envs":
            answer.configure_mock(**{f"{switch}.get.return_value": False for switch in SWITCHES})
        setattr(self, name, answer)
        return answer


SWITCHES = (
    "SGLANG_USE_AITER",
    "SGLANG_USE_HND_KVCACHE",
    "SGLANG_NATIVE_MOVE_KV_CACHE",
    "SGLANG_DEBUG_MEMORY_POOL",
)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in ("sglang", "triton", "sgl_kernel"):
            return None
        file = self.root.joinpath(*name.split("."))
        if name in REAL:
            return importlib.util.spec_from_file_location(name, file.with_suffix(".py"))
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(file)] if name in PACKAGES else []
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextmanager
def memory_pool() -> Iterator[Any]:
    """SGLang's module of pools; what stood in for the rest is forgotten afterwards."""
    root = folder()
    if root is None:
        raise FileNotFoundError("NIXLDESC_SGLANG names no unpacked wheel of SGLang")
    finder, known = _Finder(root), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module(REAL[0])
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - known:
            if name.split(".")[0] in ("sglang", "triton", "sgl_kernel"):
                del sys.modules[name]
