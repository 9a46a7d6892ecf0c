"""Weights that change every step, on the software driver, without PyTorch: NumPy's arrays, in one process and in several."""

import contextlib
import gc
import os
import sys
import threading
import unittest

import common
import gpufd
from common import PATIENCE, wait_for
from gpufd.weights import Meta, Publisher, Subscriber

np = common.need_numpy()

TRAINER = """
pub = gpufd.weights.Publisher("policy", metadata, bucket=4096)
pub.await_subscribers(1)
for step in range(1, 21):
    with pub.update(step) as send:
        for name, array in named_arrays(step):
            send(name, array)
pub.await_loaded()
pub.close()
"""
ENGINE = """
sub = gpufd.weights.Subscriber("policy", wait=60)
for update in sub:
    update.load(load_weights)
    print(sub.step, all(weights[n].tobytes() == a.tobytes() for n, a in named_arrays(sub.step)))
sub.close()
"""
GIVEN = """
import numpy as np
def named_arrays(step):
    r = np.random.default_rng(step)
    yield "small", r.integers(0, 255, (3, 5), np.uint8)
    yield "large", r.random((64, 65), np.float32)
    yield "scalar", np.array(step)
metadata = {n: gpufd.weights.Meta(t, s) for n, t, s in (("small", "U8", (3, 5)), ("large", "F32", (64, 65)), ("scalar", "I64", ()))}
weights = {}
def load_weights(pairs):
    for name, array in pairs:
        weights[name] = np.array(array)
"""


class WeightsTest(common.Scene):
    by_torch = False  # tensors are PyTorch's if that is loaded, as by another module of tests

    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir)
        if not self.by_torch:
            self.hide("torch")

    def hide(self, module):
        """Have a module count as not loaded."""
        before, sys.modules[module] = sys.modules.get(module), None
        self.addCleanup(lambda: sys.modules.update({module: before}) if before else sys.modules.pop(module))

    def publisher(self, *args, **options):
        return self.closed(Publisher("policy", *args, **({} if options.get("in_place") else {"bucket": 4096}) | options))

    def subscriber(self, **options):
        return self.closed(Subscriber("policy", **{"wait": PATIENCE, **options}))

    def closed(self, side):
        self.addCleanup(self.close, side)
        return side

    @staticmethod
    def close(side):
        gc.collect()
        side.close()

    def in_thread(self, f, *args):
        """Call f beside this thread. What is returned waits for it, and raises what it raised."""
        outcome = []

        def run():
            try:
                outcome.append((f(*args), None))
            except BaseException as e:
                outcome.append((None, e))

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join, PATIENCE)

        def result():
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive(), "it does not come to its end")
            value, error = outcome[0]
            if error:
                raise error
            return value

        return result


def send_all(pub, step, arrays):
    with pub.update(step) as send:
        for name, array in arrays.items():
            send(name, array)


def loaded(update, **options):
    """The arrays of an update, copied by whoever loads it."""
    got = {}
    update.load(lambda pairs: got.update((name, np.array(array)) for name, array in pairs), **options)
    return got


def full(step, *names, size=100):
    return {name: np.full(size, step, np.int32) for name in names}


class MainJob(WeightsTest):
    def test_two_programs_of_eight_lines(self):
        for text in (TRAINER, ENGINE):
            self.assertLessEqual(len(text.strip().splitlines()), 8)
        engine = self.python(GIVEN + ENGINE)
        self.ends(self.python(GIVEN + TRAINER), 0)
        self.ends(engine, 0, *(f"{step} True" for step in range(1, 21)))


class Updates(WeightsTest):
    def same(self, got, arrays):
        self.assertEqual(list(got), list(arrays))
        for name, array in arrays.items():
            self.assertEqual((got[name].dtype, got[name].shape), (array.dtype, array.shape), name)
            self.assertEqual(got[name].tobytes(), array.tobytes(), name)

    def test_all_types_and_shapes(self):
        arrays = {t.__name__: np.arange(24, dtype=t).reshape(2, 3, 4) for t in (np.uint8, np.int16, np.uint32, np.float16, np.float64, np.complex64)}
        arrays |= {"bool": np.array([True, False]), "scalar": np.array(7.0), "empty": np.zeros((0, 3)), "t": np.arange(6).reshape(2, 3).T, "é" * 500: np.arange(3)}
        pub, sub = self.publisher(bucket=1 << 20), self.subscriber()
        self.assertIsNone(sub.metadata)
        send_all(pub, -5, arrays)
        update = sub.next()
        self.assertEqual((update.number, update.step, update.metadata, sub.step), (1, -5, None, None))
        self.same(loaded(update), {k: np.ascontiguousarray(v) if v.ndim else v for k, v in arrays.items()})
        self.assertEqual((sub.step, sub.torn, pub.step, pub.number), (-5, None, -5, 1))
        with common.raises(self, gpufd.WeightsError, "over"):
            loaded(update)

    def test_bytes_and_views(self):
        pub, sub = self.publisher(), self.subscriber()
        memory = self.closed(gpufd.allocate(64))
        memory.write(0, bytes(range(64)))
        send_all(pub, 1, {"bytes": b"abc", "buffer": memoryview(np.arange(3)), "ours": memory.view("BF16", (4, 8))})
        kinds = {}
        sub.next().load(lambda pairs: kinds.update((name, (a.dtype.name, a.shape, a.tobytes())) for name, a in pairs))
        self.assertEqual(kinds, {"bytes": ("U8", (3,), b"abc"), "buffer": ("I64", (3,), np.arange(3).tobytes()), "ours": ("BF16", (4, 8), bytes(range(64)))})

    def test_metadata_is_known(self):
        pub = self.publisher({"w": np.zeros((2, 3), np.float32), "half": Meta("F16", (4,))})
        sub = self.subscriber()
        self.assertEqual(sub.metadata, {"w": Meta("F32", (2, 3)), "half": Meta("F16", (4,))})
        send_all(pub, 1, {"half": np.arange(4.0), "w": np.ones((2, 3), np.int64)})
        got = loaded(sub.next())
        self.same(got, {"half": np.arange(4, dtype=np.float16), "w": np.ones((2, 3), np.float32)})

    def test_what_the_metadata_does_not_have(self):
        pub = self.publisher([("w", Meta("F32", (2, 3))), ("b", Meta("BF16", (3,)))])
        sub = self.subscriber()
        for name, array, kind, reason in (
            ("v", np.zeros(3), gpufd.MismatchError, "tensors"), ("w", np.zeros((3, 2)), gpufd.MismatchError, "tensors"),
            ("b", np.zeros(3, np.float32), gpufd.MismatchError, "tensors"), ("", b"", gpufd.UsageError, "usage"), ("w", object(), gpufd.UsageError, "usage"),
        ):  # fmt: skip
            with self.subTest(name):
                with common.raises(self, kind, reason), pub.update(3) as send:
                    send(name, array)
                with common.raises(self, gpufd.TimedOutError, "timed-out"):
                    sub.next(0)
                self.assertEqual((sub.torn, sub.step), (None, None), "nothing of it was taken")
        with common.raises(self, gpufd.MismatchError, "tensors", "lacks tensors of the metadata.*'b'"), pub.update(4) as send:
            send("w", np.zeros((2, 3)))
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            sub.next(0)
        self.assertEqual((sub.torn, pub.step), (None, None))

    def test_shards(self):
        pub, sub = self.publisher({"w": Meta("F32", (2, 8), of=(8, 8), begin=(6, 0))}), self.subscriber()
        send_all(pub, 1, {"w": np.ones((2, 8), np.float32)})
        update = sub.next()
        self.assertEqual((update.metadata["w"].of, update.metadata["w"].begin), ((8, 8), (6, 0)))
        self.assertEqual(list(loaded(update)), ["w"])

    def test_pieces(self):
        """Tensors larger than a bucket are assembled, whichever bucket they begin and end in."""
        for bucket in (1024, 4096, 10_000):
            with self.subTest(bucket):
                r = np.random.default_rng(bucket)
                arrays = {f"w{i}": r.integers(0, 255, int(n), np.uint8) for i, n in enumerate([*r.integers(0, 5 * bucket, 8), bucket, 0])}
                with Publisher("policy", bucket=bucket, buckets=2) as pub, Subscriber("policy") as sub:
                    sends = self.in_thread(send_all, pub, 1, arrays)
                    self.same(loaded(sub.next()), arrays)
                    sends()

    def test_a_bucket_that_is_too_small(self):
        pub = self.publisher(bucket=512)
        with common.raises(self, gpufd.UsageError, "usage", "make it larger"):
            send_all(pub, 1, {"w" * 500: np.zeros(100)})

    def test_misuse(self):
        pub = self.publisher()
        with pub.update(1) as send:
            send("w", b"1")
            with common.raises(self, gpufd.UsageError, "usage", "was sent"):
                send("w", b"1")
            with common.raises(self, gpufd.UsageError, "usage", "not over"), pub.update(2):
                pass
            for call in (pub.close, lambda: pub.keep("x")):
                with common.raises(self, gpufd.UsageError, "usage"):
                    call()
        with common.raises(self, gpufd.UsageError, "usage", "is over"):
            send("v", b"1")
        with common.raises(self, gpufd.UsageError, "usage"), send:
            pass
        self.assertEqual(pub.step, 1)
        for options in ({"bucket": 1}, {"buckets": 385}, {"in_place": True}, {"metadata": 7}, {"metadata": [("w", b""), ("w", b"")]}, {"device": "x"}):
            with self.subTest(options), common.raises(self, gpufd.UsageError, "usage"):
                Publisher("other", **options)
        for options in ({"publisher": "GPU-1"}, {"wait": -1}, {"copy": 3}):
            with self.subTest(options), common.raises(self, gpufd.UsageError, "usage"):
                Subscriber("other", **options)


class Ends(WeightsTest):
    def test_a_loop_ends_with_its_publisher_and_another_goes_on(self):
        sub = self.subscriber()
        for round in (1, 2):
            with Publisher("policy", bucket=4096) as pub:
                loads = self.in_thread(lambda: [(u.number, loaded(u)["w"][0], sub.step) for u in sub])
                pub.await_subscribers(1, PATIENCE)
                for step in (10 * round, 10 * round + 1):
                    send_all(pub, step, full(step, "w"))
                pub.await_loaded(PATIENCE)
            self.assertEqual(loads(), [(1, 10 * round, 10 * round), (2, 10 * round + 1, 10 * round + 1)])

    def test_nobody_comes(self):
        sub = self.subscriber(wait=0.05)
        with common.raises(self, gpufd.TimedOutError, "timed-out", "no publisher of 'policy'"):
            sub.next()
        self.publisher()
        with common.raises(self, gpufd.TimedOutError, "timed-out", "no update"):
            sub.next(0.05)
        sub.close()
        with common.raises(self, gpufd.ClosedError, "closed"):
            sub.next()

    def test_a_whole_bucket_is_there_for_those_who_come_late(self):
        pub = self.publisher()
        send_all(pub, 1, full(1, "w"))
        self.assertEqual(loaded(self.subscriber().next(PATIENCE))["w"][0], 1)

    def test_an_update_that_is_not_loaded_is_left_out(self):
        pub, sub = self.publisher(bucket=512), self.subscriber()
        for step in (1, 2, 3):
            sends = self.in_thread(send_all, pub, step, full(step, "a", "b", "c"))
            update = sub.next()
            self.assertEqual(update.step, step)
            if step == 2:
                loaded(update)
            if step < 3:  # there is room, and updates do not overlap
                sends()
        self.assertEqual(sub.step, 2)
        loaded(update)
        sends()
        self.assertEqual(sub.step, 3)

    def test_loaded_by_whom(self):
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "w"))
        with common.raises(self, gpufd.TimedOutError, "timed-out", rf"1 subscriber \(process {os.getpid()}\) has not loaded update 1"):
            pub.await_loaded(0.02)
        self.assertEqual(pub.subscribers, [(os.getpid(), 0, False)])
        late = self.subscriber()
        pub.await_subscribers(2, PATIENCE)
        loaded(sub.next())
        pub.await_loaded(PATIENCE)  # not for the one who came late
        self.assertEqual(pub.subscribers, [(os.getpid(), 1, False), (os.getpid(), 0, False)])
        late.close()
        wait_for(lambda: len(pub.subscribers) == 1, "the end of a subscriber")


class Torn(WeightsTest):
    def setUp(self):
        super().setUp()
        self.pub, self.sub = self.publisher(bucket=512), self.subscriber()

    def is_torn(self, step):
        self.assertEqual(self.sub.torn, step)
        with common.raises(self, gpufd.WeightsError, "torn", f"step {step}") as caught:
            self.sub.step
        self.assertEqual(caught.exception.step, step)

    def goes_on(self, step):
        """The next update is whole."""
        loads = self.in_thread(lambda: loaded(self.sub.next(PATIENCE)))
        self.pub.await_subscribers(1, PATIENCE)
        send_all(self.pub, step, full(step, "a", "b"))
        self.assertEqual((loads()["b"][0], self.sub.step), (step, step))

    def test_the_trainer_raises(self):
        def fails():
            with self.assertRaisesRegex(ZeroDivisionError, "division"), self.pub.update(7) as send:
                for name in "abc":
                    send(name, np.zeros(100, np.int32))
                1 / 0

        fail = self.in_thread(fails)
        with common.raises(self, gpufd.WeightsError, "torn", "step 7.*given it up"):
            loaded(self.sub.next())
        fail()
        self.assertEqual((self.pub.step, self.pub.number), (None, 1))
        self.is_torn(7)
        self.goes_on(8)

    def test_the_trainer_raises_before_it_sends(self):
        with self.assertRaises(ZeroDivisionError), self.pub.update(7):
            1 / 0
        self.goes_on(8)
        with self.assertRaises(ZeroDivisionError), self.pub.update(9):
            1 / 0
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            self.sub.next(0.05)
        self.assertEqual((self.sub.torn, self.sub.step), (None, 8), "nothing of it was taken")

    def test_loading_raises(self):
        for take in (0, 1, 3):
            with self.subTest(take):
                sends = self.in_thread(send_all, self.pub, 20 + take, full(1, "a", "b", "c"))

                def fails(pairs):
                    for _ in range(take):
                        next(pairs)
                    1 / 0

                with self.assertRaises(ZeroDivisionError):
                    self.sub.next(PATIENCE).load(fails)
                if take:
                    self.is_torn(20 + take)
                else:
                    self.assertEqual((self.sub.torn, self.sub.step), (None, None), "nothing of it was taken")
                self.goes_on_behind(sends, 30 + take)
        wait_for(lambda: not self.sub._state.updates.reader._position.held, "the last bucket")

    def goes_on_behind(self, sends, step):
        """The rest of a torn update, and the next one."""
        rest = self.in_thread(self.sub.next, PATIENCE)
        sends()
        next_ = self.in_thread(send_all, self.pub, step, full(step, "a", "b"))
        loaded(rest())
        next_()
        self.assertEqual(self.sub.step, step)

    def test_tensors_are_left(self):
        sends = self.in_thread(send_all, self.pub, 7, full(1, "a", "b", "c"))
        with common.raises(self, gpufd.WeightsError, "torn", "has left tensor 'b'"):
            self.sub.next(PATIENCE).load(lambda pairs: next(pairs))
        self.is_torn(7)
        self.goes_on_behind(sends, 8)

    def test_all_but_the_end_is_taken(self):
        """A function that knows what comes need not ask for more."""
        sends = self.in_thread(send_all, self.pub, 7, full(1, "a", "b"))
        self.sub.next(PATIENCE).load(lambda pairs: [next(pairs), next(pairs)])
        sends()
        self.assertEqual(self.sub.step, 7)

    def test_tensors_without_a_function(self):
        sends = self.in_thread(send_all, self.pub, 7, full(7, "a", "b"))
        for name, array in self.sub.next(PATIENCE).tensors():
            self.assertEqual((name in "ab", self.sub.torn), (True, None))
            del array
        sends()
        self.assertEqual(self.sub.step, 7)
        sends = self.in_thread(send_all, self.pub, 8, full(8, "a", "b"))
        with contextlib.closing(self.sub.next(PATIENCE).tensors()) as pairs:
            next(pairs)
        self.is_torn(8)
        self.goes_on_behind(sends, 9)

    def test_tensors_that_are_left_for_the_next_update(self):
        sends = self.in_thread(send_all, self.pub, 7, full(7, "a", "b"))
        pairs = self.sub.next(PATIENCE).tensors()
        next(pairs)
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            self.sub.next(0.01)
        self.is_torn(7)
        with common.raises(self, gpufd.WeightsError, "torn", "was left"):
            list(pairs)
        sends()
        self.goes_on(8)

    def test_a_publisher_that_ends_within(self):
        ends = self.in_thread(self.ends_within)
        with common.raises(self, gpufd.WeightsError, "torn", "step 7.*the trainer .* has ended"):
            loaded(self.sub.next(PATIENCE))
        ends()
        self.is_torn(7)
        self.pub.close()
        with Publisher("policy", bucket=512) as self.pub:
            self.goes_on(1)

    def ends_within(self):
        """The channel ends, and the update does not."""
        with contextlib.suppress(gpufd.ClosedError), self.pub.update(7) as send:
            for name in "abc":
                send(name, np.zeros(100, np.int32))
            self.pub._writer.close()

    def test_nonsense(self):
        """What a publisher must not write tears the update, and ends it."""
        sends = self.in_thread(send_all, self.pub, 7, full(1, "a"))
        sends()
        update = self.sub.next(PATIENCE)
        slot = self.pub._writer.acquire()
        slot.publish(size=10, user=b"GFWU")
        loaded(update)
        with common.raises(self, gpufd.WeightsError, "malformed", "want 80"):
            self.sub.next(PATIENCE)
        self.assertEqual(self.sub.step, 7)
        wait_for(lambda: not self.pub.subscribers, "the end of the subscriber")


class Kept(WeightsTest):
    """Tensors keep their buckets."""

    def test_tensors_that_are_kept_stay_as_they_are(self):
        """Also when all slots but one are kept: what comes then are copies, and nobody waits."""
        pub, sub = self.publisher(bucket=1200, buckets=4), self.subscriber()
        kept = []
        for step in range(1, 9):
            sends = self.in_thread(send_all, pub, step, full(step, "a", "b", "c"))
            sub.next(PATIENCE).load(kept.extend)
            sends()
        self.assertEqual([array.readonly for _, array in kept], [True] * 5 + [False] * 19)  # of 3 buckets, with 2, 1 and 2
        for i, (name, array) in enumerate(kept):
            self.assertEqual((name, set(np.asarray(array))), ("abc"[i % 3], {i // 3 + 1}))
        del array
        with common.raises(self, gpufd.InUseError, "in-use"):
            sub.close()
        kept.clear()

    def test_a_slot_comes_back_when_its_last_tensor_is_gone(self):
        """The trainer waits for it, and the engine does something else meanwhile."""
        pub, sub = self.publisher(buckets=2, stall=PATIENCE), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        kept = dict(sub.next(PATIENCE).tensors())
        self.assertEqual([m.kept for m in pub._writer.members], [1])
        send_all(pub, 2, full(2, "a"))
        update = sub.next(PATIENCE)
        sends = self.in_thread(send_all, pub, 3, full(3, "a", "b"))
        del kept["a"]
        self.assertEqual(kept["b"].tobytes(), full(1, "b")["b"].tobytes())
        del kept["b"]
        sends()
        loaded(update)
        self.assertEqual(loaded(sub.next(PATIENCE))["b"][0], 3)

    def test_a_view_of_an_array_keeps_it(self):
        pub, sub = self.publisher(buckets=2), self.subscriber()
        send_all(pub, 1, full(1, "a"))
        ((_, array),) = sub.next(PATIENCE).tensors()
        view = np.asarray(array)[3:5]
        del array
        for step in range(2, 6):
            send_all(pub, step, full(step, "a"))
            loaded(sub.next(PATIENCE))
        self.assertEqual(list(view), [1, 1])

    def test_copies(self):
        pub, sub = self.publisher(buckets=2), self.subscriber(copy=True)
        kept = []
        for step in range(1, 6):
            send_all(pub, step, full(step, "a"))
            sub.next(PATIENCE).load(kept.extend)
        self.assertEqual([(array.readonly, np.asarray(array)[7]) for _, array in kept], [(False, step) for step in range(1, 6)])
        send_all(pub, 6, full(6, "a"))
        sub.next(PATIENCE).load(kept.extend, copy=False)
        self.assertTrue(kept[-1][1].readonly)
        kept.clear()

    def test_tensors_outlive_their_publisher(self):
        sub = self.subscriber()
        with Publisher("policy", bucket=4096) as pub:
            pub.await_subscribers(0)
            send_all(pub, 1, full(1, "a"))
            kept = list(sub.next(PATIENCE).tensors())
        with Publisher("policy", bucket=4096) as pub:
            with common.raises(self, gpufd.WeightsError, "ended", rf"the trainer \(process {os.getpid()}\) has ended in order"):
                sub.next(PATIENCE)
            send_all(pub, 2, full(2, "a"))
            self.assertEqual(loaded(sub.next(PATIENCE))["a"][0], 2)
            self.assertEqual(np.asarray(kept[0][1])[0], 1)
            kept.clear()
            send_all(pub, 3, full(3, "a"))
            loaded(sub.next(PATIENCE))
            wait_for(lambda: sub._state.let_go() or not sub._state.left, "the end of the first publisher's memory")


class Stalls(WeightsTest):
    def test_the_subscriber_that_keeps_all_is_named(self):
        pub, sub = self.publisher(bucket=512, buckets=3, stall=0.05), self.subscriber()
        with common.raises(self, gpufd.ChannelError, "stalled", rf"{os.getpid()}.*keeps 3 of 3"):
            send_all(pub, 1, full(1, "a", "b", "c", "d"))
        load = self.in_thread(lambda: loaded(sub.next(PATIENCE)))
        send_all(pub, 2, full(2, "a"))  # there was no room to say that the first one is given up
        with common.raises(self, gpufd.WeightsError, "torn", "step 1.*went on with another"):
            load()
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], sub.step), (2, 2))


class Devices(WeightsTest):
    def test_each_gpu_has_its_own(self):
        one, two = Publisher("policy", bucket=4096), Publisher("policy", bucket=4096, device=1)
        with one, two:
            for step, pub in ((1, one), (2, two)):
                send_all(pub, step, full(step, "a"))
            uuid = gpufd.memory.device.device_name(two._writer.memory.uuid)
            for step, options in ((1, {}), (2, {"device": 1}), (2, {"publisher": uuid}), (2, {"device": 1, "publisher": uuid.upper()})):
                with self.subTest(options), Subscriber("policy", **options) as sub:
                    self.assertEqual(loaded(sub.next(PATIENCE))["a"][0], step)
            self.environ(CUDA_VISIBLE_DEVICES="1,0")  # ordinals say nothing
            with Subscriber("policy", device=0) as sub:
                self.assertEqual(loaded(sub.next(PATIENCE))["a"][0], 2)


if __name__ == "__main__":
    unittest.main()
