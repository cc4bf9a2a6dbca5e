"""groups= forgotten on both sides of a hybrid: a state's slot must not move as a block of tokens."""

from __future__ import annotations

import pytest

from nixldesc import BlockIdError, Layout, Region, attention_sections, plan, state_sections


def hybrid(*groups: tuple[int, ...] | None) -> Layout:
    attention = attention_sections("a", num_kv_heads=2, tp_size=1, tp_rank=0, block_tokens=4, token_head_bytes=2)
    state = state_sections(
        "s", projections={"x": 4}, conv_rows=3, conv_itemsize=2, ssm_shape=(2, 2), ssm_itemsize=2, tp_size=1, tp_rank=0
    )
    return Layout(
        [
            Region("a", 0, attention[-1].end, 16, groups=groups[0], sections=attention),
            Region("s", 4096, state[-1].end, 16, groups=groups[1], sections=state),
        ]
    )


def test_several_lists_for_every_region_are_refused() -> None:
    layout = hybrid(None, None)
    (pair,) = plan(layout, {0: layout})[0]
    with pytest.raises(BlockIdError, match=r"regions 'a' \(blocks of tokens\) and 's' .* say groups= of both"):
        pair.desc_ids([[1, 2], [7]], [[3, 4], [9]])


def test_one_list_for_all_is_what_it_says() -> None:
    layout = hybrid(None, None)
    (pair,) = plan(layout, {0: layout})[0]
    assert [ids.tolist() for ids in pair.desc_ids([[1, 2]], [[3, 4]])] == [[1, 2, 17, 18], [3, 4, 19, 20]]


def test_groups_say_which_list_is_whose() -> None:
    layout = hybrid((0,), (1,))
    (pair,) = plan(layout, {0: layout})[0]
    assert [ids.tolist() for ids in pair.desc_ids([[1, 2], [7]], [[3, 4], [9]])] == [[1, 2, 23], [3, 4, 25]]
