"""Regions that share a block table mean the same by it; a table of every group is shared with each group's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nixldesc import Axis, Layout, PeerMismatchError, Region, Section, plan

Groups = Sequence[tuple[int, ...] | None]

SHARED: list[Groups] = [((0,), (0,)), ((0,), None), (None, (0,)), (None, None), ((1, 0), None)]
APART: Groups = ((0,), (1,))

shared = pytest.mark.parametrize("groups", SHARED, ids=str)


def layout(groups: Groups, *, tokens: Sequence[int] = (4, 4), whole: str = "", cp: tuple[int, int] = (0, 1)) -> Layout:
    """Regions a and b of so many tokens a block, of one rank of several; that named `whole` is not dealt to them."""
    parts = zip("ab", tokens, groups, strict=True)
    regions = [
        Region(name, i << 16, n, 8, groups=of, sections=[Section(name, [Axis("token", 0, n)], 1, cp=name != whole)])
        for i, (name, n, of) in enumerate(parts)
    ]
    return Layout(regions, cp_rank=cp[0], cp_size=cp[1])


@shared
@pytest.mark.parametrize("whole", ["a", "b"])
def test_entries_that_would_stand_at_two_places(groups: Groups, whole: str) -> None:
    for here, there, table in ((2, 1, "the destination's table"), (1, 2, "source 0's table")):
        dst, apart = (layout(of, whole=whole, cp=(here - 1, here)) for of in (groups, APART))
        srcs, also = ({r: layout(of, whole=whole, cp=(r, there)) for r in range(there)} for of in (groups, APART))
        words = rf"sections '[ab]' and 'b' share {table} of .*block [01] \+ \(skip \+ i\) \* 2"
        with pytest.raises(PeerMismatchError, match=words):
            plan(dst, srcs, dst_rank=0, dst_size=1)
        assert len(plan(apart, also, dst_rank=0, dst_size=1)) > 0


@shared
@pytest.mark.parametrize("tokens", [(4, 2), (2, 4)])
def test_block_tokens_that_one_pair_of_tables_cannot_both_have(groups: Groups, tokens: Sequence[int]) -> None:
    here, there = layout(groups), layout(groups, tokens=tokens)
    for dst, src in ((here, there), (there, here)):
        with pytest.raises(PeerMismatchError, match="sections 'a' and 'b' share the block tables of source 0 and dest"):
            plan(dst, {0: src})
    assert plan(layout(APART), {0: layout(APART, tokens=tokens)}).keys() == {0}
