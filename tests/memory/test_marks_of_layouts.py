"""Small things of a layout that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from nixldesc import BlockIdError, DlistPair, GeometryError, Layout, Region
from nixldesc.memory.wire_checks import names_of


def test_tokens_of_a_rank() -> None:
    layout = Layout([Region("k", 0, 16, 4)], cp_rank=1, cp_size=2, cp_tokens=4)
    assert [layout.local_tokens(tokens) for tokens in (0, 4, 7, 8, 13)] == [0, 0, 3, 4, 5]
    assert layout.local_tokens(8, 16) == 4  # the grain is the layout's, whatever its blocks
    whole = Layout([Region("k", 0, 16, 4)], cp_rank=1, cp_size=2)
    assert whole.local_tokens(8, 4) == 4
    with pytest.raises(GeometryError):
        layout.local_tokens(-1)


def test_tokens_may_be_dealt_one_at_a_time() -> None:
    layout = Layout([Region("k", 0, 16, 4)], cp_rank=0, cp_size=2, cp_tokens=1)
    assert [layout.local_tokens(tokens) for tokens in (1, 2, 3)] == [1, 1, 2]
    with pytest.raises(GeometryError):
        Layout([Region("k", 0, 16, 4)], cp_rank=0, cp_size=2, cp_tokens=0)


def test_a_shape_that_was_met_is_known_again() -> None:
    message = Layout([Region("a region of its own", 0, 16, 4)]).to_dict()
    again = Layout.from_dict({**message, "base_addrs": [4096], "num_blocks": 9})
    assert Layout.from_dict(message).kind is again.kind
    assert again.most_blocks == 9


def test_a_null_block_has_an_ids_bits() -> None:
    """Planted once: a bound far below 32 bits; ids of other integer types than int get there, too."""
    layout = Layout([Region("k", 0, 16, 4)])
    pair = DlistPair(layout, layout)
    lowest: Any
    beyond: Any
    for lowest in (-(2**31), np.int64(-(2**31))):
        found = pair.desc_ids([[1, -(2**31), 2]], [[3, 0, 1]], null_block=lowest)
        assert [ids.tolist() for ids in found] == [[2, 1], [1, 3]]
    for beyond in (-2147483649, np.int64(-2147483649), 2147483648, np.int64(2147483648)):
        with pytest.raises(BlockIdError, match=f"^null_block {beyond} is no block id: ids are 32 bits$"):
            pair.desc_ids([[1]], [[3]], null_block=beyond)


def test_numbered_names_are_counted_in_all_their_bytes() -> None:
    """Planted once: the bytes of one name added to their number, so 40,000 names of 1,000 characters were few."""
    message = Layout([Region("k", 0, 16, 4)]).to_dict()
    with pytest.raises(GeometryError, match=r"40000 .* names numbered from 0 .* are no names of regions"):
        Layout.from_dict({**message, "names": [["n" * 990, 0, 40_000, ""]]})
    # A name and its number, ten digits at most, are 1,024 bytes: 8,192 of them are the last that are not too much.
    assert len(names_of([["n" * 1014, 0, 8192, ""]], "names")) == 8192
    with pytest.raises(GeometryError, match=r"8193 .* are no names of regions"):
        names_of([["n" * 1014, 0, 8193, ""]], "names")


def test_a_name_has_at_most_a_thousand_characters_and_some() -> None:
    """Planted once: sixty thousand of them, which an error would have repeated."""
    assert Region("n" * 1024, 0, 16, 4).name == "n" * 1024
    with pytest.raises(GeometryError, match="must have at most 1024 characters, got 1025: 'nnn"):
        Region("n" * 1025, 0, 16, 4)


def test_ids_that_make_no_array_are_refused_where_they_are_read() -> None:
    """Planted once: NumPy's error instead, from asking whether their memory is that of `out`."""
    ragged: Any = deque([[1], [2, 3]])
    layout, out = Layout([Region("k", 0, 16, 4)]), np.zeros(2, np.int32)
    with pytest.raises(TypeError, match=r"^group 0, position 0: a block id must be an int, got \[1\] \(list\)$"):
        layout.desc_ids([ragged], out=out)
    assert layout.desc_ids([deque([3, 1])], out=out).tolist() == [3, 1]


def test_a_number_is_too_long_to_reckon_with_from_257_bits_on() -> None:
    """Planted once: one of 256 bits, which is said to be beyond 64 like any other, refused as one of 256."""
    with pytest.raises(GeometryError, match="is a number of 257 bits; 64 are the most that mean anything"):
        Region("k", 2**256, 16, 4)
    with pytest.raises(GeometryError, match="base_addr") as caught:
        Layout([Region("k", 2**255, 16, 4)])
    assert "bits" not in str(caught.value)


def test_of_tables_with_equally_many_rows_the_first_kind_is_taken() -> None:
    """Planted once: the last of them, so that ids of two blocks in two runs counted block by block."""
    runs = Layout([Region("k", 0, 8, 2, block_stride=100, runs=2, run_stride=40)])
    assert runs.table().tolist() == [[0, 8, 0, 100, 2], [40, 8, 0, 100, 2]]  # a row per run
    assert runs.desc_ids([[1]]).tolist() == [1, 3]
    # Three of each, nothing even: a row per run and sub-block, not one per block and sub-block or per block and run.
    each = Layout([Region("k", 0, 8, 3, block_stride=1000, sub_blocks=3, sub_stride=200, runs=3, run_stride=40)])
    rows = [[run * 40 + sub * 200, 8, 0, 1000, 3] for run in range(3) for sub in range(3)]
    assert each.table().tolist() == rows
    assert each.desc_ids([[1]]).tolist() == [1, 10, 19, 4, 13, 22, 7, 16, 25]
