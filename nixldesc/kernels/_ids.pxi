# Flat ids to descriptor ids, and one layout's request: lists -> flats -> one addition per descriptor.
# Included by _kernels.pyx.


cdef int32_t[::1] _stretches(const int32_t[:, ::1] jobs):
    """Return for each job where the jobs in a row end that are like it in all but their starts (layers of one kind)."""
    cdef Py_ssize_t job, column
    cdef bint alike
    cdef int32_t[::1] ends = _empty(jobs.shape[0], _INT32)
    for job in range(jobs.shape[0] - 1, -1, -1):
        alike = job + 1 < jobs.shape[0] and jobs[job, 0] == jobs[job + 1, 0]
        for column in range(3, jobs.shape[1] if alike else 0):
            alike = alike and jobs[job, column] == jobs[job + 1, column]
        ends[job] = ends[job + 1] if alike else <int32_t>(job + 1)
    return ends


cdef void _spread_jobs(
    const int32_t[:, ::1] jobs, const int32_t[::1] ends, Py_ssize_t column, Py_ssize_t first, Py_ssize_t last,
    Flat* flats, bint dst, int32_t* out,
) noexcept nogil:
    """Add each job's start to its flat, a stretch of jobs in one call."""
    cdef Py_ssize_t job = first, end
    cdef Flat* flat
    while job < last:
        end = min(ends[job], last)
        flat = &flats[jobs[job, 0]]
        nixldesc_spread(
            flat.dst if dst else flat.src, flat.n, &jobs[job, column], jobs.shape[1], end - job, out
        )
        out += flat.n * (end - job)
        job = end


cdef Py_ssize_t _total(
    const int32_t[:, ::1] jobs, const int32_t[::1] ends, Py_ssize_t first, Py_ssize_t last, Flat* flats
) noexcept nogil:
    cdef Py_ssize_t job = first, end, total = 0
    while job < last:
        end = min(ends[job], last)
        total += flats[jobs[job, 0]].n * (end - job)
        job = end
    return total


cdef Py_ssize_t _claim(object out, Py_ssize_t total, Py_buffer* view) except -1:
    """Open `out` and return how many ids it holds; it stays open only where these are `total`.

    Only the buffer tells its size: `len` may be a subclass's, and reading the lists may have run any code.
    """
    cdef Py_ssize_t held
    PyObject_GetBuffer(out, view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    held = view.len // <Py_ssize_t>sizeof(int32_t)
    if held != total:
        PyBuffer_Release(view)
    return held


cdef void _write(
    const int32_t[:, ::1] jobs, const int32_t[::1] ends, Py_ssize_t column, Py_ssize_t first, Py_ssize_t last,
    Flat* flats, bint dst, Py_ssize_t total, Py_buffer* view,
) noexcept:
    """Write one side's ids to the buffer that was claimed for `total` of them, and close it."""
    if total > _LONG:
        with nogil:
            _spread_jobs(jobs, ends, column, first, last, flats, dst, <int32_t*>view.buf)
    elif total:
        _spread_jobs(jobs, ends, column, first, last, flats, dst, <int32_t*>view.buf)
    PyBuffer_Release(view)


cdef inline int32_t _flat(int64_t block, int64_t k, int64_t sub, int64_t uneven) noexcept nogil:
    """Id of a block's k-th sub-block from its region's start; `uneven`: num_blocks where sub-blocks are spaced so."""
    return <int32_t>(k * uneven + block if uneven else block * sub + k)


cdef void _flatten(const Ids* ids, const int64_t[:, ::1] flats, Py_ssize_t number, int32_t* out) noexcept nogil:
    """Flat ids of whole blocks: all sub-blocks of each, all runs of each of these."""
    cdef Py_ssize_t i, n = 0
    cdef int64_t k, j, outer
    cdef int64_t sub = flats[number, 1], uneven = flats[number, 2], runs = flats[number, 3]
    cdef int64_t outer_step = flats[number, 4], run_step = flats[number, 5]
    for i in range(ids.n):
        for k in range(sub):
            outer = outer_step * _flat(ids.at[i], k, sub, uneven)
            for j in range(runs):
                out[n] = <int32_t>(outer + j * run_step)
                n += 1


@cython.final
@cython.auto_pickle(False)
cdef class LayoutProgram:
    """The static part of a layout's ``desc_ids``: which group's list goes where.

    `limits[group]`: exclusive bound of the group's block ids, -1 where no region takes the group. `flats[f]`:
    ``(group, sub_blocks, uneven, runs, outer_step, run_step)``, the last four an IdForm of
    :mod:`nixldesc.memory.columns`. `jobs[j]`: ``(f, start)`` in the order of the result.
    """

    cdef const int64_t[::1] limits
    cdef const int64_t[:, ::1] flats
    cdef const int32_t[:, ::1] jobs
    cdef const int32_t[::1] ends

    def __cinit__(
        self,
        const int64_t[::1] limits not None,
        const int64_t[:, ::1] flats not None,
        const int32_t[:, ::1] jobs not None,
    ):
        self.limits, self.flats, self.jobs = limits, flats, jobs
        self.ends = _stretches(jobs)

    def run(self, object block_ids, object out):
        """Return the ids, or a fault tuple. `block_ids` is a list or tuple of ``len(limits)`` lists, else UNREAD."""
        cdef Scratch scratch
        cdef Fault fault
        cdef Py_buffer view
        cdef Py_ssize_t total, held
        memset(&fault, 0, sizeof(Fault))
        if not isinstance(block_ids, (list, tuple)) or len(block_ids) != self.limits.shape[0]:
            fault.code = _UNREAD
            return _report(&fault)
        try:
            if not _open(&scratch, self.limits.shape[0], self.flats.shape[0]):
                fault.code = _MEMORY
            if fault.code == _OK:
                self._read(block_ids, &scratch, &fault)
            if fault.code == _OK:
                self._flatten(&scratch, &fault)
            if fault.code != _OK:
                return _report(&fault)
            total = _total(self.jobs, self.ends, 0, self.jobs.shape[0], scratch.flats)
            if out is None:
                out = _empty(total, _INT32)
            held = _claim(out, total, &view)
            if held != total:
                fault.code, fault.position, fault.extra = _OUT_SIZE, held, total
                return _report(&fault)
            _write(self.jobs, self.ends, 1, 0, self.jobs.shape[0], scratch.flats, False, total, &view)
            return out
        finally:
            _close(&scratch)

    cdef int _read(self, object block_ids, Scratch* scratch, Fault* fault) except -1:
        cdef Py_ssize_t group
        cdef Reading rule
        cdef Ids* ids
        memset(&rule, 0, sizeof(Reading))
        for group in range(self.limits.shape[0]):
            fault.group = group
            rule.limit = self.limits[group]
            ids = &scratch.ids[group]
            _load(_list_at(block_ids, group), ids, &rule, scratch, fault)
            if fault.code != _OK:
                return 0
            if rule.limit < 0 and ids.n:
                fault.code, fault.extra = _UNSERVED, ids.n
                return 0
            if ids.bad >= 0:
                fault.code, fault.position = _OUT_OF_RANGE, ids.bad
                return 0
        return 0

    cdef int _flatten(self, Scratch* scratch, Fault* fault) except -1:
        cdef Py_ssize_t f
        cdef int64_t pieces
        cdef Ids* ids
        cdef Flat* flat
        for f in range(self.flats.shape[0]):
            ids, flat = &scratch.ids[self.flats[f, 0]], &scratch.flats[f]
            pieces = self.flats[f, 1] * self.flats[f, 3]
            if ids.n > INT32_MAX // pieces:
                fault.code = _MEMORY
                return 0
            flat.n = ids.n * pieces
            flat.borrowed = pieces == 1
            flat.src = ids.at if pieces == 1 else _room(scratch, flat.n)
            if flat.src == NULL:
                fault.code = _MEMORY
                return 0
            if pieces > 1:
                _flatten(ids, self.flats, f, flat.src)
        return 0
