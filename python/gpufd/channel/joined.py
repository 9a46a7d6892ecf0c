"""A reader that has joined a channel: what it has of its writer, and how that ends."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any

from .. import arguments
from ..errors import ChannelError, ClosedError, Error, LostError, NotFoundError, TimedOutError, enough_files
from ..objects import NotCopied
from ..share.attach import attach
from ..share.attachment import Attachment
from ..share.fence import FENCED
from ..wire.records import CUDA
from . import cursor as c
from .cursor import Cursor, Shape, acting, number_of, policy_name
from .queue import check_published
from .streams import CLOSE_LIMIT, Tracker, need_streams
from .words import POLL_MAX

_AGAIN = 0.02  # seconds until a writer is looked for again


class Joined(NotCopied):
    """The attachment to a channel, this reader's cursor in it, and the thread that sees the
    writer's end."""

    @enough_files()
    def __init__(self, name: str, socket: str | os.PathLike[str] | None, policy: str, join: str, timeout: float | None, wait: float | None, options: dict[str, Any]) -> None:
        self._asked, self._join = number_of(c.POLICIES, policy, "policy"), number_of(c.JOINS, join, "join")
        self._policy = self._asked  # by which frames are ordered with the writer
        step, within = arguments.step(timeout), arguments.seconds("wait", wait)
        self._pid = os.getpid()
        self._turn, self._mu = threading.Lock(), threading.Lock()
        self._closing = self._ended = False
        self._freeing = False  # streams of this side are being freed: the word for frames tells nothing
        self._lost, self._why = False, Error("")  # whether the writer is gone, and why
        self._whole, self._final = 0, 0  # then: number of the last frame that is whole, sequence of the last one published
        self._cursor: Cursor | None = None
        self._tracker: Tracker | None = None
        self._thread: threading.Thread | None = None
        self._wake: list[int] = []  # a pipe, which wakes the thread
        self.attachment = _find(name, socket, step, within, options)
        try:
            self._open()
            self._ask(time.monotonic() + step)
            self._wake = [*os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)]
            self.attachment._on_end = self._rouse  # whichever thread has read of the end
        except BaseException:
            self._discard(True)
            raise
        self._thread = threading.Thread(target=self._watch, name="gpufd-channel", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        """Map what a reader has, and check it."""
        att = self.attachment
        if att.cursors < 0:
            raise ChannelError(f"{att.name!r} has no cursors", reason="no-channel")
        self._cursor = Cursor(att.cursors, os.fstat(att.cursors).st_size)
        self._words = self._cursor.words
        self.shape = Shape.read(self._words, att.size, att.generation)
        self._policy = acting(self.shape.streams, self._asked)
        if self.shape.streams and att.memory.driver == CUDA:
            self._cursor.register(att.memory)
            self._tracker = Tracker(need_streams(att.memory))

    def _ask(self, deadline: float) -> None:
        """Tell the writer how this side wants to read, and wait to be admitted."""
        w = self._words
        w.store(c.POLICY, self._policy)
        w.store(c.JOIN, self._join)
        w.store(c.READER_STATE, c.JOINED)

        def admitted() -> bool:
            # First the end: a writer may end as soon as it has admitted a reader.
            ended = self.attachment.done or w.load(c.WRITER_STATE) != c.OPEN
            if w.load(c.START):
                return True
            if ended:
                self._await_reason()
                raise self._told_of(w.load(c.WRITER_STATE))
            return False

        if not w.await_(c.READER_BELL, c.START, deadline, admitted):
            raise TimedOutError("the writer has not admitted this reader in time")
        self.first = w.load(c.START)  #: sequence of the first frame that this reader may get

    def _await_reason(self) -> None:
        """Wait until a writer that does not admit this reader has said why, which it does in a moment."""
        if self._words.load(c.WRITER_STATE) == c.REFUSED:
            self.attachment.wait(CLOSE_LIMIT)

    # What it is.

    @property
    def slots(self) -> int:
        """How many frames the channel holds."""
        return self.shape.slots

    @property
    def slot_size(self) -> int:
        """The most bytes that a frame has."""
        return self.shape.slot_size

    @property
    def err(self) -> Error | None:
        """Why the writer is gone, or None: EndedError, WriterLostError, DroppedError or CursorError.

        Frames that were whole by then can still be taken, but not after DroppedError: then the
        slots are the writer's.
        """
        return self._why if self._lost else None

    @property
    def done(self) -> bool:
        """Whether the writer has ended, died or dropped this reader."""
        return self._lost

    def await_fence(self, timeout: float | None) -> None:
        """Wait until nothing of the writer's can write the frames any more: Attachment.await_fence.

        Call it to keep a frame after the writer's death. It takes some 10 ms.
        """
        self.attachment.await_fence(timeout, FENCED)

    # The writer's end.

    def _told_of(self, state: int) -> Error:
        """What a state of the writer means for this side."""
        last = self._words.load(c.LAST)
        if state == c.ENDED:
            return ChannelError(f"the writer has ended, with frame {last}", reason="ended")
        if state == c.DROPPED:
            return ChannelError(f"the writer has dropped this reader, which took too long, or whose connection has ended; the last frame was {last}", reason="dropped")
        if state == c.REFUSED:
            why = self.attachment.err or "it does not admit the policy, has no place, or found nonsense in the cursor"
            return ChannelError(f"the writer has refused a reader of policy {policy_name(self._asked)}: {why}", reason="turned-away")
        if state != c.OPEN:
            return ChannelError(f"state {state} of the writer", reason="cursor")
        lost, last = self.attachment.err, self._last_whole()
        died = lost.died if isinstance(lost, LostError) else None
        return LostError(f"the writer was lost; the last whole frame is {last}: {lost}", died, last=last)

    def _last_whole(self) -> int:
        """The sequence of the last frame that is known to be whole."""
        if self._policy == c.DROP_NEWEST and self._whole:
            return self._words.load(self.shape.entry(self._whole) + c.SEQUENCE)
        return max(self._words.load(c.START), 1) + self._whole - 1

    def _check_kept(self) -> None:
        """Raise where the writer has dropped this reader. It says so before it takes slots that
        the reader has or was given: what was read until then is whole, and nothing behind."""
        state = self._words.load(c.WRITER_STATE)
        if state in (c.DROPPED, c.REFUSED):
            raise self._told_of(state)

    def _watch(self) -> None:
        """Wait for the end of the writer, or of this side. It frees the streams that wait."""
        poll = select.poll()
        poll.register(self.attachment.fileno(), select.POLLIN)
        poll.register(self._wake[0], select.POLLIN)
        while not self.attachment.done:
            poll.poll()
            if self._closing:
                return
        w = self._words
        state = w.load(c.WRITER_STATE)
        if self._tracker:
            self._freeing = True  # before: a writer that lives may give more, which this side must not see then
        whole = w.load(c.PUBLISHED)
        if self._tracker:  # whose stream may wait for what never comes
            w.store(c.PUBLISHED, c.GIVEN)
            while not self._mu.acquire(timeout=POLL_MAX):  # the driver keeps a call of next_on until the stream goes on
                w.store(c.PUBLISHED, c.GIVEN)  # a dead peer's device still writes for some milliseconds
        else:
            self._mu.acquire()
        try:
            self._whole = 0 if whole >= c.GIVEN and self._closing else whole  # close has written that
            if self._policy == c.LATEST and self.shape.find(w, whole + 1) is not None:  # the writer was killed just before it said so
                self._whole += 1
            self._why, self._final = self._told_of(state), w.load(c.LAST)
            try:
                self._check_kept()  # a writer that drops this side frees its stream, which goes on publishing
                check_published(self._policy, self._whole, 0, w.load(c.RELEASED), self.shape.slots)
            except ChannelError as e:
                if e.reason not in ("dropped", "turned-away", "cursor"):
                    raise
                self._whole, self._why = 0, e
            self._lost = True  # no other wait is queued from here on
        finally:
            self._mu.release()
        w.ring(c.READER_BELL)
        if self._tracker:
            self._tracker.free(w, c.PUBLISHED)

    def _rouse(self) -> None:
        """Have the thread look what there is."""
        with contextlib.suppress(BlockingIOError):
            if self._wake:
                os.write(self._wake[1], b".")

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose reader this is: open one in the child", reason="forked")
        if self._closing:
            raise ClosedError("the reader was closed")

    # The end of this side.

    def close(self, force: bool = False) -> None:
        """Leave the channel.

        Streams that wait for a frame are freed after a second. Raises InUseError while views of
        frames are alive, unless force; and if a stream has still to do what the channel gave it:
        let it go on, and close again.
        """
        if self._ended or self._pid != os.getpid():
            return
        busy = None if force else self.attachment.memory.in_use()
        if busy:
            raise busy
        self._closing = True
        self._words.ring(c.READER_BELL)
        self._rouse()
        end = time.monotonic() + CLOSE_LIMIT
        while not self._turn.acquire(timeout=POLL_MAX):
            if self._tracker and not self._ended and time.monotonic() > end:  # the driver keeps a call until the stream goes on
                self._freeing = True
                self._words.store(c.PUBLISHED, c.GIVEN)
                if time.monotonic() > end + CLOSE_LIMIT:
                    raise self._tracker.in_use()
        try:
            if self._ended:
                return
            self._settle()
            if self._thread:
                self._thread.join()
            self._ended = True
            self._discard(force)
        finally:
            self._turn.release()

    def _settle(self) -> None:
        """Wait until no stream has to do with the cursor."""
        t = self._tracker
        if not t:
            return
        try:
            t.await_(CLOSE_LIMIT)
        except Error:
            self._freeing = True
            t.free(self._words, c.PUBLISHED, CLOSE_LIMIT)
            t.await_(0)

    def _discard(self, force: bool) -> None:
        """End what a reader has."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.attachment.close, force)
            wake, self._wake = self._wake, []
            for fd in wake:
                stack.callback(os.close, fd)
            if self._tracker:
                stack.callback(self._tracker.close)
            if self._cursor:
                stack.callback(self._cursor.close)
                self._words.store(c.READER_STATE, c.LEFT)
                self._words.ring(c.WRITER_BELL)


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
