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
from ..objects import NotCopied, human
from ..wire.records import LEGACY, MAX_CHUNKS, READ_ONLY, READ_WRITE, SOFT, Offer, access_name
from .array import Array
from .dlpack import left

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


class Memory(NotCopied):
    """Memory of one device, mapped here. Its maker closes it, by ``with`` or close.

    ptr             its address
    size            its bytes
    chunk, chunks   bytes of a chunk, and how many there are
    fds             a descriptor for each chunk, if it was allocated here or attached with reoffer
    access          READ_ONLY or READ_WRITE
    ordinal, uuid   its device
    generation      a number that no other memory of this machine has
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
        self.closed = False
        self.offered_to_write = False  # others may have mapped it read-write
        self._pid = os.getpid()
        self._undo = contextlib.ExitStack()
        self._views: dict[int, str] = {}
        self._tokens = itertools.count(1)
        self._lock = threading.RLock()
        _all.add(self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else access_name(self.access)
        return f"<gpufd.Memory {human(self.size)} in {self.chunks} chunk{'s' if self.chunks != 1 else ''} on device {self.ordinal}, {state}>"

    # Users of the memory: close waits for nobody, so it refuses while there are any.

    def hold(self, what: str) -> int:
        """Note that something uses the memory, and return a number for let_go."""
        with self._lock:
            self.check()
            token = next(self._tokens)
            self._views[token] = what
            return token

    def let_go(self, token: int) -> None:
        """Take back what hold has noted."""
        self._views.pop(token, None)  # at once, without the lock: a finaliser may run anywhere

    @contextlib.contextmanager
    def using(self, what: str) -> Iterator[None]:
        """Refuse close meanwhile: what is read or written could be another's then."""
        token = self.hold(what)
        try:
            yield
        finally:
            self.let_go(token)

    def views(self) -> list[str]:
        """Return what uses the memory now, a line for each."""
        left()
        with self._lock:
            return list(self._views.values())

    def check(self) -> None:
        """Raise if the memory cannot be used."""
        if self._pid != os.getpid():
            raise ClosedError(
                f"process {os.getpid()} was forked from {self._pid}, whose memory this is: attach in the child (multiprocessing: use spawn)",
                reason="forked",
            )
        if self.closed:
            raise ClosedError("the memory was closed")

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

    def in_use(self) -> InUseError | None:
        """Why the memory cannot be closed, or None."""
        views = self.views()
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

    def _undo_all(self, force: bool) -> None:
        """Wait for the work, unless force, and let go of all. What the driver says of the work
        is raised then: nothing of it runs any more where that has failed."""
        failed: Error | None = None
        try:
            if not force and self._is_whole():
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
        self._undo.close()

    def _is_whole(self) -> bool:
        """Return whether it came to be, so that work may be under way there."""
        return self.size > 0

    def __del__(self) -> None:
        if hasattr(self, "_views"):
            self._views.clear()  # nothing refers to it, so there are none
            with contextlib.suppress(Exception):
                self.close()

    # Bytes.

    @property
    def ptr(self) -> int:
        """Address of the memory."""
        raise NotImplementedError

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
        self._undo.callback(os.close, fd)

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
