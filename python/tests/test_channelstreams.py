"""Channels by streams, against the stand-in for libcuda: two processes of this package, whose
streams a thread of the stand-in works off. What a GPU does is in gpu_channel.py."""

import contextlib
import ctypes
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE
from gpufd.channel import cursor as c
from gpufd.memory import libcuda as cu
from gpufd import channel
from gpufd.channel import joined as _joined
from gpufd.channel import writer as _writer
from gpufd.memory.cuda import context_of

HERE = pathlib.Path(__file__).resolve().parent
INSIDE = "GPUFD_TEST_CHILD"
N = 8192
ROOM = 1 << 20  # for what a stream copies


def frame(sequence):
    return bytes((sequence * 7 + i) % 251 for i in range(64)) * (N // 64)


class Stream:
    """A stream of the driver, as another library has it, and copies on it."""

    def __init__(self):
        self.lib, self.context, self.kept = cu.load(), context_of(0), []
        self.room, self.used = mmap.mmap(-1, ROOM), 0
        self.host = ctypes.addressof(ctypes.c_char.from_buffer(self.room))
        with self.lib.current(self.context):
            self.handle = self.lib.made("cuStreamCreate", 1)
            self.lib.call("cuMemHostRegister_v2", self.host, ROOM, 3)

    def __cuda_stream__(self):
        return 0, self.handle

    def upload(self, to, data):
        host = ctypes.create_string_buffer(data, len(data))
        self.kept.append(host)  # until the stream has copied it
        with self.lib.current(self.context):
            self.lib.call("cuMemcpyHtoDAsync_v2", to, host, len(data), self.handle)

    def download(self, at, n):
        """What the stream will have copied: it is copied to registered memory, for a call that
        copies to other memory returns when the stream has got there."""
        begin, self.used = self.used, self.used + n
        with self.lib.current(self.context):
            self.lib.call("cuMemcpyDtoHAsync_v2", self.host + begin, at, n, self.handle)
        return memoryview(self.room)[begin : self.used]

    def synchronize(self):
        with self.lib.current(self.context):
            self.lib.call("cuStreamSynchronize", self.handle)

    def close(self):
        with self.lib.current(self.context):
            self.lib.call("cuStreamDestroy_v2", self.handle)
            self.lib.call("cuMemHostUnregister", self.host)


def write(path, frames, slots, stays=""):
    """What a writing process does: queue all frames ahead, and stay there if it is to."""
    stream = Stream()
    w = channel.Writer("cam", socket=path, slots=slots, slot_size=N, streams=True)
    print("ready", flush=True)
    w.await_readers(1, PATIENCE)
    for i in range(1, frames + 1):
        slot = w.acquire_on(stream)
        stream.upload(slot.ptr, frame(i))
        w.publish_on(stream, slot, **({"user": b"frame %d" % i, "format": channel.Format("U8", (N // 64, 64), pts=i)} if i % 3 == 0 else {}))
    stream.synchronize()
    time.sleep(99 if stays else 0)
    w.close()
    stream.close()
    print("done", flush=True)


def run_with_stand_in(case, module, test):
    """Run the tests of a module, among which is that one, in a process where libcuda is the stand-in."""
    if not shutil.which("cc"):
        common.missing("cc", "there is no C compiler here")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", directory + "/libcuda.so.1", HERE / "fakecuda.c"], check=True)
        reader = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", directory + "/channel", common.ROOT / "examples/c/channel.c", "-ldl"]
        subprocess.run(reader, check=True)
        env = {**os.environ, INSIDE: "1", "LD_LIBRARY_PATH": directory, "GPUFD_DRIVER": "cuda"}
        p = subprocess.run([sys.executable, "-B", "-m", "unittest", "-v", module], cwd=HERE, env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=300)  # fmt: skip
    case.assertEqual(p.returncode, 0, p.stdout)
    case.assertIn(test, p.stdout)


class StandIn(unittest.TestCase):
    @unittest.skipIf(os.environ.get(INSIDE), "it is the other process")
    def test_streams_with_the_stand_in(self):
        run_with_stand_in(self, "test_channelstreams", "test_queued_ahead")


def tracker_of(side):
    return side._joined.tracker if isinstance(side, channel.Reader) else side._tracker


class Driver(common.Scene):
    """A scene with the stand-in and a stream, and a check that nothing of the driver is left."""

    @classmethod
    def setUpClass(cls):
        cls.fake = ctypes.CDLL("libcuda.so.1")
        cls.fake.fake_count.restype = ctypes.c_long

    def setUp(self):
        super().setUp()
        os.environ["GPUFD_DRIVER"] = "cuda"
        self.stream = Stream()

    def tearDown(self):
        self.stream.close()
        self.assertEqual((self.fake.fake_count(), self.fake.fake_depth()), (0, 0), "things of the driver are left")

    def until(self, done):
        """Wait until done says so."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            self.assertLess(time.monotonic(), deadline, "it takes too long")
            time.sleep(0.001)


@unittest.skipUnless(os.environ.get(INSIDE), "in the process with the stand-in")
class Streams(Driver):
    def writer_process(self, frames, slots=3, stays=""):
        text = "import test_channelstreams as t; t.write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
        return self.python(text, self.path, str(frames), str(slots), stays, waits_for="ready")

    def test_queued_ahead(self):
        """Both sides queue ahead of each other; every byte is what was written."""
        p = self.writer_process(60)
        with channel.Reader(socket=self.path) as r:
            got = []
            for i in range(60):
                f = r.next_on(self.stream)
                self.assertEqual((f.sequence, f.size), (i + 1, N))
                self.assertGreater(f.meta, 1 << 59)
                got.append((f, self.stream.download(f.ptr, N)))
                r.release_on(self.stream, f)
            self.stream.synchronize()
            for f, host in got:
                r.check(f)
                self.assertEqual(host, frame(f.sequence), f.sequence)
            self.ends(p, 0, "done")
            r.attachment.wait(PATIENCE)
            with common.raises(self, gpufd.ChannelError, "ended"):
                while True:
                    r.next_on(self.stream)  # the thread is about to know

    def test_host_reads_what_a_stream_writes(self):
        p = self.writer_process(30)
        with channel.Reader(socket=self.path) as r:
            for i, f in enumerate(r.frames(PATIENCE)):
                self.assertEqual(f.tobytes(), frame(i + 1))
                self.assertEqual(f.user, b"frame %d" % (i + 1) if i % 3 == 2 else b"")
                self.assertEqual((bool(f.time), f.pts), (i % 3 == 2, i + 1 if i % 3 == 2 else None))
            self.assertEqual(r.stats.received, 30)
        self.ends(p, 0, "done")

    def test_sent_by_a_stream(self):
        """A stream copies an array of the GPU; its readers know what it is once it has got there."""
        data = frame(3)
        with contextlib.closing(Stream()) as other, gpufd.allocate(N) as memory, channel.Writer("cam", socket=self.path, slots=3, slot_size=N, streams=True) as w:
            memory.write(0, data)
            memory.finish()
            with channel.Reader(socket=self.path) as r:
                f = r.next_on(other)
                self.assertIsNone(f.format)
                self.assertRaisesRegex(gpufd.UsageError, "yet: the writer's stream has not published it", f.array)
                array = memory.view("F32", (N // 16, 4))
                self.assertEqual(w.send(array, pts=8, time_base=(1, 25), user=b"own", stream=self.stream), 1)
                self.stream.synchronize()
                entry, got = other.download(f.meta, channel.ENTRY_SIZE), other.download(f.ptr, N)
                r.release_on(other, f)
                other.synchronize()
                want = channel.Format("F32", (N // 16, 4), pts=8, time_base=(1, 25))
                self.assertEqual((f.format, channel.decode_entry(entry).format, got), (want, want, data))
                self.assertEqual(f.array().shape, (N // 16, 4))
                self.assertEqual(w.send(array, timeout=PATIENCE), 2)  # by the host
                with r.next(PATIENCE) as g:
                    self.assertEqual((g.format, g.tobytes()), (channel.Format("F32", (N // 16, 4)), data))
                for wrong in (data, memory.view("U8", (N,)).tobytes()):
                    self.assertRaisesRegex(gpufd.UsageError, "a stream takes frames from memory of a GPU", w.send, wrong, stream=self.stream)
                self.assertRaisesRegex(gpufd.UsageError, "strides are for", w.send, array, format=channel.Format(strides=(8, 1), shape=(N // 16, 4)), stream=self.stream)
                w.close()
            del array
        self.assertEqual(w.last, 2)

    def test_writer_killed(self):
        """A stream that waits for a dead writer's frame goes on, and the frame is not good."""
        p = self.writer_process(2, slots=4, stays="it does")
        with channel.Reader(socket=self.path) as r:
            frames = [r.next_on(self.stream) for _ in range(4)]
            self.until(lambda: r._joined.words.load(0x080) >= 2)
            p.kill()
            self.stream.synchronize()
            self.until(lambda: r.done)
            r.check(frames[0])
            r.check(frames[1])
            for f in frames[2:]:
                with common.raises(self, gpufd.LostError, "lost") as e:
                    r.check(f)
            self.assertEqual(e.exception.last, 2)

    def test_what_was_whole_can_be_taken(self):
        """A stream that comes when the writer has ended, or was killed, gets what was whole."""
        for stays, why in (("", (gpufd.ChannelError, "ended")), ("it does", (gpufd.LostError, "lost"))):
            with self.subTest(stays=stays):
                p = self.writer_process(3, slots=4, stays=stays)
                with channel.Reader(socket=self.path) as r:
                    self.until(lambda: r._joined.words.load(c.PUBLISHED) >= 3)
                    if stays:
                        p.kill()
                    self.until(lambda: r.done)
                    for i in range(1, 4):
                        f = r.next_on(self.stream)
                        host = self.stream.download(f.ptr, N)
                        r.release_on(self.stream, f)
                        self.stream.synchronize()
                        r.check(f)
                        self.assertEqual(host, frame(i))
                    common.error_of(self, *why, r.next_on, self.stream)
                p.wait(PATIENCE)

    def test_writers_that_write_nonsense(self):
        """The stream goes on, whatever it is told; check and next_on do not, also when the writer is gone."""
        for published in (1, 7, 10**15, c.GIVEN):
            for killed in (False, True):
                with self.subTest(published=published, killed=killed):
                    p = self.writer_process(2, slots=4, stays="it does")
                    with channel.Reader(socket=self.path) as r:
                        f, _ = r.next_on(self.stream), r.next_on(self.stream)
                        self.stream.synchronize()
                        r.check(f)
                        r.release_on(self.stream, f)
                        self.stream.synchronize()
                        r._joined.words.store(c.PUBLISHED, published)
                        if killed:
                            p.kill()
                            self.until(lambda: r.done)
                            if published > 1:  # which only who has looked before knows
                                common.is_error(self, r.err, gpufd.ChannelError, "cursor")
                        with common.raises(self, gpufd.ChannelError, "cursor"):
                            r.check(f)
                        with common.raises(self, gpufd.ChannelError, "cursor"):
                            r.next_on(self.stream)
                    p.kill()
                    p.wait(PATIENCE)

    def test_a_reader_in_c_of_nonsense(self):
        program = [os.path.join(os.environ["LD_LIBRARY_PATH"], "channel"), "-socket", self.path, "-timeout", "60"]
        for order in ("stream", "host"):
            for published in (0, 50, 10**15):
                with self.subTest(order, published=published), channel.Writer("cam", socket=self.path, slots=4, slot_size=N, streams=True) as w:
                    r = subprocess.Popen([*program, "-order", order], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    self.addCleanup(lambda r=r: (r.kill(), r.wait(), r.stdout.close(), r.stderr.close()))
                    w.await_readers(1, PATIENCE)
                    w.send(frame(1))
                    self.assertEqual(r.stdout.read(N), frame(1))
                    w._readers.there[0].words.store(c.PUBLISHED, published)
                    out, err = r.communicate(timeout=PATIENCE)
                    self.assertEqual(r.returncode, 1, err)
                    self.assertIn(b"nonsense in a cursor", err)
                    self.assertLessEqual(len(out), 8 * N)

    def test_check_while_the_writer_is_lost(self):
        """The stream is freed before the reader knows why: check waits until it knows."""
        p = self.writer_process(1, slots=4, stays="it does")
        with channel.Reader(socket=self.path) as r:
            told_of, at_check, said = r._joined.told_of, threading.Event(), []

            def check(frame):
                try:
                    r.check(frame)
                    said.append(None)
                except gpufd.LostError as e:
                    said.append(e)

            def stuck(state):  # the thread that sees the end has freed the stream, and goes no further
                self.stream.synchronize()
                checker.start()
                at_check.wait(PATIENCE)
                checker.join(0.2)
                return told_of(state)

            second = [r.next_on(self.stream), r.next_on(self.stream)][1]
            checker = threading.Thread(target=check, args=(second,))
            kept, r._joined.told_of = r._joined.check_kept, stuck
            r._joined.check_kept = lambda: (kept(), at_check.set())
            self.until(lambda: r._joined.words.load(c.PUBLISHED) >= 1)
            p.kill()
            self.until(lambda: r.done)
            self.assertTrue(at_check.is_set())
            checker.join(PATIENCE)
            common.is_error(self, said[0], gpufd.LostError, "lost")

    def test_reader_killed(self):
        """A writer's stream that waits for a dead reader goes on."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w:
            p = self.python("import gpufd.channel, time\nr = gpufd.channel.Reader(socket=sys.argv[1]); print('ready'); time.sleep(99)", self.path, waits_for="ready")
            w.await_readers(1, PATIENCE)
            for i in range(1, 7):
                slot = w.acquire_on(self.stream)
                self.stream.upload(slot.ptr, frame(i))
                w.publish_on(self.stream, slot)
            time.sleep(0.02)
            self.assertFalse(w._tracker.idle())
            with common.raises(self, gpufd.ChannelError, "order"):
                w.acquire_on(0)
            p.kill()
            self.stream.synchronize()
            self.assertEqual((w.last, w.readers), (6, 0))

    def in_driver(self, side, stream, call):
        """A thread with a call that the driver keeps, because the stream has work: it has room for no more."""
        tracker, kept = tracker_of(side), threading.Event()
        give = tracker._give

        def late(handle):
            with tracker.memory.current() as lib:
                while lib.code("cuStreamQuery", handle) == cu.NOT_READY:
                    kept.set()
                    time.sleep(0.0001)
            give(handle)

        tracker._give = late
        errors = []

        def run():
            try:
                call()
            except Exception as e:
                errors.append(e)

        t = threading.Thread(target=run)
        t.start()
        self.assertTrue(kept.wait(PATIENCE))
        time.sleep(0.02)
        return t, errors

    def fill(self, w):
        """Publish in both slots, and begin to publish a third frame, which waits for the reader."""
        for _ in range(2):
            w.publish_on(self.stream, w.acquire_on(self.stream))
        self.stream.synchronize()
        return self.in_driver(w, self.stream, lambda: w.publish_on(self.stream, w.acquire_on(self.stream)))

    def ends_soon(self, t):
        t.join(PATIENCE)
        self.assertFalse(t.is_alive())

    def test_driver_without_room_and_a_dead_reader(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w:
            p = self.python("import gpufd.channel, time\nr = gpufd.channel.Reader(socket=sys.argv[1]); print('ready'); time.sleep(99)", self.path, waits_for="ready")
            w.await_readers(1, PATIENCE)
            t, errors = self.in_driver(w, self.stream, lambda: [w.publish_on(self.stream, w.acquire_on(self.stream)) for _ in range(5)])
            self.assertEqual(w.readers, 1)  # whoever asks for other things is not kept
            p.kill()
            self.ends_soon(t)
            self.assertEqual((errors, w.last), ([], 5))
            self.stream.synchronize()

    def test_driver_without_room_and_a_dead_writer(self):
        p = self.writer_process(1, slots=4, stays="it does")
        with channel.Reader(socket=self.path) as r:
            t, errors = self.in_driver(r, self.stream, lambda: [r.next_on(self.stream) for _ in range(4)])
            p.kill()
            self.ends_soon(t)
            self.assertTrue(all(isinstance(e, gpufd.LostError) for e in errors), errors)
            self.until(lambda: r.done)

    def test_closed_without_room(self):
        """The peer lives, and does not go on."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w:
            r = channel.Reader(socket=self.path)
            r.next_on(self.stream)
            t, errors = self.in_driver(r, self.stream, lambda: r.next_on(self.stream))
            r.close()
            self.ends_soon(t)
            self.assertEqual(errors, [])
            with channel.Reader(socket=self.path) as r:
                w.await_readers(1, PATIENCE)
                t, errors = self.fill(w)
                w.close()
                self.ends_soon(t)
                self.assertEqual(errors, [])
                self.until(lambda: r.done)
                common.is_error(self, r.err, gpufd.ChannelError, "dropped")

    def test_closed_within_a_frame(self):
        """The stream waits for no reader when close looks first, and for one later."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w, channel.Reader(socket=self.path) as r:
            w.await_readers(1, PATIENCE)
            looks, drop = [], w._readers.drop_blockers

            def later():
                looks.append(1)
                return len(looks) > 1 and drop()

            t, errors = self.fill(w)
            with mock.patch.object(w._readers, "drop_blockers", later), mock.patch.object(_writer, "CLOSE_LIMIT", 0.1):
                closing = threading.Thread(target=w.close, daemon=True)
                closing.start()
                self.ends_soon(closing)
            self.ends_soon(t)
            self.assertEqual(errors, [])
            self.until(lambda: r.done)

    def test_closed_while_a_stream_has_other_work(self):
        """close says that the driver keeps a call, and ends once the stream has gone on."""
        w = channel.Writer("cam", socket=self.path, slots=4, slot_size=N, streams=True)
        r = channel.Reader(socket=self.path)
        w.await_readers(1, PATIENCE)
        for side, queue in ((r, lambda: r.next_on(self.stream)), (w, lambda: w.publish_on(self.stream, w.acquire_on(self.stream)))):
            goes_on = threading.Event()
            give = tracker_of(side)._give

            def late(handle, goes_on=goes_on, give=give):
                goes_on.wait(PATIENCE)
                give(handle)

            short = mock.patch.multiple(_writer, CLOSE_LIMIT=0.1), mock.patch.multiple(_joined, CLOSE_LIMIT=0.1)
            with mock.patch.object(tracker_of(side), "_give", late), short[0], short[1]:
                t = threading.Thread(target=queue)
                t.start()
                self.until((side._joined.turn if isinstance(side, channel.Reader) else side._turn).locked)
                errors = []

                def close(side=side, errors=errors):
                    try:
                        side.close()
                    except gpufd.InUseError as e:
                        errors.append(e)

                closing = threading.Thread(target=close, daemon=True)
                closing.start()
                self.ends_soon(closing)
                self.assertEqual(len(errors), 1)
                goes_on.set()
                self.ends_soon(t)
            side.close()

    def test_a_step_that_is_refused(self):
        """There is nothing to free."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True), channel.Reader(socket=self.path) as r:
            r._joined.tracker.queued = 1  # the driver is given a step
            freeing = threading.Thread(target=r._joined.tracker.free, args=(r._joined.words, c.PUBLISHED), daemon=True)
            freeing.start()
            self.until(lambda: r._joined.words.load(c.PUBLISHED) == c.GIVEN)
            r._joined.tracker.queued = 0  # and refuses it
            self.ends_soon(freeing)

    def test_who_sleeps_learns_of_streams(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w, channel.Reader(socket=self.path) as r:
            w.await_readers(1, PATIENCE)
            r._joined.words.store(c.READER_BELL, 1)  # as one that sleeps
            w.publish_on(self.stream, w.acquire_on(self.stream))
            self.assertEqual(r._joined.words.load(c.READER_BELL), 0)
            f = r.next_on(self.stream)
            r._joined.words.store(c.WRITER_BELL, 1)
            r.release_on(self.stream, f)
            self.assertEqual(r._joined.words.load(c.WRITER_BELL), 0)
            self.stream.synchronize()

    def test_closed_while_a_frame_is_checked(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True):
            r = channel.Reader(socket=self.path)
            f = r.next_on(self.stream)
            closing = threading.Thread(target=r.close, daemon=True)

            def slow():
                closing.start()
                self.until(lambda: r._joined.freeing)

            with mock.patch.object(r._joined, "check_kept", slow), mock.patch.object(_joined, "CLOSE_LIMIT", 0.1), self.assertRaises(gpufd.ClosedError):
                r.check(f)
            self.ends_soon(closing)
            self.stream.synchronize()

    def test_a_stalled_reader_is_dropped(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True, stall=0.1) as w, channel.Reader(socket=self.path) as r:
            w.await_readers(1, PATIENCE)
            for _ in range(3):
                w.publish_on(self.stream, w.acquire_on(self.stream))
            self.stream.synchronize()
            self.until(lambda: r.done)
            common.is_error(self, r.err, gpufd.ChannelError, "dropped")

    def test_close_frees_a_waiting_stream(self):
        """A reader is closed while its stream waits: the stand-in aborts where words are
        unregistered under that."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True):
            r = channel.Reader(socket=self.path)
            r.next_on(self.stream)
            r.close()
            self.stream.synchronize()

    def test_a_reader_in_c(self):
        """examples/c/channel.c reads by its stream, and by its host; also of a writer that is killed."""
        program = [os.path.join(os.environ["LD_LIBRARY_PATH"], "channel"), "-socket", self.path, "-timeout", "60"]
        want = b"".join(frame(i) for i in range(1, 41))
        for order, slots in (("stream", 3), ("host", 3), ("stream", 40)):  # the last writer ends at once
            with self.subTest(order, slots=slots):
                p = self.writer_process(40, slots)
                done = subprocess.run([*program, "-order", order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                self.assertEqual(done.stdout, want)
                self.ends(p, 0, "done")
        p = self.writer_process(2, slots=4, stays="it does")
        r = subprocess.Popen([*program, "-order", "stream"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (r.kill(), r.wait(), r.stdout.close(), r.stderr.close()))
        self.assertEqual(r.stdout.read(2 * N), want[: 2 * N])
        p.kill()
        out, err = r.communicate(timeout=PATIENCE)
        self.assertEqual((out, r.returncode), (b"", 4), err)
        self.assertIn(b"the last whole frame is 2", err)

    def test_readers_of_the_newest(self):
        """They block, and give back what they skip: by the host, by a stream, and in C."""
        for by_stream in (False, True):
            with self.subTest(by_stream=by_stream), channel.Writer("cam", socket=self.path, slots=3, slot_size=N, streams=True) as w, \
                 channel.Reader(socket=self.path, policy="latest") as r:  # fmt: skip
                last = 0
                for n in (1, 3, 2, 3, 1):
                    for _ in range(n):
                        slot = w.acquire_on(self.stream)
                        self.stream.upload(slot.ptr, frame(slot.sequence))
                        w.publish_on(self.stream, slot, user=b"%d" % slot.sequence)
                    self.stream.synchronize()
                    f = r.next_on(0) if by_stream else r.next(PATIENCE)
                    last += n
                    self.assertEqual(f.sequence, last)
                    self.assertEqual(bytes(f.tobytes()), frame(last))
                    with common.raises(self, gpufd.ChannelError, "order"):
                        r.next(0) if by_stream else r.next_on(0)
                    if by_stream:
                        r.release_on(0, f)
                    else:
                        f.release()
                    self.until(lambda r=r, last=last: r._joined.words.load(c.RELEASED) == last)
                self.assertEqual((r.stats.received, r.stats.lost), (5, 5))
                ahead = r.next_on(0)  # the next one, that is not there yet
                self.assertEqual(ahead.sequence, last + 1)
                entry = self.stream.download(ahead.meta, channel.ENTRY_SIZE)  # of an older frame: its slot had that
                self.stream.synchronize()
                e = channel.decode_entry(entry)
                self.assertEqual((e.sequence, e.user), (last + 1 - 3, b"%d" % (last + 1 - 3)))
        program = [os.path.join(os.environ["LD_LIBRARY_PATH"], "channel"), "-socket", self.path, "-timeout", "60", "-policy", "latest"]
        self.assertEqual(subprocess.run([*program, "-order", "stream"], stderr=subprocess.DEVNULL).returncode, 2)
        p = self.writer_process(40)
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.ends(p, 0, "done")
        got = [done.stdout[i : i + N] for i in range(0, len(done.stdout), N)]
        want = [frame(i) for i in range(1, 41)]
        places = [want.index(g) for g in got]
        self.assertEqual((places, places[-1]), (sorted(set(places)), 39))

    def test_a_reader_in_c_that_is_dropped(self):
        """It puts out what it had read by then, and nothing of slots that are not kept for it."""
        size = 256 << 10  # more than a pipe takes

        def big(i):
            return bytes([i]) * size

        for order in ("host", "stream"):
            with self.subTest(order), channel.Writer("cam", socket=self.path, slots=2, slot_size=size, streams=True, stall=0.2, drop=True) as w:
                r = subprocess.Popen([os.path.join(os.environ["LD_LIBRARY_PATH"], "channel"), "-socket", self.path, "-order", order],
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
                self.addCleanup(lambda r=r: (r.kill(), r.wait(), r.stdout.close(), r.stderr.close()))
                w.await_readers(1, PATIENCE)
                words, i = w._readers.there[0].words, 1
                w.send(big(i))
                while words.load(c.RELEASED) < 1:
                    time.sleep(0.001)
                while w.readers or i < 8:  # it stands still, because nobody reads what it puts out
                    i += 1
                    w.send(big(i), timeout=PATIENCE)
                out, err = r.communicate(timeout=PATIENCE)
                whole = len(out) // size
                self.assertEqual((r.returncode, whole * size), (4, len(out)), err)
                self.assertIn(b"dropped this reader", err)
                self.assertEqual(out, b"".join(big(n) for n in range(1, whole + 1)))
                self.assertTrue(1 <= whole <= (1 if order == "host" else 3), whole)

    def test_a_dropped_readers_frames_are_not_whole(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w, channel.Reader(socket=self.path) as r:
            w.publish_on(self.stream, w.acquire_on(self.stream))
            first, second = r.next_on(self.stream), r.next_on(self.stream)
            with common.raises(self, gpufd.ChannelError, "order"):
                w.acquire_on(self.stream)
                w.publish_on(self.stream, w.acquire_on(self.stream))
                w.acquire_on(self.stream)
                w.acquire()
            r.check(first)
            w._readers.there[0].lease.revoke()
            self.until(lambda: r.done)
            self.stream.synchronize()
            for f in (first, second):
                with common.raises(self, gpufd.ChannelError, "dropped"):
                    r.check(f)

    def test_what_is_refused(self):
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w, channel.Reader(socket=self.path) as r:
            for bad in (None, True, -1, "stream", 1.5):
                with self.assertRaises(gpufd.UsageError):
                    w.acquire_on(bad)
            with self.assertRaises(gpufd.UsageError):
                w.acquire_on(0xCA9)  # which the stand-in says is captured
            for kind in ({"cuda_stream": 0}, {"ptr": 0}, {"__cuda_stream__": (0, 0)}):
                stream = type("Stream", (), kind)()
                w.publish_on(stream, w.acquire_on(stream))
                r.release_on(stream, r.next_on(stream))
            slot = w.acquire_on(0)
            w.publish_on(0, slot, size=5, user=b"told")
            f = r.next(PATIENCE)
            self.assertEqual((f.size, f.user), (5, b"told"))
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N) as w, channel.Reader(socket=self.path) as r:
            with common.raises(self, gpufd.ChannelError, "policy"):
                w.acquire_on(0)
            with common.raises(self, gpufd.ChannelError, "policy"):
                r.next_on(0)


if __name__ == "__main__":
    unittest.main()
