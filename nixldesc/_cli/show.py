"""``show LAYOUT.json``: what a rank has registered."""

from __future__ import annotations

from nixldesc import Layout, Region
from nixldesc._cli.picture import Picture, draw, key_of, page_strip
from nixldesc._cli.regions import alike, group_words, memory_words, page_words, section_words
from nixldesc._cli.screen import Column, Screen, Styled, count, printable, say, size, table

__all__ = ["page_pictures", "show"]

_COLUMNS = (
    Column("region"),
    Column("memory"),
    Column("first byte", right=True),
    Column("end", right=True),
    Column("blocks", right=True),
    Column("block", right=True),
    Column("stride", right=True),
    Column("padding", right=True),
    Column("groups"),
)
#: More sections than this are counted, not listed.
_LISTED = 24


def show(screen: Screen, layout: Layout, name: str) -> None:
    """Write a layout's regions as a table, its totals, and each distinct page to scale."""
    table(screen, _COLUMNS, [_row(region) for region in layout.regions])
    screen.line()
    say(screen, _totals(layout, name))
    for picture in page_pictures(layout):
        screen.line()
        draw(screen, picture)


def _row(region: Region) -> list[str]:
    padding = region.block_stride - region.block_len * region.sub_blocks
    return [
        printable(region.name),
        memory_words(region),
        f"{region.base_addr:#x}",
        f"{region.base_addr + region.span:#x}",
        f"{region.num_blocks:,}",
        f"{region.sub_blocks} x {region.block_len:,}" if region.sub_blocks > 1 else f"{region.block_len:,}",
        f"{region.block_stride:,}",
        f"{padding:,}" if padding else "-",
        group_words(region),
    ]


def _totals(layout: Layout, name: str) -> str:
    ranges = layout.memory_ranges()
    held = sum(region.num_descs * region.block_len for region in layout.regions)
    cp = f", context-parallel rank {layout.cp_rank} of {layout.cp_size}" if layout.cp_size > 1 else ""
    return (
        f"{printable(name)}: {count(len(layout.regions), 'region')}, {count(layout.num_descs, 'descriptor')} in "
        f"{count(len(layout.table()), 'row')}, {size(held)} in blocks, "
        f"{size(sum(length for _, length, _, _ in ranges))} in {count(len(ranges), 'range')} to register{cp}"
    )


def page_pictures(layout: Layout) -> list[Picture]:
    """Return each distinct page once, with its sections as the legend."""
    shapes = [
        ((region.block_len, region.block_stride, tuple(section.shape for section in region.sections)), region)
        for region in layout.regions
        if region.sections
    ]
    return [_picture(regions) for regions in alike(shapes)]


def _picture(regions: list[Region]) -> Picture:
    region = regions[0]
    legend = [(key_of(i), section_words(section)) for i, section in enumerate(region.sections[:_LISTED])]
    if len(region.sections) > _LISTED:
        legend.append((Styled(" ", ""), f"and {len(region.sections) - _LISTED} more sections"))
    padding = region.block_stride - region.block_len
    title = page_words(regions) + (f", then {count(padding, 'byte')} of padding" if padding else "")
    return Picture(title, (page_strip(region, ""),), tuple(legend))
