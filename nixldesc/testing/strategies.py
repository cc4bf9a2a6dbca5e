"""Hypothesis strategies: layouts, pairs of engines, block tables, whole transfers.

``transfers()`` draws two engines of one model and the tables of one request. A connector is
tested by making its copies for them and asking ``check_delivery``::

    from hypothesis import given
    from nixldesc.testing import Limits, check_delivery, nixl_copies, transfers

    @given(transfers(Limits(cp=1, pp=1, kinds=("attention", "mla"))))
    def test_my_connector(transfer):
        copies = []
        for dst_rank, layout in transfer.dsts.items():
            for src_rank, (tables, ids) in my_connector(layout, transfer).items():
                copies += nixl_copies(src_rank, dst_rank, *tables, *ids)
        check_delivery(
            transfer.srcs, transfer.dsts, transfer.src_blocks, transfer.dst_blocks, copies,
            null_block=transfer.null_block, tokens=transfer.tokens,
        )

Who has layouts already, made by a connector's own code, draws only the tables: ``requests``.
All strategies shrink towards few small caches, one rank and short lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from nixldesc import Layout, Region

from .geometry import EnginePair, Limits, random_pair
from .tables import Request, Table, random_request, random_tables

if TYPE_CHECKING:
    from hypothesis import strategies as st

__all__ = ["Transfer", "block_tables", "layouts", "requests", "tp_pairs", "transfers"]

_LIMITS = Limits()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Two engines and one request: all that a plan and its check need.

    >>> pair = random_pair(Random(1))
    >>> transfer = Transfer(pair, random_request(Random(1), pair.srcs, pair.dsts))
    >>> transfer.srcs.keys() == transfer.src_blocks.keys()
    True
    >>> transfer.dsts.keys() == transfer.dst_blocks.keys()
    True
    >>> (transfer.null_block, transfer.tokens) == (transfer.request.null_block, transfer.request.tokens)
    True
    """

    pair: EnginePair
    request: Request

    @property
    def srcs(self) -> dict[int, Layout]:
        """Source rank -> its layout."""
        return self.pair.srcs

    @property
    def dsts(self) -> dict[int, Layout]:
        """Destination rank -> its layout."""
        return self.pair.dsts

    @property
    def src_blocks(self) -> dict[int, tuple[Table, ...]]:
        """Source rank -> one table per group."""
        return self.request.src_blocks

    @property
    def dst_blocks(self) -> dict[int, tuple[Table, ...]]:
        """Destination rank -> one table per group."""
        return self.request.dst_blocks

    @property
    def tokens(self) -> int | None:
        """The request's tokens, where its lists are to be taken so."""
        return self.request.tokens

    @property
    def null_block(self) -> int | None:
        """The placeholder id of both sides."""
        return self.request.null_block


def tp_pairs(limits: Limits = _LIMITS) -> st.SearchStrategy[EnginePair]:
    """Two engines with one model, of any two widths that ``limits`` allow.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(tp_pairs(Limits(tp=2, cp=1, pp=1)))
    ... def test(pair):
    ...     assert len(pair.srcs) <= 2 and all(x.cp_size == 1 for x in pair.dsts.values())
    >>> test()
    """
    return _drawn(lambda rnd: random_pair(rnd, limits))


def requests(srcs: Mapping[int, Layout], dsts: Mapping[int, Layout], **how: Any) -> st.SearchStrategy[Request]:
    """Block tables for layouts that you have: as ``random_request``, which says what it takes.

    >>> srcs = {0: Layout([Region("K", 0x1000, 16, 40)])}
    >>> dsts = {0: Layout([Region("K", 0x8000, 16, 30)])}
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(requests(srcs, dsts, null_blocks=[None], trimmed=False))
    ... def test(request):
    ...     assert len(request.src_blocks[0][0]) == len(request.dst_blocks[0][0])
    >>> test()
    """
    return _drawn(lambda rnd: random_request(rnd, srcs, dsts, **how))


def transfers(limits: Limits = _LIMITS) -> st.SearchStrategy[Transfer]:
    """Two engines with one model, and one request between them.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(transfers())
    ... def test(transfer):
    ...     assert transfer.src_blocks.keys() == transfer.srcs.keys()
    >>> test()
    """

    def draw(rnd: Random) -> Transfer:
        pair = random_pair(rnd, limits)
        return Transfer(pair, random_request(rnd, pair.srcs, pair.dsts, senders=pair.senders))

    return _drawn(draw)


def layouts(*, most_regions: int = 5, most_groups: int = 3) -> st.SearchStrategy[Layout]:
    """One rank's memory as regions of whole blocks, for code that is about ids and tables.

    Several groups, regions that share blocks or memory, unequal capacities, padding, blocks cut
    into sub-blocks at even and uneven spacing, several memories and devices.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(layouts(most_regions=2))
    ... def test(layout):
    ...     assert layout.num_descs == len(layout.dense_table())
    >>> test()
    """
    return _drawn(lambda rnd: _layout(rnd, most_regions, most_groups))


def block_tables(layout: Layout, *, num_groups: int = 1, most: int = 6) -> st.SearchStrategy[tuple[list[int], ...]]:
    """One list of distinct block ids per group, all inside the regions that the group has.

    ``num_groups`` is one more than the highest group that the layout names, at least.

    >>> layout = Layout([Region("K", 0, 8, 3)])
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(block_tables(layout))
    ... def test(tables):
    ...     assert layout.desc_ids(tables).tolist() == tables[0]
    >>> test()
    """
    return _drawn(lambda rnd: random_tables(rnd, layout, num_groups, most=most))


def _layout(rnd: Random, most_regions: int, most_groups: int) -> Layout:
    regions: list[Region] = []
    for number in range(rnd.randint(1, most_regions)):
        block_len = rnd.randint(1, 24)
        sub_blocks = rnd.choice((1, 1, 2, 3))
        sub_stride = block_len + rnd.choice((0, 0, 5))
        span = sub_stride * (sub_blocks - 1) + block_len
        stride = rnd.choice((sub_stride * sub_blocks, span, span + rnd.randint(1, 40)))
        groups = rnd.sample(range(most_groups), rnd.randint(1, most_groups))
        base = rnd.choice((0, 4096, 1 << 40, (1 << 63) + 8)) + rnd.randint(0, 300)
        if regions and rnd.random() < 0.3:
            base = rnd.choice(regions).base_addr  # the same memory, seen in another way
        regions.append(
            Region(
                f"r{number}",
                base,
                block_len,
                rnd.randint(1, 9),
                block_stride=stride,
                groups=rnd.choice((tuple(groups), tuple(groups), None)),
                mem_type=rnd.choice(("VRAM", "DRAM")),
                device_id=rnd.choice((0, 0, 7)),
                sub_blocks=sub_blocks,
                sub_stride=sub_stride,
            )
        )
    return Layout(regions)


def _drawn(make: Callable[[Random], T]) -> st.SearchStrategy[T]:
    """What ``make`` makes of a Random whose every draw hypothesis knows and can shrink."""
    from hypothesis import strategies  # here, so that help() and the rest of the kit need no hypothesis

    return strategies.randoms(use_true_random=False).map(make)
