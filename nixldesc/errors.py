"""The exceptions of nixldesc.

Every message says what was refused, where (region, section, group, position), what was got and what was expected.
Each class also derives from the built-in that a caller would have guessed, so ``except ValueError`` keeps working.
Wrong *types* are plain :class:`TypeError`; a wrong ``out=`` is :class:`ValueError` (shape, layout, writability) or
:class:`TypeError` (dtype).
"""

__all__ = [
    "BlockIdError",
    "GeometryError",
    "NixldescError",
    "PeerMismatchError",
    "TransferError",
]


class NixldescError(Exception):
    """Base of every error that this library raises about a caller's or a peer's data.

    >>> issubclass(GeometryError, NixldescError)
    True
    """


class GeometryError(NixldescError, ValueError):
    """A region, section or layout that cannot exist: overlapping blocks, a wrapped address, too many descriptors.

    >>> from nixldesc import Layout, Region
    >>> Layout([Region("k", 0, 16, 4, block_stride=8)])
    Traceback (most recent call last):
        ...
    nixldesc.errors.GeometryError: region 'k': block_stride is 8 bytes, less than block_len 16
    """


class BlockIdError(NixldescError, IndexError):
    """A block id, descriptor id or block list that does not fit the layout or its counterpart.

    >>> from nixldesc import Layout, Region
    >>> Layout([Region("k", 0, 16, 4)]).desc_ids([[1, 4]])
    Traceback (most recent call last):
        ...
    nixldesc.errors.BlockIdError: group 0, position 1: block id 4 is out of range, region 'k' has 4 blocks (0 to 3)
    """


class PeerMismatchError(NixldescError, ValueError):
    """Two layouts between which some byte cannot be delivered exactly.

    >>> from nixldesc import Layout, Region, plan
    >>> plan(Layout([Region("k", 0, 16, 4)]), {0: Layout([Region("v", 0, 16, 4)])})
    Traceback (most recent call last):
        ...
    nixldesc.errors.PeerMismatchError: section 'k' (region 'k'): no source holds a section of that name; sources hold \
'v'; allow_missing names the sections that may have no source
    """


class TransferError(NixldescError, RuntimeError):
    """A transfer that NIXL refused or that failed under way; names the peer, the memory types and NIXL's status.

    `in_doubt` is empty, or the ``(addr, len, device_id, mem_type)`` ranges of this agent's memory that NIXL may still
    use, because it has not confirmed the transfer's end (see :mod:`nixldesc.adapter`).

    >>> raise TransferError("peer 'prefill-0', DRAM to VRAM: post failed with NIXL_ERR_BACKEND")
    Traceback (most recent call last):
        ...
    nixldesc.errors.TransferError: peer 'prefill-0', DRAM to VRAM: post failed with NIXL_ERR_BACKEND
    """

    in_doubt: tuple[tuple[int, int, int, str], ...] = ()
