"""Weights by streams, as PyTorch's current ones are, against the stand-ins for libcuda and PyTorch."""

import concurrent.futures
import contextlib
import gc
import hashlib
import os
import sys
import threading
import unittest
from unittest import mock

import common
import gpufd
import test_channelstreams as streams
from common import PATIENCE
from gpufd.memory.drivers import device_uuid, driver_kind
from gpufd.weights import Meta, Publisher, Subscriber
from gpufd.weights.frames import FIRST, LAST, Head
from gpufd.weights.meta import encode_metadata
from gpufd.weights.publisher import publisher_name
from gpufd.weights.trained import InPlaceLayout
from test_anyorderstreams import Gate
from torchstandin import CurrentStream, Module, Torch

SHORT = 0.05  # seconds in which nothing comes
N = 300  # bytes of a tensor


class StandIn(unittest.TestCase):
    @unittest.skipIf(os.environ.get(streams.INSIDE), "it is the other process")
    def test_weights_with_the_stand_in(self):
        streams.run_with_stand_in(self, "test_weightsstreams", "test_an_update_comes_when_the_stream_gets_there")


def full(step):
    return bytes([step]) * N


class WeightsDriver(streams.Driver):
    """Streams of a trainer and of an engine, and a gate that holds either."""

    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir)
        self.torch, self.gate = Torch(), Gate()
        self.trains, self.serves, self.other = self.streams = [CurrentStream() for _ in range(3)]
        self.addCleanup(self.gate.check)
        patch = mock.patch.dict(sys.modules, torch=self.torch)
        patch.start()
        self.addCleanup(patch.stop)

    def tearDown(self):
        self.gate.open()
        for s in self.streams:
            s.synchronize()
            s.close()
        self.gate.close()
        super().tearDown()

    @contextlib.contextmanager
    def sides(self, **options):
        buckets = {} if options.get("in_place") else {"bucket": 4096, "buckets": 2}
        with Publisher("policy", **buckets | options) as pub, Subscriber("policy", wait=PATIENCE) as sub:
            pub.await_subscribers(1, PATIENCE)
            try:
                yield pub, sub
            finally:
                self.gate.open()  # or close would wait for the stream
                gc.collect()

    def in_thread(self, call, *args):
        """Begin a call in a thread. Return what waits for its result."""
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown, False)
        return pool.submit(call, *args).result

    def send(self, pub, step):
        with self.torch.on(self.trains), pub.update(step) as send:
            send("w", self.torch.tensor(full(step)))

    def load(self, sub, fn):
        update = sub.next(PATIENCE)
        with self.torch.on(self.serves):
            update.load(fn)

    def loaded(self, sub):
        got = []
        self.load(sub, lambda pairs: got.extend(t.tobytes() for _, t in pairs))
        return got

    def nothing(self, call, *args):
        """The call finds nothing."""
        self.assertRaises(gpufd.TimedOutError, call, *args, SHORT)

    def stalls(self, pub, step, kept):
        with common.raises(self, gpufd.ChannelError, "stalled", f"{os.getpid()}.*keeps {kept}"):
            self.send(pub, step)


@unittest.skipUnless(os.environ.get(streams.INSIDE), "in the process with the stand-in")
class ByStreams(WeightsDriver):
    def test_an_update_comes_when_the_stream_gets_there(self):
        """The trainer's host goes on at once."""
        with self.sides() as (pub, sub):
            self.gate.hold(self.trains)
            self.send(pub, 1)
            self.assertEqual(pub.step, 1)
            self.nothing(sub.next)
            self.gate.open()
            self.assertEqual(self.loaded(sub), [full(1)])

    def test_tables_come_with_the_bucket(self):
        """The stream writes them, too: those that were written before, and others, in buckets that come back again and again."""
        with self.sides() as (pub, sub):
            for step in range(1, 7):
                with self.torch.on(self.trains), pub.update(step) as send:
                    for name in ("a", f"b{step // 2}"):
                        send(name, self.torch.tensor(full(step)))
                got = []
                self.load(sub, lambda pairs: got.extend((name, t.tobytes()) for name, t in pairs))
                self.assertEqual(got, [("a", full(step)), (f"b{step // 2}", full(step))])

    def test_several_streams_fill_a_bucket(self):
        """The bucket comes when all of them have got there, whichever ends the update."""
        with self.sides() as (pub, sub):
            for step, ends in enumerate((self.trains, self.other, self.serves), 1):
                self.gate.hold(self.trains)
                with self.torch.on(ends), pub.update(step) as send:
                    for name, stream in (("a", self.trains), ("b", self.other)):
                        with self.torch.on(stream):
                            send(name, self.torch.tensor(full(step)))
                self.nothing(sub.next)
                self.gate.open()
                self.assertEqual(self.loaded(sub), [full(step)] * 2)

    def test_a_bucket_is_given_back_behind_the_work_of_a_stream(self):
        with self.sides(stall=SHORT) as (pub, sub):
            for step in (1, 2):
                self.send(pub, step)
            self.gate.hold(self.serves)
            self.assertEqual([self.loaded(sub), self.loaded(sub)], [[full(1)], [full(2)]])
            self.stalls(pub, 3, "2 of 2")
            self.gate.open()
            self.serves.synchronize()
            self.send(pub, 4)
            self.assertEqual((self.loaded(sub), sub.step), ([full(4)], 4))

    def test_a_bucket_that_several_streams_read(self):
        """It is given back behind the work of all of them."""
        with self.sides(stall=SHORT) as (pub, sub):
            for step in (1, 2):
                self.send(pub, step)
            self.gate.hold(self.other)
            for _ in range(2):
                update = sub.next(PATIENCE)
                update.used_on(self.other)
                with self.torch.on(self.serves):
                    update.load(list)
            self.stalls(pub, 3, "2 of 2")
            self.gate.open()
            self.serves.synchronize()
            self.send(pub, 4)
            self.assertEqual(self.loaded(sub), [full(4)])

    def test_arrays_are_given_back_when_the_device_is_idle(self):
        """Without PyTorch nobody says by which streams they were read."""
        with self.sides(stall=SHORT) as (pub, sub):
            for step in (1, 2):
                self.send(pub, step)
            self.torch.initialized = False
            del sys.modules["torch"]
            kept = []
            sub.next(PATIENCE).load(kept.extend)
            self.gate.hold(self.other)
            read = self.other.download(kept[0][1].ptr, N)
            kept.clear()  # a thread gives it back
            sys.modules["torch"], self.torch.initialized = self.torch, True
            self.stalls(pub, 3, "2 of 2")
            self.gate.open()
            self.assertEqual(self.loaded(sub), [full(2)])
            self.send(pub, 4)
            self.assertEqual((bytes(read), self.loaded(sub)), (full(1), [full(4)]))

    def test_an_update_that_is_given_up(self):
        with self.sides(buckets=4) as (pub, sub):
            self.gate.hold(self.trains)
            with self.assertRaises(ZeroDivisionError), self.torch.on(self.trains), pub.update(1) as send:
                send("w", self.torch.tensor(bytes(9000)))
                1 / 0
            self.gate.open()
            with common.raises(self, gpufd.WeightsError, "torn"):
                self.loaded(sub)
            self.send(pub, 2)
            self.assertEqual(self.loaded(sub), [full(2)])

    def test_pieces(self):
        """A large tensor is assembled by the engine's stream."""
        data = bytes(range(250)) * 40
        with self.sides(buckets=6) as (pub, sub):
            with self.torch.on(self.trains), pub.update(1) as send:
                send("w", self.torch.tensor(data))
            got = []
            self.load(sub, got.extend)
            self.serves.synchronize()
            self.assertEqual([(name, t.tobytes()) for name, t in got], [("w", data)])


METADATA = {"w": Meta("U8", (N,))}


@unittest.skipUnless(os.environ.get(streams.INSIDE), "in the process with the stand-in")
class InPlaceByStreams(WeightsDriver):
    @contextlib.contextmanager
    def sides(self, **options):
        with super().sides(metadata=METADATA, in_place=True, **options) as (pub, sub):
            yield pub, sub

    def test_loaded(self):
        with self.sides() as (pub, sub):
            for step in (1, 2, 3):
                self.gate.hold(self.trains)
                self.send(pub, step)
                self.nothing(sub.next)
                self.gate.open()
                self.assertEqual(self.loaded(sub), [full(step)])

    def test_the_trainer_writes_when_the_device_is_idle(self):
        """What the engine computes on the weights reads those of one step, whichever stream it uses."""
        model = Module(w=self.torch.tensor(bytes(N)))
        with self.sides() as (pub, sub):
            self.send(pub, 1)
            sub.bind(model, PATIENCE)
            for step in (2, 3):
                entered = threading.Event()
                sends = self.in_thread(self.write, pub, step, entered)
                update = sub.next(PATIENCE)
                self.gate.hold(self.other)
                read = self.other.download(model.w.at, N)
                loads = self.in_thread(update.load)
                self.assertFalse(entered.wait(SHORT))
                self.gate.open()
                loads(PATIENCE)
                sends(PATIENCE)
                self.other.synchronize()
                self.assertEqual((bytes(read), model.w.tobytes(), sub.step), (full(step - 1), full(step), step))

    def write(self, pub, step, entered):
        with self.torch.on(self.trains), pub.update(step) as send:
            entered.set()
            send("w", self.torch.tensor(full(step)))

    def test_another_trainer_with_more_memory(self):
        """There is no room for it where the model's weights are. They stay as they are."""
        model, layout = Module(w=self.torch.tensor(bytes(N))), InPlaceLayout(METADATA)
        with self.sides() as (pub, sub):
            self.send(pub, 1)
            sub.bind(model, PATIENCE)
            at = model.w.at
            pub.close()
            common.error_of(self, gpufd.WeightsError, "ended", sub.next, PATIENCE)
            name = publisher_name("policy", device_uuid(driver_kind(None), 0))
            with gpufd.channel.Writer(name, slots=1, slot_size=4 << 20, any_order=True, data=encode_metadata(METADATA, True)) as w:
                update = self.in_thread(sub.next, PATIENCE)
                w.await_readers(1, PATIENCE)
                slot = w.acquire(PATIENCE)
                slot.write(layout.table, layout.table_at)
                head = Head(FIRST | LAST, 1, 2, 0, 1, layout.table_at, len(layout.table), hashlib.sha256(layout.table).digest())
                slot.publish(size=layout.size, user=head.encode())
                with common.raises(self, gpufd.WeightsError, "layout", "more memory"):
                    update(PATIENCE).load()
            self.assertEqual((sub.step, model.w.at, model.w.tobytes()), (1, at, full(1)))


if __name__ == "__main__":
    unittest.main()
