"""Prepared lists, pair by pair, and what one request takes of a pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc import DlistPair, Layout
from nixldesc.adapter.agent import Route

__all__ = ["Leg", "Ready"]


class Ready(NamedTuple):
    """One pair of layouts with both lists prepared; `pair` is None where the two are of unlike structure."""

    pair: DlistPair | None
    src: Layout
    dst: Layout
    route: Route
    local_list: Any
    remote_list: Any


class Leg(NamedTuple):
    """What a request takes of one pair of prepared lists."""

    ready: Ready
    src_ids: NDArray[np.int32]
    dst_ids: NDArray[np.int32]
