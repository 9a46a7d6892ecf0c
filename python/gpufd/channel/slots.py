"""The slots of a channel's writer: which one gets the next frame, and which readers are in its way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from .. import arguments
from ..errors import ChannelError, TimedOutError
from . import cursor as c
from .cursor import Shape
from .member import Member
from .queue import pick
from .readers import Readers
from .streams import Tracker


@dataclass(frozen=True)
class _Blocked:
    """The readers for which acquire waits."""

    blocker: Member  # a reader that blocks
    slot: int  # that it holds
    kept: list[tuple[Member, int, int]]  # other readers, the words by which they give slots back, and what those were
    pinned: list[Member]

    def has_changed(self) -> bool:
        """Return whether another reader has given a slot back, or is gone."""
        return any(m.gone or m.words.load(at) != seen or m.has_left() for m, at, seen in self.kept)


class Slots:
    """Chooses the slot of each frame, and waits until no reader holds it.

    check raises if the writer cannot go on. A reader that blocks for longer than stall, if that is not 0, is dropped,
    or ChannelError ("stalled") is raised.
    """

    def __init__(self, shape: Shape, readers: Readers, check: Callable[[], None], stall: float, drops: bool) -> None:
        self._shape, self._readers, self._check = shape, readers, check
        self._limit, self._drops = stall, drops
        self.slot, self.sequence = 0, 0  # of the frame for which a slot was taken last
        self.max_stall = 0.0  # the longest wait, in seconds

    def acquire(self, deadline: float, timeout: float | None) -> None:
        """Take a slot for the next frame, as soon as no reader holds it."""
        begin = 0.0
        while (blocked := self._choose(begin)) is not None:
            begin = begin or time.monotonic()
            self._wait(blocked, begin, deadline, timeout)

    def _choose(self, begin: float) -> _Blocked | None:
        """Take a slot and return None, or return the readers to wait for, whose cursors are pinned then.

        begin is when the wait for a slot began, or 0.
        """
        r = self._readers
        with r.lock:
            self._check()
            r.look()
            while True:
                slot, free = self._pick()
                for m in [] if free else r.there:
                    if m.queue.policy == c.BLOCK and m.queue.holds(slot):
                        return self._blocked(m, slot)
                if not r.is_claimed(slot):  # else it is held, and another one is picked
                    if begin:
                        self.max_stall = max(self.max_stall, time.monotonic() - begin)
                    self._retire(slot)
                    return None

    def _pick(self) -> tuple[int, bool]:
        """Return the slot of the next frame, by what was seen of the cursors, and whether nobody holds it."""
        r, queues = self._readers, self._readers.queues()
        if not self._shape.streams:
            return pick(queues, r.frames, self.slot)
        slot = self._shape.slot_of(r.last + 1)
        return slot, not any(q.holds(slot) for q in queues)

    def _blocked(self, blocker: Member, slot: int) -> _Blocked:
        """Pin the readers to wait for: also those that keep nobody waiting, whose slots may come free first."""
        kept = [(m, *word) for m in self._readers.there if (word := m.kept())]
        pinned = [blocker, *(m for m, _, _ in kept)]
        for m in pinned:
            m.pins += 1
        return _Blocked(blocker, slot, kept, pinned)

    def _retire(self, slot: int) -> None:
        """Take the slot, under the lock. A reader that may still have its old frame finds that it is not whole
        any more."""
        for m in self._readers.there:
            n = m.queue.retires(slot)
            if n:
                m.words.store(self._shape.entry(n) + c.STAMP, 2 * n + 1)
                m.words.fence()  # before anything is written to the slot
        self.take(slot)

    def take(self, slot: int) -> None:
        """Note, under the lock, that the slot is for the next frame."""
        self._readers.frames[slot] = 0
        self.slot, self.sequence = slot, self._readers.last + 1

    def acquire_on(self, tracker: Tracker, handle: int) -> None:
        """Take the slot of the next frame, and give a stream a wait until no reader holds it."""
        r = self._readers
        with r.lock:
            sequence = r.last + 1
            slot = self._shape.slot_of(sequence)
            r.look()
            waits = [(m, m.queue.in_slot[slot]) for m in r.there if m.queue.in_slot[slot] > m.queue.released]
            pinned = r.pin([m for m, _ in waits])
        with pinned:
            tracker.begin()
            for m, n in waits:
                tracker.wait(m.cursor.device + c.RELEASED, n)
            tracker.queue(handle, 2 * sequence - 1)
        with r.lock:
            self.take(slot)

    def _wait(self, b: _Blocked, begin: float, deadline: float, timeout: float | None) -> None:
        """Wait until a reader has released the slot, or is gone, or another one has given a slot back, and unpin
        them."""
        r, m = self._readers, b.blocker
        number = m.queue.in_slot[b.slot]

        def ready() -> bool:
            return m.gone or r.closed or m.words.load(c.RELEASED) >= number or m.has_left() or b.has_changed()

        until = min(deadline, begin + self._limit if self._limit else arguments.FOR_EVER)
        try:
            if m.words.await_(c.WRITER_BELL, c.READER_POLLS, until, ready):
                return
            if until == deadline:
                raise TimedOutError(f"reader {m.lease.number} has not released frame {m.sequence_of(number)} within {timeout:g} s")
            stalled = ChannelError(f"reader {m.lease.number} has not released frame {m.sequence_of(number)} for {self._limit:g} s", reason="stalled")
            if not self._drops:
                raise stalled
            with r.lock:
                r.drop(m, c.DROPPED, stalled)
        finally:
            with r.lock:
                for pinned in b.pinned:
                    pinned.pins -= 1
                r.lock.notify_all()
