"""Device memory in equal chunks, side by side: of the software driver, or of a GPU.

:class:`Memory` is what both have in common; _soft.py and _cuda.py make it. Memory belongs to
the process that made it: after a fork the child is told so.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, Error, ExportError, InUseError, MismatchError, ReadOnlyError, UsageError
from ..objects import NotCopied, called, human
from ..wire.records import LEGACY, MAX_CHUNKS, READ_ONLY, READ_WRITE, SOFT, Offer, access_name
from .array import Array
from .dlpack import left
from .reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_last = 0
_lock = threading.Lock()


def new_generation() -> int:
    """A number that is larger than that of all memory made before on this machine."""
    global _last
    with _lock:
        _last = max(_last + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        return _last


def layout(size: int, chunk: int, granularity: int) -> tuple[int, int]:
    """The number of chunks and the size of each for a buffer of size bytes."""
    if size < 1 or chunk < 0:
        raise UsageError(f"memory of {size} bytes in chunks of {chunk}")
    chunk = -(-(chunk or size) // granularity) * granularity
    chunks = -(-size // chunk)
    if chunks > MAX_CHUNKS:
        raise UsageError(f"{size} bytes in chunks of {chunk} are {chunks} chunks, and {MAX_CHUNKS} are allowed")
    return chunks, chunk


_DESCRIBED = ("size", "chunk", "chunks", "uuid", "generation", "granularity", "_taken")  # attributes that an offer says


class Memory(NotCopied):
    """Memory of one device, mapped here. Its maker closes it, by ``with`` or close.

    ptr             its address
    size            its bytes
    chunk, chunks   bytes of a chunk, and how many there are
    fds             a descriptor for each chunk, if it was allocated here or attached with reoffer
    access          READ_ONLY or READ_WRITE
    ordinal, uuid   its device
    generation      a number that no other memory of this machine has
    detached        whether it was unmapped, and its address kept
    reservation     the range that it is mapped in, if there is one
    """

    driver = SOFT
    about = ""
    _array_of = "view(dtype, shape)"

    def __init__(self, access: int = READ_WRITE) -> None:
        self.size = self.chunk = self.chunks = self.granularity = self.generation = 0
        self.uuid = bytes(16)
        self.ordinal = 0
        self.access = access
        self.handle, self.offset = b"", 0  # of memory that is shared by a legacy handle
        self.fds: list[int] = []
        self.closed = self.detached = False
        self.offered_to_write = False  # others may have mapped it read-write
        self.reservation: Reservation | None = None
        self._own_range: Reservation | None = None  # the reservation, if it was made for this memory alone
        self._ptr = 0  # its address, if it is at no reservation
        self._taken = ""  # a description of another process's memory that descriptors came for
        self._pid = os.getpid()
        # Close undoes the mapping first, then the handles and descriptors, then all else. detach undoes the first two.
        self._mapping, self._imports, self._undo = contextlib.ExitStack(), contextlib.ExitStack(), contextlib.ExitStack()
        self._views: dict[int, str] = {}
        self._pins: set[int] = set()  # those of the views that work with the memory now
        self._tokens = itertools.count(1)
        self._lock = threading.RLock()
        _all.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "detached" if self.detached else access_name(self.access)
        return f"<gpufd.Memory {human(self.size)} in {self.chunks} chunk{'s' if self.chunks != 1 else ''} on device {self.ordinal}, {state}>"

    # Users of the memory: close waits for nobody, so it refuses while there are any.

    def hold(self, what: str, pins: bool = False) -> int:
        """Note that something uses the memory, and return a number for let_go.

        With pins detach refuses as well as close: that is for what works with the memory, and not for what has its address.
        """
        with self._lock:
            self.check()
            token = next(self._tokens)
            self._views[token] = what
            if pins:
                self._pins.add(token)
            return token

    def let_go(self, token: int) -> None:
        """Take back what hold has noted."""
        self._views.pop(token, None)  # at once, without the lock: a finaliser may run anywhere
        self._pins.discard(token)

    @contextlib.contextmanager
    def using(self, what: str) -> Iterator[None]:
        """Refuse close and detach meanwhile: what is read or written could be another's then."""
        token = self.hold(what, pins=True)
        try:
            yield
        finally:
            self.let_go(token)

    def views(self, pins: bool = False) -> list[str]:
        """Return what uses the memory now, a line for each; with pins, what works with it."""
        left()
        with self._lock:
            return [what for token, what in list(self._views.items()) if not pins or token in self._pins]

    def check(self) -> None:
        """Raise if the memory cannot be used."""
        if self._pid != os.getpid():
            raise ClosedError(
                f"process {os.getpid()} was forked from {self._pid}, whose memory this is: attach in the child (multiprocessing: use spawn)",
                reason="forked",
            )
        if self.closed:
            raise ClosedError("the memory was closed")
        if self.detached:
            raise ClosedError(f"{self._taken} is detached: reattach first", reason="detached")

    def check_range(self, at: int, n: int) -> None:
        self.check()
        if not isinstance(at, int) or not isinstance(n, int):
            raise UsageError(f"bytes {at!r} to {n!r} behind that: whole numbers are wanted")
        if at < 0 or n < 0 or at + n > self.size:
            raise UsageError(f"bytes {at} to {at + n} of memory of {self.size} bytes")

    def up_to(self, at: int, n: int | None) -> int:
        """The bytes that read is asked for."""
        return n if n is not None else self.size - at if isinstance(at, int) else 0  # which check_range refuses

    def check_write(self) -> None:
        self.check()
        if self.access != READ_WRITE:
            raise ReadOnlyError("the memory was attached read-only and cannot be written; copy() gives a private copy")

    def in_use(self, pins: bool = False) -> InUseError | None:
        """Why the memory cannot be closed, or with pins, detached; or None."""
        views = self.views(pins)
        if not views:
            return None
        some = "; ".join(views[:8]) + (f"; and {len(views) - 8} more" if len(views) > 8 else "")
        return InUseError(f"the memory is in use by {len(views)} view{'s' if len(views) > 1 else ''}: {some}", views)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, force: bool = False) -> None:
        """Wait for the work on the device, unmap the memory, and close its descriptors.

        Raises InUseError while views of it are alive, or while it is offered. With force the
        memory is unmapped at once, whoever uses it.
        """
        with self._lock:
            if self.closed:
                return
            if self._pid == os.getpid():
                busy = None if force else self.in_use()
                if busy:
                    raise busy
                self._undo_all(force)
            self.closed = True
            self.fds = []

    # Addresses that stay.

    def detach(self, force: bool = False) -> None:
        """Wait for the work on the device, and unmap and release another process's memory. Its address stays.

        Arrays may be alive, and cannot be used until attach_again. Raises InUseError while the memory is offered or a call works with it;
        then nothing has changed. With force it is unmapped at once, as by close.
        """
        with self._lock:
            self.check()
            self._need_taken("detached")
            busy = None if force else self.in_use(pins=True)
            if busy:
                raise busy
            if not force:
                self.finish()
            self.detached = True
            if self.reservation:
                self.reservation.expect(self)
            with self._entered():
                self._release()

    def attach_again(self, offer: Offer, fds: Sequence[int], reoffer: bool = False) -> Callable[[], None]:
        """Map the memory of an offer where detached memory was. The descriptors stay the caller's.

        Return a function that detaches the memory as it was before. After an error that was done.
        """
        with self._lock:
            if self.closed or not self.detached:
                self.check()
                raise UsageError("the memory is not detached, so it cannot be attached again")
            before = {name: getattr(self, name) for name in _DESCRIBED}
            try:
                self._take(offer, fds, self.ordinal, reoffer)
            except BaseException:
                self._detach_as(before)
                raise
            self.detached = False
        return lambda: self._detach_as(before)

    def _detach_as(self, before: dict[str, Any]) -> None:
        with self._lock:
            self.detached = True
            with self._entered():
                self._release()
            self.__dict__.update(before)

    def move(self, at: Reservation, force: bool = False) -> None:
        """Wait for the work on the device, and map another process's memory at a reservation instead of where it is.

        Raises InUseError while the memory is in use, unless force: arrays of it have its old address. After an error it is where it was.
        """
        with self._lock:
            self.check()
            self._need_taken("moved")
            busy = None if force else self.in_use()
            if busy:
                raise busy
            if at is self.reservation:
                return
            with self._entered(), contextlib.ExitStack() as there:
                self.finish()
                self._map_at(there, at)  # as well as where it is: one allocation may be mapped twice
                before, self._mapping = self._mapping, there.pop_all()
                own, self._own_range, self.reservation = self._own_range, None, at
                with contextlib.ExitStack() as gone:
                    if own:
                        gone.callback(own.close)
                    gone.callback(before.close)

    @property
    def is_unmapped(self) -> bool:
        """Whether the memory is detached, and nothing else is mapped at its address."""
        return self.detached and not self.closed and self.reservation is not None and not self.reservation.mapped

    def _need_taken(self, what: str) -> None:
        if not self._taken:
            raise UsageError(f"only another process's memory that is shared by descriptors can be {what}")

    def _take(self, offer: Offer, fds: Sequence[int], device: int | None, reoffer: bool) -> None:
        """Import and map the memory of an offer, at the reservation if there is one. On failure _release undoes what was done."""
        raise NotImplementedError

    def _map_at(self, mapping: contextlib.ExitStack, at: Reservation) -> None:
        """Map what was imported at a reservation, and note in mapping what undoes that."""
        raise NotImplementedError

    def _what(self) -> str:
        return self._taken or "memory that was allocated here"

    def _describe(self, offer: Offer) -> None:
        self.size, self.chunk, self.chunks, self.uuid = offer.size, offer.chunk_size, offer.chunks, offer.device
        self.generation, self.granularity, self._taken = offer.generation, offer.granularity, called(offer.name)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Be ready for what is undone."""
        yield

    def _release(self) -> None:
        """Unmap the memory, and let go of its handles and descriptors."""
        self.fds = []
        try:
            self._mapping.close()
        finally:
            self._imports.close()

    # The end.

    def _undo_all(self, force: bool) -> None:
        """Wait for the work, unless force, and let go of all. What the driver says of the work
        is raised then: nothing of it runs any more where that has failed."""
        failed: Error | None = None
        try:
            if not force and not self.detached and self._is_whole():
                self.finish()  # a kernel whose memory goes takes the context with it
        except Error as e:
            failed = e
        self.closed, self.fds = True, []  # the numbers will be others'
        try:
            self._unwind()
        except Error as e:
            failed = failed or e
        if failed:
            raise failed

    def _unwind(self) -> None:
        """Undo what was done for the memory, the last thing first."""
        with self._entered(), contextlib.ExitStack() as last:
            last.callback(self._undo.close)
            if self._own_range:
                last.callback(self._own_range.close)
            last.callback(self._release)

    def _is_whole(self) -> bool:
        """Return whether it came to be, so that work may be under way there."""
        return self.size > 0

    def __del__(self) -> None:
        if hasattr(self, "_views"):
            self._views.clear()  # nothing refers to it, so there are none
            self._pins.clear()
            with contextlib.suppress(Exception):
                self.close()

    # Bytes.

    @property
    def ptr(self) -> int:
        """Address of the memory."""
        raise NotImplementedError

    def mapped_at(self) -> int:
        """Return the address where the memory is mapped, or 0 if it is not mapped now."""
        if self.closed or self.detached:
            return 0
        return self.reservation.ptr if self.reservation else self._ptr

    def read(self, at: int = 0, n: int | None = None) -> bytes:
        """Copy n bytes, by default all from at on, to the host."""
        raise NotImplementedError

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes from the host."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for the work on the device. It has to be done before memory is offered."""

    def grow(self, size: int) -> None:
        """Append chunks until there are size bytes. The address stays. See capacity of allocate."""
        raise NotImplementedError

    def protect(self, access: int) -> None:
        """Map the memory READ_ONLY or READ_WRITE from here on."""
        raise NotImplementedError

    def private(self, size: int) -> Memory:
        """Memory of the same device that nobody else has."""
        raise NotImplementedError

    def copy_from(self, other: Memory, at: int, n: int) -> None:
        """Copy n bytes from memory of the same device to the beginning of this."""
        raise NotImplementedError

    def wait_on(self, stream: int) -> None:
        """Make the stream of that number wait for the copies that were begun here."""
        raise ExportError(f"stream {stream!r} for memory of the host, which has none")

    def process_flags(self) -> int:
        """The flags of this process in an offer."""
        return 0

    def view(self, dtype: str = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the memory, without a copy: see Attachment.view."""
        return Array(self, dtype, shape, offset)

    def offer(self, name: str, access: int = READ_ONLY, data: bytes = b"", pending: bool = False) -> Offer:
        """The first record of an offer of all of it."""
        self.check()
        if access not in (READ_ONLY, READ_WRITE):
            raise UsageError(f"access {access!r}: READ_ONLY or READ_WRITE")
        if access > self.access:
            raise UsageError(f"{access_name(access)} cannot be offered of memory that is {access_name(self.access)} here")
        what: dict[str, Any] = {"data": data, "pending": pending, "process": self.process_flags()}
        if self.handle:  # anybody who opens it may write
            return Offer(self.driver, READ_WRITE, 1, self.uuid, self.size, self.chunk, 0, self.generation, 0, 0, name,
                         handle_type=LEGACY, offset=self.offset, handle=self.handle, **what)  # fmt: skip
        if len(self.fds) != self.chunks:
            raise MismatchError("the memory has no descriptors to offer: it was attached without reoffer=True, or is private", reason="handle")
        return Offer(self.driver, access, self.chunks, self.uuid, self.size, self.chunk, self.granularity, self.generation,
                     0, min(64, self.chunks), name, **what)  # fmt: skip

    def _own(self, fd: int) -> None:
        self.fds.append(fd)
        self._imports.callback(os.close, fd)

    def _forked(self) -> None:
        """In a child after a fork: its copies of the descriptors keep nothing alive."""
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds = []
        self._lock = threading.RLock()  # another thread may have held it


_all: weakref.WeakSet[Memory] = weakref.WeakSet()


def _after_fork() -> None:
    for memory in list(_all):
        memory._forked()


os.register_at_fork(after_in_child=_after_fork)
