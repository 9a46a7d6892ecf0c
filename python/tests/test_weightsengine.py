"""The engine's side of weights: what it waits for, what its errors say, and interrupts. The driver is the software driver."""

import asyncio
import contextlib
import gc
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
from gpufd.channel.position import Position
from gpufd.channel.reader import Reader
from gpufd.memory.drivers import device_uuid, driver_kind
from gpufd.weights import Publisher, Subscriber, subscriber, waits
from gpufd.weights.publisher import publisher_name
from gpufd.weights.state import SubscriberState
from gpufd.weights.update import Update
from gpufd.wire import sockets
from test_weights import WeightsTest, full, loaded, send_all

np = common.need_numpy()


class Closing(WeightsTest):
    """Any thread may close a subscriber."""

    def closes(self, sub, wait):
        """Close a subscriber while another thread waits, which is told."""
        entered = threading.Event()

        def waits():
            entered.set()
            with common.raises(self, gpufd.ClosedError, "closed", "the subscriber was closed"):
                wait()

        waited = self.in_thread(waits)
        entered.wait()
        sub.close()
        waited()

    def test_while_a_thread_waits_for_an_update(self):
        self.publisher()
        for _ in range(20):
            sub = self.subscriber()
            self.closes(sub, sub.next)

    def test_while_a_thread_waits_for_a_publisher(self):
        sub = self.subscriber(wait=None)
        self.closes(sub, lambda: next(iter(sub)))

    def test_while_a_thread_joins_a_publisher(self):
        """It leaves that again."""
        sub, joined, go = self.subscriber(wait=None), threading.Event(), threading.Event()
        pub = self.publisher()

        def reader(*args, **options):
            made = Reader(*args, **options)
            joined.set()
            go.wait()
            return made

        with mock.patch.object(subscriber, "Reader", reader):
            waited = self.in_thread(lambda: self.assertRaises(gpufd.ClosedError, sub.next))
            joined.wait()
            sub.close()
            go.set()
            waited()
        wait_for(lambda: not pub.subscribers, "the end of the subscriber")

    def test_while_a_thread_loads(self):
        """It lets go of its tensors, and close waits for that."""
        pub = self.publisher(bucket=512, buckets=8)
        for copy in (False, True):
            for take in self.loads, self.iterates:
                for waits_for_bucket in (False, True):
                    with self.subTest(copy=copy, take=take, waits_for_bucket=waits_for_bucket), pub.update(7) as send:
                        sub = self.subscriber(copy=copy)
                        pub.await_subscribers(1, PATIENCE)
                        for name, array in full(7, "a", "b").items():
                            send(name, array)
                        self.closes_load(sub, take, waits_for_bucket)
                    wait_for(lambda: not pub.subscribers, "the end of the subscriber")

    @staticmethod
    def loads(update, body):
        update.load(lambda pairs: [body(pair) for pair in pairs])

    @staticmethod
    def iterates(update, body):
        for pair in update.tensors():
            body(pair)

    def closes_load(self, sub, take, waits_for_bucket):
        """Close a subscriber while another thread waits for a bucket, or has a tensor."""
        update, there, closing = sub.next(PATIENCE), threading.Event(), threading.Event()

        def body(_):
            if not waits_for_bucket:
                there.set()
                closing.wait(PATIENCE)

        def loads():
            with common.raises(self, gpufd.ClosedError, "closed", "^the subscriber was closed$"):
                take(update, body)

        is_over, discard = waits.Wait.is_over, Update.discard
        with mock.patch.object(waits.Wait, "is_over", lambda wait: (there.set(), is_over(wait))[1]), mock.patch.object(Update, "discard", lambda u: (discard(u), closing.set())):
            loaded = self.in_thread(loads)
            there.wait(PATIENCE)
            sub.close()
        loaded()
        with common.raises(self, gpufd.WeightsError, "torn", "step 7 .*: the subscriber was closed"):
            sub.step

    def test_after_a_close_that_failed(self):
        """Nothing else can be asked of it."""
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "w"))
        kept = dict(sub.next(PATIENCE).tensors())
        with common.raises(self, gpufd.InUseError, "in-use"):
            sub.close()
        for wait in sub.next, lambda: next(iter(sub)):
            with common.raises(self, gpufd.ClosedError, "closed", "the subscriber was closed"):
                wait()
        self.assertEqual((sub.step, list(kept)), (1, ["w"]))
        kept.clear()
        gc.collect()
        sub.close()


class Joining(WeightsTest):
    def test_a_keeper_is_not_asked(self):
        """Its socket may be there, and nobody answers."""
        os.makedirs(f"{self.dir}/gpufd", mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
            keeper.bind(f"{self.dir}/gpufd/keeper.sock")
            keeper.listen()
            sub = self.subscriber(wait=0.05)
            with common.raises(self, gpufd.TimedOutError, "timed-out", "no publisher of 'policy' on GPU-.* came in time"):
                sub.next()
            keeper.setblocking(False)
            self.assertRaises(BlockingIOError, keeper.accept)

    @contextlib.contextmanager
    def stopped(self):
        """A publisher that does not answer, as if its process was stopped."""
        path = sockets.make_offer_socket(publisher_name("policy", device_uuid(driver_kind(), 0)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(path)
            s.listen()
            yield s
        os.unlink(path)

    def test_a_publisher_that_does_not_answer(self):
        with self.stopped(), mock.patch.object(subscriber, "_AT_ONCE", 0.05):
            begin, sub = time.monotonic(), self.subscriber()
            with common.raises(self, gpufd.TimedOutError, "timed-out", "the publisher of 'policy' on GPU-.* does not answer"):
                sub.next(0.05)
            self.assertLess(time.monotonic() - begin, PATIENCE / 4)
        pub = self.publisher()
        send_all(pub, 1, full(1, "w"))
        loaded(sub.next(PATIENCE))

    def test_publishers_that_are_there_are_named(self):
        other = self.closed(Publisher("other", bucket=4096))
        gpu = gpufd.memory.device.device_name(other._writer.memory.uuid)
        left = f"{self.dir}/gpufd/offers/killed%40{'0' * 32}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.bind(left)
        with common.raises(self, gpufd.TimedOutError, "timed-out", f"no publisher of 'policy' on {gpu}.*; there is 'other' on {gpu}: start"):
            self.subscriber(wait=0).next()
        one = self.closed(Publisher("policy", bucket=4096, device=1))
        elsewhere = gpufd.memory.device.device_name(one._writer.memory.uuid)
        with common.raises(self, gpufd.TimedOutError, "timed-out", f"there are 'other' on {gpu}, 'policy' on {elsewhere}; name that GPU by publisher="):
            self.subscriber(wait=0).next()
        with Subscriber("policy", publisher=elsewhere) as sub:
            send_all(one, 3, full(3, "w"))
            loaded(sub.next(PATIENCE))

    def test_waits_are_logged(self):
        pub, sub, me = self.publisher(bucket=512), self.subscriber(), rf"the trainer \(process {os.getpid()}\)"
        with mock.patch.multiple(waits, _LONG=0.01, _AGAIN=0.01):
            self.logs(rf"next: subscriber 'policy' has waited for an update of {me} for", lambda: sub.next(1))
            with pub.update(7) as send:
                for name, array in full(7, "a", "b").items():
                    send(name, array)
                update = sub.next(PATIENCE)
                self.logs(rf"load: update 1 \(step 7\) has waited for its next bucket of {me} for", lambda: update.load(list, timeout=1), "WARNING")
            self.logs(r"subscriber 'nobody' has waited for a publisher on GPU-\S* for", lambda: Subscriber("nobody", wait=1).next())

    def logs(self, text, f, level="INFO"):
        with self.assertLogs("gpufd", "INFO") as lines:
            self.assertRaises(gpufd.TimedOutError, f)
        self.assertRegex(lines.output[0], f"{level}:gpufd:{text}")
        self.assertGreater(len(lines.output), 1, "it goes on")


class Loading(WeightsTest):
    def test_an_engine_that_comes_too_late(self):
        """It ends with no weights, and the log says so."""
        with self.publisher(bucket=512) as pub:
            send_all(pub, 1, full(1, "a", "b"))
            sub = self.subscriber()
        with self.assertLogs("gpufd", "WARNING") as lines:
            self.assertEqual(list(sub), [])
        self.assertRegex(lines.output[0], "WARNING:gpufd:subscriber 'policy' has loaded no update whole: the trainer .* has ended in order")

    def test_no_descriptor_stands_for_a_subscriber(self):
        """The wait for one would take an update, and lose it if it is cancelled."""
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a"))
        with common.raises(self, gpufd.UsageError, "usage", "a reader of a channel is wanted.* not Subscriber: give its next a thread of its own"):
            asyncio.run(gpufd.aio.next(sub))
        loaded(sub.next(PATIENCE))
        self.assertEqual(sub.step, 1)

    def test_an_iterator_that_is_not_asked_to_the_end(self):
        pub, sub = self.publisher(), self.subscriber()
        for step in (1, 2):
            send_all(pub, step, full(step, "a", "b"))
        self.assertEqual(len(list(zip("ab", sub.next(PATIENCE).tensors()))), 2)
        with common.raises(self, gpufd.WeightsError, "torn", "ask the iterator until it ends, which zip, for one, does not"):
            sub.step
        self.assertEqual(len(list(zip(sub.next(PATIENCE).tensors(), "ab"))), 2)
        self.assertEqual(sub.step, 2)

    def test_a_function_that_closes_the_iterator(self):
        """As a generator does that passes its tensors on, when it is left."""
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        with common.raises(self, gpufd.WeightsError, "torn", "step 1 .*: its tensors were left: ask the iterator until it ends"):
            sub.next(PATIENCE).load(lambda pairs: (next(pairs), pairs.close()))
        with common.raises(self, gpufd.WeightsError, "torn", "its tensors were left"):
            sub.step

    def test_load_returns_what_the_function_does(self):
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a", "b"))
        self.assertEqual(sub.next(PATIENCE).load(lambda pairs: {name for name, _ in pairs}), {"a", "b"})

    def test_a_loop_variable_is_no_reason_to_copy(self):
        """It keeps the bucket before, while the next one is there."""
        pub, sub = self.publisher(bucket=512, buckets=3), self.subscriber()
        for step in (1, 2):
            sends = self.in_thread(send_all, pub, step, full(step, *"abcdef"))
            for _, array in sub.next(PATIENCE).tensors():
                self.assertTrue(array.readonly, "it is a copy")
            sends()
        del array


class Ends(WeightsTest):
    def test_words_of_errors(self):
        """None speaks of channels."""
        program = "import time, numpy as np\npub = gpufd.weights.Publisher('policy', bucket=4096)\npub.await_subscribers(1)\nsend = pub.update(7).__enter__()\n"
        program += "for name in 'ab': send(name, np.zeros(800))\nprint('there', flush=True)\ntime.sleep(600)\n"
        trainer = self.python(program)
        sub = self.subscriber()
        load = self.in_thread(lambda: loaded(sub.next(PATIENCE)))
        self.assertIn("there", trainer.stdout.readline())
        trainer.kill()
        trainer.wait()
        with common.raises(self, gpufd.WeightsError, "torn", rf"step 7 .*the trainer \(process {trainer.pid}\) died, or hung up$"):
            load()
        with common.raises(self, gpufd.WeightsError, "torn", rf"the trainer \(process {trainer.pid}\) died"):
            sub.step

    def test_a_lease_that_is_revoked(self):
        """The publisher lives, and writes the buckets that tensors keep: they are not whole any more."""
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a"))
        kept = list(sub.next(PATIENCE).tensors())
        for lease in pub._writer._offering.leases:
            lease.revoke("the operator said so")
        wait_for(lambda: sub._state.updates.reader.done, "the end of the lease")
        with contextlib.suppress(gpufd.TimedOutError), common.raises(self, gpufd.ChannelError, "dropped", r"the trainer \(process \d+\) has dropped this subscriber"):
            sub.next(0.05)
        self.assertEqual(sub.torn, 1)
        kept.clear()


class Interrupts(WeightsTest):
    """Ctrl-C ends what waits, and the end of with comes behind it."""

    def ends(self, f, asked=None):
        """Call f, which waits, as the log says, for as long as a piece of a wait is. An interrupt ends it before that is over and logged again."""
        order, waiting, ended = [], threading.Event(), threading.Event()

        class Lines(logging.Handler):
            def emit(self, record):
                order.append("waits")
                waiting.set()

        def interrupt():
            (asked or waiting.wait)()
            order.append("interrupt")
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            order.append("end" if ended.wait(PATIENCE) else "nothing")

        log, lines, thread = logging.getLogger("gpufd"), Lines(logging.INFO), threading.Thread(target=interrupt)
        level = log.level
        log.addHandler(lines)
        log.setLevel(logging.INFO)
        thread.start()
        try:
            with mock.patch.multiple(waits, _LONG=2 * PATIENCE if asked else 0.01, _AGAIN=2 * PATIENCE), self.assertRaises(KeyboardInterrupt):
                f()
        finally:
            ended.set()
            thread.join()
            log.removeHandler(lines)
            log.setLevel(level)
        gc.collect()
        self.assertEqual(order, [*([] if asked else ["waits"]), "interrupt", "end"])

    @staticmethod
    def next():
        with Subscriber("policy") as sub:
            sub.next()

    def test_next(self):
        self.ends(self.next)
        with Publisher("policy", bucket=4096):
            self.ends(self.next)

    def test_joining(self):
        """The trainer does not answer what it was asked."""
        with Joining.stopped(self) as s, mock.patch.object(subscriber, "_AT_ONCE", 0.01):
            asked = []

            def answers():
                asked.append(s.accept()[0])  # by the constructor, and by next
                asked.append(s.accept()[0])
                asked[-1].recv(1)

            self.ends(self.next, answers)
            for conn in asked:
                conn.close()

    def test_load(self):
        pub = self.publisher(bucket=512)

        def load():
            with self.subscriber() as sub:  # whose tensors the traceback keeps
                pub.await_subscribers(1)
                with pub.update(1) as send:
                    for name, array in full(1, "a", "b").items():
                        send(name, array)
                    loaded(sub.next())

        self.ends(load)

    def interrupted(self, f):
        """Call f. An interrupt comes when it has taken a bucket, and nobody has it yet."""
        real = SubscriberState.take

        def take(*args):
            real(*args)
            raise KeyboardInterrupt

        with mock.patch.object(SubscriberState, "take", take):
            self.assertRaises(KeyboardInterrupt, f)

    def test_a_bucket_that_was_taken(self):
        """The next call gets it: buckets are neither lost nor kept."""
        pub, sub = self.publisher(buckets=2, stall=PATIENCE), self.subscriber()
        for step in range(1, 5):
            send_all(pub, step, full(step, "a"))
            self.interrupted(sub.next)
            self.assertEqual((loaded(sub.next(PATIENCE))["a"][0], sub.step, pub.await_loaded(PATIENCE)), (step, step, 1))

    def test_a_bucket_that_was_taken_within_an_update(self):
        """That update is torn, and the next one is whole."""
        pub, sub = self.publisher(bucket=512, buckets=3), self.subscriber()
        for step in range(1, 8, 2):
            sends = self.in_thread(send_all, pub, step, full(step, "a", "b"))
            update = sub.next(PATIENCE)
            self.interrupted(lambda: loaded(update))
            sends()
            self.assertEqual(sub.torn, step)
            sends = self.in_thread(send_all, pub, step + 1, full(step + 1, "a", "b"))
            self.assertEqual(loaded(sub.next(PATIENCE))["b"][0], step + 1)
            sends()
            self.assertEqual(sub.step, step + 1)

    def test_a_bucket_that_is_given_back(self):
        """It comes back, though the interrupt comes in the middle of that."""
        real = Position.let_go

        def let_go(position, *args):
            real(position, *args)
            raise KeyboardInterrupt

        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, full(1, "a"))
        frame = sub._state.updates.reader.next(PATIENCE)
        with mock.patch.object(Position, "let_go", let_go):
            self.assertRaises(KeyboardInterrupt, frame.release)
        self.assertEqual(pub._writer.members[0].kept, 0)


if __name__ == "__main__":
    unittest.main()
