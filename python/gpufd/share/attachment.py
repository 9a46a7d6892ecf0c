"""Memory of another process that is mapped here, and its lease: :class:`Attachment`."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..arguments import FOR_EVER
from ..errors import Error, InUseError, MismatchError, UsageError
from ..memory.base import Memory
from ..objects import NotCopied, called, human
from ..wire import records as wire
from ..wire.peer import Peer
from ..wire.records import Offer
from .attaching import Attaching, Options
from .fence import FENCED
from .kept import Kept, kept_of
from .leaseconn import LeaseConn

if TYPE_CHECKING:
    from ..memory.array import Array, DType


class Attachment(NotCopied):
    """Memory of another process that is mapped here, and the lease of it.

    The caller of attach closes it, by ``with`` or close. Arrays made of it keep it alive.
    Threads may share it. Nothing runs in the background: what the producer says is read when a
    property is asked for, and in wait.

    memory      the Memory
    """

    def __init__(self, options: Options, done: Attaching, offer: Offer, memory: Memory) -> None:
        self.memory = memory
        self._interfaces = False  # the attachment itself was asked for its address
        self._lease = LeaseConn(options, memory, done, offer)
        _all.add(self)

    # Its description.

    @property
    def offer(self) -> Offer:
        """The producer's description of the memory."""
        return self._lease.offer

    @property
    def peer(self) -> Peer:
        """The producer's process."""
        return self._lease.peer

    @property
    def cursors(self) -> int:
        """Descriptor of memory that this lease alone has, or -1. It is closed with the lease."""
        return self._lease.cursors

    @property
    def socket(self) -> str:
        """Path of the producer's socket."""
        return self._lease.options.path

    @property
    def name(self) -> str:
        """Name of the offer."""
        return self.offer.name

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self.memory.size

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
        state = "closed" if self._lease.closed else "detached" if self.detached else wire.access_name(self.access)
        return f"<gpufd.Attachment {called(self.name)}, {human(self.size)}, {state}>"

    # Arrays.

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the memory from byte offset on, without a copy.

        dtype is a name of safetensors: F32, BF16, F8_E4M3, I64, BOOL… By default the shape is
        one dimension, up to the end of the memory.
        """
        from ..memory.array import Array

        self._lease.check()
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

    # The lease.

    @property
    def err(self) -> Error | None:
        """Why the lease has ended, or None if it has not.

        LeaseEndedError if the producer has ended it, whose reason says why; LostError if it left in order ("left") or
        is gone, whose died() says whether its process has died; ClosedError after close. The memory stays mapped until
        close. It stays None if the producer has read a report.
        """
        lease = self._lease
        lease.pump()
        return lease.error if lease.over() and not lease.reported else None

    @property
    def done(self) -> bool:
        """Whether the lease has ended."""
        self._lease.pump()
        return self._lease.over()

    @property
    def superseded(self) -> bool:
        """Whether the producer offers newer memory under the name by now."""
        self._lease.pump()
        return self._lease.newer != 0

    @property
    def awaits_release(self) -> bool:
        """Whether the producer waits for those who may write before it uses the memory again."""
        return self._lease.awaits_release

    def fileno(self) -> int:
        """Descriptor of the connection, for select: it is readable when the producer has said something.

        It is another one after a new lease, and stays readable while there is none. gpufd.aio.wait sees to both.
        """
        self._lease.check()
        return self._lease.conn.sock.fileno()

    def wait(self, timeout: float | None = None, *, superseded: bool = False) -> bool:
        """Wait until the lease has ended, or with superseded also until there is newer memory.

        Return False if that has not happened within timeout seconds. By default there is no bound.
        """
        lease = self._lease
        return lease.await_(lambda: lease.over() or superseded and lease.newer != 0, timeout)

    def wait_superseded(self, timeout: float | None = None) -> bool:
        """Wait until the producer offers newer memory under the name, or the lease has ended. Return superseded."""
        self.wait(timeout, superseded=True)
        return self._lease.newer != 0

    def notices(self, timeout: float | None = 0.0) -> list[bytes]:
        """Return what the producer has sent by Lease.notify since the last call.

        Wait up to timeout seconds for the first; with None until there is one, or the lease has ended. 16
        notices are kept; then the oldest is dropped.
        """
        lease = self._lease
        lease.await_(lambda: bool(lease.notices) or lease.over(), timeout)
        with lease.lock:
            got = list(lease.notices)
            lease.notices.clear()
        return got

    def notify(self, data: bytes) -> None:
        """Send the producer up to 4,096 bytes, for its Lease.notices.

        An older producer ignores them.
        """
        self._lease.notify(data)

    def progress(self, done: int, total: int | None = None) -> None:
        """Tell the producer how much is done. It starts its timeout anew."""
        self._lease.say(wire.Progress(arguments.number("done", done), self.size if total is None else arguments.number("total", total)))

    @property
    def fenced(self) -> bool:
        """Whether the lease is over and the producer has died: then none of its work runs on the device."""
        lease = self._lease
        lease.pump()
        return lease.error is not None and lease.fence.is_(FENCED)

    def await_fence(self, timeout: float | None, want: int = FENCED) -> None:
        """Wait until the lease has ended and the producer's work on the memory has, too.

        want is FENCED, known by the death of its process, or RELEASED, known by its word. Raises
        FenceError: "pending" after timeout seconds, and "unknown" at once if it cannot be known.
        """
        lease = self._lease
        lease.check()
        lease.fence.await_(want, timeout, lambda left: lease.await_(lambda: lease.error is not None, left))

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
        self._lease.judge(str(fault) or (type(fault).__name__ if isinstance(fault, BaseException) else ""))

    def resume(self, *, timeout: float | None = None) -> None:
        """Get a new lease of the same memory after the old one has ended.

        The memory stays mapped. The producer at the same path has to offer the memory of the
        same generation under the same name. Raises RefusedError ("other-memory") if the name
        stands for other memory now. After an error the memory is as it was.
        """
        self._lease.check()
        if self.offer.legacy:
            raise MismatchError("legacy memory cannot be resumed, because nothing keeps it without a lease", reason="handle")
        if not self.done:
            raise UsageError("the lease has not ended, so there is nothing to resume")
        self._lease.resume(timeout)

    # Addresses that stay, without memory.

    @property
    def detached(self) -> bool:
        """Whether the memory was unmapped, and its address kept."""
        return self.memory.detached

    def detach(self, keep: float | None = None, *, force: bool = False) -> bool:
        """Wait for the work on the device, and unmap and release the memory. Its address stays: reattach maps memory there.

        Return whether the lease is kept: then the producer keeps the memory for it. keep is for how many seconds
        that is wanted; None is as long as the connection lives and the attachment is open. The lease is given up if it is
        read-write, or if the producer is older.

        Arrays and tensors may be alive. While the memory is detached this package's raise ClosedError (detached); to use a
        tensor makes the process lose its CUDA context. Raises InUseError if a call works with the memory or it is offered
        on; then nothing has changed. force is that of close.
        """
        wanted, lease = arguments.seconds("keep", keep, zero=False), self._lease
        arguments.flag("force", force)
        with lease.lock:
            lease.check()
            if self.offer.legacy:
                raise MismatchError("legacy memory cannot be detached, because nothing keeps its address", reason="handle")
            if not self.memory.detached:
                self.memory.detach(force)
            return lease.note_detached(min(math.ceil(wanted * 1000), (1 << 64) - 1) if wanted < FOR_EVER else 0)

    def reattach(self, *, newest: bool = False, timeout: float | None = None) -> bool:
        """Get a new lease, and map its memory at the address of what was detached. Return whether it is the same memory.

        It is the same memory, or with newest what the name stands for now; then labels that attach was given are demanded
        again. Raises RefusedError (other-memory) if the same
        memory is not there any more, MismatchError (too-large) if the newest does not fit into the address space, and what attach
        raises. After an error the memory is detached, and the lease is as it was. timeout is in seconds for each step.
        """
        return self._reattach(arguments.flag("newest", newest), timeout)

    def _reattach(self, newest: bool, timeout: float | None, fits: Callable[[Offer], object] = lambda offer: None) -> bool:
        with self._lease.lock:
            self._lease.check()
            if not self.detached:
                raise UsageError("the memory is not detached")
            return self._lease.reattach(newest, timeout, fits)

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
        lease = self._lease
        with lease.lock:
            if lease.closed:
                return
            if lease.pid != os.getpid():
                lease.closed = True
                return
            try:
                if force:
                    self.memory.close(force=True)
                else:
                    self._unmap()
            finally:
                if self.memory.closed:  # also where the driver has failed: the lease is over
                    lease.pump()
                    lease.closed = True
                    lease.leave()

    def __enter__(self) -> Attachment:
        self._lease.check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except InUseError:
            if error is None:
                raise
            # A traceback keeps views alive: the attachment ends with the last of them.

    def __del__(self) -> None:
        if not hasattr(self, "_lease") or self._lease.pid != os.getpid():
            return
        self._interfaces = False  # who has it would have kept this
        with contextlib.suppress(Exception):
            self.close()
        if not self._lease.closed:  # what uses the memory keeps that alone: a counter, a view of it
            self._lease.drop()


_all: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _after_fork() -> None:
    for att in list(_all):
        att._lease.forked()


def _at_exit() -> None:
    """Leave in order what nothing uses any more. What has views is left to the process' end."""
    for att in list(_all):
        with contextlib.suppress(Exception):
            att.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
