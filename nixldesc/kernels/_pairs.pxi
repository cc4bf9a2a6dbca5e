# A pair's request: two block lists meet by position, nulls drop out, pairs are sorted and flattened.
# Included by _kernels.pyx.


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
    """Whether some number of tokens needs exactly so many blocks on each side (left open by interleaved lists)."""
    if rule.src_every > 1 or rule.dst_every > 1:
        return True
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


cdef bint _one_to_one(
    const Align* rule, const Ids* src, const Ids* dst, Py_ssize_t* i, Py_ssize_t* j, Py_ssize_t* n
) noexcept nogil:
    """Where both lists step alike by whole blocks, the positions they share are one stretch of each."""
    cdef int64_t ahead
    if rule.src_sub != 1 or rule.dst_sub != 1 or rule.src_every != rule.dst_every or rule.src_first != rule.dst_first:
        return False
    ahead = dst.skip - src.skip
    i[0], j[0] = max(ahead, 0), max(-ahead, 0)
    n[0] = max(min(src.n - i[0], dst.n - j[0]), 0)
    return True


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

    Lists in order (a fresh engine's) are only looked at, a few pairs are inserted, many are radix sorted.
    """
    cdef Py_ssize_t i
    cdef uint32_t every = 0
    cdef bint in_order = True
    for i in range(1, n):
        in_order &= dst[i - 1] <= dst[i]
    if in_order:
        return 0
    if n <= 48:
        _insert_by_dst(src, dst, n)
        return 0
    for i in range(n):
        every |= <uint32_t>dst[i]
    return _radix_by_dst(src, dst, n, every)


cdef int _radix_by_dst(int32_t* src, int32_t* dst, Py_ssize_t n, uint32_t every) noexcept nogil:
    """Least significant digit first, over packed (dst, src) words; `every` has all bits that any dst has.

    The bits are dealt evenly over as few passes of at most 11 bits as they need, so that the counters stay in cache.
    """
    cdef uint32_t width = 0, passes, bits, mask, turn, digit, tally, at
    cdef uint32_t count[3][2048]
    cdef Py_ssize_t i
    cdef uint64_t word
    cdef uint64_t *base = <uint64_t*>malloc(2 * n * sizeof(uint64_t))
    cdef uint64_t *keys = base
    cdef uint64_t *other = base + n
    if base == NULL:
        return 1
    while every >> width:
        width += 1
    passes = (width + 10) // 11
    bits = (width + passes - 1) // passes
    mask = (<uint32_t>1 << bits) - 1
    for turn in range(passes):
        memset(count[turn], 0, (mask + 1) * sizeof(uint32_t))
    for i in range(n):
        keys[i] = <uint64_t><uint32_t>dst[i] << 32 | <uint32_t>src[i]
        for turn in range(passes):
            count[turn][<uint32_t>dst[i] >> (turn * bits) & mask] += 1
    for turn in range(passes):
        at = 0
        for digit in range(mask + 1):
            tally = count[turn][digit]
            count[turn][digit] = at
            at += tally
        for i in range(n):
            word = keys[i]
            digit = <uint32_t>(word >> (32 + turn * bits)) & mask
            other[count[turn][digit]] = word
            count[turn][digit] += 1
        keys, other = other, keys
    for i in range(n):
        dst[i] = <int32_t>(keys[i] >> 32)
        src[i] = <int32_t><uint32_t>keys[i]
    free(base)
    return 0


@cython.final
@cython.auto_pickle(False)
cdef class PairProgram:
    """The static part of a pair's ``desc_ids``: which lists meet how, and where the met blocks go.

    `aligns[a]`: the fields of ``Align``. `flats[f]`: ``(first align, aligns, src uneven, dst uneven, runs, src outer_step,
    src run_step, dst outer_step, dst run_step)``, as the two sides' IdForm of :mod:`nixldesc.memory.columns`. `jobs[j]` (one per region of the pair): ``(f, src start, dst start, src num_blocks, dst num_blocks)``.
    `src_groups`, `dst_groups`: how many lists each side must give.
    """

    cdef const int64_t[:, ::1] aligns
    cdef const int64_t[:, ::1] flats
    cdef const int32_t[:, ::1] jobs
    cdef const int32_t[::1] ends
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
        self.ends = _stretches(jobs)
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
        tuple src_skips,
        tuple dst_skips,
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
        cdef Scratch scratch
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
                self._align(&scratch, first, last, merge, rule.has_null, &fault)
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
            ids[group].plain = skips is None or skips[group] < 0
            ids[group].skip = 0 if ids[group].plain else skips[group]
            rule.limit = ids[group].limit
            _load(_list_at(lists, group), &ids[group], rule, scratch, fault)
            if fault.code == _OK and ids[group].skip > self.reach - ids[group].n:
                fault.code, fault.position = _FAR, ids[group].skip
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
        self, Scratch* scratch, Py_ssize_t first, Py_ssize_t last, bint merge, bint has_null, Fault* fault
    ) except -1:
        cdef Py_ssize_t job = first, flat, pairs
        while job < last:
            flat = self.jobs[job, 0]
            job = self.ends[job]
            if scratch.flats[flat].src != NULL:
                continue
            pairs = self._bound(scratch.ids, self.flats[flat, 0], self.flats[flat, 0] + self.flats[flat, 1], fault)
            if fault.code != _OK:
                return 0
            if pairs > _LONG:
                with nogil:
                    self._fill(scratch, flat, pairs, merge, has_null, fault)
            else:
                self._fill(scratch, flat, pairs, merge, has_null, fault)
            if fault.code != _OK:
                return 0
        if has_null:
            self._check_spared(scratch.ids, fault)
        return 0

    cdef Py_ssize_t _bound(self, Ids* ids, Py_ssize_t first, Py_ssize_t last, Fault* fault) noexcept nogil:
        """Upper bound of the pairs that aligns `first` to `last` can meet; two plain lists must fit one another."""
        cdef Py_ssize_t a, room = 0
        cdef const Align* rule
        cdef Ids *src
        cdef Ids *dst
        for a in range(first, last):
            rule = <const Align*>&self.aligns[a, 0]
            src, dst = &ids[rule.src_group], &ids[self.src_groups + rule.dst_group]
            if src.plain and dst.plain and not _fits(rule, src.n, dst.n):
                fault.code, fault.group, fault.position, fault.extra = _MISFIT, a, src.n, dst.n
                return 0
            room += min(src.n * rule.src_sub, dst.n * rule.dst_sub)
            if room >= INT32_MAX:
                fault.code = _MEMORY
                return 0
        return room

    cdef void _fill(
        self, Scratch* scratch, Py_ssize_t number, Py_ssize_t bound, bint merge, bint has_null, Fault* fault
    ) noexcept nogil:
        """Meet, drop nulls, flatten and sort the pairs of one kind of region."""
        cdef Py_ssize_t a, i, n = 0, at_src = 0, at_dst = 0
        cdef const Align* rule
        cdef Ids *src
        cdef Ids *dst
        cdef Flat* flat = &scratch.flats[number]
        cdef Met few[_SHORT]
        cdef Met* met = &few[0]
        if bound > _SHORT:
            met = <Met*>malloc(bound * sizeof(Met))
        flat.src, flat.dst = _room(scratch, bound), _room(scratch, bound)
        if met == NULL or flat.src == NULL or flat.dst == NULL:
            fault.code = _MEMORY
        else:
            for a in range(self.flats[number, 0], self.flats[number, 0] + self.flats[number, 1]):
                rule = <const Align*>&self.aligns[a, 0]
                src, dst = &scratch.ids[rule.src_group], &scratch.ids[self.src_groups + rule.dst_group]
                if not has_null and _one_to_one(rule, src, dst, &at_src, &at_dst, &n):
                    if n:
                        memcpy(flat.src + flat.n, src.at + at_src, n * sizeof(int32_t))
                        memcpy(flat.dst + flat.n, dst.at + at_dst, n * sizeof(int32_t))
                    flat.n += n
                    continue
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
        if met != &few[0]:
            free(met)
        if fault.code == _OK and merge and _sort_by_dst(flat.src, flat.dst, flat.n):
            fault.code = _MEMORY
        if fault.code == _OK and self.flats[number, 4] > 1 and not self._run(scratch, number, merge):
            fault.code = _MEMORY

    cdef bint _run(self, Scratch* scratch, Py_ssize_t number, bint merge) noexcept nogil:
        """Give every met pair its runs: in merge order so that ids ascend on dst, else pair by pair. False: no memory."""
        cdef Flat* flat = &scratch.flats[number]
        cdef Py_ssize_t i, at = 0
        cdef int64_t j, runs = self.flats[number, 4]
        cdef int64_t src_outer = self.flats[number, 5], src_step = self.flats[number, 6]
        cdef int64_t dst_outer = self.flats[number, 7], dst_step = self.flats[number, 8]
        cdef int32_t *src
        cdef int32_t *dst
        if flat.n == 0:
            return True
        if flat.n > INT32_MAX // runs:
            return False
        src, dst = _room(scratch, flat.n * runs), _room(scratch, flat.n * runs)
        if src == NULL or dst == NULL:
            _give_back(scratch, src)
            _give_back(scratch, dst)
            return False
        if merge and dst_step > 1:
            for j in range(runs):
                for i in range(flat.n):
                    src[at] = <int32_t>(flat.src[i] * src_outer + j * src_step)
                    dst[at] = <int32_t>(flat.dst[i] * dst_outer + j * dst_step)
                    at += 1
        else:
            for i in range(flat.n):
                for j in range(runs):
                    src[at] = <int32_t>(flat.src[i] * src_outer + j * src_step)
                    dst[at] = <int32_t>(flat.dst[i] * dst_outer + j * dst_step)
                    at += 1
        _give_back(scratch, flat.src)
        _give_back(scratch, flat.dst)
        flat.src, flat.dst, flat.n = src, dst, at
        return True

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
