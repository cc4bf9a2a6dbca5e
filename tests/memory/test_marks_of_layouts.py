"""Small things of a layout that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

import pytest

from nixldesc import GeometryError, Layout, Region


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
