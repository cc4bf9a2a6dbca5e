# A stranger's plain data, before anything is made of it: how long it is in all, for a list that holds one list many
# times is small in memory and long on the wire; and its columns of numbers. Included by _kernels.pyx.


cdef Py_ssize_t _room_left(object item, Py_ssize_t room, Py_ssize_t *lists) except -2:
    """Return the room that an entry leaves, -1 where it is too long, or is no plain data."""
    cdef object entry
    cdef int overflow = 0
    room -= 1
    if room < 0:
        return -1
    if PyLong_CheckExact(item):
        PyLong_AsLongLongAndOverflow(item, &overflow)
        return -1 if overflow else room
    if type(item) is str:
        room -= len(<str>item)
        return room if room > 0 else -1
    if item is None or type(item) is bool or type(item) is float:
        return room
    lists[0] -= 1
    if lists[0] < 0:
        return -1
    if type(item) is list or type(item) is tuple:
        for entry in item:
            room = _room_left(entry, room, lists)
            if room < 0:
                return -1
    elif type(item) is dict:
        for key, entry in (<dict>item).items():
            room = _room_left(key, room, lists)
            if room >= 0:
                room = _room_left(entry, room, lists)
            if room < 0:
                return -1
    else:
        return -1
    return room


def is_short(object item not None, Py_ssize_t room, Py_ssize_t lists):
    """Whether plain data has at most `room` entries and letters in all, and at most `lists` lists and dicts.

    Numbers beyond int64 and objects of any other kind are not plain.
    """
    return _room_left(item, room, &lists) >= 0


def read_numbers(object items, uint64_t[::1] out not None):
    """Read one exact int for all of `out`, or a list with one for each, from 0 to 2**63 - 1; return least and largest.

    None where one is anything else, or the list is of another length: whoever words that looks closely.
    """
    cdef Py_ssize_t i, n = out.shape[0]
    cdef int overflow = 0
    cdef int64_t value, low = INT64_MAX, high = 0
    if PyLong_CheckExact(items):
        value = PyLong_AsLongLongAndOverflow(items, &overflow)
        if overflow or value < 0 or not n:
            return None
        out[:] = <uint64_t>value
        return value, value
    if type(items) is not list or PyList_GET_SIZE(items) != n or not n:
        return None
    with cython.critical_section(items):
        for i in range(n):
            if i >= PyList_GET_SIZE(items) or not PyLong_CheckExact(<object>PyList_GET_ITEM(items, i)):
                return None
            value = PyLong_AsLongLongAndOverflow(<object>PyList_GET_ITEM(items, i), &overflow)
            if overflow or value < 0:
                return None
            low, high = min(low, value), max(high, value)
            out[i] = <uint64_t>value
    return low, high
