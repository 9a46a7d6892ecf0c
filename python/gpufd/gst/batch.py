"""The element gpufdbatch: the newest pictures of several channels, one below the other in one buffer."""

from __future__ import annotations

import threading
import time
from typing import Any

from ..errors import ChannelError, UsageError
from .element import LOOK, number, pad, post, text
from .libraries import GObject, Gst, GstBase, GstVideo
from .picture import Kind, Picture
from .taking import Taker


class _Camera:
    """The newest picture of a channel, which a thread takes."""

    def __init__(self, name: str, socket: str | None, news: threading.Condition) -> None:
        self.name, self._news = name, news
        self.picture: Picture | None = None
        self.since = 0.0  # when the first picture came that no batch has yet; 0 if there is none
        self.joined = self.ended = False
        self.missing = False  # in the last batch, so the next one does not wait for it
        self.failed: Exception | None = None
        self.stopped = False
        self._taker = Taker(name, socket, "latest")
        self.thread = threading.Thread(target=self._run, name=f"gpufdbatch-{name}", daemon=True)

    def _run(self) -> None:
        try:
            while not self.stopped:
                self._take()
        except Exception as e:
            with self._news:
                self.ended = isinstance(e, ChannelError) and e.reason == "ended"
                self.failed = None if self.ended else e
                self._came(None, joined=False)
        finally:
            self._taker.close()

    def _take(self) -> None:
        picture = self._taker.next(LOOK)
        with self._news:
            self._came(picture, self._taker.joined)

    def _came(self, picture: Picture | None, joined: bool) -> None:
        self.joined = joined
        if picture:
            self.picture, self.since = picture, self.since or time.monotonic()
        elif not joined and not self.since:
            self.picture = None  # nobody should take it for what is there now
        self._news.notify_all()

    def batched(self) -> Picture | None:
        """Return the picture for a batch. It is for further ones, too, as long as there is a writer."""
        picture, self.since, self.missing = self.picture, 0.0, self.picture is None
        if not self.joined:
            self.picture = None
        return picture


class GpufdBatch(GstBase.BaseSrc):  # type: ignore[misc]
    """Makes a buffer of the newest picture of each channel, in the order of the names.

    A buffer is a picture as wide as one of them and as high as all. For each it has two metas: a region of interest
    whose type is the channel's name, and a reference timestamp, whose caps name the channel and the frame.
    """

    __gtype_name__ = "GpufdBatch"
    __gstmetadata__ = ("gpufd batch", "Source/Video", "Takes the newest picture of each of several channels", "gpufd")
    __gsttemplates__ = pad("src", Gst.PadDirection.SRC)

    channels = text("Names of the channels, with commas between them")
    sockets = text("Paths of the writers' sockets, with commas between them; by default they are found by the names")
    timeout = number("Milliseconds that a batch waits after the first new picture for channels that were in the last batch", 100, 0, 1_000_000)

    def __init__(self) -> None:
        super().__init__()
        self.set_live(True)
        self.set_format(Gst.Format.TIME)
        self.set_do_timestamp(True)
        self._news = threading.Condition()
        self._unlocked = False
        self._cameras: list[_Camera] = []
        self._kind: Kind | None = None  # kind of each picture
        self._whole: Kind | None = None  # kind of the batch

    # States.

    def do_start(self) -> bool:
        try:
            names, sockets = _listed(self.channels or ""), _listed(self.sockets) if self.sockets else []
            if not all(names) or sockets and len(sockets) != len(names) or len(set(names)) < len(names):
                raise UsageError(f"channels {self.channels!r}, sockets {self.sockets!r}: want names that differ, such as channels=left,right, and a socket for each or none")
            self._kind = self._whole = None
            self._cameras = [_Camera(name, socket, self._news) for name, socket in zip(names, sockets or [""] * len(names))]
        except Exception as e:
            post(self, e)
            return False
        for camera in self._cameras:
            camera.thread.start()
        return True

    def do_stop(self) -> bool:
        cameras, self._cameras = self._cameras, []
        for camera in cameras:
            camera.stopped = True
        for camera in cameras:
            camera.thread.join()
        return True

    def do_unlock(self) -> bool:
        with self._news:
            self._unlocked = True
            self._news.notify_all()
        return True

    def do_unlock_stop(self) -> bool:
        self._unlocked = False
        return True

    def do_negotiate(self) -> bool:
        return True  # the first pictures say what caps there are

    # Batches.

    def do_create(self, offset: int, size: int, buffer: Any) -> Any:
        try:
            with self._news:
                while (wait := self._wait()) and not self._unlocked:
                    self._news.wait(wait)
                if self._unlocked:
                    return Gst.FlowReturn.FLUSHING, None
                pictures = [camera.batched() for camera in self._cameras]
            if not any(pictures):
                return Gst.FlowReturn.EOS, None
            return Gst.FlowReturn.OK, self._buffer(pictures)
        except Exception as e:
            post(self, e)
            return Gst.FlowReturn.ERROR, None

    def _wait(self) -> float:
        """Return the seconds until there is a batch, or 0 if there is one, or all channels have ended."""
        for camera in self._cameras:
            if camera.failed:
                raise camera.failed
        since = [camera.since for camera in self._cameras if camera.since]
        if not since:
            return 0.0 if all(camera.ended for camera in self._cameras) else LOOK
        if all(camera.since or camera.missing or camera.ended for camera in self._cameras):
            return 0.0
        return max(0.0, min(since) + float(self.timeout) / 1000 - time.monotonic())

    def _buffer(self, pictures: list[Picture | None]) -> Any:
        whole = self._negotiated(pictures)
        buffer = Gst.Buffer.new_allocate(None, whole.size, None)
        with buffer.map(Gst.MapFlags.WRITE) as mapped:
            if not all(pictures):
                mapped.data[:] = bytes(whole.size)
            for i, picture in enumerate(pictures):
                if picture:
                    picture.kind.copy(picture.data, picture.layout, mapped.data, whole.layout, below=i)
        for i, (camera, picture) in enumerate(zip(self._cameras, pictures)):
            if picture:
                _add_metas(buffer, i, camera.name, picture)
        return buffer

    def _negotiated(self, pictures: list[Picture | None]) -> Kind:
        """Return what the batch is. Raises UsageError if the pictures do not go into one."""
        there = [(c.name, p.kind) for c, p in zip(self._cameras, pictures) if p]
        name, kind = there[0]
        for other, its in there[1:]:
            if (its.format, its.width, its.height) != (kind.format, kind.width, kind.height):
                raise UsageError(f"channel {other!r} has {its!r}, and {name!r} has {kind!r}: convert or scale before gpufdsink")
        if not self._kind or not self._whole or (self._kind.format, self._kind.width, self._kind.height) != (kind.format, kind.width, kind.height):
            self._kind, self._whole = kind, _stacked(kind, len(pictures))
            if not self.get_static_pad("src").peer_query_accept_caps(self._whole.caps):
                raise UsageError(f"a batch is {self._whole.text}, which the next element does not take")
            self.set_caps(self._whole.caps)
        return self._whole


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",")]


def _stacked(kind: Kind, n: int) -> Kind:
    """Return the kind of n pictures one below the other."""
    caps = kind.caps.copy()
    caps.set_value("height", kind.height * n)
    caps.set_value("framerate", Gst.Fraction(0, 1))
    whole = Kind(caps)
    if not kind.planes or any(high.rows != n * one.rows for high, one in zip(whole.planes, kind.planes)):
        raise UsageError(f"pictures in {kind!r} cannot be put one below the other: take another format, or an even height")
    return whole


def _add_metas(buffer: Any, number: int, name: str, picture: Picture) -> None:
    kind = picture.kind
    region = GstVideo.buffer_add_video_region_of_interest_meta(buffer, name, 0, number * kind.height, kind.width, kind.height)
    region.id = number
    about = Gst.Structure.new_empty("timestamp/x-gpufd")
    about.set_value("channel", name)
    for field, value in (("sequence", picture.sequence), ("pts", picture.pts)):
        about.set_value(field, GObject.Value(GObject.TYPE_UINT64, value))
    caps = Gst.Caps.new_empty()
    caps.append_structure(about)
    buffer.add_reference_timestamp_meta(caps, picture.time, picture.duration)


GObject.type_register(GpufdBatch)
