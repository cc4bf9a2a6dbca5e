from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

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
TOKENS: int
TWICE: int
UNMET: int

ONE: int
RUN: int
EACH: int

__test__: dict[str, str]

# What a kernel returns instead of a result: code, side, group, position, extra (nixldesc.request.blocks.Fault).
_Fault = tuple[int, int, int, int, int]

# Of each list: -1 for a plain one, how many entries are not given, or where each entry stands.
_Skips = tuple[int | NDArray[np.int64], ...] | None

@final
class LayoutProgram:
    def __new__(cls, limits: NDArray[np.int64], flats: NDArray[np.int64], jobs: NDArray[np.int32]) -> Self: ...
    def run(self, block_ids: Sequence[Any], out: NDArray[np.int32] | None) -> NDArray[np.int32] | _Fault: ...

@final
class PairProgram:
    def __new__(
        cls,
        aligns: NDArray[np.int64],
        flats: NDArray[np.int64],
        jobs: NDArray[np.int32],
        src_groups: int,
        dst_groups: int,
    ) -> Self: ...
    def run(
        self,
        src_lists: Sequence[Any],
        dst_lists: Sequence[Any],
        src_skips: _Skips,
        dst_skips: _Skips,
        merge: bool,
        null_block: int | None,
        tokens: int,
        complete: bool,
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
def lay_rows(
    numbers: NDArray[np.uint64], segments: NDArray[np.int64], forms: NDArray[np.int64], rows: NDArray[np.int64]
) -> None: ...
def fill_columns(
    whole: NDArray[np.uint64], regions: NDArray[np.int64], lanes: NDArray[np.uint64], numbers: NDArray[np.uint64]
) -> int: ...
def fill_plain(numbers: NDArray[np.uint64], table: NDArray[np.uint64]) -> int: ...
def fill_table(
    numbers: NDArray[np.uint64],
    forms: NDArray[np.int64],
    counts: NDArray[np.int64],
    segments: NDArray[np.uint64],
    table: NDArray[np.uint64],
) -> int: ...
def is_short(item: object, room: int, lists: int) -> bool: ...
def read_numbers(items: object, out: NDArray[np.uint64]) -> tuple[int, int] | None: ...
def read_places(items: Any) -> NDArray[np.int64] | _Fault: ...
def sort_pairs(src: NDArray[np.int32], dst: NDArray[np.int32]) -> bool: ...
