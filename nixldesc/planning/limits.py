"""What strangers' pages can make one plan look through and build: bounded before it is spent.

::

    a message of a kilobyte      pages whose bytes lie the other way round: a lane for every byte
                                 parts that overlap one another: every part of a box held against all that is missing
                                 regions of which no two are alike: each is planned apart
    what is bounded              lanes (each becomes a region of both lists), steps (each about a microsecond), families
"""

from __future__ import annotations

__all__ = ["AT_ONCE", "MAX_FAMILIES", "MAX_LANES", "MAX_STEPS", "Limits"]

#: Lanes, for each source: more than any engine's has.
MAX_LANES = 2**16
#: Steps of looking through boxes, for each source: some ten for each section that meets another.
MAX_STEPS = 2**18
#: Ways in which regions meet; a template each, some 80 microseconds and 4 KiB. A model has a few, weights a dozen.
MAX_FAMILIES = 2**13
#: Boxes that are held against another in one step, as arrays.
AT_ONCE = 2**5


class Limits:
    """What one plan of so many sources has left: lanes of its templates, regions of its lists, steps of looking.

    A lane is a region of a list for each region of its family.
    """

    __slots__ = ("lanes", "regions", "steps")

    def __init__(self, sources: int = 1) -> None:
        sources = max(sources, 1)
        self.lanes = self.regions = MAX_LANES * sources
        self.steps = MAX_STEPS * sources

    def look(self, steps: int) -> None:
        """Take steps, or raise OverflowError."""
        self.steps -= steps
        if self.steps < 0:
            raise OverflowError
