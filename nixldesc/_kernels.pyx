"""The loops: list reading, range checks, position alignment, pair sorting, id expansion, merge counting, moves.

Nothing here words an error. What is refused comes back as a ``Fault``: a code and where it happened; the Python door
that called words it. Nothing here knows NumPy's C headers: arrays are buffers, and `numpy.empty` is called as Python.

A request runs in three steps, all over plain int32 scratch memory::

    block lists   --load-->  Ids (range-checked int32)  --align, sort-->  Flat (ids relative to a region's start)
                                                                             |
                                            out[job] = start[job] + flat  <--+--  one addition per descriptor

Loops release the GIL where a request is long enough to be worth it; reading a Python list needs the GIL.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from operator import index as _index

from numpy import bool_ as _bool
from numpy import dtype as _dtype
from numpy import empty as _empty
from numpy import ndarray as _ndarray

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef object _INT32 = _dtype("int32")

# Fault codes; the doors import them by name.
cdef enum:
    _OK = 0
    _UNREAD = 1          # not a list, tuple or plain int32/int64 array: the door converts it or words a TypeError
    _BAD_TYPE = 2        # an element that is no integer
    _OUT_OF_RANGE = 3    # a block id outside its regions
    _CHANGED = 4         # the list changed its length while it was read
    _MISFIT = 5          # two plain lists that cannot cover the same tokens
    _UNSERVED = 6        # a non-empty list that no region takes
    _OUT_SIZE = 7        # `out` holds another number of ids
    _UNEQUAL_LEN = 8     # a source and a destination descriptor of different length
    _MEMORY = 9
    _FAR = 10            # positions that 64 bits cannot count

UNREAD, BAD_TYPE, OUT_OF_RANGE, CHANGED, MISFIT = _UNREAD, _BAD_TYPE, _OUT_OF_RANGE, _CHANGED, _MISFIT
UNSERVED, OUT_SIZE, UNEQUAL_LEN, MEMORY, FAR = _UNSERVED, _OUT_SIZE, _UNEQUAL_LEN, _MEMORY, _FAR

# Marks inside an Ids buffer; real ids are >= 0.
cdef enum:
    _NULL = -1           # the null block
    _BAD = -2            # out of range, allowed only opposite a null block
    _SPARED = -3         # out of range, but its pair was dropped for the null block opposite

# Fewer ids than this are done before another thread could have taken the GIL.
cdef Py_ssize_t _LONG = 4096

cdef struct Ids:         # one block list, read
    int32_t* at
    Py_ssize_t n
    int64_t skip
    bint plain
    Py_ssize_t bad       # position of the first _BAD, or -1

cdef struct Flat:        # ids relative to a region's start; dst is NULL for one side alone
    int32_t* src
    int32_t* dst
    Py_ssize_t n
    bint borrowed

cdef struct Fault:
    int code
    int side
    Py_ssize_t group
    Py_ssize_t position
    Py_ssize_t extra

cdef struct Reading:     # what a list is read against
    int64_t limit
    int64_t null
    bint has_null


cdef inline tuple _report(Fault* fault):
    return (fault.code, fault.side, fault.group, fault.position, fault.extra)


# --------------------------------------------------------------------------------------------- reading block lists

cdef inline int32_t _admit(int64_t value, Reading* rule) noexcept nogil:
    if rule.has_null and value == rule.null:
        return _NULL
    if 0 <= value < rule.limit:
        return <int32_t>value
    return _BAD


cdef int _value(object item, int64_t* value) except -1:
    """Read one integer; 1: read, 0: no integer. Values beyond 64 bits become INT64_MAX, out of any range."""
    cdef int overflow = 0
    if not PyLong_CheckExact(item):
        if isinstance(item, (bool, _bool, float, str)) or not hasattr(type(item), "__index__"):
            return 0
        item = _index(item)
    value[0] = PyLong_AsLongLongAndOverflow(item, &overflow)
    if overflow:
        value[0] = INT64_MAX
    return 1


cdef int _read_list(list items, Ids* ids, Reading* rule, Fault* fault) except -1:
    # An element's __index__ may run any code, also code that shortens this list: its size is asked anew each time.
    cdef Py_ssize_t i = 0
    cdef int64_t value = 0
    cdef object item
    with cython.critical_section(items):
        while i < ids.n and i < PyList_GET_SIZE(items):
            item = <object>PyList_GET_ITEM(items, i)
            if not _value(item, &value):
                fault.code, fault.position = _BAD_TYPE, i
                return 0
            ids.at[i] = _admit(value, rule)
            if ids.at[i] == _BAD and ids.bad < 0:
                ids.bad = i
            i += 1
        if PyList_GET_SIZE(items) != ids.n:
            fault.code, fault.position, fault.extra = _CHANGED, PyList_GET_SIZE(items), ids.n
    return 0


cdef int _read_tuple(tuple items, Ids* ids, Reading* rule, Fault* fault) except -1:
    cdef Py_ssize_t i
    cdef int64_t value = 0
    for i in range(ids.n):
        if not _value(<object>PyTuple_GET_ITEM(items, i), &value):
            fault.code, fault.position = _BAD_TYPE, i
            return 0
        ids.at[i] = _admit(value, rule)
        if ids.at[i] == _BAD and ids.bad < 0:
            ids.bad = i
    return 0


cdef void _read_int32(const int32_t* items, Ids* ids, Reading* rule) noexcept nogil:
    # Copy first, check the copy: another thread may be writing to the caller's array.
    cdef Py_ssize_t i
    cdef uint32_t limit = <uint32_t>rule.limit
    cdef bint odd = False
    memcpy(ids.at, items, ids.n * sizeof(int32_t))
    for i in range(ids.n):
        odd |= <uint32_t>ids.at[i] >= limit
    if odd or rule.has_null:
        for i in range(ids.n):
            ids.at[i] = _admit(ids.at[i], rule)
            if ids.at[i] == _BAD and ids.bad < 0:
                ids.bad = i


cdef void _read_int64(const int64_t* items, Ids* ids, Reading* rule) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(ids.n):
        ids.at[i] = _admit(items[i], rule)
        if ids.at[i] == _BAD and ids.bad < 0:
            ids.bad = i


cdef int _read_array(object items, Ids* ids, Reading* rule, Fault* fault) except -1:
    cdef Py_buffer view
    cdef char kind
    try:
        PyObject_GetBuffer(items, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError):
        fault.code = _UNREAD
        return 0
    try:
        kind = view.format[0] if view.format != NULL and view.format[1] == 0 else b"?"
        if view.ndim != 1 or kind not in b"ilq" or <size_t>view.buf % <size_t>view.itemsize:
            fault.code = _UNREAD
            return 0
        ids.n = view.len // view.itemsize
        if ids.n < INT32_MAX:
            ids.at = <int32_t*>malloc((ids.n + 1) * sizeof(int32_t))
        if ids.at == NULL:
            fault.code = _MEMORY
        elif view.itemsize == 4:
            _read_int32(<const int32_t*>view.buf, ids, rule)
        else:
            _read_int64(<const int64_t*>view.buf, ids, rule)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int _load(object items, Ids* ids, Reading* rule, Fault* fault) except -1:
    """Read one block list into `ids` (its memory is the caller's to free); a refusal is left in `fault`."""
    ids.bad = -1
    if isinstance(items, list):
        ids.n = PyList_GET_SIZE(items)
    elif isinstance(items, tuple):
        ids.n = PyTuple_GET_SIZE(items)
    elif isinstance(items, _ndarray):
        return _read_array(items, ids, rule, fault)
    else:
        fault.code = _UNREAD
        return 0
    if ids.n < INT32_MAX:
        ids.at = <int32_t*>malloc((ids.n + 1) * sizeof(int32_t))
    if ids.at == NULL:
        fault.code = _MEMORY
        return 0
    if isinstance(items, list):
        return _read_list(<list>items, ids, rule, fault)
    return _read_tuple(<tuple>items, ids, rule, fault)


cdef inline object _list_at(object lists, Py_ssize_t group):
    if isinstance(lists, list):
        return (<list>lists)[group]
    return (<tuple>lists)[group]


# ------------------------------------------------------------------------------------------------ writing the result

cdef inline void _spread(const int32_t* flat, Py_ssize_t n, int32_t start, int32_t* out) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        out[i] = start + flat[i]


cdef void _spread_jobs(
    const int32_t[:, ::1] jobs, Py_ssize_t column, Py_ssize_t first, Py_ssize_t last, Flat* flats, bint dst, int32_t* out
) noexcept nogil:
    cdef Py_ssize_t job
    cdef Flat* flat
    for job in range(first, last):
        flat = &flats[jobs[job, 0]]
        _spread(flat.dst if dst else flat.src, flat.n, jobs[job, column], out)
        out += flat.n


cdef Py_ssize_t _total(const int32_t[:, ::1] jobs, Py_ssize_t first, Py_ssize_t last, Flat* flats) noexcept nogil:
    cdef Py_ssize_t job, total = 0
    for job in range(first, last):
        total += flats[jobs[job, 0]].n
    return total


cdef object _spread_into(
    const int32_t[:, ::1] jobs, Py_ssize_t column, Py_ssize_t first, Py_ssize_t last, Flat* flats, bint dst,
    Py_ssize_t total, object out,
):
    """Write one side's ids to `out` (None: a fresh array) and return it; the door has checked `out` but its size."""
    cdef Py_buffer view
    if out is None:
        out = _empty(total, _INT32)
    PyObject_GetBuffer(out, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if total > _LONG:
            with nogil:
                _spread_jobs(jobs, column, first, last, flats, dst, <int32_t*>view.buf)
        elif total:
            _spread_jobs(jobs, column, first, last, flats, dst, <int32_t*>view.buf)
    finally:
        PyBuffer_Release(&view)
    return out


cdef void _free(Ids* ids, Py_ssize_t num_ids, Flat* flats, Py_ssize_t num_flats) noexcept:
    cdef Py_ssize_t i
    if ids != NULL:
        for i in range(num_ids):
            free(ids[i].at)
        free(ids)
    if flats != NULL:
        for i in range(num_flats):
            if not flats[i].borrowed:
                free(flats[i].src)
                free(flats[i].dst)
        free(flats)


# -------------------------------------------------------------------------------------------- one layout's descriptor ids

cdef void _flatten(const Ids* ids, int64_t sub, int64_t uneven, int32_t* out) noexcept nogil:
    """Flat ids of whole blocks: ``block * sub + k``, or ``k * num_blocks + block`` where sub-blocks are uneven."""
    cdef Py_ssize_t i
    cdef int64_t k
    for i in range(ids.n):
        for k in range(sub):
            out[i * sub + k] = <int32_t>(k * uneven + ids.at[i] if uneven else ids.at[i] * sub + k)


@cython.final
cdef class LayoutProgram:
    """The static part of a layout's ``desc_ids``: which group's list goes where.

    `limits[group]`: exclusive bound of the group's block ids, -1 where no region takes the group. `flats[f]`:
    ``(group, sub_blocks, uneven num_blocks or 0)``. `jobs[j]`: ``(f, start)`` in the order of the result.
    """

    cdef const int64_t[::1] limits
    cdef const int64_t[:, ::1] flats
    cdef const int32_t[:, ::1] jobs

    def __init__(
        self,
        const int64_t[::1] limits not None,
        const int64_t[:, ::1] flats not None,
        const int32_t[:, ::1] jobs not None,
    ):
        self.limits, self.flats, self.jobs = limits, flats, jobs

    def run(self, object block_ids not None, object out):
        """Return the ids, or a fault tuple. `block_ids` is a list or tuple of at least ``len(limits)`` lists."""
        cdef Py_ssize_t num_groups = self.limits.shape[0], num_flats = self.flats.shape[0]
        cdef Ids* ids = <Ids*>calloc(num_groups + 1, sizeof(Ids))
        cdef Flat* flats = <Flat*>calloc(num_flats + 1, sizeof(Flat))
        cdef Fault fault
        cdef Py_ssize_t total
        memset(&fault, 0, sizeof(Fault))
        try:
            if ids == NULL or flats == NULL:
                fault.code = _MEMORY
            if fault.code == _OK:
                self._read(block_ids, ids, &fault)
            if fault.code == _OK:
                self._flatten(ids, flats, &fault)
            if fault.code != _OK:
                return _report(&fault)
            total = _total(self.jobs, 0, self.jobs.shape[0], flats)
            if out is not None and len(out) != total:
                fault.code, fault.position, fault.extra = _OUT_SIZE, len(out), total
                return _report(&fault)
            return _spread_into(self.jobs, 1, 0, self.jobs.shape[0], flats, False, total, out)
        finally:
            _free(ids, num_groups, flats, num_flats)

    cdef int _read(self, object block_ids, Ids* ids, Fault* fault) except -1:
        cdef Py_ssize_t group
        cdef Reading rule
        memset(&rule, 0, sizeof(Reading))
        for group in range(self.limits.shape[0]):
            fault.group = group
            rule.limit = self.limits[group]
            _load(_list_at(block_ids, group), &ids[group], &rule, fault)
            if fault.code != _OK:
                return 0
            if rule.limit < 0 and ids[group].n:
                fault.code, fault.extra = _UNSERVED, ids[group].n
                return 0
            if ids[group].bad >= 0:
                fault.code, fault.position = _OUT_OF_RANGE, ids[group].bad
                return 0
        return 0

    cdef int _flatten(self, Ids* ids, Flat* flats, Fault* fault) except -1:
        cdef Py_ssize_t f
        cdef int64_t sub
        for f in range(self.flats.shape[0]):
            sub = self.flats[f, 1]
            flats[f].n = ids[self.flats[f, 0]].n * sub
            flats[f].borrowed = sub == 1
            if sub == 1:
                flats[f].src = ids[self.flats[f, 0]].at
                continue
            flats[f].src = <int32_t*>malloc((flats[f].n + 1) * sizeof(int32_t))
            if flats[f].src == NULL:
                fault.code = _MEMORY
                return 0
            _flatten(&ids[self.flats[f, 0]], sub, self.flats[f, 2], flats[f].src)
        return 0


# ---------------------------------------------------------------------------------------- a pair: align, sort, expand

cdef struct Align:       # how two lists meet: row of PairProgram.aligns
    int64_t src_group
    int64_t dst_group
    int64_t src_sub      # sub-blocks per block
    int64_t dst_sub
    int64_t src_first    # entry i stands at block position first + (skip + i) * every
    int64_t src_every
    int64_t dst_first
    int64_t dst_every


cdef struct Met:         # one aligned position: indices into the two lists and sub-blocks of the two blocks
    int32_t src
    int32_t dst
    int32_t src_k
    int32_t dst_k


cdef bint _fits(const Align* rule, Py_ssize_t src_n, Py_ssize_t dst_n) noexcept nogil:
    """Whether some number of tokens needs exactly so many blocks on each side."""
    if src_n == 0 or dst_n == 0:
        return src_n == dst_n
    return max((src_n - 1) * rule.src_sub, (dst_n - 1) * rule.dst_sub) < min(src_n * rule.src_sub, dst_n * rule.dst_sub)


cdef Py_ssize_t _meet(const Align* rule, const Ids* src, const Ids* dst, Met* out) noexcept nogil:
    """Pair the positions that both lists hold; both are increasing, so one walk along the two is enough."""
    cdef Py_ssize_t i = 0, j = 0, n = 0
    cdef int64_t at_src = (rule.src_first + src.skip * rule.src_every) * rule.src_sub
    cdef int64_t at_dst = (rule.dst_first + dst.skip * rule.dst_every) * rule.dst_sub
    cdef int64_t step_src = rule.src_every * rule.src_sub, step_dst = rule.dst_every * rule.dst_sub
    cdef int64_t at, end_src, end_dst
    while i < src.n and j < dst.n:
        end_src, end_dst = at_src + rule.src_sub, at_dst + rule.dst_sub
        for at in range(max(at_src, at_dst), min(end_src, end_dst)):
            out[n].src, out[n].dst = <int32_t>i, <int32_t>j
            out[n].src_k, out[n].dst_k = <int32_t>(at - at_src), <int32_t>(at - at_dst)
            n += 1
        if end_src <= end_dst:
            i += 1
            at_src += step_src
        if end_dst <= end_src:
            j += 1
            at_dst += step_dst
    return n


cdef Py_ssize_t _drop_null(Met* met, Py_ssize_t n, Ids* src, Ids* dst, Fault* fault) noexcept nogil:
    """Keep the pairs without a null block; an id out of range opposite a null is spared, any other is a fault."""
    cdef Py_ssize_t i, kept = 0
    cdef int32_t a, b
    for i in range(n):
        a, b = src.at[met[i].src], dst.at[met[i].dst]
        if a >= 0 and b >= 0:
            met[kept] = met[i]
            kept += 1
        elif a == _NULL or b == _NULL:
            if a == _BAD:
                src.at[met[i].src] = _SPARED
            if b == _BAD:
                dst.at[met[i].dst] = _SPARED
        else:
            fault.code, fault.side = _OUT_OF_RANGE, 0 if a < 0 else 1
            fault.position = met[i].src if a < 0 else met[i].dst
            return 0
    return kept


cdef inline int32_t _flat(int32_t block, int32_t k, int64_t sub, int64_t uneven) noexcept nogil:
    return <int32_t>(k * uneven + block if uneven else block * sub + k)


cdef void _insert_by_dst(int32_t* src, int32_t* dst, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef int32_t a, b
    for i in range(1, n):
        a, b, j = src[i], dst[i], i
        while j > 0 and dst[j - 1] > b:
            src[j], dst[j] = src[j - 1], dst[j - 1]
            j -= 1
        src[j], dst[j] = a, b


cdef int _sort_by_dst(int32_t* src, int32_t* dst, Py_ssize_t n) noexcept nogil:
    """Sort pairs by dst, stable. Returns 0, or 1 without memory.

    Radix sort, least significant digit first, over packed (dst, src) words; wide digits only where the pairs are many
    enough to pay for clearing the counters. Lists in order (a fresh engine's) are only looked at.
    """
    cdef Py_ssize_t i, at, tally
    cdef uint32_t top = 0, shift = 0, digit, bits = 8 if n < 1500 else 11
    cdef uint32_t mask = (<uint32_t>1 << bits) - 1
    cdef uint64_t *keys
    cdef uint64_t *other
    cdef uint64_t *swap
    cdef uint32_t count[2048]
    cdef bint sorted_already = True
    for i in range(1, n):
        sorted_already &= dst[i - 1] <= dst[i]
    if sorted_already:
        return 0
    if n <= 48:
        _insert_by_dst(src, dst, n)
        return 0
    keys = <uint64_t*>malloc(2 * n * sizeof(uint64_t))
    if keys == NULL:
        return 1
    other = keys + n
    for i in range(n):
        top |= <uint32_t>dst[i]
        keys[i] = <uint64_t><uint32_t>dst[i] << 32 | <uint32_t>src[i]
    while shift < 32 and top >> shift:
        memset(count, 0, (mask + 1) * sizeof(uint32_t))
        for i in range(n):
            count[keys[i] >> (32 + shift) & mask] += 1
        at = 0
        for i in range(<Py_ssize_t>mask + 1):
            tally = count[i]
            count[i] = <uint32_t>at
            at += tally
        for i in range(n):
            digit = keys[i] >> (32 + shift) & mask
            other[count[digit]] = keys[i]
            count[digit] += 1
        swap = keys
        keys = other
        other = swap
        shift += bits
    for i in range(n):
        dst[i] = <int32_t>(keys[i] >> 32)
        src[i] = <int32_t><uint32_t>keys[i]
    free(keys if keys < other else other)
    return 0


@cython.final
cdef class PairProgram:
    """The static part of a pair's ``desc_ids``: which lists meet how, and where the met blocks go.

    `aligns[a]`: the fields of ``Align``. `flats[f]`: ``(first align, aligns, src uneven num_blocks or 0, dst the
    same)``. `jobs[j]` (one per region of the pair): ``(f, src start, dst start, src num_blocks, dst num_blocks)``.
    `src_groups`, `dst_groups`: how many lists each side must give.
    """

    cdef const int64_t[:, ::1] aligns
    cdef const int64_t[:, ::1] flats
    cdef const int32_t[:, ::1] jobs
    cdef Py_ssize_t src_groups, dst_groups
    cdef int64_t reach   # entries, given or skipped, whose positions 64 bits can count

    def __init__(
        self,
        const int64_t[:, ::1] aligns not None,
        const int64_t[:, ::1] flats not None,
        const int32_t[:, ::1] jobs not None,
        Py_ssize_t src_groups,
        Py_ssize_t dst_groups,
    ):
        self.aligns, self.flats, self.jobs = aligns, flats, jobs
        self.src_groups, self.dst_groups = src_groups, dst_groups
        cdef Py_ssize_t a
        cdef int64_t bound
        self.reach = INT64_MAX
        for a in range(aligns.shape[0]):
            for every, sub in ((5, 2), (7, 3)):
                bound = (<object>1 << 62) // (int(aligns[a, every]) * int(aligns[a, sub])) - 1
                self.reach = min(self.reach, bound)

    def run(
        self,
        object src_lists not None,
        object dst_lists not None,
        object src_skips,
        object dst_skips,
        bint merge,
        object null_block,
        Py_ssize_t first,
        Py_ssize_t last,
        object src_out,
        object dst_out,
    ):
        """Return ``(src_ids, dst_ids)`` of regions `first` to `last`, or a fault tuple (5 ints).

        Skips are None (all lists plain) or a tuple: -1 for a plain list, else the number of entries not given.
        """
        cdef Py_ssize_t num_ids = self.src_groups + self.dst_groups, num_flats = self.flats.shape[0]
        cdef Ids* ids = <Ids*>calloc(num_ids + 1, sizeof(Ids))
        cdef Flat* flats = <Flat*>calloc(num_flats + 1, sizeof(Flat))
        cdef Fault fault
        cdef Reading rule
        cdef Py_ssize_t total
        memset(&fault, 0, sizeof(Fault))
        memset(&rule, 0, sizeof(Reading))
        rule.has_null = null_block is not None
        if rule.has_null:
            rule.null = null_block
        try:
            if ids == NULL or flats == NULL:
                fault.code = _MEMORY
            if fault.code == _OK:
                self._read(src_lists, src_skips, ids, 0, first, last, &rule, &fault)
            if fault.code == _OK:
                self._read(dst_lists, dst_skips, ids + self.src_groups, 1, first, last, &rule, &fault)
            if fault.code == _OK:
                self._align(ids, flats, first, last, merge, rule.has_null, &fault)
            if fault.code != _OK:
                return _report(&fault)
            total = _total(self.jobs, first, last, flats)
            if src_out is not None and not (len(src_out) == len(dst_out) == total):
                fault.code, fault.group, fault.position, fault.extra = _OUT_SIZE, len(src_out), len(dst_out), total
                return _report(&fault)
            return (
                _spread_into(self.jobs, 1, first, last, flats, False, total, src_out),
                _spread_into(self.jobs, 2, first, last, flats, True, total, dst_out),
            )
        finally:
            _free(ids, num_ids, flats, num_flats)

    cdef int _read(
        self, object lists, object skips, Ids* ids, int side, Py_ssize_t first, Py_ssize_t last, Reading* rule,
        Fault* fault,
    ) except -1:
        """Read the lists that regions `first` to `last` take, each against the smallest of those regions."""
        cdef Py_ssize_t num_groups = self.dst_groups if side else self.src_groups
        cdef Py_ssize_t job, a, group, flat
        cdef int64_t capacity
        cdef int64_t* limits = <int64_t*>calloc(num_groups + 1, sizeof(int64_t))
        if limits == NULL:
            fault.code = _MEMORY
            return 0
        try:
            for job in range(first, last):
                flat, capacity = self.jobs[job, 0], self.jobs[job, 3 + side]
                for a in range(self.flats[flat, 0], self.flats[flat, 0] + self.flats[flat, 1]):
                    group = self.aligns[a, side]
                    if limits[group] == 0 or capacity < limits[group]:
                        limits[group] = capacity
            fault.side = side
            for group in range(num_groups):
                if limits[group] == 0:
                    continue
                fault.group = group
                ids[group].plain = skips is None or skips[group] < 0
                ids[group].skip = 0 if ids[group].plain else skips[group]
                rule.limit = limits[group]
                _load(_list_at(lists, group), &ids[group], rule, fault)
                if fault.code == _OK and ids[group].skip > self.reach - ids[group].n:
                    fault.code, fault.position = _FAR, ids[group].skip
                if fault.code == _OK and ids[group].bad >= 0 and not rule.has_null:
                    fault.code, fault.position = _OUT_OF_RANGE, ids[group].bad
                if fault.code != _OK:
                    return 0
        finally:
            free(limits)
        return 0

    cdef int _align(
        self, Ids* ids, Flat* flats, Py_ssize_t first, Py_ssize_t last, bint merge, bint has_null, Fault* fault
    ) except -1:
        cdef Py_ssize_t job, i, n = 0
        for job in range(first, last):
            if flats[self.jobs[job, 0]].src != NULL:
                continue
            i = self.flats[self.jobs[job, 0], 0]
            n = self._room(ids, i, i + self.flats[self.jobs[job, 0], 1], fault)
            if fault.code != _OK:
                return 0
            if n > _LONG:
                with nogil:
                    self._fill(ids, &flats[self.jobs[job, 0]], self.jobs[job, 0], n, merge, has_null, fault)
            else:
                self._fill(ids, &flats[self.jobs[job, 0]], self.jobs[job, 0], n, merge, has_null, fault)
            if fault.code != _OK:
                return 0
        if has_null:
            self._check_spared(ids, fault)
        return 0

    cdef Py_ssize_t _room(self, Ids* ids, Py_ssize_t first, Py_ssize_t last, Fault* fault) noexcept nogil:
        """Upper bound of the pairs that aligns `first` to `last` can meet; two plain lists must fit one another."""
        cdef Py_ssize_t a, room = 0
        cdef const Align* rule
        cdef Ids *src
        cdef Ids *dst
        for a in range(first, last):
            rule = <const Align*>&self.aligns[a, 0]
            src, dst = &ids[rule.src_group], &ids[self.src_groups + rule.dst_group]
            if src.plain and dst.plain and rule.src_every == 1 and rule.dst_every == 1 and not _fits(rule, src.n, dst.n):
                fault.code, fault.group, fault.position, fault.extra = _MISFIT, a, src.n, dst.n
                return 0
            room += min(src.n * rule.src_sub, dst.n * rule.dst_sub)
        return room

    cdef void _fill(
        self, Ids* ids, Flat* flat, Py_ssize_t number, Py_ssize_t room, bint merge, bint has_null, Fault* fault
    ) noexcept nogil:
        """Meet, drop nulls, flatten and sort the pairs of one kind of region."""
        cdef Py_ssize_t a, i, n
        cdef const Align* rule
        cdef Ids *src
        cdef Ids *dst
        cdef Met* met = <Met*>malloc((room + 1) * sizeof(Met))
        flat.src = <int32_t*>malloc((room + 1) * sizeof(int32_t))
        flat.dst = <int32_t*>malloc((room + 1) * sizeof(int32_t))
        if met == NULL or flat.src == NULL or flat.dst == NULL:
            free(met)
            fault.code = _MEMORY
            return
        for a in range(self.flats[number, 0], self.flats[number, 0] + self.flats[number, 1]):
            rule = <const Align*>&self.aligns[a, 0]
            src, dst = &ids[rule.src_group], &ids[self.src_groups + rule.dst_group]
            n = _meet(rule, src, dst, met)
            if has_null:
                n = _drop_null(met, n, src, dst, fault)
                if fault.code != _OK:
                    fault.group = rule.dst_group if fault.side else rule.src_group
                    break
            for i in range(n):
                flat.src[flat.n + i] = _flat(src.at[met[i].src], met[i].src_k, rule.src_sub, self.flats[number, 2])
                flat.dst[flat.n + i] = _flat(dst.at[met[i].dst], met[i].dst_k, rule.dst_sub, self.flats[number, 3])
            flat.n += n
        free(met)
        if fault.code == _OK and merge and _sort_by_dst(flat.src, flat.dst, flat.n):
            fault.code = _MEMORY

    cdef void _check_spared(self, Ids* ids, Fault* fault) noexcept nogil:
        """With a null block an id out of range is refused only here: unless every pair of it was dropped."""
        cdef Py_ssize_t number, i
        for number in range(self.src_groups + self.dst_groups):
            if ids[number].at == NULL or ids[number].bad < 0:
                continue
            for i in range(ids[number].bad, ids[number].n):
                if ids[number].at[i] == _BAD:
                    fault.code, fault.position = _OUT_OF_RANGE, i
                    fault.side = 1 if number >= self.src_groups else 0
                    fault.group = number - self.src_groups if fault.side else number
                    return


# ---------------------------------------------------------------------------------------- descriptor ids to addresses

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
    const uint64_t[:, ::1] src, const uint64_t[:, ::1] dst, const int64_t[::1] src_starts, const int64_t[::1] dst_starts,
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
    const uint64_t[:, ::1] src, const uint64_t[:, ::1] dst, const int64_t[::1] src_starts, const int64_t[::1] dst_starts,
    const int32_t[::1] src_regions, const int32_t[::1] dst_regions, const int32_t[::1] src_ids, const int32_t[::1] dst_ids,
    uint64_t[:, ::1] out, bint merge, Fault* fault,
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
    with nogil:
        n = _fill_moves(
            src, dst, src_starts, dst_starts, src_regions, dst_regions, src_ids, dst_ids, out, merge, &fault
        )
    return _report(&fault) if fault.code else n


def expand_rows(const uint64_t[:, ::1] table not None, uint64_t[:, ::1] out not None):
    """Expand N x 5 rows to N x 3; `out` has one row per block, the counts' sum. Returns the rows written."""
    cdef Py_ssize_t row, i, n = 0
    cdef uint64_t addr, length, device, stride
    with nogil:
        for row in range(table.shape[0]):
            addr, length, device, stride = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
            for i in range(<Py_ssize_t>table[row, 4]):
                out[n, 0], out[n, 1], out[n, 2] = addr + <uint64_t>i * stride, length, device
                n += 1
    return n


def expand_kernel_blocks(object ids not None, int64_t ratio, object null_block, object out):
    """Kernel block ids of logical ones (``ratio`` a block, a null stays null), or a fault tuple."""
    cdef Ids read
    cdef Fault fault
    cdef Reading rule
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef int64_t k
    cdef int32_t* to
    memset(&read, 0, sizeof(Ids))
    memset(&fault, 0, sizeof(Fault))
    rule.has_null = null_block is not None
    rule.null = null_block if rule.has_null else 0
    rule.limit = (<int64_t>1 << 31) // ratio
    try:
        _load(ids, &read, &rule, &fault)
        if fault.code == _OK and read.bad >= 0:
            fault.code, fault.position = _OUT_OF_RANGE, read.bad
        if fault.code == _OK and out is not None and len(out) != read.n * ratio:
            fault.code, fault.position, fault.extra = _OUT_SIZE, len(out), read.n * ratio
        if fault.code != _OK:
            return _report(&fault)
        if out is None:
            out = _empty(read.n * ratio, _INT32)
        PyObject_GetBuffer(out, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        to = <int32_t*>view.buf
        for i in range(read.n):
            for k in range(ratio):
                to[i * ratio + k] = <int32_t>(rule.null if read.at[i] == _NULL else read.at[i] * ratio + k)
        PyBuffer_Release(&view)
        return out
    finally:
        free(read.at)


def sort_pairs(int32_t[::1] src not None, int32_t[::1] dst not None):
    """Sort id pairs in place by dst, stable; False where there was no memory. Both are equally long."""
    cdef int failed = 0
    with nogil:
        if dst.shape[0]:
            failed = _sort_by_dst(&src[0], &dst[0], dst.shape[0])
    return failed == 0
