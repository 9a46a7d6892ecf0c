"""Pictures of a channel, as GStreamer's caps say what they are.

A frame of gpufdsink has a note among the application's own bytes, and the caps as text behind the picture, in the
same slot. So a reader that joins late knows all, and one that does not know GStreamer gets the picture alone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from ..channel.format import Format
from ..errors import ChannelError, UsageError
from ..memory.array import DTYPES
from .libraries import Gst, GstVideo
from .planes import Layout, colour_of, layout_of, planes_of, row_bytes

NONE = (1 << 64) - 1  # no time
SYSTEM = Gst.Caps.from_string("video/x-raw")  # in system memory
_NOTE = struct.Struct("<4sIQQ")
_MARK = b"GST1"
_PIXELS = {"NV12": "NV12", "P010_10LE": "P010"}  # names of GStreamer, and those of a Format


@dataclass(frozen=True)
class Note:
    """Holds the caps' size, the DTS and the duration of a frame, which gpufdsink sends with it."""

    caps_size: int  #: bytes of the caps, which are behind the picture
    dts: int = NONE
    duration: int = NONE

    def pack(self) -> bytes:
        return _NOTE.pack(_MARK, self.caps_size, self.dts, self.duration)

    @classmethod
    def of(cls, user: bytes) -> Note | None:
        """Return the note among the application's own bytes; None if another application wrote them."""
        return cls(*_NOTE.unpack(user)[1:]) if len(user) == _NOTE.size and user.startswith(_MARK) else None


class Kind:
    """Describes pictures by their caps. Raises UsageError if the caps are not those of raw pictures."""

    def __init__(self, caps: Any) -> None:
        self.text = caps.to_string()
        try:
            self.info = info = GstVideo.VideoInfo.new_from_caps(caps)
        except TypeError:  # a constructor that returns nothing
            info = None
        if info is None or not info.finfo.n_planes or not caps.is_fixed() or not caps.is_subset(SYSTEM):
            raise UsageError(f"caps of no raw picture: {self.text[:200]}")
        self.caps, self.format, self.width, self.height, self.size = caps, info.finfo.name, info.width, info.height, info.size
        self.layout = Layout(tuple(info.offset[: info.finfo.n_planes]), tuple(info.stride[: info.finfo.n_planes]))
        self.dtype, self.planes = planes_of(info)
        self._about = Format(colour=colour_of(info))

    @classmethod
    def parsed(cls, text: str) -> Kind:
        """Return the kind of caps as text."""
        caps = Gst.Caps.from_string(text)
        if caps is None:
            raise UsageError(f"no caps: {text[:200]!r}")
        return cls(caps)

    def __repr__(self) -> str:
        return f"{self.format} of {self.width} x {self.height}"

    # The places of the planes.

    def layout_in(self, buffer: Any) -> Layout:
        """Return where the planes are in a buffer of GStreamer's."""
        meta = GstVideo.buffer_get_video_meta(buffer)
        return Layout(tuple(meta.offset[: meta.n_planes]), tuple(meta.stride[: meta.n_planes])) if meta else self.layout

    def described(self, layout: Layout, size: int) -> Format:
        """Return the format of a frame of so many bytes. Without rows it says only the colours."""
        if len(layout.offsets) != len(self.planes) or min(layout.strides) <= 0:
            return self._about
        planes = tuple(replace(p, offset=offset, pitch=pitch) for p, offset, pitch in zip(self.planes, *layout))
        item, one = DTYPES[self.dtype].itemsize, planes[0]
        if len(planes) == 1 and not one.offset and not one.pitch % item:
            samples = (one.samples,) if one.samples > 1 else ()
            said = replace(self._about, dtype=self.dtype, shape=(one.rows, one.columns, *samples), strides=(one.pitch // item, one.samples, 1)[: 2 + len(samples)])
        else:
            said = replace(self._about, dtype=self.dtype, shape=(self.height, self.width), planes=planes, pixels=_PIXELS.get(self.format, ""))
        return said if (said.nbytes or 0) <= size else self._about

    def found(self, format: Format | None, size: int) -> Layout:
        """Return where the planes are in a frame of so many bytes. Raises ChannelError ("cursor") if it has no room for them."""
        layout = (layout_of(format) if format else None) or self.layout
        if layout == self.layout:
            fits = size >= self.size
        else:
            fits = len(layout.offsets) == len(self.planes)
            for plane, offset, pitch in zip(self.planes, *layout):
                row = row_bytes(plane, self.dtype)
                fits = fits and pitch >= row and offset + pitch * (plane.rows - 1) + row <= size
        if not fits:
            raise ChannelError(f"a frame of {size} bytes with planes at {list(layout.offsets)} and rows of {list(layout.strides)} bytes is no {self!r}", reason="cursor")
        return layout

    def copy(self, data: memoryview, layout: Layout, to: memoryview, there: Layout, below: int = 0) -> None:
        """Copy a picture to one of another layout, below so many pictures of this size."""
        for plane, at, pitch, begin, step in zip(self.planes, *layout, *there):
            begin += below * plane.rows * step
            if pitch == step:
                n = pitch * (plane.rows - 1) + row_bytes(plane, self.dtype)
                to[begin : begin + n] = data[at : at + n]
                continue
            n = row_bytes(plane, self.dtype)
            for row in range(plane.rows):
                to[begin + row * step : begin + row * step + n] = data[at + row * pitch : at + row * pitch + n]


@dataclass(frozen=True)
class Picture:
    """A picture that was taken from a channel, in memory of this process."""

    kind: Kind
    layout: Layout
    data: memoryview
    writer: int  #: a number that no other writer's pictures have
    sequence: int  #: of the frame
    time: int  #: nanoseconds of CLOCK_MONOTONIC at which it was captured, or else published
    pts: int = NONE
    dts: int = NONE
    duration: int = NONE


# PyGObject makes a class when it is first used, and gives it to another thread half made: the threads of gpufdbatch find these made.
Kind.parsed("video/x-raw, format=RGB, width=1, height=1, framerate=0/1")
