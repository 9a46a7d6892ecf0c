"""Address space that memory is mapped in, again and again: :class:`Reservation`."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from ..errors import ClosedError, InUseError, MismatchError, UsageError
from ..objects import NotCopied, human
from ..wire.records import driver_name


class Mapped(Protocol):
    """Memory, as a reservation knows it."""

    closed: bool
    detached: bool
    reservation: Reservation | None


class Reservation(NotCopied):
    """A range of addresses, at whose beginning memory can be mapped. Its maker closes it, by ``with`` or close.

    One memory is mapped there at a time: attach(at=reservation). It is closed also when nothing refers to it any
    more, and nothing is mapped there.

    driver      CUDA or SOFT
    ptr         its first address
    size        its bytes
    """

    _array_of = ""

    def __init__(self, driver: int, ptr: int, size: int, free: Callable[[int, int], object]) -> None:
        self.driver, self.ptr, self.size = driver, ptr, size
        self.closed = False
        self._free = free
        self._mapped = ""  # a description of the memory that is mapped there
        self._detached: weakref.WeakSet[Mapped] = weakref.WeakSet()  # memory that was mapped there, and may come back
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "mapped" if self._mapped else "free"
        return f"<gpufd.Reservation {human(self.size)} at {self.ptr:#x}, {state}>"

    @property
    def mapped(self) -> bool:
        """Whether memory is mapped there now."""
        return self._mapped != ""

    def check(self, driver: int) -> None:
        """Raise unless memory of a kind of driver can be mapped there now."""
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose reservation this is", reason="forked")
        if self.closed:
            raise ClosedError("the reservation was closed")
        if driver != self.driver:
            names = driver_name(driver), driver_name(self.driver)
            raise UsageError("memory of the %s driver cannot be mapped at a reservation of the %s driver" % names)
        if self._mapped:
            raise self._in_use()

    def take(self, driver: int, size: int, what: str) -> None:
        """Note that memory is being mapped at the beginning. Raises unless it fits, and nothing else is there."""
        with self._lock:
            self.check(driver)
            if size > self.size:
                raise MismatchError(f"{what} takes {size} bytes of address space, and the reservation has {self.size}", reason="too-large")
            self._mapped = what

    def leave(self) -> None:
        """Note that nothing is mapped there any more."""
        self._mapped = ""

    def expect(self, memory: Mapped) -> None:
        """Note that memory was detached, which may be mapped there again."""
        self._detached.add(memory)

    def _is_expected(self) -> bool:
        return any(m.detached and not m.closed and m.reservation is self for m in self._detached)

    def _in_use(self) -> InUseError:
        return InUseError(f"{self._mapped} is mapped at the reservation of {self.size} bytes at {self.ptr:#x}", [self._mapped])

    def close(self) -> None:
        """Give the addresses back. Raises InUseError while memory is mapped there, or detached from there, and changes nothing then."""
        with self._lock:
            if self.closed:
                return
            if self._pid == os.getpid():
                if self._mapped:
                    raise self._in_use()
                if self._is_expected():
                    raise InUseError(f"memory was detached from the reservation of {self.size} bytes at {self.ptr:#x}: close that first", [])
                self._free(self.ptr, self.size)
            self.closed = True

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except InUseError:
            if error is None:
                raise

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            with contextlib.suppress(Exception):
                self.close()
