"""In place, the engine's side: loops that misuse it, models that do not fit, ends and interrupts. PyTorch is on the CPU."""

import contextlib
import os
import signal
import sys
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE, wait_for
from gpufd.channel import cursor as c
from gpufd.channel.frame import Frame
from gpufd.weights import Publisher, Subscriber, waits
from gpufd.weights.state import SubscriberState
from test_weights import WeightsTest

try:
    import torch
    from test_weightstorch import model
except ImportError:
    torch = None

QUICK = 0.9  # seconds: what waits for a peer takes a second or more


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")


class Bound(WeightsTest):
    by_torch = True

    def setUp(self):
        super().setUp()
        self.trained, self.engine = model(1), model(2).eval()
        for m in (self.trained, self.engine):  # views of the memory, which is closed before them
            self.addCleanup(m.to, "meta")

    def trainer(self):
        pub = self.closed(Publisher("policy", self.trained.state_dict(), in_place=True))
        pub.bind(self.trained)
        with pub.update(1):
            pass
        return pub

    def pair(self):
        """Both sides, bound, after update 1."""
        pub, sub = self.trainer(), self.subscriber()
        sub.bind(self.engine, PATIENCE)
        return pub, sub

    def writes(self, pub, step):
        with pub.update(step), torch.no_grad():
            self.trained[0].weight.fill_(step)


class Misuse(Bound):
    def test_a_turn_that_does_not_load(self):
        """The trainer would wait for ever."""
        pub, sub = self.pair()
        writes = self.in_thread(self.writes, pub, 2)
        with common.raises(self, gpufd.UsageError, "usage", r"InPlaceUpdate after step 1, not loaded>: each turn of the loop calls its load\(\)"):
            for _ in sub:
                pass
        sub.next(PATIENCE).load()
        writes()
        self.assertEqual(sub.step, 2)

    def moves(self, m):
        """Ways in which a parameter gets memory of its own, each with how it is undone."""
        weight, views = m[0].weight, {name: p.data for name, p in m.named_parameters()}

        def put_back():
            m[0].weight = weight
            for name, p in m.named_parameters():
                p.data = views[name]

        def assigns():
            m[0].weight.data = weight.data.clone()

        def replaces():
            m[0].weight = torch.nn.Parameter(weight.detach().clone())

        for move in assigns, replaces, lambda: m[0].half().float():
            yield move
            put_back()

    def test_a_trained_parameter_that_is_elsewhere(self):
        """No engine would ever see what is written there."""
        pub, sub = self.pair()
        elsewhere = r"does not have '0.weight'.* in the publisher's memory any more"
        for step, move in enumerate(self.moves(self.trained), 2):
            took = self.in_thread(lambda: sub.next(PATIENCE).load())
            self.writes(pub, step)
            took()
            self.assertEqual((sub.step, self.engine[0].weight[0, 0].item()), (step, step))
            took = self.in_thread(lambda: sub.next(PATIENCE).load())
            with common.raises(self, gpufd.MismatchError, "tensors", elsewhere), pub.update(10):
                move()
            self.assertRaises(gpufd.WeightsError, took)
            self.assertEqual(sub.torn, step)
            with common.raises(self, gpufd.MismatchError, "tensors", elsewhere), pub.update(11):
                self.fail("it is known before subscribers pause")

    def test_an_engines_parameter_that_is_elsewhere(self):
        pub, sub = self.pair()
        wrote = self.in_thread(self.writes, pub, 2)
        for move in self.moves(self.engine):
            move()
            with common.raises(self, gpufd.MismatchError, "tensors", r"does not have '0.weight'.* in the trainer's memory any more"):
                sub.next(PATIENCE).load()
            self.assertEqual((sub.step, sub.torn), (1, None))
        sub.next(PATIENCE).load()
        wrote()
        self.assertEqual(self.engine[0].weight[0, 0].item(), 2)

    def test_a_second_bind(self):
        """It does not wait for engines to pause."""
        pub, _ = self.pair()
        with common.raises(self, gpufd.UsageError, "usage", "a model is bound already"):
            pub.bind(self.trained)

    def test_a_trained_model_that_does_not_fit(self):
        """Engines need not pause to find that out."""
        pub = self.closed(Publisher("policy", self.trained.state_dict(), in_place=True, stall=0.05))
        with pub.update(1) as send:
            for name, t in self.trained.state_dict().items():
                send(name, t)
        sub = self.subscriber()
        sub.bind(self.engine, PATIENCE)
        with common.raises(self, gpufd.MismatchError, "tensors", "the model does not fit the metadata, and is unchanged"):
            pub.bind(torch.nn.Linear(3, 2))
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            sub.next(0)
        self.assertEqual((sub.step, sub.torn), (1, None))

    def test_buffers_that_no_state_dict_has(self):
        """Those that the trainer has are bound like others."""
        for m in (self.trained, self.engine):
            m.register_buffer("own", m.scale.clone(), persistent=False)
        sent = self.trained.state_dict() | {"scale": self.trained.scale}
        pub, sub = self.closed(Publisher("policy", sent, in_place=True)), self.subscriber()
        pub.bind(self.trained)
        with pub.update(1):
            pass
        sub.bind(self.engine, PATIENCE)
        wrote = self.in_thread(self.writes, pub, 2)
        sub.next(PATIENCE).load()
        wrote()
        self.assertEqual((self.engine.scale.item(), self.engine.own.item()), (1, 2))
        self.assertEqual(set(self.engine.state_dict()), set(self.trained.state_dict()))
        sub.close()
        self.assertEqual((self.engine.scale.is_meta, self.engine.own.item()), (True, 2))

    def test_what_is_no_model(self):
        """It is told at once, though no trainer is there."""
        sub = self.subscriber()
        for value in (None, self.engine.state_dict(), "model"):
            with self.subTest(value), common.raises(self, gpufd.UsageError, "usage", "bind takes a module of PyTorch's"):
                sub.bind(value)

    def test_a_model_that_does_not_fit_stays_as_it_is(self):
        self.trainer()
        sub, other = self.subscriber(), torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 5))
        before = {name: (id(t), t.clone()) for name, t in [*other.named_parameters(), *other.named_buffers()]}
        memory = sub._state.updates.reader.attachment.memory
        at = memory.ptr
        for _ in range(2):
            with common.raises(self, gpufd.MismatchError, "tensors", r"'2.weight': shape \[4, 16\], and \[5, 16\] in the model"):
                sub.bind(other, PATIENCE)
            for name, t in [*other.named_parameters(), *other.named_buffers()]:
                self.assertEqual((id(t), t.tolist()), (before[name][0], before[name][1].tolist()), name)
            self.assertEqual(memory.ptr, at, "it has got the model's address")
        sub.bind(self.engine, PATIENCE)
        self.assertTrue(torch.equal(self.engine[2].weight, self.trained[2].weight))

    def test_other_names(self):
        """The first difference is shown."""
        self.trainer()
        with common.raises(self, gpufd.MismatchError, "tensors", "the model has '0.0.weight', where the trainer has '0.weight'$"):
            self.subscriber().bind(torch.nn.Sequential(self.engine), PATIENCE)

    def test_a_model_that_lacks_a_parameter(self):
        """Unless that is asked for, it would go on with another bias, or none."""
        self.trainer()
        sub, other = self.subscriber(), model(3)
        other[0].bias = None
        with common.raises(self, gpufd.MismatchError, "tensors", "tensors that the model lacks, and that strict=False leaves out: '0.bias'$"):
            sub.bind(other, PATIENCE)
        sub.bind(other, PATIENCE, strict=False)
        self.addCleanup(other.to, "meta")
        self.assertTrue(torch.equal(other[0].weight, self.trained[0].weight))


class Ends(Bound):
    def test_a_lease_that_is_revoked(self):
        """The trainer goes on, and writes what the model has."""
        pub, sub = self.pair()
        for lease in pub._writer._offering.leases:
            lease.revoke("the operator said so")
        wait_for(lambda: not pub.subscribers, "the end of the lease")
        self.writes(pub, 2)
        with common.raises(self, gpufd.ChannelError, "dropped", "has dropped this subscriber"):
            sub.next(PATIENCE)
        self.assertEqual(sub.torn, 1)
        self.assertRaises(gpufd.WeightsError, lambda: sub.step)

    def test_a_trainer_that_dies_while_it_waits(self):
        """It has not written, so the weights are whole."""
        trainer = self.python(
            """
import torch
from gpufd.weights import Publisher
from test_weightstorch import model
m = model(1)
pub = Publisher("policy", m.state_dict(), in_place=True)
pub.bind(m)
pub.await_subscribers(1)
with pub.update(1): pass
with pub.update(2): pass
"""
        )
        sub = self.subscriber()
        sub.bind(self.engine, PATIENCE)
        update = sub.next(PATIENCE)
        trainer.kill()
        trainer.wait()
        wait_for(lambda: sub._state.updates.reader.done, "the trainer's end")
        with common.raises(self, gpufd.WeightsError, "over", rf"has not written over the weights of step 1: the trainer \(process {trainer.pid}\) died"):
            update.load()
        self.assertEqual((sub.step, sub.torn), (1, None))

    def test_a_trainer_that_is_not_in_place_any_more(self):
        """The model would get buckets, which the trainer writes while it computes."""
        pub, sub = self.pair()
        before = self.engine[0].weight.clone()
        pub.close()
        with common.raises(self, gpufd.WeightsError, "ended"):
            sub.next(PATIENCE)
        other = self.publisher({name: t.clone() for name, t in self.trained.state_dict().items()}, bucket=1 << 20, buckets=2)
        with other.update(2) as send:
            for name, t in self.trained.state_dict().items():
                send(name, torch.full_like(t, 7))
        with common.raises(self, gpufd.WeightsError, "in-place", "the new trainer sends buckets"):
            sub.next(PATIENCE).load()
        self.assertEqual((sub.step, sub.torn), (1, None))
        self.assertTrue(torch.equal(self.engine[0].weight, before))
        wait_for(lambda: not other.subscribers, "the end of the subscriber")

    def test_close_waits_for_the_device_first(self):
        """As soon as a subscriber has left, the trainer writes."""
        _, sub = self.pair()
        reader = sub._state.updates.reader
        memory, words, done = reader.attachment.memory, reader._joined.words, []
        finish, store = type(memory).finish, type(words).store

        def stores(self, at, value):
            if self is words and (at, value) == (c.READER_STATE, c.LEFT):
                done.append("left")
            store(self, at, value)

        with mock.patch.object(type(memory), "finish", lambda m: (done.append("finished"), finish(m))), mock.patch.object(type(words), "store", stores):
            sub.close()
        self.assertIn("finished", done[: done.index("left")])


    def test_a_close_while_another_thread_loads(self):
        pub, sub = self.pair()
        entered, go = threading.Event(), threading.Event()

        def writes():
            with pub.update(2):
                entered.set()
                go.wait(PATIENCE)

        wrote = self.in_thread(writes)
        loads = self.in_thread(lambda: sub.next(PATIENCE).load())
        entered.wait(PATIENCE)
        sub.close()
        with common.raises(self, gpufd.ClosedError, "closed", "^the subscriber was closed$"):
            loads()
        self.assertEqual(sub.torn, 1)
        go.set()
        wrote()


class Waits(Bound):
    def test_waits_are_logged(self):
        pub, me = self.trainer(), rf"the trainer \(process {os.getpid()}\)"
        with mock.patch.multiple(waits, _LONG=0.01, _AGAIN=0.01):
            sub = self.subscriber()
            sub.bind(self.engine, PATIENCE)
            entered, go = threading.Event(), threading.Event()

            def writes():
                with pub.update(2):
                    entered.set()
                    go.wait()

            written = self.in_thread(writes)
            with self.assertLogs("gpufd", "INFO") as lines:
                with common.raises(self, gpufd.TimedOutError, "timed-out"):
                    sub.next(PATIENCE).load(timeout=0.1)
            self.assertRegex(lines.output[0], f"WARNING:gpufd:load: the model has waited for {me} to write the next weights for")
            go.set()
            written()
            with Publisher("other", self.trained.state_dict(), in_place=True), Subscriber("other") as sub, self.assertLogs("gpufd", "INFO") as lines:
                with common.raises(self, gpufd.TimedOutError, "timed-out", f"from {me}"):
                    sub.bind(model(3), 0.1)
            self.assertRegex(lines.output[0], f"INFO:gpufd:bind: subscriber 'other' has waited for an update of {me} for")

    def test_an_interrupt_before_the_pause(self):
        """The trainer gets the slot all the same."""
        pub, sub = self.pair()
        writes = self.in_thread(self.writes, pub, 2)
        update = sub.next(PATIENCE)
        with mock.patch.object(Frame, "release", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            update.load()
        self.assertEqual(sub.torn, 1)
        sub.next(PATIENCE).load()
        writes()
        self.assertEqual((sub.step, sub.torn, pub.await_loaded(PATIENCE)), (2, None, 1))

    def interrupted(self, f):
        """Call f. An interrupt comes when it has taken weights, and the model does not have them yet."""
        real = SubscriberState.take

        def take(*args):
            if real(*args):
                raise KeyboardInterrupt

        with mock.patch.object(SubscriberState, "take", take):
            self.assertRaises(KeyboardInterrupt, f)

    def test_an_interrupt_behind_the_pause(self):
        """The next load gets the weights."""
        pub, sub = self.pair()
        for step in (2, 4):
            writes = self.in_thread(self.writes, pub, step)
            self.interrupted(sub.next(PATIENCE).load)
            writes()
            self.assertEqual(sub.torn, step - 1)
            sub.next(PATIENCE).load()
            self.assertEqual((sub.step, sub.torn, pub.await_loaded(PATIENCE)), (step, None, 1))
            writes = self.in_thread(self.writes, pub, step + 1)
            sub.next(PATIENCE).load()
            writes()
            self.assertEqual((sub.step, self.engine[0].weight[0, 0].item()), (step + 1, step + 1))

    def test_an_interrupt_of_bind(self):
        """The next bind gets the weights."""
        self.trainer()
        sub = self.subscriber()
        self.interrupted(lambda: sub.bind(self.engine, PATIENCE))
        sub.bind(self.engine, PATIENCE)
        self.assertEqual(sub.step, 1)

    def test_an_interrupt_in_the_pause(self):
        """While the trainer writes. Then the end of with comes."""
        pub, entered, go = self.trainer(), threading.Event(), threading.Event()
        sub = self.subscriber()
        sub.bind(self.engine, PATIENCE)

        def writes():
            with contextlib.suppress(gpufd.Error), pub.update(2):
                entered.set()
                go.wait()

        def interrupt():
            entered.wait()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            return time.monotonic()

        written, begin = self.in_thread(writes), self.in_thread(interrupt)
        with self.assertRaises(KeyboardInterrupt), sub:
            sub.next(PATIENCE).load()
        self.assertLess(time.monotonic() - begin(), QUICK)
        self.assertEqual(sub.torn, 1)
        go.set()
        written()


if __name__ == "__main__":
    unittest.main()
