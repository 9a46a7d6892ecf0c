"""GStreamer's elements, on the software driver: processes that end, are killed or pause; and batches of several channels."""

import os
import signal
import unittest

import common
from common import PATIENCE
from gpufd import channel
from gpufd.channel import Format
from gst_pipelines import Pipelines, setUpModule, sha  # noqa: F401


class Ends(Pipelines):
    def send(self, w, pts):
        w.send(bytes(96), format=Format("U8", (4, 8, 3)), pts=pts, timeout=PATIENCE)

    SOURCE = "videotestsrc num-buffers=5 ! video/x-raw,format=GRAY8,width=8,height=4"

    def test_writer_killed(self):
        """A reader goes on with the next writer, and ends with the stream of that."""
        reader = self.peer("gpufdsrc channel=cam")
        first = self.launch("videotestsrc is-live=true pattern=white ! video/x-raw,format=GRAY8,width=8,height=4 ! gpufdsink channel=cam")
        self.assertEqual(self.line(reader)["discont"], True)
        self.line(reader)
        first.kill()
        first.wait()
        writer = self.launch(f"{self.SOURCE} ! gpufdsink channel=cam wait-for-readers=1")
        want, got = self.reference(self.SOURCE), self.lines(reader)
        self.same(got[-5:], want)
        self.assertEqual([b["discont"] for b in got[-5:]], [True, False, False, False, False])
        self.assertFalse(any(b["discont"] for b in got[:-5]))
        self.ends(writer, 0)

    def test_writer_stopped(self):
        """Ctrl-C is no end of the stream: the reader waits for the next writer."""
        reader = self.peer("gpufdsrc channel=cam")
        first = self.launch("videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=8,height=4 ! gpufdsink channel=cam")
        self.line(reader)
        first.send_signal(signal.SIGINT)
        self.ends(first, 0)
        writer = self.launch(f"{self.SOURCE} ! gpufdsink channel=cam wait-for-readers=1")
        self.same(self.lines(reader)[-5:], self.reference(self.SOURCE))
        self.ends(writer, 0)

    def test_reader_killed(self):
        """The writer and the other reader go on: nothing is lost."""
        readers = [self.peer("gpufdsrc channel=cam"), self.peer("gpufdsrc channel=cam", "--step")]
        source = self.SOURCE.replace("=5", "=50")
        writer = self.launch(f"{source} ! gpufdsink channel=cam wait-for-readers=2 slots=3")
        self.line(readers[1])
        readers[1].kill()
        self.same(self.lines(readers[0]), self.reference(source))
        self.ends(writer, 0)

    def test_reader_gone_while_the_writer_ends(self):
        """The channel ends for all others."""
        text = """
import gi, os
gi.require_version("Gst", "1.0")
from gi.repository import Gst
from gpufd.share.lease import Lease
def gone(*args):
    raise gpufd.LostError("the consumer is gone")
Lease.notify = gone
Gst.init(None)
p = Gst.parse_launch(sys.argv[1])
p.set_state(Gst.State.PLAYING)
print("plays", flush=True)
sys.stdin.readline()
p.set_state(Gst.State.NULL)
print(os.path.exists(sys.argv[2]))
"""
        socket = os.path.join(self.dir, "socket")
        live = self.SOURCE.replace("num-buffers=5", "is-live=true")
        writer = self.python(text, f"{live} ! gpufdsink channel=cam socket={socket}", socket, waits_for="plays")
        self.line(self.peer(f"gpufdsrc channel=cam socket={socket}"))
        self.goes_on(writer)
        self.ends(writer, 0, "False")

    def test_reader_dropped(self):
        """A reader that stands still keeps the pipeline waiting no longer than drop-after, and joins the writer again when it goes on."""
        reader = self.peer("gpufdsrc channel=cam", "--step")
        writer = self.launch("videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=8,height=4 ! gpufdsink channel=cam wait-for-readers=1 slots=2 drop-after=0.1")
        first = self.line(reader)
        other = self.peer("gpufdsrc channel=cam")
        for _ in range(5):
            self.line(other)
        for _ in range(3):  # of which it may have had the next one or two
            self.goes_on(reader)
            last = self.line(reader)
        self.assertGreater(last["offset"], first["offset"] + 3)
        writer.send_signal(signal.SIGINT)
        self.ends(writer, 0)

    def test_ctrl_c(self):
        """A pipeline ends, whatever it waits for."""
        socket = os.path.join(self.dir, "gpufd", "offers", "cam.sock")
        for description, says in (("gpufdsrc channel=nobody ! fakesink", "New clock"), ("gpufdbatch channels=nobody,else ! fakesink", "New clock"),
                                  (f"{self.SOURCE} ! gpufdsink channel=cam wait-for-readers=1", "PREROLLED")):  # fmt: skip
            with self.subTest(description):
                p = self.run_program(["gst-launch-1.0", *description.split()], waits_for=says)
                if "sink channel" in description:
                    common.wait_for(lambda: os.path.exists(socket), "the channel")
                p.send_signal(signal.SIGINT)
                self.ends(p, 0, "Interrupt")

    def test_writer_kept_waiting(self):
        """A writer that a stopped reader keeps waiting ends on Ctrl-C, too."""
        reader = self.peer("gpufdsrc channel=cam", "--step")
        writer = self.launch("videotestsrc ! video/x-raw,format=GRAY8,width=8,height=4 ! gpufdsink channel=cam wait-for-readers=1 slots=2")
        self.line(reader)
        reader.send_signal(signal.SIGSTOP)
        writer.send_signal(signal.SIGINT)
        self.ends(writer, 0, "Interrupt")

    def test_pause(self):
        """Elements that wait let the pipeline pause, and go on with it: nothing is lost."""
        text = """
import gi, sys
gi.require_version("Gst", "1.0")
from gi.repository import Gst
Gst.init(None)
p = Gst.parse_launch(sys.argv[1])
for state in (Gst.State.PLAYING, Gst.State.PAUSED, Gst.State.PLAYING, Gst.State.PAUSED):
    p.set_state(state)
    p.get_state(Gst.CLOCK_TIME_NONE)
print("paused", flush=True)
sys.stdin.readline()
p.set_state(Gst.State.PLAYING)
print(p.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, Gst.MessageType.EOS | Gst.MessageType.ERROR).type)
p.set_state(Gst.State.NULL)
"""
        copy = os.path.join(self.dir, "copy")
        writer = self.python(text, f"{self.SOURCE} ! gpufdsink channel=cam wait-for-readers=2", waits_for="paused")
        pausing = self.python(text, f"gpufdsrc channel=cam ! filesink location={copy} async=false", waits_for="paused")
        reader = self.peer("gpufdsrc channel=cam")
        for p in (writer, pausing):
            self.goes_on(p)
        want = self.reference(self.SOURCE)
        self.same(self.lines(reader), want)
        self.ends(writer, 0, "EOS")
        self.ends(pausing, 0, "EOS")
        with open(copy, "rb") as f:
            self.assertEqual([sha(f.read(32)) for _ in want], [b["sha"] for b in want])
            self.assertEqual(f.read(), b"")

    def test_pause_over_and_over(self):
        """A writer that waits for readers lets the pipeline change its state at any moment."""
        text = """
import gi, random, sys, time
gi.require_version("Gst", "1.0")
from gi.repository import Gst
Gst.init(None)
p = Gst.parse_launch(sys.argv[1])
for i in range(520):
    for state in (Gst.State.PLAYING, Gst.State.PAUSED):
        p.set_state(state)
        p.get_state(Gst.CLOCK_TIME_NONE)
        time.sleep(random.random() * 0.07 if i >= 500 else 0)
p.set_state(Gst.State.NULL)
print("null", flush=True)
"""
        self.ends(self.python(text, "videotestsrc ! video/x-raw,format=GRAY8,width=8,height=4 ! gpufdsink channel=cam wait-for-readers=1"), 0, "null")

    def test_one_pipeline(self):
        """A pipeline may write a channel and read it, if the sinks do not wait for one another."""
        self.ends(self.launch(f"{self.SOURCE} ! gpufdsink channel=cam async=false wait-for-readers=1 gpufdsrc channel=cam ! fakesink"), 0)

    def test_time_behind_a_pause(self):
        """Pictures that come behind a pause are due then, though the writer's time has gone on."""
        text = """
import gi, time
gi.require_version("Gst", "1.0")
from gi.repository import Gst
Gst.init(None)
p = Gst.parse_launch("gpufdsrc channel=cam ! appsink name=out sync=false async=false")
def due():
    sample = p.get_by_name("out").emit("pull-sample")
    due = p.get_base_time() + sample.get_segment().to_running_time(Gst.Format.TIME, sample.get_buffer().pts)
    return time.monotonic_ns() >= due
p.set_state(Gst.State.PLAYING)
first = due()
for state in (Gst.State.PAUSED, Gst.State.PLAYING):
    p.set_state(state)
    p.get_state(Gst.CLOCK_TIME_NONE)
print("plays again", flush=True)
print(first, due())
p.set_state(Gst.State.NULL)
"""
        with channel.Writer("cam", slots=4, slot_size=96) as w:
            reader = self.watched(self.python(text))
            w.await_readers(1, PATIENCE)
            self.send(w, 0)
            while "plays again" not in (line := reader.stdout.readline()):
                self.assertTrue(line)
            self.send(w, 3600 * 10**9)
            self.ends(reader, 0, "True True")


class Batch(Pipelines):
    def cameras(self, *names):
        writers = [channel.Writer(name, slots=4, slot_size=256) for name in names]
        for w in writers:
            self.addCleanup(w.close)
        return writers

    def send(self, w, n, form=Format("U8", (4, 8, 3))):
        w.send(bytes([n]) * (form.nbytes or 0), format=form, pts=1000 + n, timeout=PATIENCE)

    def until(self, p, true):
        """The first batch of which that is true."""
        while not true(batch := self.line(p)):
            self.assertIn("sha", batch)
        return batch

    def test_newest_of_each(self):
        left, right = self.cameras("left", "right")
        batch = self.peer("gpufdbatch channels=left,right timeout=1000000")
        for w in (left, right):
            w.await_readers(1, PATIENCE)
        begin = channel.now()
        self.send(left, 1)
        self.send(right, 101)
        got = self.line(batch)
        self.assertIn("format=(string)RGB, width=(int)8, height=(int)8, framerate=(fraction)0/1", got["caps"])
        self.assertEqual(got["sha"], sha(b"\1" * 96 + b"\x65" * 96))
        self.assertEqual([(r["name"], r["at"], r["sequence"], r["pts"]) for r in got["regions"]], [("left", [0, 0, 8, 4], 1, 1001), ("right", [0, 4, 8, 4], 1, 1101)])
        self.assertTrue(all(begin < r["time"] < channel.now() for r in got["regions"]))
        for n in range(2, 6):
            self.send(left, n)
        self.send(right, 102)
        got = self.line(batch)
        self.assertEqual(got["regions"][1]["sequence"], 2)
        self.send(right, 103)
        if got["regions"][0]["sequence"] < 5:  # the batch was made before the last one was taken
            got = self.line(batch)
        else:
            self.send(left, 6)
            got = self.line(batch)
        n, m = (r["sequence"] for r in got["regions"])
        self.assertEqual((n >= 5, m, got["sha"]), (True, 3, sha(bytes([n]) * 96 + b"\x67" * 96)))
        left.close()
        right.close()
        self.assertEqual(self.line(batch), {"eos": True})

    def test_camera_that_is_slow_or_gone(self):
        """A slow one's picture comes again; that of a killed one does not, until there is another writer."""
        (left,) = self.cameras("left")
        batch = self.peer("gpufdbatch channels=left,right timeout=1")
        text = """
from gpufd import channel
w = channel.Writer("right", slots=4, slot_size=96)
w.await_readers(1)
w.send(bytes([200]) * 96, format=channel.Format("U8", (4, 8, 3)), timeout=60)
print("sent", flush=True)
sys.stdin.readline()
"""
        right = self.python(text, waits_for="sent")
        left.await_readers(1, PATIENCE)
        both = lambda b: len(b["regions"]) == 2
        self.until(batch, lambda b: [r["id"] for r in b["regions"]] == [1])
        for n in range(1, 4):
            self.send(left, n)
            got = self.line(batch)
            self.assertEqual([(r["name"], r["sequence"]) for r in got["regions"]], [("left", n), ("right", 1)])
            self.assertEqual(got["sha"], sha(bytes([n]) * 96 + b"\xc8" * 96))
        right.kill()
        right.wait()
        n = 4
        while True:
            self.send(left, n)
            got = self.until(batch, lambda b: b["regions"][0]["sequence"] == n)
            if not both(got):
                break
            n += 1
        self.assertEqual((got["sha"], [r["id"] for r in got["regions"]]), (sha(bytes([n]) * 96 + bytes(96)), [0]))
        self.python(text, waits_for="sent")
        self.until(batch, lambda b: any(r["id"] == 1 for r in b["regions"]))

    def test_planes(self):
        """Each plane of a batch has those of all pictures, one below the other."""
        form = Format.picture("NV12", 8, 4, pitch=16)
        one, two = os.urandom(form.nbytes), os.urandom(form.nbytes)
        w = [channel.Writer(name, slots=4, slot_size=96) for name in ("a", "b")]
        for each in w:
            self.addCleanup(each.close)
        batch = self.peer("gpufdbatch channels=a,b timeout=1000000")
        for each in w:
            each.await_readers(1, PATIENCE)
        for each, data in zip(w, (one, two)):
            each.send(data, format=form, timeout=PATIENCE)
        row = lambda data, n: data[16 * n : 16 * n + 8]
        want = b"".join(row(d, n) for rows in (range(4), range(4, 6)) for d in (one, two) for n in rows)
        got = self.line(batch)
        self.assertEqual(got["sha"], sha(want))
        self.assertIn("format=(string)NV12, width=(int)8, height=(int)8", got["caps"])

    def test_pictures_that_differ(self):
        for form, says in ((Format("U8", (4, 8, 4)), "channel 'right' has RGBA of 8 x 4, and 'left' has RGB of 8 x 4"), (Format("U8", (2, 8, 3)), "RGB of 8 x 2")):
            with self.subTest(says):
                left, right = self.cameras("left", "right")
                batch = self.peer("gpufdbatch channels=left,right timeout=1000000")
                for w in (left, right):
                    w.await_readers(1, PATIENCE)
                self.send(left, 1)
                w.send(bytes(form.nbytes), format=form, timeout=PATIENCE)
                self.assertIn(says, self.line(batch)["error"])
                self.assertEqual(batch.wait(PATIENCE), 0)
                left.close()
                right.close()

    def test_pipelines(self):
        """Three cameras of GStreamer: sockets of their own, and the times at which they captured."""
        sockets, begin = [os.path.join(self.dir, f"{n}.sock") for n in "abc"], channel.now()
        for n, path in zip("abc", sockets):
            self.launch(f"videotestsrc is-live=true ! video/x-raw,format=I420,width=32,height=16 ! gpufdsink channel={n} socket={path}")
        batch = self.peer(f'gpufdbatch channels="a, b, c" sockets={",".join(sockets)} ! videoconvert ! video/x-raw,format=RGB')
        got = self.until(batch, lambda b: len(b["regions"]) == 3)
        self.assertIn("width=(int)32, height=(int)48", got["caps"])
        times = [r["time"] for r in got["regions"]]
        self.assertTrue(begin < min(times) <= max(times) < channel.now(), times)


if __name__ == "__main__":
    unittest.main()
