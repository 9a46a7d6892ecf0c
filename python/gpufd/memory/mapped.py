"""The mark of a process that has memory of others mapped: the driver's checkpoint would lose it.

It is a memfd named gpufd-mapped with the number of imports that are mapped, 8 bytes, little-endian. The process
keeps it open from its first import on, and others read it by /proc. Go's vmm makes one of its own. The number is written
through a mapping: a program that closes descriptors which it does not know may have another file under that number. Then the
next import, or its end, makes another mark.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import threading
from collections.abc import Callable

from ..errors import Error
from . import libc

NAME = "gpufd-mapped"
_LINK = f"/memfd:{NAME} (deleted)"

_lock = threading.RLock()  # the garbage collector may close memory anywhere
_count = 0


class _Mark:
    """The file, and its mapping. Python's own mmap would keep a second descriptor, and the number would count twice."""

    def __init__(self) -> None:
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.ftruncate(self.fd, 8)
        self.file = _identity(self.fd)
        at = libc.mmap(None, 8, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, self.fd, 0)
        if at in (None, libc.MAP_FAILED):
            os.close(self.fd)
            raise Error(f"mmap of 8 bytes: {os.strerror(ctypes.get_errno())}")
        self.number = ctypes.c_uint64.from_address(at)

    def is_open(self) -> bool:
        """Return whether the descriptor is still that of the file."""
        return _identity(self.fd) == self.file

    def drop(self) -> None:
        """Close the descriptor, if it is still that of the file, and unmap the number."""
        if self.is_open():
            os.close(self.fd)
        libc.munmap(ctypes.addressof(self.number), 8)


def _identity(fd: int) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        found = os.fstat(fd)
        return found.st_dev, found.st_ino
    return 0, 0


_mark: _Mark | None = None


def note() -> Callable[[], None]:
    """Count an import, and return the function that takes it off again."""
    _add(1)
    return lambda: _add(-1)


def _add(n: int) -> None:
    global _mark, _count
    with _lock:
        if not (_mark and _mark.is_open()):
            _mark = _Mark()  # the page of one that was closed stays mapped: a call below this one may be about to write there
        _count += n
        written = -1
        while written != _count:  # which may change meanwhile in this thread, too
            written = _mark.number.value = _count


def imports_of(pid: int) -> int:
    """Return how many imports a process has mapped, as far as gpufd has made them.

    Raises ProcessLookupError if there is no such process, and PermissionError if this user may not look.
    """
    found = 0
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None
    for fd in descriptors:
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            if os.readlink(f"/proc/{pid}/fd/{fd}") == _LINK:
                found += _number_in(f"/proc/{pid}/fd/{fd}")
    return found


def _number_in(path: str) -> int:
    """Read a mark. A process that others look at may have put anything in its place meanwhile, a pipe as well."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return int.from_bytes(os.read(fd, 8), "little") if stat.S_ISREG(os.fstat(fd).st_mode) else 0
    finally:
        os.close(fd)


def _after_fork() -> None:
    global _mark, _count, _lock
    if _mark:
        _mark.drop()
    _mark, _count, _lock = None, 0, threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
