"""The element gpufdsrc: takes pictures from a channel, by one writer after the other."""

from __future__ import annotations

import threading
from typing import Any

from ..channel.cursor import POLICIES, number_of
from ..errors import ChannelError, TimedOutError, UsageError
from .element import LOOK, named, pad, post, seconds, text
from .libraries import GObject, Gst, GstBase, GstVideo
from .picture import NONE, Kind, Picture
from .taking import Taker


class GpufdSrc(GstBase.BaseSrc):  # type: ignore[misc]
    """Takes each frame of a channel to a buffer, with the caps and times that it had in the writer's pipeline."""

    __gtype_name__ = "GpufdSrc"
    __gstmetadata__ = ("gpufd source", "Source/Video", "Takes pictures from other processes through GPU memory", "gpufd")
    __gsttemplates__ = pad("src", Gst.PadDirection.SRC)

    channel = text("Name of the channel")
    socket = text("Path of the writer's socket; by default it is found by the channel's name")
    policy = text("What happens if the pipeline is too slow: block, drop-oldest, drop-newest or latest", "block")
    timeout = seconds("Seconds to wait for a writer, before that is an error; 0 for no bound")

    def __init__(self) -> None:
        super().__init__()
        self.set_live(True)
        self.set_format(Gst.Format.TIME)
        self._unlocked = threading.Event()
        self._taker: Taker | None = None
        self._kind: Kind | None = None
        self._padded = False  # downstream takes rows of other lengths than the caps say
        self._last = (0, 0)  # writer and sequence of the last picture
        self._begun = 0  # the writer whose segment it is

    # States.

    def do_start(self) -> bool:
        try:
            number_of(POLICIES, self.policy, "policy")
            self._taker = Taker(named(self.channel), self.socket, self.policy)
            self._kind, self._last, self._begun = None, (0, 0), 0
        except Exception as e:
            post(self, e)
        return self._taker is not None

    def do_stop(self) -> bool:
        taker, self._taker = self._taker, None
        if taker:
            taker.close()
        return True

    def do_change_state(self, transition: Any) -> Any:
        if transition == Gst.StateChange.PAUSED_TO_PLAYING:
            self._begun = 0  # in a pause the writer's time goes on, and this pipeline's does not
        return GstBase.BaseSrc.do_change_state(self, transition)

    def do_unlock(self) -> bool:
        self._unlocked.set()
        return True

    def do_unlock_stop(self) -> bool:
        self._unlocked.clear()
        return True

    def do_negotiate(self) -> bool:
        return True  # the first picture says what caps there are

    # Pictures.

    def do_create(self, offset: int, size: int, buffer: Any) -> Any:
        assert self._taker
        try:
            while not self._unlocked.is_set():
                if picture := self._taker.next(LOOK):
                    return Gst.FlowReturn.OK, self._buffer(picture)
                if self.timeout and self._taker.absent > self.timeout:
                    raise TimedOutError(f"no writer of channel {self.channel!r} came within {self.timeout:g} s: {self._taker.trouble}")
        except Exception as e:
            if isinstance(e, ChannelError) and e.reason == "ended":
                return Gst.FlowReturn.EOS, None
            post(self, e)
            return Gst.FlowReturn.ERROR, None
        return Gst.FlowReturn.FLUSHING, None

    def _buffer(self, picture: Picture) -> Any:
        if picture.kind is not self._kind:
            self._negotiate(picture.kind)
        plain = self._padded or picture.layout == picture.kind.layout
        buffer = Gst.Buffer.new_allocate(None, len(picture.data) if plain else picture.kind.size, None)
        with buffer.map(Gst.MapFlags.WRITE) as mapped:
            if plain:
                mapped.data[:] = picture.data
            else:
                picture.kind.copy(picture.data, picture.layout, mapped.data, picture.kind.layout)
        if plain and picture.layout != picture.kind.layout:
            _add_layout(buffer, picture)
        self._stamp(buffer, picture)
        return buffer

    def _negotiate(self, kind: Kind) -> None:
        pad = self.get_static_pad("src")
        if not pad.peer_query_accept_caps(kind.caps):
            raise UsageError(f"channel {self.channel!r} has {kind.text}, which the next element does not take: put videoconvert or videoscale there")
        self.set_caps(kind.caps)
        query = Gst.Query.new_allocation(kind.caps, False)
        self._padded = pad.peer_query(query) and query.find_allocation_meta(GstVideo.video_meta_api_get_type())[0]
        self._kind = kind

    def _stamp(self, buffer: Any, picture: Picture) -> None:
        """Give a buffer its times."""
        writer, sequence = self._last
        self._last = picture.writer, picture.sequence
        if self._last != (writer, sequence + 1):
            buffer.set_flags(Gst.BufferFlags.DISCONT)
        buffer.offset, buffer.duration = picture.sequence, picture.duration
        if self.get_do_timestamp():
            return
        buffer.pts, buffer.dts = picture.pts, picture.dts
        if picture.writer != self._begun:
            self._begun = picture.writer
            self._begin(picture.pts)

    def _begin(self, pts: int) -> None:
        """Begin a segment whose first time is now in this pipeline, whatever it was in the writer's."""
        clock, segment = self.get_clock(), Gst.Segment()
        segment.init(Gst.Format.TIME)
        segment.start = segment.time = segment.position = 0 if pts == NONE else pts
        segment.base = max(0, clock.get_time() - self.get_base_time()) if clock else 0
        self.new_segment(segment)


def _add_layout(buffer: Any, picture: Picture) -> None:
    rest = [0] * (4 - len(picture.layout.offsets))
    info = picture.kind.info
    GstVideo.buffer_add_video_meta_full(
        buffer, GstVideo.VideoFrameFlags.NONE, info.finfo.format, info.width, info.height, len(picture.layout.offsets),
        [*picture.layout.offsets, *rest], [*picture.layout.strides, *rest],
    )  # fmt: skip


GObject.type_register(GpufdSrc)
