"""The writing side of a channel: :class:`Writer`."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import arguments
from ..errors import ChannelError, ClosedError, Error, TimedOutError
from ..memory.device import Device
from ..memory.drivers import allocate
from ..objects import NotCopied, called, human
from ..share.lease import Event
from ..share.offering import Cursors, Offering
from ..share.server import Server
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer, Policy
from ..wire.records import CUDA, Offer, check_name
from ..wire.sockets import make_offer_socket
from . import cursor as c
from .cursor import Shape
from .format import Format, merged
from .frame import Slot
from .member import Gone, MemberStats, Meta, meta_of
from .readers import Readers
from .slots import Slots
from .source import source_of
from .streams import CLOSE_LIMIT, Tracker, handle_of, need_streams

@dataclass(frozen=True)
class WriterStats:
    """The counters of a writer."""

    frames: int = 0  #: that were published, or queued to be
    given: int = 0  #: frames that readers were given, in all
    skipped: int = 0  #: frames that readers which drop the newest were not given, in all
    max_stall: float = 0.0  #: the longest that acquire waited, in seconds


class Writer(NotCopied):
    """The writing side of a channel. Its maker closes it, by ``with`` or close.

    One thread at a time acquires and publishes.

    socket          path to listen at, or a gpufd.Server, which stays the caller's; by default Reader finds it by
                    the name
    name            of the channel
    slots           how many frames the channel holds
    slot_size       the most bytes of a frame
    streams         make a channel for streams: all its readers block
    any_order       let readers, all of which block, give frames back in any order: a slot that one keeps does not
                    keep the others from the writer
    stall           seconds that a reader which blocks may keep the writer waiting; 0 or None for no bound
    drop            drop such a reader then, with any_order the one that keeps the most slots; otherwise acquire raises
                    ChannelError ("stalled"). A reader that keeps a stream waiting is dropped in either case
    readers         how many readers are admitted
    on_gone         is called with a Gone for each reader that is gone, on a thread of this package
    data            of the application, for readers' attachment.data
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
        any_order: bool = False,
        stall: float | None = 0.0,
        drop: bool = False,
        readers: int = c.MAX_READERS,
        on_gone: Callable[[Gone], None] | None = None,
        data: bytes = b"",
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
        streams, drop, any_order = (arguments.flag(*of) for of in (("streams", streams), ("drop", drop), ("any_order", any_order)))
        arguments.called("on_gone", on_gone)
        check_name(arguments.text("a name", name))
        shape = Shape.new(slots, slot_size, streams, any_order)
        self._pid, self._turn = os.getpid(), threading.Lock()
        self._acquired: Slot | None = None
        self._name, self._ended = name, False
        self._undo = contextlib.ExitStack()
        try:
            self.memory = allocate(shape.size, device=device, driver=driver)
            self._undo.callback(self.memory.close)
            self.shape = replace(shape, generation=self.memory.generation)
            self._tracker = Tracker(need_streams(self.memory)) if (streams or any_order) and self.memory.driver == CUDA else None
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
            self._undo.callback(self._readers.end)
            self._slots = Slots(self.shape, self._readers, self._check, stall, drop)
            self._offering = self._offer(name, data)
        except BaseException:
            self._undo.close()
            raise
        _all.add(self)

    def _offer(self, name: str, data: bytes) -> Offering:
        cursors = Cursors(self.shape.cursor_size, self._readers.welcome, self.shape.slots)
        offering = self.server.offer(name, self.memory, data=data, synchronized=True, cursors=cursors, on_event=self._readers.hears)
        self._undo.callback(offering.close, "the channel has ended")
        return offering

    # Its state.

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
        return WriterStats(self.last, self._readers.given, self._readers.skipped, self._slots.max_stall)

    @property
    def err(self) -> Error | None:
        """Why no frame can be given any more, or None: ChannelError ("not-offered") or ClosedError."""
        try:
            self._check()
        except Error as e:
            return e
        return None

    @property
    def done(self) -> bool:
        """Whether no frame can be given any more, and no reader is left: err says why."""
        return self.err is not None

    def _check(self) -> None:
        """Raise if no frame can be given any more."""
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose writer this is", reason="forked")
        if self._readers.closed:
            raise ClosedError("the writer was closed")
        if self._offering.over:
            raise ChannelError("the channel is not offered any more: its server was closed, or another offer has its name", reason="not-offered")

    @property
    def readers(self) -> int:
        """How many readers have joined and are there."""
        return 0 if self.done else len(self._readers.there)

    @property
    def members(self) -> list[MemberStats]:
        """The readers that are there, what they noted last, and how many frames each keeps."""
        with self._readers.lock:
            return [] if self.done else [m.stats() for m in self._readers.there]

    def await_noted(self, number: int, timeout: float | None = None) -> None:
        """Wait until each reader that is there has noted that number, or more: Reader.note. Raises TimedOutError."""
        arguments.number("a number that is noted", number)
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        behind = self._readers.await_noted(number, deadline)
        self._check()
        if behind:
            raise TimedOutError(f"reader {behind.lease} ({behind.peer}) has noted {behind.noted}, and not {number}, within {timeout:g} s")

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
        return f"<gpufd.channel.Writer of {called(self._name)}, {self.slots} slots of {human(self.slot_size)}>"

    # By the host.

    def acquire(self, timeout: float | None = None) -> Slot:
        """Wait for a slot for the next frame, and return it. It can be written at once.

        No reader that blocks holds the slot any more. A slot that was acquired and not published
        is returned again. Without a timeout it waits as long as a reader holds the slot. Raises
        TimedOutError, and ChannelError: "stalled", and "not-offered" if the channel is not offered any more.
        """
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        with self._turn:
            self._check()
            if self._tracker and self._tracker.queued % 2 and not self._tracker.idle():
                raise ChannelError(f"a stream has still to acquire frame {self.last + 1}; wait for it, or publish this one there, too", reason="order")
            slot = self._unpublished()
            if not slot:
                self._slots.acquire(deadline, timeout)
                slot = self._taken()
            return slot

    def _unpublished(self) -> Slot | None:
        """Return the slot that was acquired and not published, or None."""
        return self._acquired if self._acquired and self._acquired.sequence > self.last else None

    def _taken(self) -> Slot:
        self._acquired = slot = Slot(self, self.memory, self.shape, self._slots.sequence, self._slots.slot)
        return slot

    def publish(self, slot: Slot, *, size: int | None = None, user: bytes = b"", time_ns: int = 0, format: Format | None = None) -> None:
        """Give the frame in the slot to all readers that are there.

        Synchronise the streams that wrote the slot first, or use publish_on.

        size        bytes of the frame; by default those of the format, or else all of the slot
        user        up to 208 bytes of the application's own
        time_ns     of CLOCK_MONOTONIC; by default now
        format      what the frame is. It shares the 208 bytes with user
        """
        with self._turn:
            meta = self._publishes(slot, size, user, time_ns or time.monotonic_ns(), format)
            if self._tracker and not self._tracker.idle():
                raise ChannelError("a stream has frames of this channel; wait for it, or publish this one there, too", reason="order")
            self._readers.give(slot.index, slot.sequence, meta)

    def _publishes(self, slot: Slot, size: int | None, user: bytes, at: int, format: Format | None) -> Meta:
        """Return what goes with the frame. Raises if the slot cannot be published."""
        self._check()
        acquired = self._unpublished()
        if acquired is not slot:
            raise ChannelError(f"frame {slot.sequence} is published, and {self._slots.sequence} was acquired last (published: {not acquired})", reason="order")
        return meta_of(self.slot_size, size, user, arguments.number("time_ns", at), format)

    def send(
        self, data: Any, *, pts: int | None = None, time_base: Any = None, format: Format | None = None, user: bytes = b"",
        timeout: float | None = None, stream: Any = None,
    ) -> int:  # fmt: skip
        """Copy data to a slot and publish it as a frame. Return its sequence.

        data        bytes, or an array: a PyTorch tensor, or what has __array_interface__, __cuda_array_interface__,
                    __dlpack__ or a buffer. Of an array the readers are told dtype and shape: Frame.tensor. It is
                    made contiguous, unless format has strides
        pts         time to present the frame, in units of time_base; in nanoseconds without one
        time_base   seconds of a unit, as a Fraction or a pair of numbers: (1, 90_000)
        format      what else the frame is. Of bytes it may say all: Format.picture("NV12", 1920, 1080)
        user        the application's own bytes
        timeout     seconds to wait for a slot, by the host
        stream      by this stream, if the channel is for streams: acquire_on, copy, publish_on. Nothing is waited for,
                    but for a slot with any_order. The data is a PyTorch tensor, or of a GPU; the caller keeps it until
                    the stream has copied it

        Raises UsageError if the frame does not fit into a slot, or its format into an entry: then nothing was written.
        """
        source = source_of(data, format)
        if pts is not None or time_base is not None:
            source.format = merged(source.format, pts=pts, time_base=time_base)
        meta_of(self.slot_size, source.nbytes, user, 0, source.format)
        if stream is not None:
            slot = self.acquire(timeout) if self.shape.any_order else self.acquire_on(stream)
            source.copy_on(slot, stream, handle_of(stream))
            self.publish_on(stream, slot, size=source.nbytes, user=user, format=source.format)
        else:
            slot = self.acquire(timeout)
            source.copy_to(slot)
            self.publish(slot, size=source.nbytes, user=user, format=source.format)
        return slot.sequence

    # By streams.

    def acquire_on(self, stream: Any) -> Slot:
        """Queue on a stream a wait until no reader holds the next frame's slot, and return that at once.

        Work that the stream is given from now on may write the slot. The host may queue ahead. A
        reader that dies or is dropped is not waited for. All calls of a writer use one stream
        until it has done all. Launch each kernel once before: loading one while a stream waits
        may hang.

        Raises UnavailableError ("no-streams") with the software driver, and ChannelError: "policy" in a
        channel that is not for streams, and "order".
        """
        with self._turn:
            tracker, handle = self._streamed("acquire_on", stream)
            acquired = self._unpublished()
            if not acquired:
                self._slots.acquire_on(tracker, handle)
                acquired = self._taken()
            return acquired

    def publish_on(
        self, stream: Any, slot: Slot, *, size: int | None = None, user: bytes = b"", time_ns: int = 0, format: Format | None = None
    ) -> None:
        """Give the frame to all readers when the stream has done its work so far. Return at once.

        size, user, time_ns and format are as of publish. In a channel for streams it costs less without them: then
        readers are told only that the frame is there. With any_order the slot is one of acquire, and streams may differ:
        each waits for the frames of those before.
        """
        with self._turn:
            tracker, handle = self._streamed("publish_on", stream)
            meta = self._publishes(slot, size, user, time_ns or (time.monotonic_ns() if self.shape.any_order else 0), format)
            told = size is not None or meta.user or meta.time or meta.fields
            if told and not meta.time:
                meta = replace(meta, time=time.monotonic_ns())
            if self.shape.any_order:
                self._readers.give_behind(tracker, handle, slot.index, slot.sequence, meta)
            else:
                self._readers.give_on(tracker, handle, slot.index, slot.sequence, meta, bool(told))

    def _streamed(self, call: str, stream: Any) -> tuple[Tracker, int]:
        """Return what a call by streams needs."""
        self._check()
        need_streams(self.memory)
        if not self._tracker or self.shape.any_order and call == "acquire_on":
            raise ChannelError(f"{call} in a channel that is not for streams; make it with streams=True", reason="policy")
        handle = handle_of(stream)
        if self.shape.any_order:
            self._tracker.check_captured(handle)
        else:
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
        """End the channel in order: readers get what was published, then ChannelError ("ended").

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


_all: weakref.WeakSet[Writer] = weakref.WeakSet()


def _at_exit() -> None:
    for writer in list(_all):
        with contextlib.suppress(Exception):
            writer.close()


atexit.register(_at_exit)
