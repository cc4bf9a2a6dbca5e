# Columns of regions to the rows of a table: how each region is laid, and its rows. The six ways and their ids are drawn
# in nixldesc/memory/columns.py. Included by _kernels.pyx.

# One row, a row per block, a row per block and sub-block; with a row per run the same.
cdef enum Laying:
    _ONE = 0
    _BLOCK = 1
    _PIECE = 2
    _RUN = 3
    _RUN_BLOCK = 4
    _EACH = 5

ONE, RUN, EACH = _ONE, _RUN, _EACH

cdef struct Cut:         # one region's numbers, as in the rows of `Columns.numbers`
    uint64_t blocks
    uint64_t length
    uint64_t stride
    uint64_t subs
    uint64_t sub_stride
    uint64_t runs
    uint64_t run_stride

cdef struct Rows:        # the rows of a table that are written one after the other
    uint64_t* at
    Py_ssize_t left


cdef inline Cut _cut(const uint64_t[:, ::1] numbers, Py_ssize_t i) noexcept nogil:
    cdef Cut cut
    cut.blocks, cut.length, cut.stride = numbers[1, i], numbers[3, i], numbers[4, i]
    cut.subs, cut.sub_stride, cut.runs, cut.run_stride = numbers[5, i], numbers[6, i], numbers[7, i], numbers[8, i]
    return cut


cdef Laying _form(const Cut* cut, uint64_t segments, uint64_t* rows) noexcept nogil:
    """Choose the form of fewest rows; of equally many the first named here."""
    cdef uint64_t n = cut.blocks, s = cut.subs, r = cut.runs
    cdef uint64_t step = cut.run_stride if r > 1 else cut.sub_stride
    cdef bint inner = r == 1 or s == 1 or r * cut.run_stride == cut.sub_stride
    cdef bint outer = s == 1 or n == 1 or s * cut.sub_stride == cut.stride
    # Blocks are the rows' steps unless that takes more rows; of a region that is only cut, always.
    cdef bint woven = r > 1 or segments > 1
    cdef Laying best = _EACH
    if (s == 1 and r == 1) or (inner and (n == 1 or s * r * step == cut.stride)):
        rows[0] = segments
        return _ONE
    rows[0] = r * s * segments
    if outer and r > 1:  # never more than EACH
        best, rows[0] = _RUN, r * segments
    if inner and woven and n < rows[0]:
        best, rows[0] = _BLOCK, n
    if woven and n * s < rows[0]:
        best, rows[0] = _PIECE, n * s
    if woven and r * n < rows[0]:
        best, rows[0] = _RUN_BLOCK, r * n
    return best


def lay_rows(
    const uint64_t[:, ::1] numbers not None,
    const int64_t[::1] segments not None,
    int64_t[::1] forms not None,
    int64_t[::1] rows not None,
):
    """Choose each region's form and count its rows; `segments`: how many of its own a region has, 0 for one memory."""
    cdef Py_ssize_t i
    cdef uint64_t count = 0
    cdef Cut cut
    with nogil:
        for i in range(forms.shape[0]):
            cut = _cut(numbers, i)
            forms[i] = _form(&cut, <uint64_t>segments[i] if segments[i] > 0 else 1, &count)
            rows[i] = <int64_t>count


cdef inline void _row(
    Rows* out, uint64_t addr, uint64_t length, uint64_t device, uint64_t step, uint64_t count
) noexcept nogil:
    if out.left > 0:
        out.at[0], out.at[1], out.at[2], out.at[3], out.at[4] = addr, length, device, step, count
        out.at += 5
    out.left -= 1


cdef void _fill_segment(
    Rows* out, const Cut* cut, Laying form, uint64_t base, uint64_t blocks, uint64_t device
) noexcept nogil:
    """Write the rows of one segment, or what one run and sub-block have of them."""
    cdef uint64_t b, k
    cdef uint64_t outer = cut.sub_stride if cut.subs > 1 else cut.stride
    cdef uint64_t inner = cut.run_stride if cut.runs > 1 else outer
    if form == _ONE:
        _row(out, base, cut.length, device, inner, blocks * cut.subs * cut.runs)
    elif form == _RUN:
        _row(out, base, cut.length, device, outer, blocks * cut.subs)
    elif form == _EACH:
        _row(out, base, cut.length, device, cut.stride, blocks)
    else:
        for b in range(blocks):
            if form == _BLOCK:
                _row(out, base + b * cut.stride, cut.length, device, inner, cut.subs * cut.runs)
            elif form == _RUN_BLOCK:
                _row(out, base + b * cut.stride, cut.length, device, cut.sub_stride, cut.subs)
            else:
                for k in range(cut.subs):
                    _row(out, base + b * cut.stride + k * cut.sub_stride, cut.length, device, cut.run_stride, cut.runs)


cdef void _fill_region(
    Rows* out, const Cut* cut, Laying form, const uint64_t* segments, Py_ssize_t count, Py_ssize_t step
) noexcept nogil:
    """Write a region's rows: run by run and sub-block by sub-block as far as its form says so, then its segments."""
    cdef uint64_t j, k
    cdef Py_ssize_t g
    cdef uint64_t offset
    for j in range(cut.runs if form >= _RUN else 1):
        for k in range(cut.subs if form == _EACH else 1):
            offset = j * cut.run_stride + k * cut.sub_stride
            for g in range(count):
                _fill_segment(out, cut, form, segments[0] + offset, segments[1], segments[2])
                segments += step
            segments -= count * step


def fill_columns(
    const uint64_t[:, ::1] whole not None,
    const int64_t[::1] regions not None,
    const uint64_t[:, ::1] lanes not None,
    uint64_t[:, ::1] numbers not None,
):
    """Write the columns of a list: a lane in each of the regions of `whole`, the lanes in turn; return how many.

    `lanes`: offsets from the block's start, block_lens, sub_blocks, sub_strides, runs, run_strides. Fewer columns than
    regions: that region is not there.
    """
    cdef Py_ssize_t i, row, lane = 0, done = 0
    cdef int64_t region
    with nogil:
        for i in range(regions.shape[0]):
            region = regions[i]
            if not 0 <= region < whole.shape[1]:
                break
            numbers[0, i] = whole[0, region] + lanes[0, lane]
            numbers[1, i], numbers[2, i], numbers[4, i] = whole[1, region], whole[2, region], whole[4, region]
            numbers[3, i] = lanes[1, lane]
            for row in range(2, lanes.shape[0]):
                numbers[row + 3, i] = lanes[row, lane]
            lane = lane + 1 if lane + 1 < lanes.shape[1] else 0
            done += 1
    return done


def fill_plain(const uint64_t[:, ::1] numbers not None, uint64_t[:, ::1] table not None):
    """Write the row of each region that is one piece of one memory; rows beyond the table are not written."""
    cdef Py_ssize_t i
    cdef Rows out
    with nogil:
        out.at, out.left = &table[0, 0] if table.shape[0] else NULL, table.shape[0]
        for i in range(numbers.shape[1]):
            _row(&out, numbers[0, i], numbers[3, i], numbers[2, i], numbers[4, i], numbers[1, i])
    return table.shape[0] - out.left


def fill_table(
    const uint64_t[:, ::1] numbers not None,
    const int64_t[::1] forms not None,
    const int64_t[::1] counts not None,
    const uint64_t[:, ::1] segments not None,
    uint64_t[:, ::1] table not None,
):
    """Write the rows of all regions; return how many there are.

    `counts` and `segments`: how many segments of its own each region has (0: it lies in one memory), and all of them as
    rows (base, blocks, device). Rows beyond the table are not written.
    """
    cdef Py_ssize_t i, g = 0
    cdef uint64_t whole[3]
    cdef Cut cut
    cdef Rows out
    with nogil:
        out.at, out.left = &table[0, 0] if table.shape[0] else NULL, table.shape[0]
        for i in range(forms.shape[0]):
            cut = _cut(numbers, i)
            if counts[i]:
                if g + counts[i] > segments.shape[0]:
                    break
                _fill_region(&out, &cut, <Laying>forms[i], &segments[g, 0], counts[i], 3)
                g += counts[i]
            else:
                whole[0], whole[1], whole[2] = numbers[0, i], numbers[1, i], numbers[2, i]
                _fill_region(&out, &cut, <Laying>forms[i], whole, 1, 3)
    return table.shape[0] - out.left
