"""The reading side of a channel: :class:`Reader`."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import ChannelError, Error
from ..memory.device import Device
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer
from ..wire.records import MAX_CHUNKS, MAX_LARGE_DATA, READ_ONLY
from . import cursor as c
from .cursor import policy_name
from .frame import Frame
from .streams import Tracker, handle_of, need_streams
from .taking import ReaderStats as ReaderStats
from .taking import Taking
from .words import POLL_MIN


class Reader(Taking):
    """The reading side of a channel. Its maker closes it, by ``with`` or close.

    One thread at a time takes and releases frames.

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
        super().__init__(name, socket, policy, join, timeout, wait, options)
        _all.add(self)

    def __repr__(self) -> str:
        return f"<gpufd.channel.Reader of {self.attachment.name!r}, {policy_name(self._asked)}>"

    # By streams.

    def next_on(self, stream: Any) -> Frame:
        """Have a stream wait for the next frame, and return at once with where it will be.

        Work that the stream is given from now on runs when the frame is there. The host may queue
        ahead. The frame's size, time and user are not known yet. A reader of "latest" gets the frame that
        is the newest now, or the next one.

        If the writer dies or ends, the stream goes on without the frame: check says so. Frames that
        were whole by then can still be taken. All calls of a reader use one stream until it has
        done all. Launch each kernel once before: loading one while a stream waits may hang.

        Raises NoStreamsError with the software driver, ChannelPolicyError in a channel that is
        not for streams, OrderError, CursorError if the writer wrote nonsense, and what err says behind
        the last frame of a writer that is gone.
        """
        with self._turn:
            tracker, handle = self._streamed("next_on", stream)
            with self._mu:
                if self._lost:
                    self._check_kept()
                self._check_told()
                if self._lost and self._next > self._whole:
                    raise self._why
                self._may_hold()
                if self._asked == c.LATEST:
                    self._skip_to(max(self._next, self._seen))
                frame = self._predicted(self._next)
                tracker.begin()
                if not self._lost:  # else it is whole, and nobody would free a stream that waits any more
                    tracker.wait(self._device(c.PUBLISHED), frame._number)
                tracker.queue(handle, tracker.queued + 1)
                return self._keep(frame)

    def release_on(self, stream: Any, frame: Frame) -> None:
        """Give the frame back when the stream has done its work so far. Return at once."""
        with self._turn:
            tracker, handle = self._streamed("release_on", stream)
            self._releases(frame)
            tracker.begin()
            tracker.write(self._device(c.RELEASED), frame._number)
            tracker.queue(handle, tracker.queued + 1)
            if not self._by_stream:
                self._by_stream = True
                self._words.store(c.READER_POLLS, 1)
                self._words.ring(c.WRITER_BELL)  # one that sleeps would sleep for long
            self._held.popleft()
            self._released = frame._number

    def check(self, frame: Frame) -> None:
        """Raise if the stream has gone on without a frame of next_on.

        Call it once the stream has got past the frame, from the thread that takes frames. Raises
        what err says. After DroppedError no frame is known to be whole that was not checked before,
        because the writer may have taken its slot; nor after CursorError.
        """
        with self._turn:  # which close takes, too
            self._check()
            self._check_kept()
            while self._freeing and not self._lost:  # the stream may have been freed
                self._check()  # by close, which waits for this
                time.sleep(POLL_MIN)
            with self._mu:
                if self.shape.streams:
                    self._check_told()
                if self._lost and frame._number > self._whole:
                    raise self._why

    def _streamed(self, call: str, stream: Any) -> tuple[Tracker, int]:
        """What a call by streams needs."""
        self._check()
        need_streams(self.attachment.memory)
        if not self._tracker:
            raise ChannelError(f"{call} by a reader of policy {policy_name(self._asked)} in a channel that is not for streams", reason="policy")
        handle = handle_of(stream)
        self._tracker.takes(handle)
        return self._tracker, handle

    def _device(self, at: int) -> int:
        return (self._cursor.device if self._cursor else 0) + at

    # The end.

    def __enter__(self) -> Reader:
        self._check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise


_all: weakref.WeakSet[Reader] = weakref.WeakSet()


def _at_exit() -> None:
    for reader in list(_all):
        with contextlib.suppress(Exception):
            reader.close()


atexit.register(_at_exit)
