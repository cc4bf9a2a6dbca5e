"""SGLang 0.5.23's NIXL backend without SGLang: its functions, a manager with the attributes that they read, and an
agent that only notes what would move.

`sglang` is installed without its dependencies (they are for GPUs). `sglang.srt.disaggregation` is the real thing; every
other module of SGLang's, and what it imports that is not here, is a mock.
"""

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from numpy.typing import NDArray

REAL = "sglang.srt.disaggregation"


class Mocks(MetaPathFinder, Loader):
    """Finds a mock for whatever SGLang imports that is neither REAL nor installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.startswith(REAL):
            return None
        if not name.startswith("sglang.") and not (self._sglang_asks() and self._is_missing(name)):
            return None
        return ModuleSpec(name, self, is_package=True)

    def _sglang_asks(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        return frame is not None and str(frame.f_globals.get("__name__")).startswith("sglang")

    def _is_missing(self, name: str) -> bool:
        if name == "zmq":  # takes numbers from SGLang's settings, which are mocks
            return True
        sys.meta_path.remove(self)
        try:
            return importlib.util.find_spec(name) is None
        except (ImportError, ValueError):
            return True
        finally:
            sys.meta_path.insert(0, self)

    def create_module(self, spec: ModuleSpec) -> Any:
        mock = MagicMock(name=spec.name)
        mock.__name__, mock.__path__, mock.__spec__, mock.__file__ = spec.name, [], spec, "mock"
        return mock

    def exec_module(self, module: Any) -> None: ...


def import_backend() -> Any:
    """Return the module ``sglang.srt.disaggregation.nixl.conn``."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise ImportError("sglang is not installed")
    root = Path(found.submodule_search_locations[0])
    for name, folder in (("sglang", root), ("sglang.srt", root / "srt")):  # without what their __init__ imports
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    mocks = Mocks()
    sys.meta_path.insert(0, mocks)
    try:
        conn = importlib.import_module(f"{REAL}.nixl.conn")
        conn.logger.warning_once = conn.logger.info  # SGLang adds it to every logger
        return conn
    finally:
        sys.meta_path.remove(mocks)
        sys.meta_path.append(mocks)  # functions import too


class Noting:
    """An agent whose handles are lists of descriptors, and whose transfers are noted as `moves`."""

    def __init__(self) -> None:
        self.moves: list[NDArray[np.uint64]] = []  # (src address, dst address, length)

    def get_xfer_descs(self, rows: Any, mem_type: str) -> NDArray[np.uint64]:
        return np.asarray(rows, np.uint64).reshape(-1, 3)

    def prep_xfer_dlist(self, name: str, rows: Any, mem_type: str) -> NDArray[np.uint64]:
        descs = [
            (address + i * stride, length, device)
            for address, length, device, stride, count in np.asarray(rows).tolist()
            for i in range(count)
        ]
        return np.array(descs, np.uint64)

    def make_prepped_xfer(self, operation: str, src: Any, src_ids: Any, dst: Any, dst_ids: Any) -> bool:
        return self.initialize_xfer(operation, src[src_ids], dst[dst_ids], "")

    def initialize_xfer(self, operation: str, src: Any, dst: Any, name: str) -> bool:
        if operation != "WRITE" or not np.array_equal(src[:, 1], dst[:, 1]):
            raise AssertionError(f"{operation} of unequal lengths")
        self.moves.append(np.column_stack([src[:, 0], dst[:, 0], src[:, 1]]))
        return True

    def transfer(self, handle: Any) -> str:
        return "PROC"


def manager(conn: Any, tp_size: int, tp_rank: int, page_size: int, heads: int, **more: Any) -> Any:
    """Return a NixlKVManager of a prefill rank with what its functions read, and no more."""
    made = object.__new__(conn.NixlKVManager)
    made.agent = Noting()
    made.attn_tp_size = made.state_tp_size = tp_size
    made.pp_size, made.is_mla_backend, made.src_mem_kind = 1, more.pop("mla", False), "VRAM"
    made.prep_handles, made.prep_handles_slice_dst, made.prep_handle_slice_src = {}, {}, None
    made.decode_kv_args_table, made._use_strided_descs = {}, True
    made.kv_args = SimpleNamespace(
        engine_rank=tp_rank,
        gpu_id=0,
        page_size=page_size,
        total_kv_head_num=heads,
        prefill_start_layer=0,
        swa_kv_cache_layout="nhd",
        **more,
    )
    return made
