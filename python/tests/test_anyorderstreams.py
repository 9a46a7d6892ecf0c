"""Channels whose slots come back in any order, by streams, against the stand-in for libcuda."""

import concurrent.futures
import contextlib
import ctypes
import faulthandler
import mmap
import os
import queue
import random
import sys
import threading
import unittest
from unittest import mock

import common
import gpufd
import test_channelstreams as streams
from common import PATIENCE
from gpufd import channel
from gpufd.channel import cursor as c
from gpufd.channel import joined as _joined
from gpufd.channel import readers as _readers
from gpufd.channel import slots as _slots
from gpufd.channel import streams as _streams
from gpufd.channel import writer as _writer
from gpufd.memory import libcuda as cu
from gpufd.memory.cuda import context_of
from test_channelstreams import N, Stream, frame

SHORT = 0.05  # seconds in which nothing comes


class Gate:
    """Work of streams that ends when the test says so.

    What waits for such work where it must not would hang: after LONG seconds the gate says where threads are, opens, and check fails.
    """

    LONG = 30.0

    def __init__(self):
        self.late, self.limit = False, threading.Timer(0, lambda: None)
        self.lib, self.context, self.room = cu.load(), context_of(0), mmap.mmap(-1, 4096)
        self.word = (ctypes.c_uint64 * 512).from_buffer(self.room)
        with self.lib.current(self.context):
            self.lib.call("cuMemHostRegister_v2", ctypes.addressof(self.word), 4096, 3)
            self.device = self.lib.made("cuMemHostGetDevicePointer_v2", ctypes.c_void_p(ctypes.addressof(self.word)), 0, of=cu.PTR)

    def hold(self, stream):
        self.limit.cancel()
        self.word[0], self.limit = 0, threading.Timer(self.LONG, self.end)
        self.limit.daemon = True
        self.limit.start()
        op = cu.MemOp(operation=cu.WAIT_64, address=self.device, value=1)
        with self.lib.current(self.context):
            self.lib.call("cuStreamBatchMemOp_v2", stream.handle, 1, ctypes.byref(op), 0)

    def end(self):
        self.late = True
        print(f"\na gate has stood for {self.LONG:g} s; the threads are here:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        self.open()

    def open(self):
        self.limit.cancel()
        self.word[0] = 1

    def close(self):
        self.open()
        with self.lib.current(self.context):
            self.lib.call("cuMemHostUnregister", ctypes.addressof(self.word))

    def check(self):
        assert not self.late, f"a call waited for {self.LONG:g} s for a stream that the test held: the threads are above"


def write(path, frames, slots):
    """Write all frames, each by one of two streams, or by the host."""
    both, pick = (Stream(), Stream()), random.Random(frames)
    w = channel.Writer("cam", socket=path, slots=slots, slot_size=N, any_order=True)
    print("ready", flush=True)
    w.await_readers(1, PATIENCE)
    for n in range(1, frames + 1):
        slot, stream = w.acquire(PATIENCE), pick.choice((*both, None))
        if stream:
            stream.upload(slot.ptr, frame(n))
            slot.publish(stream=stream, user=b"frame %d" % n)
        else:
            for s in both:
                s.synchronize()
            slot.write(frame(n))
            slot.publish(user=b"frame %d" % n)
    w.close()
    for s in both:
        s.close()
    print("done", flush=True)


class StandIn(unittest.TestCase):
    @unittest.skipIf(os.environ.get(streams.INSIDE), "it is the other process")
    def test_any_order_with_the_stand_in(self):
        streams.run_with_stand_in(self, "test_anyorderstreams", "test_by_streams_and_hosts")


@unittest.skipUnless(os.environ.get(streams.INSIDE), "in the process with the stand-in")
class AnyOrderStreams(streams.Driver):
    def setUp(self):
        super().setUp()
        self.other, self.gate = Stream(), Gate()
        self.addCleanup(self.gate.check)

    def tearDown(self):
        self.gate.open()
        self.stream.synchronize()
        self.other.synchronize()
        self.gate.close()
        self.other.close()
        super().tearDown()

    @contextlib.contextmanager
    def sides(self, slots=3, **options):
        with channel.Writer("cam", socket=self.path, slots=slots, slot_size=N, any_order=True, **options) as w, channel.Reader(socket=self.path) as r:
            w.await_readers(1, PATIENCE)
            try:
                yield w, r
            except BaseException:
                self.gate.open()  # or close would wait for the stream
                raise

    def publish(self, w, stream):
        slot = w.acquire(PATIENCE)
        stream.upload(slot.ptr, frame(slot.sequence))
        slot.publish(stream=stream)
        return slot

    def in_thread(self, call):
        """Begin a call in a thread. Return what waits for its result."""
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown, False)
        return pool.submit(call).result

    def nothing(self, call):
        """The call finds nothing."""
        self.assertRaises(gpufd.TimedOutError, call, SHORT)

    def test_by_streams_and_hosts(self):
        """A process publishes by two streams and its host; this one gives back by two streams and the host, in any order."""
        p = self.python("import test_anyorderstreams as t; t.write(sys.argv[1], 200, 4)", self.path, waits_for="ready")
        with channel.Reader(socket=self.path) as r:
            pick, held = random.Random(1), []
            for n in range(1, 201):
                f = r.next(PATIENCE)
                self.assertEqual((f.sequence, f.size, f.user, f.meta), (n, N, b"frame %d" % n, 0))
                self.assertEqual(f.tobytes(), frame(n))
                self.assertTrue(f.time)
                held.append(f)
                while len(held) == 4 or held and pick.random() < 0.4:
                    one = held.pop(pick.randrange(len(held)))
                    self.assertEqual(one.tobytes(), frame(one.sequence))
                    one.release(*pick.choice(((), (self.stream,), (self.other,))))
            with common.raises(self, gpufd.ChannelError, "ended"):
                r.next(PATIENCE)
            for f in held:
                f.release(self.stream)
        self.ends(p, 0, "done")

    def test_a_frame_comes_when_the_stream_gets_there(self):
        with self.sides() as (w, r):
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            self.nothing(r.next)
            self.gate.open()
            self.assertEqual(r.next(PATIENCE).tobytes(), frame(1))

    def test_streams_follow_each_other(self):
        """A frame that one stream publishes comes behind what another one was given before. The host waits for both."""
        with self.sides() as (w, r):
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            self.publish(w, self.other)
            self.nothing(r.next)
            slot = w.acquire(PATIENCE)
            with common.raises(self, gpufd.ChannelError, "order"):
                slot.publish()
            self.gate.open()
            self.assertEqual([r.next(PATIENCE).tobytes() for _ in range(2)], [frame(1), frame(2)])
            self.other.synchronize()
            slot.publish(user=b"host")
            self.assertEqual(r.next(PATIENCE).user, b"host")

    def test_a_slot_that_a_stream_has_still_to_write(self):
        """Nobody has it: no reader has joined, or the one that had it has left."""
        for options in ({"any_order": True}, {"streams": True}):
            for reads in (False, True):
                with self.subTest(**options, reads=reads), channel.Writer("cam", socket=self.path, slots=2, slot_size=N, **options) as w:
                    r = channel.Reader(socket=self.path) if reads else None
                    self.gate.hold(self.stream)
                    for _ in range(2):
                        slot = w.acquire(PATIENCE)
                        self.stream.upload(slot.ptr, frame(slot.sequence))
                        w.publish_on(self.stream, slot)
                    leaves = self.in_thread(r.close) if r else lambda _: None  # close waits for the device
                    self.until(lambda: not w.readers)
                    self.nothing(w.acquire)
                    self.gate.open()
                    leaves(PATIENCE)
                    self.assertEqual(w.acquire(PATIENCE).sequence, 3)
                    self.stream.synchronize()

    def test_a_slot_comes_back_when_the_stream_gets_there(self):
        """The other stream's slot comes back before. A writer that sleeps learns that nobody rings."""
        with self.sides(slots=2) as (w, r):
            for _ in range(2):
                self.publish(w, self.stream)
            held = [r.next(PATIENCE) for _ in range(2)]
            self.gate.hold(self.stream)
            words = w._readers.there[0].words
            words.store(c.WRITER_BELL, 1)
            held[0].release(self.stream)
            self.assertEqual((words.load(c.WRITER_BELL), words.load(c.READER_POLLS)), (0, 1))
            self.nothing(w.acquire)
            held[1].release(self.other)
            self.assertEqual(w.acquire(PATIENCE).index, held[1].index)
            w.acquire(PATIENCE).publish()
            self.nothing(w.acquire)
            self.gate.open()
            self.assertEqual(w.acquire(PATIENCE).index, held[0].index)
            for f in held:
                with common.raises(self, gpufd.ChannelError, "order"):
                    f.release(self.stream)

    def test_who_sleeps_learns_of_streams(self):
        with self.sides() as (w, r):
            r._joined.words.store(c.READER_BELL, 1)
            self.publish(w, self.stream)
            self.assertEqual((r._joined.words.load(c.READER_BELL), r._joined.words.load(c.WRITER_POLLS)), (0, 1))

    def test_several_readers(self):
        with self.sides() as (w, r), channel.Reader(socket=self.path) as second:
            w.await_readers(2, PATIENCE)
            for n in range(1, 20):
                slot = self.publish(w, (self.stream, self.other)[n % 2])
                for side, stream in ((r, self.stream), (second, self.other)):
                    f = side.next(PATIENCE)
                    self.assertEqual((f.tobytes(), f.index), (frame(n), slot.index))
                    f.release(stream)

    def test_a_reader_that_joins_while_a_stream_has_a_frame(self):
        """One that wants the next frame is admitted at once. One that wants the newest waits until it is there."""
        with self.sides() as (w, r):
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            with channel.Reader(socket=self.path) as next_one:
                self.assertEqual(next_one.first, 2)
                late = self.in_thread(lambda: channel.Reader(socket=self.path, join="newest"))
                self.until(lambda: any(m.since for m in w._readers.members))
                self.assertEqual(w.readers, 2)
                self.gate.open()
                with late(PATIENCE) as newest:
                    self.assertEqual((newest.first, newest.next(PATIENCE).tobytes()), (1, frame(1)))
                    self.publish(w, self.other)
                    self.assertEqual([side.next(PATIENCE).sequence for side in (r, r, next_one, newest)], [1, 2, 2, 2])

    def test_the_newest_is_not_waited_for_for_ever(self):
        with self.sides() as (w, r):
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            with mock.patch.object(_readers, "_NEWEST", SHORT):
                late = channel.Reader(socket=self.path, join="newest")
            self.assertEqual(late.first, 2)
            self.gate.open()
            late.close()

    def test_closed_while_the_device_reads(self):
        """A reader that holds a frame leaves when no stream has work any more: until then the writer does not write there."""
        with self.sides(slots=1) as (w, r):
            self.publish(w, self.stream)
            f = r.next(PATIENCE)
            self.gate.hold(self.other)
            seen = self.other.download(f.ptr, N)
            leaves = self.in_thread(r.close)
            self.nothing(w.acquire)
            self.gate.open()
            leaves(PATIENCE)
            w.acquire(PATIENCE).write(bytes(N))
            self.assertEqual(bytes(seen), frame(1))

    def test_closed_with_nothing_held(self):
        """The writer hears at once of one that has given all back."""
        with self.sides(slots=1) as (w, r):
            self.publish(w, self.stream)
            r.next(PATIENCE).release()
            self.gate.hold(self.other)
            leaves = self.in_thread(r.close)
            self.until(lambda: not w.readers)
            self.gate.open()
            leaves(PATIENCE)

    def test_closed_while_a_stream_has_to_give_back(self):
        """The stand-in aborts where words are unregistered that a stream has still to write."""
        with self.sides() as (w, r):
            self.publish(w, self.stream)
            f = r.next(PATIENCE)
            self.gate.hold(self.stream)
            f.release(self.stream)
            with mock.patch.object(_joined, "CLOSE_LIMIT", SHORT), self.assertRaisesRegex(gpufd.InUseError, "still to give 1 slot back"):
                r.close()
            self.assertEqual(w.readers, 1)
            self.gate.open()
            r.close()
            w.acquire(PATIENCE)

    def test_closed_while_a_stream_has_to_publish(self):
        with self.sides() as (w, r):
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            with mock.patch.object(_writer, "CLOSE_LIMIT", SHORT), self.assertRaises(gpufd.InUseError):
                w.close()
            self.gate.open()
            w.close()
            self.assertEqual(r.next(PATIENCE).tobytes(), frame(1))
            with common.raises(self, gpufd.ChannelError, "ended"):
                r.next(PATIENCE)

    def test_a_reader_killed_while_a_stream_has_to_publish(self):
        """Its cursors stay until the stream has written them, and its slots come back at once."""
        gone = queue.Queue()
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, any_order=True, on_gone=gone.put) as w:
            p = self.python("import gpufd.channel, time\nr = gpufd.channel.Reader(socket=sys.argv[1]); print('ready'); time.sleep(99)", self.path, waits_for="ready")
            w.await_readers(1, PATIENCE)
            self.publish(w, self.stream)
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            p.kill()
            w.acquire(PATIENCE)
            self.assertRaises(queue.Empty, gone.get, timeout=SHORT)
            self.gate.open()
            common.is_error(self, gone.get(timeout=PATIENCE).err, gpufd.LostError, "lost")

    @contextlib.contextmanager
    def fails(self, name, code=1):
        """The driver refuses calls of that name."""
        self.fake.fake_fail(name.encode(), code)
        try:
            yield
        finally:
            self.fake.fake_fail(b"", 0)

    @contextlib.contextmanager
    def interrupted(self, name):
        """An interrupt comes right behind the driver's next call of that name."""
        check = cu.Libcuda.check

        def late(lib, called, code):
            check(lib, called, code)
            if called == name:
                raise KeyboardInterrupt

        with mock.patch.object(cu.Libcuda, "check", late), self.assertRaises(KeyboardInterrupt):
            yield

    def test_a_release_that_fails(self):
        """The frame is still held, and released again."""
        with self.sides(slots=2) as (w, r):
            for name in ("driver", "interrupt", "captured"):
                self.publish(w, self.stream)
                f = r.next(PATIENCE)
                if name == "driver":
                    with self.fails("cuStreamBatchMemOp_v2"), self.assertRaises(gpufd.DriverError):
                        f.release(self.stream)
                elif name == "interrupt":
                    before = mock.patch.object(_streams.Tracker, "queue_of_slot", side_effect=KeyboardInterrupt)
                    with before, self.assertRaises(KeyboardInterrupt):
                        f.release(self.stream)
                else:
                    with self.interrupted("cuStreamIsCapturing"):
                        f.release(self.stream)
                self.assertEqual((f.tobytes(), w.members[0].kept), (frame(f.sequence), 1))
                f.release(self.stream)
                self.stream.synchronize()
                self.assertEqual(w.members[0].kept, 0)

    def test_an_interrupt_behind_a_release(self):
        """The stream gives the slot back, so the frame is not held any more."""
        with self.sides(slots=1) as (w, r):
            self.publish(w, self.stream)
            f = r.next(PATIENCE)
            self.gate.hold(self.other)
            with self.interrupted("cuStreamBatchMemOp_v2"):
                f.release(self.other)
            with common.raises(self, gpufd.ChannelError, "order"):
                f.release()
            with mock.patch.object(_joined, "CLOSE_LIMIT", SHORT), self.assertRaisesRegex(gpufd.InUseError, "still to give 1 slot back"):
                r.close()
            self.gate.open()
            w.acquire(PATIENCE)

    def test_publishing_that_fails(self):
        """The frame is not published, and the slot is published again."""
        with self.sides() as (w, r):
            slot = w.acquire(PATIENCE)
            slot.write(frame(1))
            with self.fails("cuStreamBatchMemOp_v2"), self.assertRaises(gpufd.DriverError):
                slot.publish(stream=self.stream)
            self.assertEqual((w.last, w.acquire(0)), (0, slot))
            slot.publish(stream=self.other)
            self.assertEqual(r.next(PATIENCE).tobytes(), frame(1))

    def test_an_interrupt_behind_publishing(self):
        """The frame is published, and what another stream publishes comes behind it."""
        for name in ("cuStreamBatchMemOp_v2", "cuEventRecord"):
            with self.subTest(name), self.sides() as (w, r):
                self.publish(w, self.other)
                self.gate.hold(self.stream)
                slot = w.acquire(PATIENCE)
                self.stream.upload(slot.ptr, frame(2))
                with self.interrupted(name):
                    slot.publish(stream=self.stream)
                self.assertEqual(w.last, 2)
                with common.raises(self, gpufd.ChannelError, "order"):
                    slot.publish(stream=self.stream)
                self.assertEqual(self.publish(w, self.other).sequence, 3)
                r.next(PATIENCE).release()
                self.nothing(r.next)
                self.gate.open()
                for n in (2, 3):
                    with r.next(PATIENCE) as f:
                        self.assertEqual(f.tobytes(), frame(n))

    def test_an_interrupt_in_a_channel_for_streams(self):
        """Frames that the stream was given count, and nothing is given twice."""
        with channel.Writer("cam", socket=self.path, slots=1, slot_size=N, streams=True) as w, channel.Reader(socket=self.path) as r:
            w.await_readers(1, PATIENCE)
            for n in (1, 2):
                with self.interrupted("cuStreamBatchMemOp_v2"):
                    w.acquire_on(self.stream)
                slot = w.acquire_on(self.stream)
                self.stream.upload(slot.ptr, frame(n))
                with self.interrupted("cuStreamBatchMemOp_v2"):
                    slot.publish(stream=self.stream, user=b"%d" % n)
                self.assertEqual(w.last, n)
                self.stream.synchronize()
                f = r.next(PATIENCE)
                self.assertEqual((f.tobytes(), f.user), (frame(n), b"%d" % n))
                with self.interrupted("cuStreamBatchMemOp_v2"):
                    f.release(self.other)
                f.release(self.other)
                self.other.synchronize()

    def test_a_lost_context_and_a_reader_that_keeps_a_slot(self):
        """The writer says what the driver says, and not that the reader is in the way."""
        with self.sides(slots=2) as (w, r):
            self.publish(w, self.stream)
            f = r.next(PATIENCE)
            self.gate.hold(self.stream)
            self.publish(w, self.stream)
            with mock.patch.object(_slots, "CLOSE_LIMIT", SHORT), self.fails("cuStreamQuery", 700), self.assertRaises(gpufd.DriverError):
                w.acquire(PATIENCE)
            self.nothing(w.acquire)
            self.gate.open()
            f.release()
            w.acquire(PATIENCE)

    def test_closed_while_a_thread_gives_a_frame_back(self):
        """The stream has got its work before close looks what it has still to do."""
        w = channel.Writer("cam", socket=self.path, slots=2, slot_size=N, any_order=True)
        r = channel.Reader(socket=self.path)
        w.await_readers(1, PATIENCE)
        self.publish(w, self.stream)
        f, tracker = r.next(PATIENCE), r._joined.releases
        begun, goes_on, queue_of_slot = threading.Event(), threading.Event(), tracker.queue_of_slot

        def late(*what):
            begun.set()
            goes_on.wait(PATIENCE)
            queue_of_slot(*what)

        self.stream.synchronize()
        self.gate.hold(self.other)
        with mock.patch.object(tracker, "queue_of_slot", late):
            gives = self.in_thread(lambda: f.release(self.other))
            begun.wait(PATIENCE)
            with mock.patch.object(_joined, "CLOSE_LIMIT", SHORT), self.assertRaises(gpufd.InUseError):
                self.in_thread(r.close)(PATIENCE)
            leaves = self.in_thread(r.close)
            goes_on.set()
            gives(PATIENCE)
        self.gate.open()
        leaves(PATIENCE)
        w.close()

    def test_the_newest_where_streams_are_ahead(self):
        """In a channel for streams the writer may always be ahead: nobody waits for it."""
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=N, streams=True) as w:
            self.gate.hold(self.stream)
            w.publish_on(self.stream, w.acquire_on(self.stream))
            with mock.patch.object(_readers, "_NEWEST", 10 * PATIENCE), channel.Reader(socket=self.path, join="newest") as r:
                self.assertEqual(r.first, 2)
                self.gate.open()  # close waits for the device

    def test_many_threads_and_streams(self):
        with self.sides(slots=8) as (w, r):
            todo, errors = queue.Queue(), []

            def releases(stream):
                while (f := todo.get()) is not None:
                    try:
                        f.release(stream)
                    except Exception as e:
                        errors.append(e)

            threads = [threading.Thread(target=releases, args=(s,)) for s in (self.stream, self.other, None)]
            for t in threads:
                t.start()
            own = Stream()
            for n in range(1, 301):
                self.publish(w, own)
                while len(r._position.held) == 8:
                    threading.Event().wait(0.0001)
                f = r.next(PATIENCE)
                self.assertEqual((f.sequence, f.tobytes()), (n, frame(n)))
                todo.put(f)
            for _ in threads:
                todo.put(None)
            for t in threads:
                t.join(PATIENCE)
            own.synchronize()
            own.close()
            self.assertEqual(errors, [])

    def test_sent_by_a_stream(self):
        with self.sides(slots=2) as (w, r), gpufd.allocate(N) as memory:
            memory.write(0, frame(5))
            memory.finish()
            array = memory.view("F32", (N // 16, 4))
            for n in range(1, 4):
                self.assertEqual(w.send(array, stream=self.stream, timeout=PATIENCE), n)
                with r.next(PATIENCE) as f:
                    self.assertEqual((f.format, f.tobytes()), (channel.Format("F32", (N // 16, 4)), frame(5)))
            self.stream.synchronize()
            del array

    def test_one_slot_for_streams(self):
        """Both sides queue ahead in a channel for streams that has one slot; what is published and released by a stream
        is so by acquire_on and next_on, too."""
        with channel.Writer("cam", socket=self.path, slots=1, slot_size=N, streams=True) as w, channel.Reader(socket=self.path, policy="latest") as r:
            w.await_readers(1, PATIENCE)
            got = []
            for n in range(1, 9):
                slot = w.acquire_on(self.stream)
                self.stream.upload(slot.ptr, frame(n))
                slot.publish(stream=self.stream)
                f = r.next_on(self.other)
                got.append(self.other.download(f.ptr, N))
                f.release(self.other)
            self.other.synchronize()
            self.assertEqual([bytes(g) for g in got], [frame(n) for n in range(1, 9)])
            for policy in ("drop-oldest", "drop-newest"):
                with common.raises(self, gpufd.ChannelError, "policy"):
                    channel.Reader(socket=self.path, policy=policy)

    def test_what_is_refused(self):
        with self.sides() as (w, r):
            self.publish(w, self.stream)
            f, slot = r.next(PATIENCE), w.acquire(PATIENCE)
            for bad in (True, -1, "stream", 1.5, 0xCA9):  # the last one is captured
                for call in (lambda bad=bad: slot.publish(stream=bad), lambda bad=bad: f.release(bad)):
                    self.assertRaises(gpufd.UsageError, call)
            for call in (lambda: w.acquire_on(self.stream), lambda: r.next_on(self.stream)):
                with common.raises(self, gpufd.ChannelError, "policy"):
                    call()
            slot.publish(stream=self.stream, size=5)
            self.assertEqual(r.next(PATIENCE).size, 5)
            f.release(self.stream)


if __name__ == "__main__":
    unittest.main()
