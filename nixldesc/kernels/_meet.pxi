# Two block lists meet by position: where a rank's sub-blocks stand, which of two lists stand at one place.
# Included by _kernels.pyx.
#
#     local sub-blocks of rank 1 of 2, grain 2       0 1     2 3     4 ...
#     global sub-blocks                          0 1 2 3 4 5 6 7 8 9 10 ...
#     list entries of 3 sub-blocks                   [-0-    -][-    1-] ...


cdef struct Place:       # local sub-block l is global sub-block l // grain * grain * every + first * grain + l % grain
    int64_t first
    int64_t every
    int64_t grain        # 2**62, one grain for all, where every is 1

cdef struct Align:       # how two lists meet: row of PairProgram.aligns
    int64_t src_group
    int64_t dst_group
    int64_t src_sub      # sub-blocks per block
    int64_t dst_sub
    Place src
    Place dst
    Place deal           # in tokens: which of all tokens the sequence is in which the two meet
    int64_t unit         # tokens of a sub-block; 0: none, blocks are not of tokens

cdef struct Met:         # one aligned position: indices into the two lists and sub-blocks of the two blocks
    int32_t src
    int32_t dst
    int32_t src_k
    int32_t dst_k

cdef struct Cursor:      # a walk along one list, stretch by stretch: sub-blocks of one entry that stand side by side
    const Ids* ids
    const Place* place
    int64_t sub
    Py_ssize_t entry
    int64_t start        # the entry's first local sub-block
    int64_t local        # the stretch's first
    int64_t at           # where the stretch begins in the sequence, and ends
    int64_t end
    int64_t left         # sub-blocks from `at` to the end of the grain


cdef inline int64_t _stands(const Place* place, int64_t local) noexcept nogil:
    """Global number of a local sub-block."""
    return local // place.grain * place.grain * place.every + place.first * place.grain + local % place.grain


cdef inline int64_t _held(const Place* place, int64_t count) noexcept nogil:
    """How many of the first `count` global sub-blocks are this rank's."""
    cdef int64_t turn = place.grain * place.every
    return count // turn * place.grain + max(0, min(count % turn - place.first * place.grain, place.grain))


cdef inline int64_t _least(const Place* place, int64_t sub, int64_t n) noexcept nogil:
    """The fewest sub-blocks of a sequence of which this rank needs `n` entries."""
    return _stands(place, (n - 1) * sub) + 1 if n else 0


cdef bint _fits(const Align* rule, Py_ssize_t src_n, Py_ssize_t dst_n) noexcept nogil:
    """Whether two plain lists explain one another without a guess.

    Without context parallelism both must cover equally much. With it some length of the sequence must need exactly so
    many entries on each side, which unequal blocks leave open: a block more of the smaller might be half of a larger.
    """
    if rule.src_sub != rule.dst_sub and (rule.src.every > 1 or rule.dst.every > 1 or rule.deal.every > 1):
        return False
    if rule.src.every == 1 and rule.dst.every == 1:
        return src_n * rule.src_sub == dst_n * rule.dst_sub
    return (
        max(_least(&rule.src, rule.src_sub, src_n), _least(&rule.dst, rule.dst_sub, dst_n))
        < min(_least(&rule.src, rule.src_sub, src_n + 1), _least(&rule.dst, rule.dst_sub, dst_n + 1))
    )


cdef int64_t _limit_of(const Align* rule, int64_t tokens) noexcept nogil:
    """How many sub-blocks `tokens` begin; a negative number of tokens, or blocks of none, set no limit."""
    if tokens < 0 or rule.unit == 0:
        return INT64_MAX
    tokens = _held(&rule.deal, tokens)
    return tokens // rule.unit + (tokens % rule.unit != 0)


cdef int64_t _needed(const Place* place, int64_t sub, int64_t limit) noexcept nogil:
    """How many entries of this rank the first `limit` sub-blocks need."""
    cdef int64_t held = _held(place, limit)
    return held // sub + (held % sub != 0)


# ---------------------------------------------------------------------------------------------- the walk


cdef inline int64_t _entry(const Ids* ids, Py_ssize_t i) noexcept nogil:
    """Which entry of the full list a list's i-th is."""
    return ids.places[i] if ids.places != NULL else ids.skip + i


cdef inline int64_t _first_of(const Cursor* c) noexcept nogil:
    return _entry(c.ids, c.entry) * c.sub


cdef inline void _jump(Cursor* c, int64_t local) noexcept nogil:
    c.start = c.local = local
    c.at = _stands(c.place, local)
    c.left = c.place.grain - local % c.place.grain
    c.end = c.at + min(c.sub, c.left)


cdef inline bint _begin(Cursor* c, const Ids* ids, const Place* place, int64_t sub) noexcept nogil:
    """Stand at the list's first stretch; False: it has none."""
    c.ids, c.place, c.sub, c.entry = ids, place, sub, 0
    if ids.n == 0:
        return False
    _jump(c, _first_of(c))
    return True


cdef inline bint _step(Cursor* c) noexcept nogil:
    """Go on to the next stretch; False: there is none. Entries in a row need no division."""
    cdef int64_t first
    c.local += c.end - c.at
    c.left -= c.end - c.at
    c.at = c.end
    if c.left == 0:
        c.at += c.place.grain * (c.place.every - 1)
        c.left = c.place.grain
    if c.local == c.start + c.sub:
        c.entry += 1
        if c.entry == c.ids.n:
            return False
        first = _first_of(c)
        if first != c.local:
            _jump(c, first)
            return True
        c.start = first
    c.end = c.at + min(c.start + c.sub - c.local, c.left)
    return True


cdef Py_ssize_t _meet_straight(
    const Align* rule, const Ids* src, const Ids* dst, int64_t limit, Met* out
) noexcept nogil:
    """Pair the positions of two lists without gaps, of one rank each: one stretch, cut in two ways."""
    cdef int64_t src_from = src.skip * rule.src_sub, dst_from = dst.skip * rule.dst_sub
    cdef int64_t low = max(src_from, dst_from)
    cdef int64_t high = min(min(src_from + src.n * rule.src_sub, dst_from + dst.n * rule.dst_sub), limit)
    cdef int32_t i, j, i_k, j_k, src_sub = <int32_t>rule.src_sub, dst_sub = <int32_t>rule.dst_sub
    cdef Py_ssize_t n
    if low >= high:
        return 0
    i, i_k = <int32_t>((low - src_from) // rule.src_sub), <int32_t>((low - src_from) % rule.src_sub)
    j, j_k = <int32_t>((low - dst_from) // rule.dst_sub), <int32_t>((low - dst_from) % rule.dst_sub)
    for n in range(high - low):
        out[n].src, out[n].dst, out[n].src_k, out[n].dst_k = i, j, i_k, j_k
        i_k += 1
        j_k += 1
        if i_k == src_sub:
            i, i_k = i + 1, 0
        if j_k == dst_sub:
            j, j_k = j + 1, 0
    return high - low


cdef Py_ssize_t _meet(const Align* rule, const Ids* src, const Ids* dst, int64_t limit, Met* out) noexcept nogil:
    """Pair the positions below `limit` that both lists hold; both ascend, so one walk along the two is enough."""
    cdef Cursor s, d
    cdef Py_ssize_t n = 0
    cdef int64_t at, low, high, end
    if rule.src.every == 1 and rule.dst.every == 1 and src.places == NULL and dst.places == NULL:
        return _meet_straight(rule, src, dst, limit, out)
    if not _begin(&s, src, &rule.src, rule.src_sub) or not _begin(&d, dst, &rule.dst, rule.dst_sub):
        return 0
    while True:
        low, high, end = max(s.at, d.at), min(s.end, d.end), s.end
        if low >= limit:
            return n
        for at in range(low, min(high, limit)):
            out[n].src, out[n].src_k = <int32_t>s.entry, <int32_t>(at - s.at + s.local - s.start)
            out[n].dst, out[n].dst_k = <int32_t>d.entry, <int32_t>(at - d.at + d.local - d.start)
            n += 1
        if end == high and not _step(&s):
            return n
        if d.end == high and not _step(&d):
            return n


# Where both lists hold whole blocks of the same share of the sequence, their entries meet by number.


cdef inline bint _alike(const Align* rule) noexcept nogil:
    return (
        rule.src_sub == 1 and rule.dst_sub == 1 and rule.src.every == rule.dst.every
        and rule.src.first == rule.dst.first and rule.src.grain == rule.dst.grain
    )


cdef Py_ssize_t _one_stretch(
    const Ids* src, const Ids* dst, int64_t most, Py_ssize_t* i, Py_ssize_t* j
) noexcept nogil:
    """Of two lists without gaps the entries below `most` that meet: so many in a row, from `i` and `j` on."""
    cdef int64_t ahead = dst.skip - src.skip
    i[0], j[0] = max(ahead, 0), max(-ahead, 0)
    return max(min(min(src.n - i[0], dst.n - j[0]), most - max(src.skip, dst.skip)), 0)


cdef Py_ssize_t _match(const Ids* src, const Ids* dst, int64_t most, int32_t* of_src, int32_t* of_dst) noexcept nogil:
    """Write the ids of the entries below `most` that meet. Without a branch on what meets: gaps follow no pattern."""
    cdef Py_ssize_t i = 0, j = 0, n = 0, src_n = src.n, dst_n = dst.n
    cdef const int64_t *src_places = src.places
    cdef const int64_t *dst_places = dst.places
    cdef const int32_t *src_at = src.at
    cdef const int32_t *dst_at = dst.at
    cdef int64_t a, b, src_skip = src.skip, dst_skip = dst.skip
    if src_places == NULL and dst_places == NULL:
        n = _one_stretch(src, dst, most, &i, &j)
        if n:
            memcpy(of_src, src_at + i, n * sizeof(int32_t))
            memcpy(of_dst, dst_at + j, n * sizeof(int32_t))
        return n
    while i < src_n and j < dst_n:
        a = src_places[i] if src_places != NULL else src_skip + i
        b = dst_places[j] if dst_places != NULL else dst_skip + j
        of_src[n], of_dst[n] = src_at[i], dst_at[j]
        n += a == b and a < most
        i += a <= b
        j += b <= a
    return n


cdef Py_ssize_t _match_entries(const Ids* src, const Ids* dst, int64_t most, Met* out) noexcept nogil:
    """The same as indices, for a request that has to look at them again."""
    cdef Py_ssize_t i = 0, j = 0, n = 0
    cdef int64_t a, b
    while i < src.n and j < dst.n:
        a, b = _entry(src, i), _entry(dst, j)
        out[n].src, out[n].dst, out[n].src_k, out[n].dst_k = <int32_t>i, <int32_t>j, 0, 0
        n += a == b and a < most
        i += a <= b
        j += b <= a
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


cdef Py_ssize_t _first_unmet(
    const Align* rule, const Ids* dst, int64_t limit, const Met* met, Py_ssize_t n
) noexcept nogil:
    """The first dst entry of which a sub-block that this source's place holds was not met; -1: none."""
    cdef Cursor d
    cdef Py_ssize_t entry, m = 0
    cdef int64_t owed
    cdef bint more = _begin(&d, dst, &rule.dst, rule.dst_sub)
    while more and d.at < limit:
        entry, owed = d.entry, 0
        while more and d.entry == entry and d.at < limit:
            if dst.at[entry] != _NULL:
                owed += _held(&rule.src, min(d.end, limit)) - _held(&rule.src, d.at)
            more = _step(&d)
        while m < n and met[m].dst == entry:
            owed -= 1
            m += 1
        if owed > 0:
            return entry
    return -1
