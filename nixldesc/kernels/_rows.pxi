# What descriptor ids stand for: walks along strided tables (N x 5), and their expansion.
# Included by _kernels.pyx.


cdef struct Side:        # a table and the row that the walk stands in
    Py_ssize_t row
    int64_t low
    int64_t high


cdef inline bint _find(const int64_t[::1] starts, int64_t desc, Side* side) noexcept nogil:
    """Move to the row of `desc`; rows come in runs, so the row stood in is tried first. False: out of range."""
    cdef Py_ssize_t low = 0, high = starts.shape[0] - 1, middle
    if side.low <= desc < side.high:
        return True
    if desc < 0 or high < 1 or desc >= starts[high]:
        return False
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= desc:
            low = middle
        else:
            high = middle
    side.row, side.low, side.high = low, starts[low], starts[low + 1]
    return True


cdef Py_ssize_t _count_ops(
    const uint64_t[:, ::1] src, const uint64_t[:, ::1] dst,
    const int64_t[::1] src_starts, const int64_t[::1] dst_starts,
    const int32_t[::1] src_ids, const int32_t[::1] dst_ids, Fault* fault,
) noexcept nogil:
    cdef Py_ssize_t i, ops = 0
    cdef Side s, d
    cdef bint joins = False
    memset(&s, 0, sizeof(Side))
    memset(&d, 0, sizeof(Side))
    for i in range(src_ids.shape[0]):
        # An id that goes on from the one before, in a row still stood in and dense, continues its wire operation.
        joins = (
            i > 0 and <int64_t>src_ids[i] - src_ids[i - 1] == 1 and <int64_t>dst_ids[i] - dst_ids[i - 1] == 1
            and src_ids[i] < s.high and dst_ids[i] < d.high
            and src[s.row, 3] == src[s.row, 1] and dst[d.row, 3] == dst[d.row, 1]
        )
        if not joins:
            if not _find(src_starts, src_ids[i], &s) or not _find(dst_starts, dst_ids[i], &d):
                fault.code, fault.position = _OUT_OF_RANGE, i
                return 0
            if src[s.row, 1] != dst[d.row, 1]:
                fault.code, fault.position = _UNEQUAL_LEN, i
                return 0
            ops += 1
    return ops


def count_ops(
    const uint64_t[:, ::1] src not None,
    const uint64_t[:, ::1] dst not None,
    const int64_t[::1] src_starts not None,
    const int64_t[::1] dst_starts not None,
    const int32_t[::1] src_ids not None,
    const int32_t[::1] dst_ids not None,
):
    """Wire operations after NIXL's merging of neighbours, or a fault tuple; ids of both sides are equally many.

    Tables are N x 5; `starts` hold the first desc id of each *row*, then the total.
    """
    cdef Fault fault
    cdef Py_ssize_t ops
    memset(&fault, 0, sizeof(Fault))
    with nogil:
        ops = _count_ops(src, dst, src_starts, dst_starts, src_ids, dst_ids, &fault)
    return _report(&fault) if fault.code else ops


cdef Py_ssize_t _fill_moves(
    const uint64_t[:, ::1] src, const uint64_t[:, ::1] dst,
    const int64_t[::1] src_starts, const int64_t[::1] dst_starts,
    const int32_t[::1] src_regions, const int32_t[::1] dst_regions,
    const int32_t[::1] src_ids, const int32_t[::1] dst_ids, uint64_t[:, ::1] out, bint merge, Fault* fault,
) noexcept nogil:
    cdef Py_ssize_t i, n = 0
    cdef Side s, d
    cdef uint64_t src_addr, dst_addr, length
    cdef int32_t src_region = -1, dst_region = -1
    memset(&s, 0, sizeof(Side))
    memset(&d, 0, sizeof(Side))
    for i in range(src_ids.shape[0]):
        if not _find(src_starts, src_ids[i], &s) or not _find(dst_starts, dst_ids[i], &d):
            fault.code, fault.position = _OUT_OF_RANGE, i
            return 0
        length = src[s.row, 1]
        if length != dst[d.row, 1]:
            fault.code, fault.position = _UNEQUAL_LEN, i
            return 0
        src_addr = src[s.row, 0] + <uint64_t>(src_ids[i] - s.low) * src[s.row, 3]
        dst_addr = dst[d.row, 0] + <uint64_t>(dst_ids[i] - d.low) * dst[d.row, 3]
        if (
            merge and n and src_regions[s.row] == src_region and dst_regions[d.row] == dst_region
            and src_addr > out[n - 1, 0] and src_addr - out[n - 1, 0] == out[n - 1, 2]
            and dst_addr > out[n - 1, 1] and dst_addr - out[n - 1, 1] == out[n - 1, 2]
        ):
            out[n - 1, 2] += length
            continue
        out[n, 0], out[n, 1], out[n, 2] = src_addr, dst_addr, length
        src_region, dst_region = src_regions[s.row], dst_regions[d.row]
        n += 1
    return n


def fill_moves(
    const uint64_t[:, ::1] src not None,
    const uint64_t[:, ::1] dst not None,
    const int64_t[::1] src_starts not None,
    const int64_t[::1] dst_starts not None,
    const int32_t[::1] src_regions not None,
    const int32_t[::1] dst_regions not None,
    const int32_t[::1] src_ids not None,
    const int32_t[::1] dst_ids not None,
    uint64_t[:, ::1] out not None,
    bint merge,
):
    """Write ``(src_addr, dst_addr, len)`` rows to `out` (a row per id pair) and return how many, or a fault tuple.

    `regions` name the region of each table row: only moves inside one region of each side are joined.
    """
    cdef Fault fault
    cdef Py_ssize_t n
    memset(&fault, 0, sizeof(Fault))
    if out.shape[0] < src_ids.shape[0] or out.shape[1] != 3:  # whatever shape an array claims, its memory is what it is
        fault.code = _OUT_SIZE
        return _report(&fault)
    with nogil:
        n = _fill_moves(
            src, dst, src_starts, dst_starts, src_regions, dst_regions, src_ids, dst_ids, out, merge, &fault
        )
    return _report(&fault) if fault.code else n


def expand_rows(const uint64_t[:, ::1] table not None, uint64_t[:, ::1] out not None):
    """Expand N x 5 rows to N x 3; `out` has one row per block, the counts' sum. Returns the rows written."""
    cdef Py_ssize_t row, i, n = 0
    cdef uint64_t addr, length, device, stride
    if table.shape[1] != 5 or out.shape[1] != 3:  # whatever shape an array claims, its memory is what it is
        return -1
    with nogil:
        for row in range(table.shape[0]):
            addr, length, device, stride = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
            # The door has added up the counts, but the table is the caller's and another thread may be writing to it.
            for i in range(<Py_ssize_t>min(table[row, 4], <uint64_t>(out.shape[0] - n))):
                out[n, 0], out[n, 1], out[n, 2] = addr + <uint64_t>i * stride, length, device
                n += 1
    return n


def expand_kernel_blocks(object ids not None, int64_t ratio, object null_block, object out):
    """Kernel block ids of logical ones (``ratio`` a block, a null stays null), or a fault tuple."""
    cdef Scratch scratch
    cdef Fault fault
    cdef Reading rule
    cdef Py_buffer view
    cdef Py_ssize_t i, held
    cdef int64_t k
    cdef int32_t* to
    cdef Ids* read
    memset(&fault, 0, sizeof(Fault))
    rule.has_null = null_block is not None
    rule.null = null_block if rule.has_null else 0
    rule.limit = (<int64_t>1 << 31) // ratio
    try:
        _open(&scratch, 1, 0)
        read = scratch.ids
        _load(ids, read, &rule, &scratch, &fault)
        if fault.code == _OK and read.bad >= 0:
            fault.code, fault.position = _OUT_OF_RANGE, read.bad
        if fault.code == _OK and read.n * ratio >= INT32_MAX:
            fault.code = _MEMORY
        if fault.code != _OK:
            return _report(&fault)
        if out is None:
            out = _empty(read.n * ratio, _INT32)
        held = _claim(out, read.n * ratio, &view)
        if held != read.n * ratio:
            fault.code, fault.position, fault.extra = _OUT_SIZE, held, read.n * ratio
            return _report(&fault)
        to = <int32_t*>view.buf
        for i in range(read.n):
            for k in range(ratio):
                to[i * ratio + k] = <int32_t>(rule.null if read.at[i] == _NULL else read.at[i] * ratio + k)
        PyBuffer_Release(&view)
        return out
    finally:
        _close(&scratch)


def sort_pairs(int32_t[::1] src not None, int32_t[::1] dst not None):
    """Sort id pairs in place by dst, stable; False where there was no memory. Both are equally long."""
    cdef int failed = 0
    cdef Py_ssize_t twin
    with nogil:
        if dst.shape[0]:
            failed = _sort_by_dst(&src[0], &dst[0], dst.shape[0], &twin)
    return failed == 0
