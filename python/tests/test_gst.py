"""GStreamer's elements, on the software driver: pictures and their caps from one pipeline to others."""

import os
import struct
import subprocess
import sys
import unittest

import common
import gpufd
from common import PATIENCE
from gpufd import channel
from gpufd.channel import Colour, Format, Plane
from gpufd.gst import PATH
from gst_pipelines import Pipelines, setUpModule, sha  # noqa: F401

RGB = "video/x-raw, format=(string)RGB, width=(int)8, height=(int)4, framerate=(fraction)0/1"


class Pictures(Pipelines):
    def test_formats(self):
        """Each frame has the bytes, caps and times that it had in the writer's pipeline, for several readers."""
        for form in ("I420,colorimetry=bt709", "NV12,colorimetry=1:3:5:1", "RGB,framerate=30000/1001", "YUY2,pixel-aspect-ratio=4/3", "GRAY16_LE", "A420",
                     "P010_10LE,interlace-mode=interleaved", "v210", "RGB16", "ARGB64_LE"):  # fmt: skip
            with self.subTest(form):
                source = f"videotestsrc num-buffers=7 pattern=ball ! video/x-raw,format={form},width=96,height=48"
                readers = [self.peer("gpufdsrc channel=cam") for _ in range(2)]
                writer = self.writer(f"{source} ! gpufdsink channel=cam wait-for-readers=2 slots=2")
                got = [self.lines(r) for r in readers]
                want = self.reference(source)
                self.assertEqual(len(want), 7)
                for one in got:
                    self.same(one, want)
                    self.assertEqual([(b["offset"], b["discont"]) for b in one], [(n + 1, n == 0) for n in range(7)])
                    self.assertFalse(any("layout" in b for b in one))
                self.ends(writer, 0)

    def test_running_time(self):
        """The first picture is due now, whatever the time was in the writer's pipeline."""
        with channel.Writer("cam", slots=4, slot_size=1 << 20) as w:
            reader = self.peer("gpufdsrc channel=cam")
            w.await_readers(1, PATIENCE)
            hours, sent = 5 * 3600 * 10**9, channel.now()
            for n in range(2):
                w.send(bytes(96), format=Format("U8", (4, 8, 3), pts=hours + n * 40_000_000), timeout=PATIENCE)
        first, second = self.lines(reader)
        self.assertEqual((first["pts"], second["pts"]), (hours, hours + 40_000_000))
        self.assertLess(sent, first["due"])
        self.assertLess(first["due"], channel.now())
        self.assertEqual(second["running"] - first["running"], 40_000_000)

    def test_do_timestamp(self):
        with channel.Writer("cam", slots=4, slot_size=1 << 20) as w:
            reader = self.peer("gpufdsrc channel=cam do-timestamp=true")
            w.await_readers(1, PATIENCE)
            w.send(bytes(96), format=Format("U8", (4, 8, 3), pts=1 << 60), timeout=PATIENCE)
        (only,) = self.lines(reader)
        self.assertEqual(only["pts"], only["running"])
        self.assertLess(only["pts"], PATIENCE * 10**9)

    def test_caps_change(self):
        """Larger pictures get another channel, smaller ones the same: nothing is lost on the way."""
        one, many = "video/x-raw,format=I420,width=32,height=16", "video/x-raw,format=I420,width=320,height=240"
        source = " ".join(f"videotestsrc num-buffers=3 ! {caps} ! c." for caps in (one, many, one, many)) + " concat name=c"
        want = self.reference(source)
        self.assertEqual(len({b["caps"] for b in want}), 2)
        for sink, lasts in (("", False), ("slot-size=200000", True)):
            with self.subTest(sink):
                reader = self.peer("gpufdsrc channel=cam")
                writer = self.writer(f"{source} ! gpufdsink channel=cam wait-for-readers=1 {sink}")
                got = self.lines(reader)
                self.same(got, want)
                self.assertEqual([b["discont"] for b in got], [n == 0 or n == 3 and not lasts for n in range(12)])
                self.ends(writer, 0)

    def test_drop_oldest(self):
        """A picture that the writer overwrites while it is read is none."""
        source = "videotestsrc num-buffers=200 ! video/x-raw,format=I420,width=320,height=240"
        reader = self.peer("gpufdsrc channel=cam policy=drop-oldest")
        writer = self.writer(f"{source} ! gpufdsink channel=cam wait-for-readers=1 slots=2")
        got = self.lines(reader)
        self.ends(writer, 0)
        want = {b["pts"]: b["sha"] for b in self.reference(source)}
        self.assertTrue(got)
        self.assertEqual([want[b["pts"]] for b in got], [b["sha"] for b in got])
        for one, next in zip(got, got[1:]):
            self.assertEqual(next["discont"], next["offset"] > one["offset"] + 1)

    def test_latest(self):
        """A slow pipeline goes on with the newest picture."""
        with channel.Writer("cam", slots=4, slot_size=96) as w:
            reader = self.peer("gpufdsrc channel=cam policy=latest", "--step")
            w.await_readers(1, PATIENCE)
            send = lambda n: w.send(bytes([n]) * 96, format=Format("U8", (4, 8, 3), pts=n), timeout=PATIENCE)
            send(1)
            got = [self.line(reader)]
            for n in range(2, 9):
                send(n)
            self.goes_on(reader)
            got.append(self.line(reader))
            self.goes_on(reader)
        self.assertEqual([(b["pts"], b["sha"], b["offset"], b["discont"]) for b in got],
                         [(1, sha(b"\1" * 96), 1, True), (8, sha(b"\x08" * 96), 8, True)])  # fmt: skip
        self.assertEqual(self.line(reader), {"eos": True})


class OtherPrograms(Pipelines):
    """The other side knows nothing of GStreamer."""

    def test_reader(self):
        """A program gets the picture alone, with its shape, planes, colours and times."""
        numpy = common.need_numpy()
        for caps, shape, planes in (
            ("RGB", (6, 8, 3), None), ("BGRx", (6, 8, 4), None), ("GRAY8", (6, 8), None), ("I420", (6, 8), [(6, 8), (3, 4), (3, 4)]),
            ("NV12", (6, 8), [(6, 8), (3, 4, 2)]), ("P010_10LE", (6, 8), [(6, 8), (3, 4, 2)]), ("YUY2", (6, 16), None),
        ):  # fmt: skip
            with self.subTest(caps):
                source = f"videotestsrc num-buffers=2 ! video/x-raw,format={caps},width=8,height=6,framerate=25/1,colorimetry=bt709"
                want = self.reference(source)
                with self.reader_of(source) as r:
                    got = []
                    for frame in r.frames(PATIENCE):
                        f = frame.format
                        got.append((sha(frame.tobytes()), frame.size, frame.pts))
                        self.assertEqual((f.shape, f.time_base, f.colour if planes else None, f.captured), (shape, None, Colour(1, 1, 1) if planes else None, None))
                        arrays = [numpy.asarray(a) for a in (frame.planes if planes else [frame.array()])]
                        self.assertEqual([a.shape for a in arrays], planes or [shape])
                        self.assertEqual(sha(b"".join(a.tobytes() for a in arrays)), got[-1][0])
                        self.assertEqual(f.pixels, {"NV12": "NV12", "P010_10LE": "P010"}.get(caps, ""))
                        del arrays
                self.assertEqual(got, [(b["sha"], b["size"], b["pts"]) for b in want])

    def reader_of(self, source):
        """A reader of what a pipeline writes, which ends before the test does."""
        writer = self.writer(f"{source} ! gpufdsink channel=cam wait-for-readers=1")
        self.addCleanup(self.ends, writer, 0)
        return channel.Reader("cam", wait=PATIENCE)

    def test_captured(self):
        """A live picture says when it was captured, by the clock of all processes."""
        begin = channel.now()
        with self.reader_of("videotestsrc is-live=true num-buffers=3 ! video/x-raw,format=GRAY8,width=8,height=6") as r:
            times = [(frame.format.captured, frame.time) for frame in r.frames(PATIENCE)]
        for captured, published in times:
            self.assertLess(begin, captured)
            self.assertLessEqual(captured, published)
        self.assertLess(abs(times[1][0] - times[0][0] - 33_333_333), 10)

    def test_writer(self):
        """A program's frames have caps by their format."""
        nv12 = Format.picture("NV12", 8, 4, colour=Colour(1, 1, 1, True), pts=3, time_base=(1, 25))
        for form, size, caps, pts in (
            (Format("U8", (4, 8, 3)), 96, "format=(string)RGB, width=(int)8, height=(int)4, framerate=(fraction)0/1", None),
            (Format("U8", (4, 8, 4), pts=7), 128, "format=(string)RGBA", 7), (Format("U8", (4, 8)), 32, "format=(string)GRAY8", None),
            (Format("U16", (4, 8)), 64, "format=(string)GRAY16_LE", None), (nv12, 48, "format=(string)NV12", 120_000_000),
        ):  # fmt: skip
            with self.subTest(caps), channel.Writer("cam", slots=2, slot_size=1 << 12) as w:
                reader = self.peer("gpufdsrc channel=cam")
                w.await_readers(1, PATIENCE)
                data = os.urandom(size)
                w.send(data, format=form, timeout=PATIENCE)
                w.send(data, format=form, timeout=PATIENCE)
                w.close()
                got = self.lines(reader)
                self.assertEqual([b["sha"] for b in got], [sha(data)] * 2)
                self.assertIn(caps, got[0]["caps"])
                if pts:
                    self.assertEqual([b["pts"] for b in got], [pts] * 2)
                if form is nv12:
                    self.assertIn("colorimetry=(string)1:3:5:1", got[0]["caps"])

    def test_rows_of_other_lengths(self):
        """Rows that are longer than the caps say come as they are to an element that takes them, and else without what is between them."""
        form = Format.picture("NV12", 8, 4, pitch=32, chroma=256)
        data = os.urandom(256 + 32 + 8)
        dense = b"".join(data[n : n + 8] for n in (0, 32, 64, 96, 256, 288))
        with channel.Writer("cam", slots=2, slot_size=1 << 12) as w:
            reader, passes = self.peer("gpufdsrc channel=cam"), self.writer("gpufdsrc channel=cam ! gpufdsink channel=on wait-for-readers=1")
            w.await_readers(2, PATIENCE)
            w.send(data, format=form, timeout=PATIENCE)
            with channel.Reader("on", wait=PATIENCE) as r, r.next(PATIENCE) as frame:
                self.assertEqual((frame.tobytes(), frame.format.planes, frame.format.pixels), (data, form.planes, "NV12"))
        (got,) = self.lines(reader)
        self.assertEqual((got["sha"], got["size"]), (sha(dense), 48))
        self.ends(passes, 0)

    def test_rows_of_a_decoder(self):
        """gpufdsink takes pictures with rows of any length, and says so."""
        text = """
import gi
gi.require_version("Gst", "1.0"); gi.require_version("GstVideo", "1.0")
from gi.repository import Gst, GstVideo
Gst.init(None)
p = Gst.parse_launch("appsrc name=a format=time caps=video/x-raw,format=NV12,width=8,height=4,framerate=25/1 ! gpufdsink channel=cam wait-for-readers=2")
b = Gst.Buffer.new_wrapped(bytes(range(160)))
b.pts, b.dts, b.duration = 5, 3, 7
GstVideo.buffer_add_video_meta_full(b, 0, GstVideo.VideoFormat.NV12, 8, 4, 2, [0, 100, 0, 0], [20, 30, 0, 0])
p.get_by_name("a").emit("push-buffer", b)
p.get_by_name("a").emit("end-of-stream")
p.set_state(Gst.State.PLAYING)
print(p.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, Gst.MessageType.EOS | Gst.MessageType.ERROR).type)
p.set_state(Gst.State.NULL)
"""
        reader = self.peer("gpufdsrc channel=cam")
        writer = self.python(text)
        with channel.Reader("cam", wait=PATIENCE) as r, r.next(PATIENCE) as frame:
            self.assertEqual(frame.format.planes, (Plane(0, 20, 4, 8), Plane(100, 30, 2, 4, 2)))
            self.assertEqual((frame.tobytes(), frame.pts), (bytes(range(160)), 5))
        (got,) = self.lines(reader)
        self.assertEqual(got["sha"], sha(b"".join(bytes(range(n, n + 8)) for n in (0, 20, 40, 60, 100, 130))))
        self.assertEqual((got["pts"], got["dts"], got["duration"]), (5, 3, 7))
        self.ends(writer, 0, "EOS")

    def test_frames_that_are_no_pictures(self):
        """The pipeline ends with an error that says so. No frame makes an element read beyond its end."""
        note = lambda size, mark=b"GST1": struct.pack("<4sIQQ", mark, size, 1, 2)
        huge = RGB.replace("=(int)8", "=(int)8000")
        for data, how, says in (
            (bytes(96), {}, "frame 1 of channel 'cam' is of no format, and no picture for GStreamer"),
            (bytes(96), {"format": Format("F32", (24,))}, r"is F32\[24\]"),
            (bytes(96), {"format": Format("U8", (3, 4, 8))}, r"is U8\[3, 4, 8\]"),
            (bytes(12), {"user": note(0)}, "no caps|caps of no raw picture"),
            (bytes(12) + b"video/x-raw", {"user": note(11), "size": 12}, "caps of no raw picture: video/x-raw"),
            (bytes(96) + RGB.replace("raw", "raw(memory:CUDAMemory)").encode(), {"user": note(len(RGB) + 19), "size": 96}, "caps of no raw picture: .*CUDAMemory"),
            (bytes(12) + b"\xff\xfe\x00{}", {"user": note(5), "size": 12}, "no caps|caps of no raw picture"),
            (bytes(12) + huge.encode(), {"user": note(len(huge)), "size": 12}, r"a frame of 12 bytes .* is no RGB of 8000 x 4"),
            (bytes(95) + RGB.encode(), {"user": note(len(RGB)), "size": 95}, "a frame of 95 bytes"),
            (bytes(96) + RGB.encode(), {"user": note(1 << 31), "size": 96, "format": Format("U8", (4, 8, 3), strides=(1 << 40, 3, 1))}, None),
            (bytes(96) + RGB.encode(), {"user": note(len(RGB)), "size": 96, "format": Format("U8", (2, 8, 3), strides=(48, 3, 1))}, "a frame of 96 bytes with planes at"),
            (bytes(96) + RGB.encode(), {"user": note(len(RGB)), "size": 96, "format": Format("U8", (4, 8), planes=(Plane(0, 8, 1, 8),) * 2)}, "with planes at"),
        ):  # fmt: skip
            with self.subTest(how), channel.Writer("cam", slots=2, slot_size=1 << 12) as w:
                reader = self.peer("gpufdsrc channel=cam")
                w.await_readers(1, PATIENCE)
                slot = w.acquire(PATIENCE)
                slot.write(data)
                if says is None:
                    with self.assertRaises(gpufd.UsageError):
                        w.publish(slot, **how)
                    continue
                w.publish(slot, **{"size": len(data), **how})
                self.assertRegex(self.line(reader)["error"], says)
                self.assertEqual(reader.wait(PATIENCE), 0)


class Wrong(Pipelines):
    def test_names_and_properties(self):
        both = self.path, os.path.join(self.dir, "missing", "s")
        with channel.Writer("cam", slots=3, slot_size=96) as w, channel.Reader("cam", policy="latest"):
            w.await_readers(1, PATIENCE)
            for description, says in (
                ("gpufdsrc ! fakesink", "no channel is named: set the property channel"),
                ("videotestsrc ! gpufdsink", "no channel is named: set the property channel"),
                ("gpufdsrc channel=nobody timeout=0.1 ! fakesink", "no writer of channel 'nobody' came within 0.1 s: nobody offers 'nobody' at"),
                ("gpufdsrc channel=cam policy=newest ! fakesink", "policy 'newest': want block, drop-oldest, drop-newest, latest"),
                ("gpufdsrc channel=cam policy=latest ! fakesink", "admits 1 reader of policy latest"),
                (f"videotestsrc ! gpufdsink channel=cam socket={both[1]}", "there is no such directory; make it first"),
                ("videotestsrc ! gpufdsink channel=cam", "another"),
                ("videotestsrc ! gpufdsink channel=cam slot=3", 'no property "slot" in element "gpufdsink"'),
                ("videotestsrc ! gpufdsink channel=other device=999", "device 999"),
                ("audiotestsrc ! gpufdsink channel=cam", "could not link"),
                ("fakesrc sizetype=fixed num-buffers=1 ! gpufdsink channel=other", "a buffer came without caps: put a parser"),
                ("gpufdbatch ! fakesink", "want names that differ, such as channels=left,right"),
                ("gpufdbatch channels=a,a ! fakesink", "want names that differ"),
                ("gpufdbatch channels=a,b sockets=/a ! fakesink", "a socket for each or none"),
                ("gpufdbatch channels=cam ! fakesink", "admits 1 reader of policy latest"),
            ):  # fmt: skip
                with self.subTest(description):
                    p = self.writer(description)
                    self.assertIn(says, p.communicate(timeout=PATIENCE)[0])
                    self.assertNotEqual(p.returncode, 0)

    def test_caps_that_the_next_element_does_not_take(self):
        self.writer("videotestsrc ! video/x-raw,format=I420 ! gpufdsink channel=cam")
        self.ends(self.writer("gpufdsrc channel=cam ! video/x-raw,format=RGB ! fakesink"), 1, "which the next element does not take: put videoconvert")

    def test_path(self):
        said = subprocess.run([sys.executable, "-B", "-m", "gpufd.gst"], capture_output=True, text=True, check=True, timeout=PATIENCE)
        self.assertEqual(said.stdout, PATH + "\n")


if __name__ == "__main__":
    unittest.main()
