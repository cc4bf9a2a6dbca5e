"""Tokens dealt to ranks in a plain loop, and what block lists then hold: the oracle of positions.

Written from the design's words alone: token g of the sequence goes to a rank, and fills its blocks in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Side(NamedTuple):
    """One rank of an engine: blocks of so many tokens, dealt `grain` tokens at a time to `size` ranks."""

    block: int
    rank: int = 0
    size: int = 1
    grain: int = 1

    def mine(self, length: int) -> list[int]:
        """The tokens of a sequence of this length that this rank holds, in the order of its own blocks."""
        hands: list[list[int]] = [[] for _ in range(self.size)]
        turn = given = 0
        for token in range(length):
            hands[turn].append(token)
            given += 1
            if given == self.grain:
                turn, given = (turn + 1) % self.size, 0
        return hands[self.rank]

    def entries(self, length: int) -> int:
        """How many blocks those tokens fill or begin."""
        count = left = 0
        for _ in self.mine(length):
            if left == 0:
                count, left = count + 1, self.block
            left -= 1
        return count

    def tokens_of(self, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(token of the sequence, which of `numbers`, token inside the block) of these entries of the full list."""
        far = (max(numbers, default=-1) + 1) * self.block
        length = (far // self.grain + 2) * self.grain * self.size
        held = self.mine(length)
        for i, number in enumerate(numbers):
            for inside in range(self.block):
                yield held[number * self.block + inside], i, inside


def met(
    src: Side, dst: Side, src_at: Sequence[int], dst_at: Sequence[int], tokens: int | None, unit: int
) -> set[tuple[int, int, int, int]]:
    """(src entry, token inside, dst entry, token inside) of what both list, whole units that begin below `tokens`."""
    there = {token: (i, inside) for token, i, inside in src.tokens_of(src_at)}
    found = set()
    for token, i, inside in dst.tokens_of(dst_at):
        if token in there and (tokens is None or token // unit * unit < tokens):
            found.add((*there[token], i, inside))
    return found


def table(numbers: Sequence[int], step: int, offset: int) -> list[Any]:
    """Block ids for entries, none twice, in no order of positions."""
    return [(offset + step * i) % 97 for i in range(len(numbers))]
