"""A reader's place in a channel: the lease, the cursor, and how the writer's end is noticed."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from .. import arguments
from ..errors import ChannelError, ClosedError, Error, LostError, NotFoundError, TimedOutError, enough_files
from ..objects import NotCopied
from ..share.attach import attach
from ..share.attachment import Attachment
from ..wire.records import CUDA
from . import cursor as c
from .cursor import Cursor, Shape, acting, number_of, policy_name
from .queue import check_published
from .streams import CLOSE_LIMIT, Tracker, need_streams
from .words import POLL_MAX

_AGAIN = 0.02  # seconds until a writer is looked for again


class Joined(NotCopied):
    """The attachment to a channel, a reader's cursor in it, and the thread that sees the writer's end.

    The reader that owns it takes turn for each call, and mu while it gives a stream a wait.
    """

    @enough_files()
    def __init__(self, name: str, socket: str | os.PathLike[str] | None, policy: str, join: str, timeout: float | None, wait: float | None, options: dict[str, Any]) -> None:
        self.asked, self._join = number_of(c.POLICIES, policy, "policy"), number_of(c.JOINS, join, "join")
        self.policy = self.asked  # by which frames are ordered with the writer
        step, within = arguments.step(timeout), arguments.seconds("wait", wait)
        self._pid = os.getpid()
        self.turn, self.mu = threading.Lock(), threading.Lock()
        self.leaving = threading.RLock()  # held while words are stored without the turn, which a wait keeps for long
        self.closing = self.ended = False
        self.holds: Callable[[], bool] = lambda: False  # whether the reader has frames that it has not given back
        self.freeing = False  # streams of this side are being freed: the word for frames tells nothing
        self.lost, self.why = False, Error("")  # whether the writer is gone, and why
        self.whole, self.final = 0, 0  # then: number of the last frame that is whole, sequence of the last one published
        self.cursor: Cursor | None = None
        self.tracker: Tracker | None = None  # in a channel for streams
        self.releases: Tracker | None = None  # where streams only give frames back, in any order
        self.thread: threading.Thread | None = None
        self._wake: list[int] = []  # a pipe, which wakes the thread
        self._waking = threading.RLock()  # held while it is written, or closed
        self.attachment = _find(name, socket, step, within, options)
        try:
            self._open()
            self._ask(time.monotonic() + step)
            self._wake = [*os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)]
            self.attachment._lease.on_end = self._rouse  # whichever thread has read of the end
        except BaseException:
            self._discard(True)
            raise
        self.thread = threading.Thread(target=self._watch, name="gpufd-channel", daemon=True)
        self.thread.start()
        _all.add(self)

    def _open(self) -> None:
        """Map what a reader has, and check it."""
        att = self.attachment
        if att.cursors < 0:
            raise ChannelError(f"{att.name!r} has no cursors", reason="no-channel")
        self.cursor = Cursor(att.cursors, os.fstat(att.cursors).st_size)
        self.words = self.cursor.words
        self.shape = Shape.read(self.words, att.size, att.generation)
        self.policy = acting(self.shape, self.asked)
        if (self.shape.streams or self.shape.any_order) and att.memory.driver == CUDA:
            self.cursor.register(att.memory)
            tracker = Tracker(need_streams(att.memory))
            self.tracker, self.releases = (tracker, None) if self.shape.streams else (None, tracker)

    def _ask(self, deadline: float) -> None:
        """Tell the writer how this side wants to read, and wait to be admitted."""
        w = self.words
        w.store(c.POLICY, self.policy)
        w.store(c.JOIN, self._join)
        w.store(c.READER_STATE, c.JOINED)

        def admitted() -> bool:
            # First the end: a writer may end as soon as it has admitted a reader.
            ended = self.attachment.done or w.load(c.WRITER_STATE) != c.OPEN
            if w.load(c.START):
                return True
            if ended:
                self._await_reason()
                raise self.told_of(w.load(c.WRITER_STATE))
            return False

        if not w.await_(c.READER_BELL, c.START, deadline, admitted):
            raise TimedOutError("the writer has not admitted this reader in time")
        self.first = w.load(c.START)  #: sequence of the first frame that this reader may get

    def _await_reason(self) -> None:
        """Wait until a writer that does not admit this reader has said why, which it does in a moment."""
        if self.words.load(c.WRITER_STATE) == c.REFUSED:
            self.attachment.wait(CLOSE_LIMIT)

    # Entries.

    @property
    def device(self) -> int:
        """Address of the cursor for streams, or 0."""
        return self.cursor.device if self.cursor else 0

    def meta_of(self, number: int) -> int:
        """Return the device address of the entry of the frame of that number, or 0."""
        return self.device + self.shape.entry(number) if self.device and self.shape.streams else 0

    def fields_of(self, number: int, sequence: int) -> bytes | None:
        """Return what the writer's stream has said of a frame of next_on; None if it has not, or not yet."""
        w, at = self.words, self.shape.entry(number)
        if w.load(at + c.STAMP) != 2 * number:
            return None
        return c.read_fields(w, at, min(w.load(at + c.LENGTH), c.MAX_USER), sequence)

    # The writer's end.

    def told_of(self, state: int) -> Error:
        """Return what a state of the writer means for this side."""
        last = self.words.load(c.LAST)
        if state == c.ENDED:
            return ChannelError(f"the writer has ended, with frame {last}", reason="ended")
        if state == c.DROPPED:
            return ChannelError(f"the writer has dropped this reader, which took too long, or whose connection has ended; the last frame was {last}", reason="dropped")
        if state == c.REFUSED:
            why = self.attachment.err or "it does not admit the policy, has no place, or found nonsense in the cursor"
            return ChannelError(f"the writer has refused a reader of policy {policy_name(self.asked)}: {why}", reason="turned-away")
        if state != c.OPEN:
            return ChannelError(f"state {state} of the writer", reason="cursor")
        lost, last = self.attachment.err, self._last_whole()
        died = lost.died if isinstance(lost, LostError) else None
        return LostError(f"the writer was lost; the last whole frame is {last}: {lost}", died, last=last)

    def _last_whole(self) -> int:
        """Return the sequence of the last frame that is known to be whole."""
        if self.policy == c.DROP_NEWEST and self.whole:
            return self.words.load(self.shape.entry(self.whole) + c.SEQUENCE)
        return max(self.words.load(c.START), 1) + self.whole - 1

    def check_kept(self) -> None:
        """Raise if the writer has dropped this reader. It says so before it takes slots that
        the reader has or was given: what was read until then is whole, and nothing behind."""
        if why := self.why_dropped():
            raise why

    def why_dropped(self) -> Error | None:
        """Return why the writer has dropped this reader, or None."""
        state = self.words.load(c.WRITER_STATE)
        return self.told_of(state) if state in (c.DROPPED, c.REFUSED) else None

    def raise_why(self) -> NoReturn:
        """Raise why the writer is gone. One that lives has dropped this reader, and gone on."""
        self.check_kept()
        raise self.why

    def _watch(self) -> None:
        """Wait for the end of the writer, or of this side. It frees the streams that wait."""
        poll = select.poll()
        poll.register(self.attachment.fileno(), select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while not self.attachment.done:
            poll.poll()
            if self.closing:
                return
        w = self.words
        state = w.load(c.WRITER_STATE)
        if self.tracker:
            self.freeing = True  # before: a writer that lives may give more, which this side must not see then
        whole = w.load(c.PUBLISHED)
        if self.tracker:  # whose stream may wait for what never comes
            w.store(c.PUBLISHED, c.GIVEN)
            while not self.mu.acquire(timeout=POLL_MAX):  # the driver keeps a call of next_on until the stream goes on
                w.store(c.PUBLISHED, c.GIVEN)  # a dead peer's device still writes for some milliseconds
        else:
            self.mu.acquire()
        try:
            self.whole = 0 if whole >= c.GIVEN and self.closing else whole  # close has written that
            if self.policy == c.LATEST and self.shape.find(w, whole + 1) is not None:  # the writer was killed just before it said so
                self.whole += 1
            self.why, self.final = self.told_of(state), w.load(c.LAST)
            try:
                self.check_kept()  # a writer that drops this side frees its stream, which goes on publishing
                check_published(self.policy, self.whole, 0, None if self.shape.any_order else w.load(c.RELEASED), self.shape.slots)
            except ChannelError as e:
                if e.reason not in ("dropped", "turned-away", "cursor"):
                    raise
                self.whole, self.why = 0, e
            self.lost = True  # no other wait is queued from here on
        finally:
            self.mu.release()
        w.ring(c.READER_BELL)
        if self.tracker:
            self.tracker.free(w, c.PUBLISHED)

    def _rouse(self) -> None:
        """Wake the thread, which looks what there is."""
        with self._waking, contextlib.suppress(BlockingIOError):
            if self._wake:
                os.write(self._wake[1], b".")

    def check(self) -> None:
        """Raise if this side was closed, or is a copy of it after a fork."""
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose reader this is: open one in the child", reason="forked")
        if self.closing:
            raise ClosedError("the reader was closed")

    # The end of this side.

    def close(self, force: bool = False) -> None:
        """Leave the channel: Reader.close."""
        if self.ended or self._pid != os.getpid():
            return
        busy = None if force else self.attachment.memory.in_use()
        if busy:
            raise busy
        self.closing = True
        self.words.ring(c.READER_BELL)
        self._rouse()
        end = time.monotonic() + CLOSE_LIMIT
        while not self.turn.acquire(timeout=POLL_MAX):
            if self.tracker and not self.ended and time.monotonic() > end:  # the driver keeps a call until the stream goes on
                self.freeing = True
                self.words.store(c.PUBLISHED, c.GIVEN)
                if time.monotonic() > end + CLOSE_LIMIT:
                    raise self.tracker.in_use()
        try:
            if self.ended:
                return
            self._settle()
            if self.holds() and self.shape.any_order:  # elsewhere work of this process may wait for this reader
                with contextlib.suppress(Error):  # which the memory's close raises
                    self.attachment.memory.finish()  # or the writer would write what is still read
            if self.thread:
                self.thread.join()
            self.ended = True
            self._discard(force)
        finally:
            self.turn.release()

    def _settle(self) -> None:
        """Wait until no stream has to do with the cursor."""
        if self.releases:
            if not self.leaving.acquire(timeout=CLOSE_LIMIT):  # a thread gives a stream a frame back; no other begins
                raise self.releases.in_use()
            self.leaving.release()
            self.releases.await_(CLOSE_LIMIT)
        t = self.tracker
        if not t:
            return
        try:
            t.await_(CLOSE_LIMIT)
        except Error:
            self.freeing = True
            t.free(self.words, c.PUBLISHED, CLOSE_LIMIT)
            t.await_(0)

    def _discard(self, force: bool) -> None:
        """Close what was opened, and say that this reader has left."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.attachment.close, force)
            stack.callback(self._close_wake)
            for tracker in filter(None, (self.tracker, self.releases)):
                stack.callback(tracker.close)
            if self.cursor:
                stack.enter_context(self.leaving)
                stack.callback(self.cursor.close)
                self.words.store(c.READER_STATE, c.LEFT)
                self.words.ring(c.WRITER_BELL)

    def _close_wake(self) -> None:
        with self._waking:
            wake, self._wake = self._wake, []
            for fd in wake:
                os.close(fd)


def _find(name: str, socket: str | os.PathLike[str] | None, timeout: float, wait: float, options: dict[str, Any]) -> Attachment:
    """Attach to a channel, as soon as there is one, no later than in wait seconds."""
    end = time.monotonic() + wait
    while True:
        try:
            return attach(name, socket=socket, timeout=timeout, max_cursors=c.MAX_CURSOR, **options)
        except (NotFoundError, LostError):
            left = end - time.monotonic()
            if left <= 0:
                raise
        time.sleep(min(_AGAIN, left))


_all: weakref.WeakSet[Joined] = weakref.WeakSet()


def _at_exit() -> None:
    for joined in list(_all):
        with contextlib.suppress(Exception):
            joined.close()


atexit.register(_at_exit)
