# Pairs of ids, sorted by the destination's: neighbours that can merge become neighbours, and twins are seen.
# Included by _kernels.pyx.


cdef void _insert_by_dst(int32_t* src, int32_t* dst, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef int32_t a, b
    for i in range(1, n):
        a, b, j = src[i], dst[i], i
        while j > 0 and dst[j - 1] > b:
            src[j], dst[j] = src[j - 1], dst[j - 1]
            j -= 1
        src[j], dst[j] = a, b


cdef int _sort_by_dst(int32_t* src, int32_t* dst, Py_ssize_t n, Py_ssize_t* twin) noexcept nogil:
    """Sort pairs by dst, stable. Returns 0, or 1 without memory; `twin`: the second of two equal dst, or -1.

    Lists in order (a fresh engine's) are only looked at, a few pairs are inserted, many are radix sorted.
    """
    cdef Py_ssize_t i
    cdef uint32_t every = 0
    cdef bint ascending = True
    twin[0] = -1
    for i in range(1, n):
        ascending &= dst[i - 1] < dst[i]
    if ascending:
        return 0
    if n <= 48:
        _insert_by_dst(src, dst, n)
    else:
        for i in range(n):
            every |= <uint32_t>dst[i]
        if _radix_by_dst(src, dst, n, every):
            return 1
    twin[0] = _twin(dst, n)
    return 0


cdef Py_ssize_t _twin(const int32_t* sorted, Py_ssize_t n) noexcept nogil:
    """The first that equals the one before it, or -1."""
    cdef Py_ssize_t i
    cdef bint twice = False
    for i in range(1, n):  # nearly always for nothing, so without a way out it is a vector loop
        twice |= sorted[i - 1] == sorted[i]
    if twice:
        for i in range(1, n):
            if sorted[i - 1] == sorted[i]:
                return i
    return -1


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
    bits = (width + passes - 1) // passes if passes else 0
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


cdef int _find_twin(const int32_t* dst, Py_ssize_t n, int32_t* twin) noexcept nogil:
    """Look for two equal ids in any order, which stays. Returns 0, or 1 without memory; `twin`: their value, or -1.

    A table of slots, half of them free, tells; ids that crowd in it (somebody's choice) are sorted in a copy.
    """
    cdef Py_ssize_t i, slot, mask, crowd = 8 * n
    cdef int shift = 26
    cdef int32_t* slots
    cdef bint ascending = True, taken = False
    twin[0] = -1
    for i in range(1, n):
        ascending &= dst[i - 1] < dst[i]
    if ascending:
        return 0
    while shift > 0 and (<Py_ssize_t>1 << (32 - shift)) < 2 * n:
        shift -= 1
    mask = (<Py_ssize_t>1 << (32 - shift)) - 1
    slots = <int32_t*>malloc((mask + 1) * sizeof(int32_t))
    if slots == NULL:
        return 1
    memset(slots, -1, (mask + 1) * sizeof(int32_t))
    for i in range(n):
        slot = <Py_ssize_t>((<uint64_t>dst[i] * <uint64_t>2654435769 & <uint64_t>0xFFFFFFFF) >> shift)
        while slots[slot] != -1 and slots[slot] != dst[i] and crowd > 0:
            slot = (slot + 1) & mask
            crowd -= 1
        taken = slots[slot] != -1
        if taken:
            break
        slots[slot] = dst[i]
    free(slots)
    return _find_twin_sorted(dst, n, twin) if taken else 0


cdef int _find_twin_sorted(const int32_t* dst, Py_ssize_t n, int32_t* twin) noexcept nogil:
    cdef Py_ssize_t at = -1
    cdef int failed = 1
    cdef int32_t* copies = <int32_t*>malloc(2 * n * sizeof(int32_t))
    if copies != NULL:
        memcpy(copies, dst, n * sizeof(int32_t))
        memcpy(copies + n, dst, n * sizeof(int32_t))
        failed = _sort_by_dst(copies, copies + n, n, &at)
        if at >= 0:
            twin[0] = copies[n + at]
        free(copies)
    return failed
