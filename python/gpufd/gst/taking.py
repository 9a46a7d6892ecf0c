"""Pictures from a channel, by one writer after the other."""

from __future__ import annotations

import time

from ..channel import Reader
from ..channel.format import Format
from ..channel.frame import Frame
from ..errors import ChannelError, Error, TimedOutError, UsageError, suppress
from .picture import NONE, Kind, Note, Picture
from .planes import caps_of

NEXT = b"gpufdsink: another channel follows"  # a notice: the end of this channel is not that of the pictures
_JOIN = 5.0  # seconds that a step of joining may take
_MOST_CAPS = 1 << 16  # bytes


class Taker:
    """Takes pictures from a channel, and goes on with the next writer when one was lost. One thread at a time uses it."""

    def __init__(self, channel: str, socket: str | None, policy: str) -> None:
        self._channel, self._socket, self._policy = channel, socket or None, policy
        self._reader: Reader | None = None
        self._known = 0  # generation of the last writer's memory
        self._kind: Kind | None = None
        self._since = time.monotonic()  # when it was last known that there is a writer
        self.trouble: Error | None = None  #: why the last picture did not come

    @property
    def joined(self) -> bool:
        """Whether there is a writer."""
        return self._reader is not None

    @property
    def absent(self) -> float:
        """Seconds for which there has been no writer."""
        return 0.0 if self._reader else time.monotonic() - self._since

    def next(self, timeout: float) -> Picture | None:
        """Return the next picture, or None if none came in time.

        Raises ChannelError ("ended") if the writer has ended the pictures, and other errors where waiting is no use.
        """
        try:
            reader = self._reader or self._join()
            frame = reader.next(timeout)
        except Error as e:
            self.trouble = e
            if isinstance(e, TimedOutError):
                return None
            if not self._goes_on(e):
                raise
            if not self.joined:
                time.sleep(min(timeout, 0.02))
            self._leave(rejoin=e.reason == "dropped")
            return None
        with suppress(ChannelError, "passed", "dropped"):  # what was read may be of two frames
            with frame:
                about, note = frame.format or Format(), Note.of(frame.user)
                behind = min(note.caps_size, _MOST_CAPS, reader.slot_size - frame.size) if note else 0
                data = reader.attachment.read(frame.ptr - reader.attachment.ptr, frame.size + behind)
            return self._picture(reader, frame, about, note, memoryview(data))
        return None

    def _join(self) -> Reader:
        reader = Reader(self._channel, socket=self._socket, policy=self._policy, timeout=_JOIN, newer_than=self._known)
        self._reader = reader
        return reader

    def _goes_on(self, error: Error) -> bool:
        """Return whether to look for a writer after an error."""
        if error.reason == "ended" and self._reader:
            return NEXT in self._reader.attachment.notices()
        return error.retryable or error.reason in ("ended", "dropped")

    def _leave(self, rejoin: bool) -> None:
        """Leave the writer, for another one or for the same."""
        reader, self._reader = self._reader, None
        if reader:
            self._since = time.monotonic()
            self._known = self._known if rejoin else reader.attachment.generation
            reader.close()

    def close(self) -> None:
        """Leave the channel. next joins again."""
        self._leave(rejoin=True)

    # A picture.

    def _picture(self, reader: Reader, frame: Frame, about: Format, note: Note | None, data: memoryview) -> Picture:
        """Return the picture of a frame that was copied."""
        if frame.format_error:
            raise frame.format_error
        kind = self._kind_of(bytes(data[frame.size :]).decode("utf-8", "replace") if note else self._described(frame, about))
        pts = NONE if about.seconds is None or about.seconds < 0 else int(about.seconds * 10**9)
        captured = about.captured if about.captured is not None and about.clock == time.CLOCK_MONOTONIC else frame.time
        times = (pts, note.dts, note.duration) if note else (pts,)
        return Picture(kind, kind.found(about, frame.size), data[: frame.size], reader.attachment.generation, frame.sequence, captured, *times)

    def _described(self, frame: Frame, about: Format) -> str:
        caps = caps_of(about)
        if not caps:
            what = f"{about.dtype}{list(about.shape or ())} {about.pixels}".strip() if about.dtype else "of no format"
            raise UsageError(
                f"frame {frame.sequence} of channel {self._channel!r} is {what}, and no picture for GStreamer: "
                "send (height, width, 3) of U8, or give it a Format.picture"
            )
        return caps

    def _kind_of(self, caps: str) -> Kind:
        if not self._kind or self._kind.text != caps:
            self._kind = Kind.parsed(caps)
            self._kind.text = caps
        return self._kind
