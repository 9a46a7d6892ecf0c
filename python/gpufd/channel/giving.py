"""Acquiring the slots of a channel and publishing its frames, by the host."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass

from .. import arguments
from ..errors import ChannelError, ClosedError, Error, TimedOutError, UsageError, suppress
from ..memory.base import Memory
from ..objects import NotCopied
from ..share.offering import Offering
from . import cursor as c
from .cursor import Shape
from .frame import Slot
from .member import Member, Meta
from .queue import has_room, pick, share_of
from .readers import Readers
from .streams import Tracker


@dataclass(frozen=True)
class WriterStats:
    """The counters of a writer."""

    frames: int = 0  #: that were published, or queued to be
    given: int = 0  #: frames that readers were given, in all
    skipped: int = 0  #: frames that readers which drop the newest were not given, in all
    max_stall: float = 0.0  #: the longest that acquire waited, in seconds


@dataclass(frozen=True)
class _Blocked:
    """What acquire waits for."""

    blocker: Member  # a reader that blocks
    slot: int  # that it holds
    kept: list[tuple[Member, int, int]]  # other readers, the words by which they give slots back, and what those were
    pinned: list[Member]

    def has_changed(self) -> bool:
        """Whether another reader has given a slot back, or is gone."""
        return any(m.gone or m.words.load(at) != seen or m.has_left() for m, at, seen in self.kept)


class Giving(NotCopied):
    """A writer's work on the host: it chooses a slot, waits for the readers that hold it, and gives
    the frame in it to the readers."""

    # Whoever inherits this makes them.
    shape: Shape
    memory: Memory
    _readers: Readers
    _tracker: Tracker | None
    _offering: Offering

    def __init__(self, stall: float, drop: bool) -> None:
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._stall_limit, self._drops = stall, drop
        self._acquired: Slot | None = None
        self._sequence, self._slot = 0, 0  # of what was acquired last
        self._given = self._skipped = 0
        self._stall = 0.0

    @property
    def slots(self) -> int:
        """How many frames the channel holds."""
        return self.shape.slots

    @property
    def slot_size(self) -> int:
        """The most bytes that a frame has."""
        return self.shape.slot_size

    @property
    def last(self) -> int:
        """Sequence of the last frame that was published, or queued to be, or 0."""
        return self._readers.last

    @property
    def stats(self) -> WriterStats:
        """The counters of this writer so far."""
        return WriterStats(self.last, self._given, self._skipped, self._stall)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose writer this is", reason="forked")
        if self._readers.closed:
            raise ClosedError("the writer was closed")
        if self._offering.over:
            raise ChannelError("the channel is not offered any more: its server was closed, or another offer has its name", reason="not-offered")

    @property
    def err(self) -> Error | None:
        """Why no frame can be given any more, or None: NoOfferError or ClosedError."""
        try:
            self._check()
        except Error as e:
            return e
        return None

    @property
    def done(self) -> bool:
        """Whether no frame can be given any more, and no reader is left: err says why."""
        return self.err is not None

    # A slot.

    def acquire(self, timeout: float | None = None) -> Slot:
        """Wait for a slot for the next frame, and return it. It can be written at once.

        No reader that blocks holds the slot any more. A slot that was acquired and not published
        is returned again. Without a timeout it waits as long as a reader holds the slot. Raises
        TimedOutError, StalledError, and NoOfferError if the channel is not offered any more.
        """
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        with self._turn:
            self._check()
            if self._tracker and self._tracker.queued % 2 and not self._tracker.idle():
                raise ChannelError(f"a stream has still to acquire frame {self.last + 1}; wait for it, or publish this one there, too", reason="order")
            if self._acquired:
                return self._acquired
            begin = 0.0
            while True:
                found = self._choose(begin)
                if isinstance(found, Slot):
                    return found
                begin = begin or time.monotonic()
                self._await_slot(found, begin, deadline, timeout)

    def _choose(self, begin: float) -> Slot | _Blocked:
        """Take a slot, or say who has to be waited for; the cursors to look at are pinned then. begin is when
        the wait for a slot began, or 0."""
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
                    return self._take(slot, begin)

    def _pick(self) -> tuple[int, bool]:
        """The slot of the next frame, by what was seen of the cursors, and whether nobody holds it."""
        r, queues = self._readers, self._readers.queues()
        if not self.shape.streams:
            return pick(queues, r.frames, self._slot)
        slot = self.shape.slot_of(r.last + 1)
        return slot, not any(q.holds(slot) for q in queues)

    def _blocked(self, blocker: Member, slot: int) -> _Blocked:
        """What to wait for, pinned: also what readers that keep nobody waiting give back, whose slots may come
        free first."""
        kept = [(m, *word) for m in self._readers.there if (word := m.kept())]
        pinned = [blocker, *(m for m, _, _ in kept)]
        for m in pinned:
            m.pins += 1
        return _Blocked(blocker, slot, kept, pinned)

    def _take(self, slot: int, begin: float) -> Slot:
        """Have the slot for the next frame, under the lock. A reader that may still have its old frame finds
        that it is not whole any more."""
        if begin:
            self._stall = max(self._stall, time.monotonic() - begin)
        for m in self._readers.there:
            n = m.queue.retires(slot)
            if n:
                m.words.store(self.shape.entry(n) + c.STAMP, 2 * n + 1)
                m.words.fence()  # before anything is written to the slot
        return self._has(slot)

    def _has(self, slot: int) -> Slot:
        r = self._readers
        r.frames[slot] = 0
        self._slot, self._sequence = slot, r.last + 1
        self._acquired = Slot(self, self._sequence, slot)
        return self._acquired

    def _await_slot(self, b: _Blocked, begin: float, deadline: float, timeout: float | None) -> None:
        """Wait until a reader has released the slot, or is gone, or another one has given a slot back.
        They are unpinned."""
        r, m = self._readers, b.blocker
        number = m.queue.in_slot[b.slot]
        stalls = begin + self._stall_limit if self._stall_limit else arguments.FOR_EVER
        until = min(deadline, stalls)
        try:
            if m.words.await_(c.WRITER_BELL, c.READER_POLLS, until, lambda: m.gone or r.closed or m.words.load(c.RELEASED) >= number or m.has_left() or b.has_changed()):
                return
            if until == deadline:
                raise TimedOutError(f"reader {m.lease.number} has not released frame {m.sequence_of(number)} within {timeout:g} s")
            stalled = ChannelError(f"reader {m.lease.number} has not released frame {m.sequence_of(number)} for {self._stall_limit:g} s", reason="stalled")
            if not self._drops:
                raise stalled
            with r.lock:
                r.drop(m, c.DROPPED, stalled)
        finally:
            with r.lock:
                for pinned in b.pinned:
                    pinned.pins -= 1
                r.lock.notify_all()

    # A frame.

    def publish(self, slot: Slot, *, size: int | None = None, user: bytes = b"", time_ns: int = 0) -> None:
        """Give the frame in the slot to all readers that are there.

        Synchronise the streams that wrote the slot first, or use publish_on.

        size        bytes of the frame; by default all of the slot
        user        up to 208 bytes of the application's own
        time_ns     of CLOCK_MONOTONIC; by default now
        """
        with self._turn:
            meta = self._publishes(slot, size, user, time_ns or time.monotonic_ns())
            if self._tracker and not self._tracker.idle():
                raise ChannelError("a stream has frames of this channel; wait for it, or publish this one there, too", reason="order")
            r = self._readers
            with r.lock:
                self._finish(meta)
                if self._tracker:
                    self._tracker.skip(2 * slot.sequence)
                share = self._share(slot.index)
                for m in r.there:
                    if m.queue.policy == c.DROP_NEWEST and not m.queue.may_keep(share):
                        self._skipped += 1
                    else:
                        self._given += 1
                        m.publish(slot.index, slot.sequence, meta)

    def _share(self, slot: int) -> int:
        """How many frames a reader that drops the newest may keep; 0 where there is no room for
        the one in the slot."""
        droppers = [m for m in self._readers.there if m.queue.policy == c.DROP_NEWEST]
        for m in droppers:
            with suppress(ChannelError, "cursor"):  # nonsense is for acquire
                m.queue.see(m.words.load(c.RELEASED))
        queues = [m.queue for m in droppers]
        return share_of(self.slots, len(queues)) if queues and has_room(queues, self.slots, slot) else 0

    def _publishes(self, slot: Slot, size: int | None, user: bytes, at: int) -> Meta:
        """What goes with the frame; raises where the slot cannot be published."""
        self._check()
        if self._acquired is not slot:
            raise ChannelError(f"frame {slot.sequence} is published, and {self._sequence} was acquired last (published: {not self._acquired})", reason="order")
        meta = Meta(self.slot_size if size is None else arguments.number("size", size), bytes(arguments.buffer("user", user)), arguments.number("time_ns", at))
        if not 0 <= meta.size <= self.slot_size or len(meta.user) > c.MAX_USER:
            raise UsageError(f"a frame of {meta.size} bytes with {len(meta.user)} of the application's own; {self.slot_size} and {c.MAX_USER} are the most")
        return meta

    def _finish(self, meta: Meta) -> None:
        """Note, under the lock, that the acquired slot has a frame."""
        r = self._readers
        r.last, r.frames[self._slot], r.meta = self._sequence, self._sequence, meta
        self._acquired = None

    def send(self, data: bytes | bytearray | memoryview, *, user: bytes = b"", timeout: float | None = None) -> int:
        """Publish bytes of the host as a frame. Return its sequence."""
        raw = arguments.buffer("a frame", data)
        arguments.buffer("user", user)
        slot = self.acquire(timeout)
        slot.write(raw)
        self.publish(slot, size=raw.nbytes, user=user)
        return slot.sequence
