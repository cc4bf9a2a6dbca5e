"""The control: `fenced` with every source block's id off by one. Equal tokens here would mean that nobody looks."""

from collections.abc import Sequence
from typing import Any

from fenced import NixlConnector, NixlPushConnector
from nixldesc_vllm.connector import Worker

__all__ = ["NixlConnector", "NixlPushConnector"]

_tables = Worker._tables


def _shifted(block_ids: Sequence[Sequence[int]], *rest: Any) -> list[Any]:
    return _tables([[block + 1 for block in ids] for ids in block_ids], *rest)


Worker._tables = staticmethod(_shifted)
