"""Channels whose slots come back in any order, and channels of one slot, by the host: two processes on the software driver."""

import contextlib
import json
import os
import queue
import random
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE
from gpufd import channel
from gpufd.channel import cursor as c
from gpufd.channel import slots
from gpufd.channel.words import Words

SIZE = 64
OTHERS = ("drop-oldest", "drop-newest", "latest")


def data(sequence):
    return bytes((sequence + i) % 251 for i in range(SIZE))


# Both take frames, and do as they are told: a line has a call and a number.
READER = """
import json
from gpufd import channel
r = channel.Reader("cam", socket=sys.argv[1], wait=60)
held = {}
def next(_):
    f = r.next(60)
    held[f.sequence] = f
    return f.sequence, f.index, f.tobytes().hex(), f.user.decode()
calls = {
    "next": next, "bytes": lambda n: held[n].tobytes().hex(), "release": lambda n: held.pop(n).release(), "note": r.note,
    "wanted": lambda _: r.await_wanted(60) or r.wanted, "close": lambda _: r.close(),
}
print("ready")
for line in sys.stdin:
    call, number = line.split()
    print(json.dumps(calls[call](int(number))))
"""
WRITER = """
from gpufd import channel
w = channel.Writer("cam", socket=sys.argv[1], slots=int(sys.argv[2]), slot_size=64, any_order=True)
print("ready")
for line in sys.stdin:
    call, number = line.split()
    if call == "close":
        w.close()
    for _ in range(int(number)):
        slot = w.acquire(60)
        slot.write(bytes((slot.sequence + i) % 251 for i in range(64)))
        slot.publish()
    print("done")
"""


# It keeps some frames, and gives them back in any order, until it is killed.
KEEPER = """
import random
from gpufd import channel
pick = random.Random(int(sys.argv[2]))
r = channel.Reader("cam", socket=sys.argv[1], wait=60)
print("ready")
held = []
while True:
    held.append(r.next(60))
    r.note(held[-1].sequence)
    while len(held) == 4 or held and pick.random() < 0.4:
        held.pop(pick.randrange(len(held))).release()
"""


class Other:
    """The side in another process."""

    def __init__(self, p):
        self.process, self.kill = p, p.kill

    def tell(self, call, number=0):
        self.process.stdin.write(f"{call} {number}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline()

    def ask(self, call, number=0):
        self.tell(call, number)
        return json.loads(self.answer())


class Sides(common.Scene):
    def writer(self, slots, **options):
        w = channel.Writer("cam", socket=self.path, **{"slots": slots, "slot_size": SIZE, "any_order": True, **options})
        self.addCleanup(w.close)
        return w

    def reader(self, **options):
        r = channel.Reader("cam", socket=self.path, wait=PATIENCE, **options)
        self.addCleanup(r.close)
        return r

    def other_reader(self):
        return Other(self.python(READER, self.path, waits_for="ready"))

    def other_writer(self, slots):
        return Other(self.python(WRITER, self.path, str(slots), waits_for="ready"))

    def send(self, w, timeout=PATIENCE):
        slot = w.acquire(timeout)
        slot.write(data(slot.sequence))
        slot.publish(user=b"%d" % slot.sequence)
        return slot

    def fill(self, w, *readers):
        """Give the readers a frame in each slot, and have them keep all. Return the slot of each frame, by its sequence."""
        slots = {}
        for _ in range(w.slots):
            slot = self.send(w)
            slots[slot.sequence] = slot.index
            for r in readers:
                r.ask("next")
        return slots

    def in_thread(self, call):
        """Begin a call in a thread. Return what has its result, or its error, in the end."""
        results = queue.Queue()

        def run():
            try:
                results.put(call())
            except gpufd.Error as e:
                results.put(e)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join, PATIENCE)
        return results

    def words(self, w, i=0):
        return w._readers.there[i].words


class AnyOrder(Sides):
    def test_a_slot_that_is_kept_is_in_nobodys_way(self):
        w, r = self.writer(3), self.other_reader()
        w.await_readers(1, PATIENCE)
        kept = self.send(w)
        self.assertEqual(r.ask("next"), [1, kept.index, data(1).hex(), "1"])
        for n in range(2, 200):
            slot = self.send(w)
            self.assertNotEqual(slot.index, kept.index)
            self.assertEqual(r.ask("next"), [n, slot.index, data(n).hex(), str(n)])
            r.ask("release", n)
        self.assertEqual(r.ask("bytes", 1), data(1).hex())
        r.ask("release", 1)
        seen = set()
        for n in range(200, 206):
            seen.add(self.send(w).index)
            r.ask("next")
            r.ask("release", n)
        self.assertEqual(seen, {0, 1, 2})

    def test_given_back_in_any_order(self):
        w, r = self.writer(5), self.other_reader()
        w.await_readers(1, PATIENCE)
        pick, held = random.Random(5), []
        for n in range(1, 400):
            while len(held) == 5 or held and pick.random() < 0.3:
                r.ask("release", held.pop(pick.randrange(len(held))))
            self.send(w)
            held.append(r.ask("next")[0])
            self.assertEqual(held[-1], n)
            one = pick.choice(held)
            self.assertEqual(r.ask("bytes", one), data(one).hex())
        self.assertEqual(self.words(w).load(c.RELEASED), 0)

    def test_the_most_slots(self):
        w, r = self.writer(384), self.reader()
        for _ in range(384):
            w.send(b"x", timeout=PATIENCE)
        held = [r.next(PATIENCE) for _ in range(384)]
        with self.assertRaises(gpufd.TimedOutError):
            w.acquire(0.01)
        held[383].release()
        self.assertEqual(w.acquire(PATIENCE).index, held[383].index)

    def test_each_reader_gives_a_slot_back(self):
        """A slot comes back when all readers have given it back, and those are told that have one."""
        w, first, second = self.writer(2), self.other_reader(), self.other_reader()
        w.await_readers(2, PATIENCE)
        slots = self.fill(w, first, second)
        first.ask("release", 1)
        second.ask("release", 2)
        got = self.in_thread(lambda: w.acquire(PATIENCE))
        self.assertEqual([first.ask("wanted"), second.ask("wanted")], [3, 3])
        first.ask("release", 2)
        self.assertEqual(got.get(timeout=PATIENCE).index, slots[2])
        self.assertEqual([self.words(w, i).load(c.WANTED) for i in range(2)], [0, 0])

    def test_any_slot_of_any_reader_wakes(self):
        """The writer waits for the reader that keeps the most slots, and takes the one that comes free first."""
        w, much, little = self.writer(4), self.other_reader(), self.other_reader()
        w.await_readers(2, PATIENCE)
        slots = self.fill(w, much, little)
        for n in (1, 3):
            little.ask("release", n)
        much.ask("release", 2)
        for side, n in ((little, 2), (much, 3)):
            got = self.in_thread(lambda: w.acquire(PATIENCE))
            much.ask("wanted")
            side.ask("release", n)
            slot = got.get(timeout=PATIENCE)
            self.assertEqual(slot.index, slots[n])
            slot.publish()

    def test_only_those_are_told_that_keep_a_slot(self):
        w, first = self.writer(1), self.other_reader()
        w.await_readers(1, PATIENCE)
        self.fill(w, first)
        second = self.reader()
        got = self.in_thread(lambda: w.acquire(PATIENCE))
        self.assertEqual(first.ask("wanted"), 2)
        self.assertEqual(second.wanted, 0)
        with self.assertRaises(gpufd.TimedOutError):
            second.await_wanted(0.01)
        first.ask("release", 1)
        self.assertEqual(got.get(timeout=PATIENCE).sequence, 2)

    def test_a_writer_that_waits_sleeps_and_is_woken(self):
        w, r = self.writer(2), self.other_reader()
        w.await_readers(1, PATIENCE)
        slots, spent = self.fill(w, r), []

        def acquire():
            slot = w.acquire(PATIENCE)
            spent.append(time.thread_time())
            return slot

        got = self.in_thread(acquire)
        r.ask("wanted")
        self.assertRaises(queue.Empty, got.get, timeout=0.5)
        words = self.words(w)
        common.wait_for(lambda: words.load(c.WRITER_BELL) == 1, "the writer's sleep")
        r.ask("release", 2)
        self.assertEqual(got.get(timeout=PATIENCE).index, slots[2])
        self.assertLess(spent[0], 0.2)

    def test_several_are_looked_at_often(self):
        """The writer sleeps on the bell of one of them."""
        for readers, any_order, longest in (1, True, slots.SLEEP_MAX), (2, True, 0.001), (2, False, slots.SLEEP_MAX):
            with self.subTest(readers, any_order=any_order), channel.Writer("cam", socket=self.path, slots=1, slot_size=SIZE, any_order=any_order) as w:
                with contextlib.ExitStack() as closing:
                    for _ in range(readers):
                        closing.enter_context(channel.Reader("cam", socket=self.path, wait=PATIENCE))
                    w.await_readers(readers, PATIENCE)
                    self.send(w)
                    with mock.patch.object(Words, "await_", return_value=False) as waits, self.assertRaises(gpufd.TimedOutError):
                        w.acquire(0)
                    self.assertEqual([call.args[-1] for call in waits.call_args_list], [longest])

    def test_a_release_rings(self):
        w, r = self.writer(2), self.reader()
        self.send(w)
        frame = r.next(PATIENCE)
        words = self.words(w)
        words.store(c.WRITER_BELL, 1)
        frame.release()
        self.assertEqual(words.load(c.WRITER_BELL), 0)
        words.store(c.WRITER_BELL, 1)
        r.note(1)
        self.assertEqual(words.load(c.WRITER_BELL), 0)

    def test_released_while_another_thread_waits(self):
        """The thread that takes frames waits for one, and the writer for a slot that another thread gives back."""
        w, r, other = self.writer(2), self.reader(), self.reader()
        for _ in range(2):
            self.send(w)
        mine, others = ([side.next(PATIENCE) for _ in range(2)] for side in (r, other))
        mine[1].release()
        others[0].release()
        took = self.in_thread(lambda: r.next(PATIENCE))
        common.wait_for(r._joined.turn.locked, "the reader's wait")
        got = self.in_thread(lambda: w.acquire(PATIENCE))
        common.wait_for(lambda: r.wanted == 3, "the writer's wait")
        mine[0].release()
        slot = got.get(timeout=PATIENCE)
        self.assertEqual(slot.index, mine[0].index)
        slot.publish()
        self.assertEqual(took.get(timeout=PATIENCE).sequence, 3)

    def test_many_threads_release(self):
        w, r = self.writer(8), self.reader()
        todo, errors = queue.Queue(), []

        def releases():
            while (frame := todo.get()) is not None:
                try:
                    if bytes(frame.tobytes()) != data(frame.sequence):
                        raise AssertionError(frame)
                    frame.release()
                except Exception as e:
                    errors.append(e)

        threads = [threading.Thread(target=releases) for _ in range(4)]
        for thread in threads:
            thread.start()
        writes = self.in_thread(lambda: [self.send(w) for _ in range(500)])
        for n in range(1, 501):
            while len(r._position.held) == 8:
                time.sleep(0)
            frame = r.next(PATIENCE)
            self.assertEqual(frame.sequence, n)
            todo.put(frame)
        for thread in threads:
            todo.put(None)
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual((errors, len(writes.get(timeout=PATIENCE)), r.stats.received), ([], 500, 500))

    def test_frames_in_a_loop(self):
        """Each is given back behind the body, unless that has done so; one may be kept by taking it with next."""
        w, r = self.writer(3), self.reader()
        self.send(w)
        kept = r.next(PATIENCE)
        self.send(w)
        for frame in r.frames(PATIENCE):
            if frame.sequence % 2:
                frame.release()
            if frame.sequence == 9:
                break
            self.send(w)
        self.assertEqual((kept.tobytes(), r.stats.received, len(r._position.held)), (data(1), 9, 1))
        with kept:
            self.assertTrue(kept.whole)
        with common.raises(self, gpufd.ChannelError, "order"):
            kept.release()

    def test_sent(self):
        w, r = self.writer(2), self.reader()
        self.assertEqual([w.send(b"%d" % n, pts=n) for n in (1, 2)], [1, 2])
        self.assertEqual([(f.tobytes(), f.pts, f.meta) for f in (r.next(PATIENCE), r.next(PATIENCE))], [(b"1", 1, 0), (b"2", 2, 0)])

    def test_what_is_refused(self):
        with self.assertRaisesRegex(gpufd.UsageError, "exclude each other"):
            self.writer(2, streams=True)
        with self.assertRaisesRegex(gpufd.UsageError, "385 slots; want 1 to 384"):
            self.writer(385)
        w, r = self.writer(2), self.reader()
        slot = self.send(w)
        frame = r.next(PATIENCE)
        for call in (lambda: frame.release(0), lambda: slot.publish(stream=0), lambda: w.acquire_on(0), lambda: r.next_on(0)):
            with common.raises(self, gpufd.UnavailableError, "no-streams"):
                call()
        with common.raises(self, gpufd.ChannelError, "order"):
            slot.publish()
        with common.raises(self, gpufd.ChannelError, "order"):
            self.reader(join="newest").next(PATIENCE)._reader.release(frame)
        for number in (-1, 1 << 64, "1", None):
            self.assertRaises(gpufd.UsageError, r.note, number)
        frame.release()
        r.close()
        for call in (lambda: r.note(1), lambda: r.wanted, r.await_wanted, frame.release):
            self.assertRaises(gpufd.ClosedError, call)


class WithPrograms(Sides):
    def test_go_reads(self):
        """gpufd channel read follows such a channel, beside a reader that keeps a frame."""
        out = os.path.join(self.dir, "out")
        w, r = self.writer(3), self.reader()
        p = self.start("gpufd", "channel", "read", "cam", "--socket", self.path, "--timeout", "60s", "-o", out, "--json")
        w.await_readers(2, PATIENCE)
        self.send(w)
        kept = r.next(PATIENCE)
        for n in range(2, 200):
            self.send(w)
            r.next(PATIENCE).release()
        self.assertEqual(kept.tobytes(), data(1))
        w.close()
        self.ends(p, 0, '"received":199')
        with open(out, "rb") as f:
            self.assertEqual(f.read(), b"".join(data(n) for n in range(1, 200)))


class Policies(Sides):
    """Readers that do not block are refused by name, on both sides."""

    def refused(self, says, **options):
        w = self.writer(**options)
        for policy in OTHERS:
            with self.subTest(policy):
                with self.assertRaisesRegex(gpufd.ChannelError, f"{says}.* not of {policy}") as e:
                    self.reader(policy=policy)
                self.assertEqual(e.exception.reason, "policy")
                with mock.patch("gpufd.channel.joined.acting", lambda shape, policy: policy):  # one that does not know better
                    with self.assertRaisesRegex(gpufd.ChannelError, f"{says}.* not of {policy}") as e:
                        self.reader(policy=policy)
                self.assertEqual(e.exception.reason, "turned-away")
        with self.reader() as r:
            w.send(b"block")
            self.assertEqual(r.next(PATIENCE).tobytes(), b"block")

    def test_any_order(self):
        self.refused("slots come back in any order", slots=3)

    def test_one_slot(self):
        self.refused("a channel of 1 slot", slots=1, any_order=False)

    def test_one_slot_in_any_order(self):
        self.refused("a channel of 1 slot", slots=1)


class OneSlot(Sides):
    def test_turns(self):
        """Writer and reader take turns: the reader keeps the frame until the slot is wanted."""
        for any_order in (False, True):
            with self.subTest(any_order=any_order):
                w, r = self.writer(1, any_order=any_order), self.other_reader()
                w.await_readers(1, PATIENCE)
                for n in range(1, 20):
                    got = self.in_thread(lambda: self.send(w))
                    if n > 1:
                        self.assertEqual(r.ask("wanted"), n)
                        self.assertEqual(r.ask("bytes", n - 1), data(n - 1).hex())
                        r.ask("release", n - 1)
                    self.assertEqual(r.ask("next"), [n, 0, data(n).hex(), str(n)])
                    self.assertEqual(got.get(timeout=PATIENCE).sequence, n)
                self.assertEqual(self.words(w).load(c.WANTED), 0)
                r.ask("close")
                w.close()

    def interrupted(self, of, name):
        """An interrupt comes right behind a step."""
        step = getattr(of, name)

        def late(*what):
            step(*what)
            raise KeyboardInterrupt

        return mock.patch.object(of, name, late)

    def test_an_interrupt(self):
        """A frame that was published is not published again, and one that was given back does not keep its slot."""
        for any_order in (False, True):
            with self.subTest(any_order=any_order):
                w, r = self.writer(1, any_order=any_order), self.reader()
                w.await_readers(1, PATIENCE)
                slot = w.acquire(PATIENCE)
                with self.interrupted(w._readers, "give"), self.assertRaises(KeyboardInterrupt):
                    slot.publish()
                with common.raises(self, gpufd.ChannelError, "order"):
                    slot.publish()
                f = r.next(PATIENCE)
                with self.interrupted(r._position, "let_go"), self.assertRaises(KeyboardInterrupt):
                    f.release()
                self.assertEqual(self.send(w).sequence, 2)
                self.assertEqual(r.next(PATIENCE).tobytes(), data(2))
                r.close()
                w.close()

    def test_a_slot_that_is_not_waited_for(self):
        """Where slots come back in order, too, a reader is told that the writer waits, and no longer than it does."""
        w, r = self.writer(2, any_order=False), self.other_reader()
        w.await_readers(1, PATIENCE)
        self.fill(w, r)
        got = self.in_thread(lambda: w.acquire(0.2))
        self.assertEqual(r.ask("wanted"), 3)
        self.assertIsInstance(got.get(timeout=PATIENCE), gpufd.TimedOutError)
        self.assertEqual(self.words(w).load(c.WANTED), 0)


class Noted(Sides):
    def test_numbers_of_readers(self):
        gone = queue.Queue()
        w, first, second = self.writer(2, on_gone=gone.put), self.other_reader(), self.other_reader()
        w.await_readers(2, PATIENCE)
        w.await_noted(0, PATIENCE)
        self.assertEqual([(m.peer.pid, m.noted, m.kept) for m in w.members], [(p.process.pid, 0, 0) for p in (first, second)])
        waits = self.in_thread(lambda: w.await_noted(7, PATIENCE))
        first.ask("note", 9)
        with self.assertRaisesRegex(gpufd.TimedOutError, f"pid {second.process.pid} .* has noted 0, and not 7"):
            w.await_noted(7, 0.01)
        self.assertTrue(waits.empty())
        second.ask("note", (1 << 64) - 1)
        self.assertIsNone(waits.get(timeout=PATIENCE))
        self.assertEqual([m.noted for m in w.members], [9, (1 << 64) - 1])
        first.kill()
        self.assertEqual(gone.get(timeout=PATIENCE).noted, 9)
        waits = self.in_thread(lambda: w.await_noted((1 << 64) - 1, PATIENCE))
        second.ask("close")
        self.assertIsNone(waits.get(timeout=PATIENCE))
        last = gone.get(timeout=PATIENCE)
        self.assertEqual((last.noted, last.err), ((1 << 64) - 1, None))
        self.assertEqual(w.members, [])

    def test_who_waits_learns_of_the_end(self):
        w, r = self.writer(2), self.other_reader()
        w.await_readers(1, PATIENCE)
        waits = self.in_thread(lambda: w.await_noted(1, PATIENCE))
        r.kill()  # nobody is left to wait for
        self.assertIsNone(waits.get(timeout=PATIENCE))
        self.reader()
        w.await_readers(1, PATIENCE)
        waits = self.in_thread(lambda: w.await_noted(1, PATIENCE))
        w.close()
        self.assertIsInstance(waits.get(timeout=PATIENCE), gpufd.ClosedError)


class Ends(Sides):
    def test_a_reader_killed_that_keeps_slots(self):
        gone = queue.Queue()
        w, victim, other = self.writer(3, on_gone=gone.put), self.other_reader(), self.other_reader()
        w.await_readers(2, PATIENCE)
        slots = self.fill(w, victim, other)
        victim.ask("note", 3)
        for n in (1, 3):
            other.ask("release", n)
        victim.ask("release", 2)
        waits = self.in_thread(lambda: w.acquire(PATIENCE))
        victim.ask("wanted")
        self.assertTrue(waits.empty())
        victim.kill()
        self.assertIn(waits.get(timeout=PATIENCE).index, (slots[1], slots[3]))
        end = gone.get(timeout=PATIENCE)
        self.assertIsInstance(end.err, gpufd.LostError)
        self.assertEqual((end.noted, end.released), (3, 0))
        for n in range(4, 20):
            self.send(w)
            self.assertEqual(other.ask("next")[0], n)
            other.ask("release", n)
        self.assertEqual(other.ask("bytes", 2), data(2).hex())

    def test_readers_killed_at_any_time(self):
        """The writer goes on, and a reader that lives misses nothing."""
        gone, pick = [], random.Random(8)
        w, r = self.writer(5, on_gone=gone.append), self.reader()
        w.await_readers(1, PATIENCE)
        sent = 0
        for seed in range(6):
            victim = self.python(KEEPER, self.path, str(seed), waits_for="ready")
            w.await_readers(2, PATIENCE)
            last = sent + pick.randrange(12, 60)  # by then it has given a frame back
            while sent < last or w.readers > 1:
                if sent == last:
                    victim.kill()
                sent = self.send(w).sequence
                with r.next(PATIENCE) as frame:
                    self.assertEqual((frame.sequence, frame.tobytes()), (sent, data(sent)))
        common.wait_for(lambda: len(gone) == 6, "the readers' ends")
        self.assertTrue(all(isinstance(g.err, gpufd.LostError) and g.noted for g in gone), gone)

    def test_a_writer_that_is_gone(self):
        """Frames that were taken stay readable and can be given back; those that were published can be taken."""
        for call, kind, reason in (("close", gpufd.ChannelError, "ended"), (None, gpufd.LostError, "lost")):
            with self.subTest(reason):
                w, r = self.other_writer(4), self.reader()
                w.tell("publish", 4)
                w.answer()
                held = [r.next(PATIENCE) for _ in range(3)]
                held.pop(2).release()
                held.pop(0).release()
                w.tell("publish", 1)  # more than there are slots by now
                w.answer()
                if call:
                    w.tell(call)
                    w.answer()
                w.kill()
                w.process.wait(PATIENCE)
                common.wait_for(lambda: r.done, "the writer's end")
                self.assertEqual(held[0].tobytes(), data(2))
                held += [r.next(PATIENCE) for _ in range(2)]
                with common.raises(self, kind, reason):
                    r.next(PATIENCE)
                with common.raises(self, kind, reason):
                    r.await_wanted(PATIENCE)
                self.assertEqual([(f.tobytes(), f.whole) for f in held], [(data(n), True) for n in (2, 4, 5)])
                for f in (held[2], held[0], held[1]):
                    f.release()
                r.note(5)
                r.close()

    def test_a_reader_that_joins_late(self):
        w, first = self.writer(3), self.other_reader()
        w.await_readers(1, PATIENCE)
        slots = self.fill(w, first)
        for n in (1, 2):
            first.ask("release", n)
        late, newest = self.reader(), self.reader(join="newest")
        self.assertEqual((late.first, newest.first), (4, 3))
        self.assertEqual(newest.next(PATIENCE).tobytes(), data(3))
        self.send(w)  # into a slot that neither was given
        self.assertEqual([side.next(PATIENCE).tobytes() for side in (late, newest)], [data(4)] * 2)
        self.send(w)
        first.ask("release", 3)
        waits = self.in_thread(lambda: w.acquire(PATIENCE))  # the newest frame's slot is kept by the one that joined there
        newest.await_wanted(PATIENCE)
        self.assertTrue(waits.empty())
        newest._position.held[0].release()
        self.assertEqual(waits.get(timeout=PATIENCE).index, slots[3])

    def test_stalls(self):
        """The reader that keeps the most slots is in the way: it is named, or dropped."""
        for drop in (False, True):
            with self.subTest(drop=drop):
                w, much = self.writer(4, stall=0.2, drop=drop), self.other_reader()
                w.await_readers(1, PATIENCE)
                little = self.other_reader()
                w.await_readers(2, PATIENCE)
                slots = {}
                for n in range(1, 12):  # the one keeps frames 2, 10 and 11, the other frame 1
                    slots[n] = self.send(w).index
                    for side, keeps in ((much, (2, 10, 11)), (little, (1,))):
                        side.ask("next")
                        if n not in keeps:
                            side.ask("release", n)
                if drop:
                    self.assertIn(w.acquire(PATIENCE).index, {slots[n] for n in (2, 10, 11)})
                    self.assertEqual([m.peer.pid for m in w.members], [little.process.pid])
                else:
                    with self.assertRaisesRegex(gpufd.ChannelError, rf"no slot has come free for 0.2 s: reader 1 .*pid {much.process.pid} .* keeps 3 of 4, frame 2 the longest") as e:
                        w.acquire(PATIENCE)
                    self.assertEqual(e.exception.reason, "stalled")
                    with self.assertRaisesRegex(gpufd.TimedOutError, "within 0.05 s: .* keeps 3 of 4"):
                        w.acquire(0.05)
                    self.assertEqual([m.kept for m in w.members], [3, 1])
                for side in (much, little):
                    side.kill()
                    side.process.wait(PATIENCE)
                w.close()

    def test_a_reader_that_was_dropped(self):
        w, r = self.writer(2), self.reader()
        self.send(w)
        frame = r.next(PATIENCE)
        w._readers.there[0].lease.revoke()
        common.wait_for(lambda: r.done and not w.readers, "the end")
        self.assertFalse(frame.whole)
        for call in (frame.release, lambda: r.next(PATIENCE)):
            with common.raises(self, gpufd.ChannelError, "dropped"):
                call()
        self.assertEqual((len(r._position.held), r.stats.passed), (0, 1))


class Nonsense(Sides):
    def test_readers(self):
        """Words that fall, and that are more than what was given: the reader is dropped, and told."""
        for frame, number, says in ((1, 3, "where 0 was, and 1 was given"), (1, c.GIVEN, "where 0 was, and 1 was given"), (2, 1, "where 2 was, and 2 was given"),
                                    (2, 0, "where 2 was, and 2 was given"), (3, 4, "where 0 was, and 3 was given")):  # fmt: skip
            gone = queue.Queue()
            with self.subTest(frame=frame, number=number), self.writer(3, on_gone=gone.put) as w, self.reader() as r:
                slots = [self.send(w) for _ in range(2)]
                r.next(PATIENCE)
                r.next(PATIENCE).release()
                slots.append(w.acquire(PATIENCE))  # which looks
                self.assertEqual(w.readers, 1)
                slots[2].publish()
                slot = slots[frame - 1].index
                r._joined.words.store(c.RETURNED + 8 * slot, number)
                w.acquire(PATIENCE)
                err = gone.get(timeout=PATIENCE).err
                common.is_error(self, err, gpufd.ChannelError, "cursor")
                self.assertIn(f"frame number {number} is given back in slot {slot}, {says}", str(err))
                with common.raises(self, gpufd.ChannelError, "turned-away"):
                    r.next(PATIENCE)

    def test_writers(self):
        shape = c.Shape.new(3, SIZE, False, True)
        entry = shape.entry(3)
        for words, says in (({c.PUBLISHED: 5}, "5 frames were given"), ({c.PUBLISHED: 1}, "1 frames were given"), ({c.PUBLISHED: c.GIVEN}, "were given"), ({entry: 1}, "not whole"),
                            ({entry + c.SLOT: 3}, "slot 3"), ({entry + c.BYTES: 65}, "65 bytes"), ({entry + c.LENGTH: 209}, "209 in"), ({entry + c.SEQUENCE: 2}, "frame 2 behind"),
                            ({entry + c.SLOT: 1}, "which frame 1 has")):  # fmt: skip
            with self.subTest(says), self.writer(3) as w, self.reader() as r:
                self.send(w)
                self.send(w)
                r.next(PATIENCE)
                r.next(PATIENCE).release()
                self.send(w)
                for at, value in words.items():
                    r._joined.words.store(at, value)
                with common.raises(self, gpufd.ChannelError, "cursor") as e:
                    r.next(PATIENCE)
                self.assertIn(says, str(e.exception))

    def test_what_is_wanted_is_no_nonsense(self):
        with self.writer(2) as w, self.reader() as r:
            self.send(w)
            frame = r.next(PATIENCE)
            for wanted in ((1 << 64) - 1, 1, 0):
                r._joined.words.store(c.WANTED, wanted)
                self.assertEqual(r.wanted, wanted)
                if wanted < 2:  # the frame that this side has, or none
                    self.assertRaises(gpufd.TimedOutError, r.await_wanted, 0.01)
                else:
                    r.await_wanted(PATIENCE)
            frame.release()


if __name__ == "__main__":
    unittest.main()
