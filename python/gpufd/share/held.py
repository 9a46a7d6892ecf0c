"""The lease of memory that is mapped here: what goes over its connection, and how it ends."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

from .. import arguments
from ..errors import ClosedError, Error, LeaseEndedError, LostError, TimedOutError, UsageError, WireError, enough_files
from ..memory.base import Memory
from ..objects import NotCopied
from ..wire import records as wire
from ..wire.conn import Conn, close_all
from ..wire.records import READ_WRITE, Offer, Record
from .attaching import Attaching, ending
from .fence import FENCED, Fence

# The pauses between two looks for a producer, and how long a look may take, in seconds.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.5
_GLANCE = 0.05

MAX_NOTICES = 16  # that wait to be taken; then the oldest are dropped


class Held(NotCopied):
    """An :class:`Attachment`'s side of the connection to its producer."""

    memory: Memory

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._bells: dict[int, int] = {}  # pipes of threads that wait: what they wait for may be read by another one
        self._on_end: Callable[[], object] = lambda: None  # called when the lease has ended
        self._max_absence = -1.0  # seconds without a lease in which it looks for another; negative unless follow sets it
        self._again = self._until = self._pause = 0.0  # the next look, the end of looking, and the pause behind the next look
        self._overlaps = False  # it goes on beside newer memory

    def _take_lease(self, done: Attaching, offer: Offer) -> None:
        self.offer, self.peer = offer, done.peer
        self._conn: Conn = done.conn
        self.cursors = done.cursors[0] if done.cursors else -1
        self._err: Error | None = None
        self._reported = False  # the producer has ended the lease, having read this side's verdict
        self._gave_up = False  # to look for another lease
        self._newer = 0
        self._notices: deque[bytes] = deque(maxlen=MAX_NOTICES)
        self._fence = Fence(done.peer, done.process, offer.process)
        hears = weakref.WeakMethod(self._hears)  # no cycle: the lease ends with the last view, without the garbage collector
        self._conn.hears = lambda record: (hear := hears()) and hear(record)
        for record in done.aside:
            self._hears(record)

    @property
    def name(self) -> str:
        """Name of the offer."""
        return self.offer.name

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return self.memory.size

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(
                f"process {os.getpid()} was forked from {self._pid}, whose attachment this is: attach in the child (multiprocessing: use spawn)",
                reason="forked",
            )
        if self._closed:
            raise ClosedError(f"the attachment to {self.name!r} was closed")

    def _hears(self, record: Record) -> None:
        if isinstance(record, wire.Notice):
            self._notices.append(record.data)
        elif isinstance(record, wire.Superseded):
            self._newer = self._newer or int(record.generation)
        self._ring()

    def _ring(self) -> None:
        """Wake the threads that wait, to look what there is."""
        with self._lock:
            for bell in self._bells.values():
                with contextlib.suppress(BlockingIOError):
                    os.write(bell, b".")

    @contextlib.contextmanager
    def _bell(self) -> Iterator[int]:
        """A descriptor that is readable when the bell has rung."""
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with self._lock:
                self._bells[ends[0]] = ends[1]
            yield ends[0]
        finally:
            with self._lock:
                self._bells.pop(ends[0], None)
            close_all(ends)

    def _pump(self) -> None:
        """Read what has come, and look for another lease if there is none."""
        self._check_forked()
        self._read()
        with self._lock:
            if self._adrift() and time.monotonic() >= self._again:
                self._come_back()

    def _adrift(self) -> bool:
        """Whether there is no lease now, and another one is looked for: what is mapped stays good."""
        kept = self.offer.legacy or self.cursors >= 0 or self.awaits_release and self.memory.access == READ_WRITE
        passing = self._err is not None and self._err.reason in ("lost", "restarting") and (self._overlaps or not self._newer)
        return self._max_absence >= 0 and not self._gave_up and passing and not kept and not self._closed

    def _over(self) -> bool:
        return self._err is not None and not self._adrift()

    def _come_back(self) -> None:
        """Take a lease of the same memory, if a producer offers it by now."""
        if time.monotonic() > self._until:
            self._gave_up = True
            return
        try:
            self._resume(max(_GLANCE, self._pause / 2))
            self._conn.timeout = self._timeout()
        except Error as e:
            if e.reason == "other-memory":
                self._err = LeaseEndedError("the producer offers newer memory", reason="superseded")
                return
            if not e.retryable and e.reason != "too-many-files":
                self._err = e
            self._again = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _resume(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _timeout(self) -> float:
        """How long a step may take."""
        raise NotImplementedError

    def _read(self) -> None:
        with self._lock:
            while self._err is None and not self._closed:
                try:
                    record, _ = self._conn.receive(deadline=0)
                    error = ending(record)
                    if not error and not isinstance(record, wire.Progress):
                        raise WireError(f"{record.type_name()} to a consumer that is attached", reason="protocol")
                except TimedOutError:
                    return
                except LostError as e:
                    error = self._fence.lost(self._conn.left, e)
                except WireError as e:
                    with contextlib.suppress(Error, OSError):
                        self._conn.send(wire.Refuse(e.code, str(e)), deadline=self._conn.shortly())
                    error = e
                if error:
                    self._pause, self._again = _SHORTEST_PAUSE, 0.0
                    self._until = time.monotonic() + self._max_absence
                    self._end(error, released=isinstance(error, LeaseEndedError) or getattr(error, "_of_peer", False) or self._conn.left)

    def _check_forked(self) -> None:
        if self._pid != os.getpid():
            self._check()

    def _end(self, error: Error, released: bool) -> None:
        self._err = error
        self._fence.end(released)
        self._ring()
        self._on_end()

    @property
    def err(self) -> Error | None:
        """Why the lease has ended, or None if it has not.

        An LeaseEndedError if the producer has ended it: WithdrawnError, SupersededError, RevokedError or
        RestartingError; LeftError if it left in order; LostError if it is gone, whose died() says whether its process has died; ClosedError after close. The
        memory stays mapped until close. It stays None if the producer has read a report.
        """
        self._pump()
        return self._err if self._over() and not self._reported else None

    @property
    def done(self) -> bool:
        """Whether the lease has ended."""
        self._pump()
        return self._over()

    @property
    def superseded(self) -> bool:
        """Whether the producer offers newer memory under the name by now."""
        self._pump()
        return self._newer != 0

    @property
    def awaits_release(self) -> bool:
        """Whether the producer waits for those who may write before it uses the memory again."""
        return bool((self.offer.process or 0) & wire.AWAITS_RELEASE)

    def fileno(self) -> int:
        """Descriptor of the connection, for select: it is readable when the producer has said something.

        It is another one after a new lease, and stays readable while there is none.
        """
        self._check()
        return self._conn.sock.fileno()

    def wait(self, timeout: float | None = None, *, superseded: bool = False) -> bool:
        """Wait until the lease has ended, or with superseded also until there is newer memory.

        Return False if that has not happened within timeout seconds. By default there is no bound.
        """
        return self._await(lambda: self._over() or superseded and self._newer != 0, timeout)

    def notices(self, timeout: float | None = 0.0) -> list[bytes]:
        """Return what the producer has sent by Lease.notify since the last call.

        Wait up to timeout seconds for the first; with None until there is one, or the lease has ended. 16
        notices are kept; then the oldest is dropped.
        """
        self._await(lambda: bool(self._notices) or self._over(), timeout)
        with self._lock:
            got = list(self._notices)
            self._notices.clear()
        return got

    @enough_files()
    def _await(self, over: Callable[[], bool], timeout: float | None) -> bool:
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        self._pump()
        if over() or self._closed or deadline <= time.monotonic():
            return over()
        with self._bell() as bell:
            while True:
                self._pump()
                if over():
                    return True
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    return False
                self._sleep(bell, left)

    def _sleep(self, bell: int, seconds: float) -> None:
        """Wait until the producer says something, or the bell rings."""
        poll = select.poll()
        with contextlib.suppress(ValueError):  # it was closed, or resumed, just now
            if self._adrift():
                seconds = min(seconds, max(0.0, self._again - time.monotonic()))
            else:
                poll.register(self._conn.sock, select.POLLIN)
            poll.register(bell, select.POLLIN)
            if any(fd == bell for fd, _ in poll.poll(min(seconds * 1000 + 1, 60_000))):
                os.read(bell, 4096)

    def _say(self, record: Record) -> None:
        self._check()
        self._pump()
        if self._err:
            raise self._err
        try:
            self._conn.send(record)
        except LostError:
            self._pump()
            raise (self._err or LostError()) from None

    def notify(self, data: bytes) -> None:
        """Send the producer up to 4,096 bytes, for its Lease.notices.

        An older producer ignores them.
        """
        raw = bytes(arguments.buffer("a notice", data))
        if len(raw) > wire.MAX_NOTICE:
            raise UsageError(f"a notice of {len(raw)} bytes, and {wire.MAX_NOTICE} are allowed")
        self._say(wire.Notice(raw))

    def progress(self, done: int, total: int | None = None) -> None:
        """Tell the producer how much is done. It starts its timeout anew."""
        self._say(wire.Progress(arguments.number("done", done), self.size if total is None else arguments.number("total", total)))

    # Fences.

    @property
    def fenced(self) -> bool:
        """Whether the lease is over and the producer has died: then none of its work runs on the device."""
        self._pump()
        return self._err is not None and self._fence.is_(FENCED)

    def await_fence(self, timeout: float | None, want: int = FENCED) -> None:
        """Wait until the lease has ended and the producer's work on the memory has, too.

        want is FENCED, known by the death of its process, or RELEASED, known by its word. Raises
        FenceError after timeout seconds, and NoFenceError at once if it cannot be known.
        """
        self._check()
        self._fence.await_(want, timeout, lambda left: self._await(lambda: self._err is not None, left))
