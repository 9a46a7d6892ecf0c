"""The element gpufdsink: gives pictures to all readers of a channel."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..channel import Slot, Writer
from ..errors import Error, TimedOutError, UsageError
from ..share.server import Server
from ..wire.sockets import make_offer_socket
from .element import LOOK, named, number, pad, post, seconds, text
from .libraries import GObject, Gst, GstBase, GstVideo
from .picture import NONE, Kind, Note
from .preroll import unlocked
from .taking import NEXT

_TURN = 0.001  # seconds for another thread to take the lock of render
_MORE_CAPS = 1024  # bytes of a slot for caps that change


class _Stopped(Exception):
    """The pipeline stops, or flushes."""

    def __init__(self, flow: Any) -> None:
        super().__init__(flow)
        self.flow = flow


class GpufdSink(GstBase.BaseSink):  # type: ignore[misc]
    """Writes each buffer to a slot of a channel. Its caps and times go with it."""

    __gtype_name__ = "GpufdSink"
    __gstmetadata__ = ("gpufd sink", "Sink/Video", "Passes pictures to other processes through GPU memory", "gpufd")
    __gsttemplates__ = pad("sink", Gst.PadDirection.SINK)

    channel = text("Name of the channel")
    socket = text("Path of the socket to listen at; by default readers find it by the channel's name")
    slots = number("Pictures that the channel holds; each reader of policy latest takes one", 8, 1, 4096)
    slot_size = number("Bytes of a slot: the largest picture and 1 KiB for its caps; 0 for those of the first picture", 0, 0, (1 << 31) - 1)
    wait_for_readers = number("Readers to wait for before the first picture", 0, 0, 64)
    drop_after = seconds("Seconds that a reader which blocks may keep the pipeline waiting, before it is dropped; 0 for no bound")
    device = number("Ordinal of the GPU whose memory the channel is in", 0, 0, 1023)

    def __init__(self) -> None:
        super().__init__()
        self.set_sync(False)  # readers have clocks of their own
        self._unlocked = threading.Event()
        self._server: Server | None = None
        self._writer: Writer | None = None
        self._kind: Kind | None = None
        self._live = False
        self._awaits = 0  # readers to wait for

    # States.

    def do_start(self) -> bool:
        try:
            named(self.channel)
        except UsageError as e:
            post(self, e)
            return False
        return True

    def do_stop(self) -> bool:
        server, self._server = self._server, None
        try:
            with contextlib.ExitStack() as stack:
                if server:
                    stack.callback(server.close, timeout=1.0)
                self._end(goes_on=True)
        except Exception as e:
            post(self, e)
        return True

    def do_unlock(self) -> bool:
        self._unlocked.set()
        return True

    def do_unlock_stop(self) -> bool:
        self._unlocked.clear()
        return True

    def do_event(self, event: Any) -> bool:
        if event.type == Gst.EventType.EOS:
            try:
                self._end(goes_on=False)
            except Exception as e:
                post(self, e)
        return bool(GstBase.BaseSink.do_event(self, event))

    def do_propose_allocation(self, query: Any) -> bool:
        query.add_allocation_meta(GstVideo.video_meta_api_get_type(), None)  # rows may be longer
        return True

    def do_set_caps(self, caps: Any) -> bool:
        try:
            self._kind = Kind(caps)
        except UsageError as e:
            post(self, e)
            return False
        return True

    # Pictures.

    def do_render(self, buffer: Any) -> Any:
        try:
            with buffer.map(Gst.MapFlags.READ) as mapped:
                self._send(buffer, mapped.data)
        except _Stopped as e:
            return e.flow
        except Exception as e:
            post(self, e)
            return Gst.FlowReturn.ERROR
        return Gst.FlowReturn.OK

    def _send(self, buffer: Any, data: memoryview) -> None:
        if not self._kind:
            raise UsageError("a buffer came without caps: put a parser such as rawvideoparse before gpufdsink")
        kind, caps = self._kind, self._kind.text.encode()
        writer = self._writer_for(len(data) + len(caps))
        about = kind.described(kind.layout_in(buffer), len(data))
        about = replace(about, pts=None if buffer.pts == NONE else buffer.pts, captured=self._captured(buffer.pts))
        slot = self._waits(writer.acquire, LOOK + self.drop_after)  # or nobody would be dropped
        slot.write(data)
        slot.write(caps, len(data))
        writer.publish(slot, size=len(data), user=Note(len(caps), buffer.dts, buffer.duration).pack(), format=about)

    def _writer_for(self, size: int) -> Writer:
        """Return the channel, or another one if its slots are too small for so many bytes."""
        if self._writer and self._writer.slot_size < size:
            self._end(goes_on=True)
        if not self._writer:
            if not self._server:  # not earlier: readers would wait at the socket
                self._server = Server(self.socket or make_offer_socket(self.channel))
            room = max(self.slot_size, size if self.slot_size else size + _MORE_CAPS)
            self._writer = Writer(
                self.channel, socket=self._server, slots=self.slots, slot_size=room, device=self.device, stall=self.drop_after, drop=self.drop_after > 0
            )
            self._live, self._awaits = self._is_live(), self.wait_for_readers
        if self._awaits:  # a flush ends that, and the next picture waits again
            writer = self._writer
            self._waits(lambda timeout: writer.await_readers(self._awaits, timeout), LOOK)
            self._awaits = 0
        return self._writer

    def _waits(self, wait: Callable[[float], Any], step: float) -> Any:
        """Wait by a function that takes seconds, as long as the pipeline plays. It looks at that after each step."""
        while True:
            try:
                return wait(step)
            except TimedOutError:
                self._let_states_change()

    def _let_states_change(self) -> None:
        """Let other threads change the pipeline's state, and wait while it pauses."""
        with unlocked(self):
            time.sleep(_TURN)
        while self._unlocked.is_set() or self.need_preroll:  # it may pause again before wait_preroll returns
            flow = Gst.FlowReturn.FLUSHING if self.flushing else self.wait_preroll()
            if flow != Gst.FlowReturn.OK:
                raise _Stopped(flow)

    def _end(self, goes_on: bool) -> None:
        """End the channel: readers take what was written, and then look for another one if it goes on."""
        writer, self._writer = self._writer, None
        if not writer:
            return
        if goes_on:
            deadline = time.monotonic() + 1
            for lease in writer.server.leases(self.channel):
                with contextlib.suppress(Error):  # the reader is gone, or stands still
                    lease.notify(NEXT, max(0.0, deadline - time.monotonic()))
        writer.close()

    # Times.

    def _is_live(self) -> bool:
        query = Gst.Query.new_latency()
        return self.get_static_pad("sink").peer_query(query) and bool(query.parse_latency()[0])

    def _captured(self, pts: int) -> int | None:
        """Return when a live picture was captured, in nanoseconds of CLOCK_MONOTONIC, if that is the pipeline's clock."""
        clock = self.get_clock()
        if not self._live or pts == NONE or not isinstance(clock, Gst.SystemClock) or clock.props.clock_type != Gst.ClockType.MONOTONIC:
            return None
        running = self.segment.to_running_time(Gst.Format.TIME, pts)
        return None if running == NONE else int(self.get_base_time() + running)


GObject.type_register(GpufdSink)
