from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

UNREAD: int
BAD_TYPE: int
OUT_OF_RANGE: int
CHANGED: int
MISFIT: int
UNSERVED: int
OUT_SIZE: int
UNEQUAL_LEN: int
MEMORY: int
FAR: int

__test__: dict[str, str]

# What a kernel returns instead of a result: code, side, group, position, extra (nixldesc.request.blocks.Fault).
_Fault = tuple[int, int, int, int, int]

@final
class LayoutProgram:
    def __init__(self, limits: NDArray[np.int64], flats: NDArray[np.int64], jobs: NDArray[np.int32]) -> None: ...
    def run(self, block_ids: Sequence[Any], out: NDArray[np.int32] | None) -> NDArray[np.int32] | _Fault: ...

@final
class PairProgram:
    def __init__(
        self,
        aligns: NDArray[np.int64],
        flats: NDArray[np.int64],
        jobs: NDArray[np.int32],
        src_groups: int,
        dst_groups: int,
    ) -> None: ...
    def run(
        self,
        src_lists: Sequence[Any],
        dst_lists: Sequence[Any],
        src_skips: tuple[int, ...] | None,
        dst_skips: tuple[int, ...] | None,
        merge: bool,
        null_block: int | None,
        first: int,
        last: int,
        src_out: NDArray[np.int32] | None,
        dst_out: NDArray[np.int32] | None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]] | _Fault: ...

def count_ops(
    src: NDArray[np.uint64],
    dst: NDArray[np.uint64],
    src_starts: NDArray[np.int64],
    dst_starts: NDArray[np.int64],
    src_ids: NDArray[np.int32],
    dst_ids: NDArray[np.int32],
) -> int | _Fault: ...
def fill_moves(
    src: NDArray[np.uint64],
    dst: NDArray[np.uint64],
    src_starts: NDArray[np.int64],
    dst_starts: NDArray[np.int64],
    src_regions: NDArray[np.int32],
    dst_regions: NDArray[np.int32],
    src_ids: NDArray[np.int32],
    dst_ids: NDArray[np.int32],
    out: NDArray[np.uint64],
    merge: bool,
) -> int | _Fault: ...
def expand_rows(table: NDArray[np.uint64], out: NDArray[np.uint64]) -> int: ...
def expand_kernel_blocks(
    ids: Any, ratio: int, null_block: int | None, out: NDArray[np.int32] | None
) -> NDArray[np.int32] | _Fault: ...
def sort_pairs(src: NDArray[np.int32], dst: NDArray[np.int32]) -> bool: ...
