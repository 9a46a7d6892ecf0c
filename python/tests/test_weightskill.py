"""Weights whose trainer or worker is killed at any step, on the software driver, without PyTorch: at each step once, or 200 with GPUFD_SOAK=1.

    python3 test_weightskill.py 1000        # rounds, each with another seed
    python3 test_weightskill.py 1 17        # the round of seed 17
"""

import contextlib
import functools
import os
import random
import select
import signal
import sys
import time
import traceback
import unittest

import common
import gpufd
from common import PATIENCE
from gpufd.channel import words
from gpufd.channel.frame import Slot
from gpufd.channel.member import Member
from gpufd.channel.reader import Reader
from gpufd.channel.writer import Writer
from gpufd.weights import Meta, Publisher, Subscriber
from gpufd.weights.sending import PublisherState, UpdateWriter
from gpufd.weights.state import SubscriberState
from gpufd.weights.views import Views

np = common.need_numpy()

SHAPES = {"a": (37,), "large": (3, 400), "b": (5, 9), "c": (64,), "d": (1,)}
# The steps at which a side dies, with how often it may have come there before: each as often as an update or two take.
TRAINER = {(Writer, "acquire"): 8, (Slot, "write"): 24, (Writer, "publish"): 8, (Member, "publish"): 8, (PublisherState, "over"): 3, (UpdateWriter, "_publish"): 8,
           (type(words.map_words(-1, 4096)), "store"): 200}  # fmt: skip
WORKER = {(Reader, "next"): 8, (Reader, "release"): 8, (Reader, "note"): 2, (Views, "view"): 12, (SubscriberState, "loaded"): 2, (Reader, "__init__"): 1,
          (type(words.map_words(-1, 4096)), "store"): 60}  # fmt: skip

# Each step, to die before it and behind it.
KILLS = [(side, step, behind) for side, steps in (("trainer", TRAINER), ("worker", WORKER)) for step in steps for behind in (False, True)]
ROUNDS, FIRST = 200 if os.environ.get("GPUFD_SOAK") == "1" else len(KILLS), 0


def expected(step, name):
    """The array of a name in a step's weights: other bytes in each."""
    shape = SHAPES[name]
    return (np.arange(np.prod(shape), dtype=np.uint32) * 2654435761 + step * 97 + ord(name[0])).reshape(shape)


def dies_at(step, most, behind, r):
    """Have this process die at a step, before or behind it."""
    kind, name = step
    left, real = [r.randrange(most)], getattr(kind, name)

    @functools.wraps(real)
    def wrapped(*args, **options):
        if left[0] == 0 and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **options)
        left[0] -= 1
        if left[0] == -1 and behind:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, wrapped)


def train(first, r, in_place):
    """A trainer: updates from a step on, some of which it gives up."""
    metadata = {name: Meta("U32", shape) for name, shape in SHAPES.items()} if in_place or r.random() < 0.5 else None
    pub = Publisher("policy", metadata, in_place=in_place, **({} if in_place else {"bucket": 2048, "buckets": 3}))
    for step in range(first, first + 100_000):
        pub.await_subscribers(1)
        with contextlib.suppress(ZeroDivisionError), pub.update(step) as send:
            for name in SHAPES:
                send(name, expected(step, name))
                if step % 7 == 3 and name == "b":
                    1 / 0


def work(say, r):
    """A worker: it loads what comes, keeps some of it for a while, and says what it has got."""
    sub, kept = Subscriber("policy"), []
    while True:
        for update in sub:
            there = []
            try:
                update.load(there.extend)
                check(update.step, sub.step, there)
                say(f"whole {update.step}")
            except gpufd.WeightsError as e:
                assert e.reason == "torn" and e.step == update.step == sub.torn, (e, update.step, sub.torn)
                say(f"torn {update.step}")
            for step, arrays in kept:
                check(step, step, arrays)
            kept = [k for k in [*kept, (update.step, there)] if sub.torn is None and r.random() < 0.6]
            del there


def check(step, said, arrays):
    """All arrays are those of the step, byte by byte, unless the update was torn."""
    assert said == step, (said, step)
    assert [name for name, _ in arrays] == list(SHAPES), [name for name, _ in arrays]
    for name, array in arrays:
        assert np.array_equal(np.asarray(array), expected(step, name)), (step, name)


class Side:
    """A process that is a trainer or a worker."""

    def __init__(self, case, f, *args):
        self.case, self.said = case, ""
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.be(write, f, args)
        os.close(write)
        self.read = read

    @staticmethod
    def be(write, f, args):
        try:
            f(lambda text: os.write(write, f"{text}\n".encode()), *args)
        except BaseException:
            os.write(write, ("FAILED " + traceback.format_exc()).encode())
        finally:
            os._exit(1)

    def look(self, seconds):
        """Read what it says, and return all of it so far."""
        if select.select([self.read], [], [], seconds)[0]:
            self.said += os.read(self.read, 1 << 16).decode()
        self.case.assertNotIn("FAILED", self.said)
        return self.said

    def await_death(self):
        deadline = time.monotonic() + PATIENCE
        while (gone := os.waitpid(self.pid, os.WNOHANG)) == (0, 0):
            self.case.assertLess(time.monotonic(), deadline, "it does not come to the step at which it dies")
            self.look(0.001)
        self.pid = 0
        self.case.assertEqual(os.waitstatus_to_exitcode(gone[1]), -signal.SIGKILL, self.look(0))

    def await_whole(self, first, n):
        """Wait until it has said that n updates are whole, of steps from first on."""
        deadline = time.monotonic() + PATIENCE
        while sum(1 for line in self.look(0.05).splitlines() if line.startswith("whole ") and int(line.split()[1]) >= first) < n:
            self.case.assertLess(time.monotonic(), deadline, f"{n} whole updates from step {first} on do not come: {self.said[-300:]}")

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        try:
            self.look(0)
        finally:
            os.close(self.read)


class Kills(common.Scene):
    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir)

    def side(self, f, *args):
        s = Side(self, f, *args)
        self.sides.append(s)
        return s

    def one_round(self, seed):
        r, (victim, step, behind) = random.Random(seed), KILLS[seed % len(KILLS)]
        in_place, self.sides = r.random() < 0.25, []

        def trainer(say, first, dies):
            if dies:
                dies_at(step, TRAINER[step], behind, r)
            train(first, r, in_place)

        def worker(say, dies):
            if dies:
                dies_at(step, WORKER[step], behind, r)
            work(say, r)

        with contextlib.ExitStack() as ends:
            ends.callback(self.end_all)
            first = 1 + r.randrange(1000) * 1000
            w, t = self.side(worker, victim == "worker"), self.side(trainer, first, victim == "trainer")
            (t if victim == "trainer" else w).await_death()
            if victim == "trainer":
                first += 500_000
                self.side(trainer, first, False)
            else:
                w = self.side(worker, False)
            w.await_whole(first, 3)

    def end_all(self):
        with contextlib.ExitStack() as stack:
            for s in self.sides:
                stack.callback(s.end)

    def test_whoever_is_killed(self):
        """Each update that is said to be whole is whole, and the others go on."""
        for seed in range(FIRST, FIRST + ROUNDS):
            with self.subTest(seed=seed, kill=KILLS[seed % len(KILLS)]):
                self.one_round(seed)


if __name__ == "__main__":
    ROUNDS, FIRST = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, ROUNDS), (2, FIRST)))
    unittest.main(argv=sys.argv[:1])
