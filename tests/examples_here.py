"""The modules of examples/, which is a folder and no package, for the tests that run them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples import sglang_layout, vllm_layout, weights_layout
else:

    def _load(name: str) -> Any:
        path = Path(__file__).resolve().parents[1] / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    sglang_layout, vllm_layout, weights_layout = map(_load, ("sglang_layout", "vllm_layout", "weights_layout"))

__all__ = ["sglang_layout", "vllm_layout", "weights_layout"]
