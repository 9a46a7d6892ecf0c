"""Taking and releasing the frames of a channel, by the host."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .. import arguments
from ..errors import ChannelError, TimedOutError, suppress
from . import cursor as c
from .claiming import Claiming
from .cursor import EntryWords
from .frame import Frame
from .queue import behind, check_published, choose


@dataclass(frozen=True)
class ReaderStats:
    """The counters of a reader."""

    received: int = 0  #: frames that were taken
    lost: int = 0  #: frames that were published and not given to this reader, or overwritten before it took them
    passed: int = 0  #: frames that were overwritten while this reader had them
    max_stall: float = 0.0  #: the longest that next waited, in seconds


class Taking(Claiming):
    """A reader's work on the host: it looks at what was published, copies what the writer
    says of a frame, and checks it."""

    def __init__(self, name: str, socket: str | os.PathLike[str] | None, policy: str, join: str, timeout: float | None, wait: float | None, options: dict[str, Any]) -> None:
        super().__init__(name, socket, policy, join, timeout, wait, options)
        self._next, self._seen, self._released = 1, 0, 0  # numbers of frames: wanted next, seen as published, given back
        self._last = self.first - 1  # sequence of the frame that was taken last
        self._held: deque[Frame] = deque()  # the oldest first
        self._by_stream = False  # frames were released by a stream
        self._passed_by = False  # the frame that was released last was not whole any more: the newest is next
        self._received = self._lost_frames = self._passed = 0
        self._stall = 0.0

    @property
    def stats(self) -> ReaderStats:
        """The counters of this reader so far."""
        return ReaderStats(self._received, self._lost_frames, self._passed, self._stall)

    def next(self, timeout: float | None = None) -> Frame:
        """Wait for the next frame, and take it. It can be read at once.

        Several frames may be held; release them in their order. A reader of "latest" gets the newest
        frame, and holds one at most. Without a timeout it waits as long as there is a writer. Raises EndedError, WriterLostError or DroppedError when there
        are no more frames, CursorError if the writer wrote nonsense, and TimedOutError.
        """
        self._check()
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        with self._turn:
            self._may_hold()
            begin, tries = 0.0, 0
            while True:
                number = self._look()
                frame = self._take_any(number) if number else None
                if frame:
                    self._stall = max(self._stall, time.monotonic() - begin if begin else 0.0)
                    return frame
                if number and (tries := tries + 1) > self.slots and time.monotonic() >= deadline:
                    break  # a writer that lies could go on like this
                if number:
                    continue
                begin = begin or time.monotonic()
                if not self._words.await_(c.READER_BELL, c.WRITER_POLLS, deadline, self._is_ready):
                    break
            raise TimedOutError(f"no frame came within {timeout:g} s")

    def _take_any(self, number: int) -> Frame | None:
        """Take the frame of that number, or as the policy has it; None if there is none any more: the next
        look finds another."""
        if self._policy == c.LATEST:
            return self._claim()
        if self._asked == c.LATEST:
            self._skip_to(number)
        frame = self._take(number)
        if not frame:
            self._next = behind(number, self._seen)
        return frame

    def _skip_to(self, number: int) -> None:
        """Give back all frames before that number, for a reader of LATEST that blocks in a channel for streams.
        While a stream has releases queued, they are given back together with the frame that is taken."""
        if number == self._next:
            return
        self._next = number
        if not self._by_stream or self._words.load(c.RELEASED) >= self._released:
            self._released = number - 1
            self._words.store(c.RELEASED, number - 1)
            self._words.ring(c.WRITER_BELL)

    def _is_ready(self) -> bool:
        return self._words.load(c.PUBLISHED) >= self._next and not self._freeing or self._lost or self._closing

    def _look(self) -> int:
        """The number of the frame that is to be taken, or 0 if there is none yet."""
        self._check()
        self._check_kept()
        lost, published = self._check_told()
        if self._passed_by:  # what lies between is old
            self._next, self._passed_by = max(self._next, published), False
        number = choose(self._asked, self._next, published, self.shape.slots)
        if not number and lost:
            self._count_last()
            raise self._why
        return number

    def _check_told(self) -> tuple[bool, int]:
        """Whether the writer is gone, and how many frames it says that it has given, or was known
        to have given then; CursorError where that cannot be."""
        lost, published = self._lost, self._words.load(c.PUBLISHED)
        if lost:
            published = self._whole
        elif self._freeing:
            published = self._seen  # this side will say why in a moment; a dead writer may write until then
        try:
            # A writer that lived when it was lost may have given more by then, which this side has seen.
            seen = 0 if lost and not self._tracker else self._seen
            check_published(self._policy, published, seen, self._released, self.shape.slots)
        except ChannelError as e:
            if e.reason != "cursor":
                raise
            self._check_kept()  # a writer that drops this side frees its stream, which goes on publishing
            raise
        self._seen = published
        return lost, published

    def _count_last(self) -> None:
        """Count as lost what was published behind the last frame that this reader was given,
        which drops the newest."""
        if self._policy == c.DROP_NEWEST and self._final > self._last:
            self._lost_frames += self._final - self._last
            self._last = self._final

    def _take(self, number: int) -> Frame | None:
        """Copy what the writer says of a frame; None if it is not whole any more."""
        w, at = self._words, self.shape.entry(number)
        e = EntryWords.read(w, at)
        if e.stamp != 2 * number:
            return self._untold(number)
        if e.bytes > self.slot_size or e.length > c.MAX_USER or e.slot >= self.slots or e.sequence <= self._last:
            if w.load(at + c.STAMP) != 2 * number:
                return None
            raise ChannelError(f"frame {e.sequence} behind {self._last}, {e.bytes} bytes and {e.length} in slot {e.slot} of {self.slots}", reason="cursor")
        user = c.read_user(w, at, e.length)
        if w.load(at + c.STAMP) != 2 * number:
            return None
        return self._keep_entry(number, e, user)

    def _untold(self, number: int) -> Frame | None:
        """Take a frame of which the writer's stream has said nothing."""
        if self.shape.streams:
            return self._keep(self._predicted(number))
        if self._policy == c.DROP_OLDEST:
            return None
        raise ChannelError(f"frame number {number} was given and is not whole", reason="cursor")

    def _predicted(self, number: int) -> Frame:
        """A frame of a channel for streams, whose slots follow each other."""
        sequence = self.first + number - 1
        return Frame(self, number, sequence, self.shape.slot_of(sequence), self.slot_size, 0, b"")

    def _keep_entry(self, number: int, e: EntryWords, user: bytes) -> Frame:
        """Take the frame that the writer's entry describes."""
        return self._keep(Frame(self, number, e.sequence, e.slot, e.bytes, e.time, user))

    def _keep(self, frame: Frame) -> Frame:
        """Note that the frame was taken."""
        for held in self._held:
            if self._policy != c.DROP_OLDEST and held.index == frame.index:
                raise ChannelError(f"frame {frame.sequence} is in slot {frame.index}, which frame {held.sequence} has", reason="cursor")
        self._held.append(frame)
        self._received += 1
        self._lost_frames += frame.sequence - self._last - 1
        self._last, self._next = frame.sequence, frame._number + 1
        return frame

    def _may_hold(self) -> None:
        if self._asked == c.LATEST and self._held:
            raise ChannelError("a frame is held, and a reader of latest holds one at a time; release it first", reason="order")
        if len(self._held) >= self.slots:
            raise ChannelError(f"{len(self._held)} frames are held, as many as there are slots; release one first", reason="order")

    def release(self, frame: Frame) -> None:
        """Give the frame back. Synchronise the streams that read it first, or use release_on.

        Raises PassedError if the writer took the slot meanwhile, so that what was read may be of
        two frames, and DroppedError if it may have. The frame is released nevertheless. After
        PassedError, next takes the newest frame.
        """
        with self._turn:
            self._releases(frame)
            if self._by_stream and self._tracker and not self._tracker.idle():
                raise ChannelError("a stream has frames to release; release this one there, too", reason="order")
            if self.shape.streams and frame._number > self._words.load(c.PUBLISHED):
                raise ChannelError(f"frame {frame.sequence} has not come yet; wait for the stream that was given next_on", reason="order")
            try:
                self._check_whole(frame)
            except ChannelError as e:
                if e.reason not in ("passed", "dropped", "turned-away"):
                    raise
                self._passed += 1
                self._passed_by = e.reason == "passed"
                raise
            finally:
                self._held.popleft()
                self._released = frame._number
                self._words.store(c.RELEASED, frame._number)
                if self._policy == c.LATEST:
                    self._words.store(c.CLAIM, 0)
                self._words.ring(c.WRITER_BELL)

    def _releases(self, frame: Frame) -> None:
        """Raise where the frame cannot be released."""
        self._check()
        if not self._held or self._held[0] is not frame:
            raise ChannelError(f"frame {frame.sequence} is not the oldest that is held (there are {len(self._held)})", reason="order")

    def _check_whole(self, frame: Frame) -> None:
        """Raise where the frame may not be whole any more."""
        if self._policy == c.DROP_OLDEST and self._words.load(self.shape.entry(frame._number) + c.STAMP) != 2 * frame._number:
            raise ChannelError(f"the writer has passed this reader by: frame {frame.sequence}", reason="passed")
        self._check_kept()

    def is_whole(self, frame: Frame) -> bool:
        """Return whether the frame is whole: the writer has not taken its slot.

        It may take the slots of a reader that drops the oldest, or that it has dropped.
        """
        self._check()
        try:
            self._check_whole(frame)
        except ChannelError as e:
            if e.reason not in ("passed", "dropped", "turned-away"):
                raise
            return False
        return True

    def meta_of(self, number: int) -> int:
        """Return the device address of the entry of the frame of that number, or 0."""
        device = self._cursor.device if self._cursor else 0
        return device + self.shape.entry(number) if device else 0

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, timeout: float | None = None) -> Iterator[Frame]:
        """Iterate over the frames until the writer ends.

        Each frame is released after the loop's body, unless the body has done so. Frames that the
        writer overwrote meanwhile are counted in stats.passed. Raises DroppedError if the writer
        drops this reader: then the last frame may be of two.
        """
        arguments.seconds("a timeout", timeout)
        return self._frames(timeout)

    def _frames(self, timeout: float | None) -> Iterator[Frame]:
        while True:
            try:
                frame = self.next(timeout)
            except ChannelError as e:
                if e.reason != "ended":
                    raise
                return
            try:
                yield frame
            finally:
                if frame in self._held and not self._closing:
                    with suppress(ChannelError, "passed", "dropped", "turned-away"):  # the latter is said by next, too
                        self.release(frame)
