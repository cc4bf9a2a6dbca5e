"""``locate LAYOUT.json ID``: what a descriptor id stands for."""

from __future__ import annotations

from nixldesc import BlockIdError, Layout
from nixldesc._cli.files import UsageError
from nixldesc._cli.picture import Picture, draw, page_strip
from nixldesc._cli.regions import group_words, legend_of
from nixldesc._cli.screen import Screen, Styled, count, printable

__all__ = ["locate"]


def locate(screen: Screen, layout: Layout, desc_id: int) -> None:
    """Write the region, block, sub-block, run, address and sections of one descriptor."""
    try:
        index, flat = layout.locate(desc_id)
    except BlockIdError as error:
        raise UsageError(str(error)) from None
    region = layout.regions[index]
    block, piece = divmod(flat, region.sub_blocks * region.runs)
    addr, length, device = layout.address(desc_id)
    memory = f"{printable(region.mem_type)}:{device}"
    facts = [
        ("desc id", f"{desc_id:,} of {layout.num_descs:,} (0 to {layout.num_descs - 1:,})"),
        ("region", f"{printable(region.name)} (regions[{index}] of {len(layout.regions)}), {memory}"),
        ("groups", group_words(region)),
        ("block", f"{block:,} of {region.num_blocks:,}"),
        ("sub-block", f"{piece // region.runs} of {region.sub_blocks}" if region.sub_blocks > 1 else ""),
        ("run", f"{piece % region.runs} of {region.runs}" if region.runs > 1 else ""),
        ("address", f"{addr:#x} to {addr + length:#x} ({addr}), {count(length, 'byte')}"),
    ]
    for name, words in facts:
        if words:
            screen.line(Styled(f"{name:<9}", "bold"), "  ", words)
    if region.sections:
        draw(screen, Picture("", (page_strip(region, "page"),), tuple(legend_of(region.sections))))
