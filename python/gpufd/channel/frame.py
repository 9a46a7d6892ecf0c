"""Rooms of a channel: a :class:`Slot` to be written, a :class:`Frame` to be read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from .. import arguments
from ..errors import ChannelError, UsageError
from ..memory.array import DTYPES, Array, DType
from ..memory.base import Memory
from ..memory.tensor import name_of, tensor_over
from ..objects import NoArray, human
from .cursor import Shape, check_room
from .format import Format, decode, unpack
from .joined import Joined
from .taking import Told


class Holder(Protocol):
    """A frame's reader."""

    def release(self, frame: Frame) -> None: ...
    def release_on(self, stream: Any, frame: Frame) -> None: ...
    def is_whole(self, frame: Frame) -> bool: ...


class Publisher(Protocol):
    """A slot's writer."""

    def publish(self, slot: Slot, *, size: int | None, user: bytes, time_ns: int, format: Format | None) -> None: ...
    def publish_on(self, stream: Any, slot: Slot, *, size: int | None, user: bytes, time_ns: int, format: Format | None) -> None: ...


class Slot(NoArray):
    """Room for a frame: Writer.acquire. It is the writer's until it is published."""

    def __init__(self, writer: Publisher, memory: Memory, shape: Shape, sequence: int, index: int) -> None:
        self._writer = writer
        self.sequence = sequence  #: the frame's: from 1, without gaps
        self.index = index  #: of the slot
        self.size = shape.slot_size  #: bytes
        self.memory = memory
        self.offset = index * shape.stride  #: byte of the memory at which the slot begins

    def __repr__(self) -> str:
        return f"<gpufd.channel.Slot {self.index} for frame {self.sequence}, {human(self.size)}>"

    @property
    def ptr(self) -> int:
        """Address of the slot, for kernels."""
        return self.memory.ptr + self.offset

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the slot, without a copy. It can be written."""
        return Array(self.memory, "U8", self.size, self.offset).view(dtype, shape, offset)

    def tensor(self, dtype: Any = "U8", shape: Sequence[int] | int | None = None, strides: Sequence[int] | None = None) -> Any:
        """Return a PyTorch tensor over the slot, to be written in place.

        dtype       as safetensors names it, or PyTorch's
        shape       by default all of the slot in one dimension
        strides     in elements; by default C order
        """
        name = dtype if isinstance(dtype, (str, DType)) else name_of(dtype)
        if name is None:
            raise UsageError(f"{dtype!r} is no type of elements here")
        if shape is None and strides is None:
            return tensor_over(self.view(name))
        array = Array(self.memory, name, shape, self.offset, strides=strides)
        self.check_room(array.span)
        return tensor_over(array)

    def check_room(self, size: int) -> None:
        """Raise UsageError if the slot is too small for a frame of so many bytes."""
        check_room(self.size, size)

    def write(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Copy bytes from the host."""
        raw = arguments.buffer("a frame", data)
        self.check_room(arguments.number("at", at) + len(raw))
        self.memory.write(self.offset + at, raw)


    def publish(self, *, stream: Any = None, size: int | None = None, user: bytes = b"", time_ns: int = 0, format: Format | None = None) -> None:
        """Give the frame to all readers: Writer.publish, or with a stream Writer.publish_on."""
        if stream is None:
            self._writer.publish(self, size=size, user=user, time_ns=time_ns, format=format)
        else:
            self._writer.publish_on(stream, self, size=size, user=user, time_ns=time_ns, format=format)


class Frame(NoArray):
    """A frame that a reader has taken: Reader.next. The end of ``with`` releases it.

    After the release a view of it shows what the writer writes next: copy what has to stay.
    """

    def __init__(self, reader: Holder, joined: Joined, told: Told) -> None:
        self._reader, self._joined, self._number = reader, joined, told.number
        self.sequence = told.sequence  #: from 1; frames between two that were taken are lost to this reader
        self.index = told.slot  #: of the slot
        self.size = told.size  #: bytes
        self.time = told.time  #: nanoseconds of CLOCK_MONOTONIC at which it was published, or 0: now() - time is its age
        self.user = told.user  #: the application's own
        self._at = told.slot * joined.shape.stride
        self._fields = told.fields  # with their header; None until a stream has got there
        self._format: Format | None = None
        self._error: ChannelError | None = None

    # Its state.

    @property
    def format(self) -> Format | None:
        """The description of the frame, or None if the writer gives none.

        It is None, too, for a frame of next_on until the writer's stream has published it, and if what the
        writer says is malformed: format_error has the reason then.
        """
        self._decode()
        return self._format

    @property
    def format_error(self) -> ChannelError | None:
        """Why what the writer says of the frame cannot be used, or None."""
        self._decode()
        return self._error

    @property
    def pts(self) -> int | None:
        """The time to present the frame, in units of format.time_base, or None."""
        return self.format.pts if self.format else None

    def _decode(self) -> None:
        if self._format or self._error:
            return
        if self._fields is None:
            self._fields = self._joined.fields_of(self._number, self.sequence)
        if not self._fields:
            return
        try:
            format = decode(unpack(self._fields, self.sequence))
            if (format.nbytes or 0) > self.size:
                raise ChannelError(f"frame {self.sequence} has {self.size} bytes, and the writer says that it is of {format.nbytes}", reason="cursor")
            self._format = format
        except ChannelError as e:
            self._error = e

    def array(self) -> Array:
        """Return an Array over the frame, of the dtype and shape that the writer says.

        Raises UsageError if the writer says none, or says planes, and ChannelError ("cursor") if what it says is malformed.
        """
        f = self._described()
        if f.planes:
            raise UsageError(f"frame {self.sequence} has {len(f.planes)} planes: planes or tensors has an array for each")
        if f.dtype is None or f.shape is None:
            raise self._untyped()
        return self._array(f.dtype, f.shape, f.strides)

    @property
    def planes(self) -> list[Array]:
        """An Array for each plane of a picture: (rows, columns), or (rows, columns, samples) if a column has several.

        Raises what array raises.
        """
        f = self._described()
        if not f.planes or f.dtype is None:
            raise self._untyped() if f.shape is None else UsageError(f"frame {self.sequence} has no planes: array or tensor has all of it")
        arrays = []
        for p in f.planes:
            step = p.pitch // DTYPES[f.dtype].itemsize
            shape, strides = ((p.rows, p.columns, p.samples), (step, p.samples, 1)) if p.samples > 1 else ((p.rows, p.columns), (step, 1))
            arrays.append(self._array(f.dtype, shape, strides, p.offset))
        return arrays

    @property
    def tensor(self) -> Any:
        """A PyTorch tensor over the frame, without a copy, of the dtype and shape that the writer says.

        Do not write to it: on a GPU that fails the process's context, with the software driver it kills the process.
        Clone what has to stay after the release. Raises what array raises.
        """
        return tensor_over(self.array())

    @property
    def tensors(self) -> list[Any]:
        """A PyTorch tensor for each of planes."""
        return [tensor_over(plane) for plane in self.planes]

    def _array(self, dtype: str, shape: Sequence[int], strides: Sequence[int] | None, offset: int = 0) -> Array:
        att = self._joined.attachment
        return Array(att.memory, dtype, shape, self._at + offset, owner=att, strides=strides)

    def _described(self) -> Format:
        self._decode()
        if self._error:
            raise self._error
        if self._format is None:
            raise self._untyped()
        return self._format

    def _untyped(self) -> UsageError:
        later = " yet: the writer's stream has not published it" if self._fields is None else ""
        return UsageError(f"the writer does not say what frame {self.sequence} is{later}; view(dtype, shape) makes an array of its bytes")

    # Its bytes.

    @property
    def ptr(self) -> int:
        """Address of the frame, for kernels."""
        return self._joined.attachment.ptr + self._at

    @property
    def meta(self) -> int:
        """Device address of the writer's entry for the frame, for kernels; or 0.

        decode_entry reads a copy of what is there. It is 0 in a channel that is not for streams.
        """
        return self._joined.meta_of(self._number)

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return an Array over the frame, without a copy."""
        att = self._joined.attachment
        return Array(att.memory, "U8", self.size, self._at, owner=att).view(dtype, shape, offset)

    def tobytes(self) -> bytes:
        """Copy the bytes to the host."""
        return self._joined.attachment.read(self._at, self.size)

    @property
    def whole(self) -> bool:
        """Whether the writer has not taken the slot.

        It may take the slots of a reader that drops the oldest, or that it has dropped.
        """
        return self._reader.is_whole(self)

    def release(self, stream: Any = None) -> None:
        """Give the frame back: Reader.release, or with a stream Reader.release_on."""
        if stream is None:
            self._reader.release(self)
        else:
            self._reader.release_on(stream, self)

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return self.release()
        with contextlib.suppress(ChannelError):
            self.release()

    def __repr__(self) -> str:
        return f"<gpufd.channel.Frame {self.sequence}, {human(self.size)} in slot {self.index}>"
