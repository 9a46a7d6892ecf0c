"""Rooms of a channel: a :class:`Slot` to be written, a :class:`Frame` to be read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import arguments
from ..errors import ChannelError, UsageError
from ..memory.array import Array, DType
from ..objects import NoArray

if TYPE_CHECKING:
    from .taking import Taking
    from .giving import Giving


class Slot(NoArray):
    """Room for a frame: Writer.acquire. It is the writer's until it is published."""

    def __init__(self, writer: Giving, sequence: int, index: int) -> None:
        self._writer = writer
        self.sequence = sequence  #: the frame's: from 1, without gaps
        self.index = index  #: of the slot
        self.size = writer.slot_size  #: bytes
        self._at = index * writer.shape.stride

    @property
    def ptr(self) -> int:
        """Address of the slot, for kernels."""
        return self._writer.memory.ptr + self._at

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the slot, without a copy. It can be written."""
        return Array(self._writer.memory, "U8", self.size, self._at).view(dtype, shape, offset)

    def write(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Copy bytes from the host."""
        raw = arguments.buffer("a frame", data)
        if arguments.number("at", at) + len(raw) > self.size:
            raise UsageError(f"{len(raw)} bytes at {at} of a slot of {self.size}")
        self._writer.memory.write(self._at + at, raw)


class Frame(NoArray):
    """A frame that a reader has taken: Reader.next. The end of ``with`` releases it.

    After the release a view of it shows what the writer writes next: copy what has to stay.
    """

    def __init__(self, reader: Taking, number: int, sequence: int, index: int, size: int, time: int, user: bytes) -> None:
        self._reader, self._number = reader, number
        self.sequence = sequence  #: from 1; frames between two that were taken are lost to this reader
        self.index = index  #: of the slot
        self.size = size  #: bytes
        self.time = time  #: nanoseconds of CLOCK_MONOTONIC at which it was published, or 0: now() - time is its age
        self.user = user  #: the application's own
        self._at = index * reader.shape.stride

    @property
    def ptr(self) -> int:
        """Address of the frame, for kernels."""
        return self._reader.attachment.ptr + self._at

    @property
    def meta(self) -> int:
        """Device address of the writer's entry for the frame, for kernels; or 0.

        decode_entry reads a copy of what is there. It is 0 in a channel that is not for streams.
        """
        return self._reader.meta_of(self._number)

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the frame, without a copy."""
        att = self._reader.attachment
        return Array(att.memory, "U8", self.size, self._at, owner=att).view(dtype, shape, offset)

    def tobytes(self) -> bytes:
        """Copy the bytes to the host."""
        return self._reader.attachment.read(self._at, self.size)

    @property
    def whole(self) -> bool:
        """Whether the writer has not taken the slot.

        It may take the slots of a reader that drops the oldest, or that it has dropped.
        """
        return self._reader.is_whole(self)

    def release(self) -> None:
        """Give the frame back: Reader.release."""
        self._reader.release(self)

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return self.release()
        with contextlib.suppress(ChannelError):
            self.release()

    def __repr__(self) -> str:
        return f"<gpufd.channel.Frame {self.sequence}, {self.size} bytes in slot {self.index}>"
