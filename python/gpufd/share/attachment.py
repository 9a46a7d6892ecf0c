"""Memory of another process that is mapped here, and its lease: :class:`Attachment`."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..errors import ClosedError, Error, InUseError, LeaseEndedError, LostError, MismatchError, UsageError, WireError, enough_files
from ..memory.base import Memory
from ..objects import called, human
from ..wire import records as wire
from ..wire.conn import close_all
from ..wire.records import Offer
from .attaching import Attaching, Options, ending
from .held import Held
from .kept import Kept, kept_of

if TYPE_CHECKING:
    from ..memory.array import Array, DType


class Attachment(Held):
    """Memory of another process that is mapped here, and the lease of it.

    The caller of attach closes it, by ``with`` or close. Arrays made of it keep it alive.
    Threads may share it. Nothing runs in the background: what the producer says is read when a
    property is asked for, and in wait.

    memory      the Memory
    offer       what the producer said of it
    peer        the producer's process
    cursors     descriptor of memory that this lease alone has, or -1; it is closed with the lease
    """

    def __init__(self, options: Options, done: Attaching, offer: Offer, memory: Memory) -> None:
        super().__init__()
        self._options = options
        self.memory = memory
        self._interfaces = False  # the attachment itself was asked for its address
        self._take_lease(done, offer)
        _all.add(self)

    # What it is.

    @property
    def data(self) -> bytes:
        """The offer's application data."""
        return self.offer.data

    @property
    def generation(self) -> int:
        """A number that no other memory of this machine has. Newer memory has a larger one."""
        return self.offer.generation

    @property
    def access(self) -> int:
        """READ_ONLY or READ_WRITE. Legacy memory is always READ_WRITE."""
        return self.memory.access

    @property
    def device(self) -> int:
        """Ordinal of the memory's device in this process."""
        return self.memory.ordinal

    @property
    def ptr(self) -> int:
        """Address of the memory. It is good as long as the attachment is open: keep that, too."""
        return self.memory.ptr

    @property
    def kept(self) -> Kept:
        """The keeper's description of the memory: name, version, part, labels, digest, table.

        Raises Error if the producer is no keeper.
        """
        return kept_of(self.offer)

    @property
    def version(self) -> int:
        """Version, as a keeper counts. Raises Error if the producer is no keeper."""
        return self.kept.version

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the version. Raises Error if the producer is no keeper."""
        return self.kept.labels

    def __repr__(self) -> str:
        state = "closed" if self._closed else wire.access_name(self.access)
        return f"<gpufd.Attachment {called(self.name)}, {human(self.size)}, {state}>"

    # Arrays.

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the memory from byte offset on, without a copy.

        dtype is a name of safetensors: F32, BF16, F8_E4M3, I64, BOOL… By default the shape is
        one dimension, up to the end of the memory.
        """
        from ..memory.array import Array

        self._check()
        return Array(self.memory, dtype, shape, offset, owner=self)

    def copy(self) -> Array:
        """Return a private copy of all of the memory, on the same device."""
        return self.view().copy()

    def read(self, at: int = 0, n: int | None = None) -> bytes:
        """Copy n bytes, by default all from at on, to the host."""
        return self.memory.read(at, n)

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes from the host. Raises ReadOnlyError unless access is READ_WRITE."""
        self.memory.write(at, data)

    def __dlpack__(self, **how: Any) -> Any:
        return self.view().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.view().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = self.view().__cuda_array_interface__
        self._interfaces = True
        return described

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.view().__array_interface__

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.view().__array__(dtype, copy)

    # The end.

    def report(self, fault: str | BaseException = "") -> None:
        """Tell the producer whether the memory is as it should be, and end the lease.

        Without a fault the verdict is good. The call waits until the producer has read it. The
        memory stays mapped until close; legacy memory is unmapped first.
        """
        if not isinstance(fault, BaseException):
            arguments.text("a fault", fault)
        if self.offer.legacy:
            self._unmap()
        text = str(fault) or (type(fault).__name__ if isinstance(fault, BaseException) else "")
        self._say(wire.Verdict(not text, text))
        deadline = time.monotonic() + self._conn.timeout  # which progress does not renew
        with self._lock:
            try:
                while True:
                    record, _ = self._conn.receive(deadline=deadline)
                    error = ending(record)
                    if error:
                        self._end(error, True)
                        raise error
                    if not isinstance(record, wire.Progress):
                        raise wire.unexpected(record, "the end behind a verdict")
            except LostError:
                self._reported = True
                self._end(ClosedError("the lease ended with the verdict"), self._conn.left)
            except WireError as e:
                self._conn.farewell(wire.Refuse(e.code, str(e)))
                self._end(e, False)
                raise

    def resume(self, *, timeout: float | None = None) -> None:
        """Get a new lease of the same memory after the old one has ended.

        The memory stays mapped. The producer at the same path has to offer the memory of the
        same generation under the same name. Raises OtherMemoryError, a StaleError, if the name
        stands for other memory now. After an error the memory is as it was.
        """
        self._check()
        if self.offer.legacy:
            raise MismatchError("legacy memory cannot be resumed, because nothing keeps it without a lease", reason="handle")
        if not self.done:
            raise UsageError("the lease has not ended, so there is nothing to resume")
        self._resume(timeout)

    @enough_files()
    def _resume(self, timeout: float | None) -> None:
        o = replace(self._options, name=self.offer.name, newer_than=0, wait=False)
        if timeout is not None:
            o = replace(o, timeout=arguments.step(timeout))
        with self._lock:
            done = Attaching(o, (self.offer, self.memory))
            offer, _ = done.run()
            self._drop_cursors()
            self._conn.close()
            self._fence.close()
            self._take_lease(done, offer)

    def _timeout(self) -> float:
        return self._options.timeout

    def _unmap(self) -> None:
        """Close the memory, which nothing uses any more."""
        if self._interfaces:
            raise InUseError(
                f"{self.name!r} was given out by the attachment's own __cuda_array_interface__, and nobody can tell whether it is used still: "
                "take att.view() instead, or close(force=True)"
            )
        busy = self.memory.in_use()
        if busy:
            raise InUseError(f"closing {self.name!r}: {busy}", busy.views)
        if not self.memory.closed:
            self.memory.close()

    def close(self, force: bool = False) -> None:
        """Wait for the work on the device, unmap the memory, and end the lease.

        Raises InUseError while tensors or other views of the memory are alive, and names them;
        then nothing has changed. With force the memory is unmapped at once: a kernel that still
        uses it makes the process lose its CUDA context. A second close does nothing.
        """
        with self._lock:
            if self._closed:
                return
            if self._pid != os.getpid():
                self._closed = True
                return
            try:
                if force:
                    self.memory.close(force=True)
                else:
                    self._unmap()
            finally:
                if self.memory.closed:  # also where the driver has failed: the lease is over
                    self._pump()
                    self._closed = True
                    self._leave()

    def _leave(self) -> None:
        """Say farewell, now that nothing is mapped, and hang up."""
        if self._err is None or isinstance(self._err, LeaseEndedError) and self.awaits_release:
            with contextlib.suppress(Error, OSError):
                self._conn.send(wire.Farewell(), deadline=self._conn.shortly())
        if self._err is None:
            self._end(ClosedError(f"the attachment to {self.name!r} was closed"), False)
        self._conn.close()
        self._fence.close()
        self._drop_cursors()

    def _drop_cursors(self) -> None:
        """Close the file of what this lease alone has; what was mapped of it stays."""
        fd, self.cursors = self.cursors, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Attachment:
        self._check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except InUseError:
            if error is None:
                raise
            # A traceback keeps views alive: the attachment ends with the last of them.

    def __del__(self) -> None:
        if not hasattr(self, "_closed") or self._pid != os.getpid():
            return
        self._interfaces = False  # who has it would have kept this
        with contextlib.suppress(Exception):
            self.close()
        if not self._closed:  # what uses the memory keeps that alone: a counter, a view of it
            self._closed = True
            with contextlib.suppress(Exception):
                self._conn.close()
                self._fence.close()
                self._drop_cursors()

    def _forked(self) -> None:
        """In a child after a fork: the parent's end is to be seen, although the child lives."""
        self._lock = threading.RLock()
        for bell in self._bells.items():
            close_all(bell)
        self._bells = {}
        with contextlib.suppress(OSError):
            self._conn.sock.close()
        self._fence.close()
        self._drop_cursors()


_all: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _after_fork() -> None:
    for att in list(_all):
        att._forked()


def _at_exit() -> None:
    """Leave in order what nothing uses any more. What has views is left to the process' end."""
    for att in list(_all):
        with contextlib.suppress(Exception):
            att.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
