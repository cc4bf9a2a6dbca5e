"""What the tests of words share: a refused call, its class and its words; and small layouts to refuse things with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

import nixldesc

# The library as no type checker sees it, for most of what is refused would not pass one.
Axis: Any = nixldesc.Axis
Blocks: Any = nixldesc.Blocks
DlistPair: Any = nixldesc.DlistPair
Layout: Any = nixldesc.Layout
Region: Any = nixldesc.Region
Section: Any = nixldesc.Section
array_regions: Any = nixldesc.array_regions
attention_sections: Any = nixldesc.attention_sections
expand_table: Any = nixldesc.expand_table
kernel_blocks: Any = nixldesc.kernel_blocks
mesh_ranges: Any = nixldesc.mesh_ranges
mla_sections: Any = nixldesc.mla_sections
plan: Any = nixldesc.plan
reader_counts: Any = nixldesc.reader_counts
shard_range: Any = nixldesc.shard_range
source_ranks: Any = nixldesc.source_ranks
state_sections: Any = nixldesc.state_sections

Case = tuple[Callable[[], object], type[Exception], tuple[str, ...]]
Test = TypeVar("Test", bound=Callable[..., None])


def no(do: Callable[[], object], error: type[Exception], *words: str) -> Case:
    """A call that must be refused with exactly this class; the message has all the words, in their order."""
    return do, error, words


def check(case: Case) -> None:
    do, error, words = case
    with pytest.raises(error) as caught:
        do()
    assert type(caught.value) is error
    message = str(caught.value)
    at = 0
    for word in words:
        assert word in message[at:], f"{word!r} is not in, or not in its place in {message!r}"
        at = message.index(word, at) + len(word)
    assert len(message) < 500, "nobody reads that"
    assert "\n" not in message


def refusals(cases: dict[str, Case]) -> Callable[[Test], Test]:
    return pytest.mark.parametrize("case", [pytest.param(case, id=title) for title, case in cases.items()])


def region(name: Any = "k", base: Any = 0x1000, length: Any = 16, blocks: Any = 8, **how: Any) -> Any:
    return Region(name, base, length, blocks, **how)


def layout(**how: Any) -> Any:
    return Layout([region(**how)])


def pair_of(src: Any, dst: Any) -> Any:
    """A pair of one region on each side."""
    return DlistPair(Layout([src]), Layout([dst]))


def page(*sections: Any, name: str = "r", **how: Any) -> Any:
    """A layout of one region of 8 blocks that hold these sections."""
    cp = {key: how.pop(key) for key in ("cp_rank", "cp_size") if key in how}
    end = max(section.end for section in sections)
    return Layout([Region(name, 0x1000, end, 8, sections=sections, **how)], **cp)


def heads(
    start: int, stop: int, tokens: int = 4, size: int = 2, name: str = "l0", itemsize: int = 1, **how: Any
) -> Any:
    """A section of these heads, 4 tokens and 2 bytes of each."""
    axes = Axis("head", start, stop), Axis("token", 0, tokens), Axis("byte", 0, size)
    return Section(name, axes, itemsize, **how)


def ints(n: int, dtype: Any = np.int32) -> Any:
    return np.zeros(n, dtype)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array
