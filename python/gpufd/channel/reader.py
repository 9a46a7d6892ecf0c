"""The reading side of a channel: :class:`Reader`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from .. import arguments
from ..errors import ChannelError, Error, TimedOutError, suppress
from ..memory.device import Device
from ..objects import NotCopied, called
from ..share.fence import FENCED
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer
from ..wire.records import MAX_CHUNKS, MAX_LARGE_DATA, READ_ONLY
from . import cursor as c
from .cursor import policy_name
from .frame import Frame
from .joined import Joined
from .position import Position
from .position import ReaderStats as ReaderStats
from .queue import behind
from .ready import Ready
from .streams import Tracker, handle_of, need_streams
from .taking import Told, claim_newest, copy_entry
from .words import POLL_MIN

_NOT_WHOLE = ("passed", "dropped", "turned-away")  # reasons why a frame may be of two


class Reader(NotCopied):
    """The reading side of a channel. Its maker closes it, by ``with`` or close.

    One thread at a time takes and releases frames. Where they come back in any order, any thread releases them.

    socket, name    which channel
    policy          what happens if this reader is too slow: "block" makes the writer wait,
                    "drop-oldest" goes on with the newest frame, "drop-newest" gets no frames while it
                    has too many, and "latest" always gets the newest frame, which nobody overwrites
                    until its release. It blocks in a channel for streams, and gives back what it skips
    join            begin with the "next" frame, or with the "newest" that there is
    timeout         seconds for joining; None for no bound
    wait            seconds to wait for a writer that is not there yet; None for no bound
    access, device, driver, within, max_chunks, max_size, max_data, newer_than, reoffer, connected
                    as of gpufd.attach
    """

    def __init__(
        self,
        name: str = "",
        *,
        socket: str | os.PathLike[str] | None = None,
        policy: str = "block",
        join: str = "next",
        timeout: float | None = DEFAULT_TIMEOUT,
        wait: float | None = 0.0,
        access: int = READ_ONLY,
        device: Device | None = None,
        driver: str | int | None = None,
        within: float | None = None,
        max_chunks: int = MAX_CHUNKS,
        max_size: int | None = None,
        max_data: int = MAX_LARGE_DATA,
        newer_than: int = 0,
        reoffer: bool = False,
        connected: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        options = {
            "access": access, "device": device, "driver": driver, "within": within, "max_chunks": max_chunks, "max_size": max_size,
            "max_data": max_data, "newer_than": newer_than, "reoffer": reoffer, "connected": connected,
        }  # fmt: skip
        self._joined = joined = Joined(name, socket, policy, join, timeout, wait, options)
        self.attachment, self.shape = joined.attachment, joined.shape
        self.first = joined.first  #: sequence of the first frame that this reader may get
        self._position = Position(joined)
        joined.holds = lambda: bool(self._position.held)
        self._ready: Ready | None = None

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
    def stats(self) -> ReaderStats:
        """The counters of this reader so far."""
        return self._position.stats

    @property
    def err(self) -> Error | None:
        """Why the writer is gone, or None: ChannelError ("ended", "dropped", "turned-away", "cursor") or LostError.

        Frames that were whole by then can still be taken, but not after "dropped": then the
        slots are the writer's.
        """
        return self._joined.why if self._joined.lost else None

    @property
    def done(self) -> bool:
        """Whether the writer has ended, died or dropped this reader."""
        return self._joined.lost

    def await_fence(self, timeout: float | None) -> None:
        """Wait until nothing of the writer's can write the frames any more: Attachment.await_fence.

        Call it to keep a frame after the writer's death. It takes some 10 ms.
        """
        self.attachment.await_fence(timeout, FENCED)

    def __repr__(self) -> str:
        return f"<gpufd.channel.Reader of {called(self.attachment.name)}, {policy_name(self._joined.asked)}>"

    def holds(self, frame: Frame) -> bool:
        """Return whether a frame is held: it was taken, and not given back."""
        return frame in self._position.held

    @property
    def wanted(self) -> int:
        """Sequence of the frame for which the writer waits for this reader to give a slot back, or 0.

        It is told readers that block, by a writer that acquires by the host.
        """
        self._joined.check()
        number = self._joined.words.load(c.WANTED)
        return self.first + number - 1 if number else 0

    def await_wanted(self, timeout: float | None = None) -> None:
        """Wait until the writer waits for this reader to give a slot back. Frames that were taken may be kept until then.

        Raises TimedOutError, and what err says once the writer is gone.
        """
        j = self._joined
        j.check()
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        came = j.words.await_(c.READER_BELL, 0, deadline, lambda: j.words.load(c.WANTED) >= self._position.next or j.lost or j.closing)
        j.check()
        if j.lost:
            j.raise_why()
        if not came:
            raise TimedOutError(f"the writer has not waited for a slot within {timeout:g} s")

    def note(self, number: int) -> None:
        """Tell the writer a number of the application's own, such as how far it has worked: Writer.members, await_noted."""
        j = self._joined
        arguments.number("a number to note", number)
        j.check()
        with j.leaving:
            j.words.store(c.NOTED, number)
            j.words.ring(c.WRITER_BELL)

    # By the host.

    def next(self, timeout: float | None = None) -> Frame:
        """Wait for the next frame, and take it. It can be read at once.

        Several frames may be held; release them in their order, unless the channel has any_order. A reader of "latest" gets the newest
        frame, and holds one at most. Without a timeout it waits as long as there is a writer. Raises
        what err says when there are no more frames, ChannelError ("cursor") if the writer wrote nonsense,
        and TimedOutError.
        """
        self._joined.check()
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        with self._joined.turn:
            try:
                frame = self._next(deadline)
            finally:
                if self._ready:
                    self._ready.rearm()
        if not frame:
            raise TimedOutError(f"no frame came within {timeout:g} s")
        return frame

    def _next(self, deadline: float) -> Frame | None:
        j, at = self._joined, self._position
        at.check_room()
        begin, tries = 0.0, 0
        while True:
            number = at.look()
            told = self._take(number) if number else None
            if told:
                frame = at.hold(Frame(self, j, told))
                at.max_stall = max(at.max_stall, time.monotonic() - begin if begin else 0.0)
                return frame
            if number and (tries := tries + 1) > self.slots and time.monotonic() >= deadline:
                return None  # a writer that lies could go on like this
            if number:
                continue
            begin = begin or time.monotonic()
            if not j.words.await_(c.READER_BELL, c.WRITER_POLLS, deadline, self._is_ready):
                return None

    def _is_ready(self) -> bool:
        j = self._joined
        return j.words.load(c.PUBLISHED) >= self._position.next and not j.freeing or j.lost or j.closing

    def fileno(self) -> int:
        """Return a descriptor for select and asyncio: it is readable when next may have a frame, or the writer's end.

        Call next(0) then; the descriptor is readable no more when that has found nothing. It may be readable for
        nothing now and then. Frames are announced in memory, so the first call starts a thread, which waits for
        them as next does. close ends it, and closes the descriptor. gpufd.aio uses it.
        """
        with self._joined.turn:
            self._joined.check()
            if not self._ready:
                self._ready = Ready(self._joined.words, self._is_ready, lambda: self._joined.closing)
            return self._ready.fd

    def _take(self, number: int) -> Told | None:
        """Take the frame of that number, or as the policy has it; None if there is none any more: the next
        look finds another."""
        j, at = self._joined, self._position
        if j.policy == c.LATEST:
            return claim_newest(j, at.next, at.last)
        if j.asked == c.LATEST:
            at.skip_to(number)
        if j.words.load(self.shape.entry(number) + c.STAMP) == 2 * number:
            told = copy_entry(j.words, self.shape, number, at.last)
        else:
            told = at.untold(number)
        if not told:
            at.next = behind(number, at.seen)
        return told

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, timeout: float | None = None) -> Iterator[Frame]:
        """Iterate over the frames until the writer ends.

        Each frame is released after the loop's body, unless the body has done so. Frames that the
        writer overwrote meanwhile are counted in stats.passed. Raises ChannelError ("dropped") if the writer
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
                self.give_back(frame)

    def give_back(self, frame: Frame) -> None:
        """Release the frame unless that was done. If it was not whole any more, only stats say so."""
        if frame in self._position.held and not self._joined.closing:
            with suppress(ChannelError, *_NOT_WHOLE):  # the latter is said by next, too
                self.release(frame)

    def release(self, frame: Frame) -> None:
        """Give the frame back. Synchronise the streams that read it first, or use release_on.

        Frames are given back in the order in which they were taken; in a channel with any_order in any, also while
        another thread waits in next. A finaliser must not do that: it may run in the middle of another release.

        Raises ChannelError: "passed" if the writer took the slot meanwhile, so that what was read may be of
        two frames, and "dropped" if it may have. The frame is released nevertheless. After "passed",
        next takes the newest frame.
        """
        j, at = self._joined, self._position
        if self.shape.any_order:
            return self._give_back(frame)
        with j.turn:
            at.check_oldest(frame)
            if at.by_stream and j.tracker and not j.tracker.idle():
                raise ChannelError("a stream has frames to release; release this one there, too", reason="order")
            if self.shape.streams and frame._number > j.words.load(c.PUBLISHED):
                raise ChannelError(f"frame {frame.sequence} has not come yet; wait for the stream that was given next_on", reason="order")
            failed = self._why_not_whole(frame)
            self._let_go(frame, failed, c.RELEASED)
            if j.policy == c.LATEST:
                j.words.store(c.CLAIM, 0)
            j.words.ring(c.WRITER_BELL)
            if failed:
                raise failed

    def _give_back(self, frame: Frame, stream: Any = None) -> None:
        """Give a frame back where that is done in any order, by any thread, and any stream."""
        j, at = self._joined, self._position
        j.check()
        with j.leaving:
            at.check_held(frame)
            if stream is not None:
                return self._give_back_on(stream, frame)
            failed, word = j.why_dropped(), self.shape.release_word(frame.index)
            self._let_go(frame, failed, word)
            j.words.ring(c.WRITER_BELL)
        if failed:
            raise failed

    def _let_go(self, frame: Frame, failed: Error | None, word: int) -> None:
        """Give the frame back by the host, in the word."""
        j, at = self._joined, self._position
        try:
            at.let_go(frame, failed)  # before: its slot may have another frame at once, which another thread takes
            j.words.store(word, frame._number)
        finally:
            if frame not in at.held and j.words.load(word) < frame._number:  # an interrupt came between
                j.words.store(word, frame._number)

    def _give_back_on(self, stream: Any, frame: Frame) -> None:
        """Queue on a stream what gives the frame back. If the driver fails, the frame is still held."""
        j, at = self._joined, self._position
        need_streams(self.attachment.memory)
        assert j.releases
        handle = handle_of(stream)
        j.releases.check_captured(handle)
        self._polls()
        j.releases.begin()
        j.releases.write(j.device + self.shape.release_word(frame.index), frame._number)
        try:
            at.let_go(frame)  # as by the host
            j.releases.queue_of_slot(handle, frame.index, frame._number)
        except BaseException:
            if not j.releases.took():
                at.take_back(frame)
            raise

    def _polls(self) -> None:
        """Tell the writer that streams give frames back, which ring no bell."""
        j, at = self._joined, self._position
        if not at.by_stream:
            at.by_stream = True
            j.words.store(c.READER_POLLS, 1)
            j.words.ring(c.WRITER_BELL)  # one that sleeps would sleep for long

    def _why_not_whole(self, frame: Frame) -> Error | None:
        """Return why the frame may not be whole any more, or None if it is."""
        j = self._joined
        if j.policy == c.DROP_OLDEST and j.words.load(self.shape.entry(frame._number) + c.STAMP) != 2 * frame._number:
            return ChannelError(f"the writer has passed this reader by: frame {frame.sequence}", reason="passed")
        return j.why_dropped()

    def is_whole(self, frame: Frame) -> bool:
        """Return whether the frame is whole: the writer has not taken its slot.

        It may take the slots of a reader that drops the oldest, or that it has dropped.
        """
        self._joined.check()
        return self._why_not_whole(frame) is None

    # By streams.

    def next_on(self, stream: Any) -> Frame:
        """Queue on a stream a wait for the next frame, and return at once with where it will be.

        Work that the stream is given from now on runs when the frame is there. The host may queue
        ahead. The frame's size, time, user and format are not known yet. A reader of "latest" gets the
        frame that is the newest now, or the next one.

        If the writer dies or ends, the stream goes on without the frame: check says so. Frames that
        were whole by then can still be taken. All calls of a reader use one stream until it has
        done all. Launch each kernel once before: loading one while a stream waits may hang.

        Raises UnavailableError ("no-streams") with the software driver, ChannelError ("policy" in a channel
        that is not for streams, "order", "cursor" if the writer wrote nonsense), and what err says behind the
        last frame of a writer that is gone.
        """
        j, at = self._joined, self._position
        with j.turn:
            tracker, handle = self._streamed("next_on", stream)
            with j.mu:
                if j.lost:
                    j.check_kept()
                at.check_told()
                if j.lost and at.next > j.whole:
                    raise j.why
                at.check_room()
                if j.asked == c.LATEST:
                    at.skip_to(max(at.next, at.seen))
                told = at.predicted(at.next)
                tracker.begin()
                if not j.lost:  # else it is whole, and nobody would free a stream that waits any more
                    tracker.wait(j.device + c.PUBLISHED, told.number)
                tracker.queue(handle, tracker.queued + 1)
                return at.hold(Frame(self, j, told))

    def release_on(self, stream: Any, frame: Frame) -> None:
        """Give the frame back when the stream has done its work so far. Return at once."""
        j, at = self._joined, self._position
        if self.shape.any_order:
            return self._give_back(frame, stream)
        with j.turn:
            tracker, handle = self._streamed("release_on", stream)
            at.check_oldest(frame)
            tracker.begin()
            tracker.write(j.device + c.RELEASED, frame._number)
            tracker.queue(handle, tracker.queued + 1)
            self._polls()
            at.let_go(frame)

    def check(self, frame: Frame) -> None:
        """Raise if the stream has gone on without a frame of next_on.

        Call it once the stream has got past the frame, from the thread that takes frames. Raises
        what err says. After "dropped" no frame is known to be whole that was not checked before,
        because the writer may have taken its slot; nor after "cursor".
        """
        j = self._joined
        with j.turn:  # which close takes, too
            j.check()
            j.check_kept()
            while j.freeing and not j.lost:  # the stream may have been freed
                j.check()  # by close, which waits for this
                time.sleep(POLL_MIN)
            with j.mu:
                if self.shape.streams:
                    self._position.check_told()
                if j.lost and frame._number > j.whole:
                    raise j.why

    def _streamed(self, call: str, stream: Any) -> tuple[Tracker, int]:
        """Return what a call by streams needs."""
        j = self._joined
        j.check()
        need_streams(self.attachment.memory)
        if not j.tracker:
            raise ChannelError(f"{call} by a reader of policy {policy_name(j.asked)} in a channel that is not for streams", reason="policy")
        handle = handle_of(stream)
        j.tracker.takes(handle)
        return j.tracker, handle

    # The end.

    def close(self, force: bool = False) -> None:
        """Leave the channel.

        Frames that are held are given back when the device has done all of its work; in a channel for streams
        synchronize those that read them before. Streams that wait for a frame are freed after a second. Raises InUseError while views of
        frames are alive, unless force; and if a stream has still to do what the channel gave it:
        let it go on, and close again.
        """
        self._joined.close(force)
        ready, self._ready = self._ready, None
        if ready:
            ready.close()

    def __enter__(self) -> Reader:
        self._joined.check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise
