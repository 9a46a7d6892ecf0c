"""The readers of a writer's channel: those that come, those that are given frames, and those that are gone."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ChannelError, ClosedError, Error, suppress
from ..memory.base import Memory
from ..share.lease import Event, Lease
from . import cursor as c
from .cursor import Cursor, Shape, check_policy
from .member import Gone, Member, MemberStats, Meta
from .queue import Queue, check_room, has_room, share_of
from .streams import CLOSE_LIMIT, Tracker
from .words import U64

_ENTRY_OPS = 6 + c.MAX_USER // 8 + 1  # operations that write an entry, at most
_SOON, _LATE = 0.0002, 0.01  # seconds between looks for readers that join
_LEFT = 0.1  # and for readers that have left; acquire looks itself
_NEWEST = 5.0  # seconds that a reader which wants the newest frame waits for a stream to publish it


class _Lock(threading.Condition):
    """A condition whose ``with`` calls the lock itself, so that no interrupt comes between and leaves the lock taken."""

    __enter__ = property(lambda self: self._lock.__enter__)  # type: ignore[assignment]
    __exit__ = property(lambda self: self._lock.__exit__)  # type: ignore[assignment]


class Readers:
    """All readers of one channel. A thread admits them and lets go of those that are gone.
    Their state, ``last`` and ``frames`` are used under ``lock``."""

    def __init__(self, shape: Shape, memory: Memory, tracker: Tracker | None, most: int, stall: float, on_gone: Callable[[Gone], None] | None) -> None:
        self.shape, self.memory, self.tracker = shape, memory, tracker
        self.most, self.stall, self.on_gone = most, stall, on_gone
        self.lock: threading.Condition = _Lock(threading.RLock())
        self.members: list[Member] = []  # whose cursors are open
        self.there: list[Member] = []  # that are given frames
        self.frames = [0] * shape.slots  # sequence of the frame in each slot, or 0
        self.last = 0  # sequence of the last frame that was published
        self.meta = Meta(0)  # of it
        self.given = self.skipped = 0  # frames that readers were given, and that readers which drop the newest were not
        self.giving = False  # a stream is being given a frame for all: nobody is admitted meanwhile
        self.closed = False  # nobody is admitted any more
        self.over = False  # the thread may end
        self.pause = _SOON
        self.thread = threading.Thread(target=self._tend, name="gpufd-channel", daemon=True)
        self.thread.start()

    # Called by the server's thread.

    def welcome(self, lease: Lease, fd: int) -> None:
        """Begin a reader: it is called before anything is sent."""
        with self.lock:
            if self.closed:
                raise ClosedError("the channel has ended")
            cursor = Cursor(fd, self.shape.cursor_size)
            try:
                if self.tracker:
                    cursor.register(self.memory)
                self.shape.write(cursor.words)
            except BaseException:
                cursor.close()
                raise
            self.members.append(Member(cursor, self.shape, lease))
            self.pause = _SOON
            self.lock.notify_all()

    def hears(self, event: Event) -> None:
        """Note what happened to the offer: the end of a lease is that of a reader."""
        if event.kind == "ended":
            with self.lock:
                for m in self.members:
                    if m.lease is event.lease:
                        self.drop(m, c.DROPPED, event.err)  # it may live, and its slots are not kept

    # Called by the writer.

    def await_noted(self, number: int, deadline: float) -> MemberStats | None:
        """Wait until each reader that is there has noted that number, or the writer is closed. Return one that has not
        in time."""
        while True:
            with self.lock:
                behind = [m for m in self.there if m.words.load(c.NOTED) < number and not m.has_left()]
                if self.closed or not behind:
                    return None
                m, pinned = behind[0], self.pin(behind[:1])
            with pinned:
                if not m.words.await_(c.WRITER_BELL, 0, deadline, functools.partial(self._has_noted, m, number)):
                    return m.stats()

    def _has_noted(self, m: Member, number: int) -> bool:
        return self.closed or m.gone or m.words.load(c.NOTED) >= number or m.has_left()

    # To publish.

    def give(self, slot: int, sequence: int, meta: Meta) -> None:
        """Give the frame in the slot to all readers that are there, but to those that drop the newest and have no room."""
        with self.lock:
            self._note(slot, sequence, meta)
            if self.tracker:
                self.tracker.skip(2 * sequence)
            share = self._share(slot)
            for m in self.there:
                if m.queue.policy == c.DROP_NEWEST and not m.queue.may_keep(share):
                    self.skipped += 1
                else:
                    self.given += 1
                    m.publish(slot, sequence, meta)

    def give_on(self, tracker: Tracker, handle: int, slot: int, sequence: int, meta: Meta, told: bool) -> None:
        """Queue on a stream what gives the frame in the slot to all readers that are there now.

        The frame's entries are written if told.
        """
        with self.lock:
            there = list(self.there)
            pinned = self.pin(there, giving=True)
        with pinned:
            tracker.begin()
            try:
                for m in there if told else []:
                    tracker.make_room(handle, _ENTRY_OPS)
                    m.describe_on(tracker, slot, sequence, meta)
                tracker.make_room(handle, len(there) + 1)
                for m in there:
                    tracker.write(m.cursor.device + c.PUBLISHED, m.queue.published + 1)
                tracker.queue(handle, 2 * sequence)
            finally:
                if tracker.took():
                    self._given_on(there, slot, sequence, meta)

    def give_behind(self, tracker: Tracker, handle: int, slot: int, sequence: int, meta: Meta) -> None:
        """Write the entries of the frame in the slot, for all readers that are there now, and queue on a stream what
        says that it is there. Each reader has taken the frame whose entry that was: else it would have all slots."""
        with self.lock:
            there = list(self.there)
            pinned = self.pin(there, giving=True)
        with pinned:
            tracker.begin()
            try:
                for at, word in [w for m in there for w in m.describe(slot, sequence, meta)]:
                    tracker.write(at, word)
                tracker.queue_next(handle, 2 * sequence)
            finally:
                if tracker.took():
                    self._given_on(there, slot, sequence, meta)

    def _given_on(self, there: list[Member], slot: int, sequence: int, meta: Meta) -> None:
        """Note that a stream gives these readers the frame in the slot."""
        with self.lock:
            for m in there:
                if not m.gone:
                    m.queue.give(slot)
                    self.given += 1
                    if not m.words.load(c.WRITER_POLLS):
                        m.words.store(c.WRITER_POLLS, 1)
                        m.words.ring(c.READER_BELL)  # one that sleeps would sleep for long
            self._note(slot, sequence, meta)

    def _note(self, slot: int, sequence: int, meta: Meta) -> None:
        """Note, under the lock, that the slot has a frame."""
        self.last, self.frames[slot], self.meta = sequence, sequence, meta

    @contextlib.contextmanager
    def _pinned(self, members: list[Member], giving: bool) -> Iterator[None]:
        try:
            yield
        finally:
            with self.lock:
                if giving:
                    self.giving = False
                self.unpin(members)

    # Under the lock.

    def unpin(self, members: list[Member]) -> None:
        """End what pin did. The thread is woken only if it has something to do: it would take this one's turn."""
        for m in members:
            m.pins -= 1
        if any(m.gone or not m.joined for m in self.members):
            self.lock.notify_all()

    def pin(self, members: list[Member], giving: bool = False) -> contextlib.AbstractContextManager[None]:
        """Keep cursors open while a stream is given what uses them. The lock is not held meanwhile:
        the driver may keep the call until the stream goes on, which may take that somebody is
        dropped. With giving nobody is admitted. The caller enters what is returned."""
        self.giving = self.giving or giving
        for m in members:
            m.pins += 1
        return self._pinned(members, giving)

    def look(self) -> None:
        """Look at all cursors, and drop readers that have left or wrote nonsense."""
        for m in list(self.there):
            left = m.has_left()
            try:
                m.look()
            except ChannelError as e:
                if e.reason != "cursor":
                    raise
                self.drop(m, c.REFUSED, e)
            if left:
                self.drop(m, c.DROPPED, None)

    def is_claimed(self, slot: int) -> bool:
        """Return whether a reader of LATEST takes or holds the slot's frame, whose slot is to have the next one."""
        for m in list(self.there):
            try:
                if m.claims(slot, self.last + 1):
                    return True
            except ChannelError as e:
                if e.reason != "cursor":
                    raise
                self.drop(m, c.REFUSED, e)
        return False

    def want(self, holders: list[Member]) -> None:
        """Tell the readers that the writer waits for these to give slots back, and for no others."""
        with self.lock:
            for m in self.members:
                m.want(m.queue.published + 1 if m in holders else 0)

    def drop(self, m: Member, state: int, why: Error | None) -> None:
        """End what a reader gets: it is told the state, before any slot is taken that it has.
        OPEN tells nothing: the end of the lease says that the writer was lost. It may be
        called again."""
        if m.gone:
            return
        m.why, m.gone, m.joined = why, True, True
        self.there = [other for other in self.there if other is not m]
        if state != c.OPEN:
            m.words.store(c.LAST, self.last)
            m.words.store(c.WRITER_STATE, state)
        m.revoke = state in (c.DROPPED, c.REFUSED) and why is not None  # else it has left, or its lease has ended
        m.words.ring(c.READER_BELL)
        m.words.ring(c.WRITER_BELL)  # who waits here for it
        self.lock.notify_all()

    def queues(self) -> list[Queue]:
        return [m.queue for m in self.there]

    def _share(self, slot: int) -> int:
        """Return how many frames a reader that drops the newest may keep; 0 if there is no room for the one in the
        slot."""
        droppers = [m for m in self.there if m.queue.policy == c.DROP_NEWEST]
        for m in droppers:
            with suppress(ChannelError, "cursor"):  # nonsense is for acquire
                m.queue.see(m.words.load(c.RELEASED))
        queues = [m.queue for m in droppers]
        return share_of(self.shape.slots, len(queues)) if queues and has_room(queues, self.shape.slots, slot) else 0

    def _is_early(self, m: Member) -> bool:
        """Return whether a reader wants the newest frame, which a stream has still to publish. In a channel for streams, where
        the writer may always be ahead, none waits."""
        if self.closed or not self.tracker or not self.shape.any_order or m.words.load(c.JOIN) != c.JOINS["newest"]:
            return False
        m.since = m.since or time.monotonic()
        return not self.tracker.idle() and time.monotonic() < m.since + _NEWEST

    def _admit(self, m: Member) -> None:
        """Make a reader one of those that get the next frame."""
        policy, join = m.words.load(c.POLICY), m.words.load(c.JOIN)
        m.joined, m.queue = True, Queue(policy, self.shape.slots)
        if self.closed:
            return self.drop(m, c.ENDED, None)
        try:
            self._check_wish(policy, join)
        except ChannelError as e:
            if e.reason not in ("cursor", "policy"):
                raise
            return self.drop(m, c.REFUSED, e)
        m.first = self.last + 1
        if join == c.JOINS["newest"] and self.last:
            self._give_newest(m)
        m.words.store(c.START, m.first)
        self.there.append(m)
        m.words.ring(c.READER_BELL)
        self.lock.notify_all()

    def _check_wish(self, policy: int, join: int) -> None:
        """Raise if a reader that asks for them is not admitted."""
        if policy not in c.POLICIES.values() or join not in c.JOINS.values():
            raise ChannelError(f"a reader asks for policy {policy} and join {join}; want 1 to {c.LATEST}, and 1 or 2", reason="cursor")
        check_policy(self.shape, policy)
        if len(self.there) >= self.most:
            raise ChannelError(f"{len(self.there)} readers are there, which is all that are admitted", reason="policy")
        policies = [m.queue.policy for m in self.there]
        check_room(policy, self.shape.slots, policies.count(c.LATEST), policies.count(c.DROP_NEWEST))

    def _give_newest(self, m: Member) -> None:
        """Give a reader that has just joined the last frame, if that is there and whole."""
        if self.last not in self.frames or self.tracker and not self.tracker.idle():
            return
        slot = self.frames.index(self.last)
        if m.queue.policy == c.DROP_NEWEST and not has_room([*self.queues(), m.queue], self.shape.slots, slot):
            return
        m.first = self.last
        m.publish(slot, self.last, self.meta)

    def blocks(self, m: Member) -> int:
        """Return the number of the frame that a stream of the writer waits for m to release, or 0.
        The stream has published frame k if the tracker's word is 2k: then it acquires frame
        k + 1, whose slot frame k + 1 - slots had."""
        if not self.tracker or not self.shape.streams or m.gone:
            return 0
        done = self.tracker.done()
        if done >= self.tracker.queued or done % 2:
            return 0
        before = done // 2 + 1 - self.shape.slots
        number = before - m.first + 1 if before >= m.first else 0
        ahead = (m.words.load(c.RELEASED) - number) & U64
        return number if number and ahead >> 63 else 0  # as the stream compares: what cannot be may keep it waiting, too

    def drop_blockers(self) -> bool:
        """Drop the readers that keep a stream waiting while the writer is closed. Whether there were any."""
        dropped = False
        for m in list(self.there):
            n = self.blocks(m)
            if n:
                self.drop(m, c.DROPPED, ChannelError(f"the writer is being closed, and reader {m.lease.number} has not released frame number {n}", reason="stalled"))
                dropped = True
        return dropped

    def end(self) -> None:
        """Wait until the cursors of all readers are closed."""
        with self.lock:
            self.closed = self.over = True
            for m in list(self.members):
                self.drop(m, c.OPEN, None)
            self.lock.notify_all()
        self.thread.join(CLOSE_LIMIT)
        with self.lock:
            for m in self.members:
                m.pins = 0  # of a call that was interrupted: no other one takes so long once the channel is closed
            self.lock.notify_all()
        self.thread.join()

    # The thread.

    def _tend(self) -> None:
        while True:
            with self.lock:
                if self.over and not self.members:
                    return
                for m in [m for m in self.members if not m.joined and not self.giving]:
                    if m.words.load(c.READER_STATE) == c.JOINED and not self._is_early(m):
                        self._admit(m)
                self._look_at_leavers()
                self._look_at_stalls()
                gone = [m for m in self.members if m.gone]
            left = [m for m in gone if not self._let_go(m)]
            with self.lock:
                joining = any(not m.joined for m in self.members)
                self.pause = min(2 * self.pause, _LATE) if joining or left else _SOON
                fresh = any(m.gone and m not in left for m in self.members)
                if not fresh and not (self.over and not self.members):
                    self.lock.wait(self.pause if joining or left else self._look_pause())

    def _look_pause(self) -> float | None:
        """Seconds until the thread looks at the readers that are there again."""
        if not self.there:
            return None
        return max(0.001, min(_LEFT, self.stall / 8)) if self.tracker and self.stall else _LEFT

    def _look_at_leavers(self) -> None:
        """Drop readers that have left. They may keep their leases longer."""
        for m in [m for m in self.members if m.has_left()]:
            self.drop(m, c.DROPPED, None)

    def _look_at_stalls(self) -> None:
        """Drop readers that keep a stream waiting for too long."""
        if not self.stall or not self.tracker:
            return
        for m in list(self.there):
            n, now = self.blocks(m), time.monotonic()
            if n != m.stuck[0]:
                m.stuck = n, now
            elif n and now - m.stuck[1] > self.stall:
                self.drop(m, c.DROPPED, ChannelError(f"a stream has waited {self.stall:g} s for reader {m.lease.number} to release frame number {n}", reason="stalled"))

    def _let_go(self, m: Member) -> bool:
        """Let go of a reader that is gone. False if streams, or another thread, still have to
        do with its cursor."""
        if m.revoke:
            m.revoke = False
            m.lease.revoke(str(m.why))
        with self.lock:
            if self.tracker and not m.pins and m.until is None:
                m.until = self.tracker.queued
            freed = self._is_freed(m)  # first: a thread that pins it may wait for its stream
            if m.pins or not freed:
                return False
            gone = m.gone_for()
            m.cursor.close()
            self.members.remove(m)
            self.lock.notify_all()
        if self.on_gone:
            self._tell(gone)
        return True

    def _is_freed(self, m: Member) -> bool:
        """Free the streams that wait for the reader. Return whether none has to do with its cursor any more."""
        if not self.tracker:
            return True
        until = m.until or 0
        return self.tracker.freed(m.words, c.RELEASED, until) if self.shape.streams else self.tracker.is_past(until)

    def _tell(self, gone: Gone) -> None:
        assert self.on_gone
        try:
            self.on_gone(gone)
        except Exception:  # of the application: it is told as an uncaught one of a thread is
            args: Any = (*sys.exc_info(), threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(args))
