"""Many regions as columns of numbers: what grows with layers, ranks, parts and segments is arrays, never objects.

::

    name      base_addr   block_len  num_blocks  block_stride  sub_blocks  sub_stride  runs  run_stride   segments
    l0        0x10000     4096       100         4096          1           4096        1     4096         one
    l1        0x80000     4096       100         4096          1           4096        1     4096         one
    pool      0x0         4096       128         4096          1           4096        1     4096         2: 64 + 64

The three steps of a region's flat index (block, sub-block k, run j) nest in its memory more or less evenly, and that
decides both its rows and its ids: rows are as few as NIXL's form ``(addr, len, dev, stride, count)`` allows, ids follow
them. Five ways suffice, and in all of them an id is an affine function of block, k and j (:class:`IdForm`)::

    ONE       b k j evenly nested         one row                       id = (b * S + k) * R + j
    BLOCK     k j evenly nested           a row per block               the same
    PIECE     only j                      a row per block and k         the same
    RUN       b k evenly nested           a row per j                   id = j * (N * S) + b * S + k
    RUN_BLOCK only k                      a row per j and block         the same
    EACH      none                        a row per j and k             id = j * (N * S) + k * N + b
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc.kernels import _kernels
from nixldesc.memory.region import Region, made_region
from nixldesc.memory.sections import Section, renamed

__all__ = [
    "ROWS",
    "WHERE",
    "Columns",
    "DerivedNames",
    "Groups",
    "IdForm",
    "Laid",
    "Pages",
    "columns_of",
    "id_form",
    "laid_of",
    "made_columns",
    "pages_of",
    "plain_table",
    "table_of",
]

# The ways that ids depend on; the kernels, which lay the rows, number all of them.
ONE, RUN, EACH = _kernels.ONE, _kernels.RUN, _kernels.EACH

U64 = np.dtype(np.uint64)

#: The rows of :attr:`Columns.numbers`. The first three say where a region's blocks are, the others how they are shaped.
ROWS = (
    *("base_addr", "num_blocks", "device_id"),
    *("block_len", "block_stride", "sub_blocks", "sub_stride", "runs", "run_stride"),
)
WHERE = 3

#: A page: the sections of one block.
Page = tuple[Section, ...]

#: The groups that a region takes; None for every group.
Groups = tuple[int, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The numbers of regions, one entry per region; fields as in :class:`nixldesc.Region`.

    `numbers`: all of them, uint64[9, regions], rows as in :data:`ROWS`; the columns are views of it. What says where
    the blocks are comes first (:data:`WHERE` rows), then their shape. `pieces`: for each region that lies in several
    memories its segments, uint64[n, 3].
    """

    numbers: NDArray[np.uint64]
    mem_types: tuple[str, ...]
    groups: tuple[Groups, ...]
    pieces: Mapping[int, NDArray[np.uint64]]
    #: Whether no region has sub-blocks, runs or several segments: a row each, ids are blocks.
    plain: bool

    def __len__(self) -> int:
        return len(self.mem_types)

    # The fields of Region, in the order of the rows.

    @property
    def counts(self) -> NDArray[np.int64]:
        """The numbers as int64: counts are small, addresses are not."""
        return self.numbers.view(np.int64)

    @property
    def base_addrs(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[0]  # type: ignore[no-any-return]

    @property
    def num_blocks(self) -> NDArray[np.int64]:  # noqa: D102
        return self.counts[1]  # type: ignore[no-any-return]

    @property
    def device_ids(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[2]  # type: ignore[no-any-return]

    @property
    def block_lens(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[3]  # type: ignore[no-any-return]

    @property
    def block_strides(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[4]  # type: ignore[no-any-return]

    @property
    def sub_blocks(self) -> NDArray[np.int64]:  # noqa: D102
        return self.counts[5]  # type: ignore[no-any-return]

    @property
    def sub_strides(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[6]  # type: ignore[no-any-return]

    @property
    def runs(self) -> NDArray[np.int64]:  # noqa: D102
        return self.counts[7]  # type: ignore[no-any-return]

    @property
    def run_strides(self) -> NDArray[np.uint64]:  # noqa: D102
        return self.numbers[8]  # type: ignore[no-any-return]

    def num_descs(self) -> NDArray[np.int64]:
        """Return each region's number of descriptors."""
        return self.num_blocks if self.plain else self.num_blocks * self.sub_blocks * self.runs


_put_numbers, _put_mem_types, _put_groups, _put_pieces, _put_plain = (
    getattr(Columns, slot).__set__ for slot in ("numbers", "mem_types", "groups", "pieces", "plain")
)


def made_columns(
    numbers: NDArray[np.uint64],
    mem_types: tuple[str, ...],
    groups: tuple[Groups, ...],
    pieces: Mapping[int, NDArray[np.uint64]],
    plain: bool,
) -> Columns:
    """Return columns of these fields, each set by its slot's own setter: they are made for each peer."""
    columns = object.__new__(Columns)
    _put_numbers(columns, numbers)
    _put_mem_types(columns, mem_types)
    _put_groups(columns, groups)
    _put_pieces(columns, pieces)
    _put_plain(columns, plain)
    return columns


class DerivedNames(Sequence[str]):
    """Names of regions that were derived from others, ``parent@offset``, made when somebody looks."""

    __slots__ = ("_columns", "_of", "_parents", "_whole")

    def __init__(self, parents: Sequence[str], whole: Columns, of: NDArray[np.int64], columns: Columns) -> None:
        self._parents, self._whole, self._of, self._columns = parents, whole, of, columns

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        parent = self._of[index]
        offset = int(self._columns.base_addrs[index]) - int(self._whole.base_addrs[parent])
        return f"{self._parents[parent]}@{offset}"


class Pages(NamedTuple):
    """What the blocks of regions mean: distinct pages once, names apart."""

    kinds: tuple[Page, ...]
    of: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]

    @classmethod
    def none(cls, regions: int) -> Pages:
        """Return the pages of regions without sections."""
        return cls(((),), (0,) * regions, ((),) * regions)

    @property
    def have_parts(self) -> bool:
        """Whether a section's name is there twice: both are parts of one array."""
        flat = list(chain.from_iterable(self.names))
        return len(set(flat)) < len(flat)

    def sections(self, region: int) -> tuple[Section, ...]:
        """Return a region's sections as objects."""
        page = self.kinds[self.of[region]]
        return tuple([renamed(section, name) for section, name in zip(page, self.names[region], strict=True)])


def pages_of(regions: Sequence[Region]) -> Pages:
    """Return the pages of regions, equal ones once."""
    kinds: dict[Any, int] = {}
    pages: list[Page] = []
    of = []
    for region in regions:
        key = tuple([section.shape for section in region.sections])
        number = kinds.setdefault(key, len(pages))
        if number == len(pages):
            pages.append(region.sections)
        of.append(number)
    return Pages(tuple(pages), tuple(of), tuple([tuple([s.name for s in region.sections]) for region in regions]))


def columns_of(regions: Sequence[Region]) -> Columns:
    """Return proven regions as columns."""
    rows = [[getattr(region, row) for region in regions] for row in ROWS]
    numbers = np.array(rows, dtype=U64)
    pieces = {i: region.segments for i, region in enumerate(regions) if region._pieces}
    cut = any(count != 1 for row in ("sub_blocks", "runs") for count in rows[ROWS.index(row)])
    mems, groups = tuple([region.mem_type for region in regions]), tuple([region.groups for region in regions])
    return Columns(numbers, mems, groups, pieces, not pieces and not cut)


def regions_of(columns: Columns, names: Sequence[str], pages: Pages) -> Iterator[Region]:
    """Yield the regions as objects, for somebody who looks."""
    rows = zip(*columns.numbers.tolist(), strict=True)
    for i, (base, blocks, device, length, stride, subs, sub_stride, runs, run_stride) in enumerate(rows):
        pieces = columns.pieces.get(i)
        yield made_region(
            names[i], base, length, blocks, stride, columns.groups[i], columns.mem_types[i], device,
            pages.sections(i), subs, sub_stride, runs, run_stride, b"" if pieces is None else pieces.tobytes(),
        )  # fmt: skip


def part_of(
    columns: Columns, names: Sequence[str], pages: Pages, chosen: Sequence[int]
) -> tuple[Columns, Sequence[str], Pages]:
    """Return the chosen regions' columns, names and pages."""
    pieces = {i: columns.pieces[number] for i, number in enumerate(chosen) if number in columns.pieces}
    numbers = columns.numbers.take(chosen, axis=1)
    mems = tuple([columns.mem_types[i] for i in chosen])
    groups = tuple([columns.groups[i] for i in chosen])
    part = Columns(numbers, mems, groups, pieces, columns.plain)
    sections = Pages(pages.kinds, tuple([pages.of[i] for i in chosen]), tuple([pages.names[i] for i in chosen]))
    return part, tuple([names[i] for i in chosen]), sections


# --------------------------------------------------------------------------------------------------- rows and ids


class IdForm(NamedTuple):
    """How the ids of a region follow its flat indices: ``outer * outer_step + j * run_step`` from its start on.

    outer is ``b * sub_blocks + k``, or where `uneven` is not 0 ``k * uneven + b`` (`uneven` is the number of blocks).
    """

    uneven: int
    runs: int
    outer_step: int
    run_step: int


class Laid(NamedTuple):
    """How the rows of each region are laid (see the module's header), and how many they are: int64[regions] each."""

    forms: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def total(self) -> int:
        """How many rows the table has."""
        return int(self.rows.sum())


def laid_of(columns: Columns) -> Laid:
    """Return how the rows of proven columns are laid: in each region as few as can be."""
    size = len(columns)
    if columns.plain:
        return Laid(np.zeros(size, dtype=np.int64), np.ones(size, dtype=np.int64))
    laid = Laid(np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64))
    _kernels.lay_rows(columns.numbers, _segments_of(columns)[0], *laid)
    return laid


def plain_table(columns: Columns) -> NDArray[np.uint64]:
    """Return the N x 5 table of plain columns, a row each."""
    table = np.empty((len(columns), 5), dtype=U64)
    _kernels.fill_plain(columns.numbers, table)
    return table


def table_of(columns: Columns, laid: Laid) -> NDArray[np.uint64]:
    """Return the N x 5 table of proven columns in desc-id order."""
    table = np.empty((laid.total, 5), dtype=U64)
    _kernels.fill_table(columns.numbers, laid.forms, *_segments_of(columns), table)
    return table


def _segments_of(columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return how many segments of its own each region has (0: it lies in one memory), and all of them."""
    counts = np.zeros(len(columns), dtype=np.int64)
    if not columns.pieces:
        return counts, np.empty((0, 3), dtype=U64)
    regions = sorted(columns.pieces)
    counts[regions] = [len(columns.pieces[region]) for region in regions]
    found = [columns.pieces[region] for region in regions]
    return counts, np.ascontiguousarray(found[0] if len(found) == 1 else np.concatenate(found))


def id_form(form: int, num_blocks: int, sub_blocks: int, runs: int) -> IdForm:
    """Return how ids follow flat indices where the rows are laid so.

    >>> id_form(EACH, 10, 3, 2), id_form(ONE, 10, 3, 2)
    (IdForm(uneven=10, runs=2, outer_step=1, run_step=30), IdForm(uneven=0, runs=2, outer_step=2, run_step=1))
    """
    uneven = num_blocks if form == EACH and sub_blocks > 1 else 0
    if form < RUN or runs == 1:
        return IdForm(uneven, runs, runs, 1)
    return IdForm(uneven, runs, 1, num_blocks * sub_blocks)
