"""The side that sends weights: sends that fail, waits, subscribers that did not load, on the software driver."""

import contextlib
import logging
import os
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE
from gpufd.channel import Reader
from gpufd.channel.readers import Readers
from gpufd.channel.writer import Writer
from gpufd.weights import sending
from gpufd.weights.frames import FAILED
from test_weights import WeightsTest, full, loaded, send_all

np = common.need_numpy()


class Sends(WeightsTest):
    """A send that failed gives the update up, though the exception was caught."""

    def gives_up(self, sub, step):
        with common.raises(self, gpufd.WeightsError, "torn", f"step {step}"):
            loaded(sub.next(PATIENCE))

    def test_a_copy_that_fails(self):
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        loaded(sub.next(PATIENCE))
        for error in (ValueError("no such memory"), KeyboardInterrupt()):
            with self.subTest(error):
                why = f"step 2 is given up.*'b' was not sent: {str(error) or 'KeyboardInterrupt'}"
                with common.raises(self, gpufd.WeightsError, "torn", why) as caught, pub.update(2) as send:
                    send("a", full(2, "a")["a"])
                    with mock.patch.object(sending.Slot, "write", side_effect=error), self.assertRaises(type(error)):
                        send("b", full(2, "b")["b"])
                    with common.raises(self, gpufd.WeightsError, "torn", why):
                        send("c", full(2, "c")["c"])
                self.assertEqual((caught.exception.step, pub.step), (2, 1))
                with common.raises(self, gpufd.TimedOutError, "timed-out"):
                    sub.next(0)
        send_all(pub, 3, full(3, "a", "b"))
        self.assertEqual((loaded(sub.next(PATIENCE))["b"][0], pub.step, sub.step), (3, 3, 3))

    def test_a_stall_in_the_middle_of_a_tensor(self):
        pub, sub = self.publisher(bucket=512, buckets=3, stall=0.05), self.subscriber()
        with common.raises(self, gpufd.WeightsError, "torn", "'large' was not sent: update 1 .step 1.: no bucket has come free"), pub.update(1) as send:
            send("small", b"1")
            with common.raises(self, gpufd.ChannelError, "stalled"):
                send("large", bytes(2000))
            load = self.in_thread(self.gives_up, sub, 1)
        load()
        self.assertIsNone(pub.step)
        send_all(pub, 2, full(2, "a"))
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], sub.step), (2, 2))

    def test_what_was_refused(self):
        """The update would lack it."""
        pub, sub = self.publisher(), self.subscriber()
        for name, data in (("b", object()), ("", b"1"), ("b" * 2000, b"1")):
            with self.subTest(name[:1]):
                with common.raises(self, gpufd.WeightsError, "torn", f"step 1 is given up.*'{name[:9]}.* was not sent"), pub.update(1) as send:
                    send("a", b"1")
                    with common.raises(self, gpufd.UsageError, "usage"):
                        send(name, data)
                with common.raises(self, gpufd.TimedOutError, "timed-out"):
                    sub.next(0)
        self.assertIsNone(pub.step)

    def test_misuse_changes_nothing(self):
        pub, sub = self.publisher(), self.subscriber()
        with pub.update(1) as send:
            send("a", b"1")
            for name in ("a", 7, ["a"]):
                with common.raises(self, gpufd.UsageError, "usage"):
                    send(name, b"1")
        self.assertEqual((list(loaded(sub.next(PATIENCE))), pub.step), (["a"], 1))

    @contextlib.contextmanager
    def interrupted(self):
        """An interrupt comes right behind a bucket that is published."""
        give = Readers.give

        def gives(*args):
            give(*args)
            raise KeyboardInterrupt

        with mock.patch.object(Readers, "give", gives), self.assertRaises(KeyboardInterrupt):
            yield

    def test_an_interrupt_behind_a_bucket(self):
        """The engine learns at once that no more comes."""
        pub, sub = self.publisher(bucket=1024, buckets=3), self.subscriber()
        pub.await_subscribers(1, PATIENCE)
        with self.assertRaises(KeyboardInterrupt), pub.update(1) as send:
            send("a", full(1, "a")["a"])
            with self.interrupted():
                send("b", full(1, "b", size=200)["b"])
            raise KeyboardInterrupt
        with common.raises(self, gpufd.WeightsError, "torn", "the publisher has given it up"):
            loaded(sub.next(PATIENCE), timeout=PATIENCE)
        self.assertIsNone(pub.step)
        send_all(pub, 2, full(2, "a"))
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], pub.step), (2, 2))

    def test_an_interrupt_behind_the_last_bucket(self):
        """Both sides say that the update is whole."""
        pub, sub = self.publisher(), self.subscriber()
        pub.await_subscribers(1, PATIENCE)
        with self.interrupted(), pub.update(1) as send:
            send("a", full(1, "a")["a"])
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], sub.step, pub.step), (1, 1, 1))
        self.assertEqual(pub.await_loaded(PATIENCE), 1)
        send_all(pub, 2, full(2, "a"))
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], pub.step), (2, 2))

    def test_a_second_interrupt(self):
        """It may come while the update is given up: the publisher goes on all the same."""
        pub, sub = self.publisher(), self.subscriber()
        with self.assertRaises(KeyboardInterrupt), pub.update(1):
            interrupt = mock.patch.object(Writer, "acquire", side_effect=KeyboardInterrupt)
            interrupt.start()
            self.addCleanup(interrupt.stop)
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt), pub.update(2) as send:
            send("a", b"1")
        interrupt.stop()
        send_all(pub, 3, full(3, "a"))
        self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], pub.step), (3, 3))


class Waits(WeightsTest):
    def test_a_wait_is_logged(self):
        """Again and again, with those that keep buckets, the one with the most first."""
        pub, sub = self.publisher(bucket=512, buckets=2), self.subscriber()
        pub.await_subscribers(1, PATIENCE)
        send_all(pub, 1, full(1, "a", "b"))
        with mock.patch.object(sending, "_LONG", 0.01), self.assertLogs("gpufd", logging.WARNING) as logs:
            sends = self.in_thread(send_all, pub, 2, full(2, "a", "b"))
            common.wait_for(lambda: len(logs.records) > 1, "two lines")
            for _ in range(2):
                loaded(sub.next(PATIENCE))
            sends()
        for record in logs.records:
            self.assertRegex(record.getMessage(), rf"update 2 \(step 2\): no bucket has come free for 0\.\d+ s: process {os.getpid()} keeps 2 of 2")

    def test_a_stall_is_as_long_as_it_says(self):
        """Also if the wait was logged before."""
        pub, sub = self.publisher(bucket=512, buckets=2, stall=0.1), self.subscriber()
        with mock.patch.object(sending, "_LONG", 0.03), self.assertLogs("gpufd", logging.WARNING) as logs:
            with common.raises(self, gpufd.ChannelError, "stalled", rf"for 0\.1 s: process {os.getpid()} keeps 2 of 2"):
                send_all(pub, 1, full(1, "a", "b", "c"))
        self.assertIn(len(logs.records), (1, 2, 3))
        del sub


class Noted(WeightsTest):
    """The publisher knows of each subscriber which update it is done with, and whether it has that."""

    def reader(self, pub):
        reader = self.closed(Reader(pub._writer._name))
        return reader

    def test_one_that_has_not_loaded_it(self):
        pub = self.publisher()
        good, bad = self.reader(pub), self.reader(pub)
        pub.await_subscribers(2, PATIENCE)
        for step in (1, 2):
            send_all(pub, step, full(step, "a"))
        good.note(2)
        bad.note(FAILED + 1)  # which is of the update before: it may load this one
        with common.raises(self, gpufd.TimedOutError, "timed-out", rf"1 subscriber \(process {os.getpid()}\) has not loaded update 2"):
            pub.await_loaded(0)
        self.assertEqual([s.loaded for s in pub.subscribers], [2, 0])
        waits = self.in_thread(pub.await_loaded, PATIENCE)
        bad.note(FAILED + 2)
        with common.raises(self, gpufd.WeightsError, "torn", rf"process {os.getpid()}\) has not loaded update 2 \(step 2\) whole") as caught:
            waits()
        self.assertEqual(caught.exception.step, 2)

    def test_one_that_goes_on(self):
        """The word of an update that it has loaded is less than that of one that it has not."""
        pub = self.publisher()
        reader = self.reader(pub)
        pub.await_subscribers(1, PATIENCE)
        send_all(pub, 1, full(1, "a"))
        for number, loads in ((FAILED + 1, 0), (2, 2)):
            reader.note(number)
            self.assertEqual([s.loaded for s in pub.subscribers], [loads])
        pub.await_loaded(0)


if __name__ == "__main__":
    unittest.main()
