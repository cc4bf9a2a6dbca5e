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
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from operator import index as _index

from numpy import bool_ as _bool
from numpy import dtype as _dtype
from numpy import empty as _empty
from numpy import ndarray as _ndarray

cdef extern from "Python.h":
    PyObject** PySequence_Fast_ITEMS(object items)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef extern from *:
    """
    /* Nearly all block ids are one-digit ints: read without a call where this CPython says how. */
    static inline int nixldesc_small_int(PyObject *item, int64_t *value) {
    #if defined(Py_LIMITED_API) || defined(PYPY_VERSION)
        (void)item; (void)value; return 0;
    #elif PY_VERSION_HEX >= 0x030C0000
        if (!PyLong_CheckExact(item) || !PyUnstable_Long_IsCompact((PyLongObject *)item)) return 0;
        *value = PyUnstable_Long_CompactValue((PyLongObject *)item);
        return 1;
    #else
        if (!PyLong_CheckExact(item) || (size_t)Py_SIZE(item) > 1) return 0;
        *value = Py_SIZE(item) ? ((PyLongObject *)item)->ob_digit[0] : 0;
        return 1;
    #endif
    }

    /* So many ids of a request are served from the stack. Under the sanitizer next to none: on the heap each list has
       red zones around it. */
    #ifdef __SANITIZE_ADDRESS__
    #define NIXLDESC_ROOM 1
    #else
    #define NIXLDESC_ROOM 512
    #endif

    /* The one addition per descriptor; on x86-64 with the widest vectors that the processor at hand has. */
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
    __attribute__((target_clones("avx512f", "avx2", "default")))
    #endif
    static void nixldesc_spread(
        const int32_t *restrict flat, Py_ssize_t n, const int32_t *restrict starts, Py_ssize_t step, Py_ssize_t count,
        int32_t *restrict out
    ) {
        /* Region by region for as many ids as stay in the innermost cache beside the writes. */
        for (Py_ssize_t from = 0; from < n; from += 2048) {
            const Py_ssize_t part = n - from < 2048 ? n - from : 2048;
            for (Py_ssize_t job = 0; job < count; job++) {
                const int32_t start = starts[job * step];
                int32_t *restrict to = out + job * n + from;
                for (Py_ssize_t i = 0; i < part; i++) to[i] = start + flat[from + i];
            }
        }
    }
    """
    enum: NIXLDESC_ROOM
    int nixldesc_small_int(PyObject* item, int64_t* value) noexcept nogil
    void nixldesc_spread(
        const int32_t* flat, Py_ssize_t n, const int32_t* starts, Py_ssize_t step, Py_ssize_t count, int32_t* out
    ) noexcept nogil

cdef object _INT32 = _dtype("int32")
cdef object _INT64 = _dtype("int64")

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
    _TOKENS = 11         # a plain list of another length than the request's tokens need
    _TWICE = 12          # a destination id that stands there twice
    _UNMET = 13          # a destination entry without its source, where none may be

UNREAD, BAD_TYPE, OUT_OF_RANGE, CHANGED, MISFIT = _UNREAD, _BAD_TYPE, _OUT_OF_RANGE, _CHANGED, _MISFIT
UNSERVED, OUT_SIZE, UNEQUAL_LEN, MEMORY, FAR = _UNSERVED, _OUT_SIZE, _UNEQUAL_LEN, _MEMORY, _FAR
TOKENS, TWICE, UNMET = _TOKENS, _TWICE, _UNMET

# Marks inside an Ids buffer; real ids are >= 0.
cdef enum:
    _NULL = -1           # the null block
    _BAD = -2            # out of range, allowed only opposite a null block
    _SPARED = -3         # out of range, but its pair was dropped for the null block opposite

cdef enum:
    _LONG = 4096         # fewer ids than this are done before another thread could have taken the GIL
    _LARGE = 16384       # more ids on a side: both sides share one array's memory
    _SHORT = 64          # so many pairs are met on the stack
    _LISTS = 8           # a request of so many lists is served from the stack

cdef struct Ids:         # one block list, read
    int32_t* at
    Py_ssize_t n
    int64_t skip
    int64_t* places      # where each entry stands, NULL: one after the other behind `skip`
    bint plain
    Py_ssize_t bad       # position of the first _BAD, or -1
    int64_t limit        # exclusive bound of its ids (of a pair's lists)

cdef struct Flat:        # ids relative to a region's start; dst is NULL for one side alone
    int32_t* src
    int32_t* dst
    Py_ssize_t n
    bint borrowed

cdef struct Scratch:     # a request's memory: the stack for short ones, the heap for long ones
    Ids* ids
    Flat* flats
    Py_ssize_t num_ids
    Py_ssize_t num_flats
    Py_ssize_t used
    Ids few_ids[_LISTS]
    Flat few_flats[_LISTS]
    int32_t room[NIXLDESC_ROOM]

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


cdef int _open(Scratch* scratch, Py_ssize_t num_ids, Py_ssize_t num_flats) noexcept nogil:
    """Give every list and flat an empty record; False without memory. `_close` must follow in any case."""
    scratch.used = 0
    scratch.num_ids, scratch.num_flats = num_ids, num_flats
    scratch.ids, scratch.flats = scratch.few_ids, scratch.few_flats
    if num_ids > _LISTS:
        scratch.ids = <Ids*>malloc(num_ids * sizeof(Ids))
    if num_flats > _LISTS:
        scratch.flats = <Flat*>malloc(num_flats * sizeof(Flat))
    if scratch.ids == NULL or scratch.flats == NULL:
        scratch.num_ids = scratch.num_flats = 0
        return False
    memset(scratch.ids, 0, num_ids * sizeof(Ids))
    memset(scratch.flats, 0, num_flats * sizeof(Flat))
    return True


cdef int32_t* _room(Scratch* scratch, Py_ssize_t n) noexcept nogil:
    """Return memory for `n` ids, NULL where there is none."""
    cdef int32_t* at = scratch.room + scratch.used
    if n <= NIXLDESC_ROOM - scratch.used:
        scratch.used += n
        return at
    return <int32_t*>malloc(n * sizeof(int32_t)) if n < INT32_MAX else NULL


cdef inline void _give_back(Scratch* scratch, int32_t* at) noexcept nogil:
    if at < scratch.room or at > scratch.room + NIXLDESC_ROOM:
        free(at)


cdef void _close(Scratch* scratch) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(scratch.num_ids):
        _give_back(scratch, scratch.ids[i].at)
        free(scratch.ids[i].places)
    for i in range(scratch.num_flats):
        if not scratch.flats[i].borrowed:
            _give_back(scratch, scratch.flats[i].src)
            _give_back(scratch, scratch.flats[i].dst)
    if scratch.ids != scratch.few_ids:
        free(scratch.ids)
    if scratch.flats != scratch.few_flats:
        free(scratch.flats)


cdef inline tuple _report(Fault* fault):
    return (fault.code, fault.side, fault.group, fault.position, fault.extra)


include "_plain.pxi"
include "_read.pxi"
include "_ids.pxi"
include "_meet.pxi"
include "_sort.pxi"
include "_pairs.pxi"
include "_rows.pxi"
include "_table.pxi"
