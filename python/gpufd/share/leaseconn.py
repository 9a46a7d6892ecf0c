"""A reader's connection to its producer, and the lease that it stands for: :class:`LeaseConn`."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from .. import arguments
from ..errors import ClosedError, Error, LeaseEndedError, LostError, TimedOutError, UsageError, WireError, enough_files
from ..memory.base import Memory
from ..objects import NotCopied
from ..wire import records as wire
from ..wire.conn import Conn, close_all
from ..wire.records import READ_ONLY, READ_WRITE, Offer, Record
from .attaching import Again, Attaching, Options, ending
from .fence import Fence

# The pauses between two looks for a producer, and how long a look may take, in seconds.
_SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.5
_GLANCE = 0.05

MAX_NOTICES = 16  # that wait to be taken; then the oldest are dropped


class LeaseConn(NotCopied):
    """The connection of an Attachment, which owns it and closes it by leave or drop.

    It knows the memory and not the attachment: so an attachment is in no cycle, and ends with its last view, without
    the garbage collector. Threads may share it.

    offer, peer     what the producer said of the memory, and its process
    cursors         descriptor of memory that this lease alone has, or -1
    error           why the lease has ended, or None
    """

    def __init__(self, options: Options, memory: Memory, done: Attaching, offer: Offer) -> None:
        self.options, self.memory = options, memory
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.closed = False
        self.bells: dict[int, int] = {}  # pipes of threads that wait: what they wait for may be read by another one
        self.on_end: Callable[[], object] = lambda: None  # called when the lease has ended
        self.cursors = -1
        self._kept_until = 0.0  # until when the lease of detached memory is wanted; 0 is no bound
        self._max_absence = -1.0  # seconds without a lease in which it looks for another; negative unless follow sets it
        self._again = self._until = self._pause = 0.0  # the next look, the end of looking, and the pause behind the next look
        self._overlaps = False  # it goes on beside newer memory
        self._take(done, offer)

    def _take(self, done: Attaching, offer: Offer) -> None:
        """Begin a lease."""
        self.offer, self.peer = offer, done.peer
        self.conn: Conn = done.conn
        self._takes = done.takes or 0  # capabilities of the producer
        self.cursors = done.cursors[0] if done.cursors else -1
        self.error: Error | None = None
        self.reported = False  # the producer has ended the lease, having read this side's verdict
        self._gave_up = False  # to look for another lease
        self.newer = 0  # generation of newer memory under the name
        self.notices: deque[bytes] = deque(maxlen=MAX_NOTICES)
        self.fence = Fence(done.peer, done.process, offer.process)
        hears = weakref.WeakMethod(self._hears)  # no cycle
        self.conn.hears = lambda record: (hear := hears()) and hear(record)
        for record in done.aside:
            self._hears(record)

    def outlive(self, max_absence: float, overlaps: bool) -> None:
        """Look for another lease of the same memory, so many seconds, whenever the producer is lost or restarts."""
        self._max_absence, self._overlaps = max_absence, overlaps

    def check(self) -> None:
        """Raise if the attachment was closed, or is a copy of it after a fork."""
        self.check_forked()
        if self.closed:
            raise ClosedError(f"the attachment to {self.offer.name!r} was closed")

    def check_forked(self) -> None:
        if self.pid != os.getpid():
            raise ClosedError(
                f"process {os.getpid()} was forked from {self.pid}, whose attachment this is: attach in the child (multiprocessing: use spawn)",
                reason="forked",
            )

    @property
    def awaits_release(self) -> bool:
        """Whether the producer waits for those who may write before it uses the memory again."""
        return bool((self.offer.process or 0) & wire.AWAITS_RELEASE)

    # Records that come.

    def pump(self) -> None:
        """Read what has come, and look for another lease if there is none."""
        self.check_forked()
        self.read()
        with self.lock:
            if self.adrift() and time.monotonic() >= self._again:
                self._come_back()

    def read(self) -> None:
        """Read what has come."""
        with self.lock:
            while self.error is None and not self.closed:
                try:
                    record, _ = self.conn.receive(deadline=0)
                    error = ending(record)
                    if not error and not isinstance(record, wire.Progress):
                        raise WireError(f"{record.type_name()} to a consumer that is attached", reason="protocol")
                except TimedOutError:
                    return
                except LostError as e:
                    error = self.fence.lost(self.conn.left, e)
                except WireError as e:
                    with contextlib.suppress(Error, OSError):
                        self.conn.send(wire.Refuse(e.code, str(e)), deadline=self.conn.shortly())
                    error = e
                if error:
                    self._pause, self._again = _SHORTEST_PAUSE, 0.0
                    self._until = time.monotonic() + self._max_absence
                    self.end(error, released=isinstance(error, LeaseEndedError) or getattr(error, "_of_peer", False) or self.conn.left)

    def _hears(self, record: Record) -> None:
        if isinstance(record, wire.Notice):
            self.notices.append(record.data)
        elif isinstance(record, wire.Superseded):
            self.newer = self.newer or int(record.generation)
        self._ring()

    def end(self, error: Error, released: bool) -> None:
        """Note that the lease has ended; released says that the peer has left in order."""
        self.error = error
        self.fence.end(released)
        self._ring()
        self.on_end()

    # A lease that comes back.

    def over(self) -> bool:
        """Return whether the lease has ended for good."""
        return self.error is not None and not self.adrift()

    def adrift(self) -> bool:
        """Return whether there is no lease now, and another one is looked for: what is mapped stays good."""
        kept = self.offer.legacy or self.cursors >= 0 or self.awaits_release and self.memory.access == READ_WRITE
        passing = self.error is not None and self.error.reason in ("lost", "restarting") and (self._overlaps or not self.newer)
        return self._max_absence >= 0 and not self._gave_up and passing and not kept and not self.closed

    def _come_back(self) -> None:
        """Take a lease of the same memory, if a producer offers it by now."""
        if time.monotonic() > self._until:
            self._gave_up = True
            return
        try:
            self.resume(max(_GLANCE, self._pause / 2))
            self.conn.timeout = self.options.timeout
        except Error as e:
            if e.reason == "other-memory":
                self.error = LeaseEndedError("the producer offers newer memory", reason="superseded")
                return
            if not e.retryable and e.reason != "too-many-files":
                self.error = e
            self._again = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @enough_files()
    def resume(self, timeout: float | None) -> None:
        """Take a new lease of the memory that is mapped. After an error all is as it was."""
        o = replace(self.options, name=self.offer.name, newer_than=0, wait=False)
        if timeout is not None:
            o = replace(o, timeout=arguments.step(timeout))
        with self.lock:
            done = Attaching(o, (self.offer, self.memory))
            offer, _ = done.run()
            self._hang_up()
            self._take(done, offer)
            if self.memory.detached:
                self._say_detached(self._keep_left())  # of a time that has begun before the producer's restart

    # A lease of memory that is detached.

    def note_detached(self, keep: int) -> bool:
        """Tell the producer that the memory was unmapped. Return whether the lease is kept; otherwise it is over."""
        with self.lock:
            self._kept_until = time.monotonic() + keep / 1000 if keep else 0.0
            self.pump()
            self._say_detached(keep)
            return not self.over()

    def _keep_left(self) -> int:
        """Return for how many milliseconds from now on the lease is wanted, as DETACHED says it."""
        return max(1, int((self._kept_until - time.monotonic()) * 1000)) if self._kept_until else 0

    def _say_detached(self, keep: int) -> None:
        """Say DETACHED if the producer keeps the lease for that, and otherwise give the lease up."""
        if self.error:
            return
        keeps = self._takes & wire.TAKES_DETACH and self.memory.access == READ_ONLY and self.cursors < 0
        try:
            self.conn.send(wire.Detached(keep) if keeps else wire.Farewell())
        except LostError:
            return self.read()
        if not keeps:
            self.end(ClosedError(f"the lease of {self.offer.name!r} was given up when its memory was detached", reason="detached"), False)
            with contextlib.suppress(OSError):
                self.conn.sock.shutdown(socket.SHUT_RDWR)  # fileno stays readable

    @enough_files()
    def reattach(self, newest: bool, timeout: float | None, fits: Callable[[Offer], object] = lambda offer: None) -> bool:
        """Take a new lease, and map its memory where the old was. Return whether it is the same memory. After an error all is as it was."""
        o = replace(self.options, name=self.offer.name, newer_than=0, wait=False)
        if timeout is not None:
            o = replace(o, timeout=arguments.step(timeout))
        with self.lock:
            self.read()
            again = Again(self.memory, self.offer, newest, bool(self._takes & wire.TAKES_DETACH), fits)
            done = Attaching(o, again=again)
            offer, _ = done.run()
            if self.error is None:
                with contextlib.suppress(Error, OSError):
                    self.conn.send(wire.Farewell(), deadline=self.conn.shortly())
            self._hang_up()
            before, notices = self.offer.generation, list(self.notices)
            self._take(done, offer)
            self.notices.extendleft(reversed(notices))
            return offer.generation == before

    # Waits.

    @enough_files()
    def await_(self, over: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until over says so. Return False if it does not within timeout seconds, or the attachment is closed."""
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        self.pump()
        if over() or self.closed or deadline <= time.monotonic():
            return over()
        with self.bell() as bell:
            while True:
                self.pump()
                if over():
                    return True
                left = deadline - time.monotonic()
                if self.closed or left <= 0:
                    return False
                self._sleep(bell, left)

    def _sleep(self, bell: int, seconds: float) -> None:
        """Wait until the producer says something, or the bell rings."""
        poll = select.poll()
        with contextlib.suppress(ValueError):  # it was closed, or resumed, just now
            if self.adrift():
                seconds = min(seconds, self.next_look())
            else:
                poll.register(self.conn.sock, select.POLLIN)
            poll.register(bell, select.POLLIN)
            if any(fd == bell for fd, _ in poll.poll(min(seconds * 1000 + 1, 60_000))):
                os.read(bell, 4096)

    def next_look(self) -> float:
        """Return the seconds until it looks for another lease."""
        return max(0.0, self._again - time.monotonic())

    @contextlib.contextmanager
    def bell(self) -> Iterator[int]:
        """Open a descriptor that is readable when another thread has read something, or closed the attachment."""
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with self.lock:
                self.bells[ends[0]] = ends[1]
            yield ends[0]
        finally:
            with self.lock:
                self.bells.pop(ends[0], None)
            close_all(ends)

    def _ring(self) -> None:
        """Wake the threads that wait, to look what there is."""
        with self.lock:
            for bell in self.bells.values():
                with contextlib.suppress(BlockingIOError):
                    os.write(bell, b".")

    # Records that this side sends.

    def say(self, record: Record) -> None:
        """Send a record. Raise why the lease has ended, if it has."""
        self.check()
        self.pump()
        if self.error:
            raise self.error
        try:
            self.conn.send(record)
        except LostError:
            self.pump()
            raise (self.error or LostError()) from None

    def notify(self, data: bytes) -> None:
        raw = bytes(arguments.buffer("a notice", data))
        if len(raw) > wire.MAX_NOTICE:
            raise UsageError(f"a notice of {len(raw)} bytes, and {wire.MAX_NOTICE} are allowed")
        self.say(wire.Notice(raw))

    def judge(self, fault: str) -> None:
        """Say the verdict, which is good without a fault, and wait until the producer has read it: the lease is over then."""
        with self.lock:  # from the verdict on: another thread that waits would take the answer for a lost producer's
            self.say(wire.Verdict(not fault, fault))
            deadline = time.monotonic() + self.conn.timeout  # which progress does not renew
            try:
                while True:
                    record, _ = self.conn.receive(deadline=deadline)
                    error = ending(record)
                    if error:
                        self.end(error, True)
                        raise error
                    if not isinstance(record, wire.Progress):
                        raise wire.unexpected(record, "the end behind a verdict")
            except LostError:
                self.reported = True
                self.end(ClosedError("the lease ended with the verdict"), self.conn.left)
            except WireError as e:
                self.conn.farewell(wire.Refuse(e.code, str(e)))
                self.end(e, False)
                raise

    # The end.

    def leave(self) -> None:
        """Say farewell, now that nothing is mapped, and hang up."""
        if self.error is None or isinstance(self.error, LeaseEndedError) and self.awaits_release:
            with contextlib.suppress(Error, OSError):
                self.conn.send(wire.Farewell(), deadline=self.conn.shortly())
        if self.error is None:
            self.end(ClosedError(f"the attachment to {self.offer.name!r} was closed"), False)
        self._hang_up()

    def drop(self) -> None:
        """Hang up without a farewell: something may use the memory still."""
        self.closed = True
        with contextlib.suppress(Exception):
            self._hang_up()

    def forked(self) -> None:
        """Let go of what a child has after a fork: the parent's end is to be seen, although the child lives."""
        self.lock = threading.RLock()
        for bell in self.bells.items():
            close_all(bell)
        self.bells = {}
        with contextlib.suppress(OSError):
            self.conn.sock.close()
        self.fence.close()
        self._drop_cursors()

    def _hang_up(self) -> None:
        self._drop_cursors()
        self.conn.close()
        self.fence.close()

    def _drop_cursors(self) -> None:
        """Close the file of what this lease alone has; what was mapped of it stays."""
        fd, self.cursors = self.cursors, -1
        if fd >= 0:
            os.close(fd)
