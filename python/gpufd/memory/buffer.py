"""Where the bytes of a Python object are, for C to read them without a copy."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p, py_object
from typing import Any

from ..errors import UsageError


class _Buffer(ctypes.Structure):
    """Py_buffer, of the stable ABI since Python 3.11."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


_SIMPLE = 0  # PyBUF_SIMPLE: contiguous bytes
_api = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose prototypes any library may change
_get = _api.PyObject_GetBuffer
_get.argtypes, _get.restype = [py_object, POINTER(_Buffer), c_int], c_int
_release = _api.PyBuffer_Release
_release.argtypes, _release.restype = [POINTER(_Buffer)], None


@contextlib.contextmanager
def address_of(data: Any) -> Iterator[int]:
    """The address of the bytes of a buffer, read-only ones too, which stay there meanwhile."""
    view = _Buffer()
    try:
        _get(data, ctypes.byref(view), _SIMPLE)
    except BufferError as e:
        raise UsageError(f"the bytes of {type(data).__name__} are not contiguous: {e}") from None
    try:
        yield int(view.buf or 0)
    finally:
        _release(ctypes.byref(view))
