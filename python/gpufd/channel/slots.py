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
from .streams import CLOSE_LIMIT, Tracker
from .words import POLL_MAX, SLEEP_MAX

_SLEEP_OF_SEVERAL = 0.001  # seconds: the writer hears the bell of one of several readers


@dataclass(frozen=True)
class _Blocked:
    """The readers for which acquire waits."""

    blocker: Member | None  # a reader that blocks, or None if only a stream of the writer is in the way
    slot: int  # that it holds
    late: bool  # that slot's frame has still to be written, so the reader cannot have given it back
    kept: list[tuple[Member, list[tuple[int, int]]]]  # the words by which readers give slots back, and what those were
    pinned: list[Member]

    def has_changed(self) -> bool:
        """Return whether the blocker has given the slot back, or another reader one, or any of them is gone."""
        m = self.blocker
        if m and (m.gone or m.words.load(m.shape.release_word(self.slot)) >= m.queue.in_slot[self.slot] or m.has_left()):
            return True
        return any(m.gone or any(m.words.load(at) != seen for at, seen in words) or m.has_left() for m, words in self.kept)


class Slots:
    """Chooses the slot of each frame, and waits until no reader holds it.

    check raises if the writer cannot go on. A reader that blocks for longer than stall, if that is not 0, is dropped,
    or ChannelError ("stalled") is raised.
    """

    def __init__(self, shape: Shape, readers: Readers, check: Callable[[], None], stall: float, drops: bool) -> None:
        self._shape, self._readers, self._check = shape, readers, check
        self._limit, self._drops = stall, drops
        self._written = 0  # sequence of the last frame that streams had published when _pick looked
        self.slot, self.sequence = 0, 0  # of the frame for which a slot was taken last
        self.max_stall = 0.0  # the longest wait, in seconds

    def acquire(self, deadline: float, timeout: float | None) -> None:
        """Take a slot for the next frame, as soon as no reader holds it."""
        begin = stalled = 0.0
        try:
            while (blocked := self._choose(begin)) is not None:
                begin = begin or time.monotonic()
                stalled = 0.0 if blocked.late else stalled or time.monotonic()
                self._wait(blocked, stalled, deadline, timeout)
        finally:
            if begin:
                self._readers.want([])

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
                if not free:
                    return self._blocked(slot)
                if not r.is_claimed(slot):  # else it is held, and another one is picked
                    if begin:
                        self.max_stall = max(self.max_stall, time.monotonic() - begin)
                    self._retire(slot)
                    return None

    def _pick(self) -> tuple[int, bool]:
        """Return the slot of the next frame, by what was seen of the cursors, and whether nobody holds it."""
        r, queues = self._readers, self._readers.queues()
        self._written = r.tracker.done() // 2 if r.tracker else r.last
        if not self._shape.streams:
            return pick(queues, r.frames, self._written, self.slot)
        slot = self._shape.slot_of(r.last + 1)
        return slot, r.frames[slot] <= self._written and not any(q.holds(slot) for q in queues)

    def _blocked(self, slot: int) -> _Blocked:
        """Pin the readers to wait for: also those that keep nobody waiting, whose slots may come free first.

        Where slots come back in any order, each reader that keeps one is waited for, and the one that keeps the most
        of them is in the way."""
        there = self._readers.there
        holders = [m for m in there if m.queue.policy == c.BLOCK and m.queue.holds(slot)]
        frames = self._readers.frames
        if self._shape.any_order:
            holders = sorted((m for m in there if m.queue.kept()), key=Member.kept_frames, reverse=True)
            slot = min(holders[0].queue.kept(), key=frames.__getitem__) if holders else slot
        self._readers.want(holders)
        kept = [(m, words) for m in there if (words := m.kept())]
        pinned = [*holders[:1], *(m for m, _ in kept)]
        for m in pinned:
            m.pins += 1
        return _Blocked(holders[0] if holders else None, slot, not holders or frames[slot] > self._written, kept, pinned)

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

    def _in_the_way(self, m: Member, slot: int, how_long: str) -> str:
        """Return what the reader keeps the writer waiting with."""
        sequence = m.sequence_of(m.queue.in_slot[slot])
        if not self._shape.any_order:
            return f"reader {m.lease.number} has not released frame {sequence} {how_long}"
        return f"no slot has come free {how_long}: reader {m.lease.number} ({m.lease.peer}) keeps {m.kept_frames()} of {self._shape.slots}, frame {sequence} the longest"

    def _wait(self, b: _Blocked, since: float, deadline: float, timeout: float | None) -> None:
        """Wait until a reader has released the slot, or is gone, or another one has given a slot back, or a stream of
        the writer has written a frame, and unpin the readers. since is when a reader began to be in the way, or 0."""
        r, m = self._readers, b.blocker
        behind = r.tracker is not None and self._written < r.last

        def ready() -> bool:
            return r.closed or b.has_changed() or behind and r.tracker is not None and r.tracker.done() // 2 > self._written

        end = min(deadline, since + self._limit if self._limit and since else arguments.FOR_EVER)
        until = min(end, time.monotonic() + CLOSE_LIMIT) if behind else end  # also with a reader in the way the context may be lost
        try:
            longest = POLL_MAX if behind else _SLEEP_OF_SEVERAL if self._shape.any_order and len(b.kept) > 1 else SLEEP_MAX
            if m is None:
                if r.tracker and r.tracker.await_word(until, ready, longest):
                    return
            elif m.words.await_(c.WRITER_BELL, c.READER_POLLS, until, ready, longest):
                return
            if until < end:
                return r.tracker.check() if r.tracker else None
            if end == deadline:
                how_long = f"within {timeout:g} s"
                raise TimedOutError(self._in_the_way(m, b.slot, how_long) if m else f"a stream has not written frame {self._written + 1} {how_long}: no other slot is free")
            assert m  # else there is no limit
            stalled = ChannelError(self._in_the_way(m, b.slot, f"for {self._limit:g} s"), reason="stalled")
            if not self._drops:
                raise stalled
            with r.lock:
                r.drop(m, c.DROPPED, stalled)
        finally:
            with r.lock:
                r.unpin(b.pinned)
