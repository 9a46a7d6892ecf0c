"""Updates that a subscriber must not take for whole weights, and buckets that come back whatever happens, on the software driver."""

import gc
import threading
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE, wait_for
from gpufd.channel.reader import Reader
from gpufd.memory.array import Array
from gpufd.weights import Publisher, Subscriber, claims
from gpufd.weights.views import Views
from test_weights import WeightsTest, full, loaded, np, send_all


class Taking(WeightsTest):
    def revoke(self, pub):
        for lease in pub._writer._offering.leases:
            lease.revoke("the operator said so")
        wait_for(lambda: not pub.subscribers, "the end of the lease")

    def test_a_reader_that_is_dropped_while_it_loads(self):
        pub, sub = self.publisher(buckets=2), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))

        def load(pairs):
            np.array(next(pairs)[1])
            self.revoke(pub)
            for step in (2, 3, 4):
                send_all(pub, step, full(step, "a", "b"))
            for _ in pairs:
                pass

        with common.raises(self, gpufd.WeightsError, "torn", "step 1"):
            sub.next(PATIENCE).load(load)
        self.assertEqual(sub.torn, 1)

    def test_a_function_that_raises_behind_the_last_tensor(self):
        """All is there, and not loaded."""
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        with self.assertRaises(ZeroDivisionError):
            sub.next(PATIENCE).load(lambda pairs: (list(pairs), 1 / 0))
        self.assertEqual(sub.torn, 1)
        with common.raises(self, gpufd.WeightsError, "torn", "ZeroDivisionError"):
            sub.step
        with common.raises(self, gpufd.WeightsError, "torn", "has not loaded update 1"):
            pub.await_loaded(PATIENCE)
        send_all(pub, 2, full(2, "a", "b"))
        loaded(sub.next(PATIENCE))
        self.assertEqual((sub.step, pub.await_loaded(PATIENCE)), (2, 1))

    def test_no_room_for_the_first_copy(self):
        """Nothing was given out, so the weights are the old ones."""
        pub, sub = self.publisher(), self.subscriber(copy=True)
        for step in (1, 2):
            send_all(pub, step, full(step, "a", "b"))
        loaded(sub.next(PATIENCE))
        with mock.patch.object(Views, "copy", side_effect=MemoryError), self.assertRaises(MemoryError):
            loaded(sub.next(PATIENCE))
        self.assertEqual((sub.step, sub.torn), (1, None))

    def test_an_exception_that_is_kept(self):
        """It keeps no bucket, wherever a copy has failed."""
        pub, sub = self.publisher(buckets=2), self.subscriber(copy=True)

        def no_room(*args):
            raise MemoryError

        send_all(pub, 1, full(1, "a"))
        with mock.patch.object(Array, "copy", no_room):
            try:
                sub.next(PATIENCE).load(list)
            except MemoryError as e:
                kept = e  # assertRaises clears its frames
        wait_for(lambda: pub._writer.members[0].kept == 0, "the bucket")
        sub.close()
        del kept

    def test_subscribers_that_were_not_closed(self):
        """They leave when their last tensor is gone, and at once if none is there."""
        with Publisher("dropped", bucket=4096) as pub:
            sub = Subscriber("dropped")
            pub.await_subscribers(1, PATIENCE)
            del sub
            wait_for(lambda: not pub.subscribers, "the end of the subscriber")
        for in_with in (False, True):
            with self.subTest(in_with), Publisher("dropped", bucket=4096, buckets=2) as pub:
                sub = Subscriber("dropped")
                pub.await_subscribers(1, PATIENCE)
                send_all(pub, 1, full(1, "a"))
                kept = list(sub.next(PATIENCE).tensors())
                if in_with:
                    with common.raises(self, gpufd.InUseError, "in-use"), sub:
                        pass
                del sub
                gc.collect()
                self.assertEqual((len(pub.subscribers), set(np.asarray(kept[0][1]))), (1, {1}))
                kept.clear()
                wait_for(lambda: not pub.subscribers, "the end of the subscriber")

    def test_an_update_outlives_its_subscriber(self):
        pub = self.publisher(bucket=512)
        send_all(pub, 1, full(1, "a"))
        update = Subscriber("policy").next(PATIENCE)
        gc.collect()
        self.assertEqual(loaded(update)["a"][0], 1)
        del update
        wait_for(lambda: not pub.subscribers, "the end of the subscriber")

    def test_a_publisher_that_cannot_be_left(self):
        """Loading goes on, and close says why."""
        sub, real = self.subscriber(), Reader.close
        with Publisher("policy", bucket=4096) as pub:
            pub.await_subscribers(0)
            send_all(pub, 1, full(1, "a"))
            kept = list(sub.next(PATIENCE).tensors())
        with common.raises(self, gpufd.WeightsError, "ended"):
            sub.next(PATIENCE)
        left, pub = sub._state.left[0], self.publisher()
        send_all(pub, 2, full(2, "a"))

        def close(reader, *args):
            if reader is left:
                raise gpufd.DriverError("close", 999, "CUDA_ERROR_UNKNOWN", "unknown")
            real(reader, *args)

        update = sub.next(PATIENCE)
        kept.clear()
        with mock.patch.object(Reader, "close", close), self.assertLogs("gpufd", "INFO") as logs:
            loaded(update)
            self.assertEqual((sub.step, sub._state.left), (2, [left]))
            self.assertRaises(gpufd.DriverError, sub.close)
        self.assertRegex(logs.output[0], r"the trainer \(process \d+\) is gone, and cannot be left yet: .*CUDA_ERROR_UNKNOWN")
        sub.close()

    def test_an_iterator_that_was_left(self):
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        pairs = sub.next(PATIENCE).tensors()
        next(pairs)
        send_all(pub, 2, full(2, "a", "b"))
        loaded(sub.next(PATIENCE))
        with common.raises(self, gpufd.WeightsError, "torn", "was left"):
            next(pairs)
        self.assertEqual((sub.step, sub.torn), (2, None))

    def test_a_load_ends_in_time(self):
        pub, sub = self.publisher(bucket=512), self.subscriber()
        with pub.update(1) as send:
            for name, array in full(1, "a", "b").items():
                send(name, array)
            with common.raises(self, gpufd.TimedOutError, "timed-out"):
                loaded(sub.next(PATIENCE), timeout=0.01)
        self.assertEqual((sub.torn, pub._writer.members[0].noted), (1, 1 | 1 << 63))

    def test_a_bucket_that_cannot_be_given_back_at_once(self):
        pub, sub, fails, real = self.publisher(buckets=2), self.subscriber(), threading.Event(), claims.give_back

        def give_back(*args):
            if not fails.is_set():
                fails.set()
                raise gpufd.Error("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT")
            real(*args)

        with mock.patch.object(claims, "give_back", give_back):
            send_all(pub, 1, full(1, "a"))
            kept = list(sub.next(PATIENCE).tensors())
            kept.clear()
            gc.collect()
            wait_for(lambda: fails.is_set() and pub._writer.members[0].kept == 0, "the bucket")


if __name__ == "__main__":
    unittest.main()
