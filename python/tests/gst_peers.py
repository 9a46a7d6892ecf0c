"""Run a pipeline, and say a line of JSON for each buffer that comes out of it, and one for its end.

    python3 gst_peers.py [--step] DESCRIPTION
    python3 gst_peers.py --whole DESCRIPTION

With --step it waits for a line before it goes on behind a buffer. With --whole it says the end alone.
"""

import hashlib
import json
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstVideo", "1.0")
from gi.repository import GLib, Gst, GstVideo

Gst.init(None)


def regions(buffer, n=4):
    """The regions of interest that gpufdbatch makes."""
    found = []
    for r in filter(None, (GstVideo.buffer_get_video_region_of_interest_meta_id(buffer, i) for i in range(n))):
        name = GLib.quark_to_string(r.roi_type)
        times = buffer.get_reference_timestamp_meta(Gst.Caps.from_string(f"timestamp/x-gpufd, channel=(string){name}"))
        frame = times.reference.get_structure(0)
        found.append({"id": r.id, "name": name, "at": [r.x, r.y, r.w, r.h], "time": times.timestamp, **{k: frame.get_value(k) for k in ("sequence", "pts")}})
    return found


def told(pad, buffer, base, batch):
    """What is said of a buffer. Times that are not there are null; due is by CLOCK_MONOTONIC."""
    data = buffer.extract_dup(0, buffer.get_size())
    meta = GstVideo.buffer_get_video_meta(buffer)
    none = Gst.CLOCK_TIME_NONE
    said = {"sha": hashlib.sha256(data).hexdigest(), "size": len(data), "caps": pad.get_current_caps().to_string(), "offset": buffer.offset,
            "discont": bool(buffer.get_flags() & Gst.BufferFlags.DISCONT)}  # fmt: skip
    said.update({k: None if getattr(buffer, k) == none else getattr(buffer, k) for k in ("pts", "dts", "duration")})
    segment = pad.get_sticky_event(Gst.EventType.SEGMENT, 0).parse_segment()
    said["running"] = segment.to_running_time(Gst.Format.TIME, buffer.pts) if said["pts"] is not None else None
    said["due"] = None if said["running"] is None else base + said["running"]
    if meta:
        said["layout"] = [list(meta.offset[: meta.n_planes]), list(meta.stride[: meta.n_planes])]
    if batch:
        said["regions"] = regions(buffer)
    return said


def main():
    *flags, description = sys.argv[1:]
    whole = "--whole" in flags
    pipeline = Gst.parse_launch(description if whole else f"{description} ! fakesink name=out sync=false signal-handoffs=true")
    sink = pipeline.get_by_name("out")

    def came(_, buffer, *__):
        print(json.dumps(told(sink.get_static_pad("sink"), buffer, pipeline.get_base_time(), "gpufdbatch" in description)), flush=True)
        if "--step" in flags:
            sys.stdin.readline()

    if not whole:
        sink.connect("handoff", came)
    pipeline.set_state(Gst.State.PLAYING)
    message = pipeline.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, Gst.MessageType.EOS | Gst.MessageType.ERROR)
    print(json.dumps({"error": message.parse_error()[0].message} if message.type == Gst.MessageType.ERROR else {"eos": True}), flush=True)
    pipeline.set_state(Gst.State.NULL)
    if whole and message.type == Gst.MessageType.ERROR:
        sys.exit(1)


if __name__ == "__main__":
    main()
