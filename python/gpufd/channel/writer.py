"""The writing side of a channel: :class:`Writer`."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from .. import arguments
from ..errors import ChannelError, Error, TimedOutError
from ..memory.device import Device
from ..memory.drivers import allocate
from ..share.lease import Event
from ..share.offering import Cursors, Offering
from ..share.server import Server
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer, Policy
from ..wire.records import CUDA, Offer, check_name
from ..wire.sockets import make_offer_socket
from . import cursor as c
from .cursor import Shape
from .frame import Slot
from .giving import Giving
from .giving import WriterStats as WriterStats
from .member import Gone, Member, Meta
from .readers import Readers
from .streams import CLOSE_LIMIT, Tracker, handle_of, need_streams

_ENTRY_OPS = 6 + c.MAX_USER // 8 + 1  # operations that write an entry, at most


class Writer(Giving):
    """The writing side of a channel. Its maker closes it, by ``with`` or close.

    One thread at a time acquires and publishes.

    socket          path to listen at, or a gpufd.Server, which stays the caller's; by default Reader finds it by
                    the name
    name            of the channel
    slots           how many frames the channel holds
    slot_size       the most bytes of a frame
    streams         make a channel for streams: all its readers block
    stall           seconds that a reader which blocks may keep the writer waiting; 0 or None for no bound
    drop            drop such a reader then; otherwise acquire raises StalledError. A reader that
                    keeps a stream waiting is dropped in either case
    readers         how many readers are admitted
    on_gone         is called with a Gone for each reader that is gone, on a thread of this package
    device, driver  where to allocate: as of gpufd.allocate
    policy, timeout, mode, connections, connections_per_peer, authorize, on_event
                    of the server at a path: as of gpufd.Server
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int,
        slot_size: int,
        socket: str | os.PathLike[str] | Server | None = None,
        streams: bool = False,
        stall: float | None = 0.0,
        drop: bool = False,
        readers: int = c.MAX_READERS,
        on_gone: Callable[[Gone], None] | None = None,
        device: Device = 0,
        driver: str | int | None = None,
        policy: Policy = Policy(),
        timeout: float | None = DEFAULT_TIMEOUT,
        mode: int = 0o600,
        connections: int = 1024,
        connections_per_peer: int = 256,
        authorize: Callable[[Peer, Offer], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        stall = arguments.seconds("stall", stall)
        stall = 0.0 if stall == arguments.FOR_EVER else stall
        arguments.number("readers", readers, 1, c.MAX_READERS)
        arguments.number("slots", slots)
        arguments.number("slot_size", slot_size)
        streams, drop = arguments.flag("streams", streams), arguments.flag("drop", drop)
        arguments.called("on_gone", on_gone)
        check_name(arguments.text("a name", name))
        shape = Shape.new(slots, slot_size, streams)
        super().__init__(stall, drop)
        self._name, self._ended = name, False
        self._undo = contextlib.ExitStack()
        try:
            self.memory = allocate(shape.size, device=device, driver=driver)
            self._undo.callback(self.memory.close)
            self.shape = Shape(shape.slots, shape.slot_size, shape.stride, streams, self.memory.generation)
            self._tracker = Tracker(need_streams(self.memory)) if streams and self.memory.driver == CUDA else None
            if self._tracker:
                self._undo.callback(self._tracker.close)
            self._owned = None if isinstance(socket, Server) else Server(
                make_offer_socket(name) if socket is None else socket, policy=policy, timeout=timeout, mode=mode, connections=connections, connections_per_peer=connections_per_peer,
                authorize=authorize, on_event=on_event,
            )  # fmt: skip
            self.server: Server = self._owned or socket  # type: ignore[assignment]
            if self._owned:
                self._undo.callback(self._owned.close)
            self._readers = Readers(self.shape, self.memory, self._tracker, readers, stall, on_gone)
            self._undo.callback(self._end_readers)
            self._offering = self._offer(name)
        except BaseException:
            self._undo.close()
            raise
        _all.add(self)

    def _offer(self, name: str) -> Offering:
        cursors = Cursors(self.shape.cursor_size, self._readers.welcome)
        offering = self.server.offer(name, self.memory, synchronized=True, cursors=cursors, on_event=self._readers.hears)
        self._undo.callback(offering.close, "the channel has ended")
        return offering

    @property
    def readers(self) -> int:
        """How many readers have joined and are there."""
        return 0 if self.done else len(self._readers.there)

    def await_readers(self, n: int, timeout: float | None = None) -> None:
        """Wait until n readers are there. Raises TimedOutError."""
        arguments.number("n", n)
        r, deadline = self._readers, time.monotonic() + arguments.seconds("a timeout", timeout)
        with r.lock:
            while not r.lock.wait_for(lambda: self.done or len(r.there) >= n, max(0.0, min(0.1, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise TimedOutError(f"{len(r.there)} of {n} {'reader' if n == 1 else 'readers'} joined")
        self._check()

    def __repr__(self) -> str:
        return f"<gpufd.channel.Writer of {self._name!r}, {self.slots} slots of {self.slot_size} bytes>"

    # By streams.

    def acquire_on(self, stream: Any) -> Slot:
        """Have a stream wait until no reader holds the next frame's slot, and return that at once.

        Work that the stream is given from now on may write the slot. The host may queue ahead. A
        reader that dies or is dropped is not waited for. All calls of a writer use one stream
        until it has done all. Launch each kernel once before: loading one while a stream waits
        may hang.

        Raises NoStreamsError with the software driver, ChannelPolicyError in a channel that is
        not for streams, and OrderError.
        """
        with self._turn:
            tracker, handle = self._streamed("acquire_on", stream)
            if self._acquired:
                return self._acquired
            r = self._readers
            with r.lock:
                sequence = r.last + 1
                slot = self.shape.slot_of(sequence)
                r.look()
                waits = [(m, m.queue.in_slot[slot]) for m in r.there if m.queue.in_slot[slot] > m.queue.released]
                pinned = r.pin([m for m, _ in waits])
            with pinned:
                tracker.begin()
                for m, n in waits:
                    tracker.wait(m.cursor.device + c.RELEASED, n)
                tracker.queue(handle, 2 * sequence - 1)
            with r.lock:
                return self._has(slot)

    def publish_on(self, stream: Any, slot: Slot, *, size: int | None = None, user: bytes = b"", time_ns: int = 0) -> None:
        """Give the frame to all readers when the stream has done its work so far. Return at once.

        size, user and time_ns are as of publish. It costs less without them: then readers are
        told only that the frame is there.
        """
        with self._turn:
            tracker, handle = self._streamed("publish_on", stream)
            meta = self._publishes(slot, size, user, time_ns)
            told = size is not None or meta.user or time_ns
            if told and not time_ns:
                meta = Meta(meta.size, meta.user, time.monotonic_ns())
            r = self._readers
            with r.lock:
                there = list(r.there)
                pinned = r.pin(there, giving=True)
            with pinned:
                tracker.begin()
                for m in there if told else []:
                    tracker.make_room(handle, _ENTRY_OPS)
                    self._describe(tracker, m, slot, meta)
                tracker.make_room(handle, len(there) + 1)
                for m in there:
                    tracker.write(m.cursor.device + c.PUBLISHED, m.queue.published + 1)
                tracker.queue(handle, 2 * slot.sequence)
                with r.lock:
                    for m in there:
                        if not m.gone:
                            m.queue.give(slot.index)
                            self._given += 1
                            if not m.words.load(c.WRITER_POLLS):
                                m.words.store(c.WRITER_POLLS, 1)
                                m.words.ring(c.READER_BELL)  # one that sleeps would sleep for long
                    self._finish(meta)

    def _describe(self, tracker: Tracker, m: Member, slot: Slot, meta: Meta) -> None:
        """Add what writes the entry of a reader's next frame."""
        n = m.queue.published + 1
        for at, word in m.entry_of(n, slot.index, slot.sequence, meta):
            tracker.write(m.cursor.device + at, word)
        tracker.write(m.cursor.device + self.shape.entry(n) + c.STAMP, 2 * n)

    def _streamed(self, call: str, stream: Any) -> tuple[Tracker, int]:
        """What a call by streams needs."""
        self._check()
        need_streams(self.memory)
        if not self._tracker:
            raise ChannelError(f"{call} in a channel whose readers may have any policy; make it with streams=True", reason="policy")
        handle = handle_of(stream)
        self._tracker.takes(handle)
        return self._tracker, handle

    # The end.

    def __enter__(self) -> Writer:
        self._check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise

    def close(self) -> None:
        """End the channel in order: readers get what was published, then EndedError.

        If a stream has still to acquire or publish, wait a second for it, then drop the readers
        that keep it waiting. Raises InUseError if the stream has other work to do, or views of
        slots are alive. close can be called again then.
        """
        if self._ended or self._pid != os.getpid():
            return
        r = self._readers
        with r.lock:
            r.closed = True
            for m in r.there:
                m.words.ring(c.WRITER_BELL)
            r.lock.notify_all()
        waited = 0
        while not self._turn.acquire(timeout=CLOSE_LIMIT):  # the driver keeps a call until the stream goes on
            with r.lock:
                waited = 0 if r.drop_blockers() else waited + 1  # again and again: the next frame may wait for another reader
            if waited == 2 and self._tracker:
                raise self._tracker.in_use()
        try:
            if self._ended:
                return
            self._settle()
            with r.lock:
                idle = not self._tracker or self._tracker.idle()  # or frames that were queued will never be whole: its context is lost
                for m in list(r.members):  # who hears this before the lease is taken back
                    r.drop(m, c.ENDED if idle else c.OPEN, None)
            self._undo.pop_all().close()
            self._undo.callback(self.memory.close)
            self._undo.close()
            self._ended = True
        finally:
            self._turn.release()

    def _settle(self) -> None:
        """Wait until no stream has to do with the channel."""
        if not self._tracker:
            return
        try:
            self._tracker.await_(CLOSE_LIMIT)
        except Error:
            with self._readers.lock:
                self._readers.drop_blockers()
            self._tracker.await_(CLOSE_LIMIT)

    def _end_readers(self) -> None:
        """Wait until the cursors of all readers are closed."""
        r = self._readers
        with r.lock:
            r.closed = r.over = True
            for m in list(r.members):
                r.drop(m, c.OPEN, None)
            r.lock.notify_all()
        r.thread.join()


_all: weakref.WeakSet[Writer] = weakref.WeakSet()


def _at_exit() -> None:
    for writer in list(_all):
        with contextlib.suppress(Exception):
            writer.close()


atexit.register(_at_exit)
