"""``show LAYOUT.json``: what a rank has registered."""

from __future__ import annotations

from nixldesc import Layout, Region
from nixldesc._cli.picture import Picture, draw, page_strip
from nixldesc._cli.regions import alike, group_words, legend_of, page_words
from nixldesc._cli.screen import Screen, count, printable, say, size, table

__all__ = ["page_pictures", "show"]

_COLUMNS = "region | memory | >first byte | >end | >blocks | >block | >stride | >pad | groups"
#: Segments of a region beyond these are counted, not listed.
_SEGMENTS = 4
#: More sections than this are counted, not listed.
_LISTED = 24


def show(screen: Screen, layout: Layout, name: str) -> None:
    """Write a layout's regions as a table, its totals, and each distinct page to scale."""
    table(screen, _COLUMNS, [row for region in layout.regions for row in _rows(region)])
    screen.line()
    say(screen, _totals(layout, name))
    for picture in page_pictures(layout):
        screen.line()
        draw(screen, picture)


def _rows(region: Region) -> list[list[str]]:
    """One row, or one for each memory that a region lies in."""
    padding = region.block_stride - region.block_len * region.sub_blocks * region.runs
    pieces = [f"{count:,}" for count in (region.sub_blocks, region.runs) if count > 1]
    block = "x".join([*pieces, f"{region.block_len:,}"])
    same = [block, f"{region.block_stride:,}", f"{padding:,}" if padding else "-", group_words(region)]
    rows: list[list[str]] = []
    segments = region.segments.tolist()
    for number, (base, blocks, device) in enumerate(segments[:_SEGMENTS]):
        name = f"  segment {number}" if number else printable(region.name)
        end = base + (blocks - 1) * region.block_stride + region.reach
        memory = f"{printable(region.mem_type)}:{device}"
        rows.append([name, memory, f"{base:#x}", f"{end:#x}", f"{blocks:,}", *same])
    if len(segments) > _SEGMENTS:
        left = sum(blocks for _, blocks, _ in segments[_SEGMENTS:])
        rows.append([f"  {len(segments) - _SEGMENTS:,} more", "", "", "", f"{left:,}", "", "", "", ""])
    return rows


def _totals(layout: Layout, name: str) -> str:
    ranges = layout.memory_ranges()
    held = sum(region.num_descs * region.block_len for region in layout.regions)
    cp = f", context-parallel rank {layout.cp_rank} of {layout.cp_size}" if layout.cp_size > 1 else ""
    cp += f", {count(layout.cp_tokens, 'token')} at a time" if layout.cp_tokens and cp else ""
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
    padding = region.block_stride - region.block_len
    title = page_words(regions) + (f", then {count(padding, 'byte')} of padding" if padding else "")
    return Picture(title, (page_strip(region, ""),), tuple(legend_of(region.sections, _LISTED)))
