"""The trainer's side of weights: its arguments, what it refuses to send, what it waits for, and interrupts. The driver is the software driver."""

import logging
import os
import signal
import socket
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE, wait_for
from gpufd.channel import Reader, readers
from gpufd.channel.slots import Slots
from gpufd.memory.drivers import device_uuid
from gpufd.weights import Meta, Publisher, publisher, sending, waits
from gpufd.weights.meta import decode_metadata
from gpufd.wire.listen import take_lock
from gpufd.wire.records import SOFT
from test_weights import WeightsTest, full, loaded, send_all

np = common.need_numpy()
W = {"w": Meta("F32", (2, 2))}
TRAINER = """
pub = gpufd.weights.Publisher("policy", bucket=4096, buckets=2)
print("ready")
pub.await_subscribers(1)
for step in range(9):
    with pub.update(step) as send:
        send("w", b"1")
"""
QUICK = 0.8  # seconds: what waits for a peer takes a second or more


class Arguments(WeightsTest):
    def test_names_of_types(self):
        """As safetensors has them, or PyTorch, which need not be there."""
        for name, dtype in (
            ("BF16", "BF16"), ("bf16", "BF16"), ("bfloat16", "BF16"), ("torch.bfloat16", "BF16"), ("float32", "F32"), ("float", "F32"), ("half", "F16"),
            ("float8_e4m3fn", "F8_E4M3"), ("torch.uint8", "U8"), (np.dtype("int64"), "I64"),
        ):  # fmt: skip
            self.assertEqual(Meta(name, (2,)).dtype, dtype, name)
        for name in ("float7", "", None, 7, np.float32):
            with self.subTest(name), common.raises(self, gpufd.UsageError, "usage", "is unknown: name it as safetensors does .*BF16.*PyTorch"):
                Meta(name, (2,))

    def test_a_publisher_names_types_as_safetensors_does(self):
        with common.raises(self, gpufd.WeightsError, "malformed", "'w': type 'bfloat16' is unknown"):
            decode_metadata(b'{"tensors":[{"name":"w","dtype":"bfloat16","shape":[2]}]}')

    def test_slices(self):
        for of, begin, why in (
            ((4, 4), (3, 0), r"\[2, 2\] from \[3, 0\] on is no slice of \[4, 4\]"), ((4,), (0, 0), "of has 1 dimension, shape has 2"),
            ((4, 4), (0, 0, 0), "begin has 3 dimensions, shape has 2"), ((4, 4), None, "of and begin go together"),
        ):  # fmt: skip
            with self.subTest(why), common.raises(self, gpufd.UsageError, "usage", why):
                Meta("BF16", (2, 2), of=of, begin=begin)

    def test_publishers(self):
        for args, why in (
            ({"name": ""}, "the name of a publisher is empty"), ({"stall": 0}, "stall of 0: a number of seconds above 0"),
            ({"buckets": 1}, "one is loaded while another one is filled"),
            ({"metadata": {"é" * 513: b""}}, "1 to 1024 bytes are allowed"), ({"metadata": {"": b""}}, "1 to 1024 bytes"),
            ({"metadata": W, "in_place": True, "bucket": 4096}, "without bucket= and buckets="), ({"metadata": W, "in_place": True, "buckets": 2}, "without bucket="),
        ):  # fmt: skip
            with self.subTest(args), common.raises(self, gpufd.UsageError, "usage", why):
                Publisher(**{"name": "policy", **args})

    def test_a_bucket_is_no_larger_than_all_tensors(self):
        """They have room in whatever order they come."""
        metadata = {f"w{i}": Meta("U8", (size,)) for i, size in enumerate((1, 255, 256, 0, 1025, 3000))}
        pub, sub = self.publisher(metadata, bucket=256 << 20), self.subscriber()
        self.assertLess(pub._writer.memory.size, 4 * 8192)
        for step, names in enumerate((list(metadata), list(reversed(metadata)), sorted(metadata, key=lambda name: -metadata[name].size)), 1):
            send_all(pub, step, {name: np.full(metadata[name].shape, step, np.uint8) for name in names})
            self.assertEqual(pub._writer.last, step, "one bucket for each update")
            self.assertEqual({(name, *set(a.tolist())) for name, a in loaded(sub.next(PATIENCE)).items() if a.size}, {(n, step) for n in names if metadata[n].size})
        self.assertEqual(self.publisher_of("large", {"w": Meta("U8", (9000,))}), 4096)

    def publisher_of(self, name, metadata):
        """How large the buckets of a publisher are."""
        with Publisher(name, metadata, bucket=4096) as pub:
            return pub._writer.slot_size


class Refused(WeightsTest):
    def test_what_cannot_be_sent(self):
        """Errors name the tensor."""
        pub = self.publisher(W)
        for data, why in (
            (None, "NoneType is no bytes"), ([1], "list is no bytes"), (np.ones((2, 2), complex), "is complex, and F32"), (np.array([["a"]]), "does not convert"),
        ):  # fmt: skip
            with self.subTest(why), common.raises(self, gpufd.UsageError, "usage", f"tensor 'w'.*{why}"), pub.update(1) as send:
                send("w", data)
        with pub.update(2) as send:
            send("w", np.ones((2, 2)))
            with common.raises(self, gpufd.UsageError, "usage", "'w' was sent already in this update"):
                send("w", np.ones((2, 2)))
        self.assertEqual(pub.step, 2)

    def test_conversions_that_lose_parts_of_numbers(self):
        pub = self.publisher({"w": Meta("I32", (2,)), "f": Meta("F16", (2,))})
        with common.raises(self, gpufd.UsageError, "usage", "'w' is of float64, and I32, which the metadata says, has no fractions: round"), pub.update(1) as send:
            send("w", np.array([1.5, np.nan]))
        for array in np.array([1.5, 2.5], object), np.array(["1", "2"]), np.array([1, 2], "m8[s]"):
            with self.subTest(array.dtype), common.raises(self, gpufd.UsageError, "usage", "I32, which the metadata says, has no fractions"), pub.update(1) as send:
                send("w", array)
        with pub.update(2) as send:
            send("w", np.ones(2, np.int8))
            send("f", np.ones(2, np.float64))
        self.assertEqual(pub.step, 2)

    def test_steps(self):
        """Whole numbers of all kinds."""
        pub = self.publisher()
        for step in (np.int64(7), np.uint8(8), 9):
            with pub.update(step):
                pass
            self.assertEqual((pub.step, type(pub.step)), (step, int))
        for step in (True, 1.0, "1", None, 1 << 63):
            with self.subTest(step), common.raises(self, gpufd.UsageError, "usage", "step"):
                pub.update(step)

    def test_arguments_that_are_wrong_are_named(self):
        for buckets in (0, 1, 385):
            with self.subTest(buckets), common.raises(self, gpufd.UsageError, "usage", f"buckets={buckets}: 2 to 384 are allowed"):
                self.publisher(buckets=buckets)
        with common.raises(self, gpufd.UsageError, "usage", "^driver is auto, cuda or soft, not 'x'"):
            self.publisher(driver="x")

    def test_an_engine_that_fails_before_it_takes_a_tensor(self):
        """Its weights are the old ones, and the trainer does not say otherwise."""
        pub, sub = self.publisher(), self.subscriber()
        for step in (5, 6):
            send_all(pub, step, full(step, "w"))
        loaded(sub.next(PATIENCE))
        self.assertRaises(ZeroDivisionError, sub.next(PATIENCE).load, lambda _: 1 // 0)
        self.assertEqual((sub.step, sub.torn), (5, None))
        with common.raises(self, gpufd.WeightsError, "torn", r"has not loaded update 2 \(step 6\) whole, and says why: it has the weights that it had before, or weights of two steps"):
            pub.await_loaded(PATIENCE)

    def test_a_publisher_that_is_over(self):
        server = gpufd.Server(self.path)
        pub = self.publisher(socket=server)
        server.close()
        for call in (lambda: pub.update(1).__enter__(), lambda: pub.await_subscribers(1), pub.await_loaded, pub.__enter__):
            with common.raises(self, gpufd.ChannelError, "not-offered", "the weights are not offered any more"):
                call()
        pub.close()
        bound = self.publisher(W, in_place=True)
        bound.close()
        for call in (lambda: bound.bind(mock.Mock()), lambda: pub.update(1).__enter__(), lambda: pub.await_subscribers(1), pub.await_loaded, pub.__enter__):
            with common.raises(self, gpufd.ClosedError, "closed", "the publisher was closed"):
                call()


class Loaded(WeightsTest):
    """await_loaded, with readers of the channel as subscribers."""

    def reader(self, pub, n=1):
        reader = self.closed(Reader(pub._writer._name))
        pub.await_subscribers(n, PATIENCE)
        return reader

    def not_loaded(self, pub, why, **options):
        with common.raises(self, gpufd.WeightsError, "not-loaded", why):
            pub.await_loaded(PATIENCE, **options)

    def test_how_many_have(self):
        pub = self.publisher()
        self.not_loaded(pub, "no update has ended whole")
        self.assertEqual(pub.await_loaded(n=0), 0)
        readers = [self.reader(pub, n) for n in (1, 2)]
        send_all(pub, 7, full(7, "a"))
        waits = self.in_thread(pub.await_loaded, PATIENCE)
        for reader in readers:
            reader.note(1)
        self.assertEqual(waits(), 2)
        self.not_loaded(pub, r"2 of 3 wanted subscribers are there with update 1 \(step 7\)", n=3)

    def test_nobody_is_left(self):
        pub = self.publisher()
        reader = self.reader(pub)
        send_all(pub, 7, full(7, "a"))
        waits = self.in_thread(self.not_loaded, pub, "0 of 1 wanted subscribers are there with update 1")
        reader.close()
        waits()
        self.assertEqual(pub.await_loaded(PATIENCE, n=0), 0)

    def test_one_that_comes_late(self):
        """It loads an update of one bucket, and no other one."""
        for size, waits in ((100, True), (9000, False)):
            with self.subTest(size), Publisher("late", bucket=4096) as pub:
                send_all(pub, 7, {"a": bytes(size)})
                reader = self.reader(pub)
                if waits:
                    with common.raises(self, gpufd.TimedOutError, "timed-out"):
                        pub.await_loaded(0)
                    reader.note(1)
                    self.assertEqual(pub.await_loaded(PATIENCE), 1)
                else:
                    self.not_loaded(pub, "0 of 1")
                reader.close()

    def test_an_update_that_was_given_up(self):
        """Nobody can have loaded it, whatever they loaded before."""
        pub = self.publisher()
        reader = self.reader(pub)
        send_all(pub, 7, full(7, "a"))
        reader.note(1)
        with self.assertRaises(ZeroDivisionError), pub.update(8):
            1 / 0
        for n in (0, 1):
            with common.raises(self, gpufd.WeightsError, "torn", "step 8 was given up.*send another one") as caught:
                pub.await_loaded(PATIENCE, n=n)
            self.assertEqual(caught.exception.step, 8)
        send_all(pub, 9, full(9, "a"))
        reader.note(3)
        self.assertEqual(pub.await_loaded(PATIENCE), 1)

    def test_an_engine_whose_load_raised(self):
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 7, full(7, "a"))
        with self.assertRaises(ZeroDivisionError):
            sub.next(PATIENCE).load(lambda pairs: 1 / 0)
        with common.raises(self, gpufd.WeightsError, "torn", rf"\(process {os.getpid()}\) has not loaded update 1 \(step 7\) whole"):
            pub.await_loaded(PATIENCE)
        self.assertEqual(pub.subscribers, [(os.getpid(), 0, True)])

    def test_what_was_published_is_there_after_the_end(self):
        """Also for one that was busy, and did not hang up in time."""
        pub, sub = self.publisher(), self.subscriber()
        pub.await_subscribers(1, PATIENCE)
        for step in (1, 2):
            send_all(pub, step, full(step, "a"))
        pub.close()
        self.assertEqual([loaded(update)["a"][0] for update in sub], [1, 2])

    def test_waits_are_logged(self):
        pub = self.publisher()
        with mock.patch.multiple(waits, _LONG=0.01, _AGAIN=0.01):
            with self.assertLogs("gpufd", logging.INFO) as logs:
                with common.raises(self, gpufd.TimedOutError, "timed-out", r"0 of 2 subscribers of 'policy' have come within 0\.1 s"):
                    pub.await_subscribers(2, 0.1)
            self.assertRegex(logs.output[0], r"await_subscribers: 0 of 2 subscribers of 'policy' have come for \d s$")
            self.reader(pub)
            send_all(pub, 7, full(7, "a"))
            with self.assertLogs("gpufd", logging.INFO) as logs, common.raises(self, gpufd.TimedOutError, "timed-out", "has not loaded update 1"):
                pub.await_loaded(0.1)
            self.assertRegex(logs.output[0], rf"await_loaded: 1 subscriber \(process {os.getpid()}\) has not loaded update 1 \(step 7\) for \d s$")


class Interrupted(WeightsTest):
    """Ctrl-C does not wait for subscribers that are busy: here, readers of the channel that give nothing back."""

    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def takes(self, body, **options):
        """Interrupt body(pub, reader) once it calls ready, and return how long it takes to leave the publisher's with."""
        with Publisher("policy", **options) as pub, Reader(pub._writer._name) as reader:
            pub.await_subscribers(1, PATIENCE)
            begin = []

            def interrupt():
                wait_for(lambda: ready.is_set() or reader.wanted, "the wait")
                begin.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            ready, thread = threading.Event(), threading.Thread(target=interrupt)
            thread.start()
            with self.assertRaises(KeyboardInterrupt), pub:
                body(pub, ready)
            thread.join()
            return time.monotonic() - begin[0]

    def is_quick(self, body, **options):
        """At least once: the machine may be busy."""
        times = []
        while not times or min(times) > QUICK:
            self.assertLess(len(times), 5, times)
            times.append(self.takes(body, **options))

    def test_in_send(self):
        def body(pub, _):
            for step in range(1, 9):
                send_all(pub, step, full(step, "a"))

        with mock.patch.object(sending, "_GIVE_UP", PATIENCE):
            self.is_quick(body, bucket=4096, buckets=2)

    def test_in_the_wait_for_a_pause(self):
        def body(pub, _):
            for step in (1, 2):
                send_all(pub, step, {"w": np.ones((2, 2))})

        self.is_quick(body, metadata=W, in_place=True)

    def test_in_the_waits(self):
        def loaded(pub, ready):
            send_all(pub, 1, full(1, "a"))
            ready.set()
            pub.await_loaded()

        def subscribers(pub, ready):
            ready.set()
            pub.await_subscribers(2)

        for body in (loaded, subscribers):
            with self.subTest(body):
                self.is_quick(body, bucket=4096)


    def test_between_two_steps_of_a_wait(self):
        """The publisher can be closed all the same."""
        pub = Publisher("policy", bucket=4096, buckets=2)
        with Reader(pub._writer._name):
            pub.await_subscribers(1, PATIENCE)
            for step in (1, 2):
                send_all(pub, step, full(step, "a"))
            with mock.patch.object(Slots, "_wait", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                send_all(pub, 3, full(3, "a"))
            with mock.patch.object(readers, "CLOSE_LIMIT", 0.01):
                closes = threading.Thread(target=pub.close, daemon=True)
                closes.start()
                closes.join(PATIENCE / 6)
            self.assertFalse(closes.is_alive())

    def test_without_with(self):
        """The process ends as quickly."""
        times = []
        while not times or min(times) > QUICK:
            self.assertLess(len(times), 5, times)
            trainer = self.python(TRAINER, waits_for="ready")
            with Reader(publisher.publisher_name("policy", device_uuid(SOFT, 0))) as reader:
                wait_for(lambda: reader.wanted, "the wait")
                times.append(-time.monotonic())
                trainer.send_signal(signal.SIGINT)
                self.ends(trainer, -signal.SIGINT, "KeyboardInterrupt")
                times[-1] += time.monotonic()


class Starts(WeightsTest):
    def test_the_one_before_was_killed(self):
        """Its process is not gone yet."""
        trainer = self.python(TRAINER, waits_for="ready")
        trainer.kill()
        self.publisher()

    def test_a_socket_whose_lock_is_free(self):
        """So it is for an instant after a kill."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(self.path)
            s.listen()
            with mock.patch.object(publisher, "_REAPED", 0.0), common.raises(self, gpufd.InUseError, "name-taken", "listening there already"):
                self.publisher(socket=self.path)

    def test_the_kernel_has_not_reaped_the_one_before(self):
        """A process that was killed has the lock for a while."""
        with self.publisher():
            path = self.offer()
        lock = [take_lock(path + ".lock")]

        def sleep(_, sleeps=time.sleep):
            for fd in lock:
                os.close(fd)
            lock.clear()
            sleeps(0)

        with mock.patch.object(publisher.time, "sleep", sleep), self.publisher() as pub:
            self.assertEqual((lock, self.offer()), ([], path), pub)

    def test_another_one_is_there(self):
        self.publisher()
        with mock.patch.object(publisher, "_REAPED", 0.05), common.raises(self, gpufd.InUseError, "name-taken", rf"publisher 'policy' is there already \(process {os.getpid()}\).*end it"):
            self.publisher()

    def offer(self):
        directory = os.path.join(self.dir, "gpufd", "offers")
        return os.path.join(directory, next(name for name in os.listdir(directory) if name.endswith(".sock")))


class Stalls(WeightsTest):
    def test_in_place(self):
        pub = self.publisher(W, in_place=True, stall=0.02)
        with Reader(pub._writer._name) as reader:
            pub.await_subscribers(1, PATIENCE)
            send_all(pub, 7, {"w": np.ones((2, 2))})
            with common.raises(
                self, gpufd.ChannelError, "stalled", rf"update 2 \(step 8\): subscribers have not paused for 0\.02 s: process {os.getpid()} computes on the weights"
            ):
                send_all(pub, 8, {"w": np.ones((2, 2))})
            reader.note(1)  # for nothing of step 8 was sent
            self.assertEqual((pub.step, pub.await_loaded(PATIENCE)), (7, 1))


if __name__ == "__main__":
    unittest.main()
