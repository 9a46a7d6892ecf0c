"""Releases the lock of a sink that waits in do_render, which PyGObject cannot: other threads change its state meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from .libraries import GstBase

_glib = ctypes.CDLL("libglib-2.0.so.0")
_offsets: dict[str, int] = {field.get_name(): field.get_offset() for field in GstBase.BaseSink.__info__.get_fields()}
_LOCK, _NEED, _HAVE = (_offsets[name] for name in ("preroll_lock", "need_preroll", "have_preroll"))
if not 0 < _LOCK < _NEED or _HAVE != _NEED + 4:
    raise ImportError(f"this GStreamer's GstBaseSink has its lock at {_LOCK} and its state at {_NEED} and {_HAVE}, where gpufdsink does not know it")
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@contextlib.contextmanager
def unlocked(sink: Any) -> Iterator[None]:
    """Release the lock that the base class holds around do_render, for the body. As in gst_base_sink_wait_preroll the sink has a buffer meanwhile."""
    address = _pointer(sink.__gpointer__, None)
    lock, has = ctypes.c_void_p(address + _LOCK), ctypes.c_int.from_address(address + _HAVE)
    has.value = 1
    _glib.g_mutex_unlock(lock)
    try:
        yield
    finally:
        _glib.g_mutex_lock(lock)
        has.value = 0
