# Block lists to int32: any Python list of ints or plain int32/int64 array, range-checked while it is read.
# Included by _kernels.pyx.


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
        try:
            item = _index(item)
        except TypeError:  # an array of several, say
            return 0
    value[0] = PyLong_AsLongLongAndOverflow(item, &overflow)
    if overflow:
        value[0] = INT64_MAX
    return 1


cdef inline void _keep(Ids* ids, Py_ssize_t i, int64_t value, Reading* rule) noexcept nogil:
    ids.at[i] = _admit(value, rule)
    if ids.at[i] == _BAD and ids.bad < 0:
        ids.bad = i


cdef Py_ssize_t _read_small(PyObject** items, Py_ssize_t n, int32_t* at, uint32_t limit, bint* odd) noexcept nogil:
    """Read the small ints that `items` begin with; say how many, and whether one is out of range."""
    cdef Py_ssize_t i
    cdef int64_t value = 0
    cdef bint beyond = False
    for i in range(n):
        if not nixldesc_small_int(items[i], &value):
            n = i
            break
        at[i] = <int32_t>value
        beyond |= <uint32_t>value >= limit
    odd[0] = beyond
    return n


cdef int _read_list(list items, Ids* ids, Reading* rule, Fault* fault) except -1:
    # An element's __index__ may run any code, also code that shortens this list: its size is asked anew each time.
    cdef Py_ssize_t i = 0, read
    cdef int64_t value = 0
    cdef bint odd = False
    with cython.critical_section(items):
        i = min(ids.n, PyList_GET_SIZE(items))
        i = _read_small(PySequence_Fast_ITEMS(items), i, ids.at, <uint32_t>rule.limit, &odd)
        if odd or rule.has_null:
            for read in range(i):
                _keep(ids, read, ids.at[read], rule)
        while i < ids.n and i < PyList_GET_SIZE(items):
            if not nixldesc_small_int(<PyObject*>PyList_GET_ITEM(items, i), &value):
                if not _value(<object>PyList_GET_ITEM(items, i), &value):
                    fault.code, fault.position = _BAD_TYPE, i
                    return 0
            _keep(ids, i, value, rule)
            i += 1
        if PyList_GET_SIZE(items) != ids.n:
            fault.code, fault.position, fault.extra = _CHANGED, PyList_GET_SIZE(items), ids.n
    return 0


cdef int _read_tuple(tuple items, Ids* ids, Reading* rule, Fault* fault) except -1:
    cdef Py_ssize_t i
    cdef int64_t value = 0
    for i in range(ids.n):
        if not nixldesc_small_int(<PyObject*>PyTuple_GET_ITEM(items, i), &value):
            if not _value(<object>PyTuple_GET_ITEM(items, i), &value):
                fault.code, fault.position = _BAD_TYPE, i
                return 0
        _keep(ids, i, value, rule)
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
            _keep(ids, i, ids.at[i], rule)


cdef void _read_int64(const int64_t* items, Ids* ids, Reading* rule) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(ids.n):
        _keep(ids, i, items[i], rule)


cdef int _read_array(object items, Ids* ids, Reading* rule, Scratch* scratch, Fault* fault) except -1:
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
        ids.at = _room(scratch, ids.n)
        if ids.at == NULL:
            fault.code = _MEMORY
        elif view.itemsize == 4:
            _read_int32(<const int32_t*>view.buf, ids, rule)
        else:
            _read_int64(<const int64_t*>view.buf, ids, rule)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int _load(object items, Ids* ids, Reading* rule, Scratch* scratch, Fault* fault) except -1:
    """Read one block list into `ids`; a refusal is left in `fault`."""
    ids.bad = -1
    if isinstance(items, list):
        ids.n = PyList_GET_SIZE(items)
    elif isinstance(items, tuple):
        ids.n = PyTuple_GET_SIZE(items)
    elif isinstance(items, _ndarray):
        return _read_array(items, ids, rule, scratch, fault)
    else:
        fault.code = _UNREAD
        return 0
    ids.at = _room(scratch, ids.n)
    if ids.at == NULL:
        fault.code = _MEMORY
        return 0
    if isinstance(items, list):
        return _read_list(<list>items, ids, rule, fault)
    return _read_tuple(<tuple>items, ids, rule, fault)


cdef inline object _list_at(object lists, Py_ssize_t group):
    # An id's __index__ may have shortened the list of lists, too: None is UNREAD, and the door starts from a copy.
    if isinstance(lists, list):
        return (<list>lists)[group] if group < PyList_GET_SIZE(lists) else None
    return (<tuple>lists)[group]


cdef Py_ssize_t _read_small_places(list items, int64_t[::1] places) except -1:
    """Read the small ints that a list begins with; say how many."""
    cdef Py_ssize_t i
    with cython.critical_section(items):
        for i in range(min(places.shape[0], PyList_GET_SIZE(items))):
            if not nixldesc_small_int(<PyObject*>PyList_GET_ITEM(items, i), &places[i]):
                return i
        return min(places.shape[0], PyList_GET_SIZE(items))


cdef Py_ssize_t _read_any_places(tuple items, Py_ssize_t i, int64_t[::1] places) except -1:
    """Read integers of any kind from the i-th on; say where the first stands that is none."""
    cdef int64_t value = 0
    for i in range(i, min(places.shape[0], PyTuple_GET_SIZE(items))):
        if not _value(<object>PyTuple_GET_ITEM(items, i), &value):
            return i
        places[i] = value
    return min(places.shape[0], PyTuple_GET_SIZE(items))


def read_places(object items not None):
    """Read where a list's entries stand: int64, strictly ascending from 0; a fresh int64 array is only looked at.

    Or a fault tuple, BAD_TYPE at the first that is no integer, OUT_OF_RANGE at the first that is not above the one
    before it, or not below 2**62.
    """
    cdef Fault fault
    cdef Py_ssize_t i
    cdef int64_t before = -1
    cdef int64_t[::1] places
    memset(&fault, 0, sizeof(Fault))
    out = items if isinstance(items, _ndarray) else _empty(len(items), _INT64)
    places = out
    if out is not items:
        i = _read_small_places(<list>items, places) if isinstance(items, list) else 0
        if i < places.shape[0]:
            i = _read_any_places(tuple(items), i, places)  # ours, whatever an element's __index__ does to the caller's
        if i < places.shape[0]:
            fault.code, fault.position = _BAD_TYPE, i
            return _report(&fault)
    for i in range(places.shape[0]):
        if places[i] <= before or places[i] >= <int64_t>1 << 62:
            fault.code, fault.position = _OUT_OF_RANGE, i
            return _report(&fault)
        before = places[i]
    out.flags.writeable = False
    return out
