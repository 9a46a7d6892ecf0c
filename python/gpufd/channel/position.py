"""A reader's position in its channel: which frames it has taken, holds and has given back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..errors import ChannelError, Error
from . import cursor as c
from .frame import Frame
from .joined import Joined
from .queue import check_published, choose
from .taking import Told


@dataclass(frozen=True)
class ReaderStats:
    """The counters of a reader."""

    received: int = 0  #: frames that were taken
    lost: int = 0  #: frames that were published and not given to this reader, or overwritten before it took them
    passed: int = 0  #: frames that were overwritten while this reader had them
    max_stall: float = 0.0  #: the longest that next waited, in seconds


class Position:
    """Counts a reader's frames, by numbers of its own from 1, and decides which one is next.

    The reader that owns it has the turn.
    """

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        self.next, self.seen, self.released = 1, 0, 0  # numbers of frames: wanted next, seen as published, given back, in order
        self.last = joined.first - 1  # sequence of the frame that was taken last
        self.held: deque[Frame] = deque()  # the oldest first
        self.by_stream = False  # frames were released by a stream
        self.passed_by = False  # the frame that was released last was not whole any more: the newest is next
        self.max_stall = 0.0  # the longest wait for a frame, in seconds
        self._received = self._lost = self._passed = 0

    @property
    def stats(self) -> ReaderStats:
        """The counters so far."""
        return ReaderStats(self._received, self._lost, self._passed, self.max_stall)

    # The next frame.

    def look(self) -> int:
        """Return the number of the frame that is to be taken, or 0 if there is none yet."""
        j = self._joined
        j.check()
        j.check_kept()
        lost, published = self.check_told()
        if self.passed_by:  # what lies between is old
            self.next, self.passed_by = max(self.next, published), False
        number = choose(j.asked, self.next, published, j.shape.slots)
        if not number and lost:
            self._count_last()
            raise j.why
        return number

    def check_told(self) -> tuple[bool, int]:
        """Return whether the writer is gone, and how many frames it says that it has given, or was known
        to have given then. Raises ChannelError ("cursor") if that cannot be."""
        j = self._joined
        lost, published = j.lost, j.words.load(c.PUBLISHED)
        if lost:
            published = j.whole
        elif j.freeing:
            published = self.seen  # this side will say why in a moment; a dead writer may write until then
        try:
            # A writer that lived when it was lost may have given more by then, which this side has seen.
            seen = 0 if lost and not j.tracker else self.seen
            check_published(j.policy, published, seen, self._given_back(), j.shape.slots)
        except ChannelError as e:
            if e.reason != "cursor":
                raise
            j.check_kept()  # a writer that drops this side frees its stream, which goes on publishing
            raise
        self.seen = published
        return lost, published

    def _given_back(self) -> int:
        """Return how many frames were given back."""
        return self.next - 1 - len(self.held) if self._joined.shape.any_order else self.released

    def _count_last(self) -> None:
        """Count as lost what was published behind the last frame that this reader was given,
        which drops the newest."""
        j = self._joined
        if j.policy == c.DROP_NEWEST and j.final > self.last:
            self._lost += j.final - self.last
            self.last = j.final

    def skip_to(self, number: int) -> None:
        """Give back all frames before that number, for a reader of LATEST that blocks in a channel for streams.
        While a stream has releases queued, they are given back together with the frame that is taken."""
        if number == self.next:
            return
        self.next = number
        w = self._joined.words
        if not self.by_stream or w.load(c.RELEASED) >= self.released:
            self.released = number - 1
            w.store(c.RELEASED, number - 1)
            w.ring(c.WRITER_BELL)

    def untold(self, number: int) -> Told | None:
        """Return a frame of which the writer's stream has said nothing; None if it was overwritten."""
        j = self._joined
        if j.shape.streams:
            return self.predicted(number)
        if j.policy == c.DROP_OLDEST:
            return None
        raise ChannelError(f"frame number {number} was given and is not whole", reason="cursor")

    def predicted(self, number: int) -> Told:
        """Return a frame of a channel for streams, whose slots follow each other."""
        shape, sequence = self._joined.shape, self._joined.first + number - 1
        return Told(number, sequence, shape.slot_of(sequence), shape.slot_size)

    # The frames that are held.

    def check_room(self) -> None:
        """Raise if no other frame can be held."""
        if self._joined.asked == c.LATEST and self.held:
            raise ChannelError("a frame is held, and a reader of latest holds one at a time; release it first", reason="order")
        if len(self.held) >= self._joined.shape.slots:
            raise ChannelError(f"{len(self.held)} frames are held, as many as there are slots; release one first", reason="order")

    def hold(self, frame: Frame) -> Frame:
        """Note that the frame was taken, and return it."""
        for held in list(self.held):
            if self._joined.policy != c.DROP_OLDEST and held.index == frame.index:
                raise ChannelError(f"frame {frame.sequence} is in slot {frame.index}, which frame {held.sequence} has", reason="cursor")
        self.held.append(frame)
        self._received += 1
        self._lost += frame.sequence - self.last - 1
        self.last, self.next = frame.sequence, frame._number + 1
        return frame

    def check_held(self, frame: Frame) -> None:
        """Raise if the frame cannot be given back, where that is done in any order."""
        self._joined.check()
        if frame not in self.held:
            raise ChannelError(f"frame {frame.sequence} is not held: it was given back, or is of another reader", reason="order")

    def check_oldest(self, frame: Frame) -> None:
        """Raise if the frame is not the one to be given back next."""
        self._joined.check()
        if not self.held or self.held[0] is not frame:
            raise ChannelError(f"frame {frame.sequence} is not the oldest that is held (there are {len(self.held)})", reason="order")

    def let_go(self, frame: Frame, failed: Error | None = None) -> None:
        """Note that the frame is given back; failed says why it was not whole any more."""
        if failed:
            self._passed += 1
            self.passed_by = failed.reason == "passed"
        self.released = max(self.released, frame._number)
        self.held.remove(frame)

    def take_back(self, frame: Frame) -> None:
        """Undo let_go, where frames are given back in any order."""
        if frame not in self.held:
            self.held.append(frame)
