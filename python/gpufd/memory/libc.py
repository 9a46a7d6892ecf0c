"""Calls of libc that map memory: at an address that is given, and without a descriptor of Python's own."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
mmap = _libc.mmap
mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
mmap.restype = ctypes.c_void_p
munmap = _libc.munmap
munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
mprotect = _libc.mprotect
mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_FIXED, MAP_NORESERVE, MAP_FAILED = 0x10, 0x4000, ctypes.c_void_p(-1).value
