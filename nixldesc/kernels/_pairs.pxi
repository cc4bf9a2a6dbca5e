# A pair's request: lists meet by position, pairs without nulls are sorted and become ids, run by run.
# Included by _kernels.pyx.


cdef struct Form:        # how a block becomes an id from its region's start: outer * outer_step + run * run_step
    int64_t uneven       # num_blocks where outer is k * num_blocks + block, 0 where it is block * sub + k
    int64_t outer_step
    int64_t run_step

cdef struct Kind:        # regions whose ids differ by their starts alone: row of PairProgram.flats
    int64_t first        # aligns, the lists that meet
    int64_t count
    int64_t runs
    Form src
    Form dst


cdef void _expand(
    const int32_t* outer, Py_ssize_t n, const Form* form, int64_t runs, bint by_run, int32_t* out
) noexcept nogil:
    """All runs of each outer id; run by run where that keeps sorted ids sorted."""
    cdef Py_ssize_t i
    cdef int64_t run
    for run in range(runs):
        for i in range(n):
            out[run * n + i if by_run else i * runs + run] = <int32_t>(outer[i] * form.outer_step + run * form.run_step)


cdef struct Asked:       # how a request is to be answered
    bint merge
    bint has_null
    bint complete
    int64_t tokens       # -1: not said


cdef void _order(Flat* flat, bint merge, Py_ssize_t number, Fault* fault) noexcept nogil:
    """Sort a flat's pairs if that is asked; a dst id that stands there twice is a fault in any order."""
    cdef Py_ssize_t at = -1
    cdef int32_t twin = -1
    if merge:
        if _sort_by_dst(flat.src, flat.dst, flat.n, &at):
            fault.code = _MEMORY
        elif at >= 0:
            twin = flat.dst[at]
    elif _find_twin(flat.dst, flat.n, &twin):
        fault.code = _MEMORY
    if twin >= 0:
        fault.code, fault.side, fault.group, fault.extra = _TWICE, 1, number, twin


cdef int _place(object given, Ids* ids, Fault* fault) except -1:
    """Take where a list's entries stand: -1 for a plain list, entries skipped, or an int64 array of each one's place.

    The array is copied and the copy looked at: ascending, as the walk needs it.
    """
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef int64_t before = -1
    if not isinstance(given, _ndarray):
        ids.skip = given
        ids.plain = ids.skip < 0
        if ids.plain:
            ids.skip = 0
        return 0
    PyObject_GetBuffer(given, &view, PyBUF_SIMPLE)
    try:
        if view.len != ids.n * <Py_ssize_t>sizeof(int64_t):
            fault.code, fault.position, fault.extra = _CHANGED, ids.n, view.len // <Py_ssize_t>sizeof(int64_t)
            return 0
        ids.places = <int64_t*>malloc(max(view.len, 1))
        if ids.places == NULL:
            fault.code = _MEMORY
            return 0
        memcpy(ids.places, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    for i in range(ids.n):
        if ids.places[i] <= before:
            fault.code, fault.extra = _FAR, ids.places[i]
            return 0
        before = ids.places[i]
    return 0


cdef object _reach(object sub, object every, object grain):
    """How many entries of a list stand, with one more, below 2**62."""
    room = (1 << 62) - (every * grain if every > 1 else 0)
    return max(room // (sub * every) - 1, 0)


cdef inline int64_t _last(const Ids* ids) noexcept nogil:
    """Where the list's last entry stands, -1 for none (an empty list skips what it says)."""
    if ids.places == NULL:
        return ids.skip + ids.n - 1
    return ids.places[ids.n - 1] if ids.n else -1


@cython.final
@cython.auto_pickle(False)
cdef class PairProgram:
    """The static part of a pair's ``desc_ids``: which lists meet how, and where the met blocks go.

    `aligns[a]`: the fields of ``Align``. `flats[f]`: those of ``Kind``. `jobs[j]` (one per region of the pair):
    ``(f, src start, dst start, src num_blocks, dst num_blocks)``. `src_groups`, `dst_groups`: how many lists each
    side must give.
    """

    cdef const int64_t[:, ::1] aligns
    cdef const int64_t[:, ::1] flats
    cdef const int32_t[:, ::1] jobs
    cdef const int32_t[::1] ends
    cdef Py_ssize_t src_groups, dst_groups
    cdef int64_t reach   # entries, given or skipped, whose positions 64 bits can count

    def __cinit__(
        self,
        const int64_t[:, ::1] aligns not None,
        const int64_t[:, ::1] flats not None,
        const int32_t[:, ::1] jobs not None,
        Py_ssize_t src_groups,
        Py_ssize_t dst_groups,
    ):
        self.aligns, self.flats, self.jobs = aligns, flats, jobs
        self.ends = _stretches(jobs)
        self.src_groups, self.dst_groups = src_groups, dst_groups
        cdef Py_ssize_t a
        self.reach = INT64_MAX
        for a in range(aligns.shape[0]):
            for sub, every, grain in ((2, 5, 6), (3, 8, 9)):
                self.reach = min(self.reach, _reach(aligns[a, sub], aligns[a, every], aligns[a, grain]))

    def run(
        self,
        object src_lists not None,
        object dst_lists not None,
        tuple src_skips,
        tuple dst_skips,
        bint merge,
        object null_block,
        int64_t tokens,
        bint complete,
        Py_ssize_t first,
        Py_ssize_t last,
        object src_out,
        object dst_out,
    ):
        """Return ``(src_ids, dst_ids)`` of regions `first` to `last`, or a fault tuple (5 ints).

        Skips are None (all lists plain) or a tuple: -1 for a plain list, else the number of entries not given, or an
        int64 array of where each entry stands. `tokens` is -1 where the request's are not known.
        """
        cdef Scratch scratch
        cdef Asked asked
        cdef Fault fault
        cdef Reading rule
        cdef Py_buffer src_view
        cdef Py_buffer dst_view
        cdef Py_ssize_t total
        memset(&fault, 0, sizeof(Fault))
        memset(&rule, 0, sizeof(Reading))
        rule.has_null = null_block is not None
        if rule.has_null:
            rule.null = null_block
        asked.merge, asked.has_null, asked.complete, asked.tokens = merge, rule.has_null, complete, tokens
        if (
            (src_skips is not None and len(src_skips) != self.src_groups)
            or (dst_skips is not None and len(dst_skips) != self.dst_groups)
        ):
            fault.code = _UNREAD
            return _report(&fault)
        try:
            if not _open(&scratch, self.src_groups + self.dst_groups, self.flats.shape[0]):
                fault.code = _MEMORY
            if fault.code == _OK:
                self._read(src_lists, src_skips, &scratch, 0, first, last, &rule, &fault)
            if fault.code == _OK:
                self._read(dst_lists, dst_skips, &scratch, 1, first, last, &rule, &fault)
            if fault.code == _OK:
                self._align(&scratch, first, last, &asked, &fault)
            if fault.code != _OK:
                return _report(&fault)
            total = _total(self.jobs, self.ends, first, last, scratch.flats)
            if src_out is None and total > _LARGE:
                # Two large arrays made and freed each time would each be mapped anew, page by page; one is not.
                src_out, dst_out = _empty((2, total), _INT32)
            elif src_out is None:
                src_out, dst_out = _empty(total, _INT32), _empty(total, _INT32)
            if not self._claim_both(src_out, dst_out, total, &src_view, &dst_view, &fault):
                return _report(&fault)
            _write(self.jobs, self.ends, 1, first, last, scratch.flats, False, total, &src_view)
            _write(self.jobs, self.ends, 2, first, last, scratch.flats, True, total, &dst_view)
            return src_out, dst_out
        finally:
            _close(&scratch)

    cdef bint _claim_both(
        self, object src_out, object dst_out, Py_ssize_t total, Py_buffer* src, Py_buffer* dst, Fault* fault
    ) except -1:
        """Open both sides' `out`, or neither: none is written where the other is refused."""
        cdef Py_ssize_t src_held = _claim(src_out, total, src), dst_held = -1
        try:
            dst_held = _claim(dst_out, total, dst)
        finally:
            if src_held == total and dst_held != total:
                PyBuffer_Release(src)
        if src_held == total and dst_held == total:
            return True
        if dst_held == total:
            PyBuffer_Release(dst)
        fault.code, fault.group, fault.position, fault.extra = _OUT_SIZE, src_held, dst_held, total
        return False

    cdef int _read(
        self, object lists, tuple skips, Scratch* scratch, int side, Py_ssize_t first, Py_ssize_t last, Reading* rule,
        Fault* fault,
    ) except -1:
        """Read the lists that regions `first` to `last` take, each against the smallest of those regions."""
        cdef Py_ssize_t num_groups = self.dst_groups if side else self.src_groups
        cdef Ids* ids = scratch.ids + (self.src_groups if side else 0)
        cdef Py_ssize_t group
        fault.side = side
        self._limit(ids, side, first, last)
        for group in range(num_groups):
            if ids[group].limit == 0:
                continue
            fault.group = group
            rule.limit = ids[group].limit
            _load(_list_at(lists, group), &ids[group], rule, scratch, fault)
            ids[group].plain = skips is None
            if fault.code == _OK and skips is not None:
                _place(skips[group], &ids[group], fault)
            if fault.code == _OK and _last(&ids[group]) >= self.reach:
                fault.code, fault.position, fault.extra = _FAR, ids[group].skip, _last(&ids[group])
            if fault.code == _OK and ids[group].bad >= 0 and not rule.has_null:
                fault.code, fault.position = _OUT_OF_RANGE, ids[group].bad
            if fault.code != _OK:
                return 0
        return 0

    cdef void _limit(self, Ids* ids, int side, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
        """Bound each list that regions `first` to `last` take by the smallest of them; 0 stays for lists unused."""
        cdef Py_ssize_t job = first, a, flat
        cdef int64_t capacity
        cdef Ids* taken
        while job < last:
            flat, capacity = self.jobs[job, 0], self.jobs[job, 3 + side]
            for a in range(self.flats[flat, 0], self.flats[flat, 0] + self.flats[flat, 1]):
                taken = &ids[self.aligns[a, side]]
                if taken.limit == 0 or capacity < taken.limit:
                    taken.limit = capacity
            job = self.ends[job]

    cdef int _align(
        self, Scratch* scratch, Py_ssize_t first, Py_ssize_t last, const Asked* asked, Fault* fault
    ) except -1:
        cdef Py_ssize_t job = first, number, pairs
        while job < last:
            number = self.jobs[job, 0]
            job = self.ends[job]
            if scratch.flats[number].src != NULL:
                continue
            pairs = self._bound(scratch.ids, number, asked.tokens, fault)
            if fault.code != _OK:
                return 0
            if pairs > _LONG:
                with nogil:
                    self._fill(scratch, number, pairs, asked, fault)
            else:
                self._fill(scratch, number, pairs, asked, fault)
            if fault.code != _OK:
                return 0
        if asked.has_null:
            self._check_spared(scratch.ids, fault)
        return 0

    cdef Py_ssize_t _bound(self, Ids* ids, Py_ssize_t number, int64_t tokens, Fault* fault) noexcept nogil:
        """Upper bound of the pairs that the lists of a kind can meet; plain lists must be of the right length."""
        cdef Py_ssize_t a, room = 0
        cdef const Kind* kind = <const Kind*>&self.flats[number, 0]
        cdef const Align* rule
        cdef Ids *src
        cdef Ids *dst
        for a in range(kind.first, kind.first + kind.count):
            rule = <const Align*>&self.aligns[a, 0]
            src, dst = &ids[rule.src_group], &ids[self.src_groups + rule.dst_group]
            if dst.n and not self._right(rule, src, dst, tokens, fault):
                if fault.code == _MISFIT:
                    fault.group = a
                return 0
            room += min(src.n * rule.src_sub, dst.n * rule.dst_sub)
            if room * kind.runs >= INT32_MAX:
                fault.code = _MEMORY
                return 0
        return room

    cdef bint _right(
        self, const Align* rule, const Ids* src, const Ids* dst, int64_t tokens, Fault* fault
    ) noexcept nogil:
        """Whether plain lists are as long as the request's tokens say, or else fit one another."""
        cdef int64_t limit = _limit_of(rule, tokens), needed
        if limit == INT64_MAX:
            if not src.plain or not dst.plain or _fits(rule, src.n, dst.n):
                return True
            fault.code, fault.position, fault.extra = _MISFIT, src.n, dst.n
            return False
        needed = _needed(&rule.src, rule.src_sub, limit)
        if src.plain and src.n != needed:
            fault.code, fault.side, fault.group, fault.position = _TOKENS, 0, rule.src_group, src.n
            fault.extra = needed
            return False
        needed = _needed(&rule.dst, rule.dst_sub, limit)
        if dst.plain and dst.n != needed:
            fault.code, fault.side, fault.group, fault.position = _TOKENS, 1, rule.dst_group, dst.n
            fault.extra = needed
            return False
        return True

    cdef void _fill(
        self, Scratch* scratch, Py_ssize_t number, Py_ssize_t bound, const Asked* asked, Fault* fault
    ) noexcept nogil:
        """Meet, drop nulls, flatten and sort the pairs of one kind of region."""
        cdef Py_ssize_t a
        cdef const Kind* kind = <const Kind*>&self.flats[number, 0]
        cdef Flat* flat = &scratch.flats[number]
        cdef Met few[_SHORT]
        cdef Met* met = &few[0]
        if bound > _SHORT:
            met = <Met*>malloc(bound * sizeof(Met))
        flat.src, flat.dst = _room(scratch, bound), _room(scratch, bound)
        if met == NULL or flat.src == NULL or flat.dst == NULL:
            fault.code = _MEMORY
        else:
            for a in range(kind.first, kind.first + kind.count):
                if fault.code == _OK:
                    self._meet(scratch.ids, a, kind, flat, met, asked, fault)
        if met != &few[0]:
            free(met)
        if fault.code == _OK:
            _order(flat, asked.merge, number, fault)
        if fault.code == _OK and kind.runs > 1:
            self._spread_runs(scratch, kind, flat, asked.merge, fault)

    cdef void _meet(
        self, Ids* ids, Py_ssize_t number, const Kind* kind, Flat* flat, Met* met, const Asked* asked, Fault* fault
    ) noexcept nogil:
        """Add the pairs of two lists to a flat."""
        cdef Py_ssize_t i, n = 0
        cdef const Align* rule = <const Align*>&self.aligns[number, 0]
        cdef Ids* src = &ids[rule.src_group]
        cdef Ids* dst = &ids[self.src_groups + rule.dst_group]
        cdef int64_t limit = _limit_of(rule, asked.tokens), most
        if _alike(rule):
            most = limit if limit == INT64_MAX else _held(&rule.src, limit)
            if not asked.has_null and not asked.complete:
                flat.n += _match(src, dst, most, flat.src + flat.n, flat.dst + flat.n)
                return
            n = _match_entries(src, dst, most, met)
        else:
            n = _meet(rule, src, dst, limit, met)
        if asked.has_null:
            n = _drop_null(met, n, src, dst, fault)
            if fault.code != _OK:
                fault.group = rule.dst_group if fault.side else rule.src_group
                return
        if asked.complete:
            i = _first_unmet(rule, dst, limit, met, n)
            if i >= 0:
                fault.code, fault.side, fault.group, fault.position = _UNMET, 1, rule.dst_group, i
                return
        for i in range(n):
            flat.src[flat.n + i] = _flat(src.at[met[i].src], met[i].src_k, rule.src_sub, kind.src.uneven)
            flat.dst[flat.n + i] = _flat(dst.at[met[i].dst], met[i].dst_k, rule.dst_sub, kind.dst.uneven)
        flat.n += n

    cdef void _spread_runs(
        self, Scratch* scratch, const Kind* kind, Flat* flat, bint merge, Fault* fault
    ) noexcept nogil:
        """Put all runs of each pair in the place of the pair."""
        cdef Flat outer = flat[0]
        cdef bint by_run = merge and kind.dst.outer_step == 1
        flat.n = outer.n * kind.runs
        flat.src, flat.dst = _room(scratch, flat.n), _room(scratch, flat.n)
        if flat.src == NULL or flat.dst == NULL:
            fault.code = _MEMORY
        else:
            _expand(outer.src, outer.n, &kind.src, kind.runs, by_run, flat.src)
            _expand(outer.dst, outer.n, &kind.dst, kind.runs, by_run, flat.dst)
        _give_back(scratch, outer.src)
        _give_back(scratch, outer.dst)

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
