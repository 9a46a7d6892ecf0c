"""Readers of the newest frame, on the software driver: what they hold stays, and the claims that make it so."""

import os
import random
import struct
import subprocess
import threading
import time
import types
import unittest

import common
import gpufd
from common import PATIENCE, programs
from gpufd.channel import cursor as c
from gpufd import channel
from gpufd.channel import words as _words
from gpufd.channel.member import Member, Meta
from gpufd.channel.queue import Queue, check_published, check_room, choose, most_latest, pick
from gpufd.channel.taking import claim_newest


def frame(n):
    return bytes([n % 251]) * 64


class Decisions(unittest.TestCase):
    def test_what_is_decided(self):
        q = Queue(c.LATEST, 3)
        self.assertFalse(any(q.holds(s) for s in range(3)))
        q.give(0)
        q.give(1)
        self.assertEqual([q.holds(s) for s in range(3)], [False, True, False])  # the newest
        q.see_claim(1)
        self.assertEqual([q.holds(s) for s in range(3)], [True, True, False])
        self.assertEqual(pick([q], [1, 2, 0], 2, 2), (2, True))
        for claim in (3, 4, c.GIVEN):  # nothing was given there, or there is no such slot
            with common.raises(self, gpufd.ChannelError, "cursor"):
                q.see_claim(claim)
        q.deny(0, 3)
        with common.raises(self, gpufd.ChannelError, "cursor"):
            q.deny(2, 3)
        q.deny(2, 4)
        self.assertEqual([choose(c.LATEST, 3, n, 4) for n in (2, 3, 4, 9)], [0, 3, 4, 9])
        check_published(c.LATEST, 100, 2, 1, 4)
        for published in (1, c.GIVEN):
            with common.raises(self, gpufd.ChannelError, "cursor"):
                check_published(c.LATEST, published, 2, 1, 4)

    def test_a_slot_that_others_keep_is_not_waited_for(self):
        latest, keeps, blocks = Queue(c.LATEST, 3), Queue(c.DROP_NEWEST, 3), Queue(c.BLOCK, 3)
        for slot in range(3):
            latest.give(slot)
            blocks.give(slot)
        keeps.give(0)
        self.assertEqual(pick([latest, keeps], [1, 2, 3], 3, 2), (1, True))
        self.assertEqual(pick([latest, keeps, blocks], [1, 2, 3], 3, 2), (1, False))

    def test_admitted(self):
        self.assertEqual([most_latest(slots, False) for slots in (2, 3, 6)], [0, 1, 4])
        self.assertEqual([most_latest(slots, True) for slots in (2, 3, 4, 6, 7)], [0, 0, 0, 1, 2])
        check_room(c.LATEST, 3, 0, 0)
        check_room(c.DROP_NEWEST, 6, 1, 0)
        for args, says in (
            ((c.LATEST, 3, 1, 0), "a channel of 3 slots admits 1 reader of policy latest, and has 1"),
            ((c.LATEST, 6, 1, 1), "beside drop-newest, which keeps 3 slots, and has 1"),
            ((c.DROP_NEWEST, 6, 2, 0), "leaves room for 1 reader of policy latest, and there are 2"),
        ):
            with common.raises(self, gpufd.ChannelError, "policy", says):
                check_room(*args)


class Steps(_words.Words):
    """Words that note what is done with them, in its order. At a step another thing can happen first."""

    def __init__(self, size):
        super().__init__(-1, size)
        self.steps, self.before = [], {}

    def step(self, *what):
        then = self.before.pop(what, None)
        if then:
            then()
        self.steps.append(what)

    def load(self, at):
        self.step("load", at)
        return super().load(at)

    def store(self, at, value):
        self.step("store", at, value)
        super().store(at, value)

    def fence(self):
        self.step("fence")
        super().fence()


class Claims(unittest.TestCase):
    """Mark, fence, look at the claim; claim, fence, look at the mark: one of the two sees the other."""

    SHAPE = c.Shape(3, 64, 256, False, 7)
    STAMP = SHAPE.entry_at(1) + c.STAMP

    def setUp(self):
        self.words = Steps(self.SHAPE.cursor_size)
        self.addCleanup(self.words.close)
        self.m = Member(type("Cursor", (), {"words": self.words})(), self.SHAPE, None)
        self.m.queue = Queue(c.LATEST, 3)
        self.m.publish(1, 1, Meta(64))
        self.m.publish(2, 2, Meta(64))
        self.joined = types.SimpleNamespace(words=self.words, shape=self.SHAPE, lost=False)
        self.words.steps.clear()

    def claim(self):
        """What a reader does that has taken nothing: the frame's number and slot, or None."""
        told = claim_newest(self.joined, 1, 0)
        return told and (told.number, told.slot)

    def test_the_writers_order(self):
        self.assertFalse(self.m.claims(1, 3))
        self.assertEqual(self.words.steps, [("store", self.STAMP, 3), ("fence",), ("load", c.CLAIM)])
        self.assertFalse(self.m.claims(0, 3), "nothing was given there")
        self.words.store(c.CLAIM, 2)
        self.assertTrue(self.m.claims(1, 3))
        self.assertEqual(self.words.load(self.STAMP), 2, "the frame is whole")

    def test_the_readers_order(self):
        self.assertEqual(self.claim(), (2, 2))
        stamp = self.SHAPE.entry_at(2) + c.STAMP
        self.assertEqual(self.words.steps[:4], [("load", c.NEWEST), ("store", c.CLAIM, 3), ("fence",), ("load", stamp)])
        self.assertEqual(self.words.load(c.CLAIM), 3)

    def test_the_claim_comes_first(self):
        """The reader claims before the writer looks: the writer leaves it the slot."""
        self.words.store(c.NEWEST, 1)  # as it was when the reader looked
        self.words.before["store", self.STAMP, 3] = lambda: self.assertEqual(self.claim(), (1, 1))
        self.assertTrue(self.m.claims(1, 3))

    def test_the_mark_comes_first(self):
        """The writer marks before the reader looks again: the reader gives up."""
        self.words.store(c.NEWEST, 1)
        self.words.before["store", c.CLAIM, 2] = lambda: self.assertFalse(self.m.claims(1, 3))
        self.assertIsNone(self.claim())
        self.assertEqual(self.words.load(c.CLAIM), 0)

    def test_both_at_once(self):
        """Each has stored before the other looks: both give up."""
        self.words.store(c.NEWEST, 1)
        self.words.before["load", c.CLAIM] = lambda: self.assertIsNone(self.claim())
        self.words.before["store", c.CLAIM, 0] = lambda: self.assertEqual(self.words.load(c.CLAIM), 2)
        self.assertFalse(self.m.claims(1, 3), "the reader has given up by then")

    def test_writers_that_write_nonsense(self):
        for words, says in (({c.NEWEST: 3}, "slot 3 of 3"), ({self.STAMP: 0}, "number 0"), ({self.STAMP + c.SLOT: 2}, "slot 2 in slot 1"),
                            ({self.STAMP + c.BYTES: 65}, "65 bytes"), ({self.STAMP + c.LENGTH: 209}, "209, as"), ({self.STAMP + c.SEQUENCE: 0}, "frame 0")):  # fmt: skip
            with self.subTest(says):
                self.setUp()
                for at, value in {c.NEWEST: 1, **words}.items():
                    self.words.store(at, value)
                with common.raises(self, gpufd.ChannelError, "cursor", says):
                    self.claim()
                self.assertEqual(self.words.load(c.CLAIM), 0)


class Latest(common.Scene):
    """A writer and readers of this package."""

    def writer(self, **options):
        w = channel.Writer("cam", socket=self.path, **{"slots": 3, "slot_size": 64, **options})
        self.addCleanup(w.close)
        return w

    def reader(self, policy="latest", **options):
        r = channel.Reader("cam", socket=self.path, policy=policy, **options)
        self.addCleanup(r.close)
        return r

    def send(self, w, *ns):
        for n in ns:
            self.assertEqual(w.send(frame(n), timeout=PATIENCE), n)

    def takes(self, r, n):
        f = r.next(PATIENCE)
        self.assertEqual((f.sequence, f.tobytes()), (n, frame(n)))
        return f

    def test_what_is_held_stays(self):
        for slots in (3, 4, 8):
            with self.subTest(slots), channel.Writer("cam", socket=self.path, slots=slots, slot_size=64) as w, channel.Reader(socket=self.path, policy="latest") as r:
                self.send(w, *range(1, 6))
                f = self.takes(r, 5)
                for n in range(6, 56):
                    self.send(w, n)
                    self.assertEqual(f.tobytes(), frame(5))
                self.assertTrue(f.whole)
                with common.raises(self, gpufd.ChannelError, "order"):
                    r.next(PATIENCE)
                f.release()
                with self.takes(r, 55) as f:
                    self.assertLess(channel.now() - f.time, 600e9)
                s = r.stats
                self.assertEqual((s.received, s.lost, s.passed, w.stats.max_stall), (2, 53, 0, 0.0))
                with self.assertRaises(gpufd.TimedOutError):
                    r.next(0.01)
                self.send(w, 56)
                self.takes(r, 56).release()

    def test_each_holds_a_slot(self):
        w, held = self.writer(slots=5), []
        for n in (1, 2, 3):
            r = self.reader()
            self.send(w, n)
            held.append((r, self.takes(r, n)))
        for n in range(4, 100):
            self.send(w, n)
            for i, (r, f) in enumerate(held):
                self.assertEqual(f.tobytes(), frame(f.sequence))
                if n % (i + 2) == 0:
                    f.release()
                    held[i] = r, self.takes(r, n)

    def test_beside_one_that_blocks(self):
        w, b, r = self.writer(), self.reader("block"), self.reader()
        self.send(w, 1)
        f = self.takes(r, 1)
        self.takes(b, 1).release()
        self.send(w, 2, 3)
        with self.assertRaises(gpufd.TimedOutError):
            w.acquire(0.01)
        self.takes(b, 2).release()
        self.send(w, 4)
        self.assertEqual(f.tobytes(), frame(1))
        f.release()
        self.takes(r, 4)

    def test_acquire_goes_on_with_a_slot_given_back(self):
        for policy in ("latest", "drop-newest"):
            with self.subTest(policy), channel.Writer("cam", socket=self.path, slots=4, slot_size=64) as w, \
                 channel.Reader(socket=self.path) as b, channel.Reader(socket=self.path, policy=policy) as r:  # fmt: skip
                self.send(w, 1)
                f = self.takes(r, 1)
                self.takes(b, 1).release()
                for n in (2, 3, 4):
                    self.send(w, n)
                    self.takes(b, n)  # which holds it
                thread = threading.Thread(target=lambda w=w: self.send(w, 5))
                thread.start()
                end = time.monotonic() + PATIENCE
                while not b._joined.words.load(c.WRITER_BELL):
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.001)
                f.release()
                thread.join(PATIENCE)
                self.assertFalse(thread.is_alive())
                self.assertEqual([m.pins for m in w._readers.there], [0, 0])

    def test_a_claim_behind_the_look(self):
        """The reader claims an older frame when the writer has looked at the cursors: the writer takes another slot."""
        w, r = self.writer(slots=4), self.reader()
        self.send(w, 1, 2, 3, 4)
        readers, m = w._readers, w._readers.there[0]
        first = m.queue.in_slot.index(1)
        look = readers.look

        def look_first():
            look()
            r._joined.words.store(c.CLAIM, first + 1)

        readers.look = look_first
        self.assertEqual(w.acquire(PATIENCE).index, m.queue.in_slot.index(2))
        self.assertEqual(r._joined.words.load(w.shape.entry_at(first) + c.STAMP), 2)
        readers.look = look

    def test_joins_and_ends(self):
        w = self.writer()
        self.send(w, *range(1, 8))
        r = self.reader(join="newest")
        self.takes(r, 7).release()
        self.send(w, 8, 9)
        w.close()
        self.takes(r, 9).release()
        with common.raises(self, gpufd.ChannelError, "ended"):
            r.next(PATIENCE)
        self.assertEqual(r.stats.lost, 1)

    def test_is_refused_by_name(self):
        for slots, most in ((2, 0), (3, 1), (4, 2)):
            with self.subTest(slots), channel.Writer("cam", socket=self.path, slots=slots, slot_size=64):
                there = [channel.Reader(socket=self.path, policy="latest") for _ in range(most)]
                with common.raises(self, gpufd.ChannelError, "turned-away", f"policy latest: .*a channel of {slots} slots admits {most} reader"):
                    channel.Reader(socket=self.path, policy="latest")
                if most:
                    with common.raises(self, gpufd.ChannelError, "turned-away", "policy drop-newest: .*readers of drop-newest keep"):
                        channel.Reader(socket=self.path, policy="drop-newest")
                for r in there:
                    r.close()

    def test_in_a_channel_for_streams(self):
        """It blocks, and gives back what it skips; other policies are refused by name."""
        w, r = self.writer(streams=True), self.reader()
        with common.raises(self, gpufd.ChannelError, "policy", "drop-oldest; block and latest are admitted"):
            self.reader("drop-oldest")
        self.send(w, 1, 2, 3)
        f = self.takes(r, 3)
        self.send(w, 4, 5)
        with self.assertRaises(gpufd.TimedOutError):
            w.acquire(0.01)
        self.assertEqual(f.tobytes(), frame(3))
        f.release()
        self.takes(r, 5).release()
        self.send(w, 6, 7, 8)
        self.assertEqual(r.stats.lost, 3)

    def test_readers_that_write_nonsense(self):
        def claims(claim):
            return lambda w, r: r._joined.words.store(c.CLAIM, claim)

        def claims_a_second(w, r):
            """It claims the slot that is chosen, and then the next one."""
            m = w._readers.there[0]
            load, claimed = m.words.load, iter((0, m.queue.in_slot.index(1) + 1, m.queue.in_slot.index(2) + 1, 0))
            m.words.load = lambda at: next(claimed) if at == c.CLAIM else load(at)

        for wrong in (claims(5), claims(1), claims(c.GIVEN), claims_a_second):  # nothing was given in the first slot
            gone = []
            with self.subTest(wrong), channel.Writer("cam", socket=self.path, slots=4, slot_size=64, on_gone=gone.append) as w:
                with channel.Reader(socket=self.path, policy="latest") as r:
                    self.send(w, 1, 2, 3)
                    if wrong is claims_a_second:
                        self.send(w, 4)
                    wrong(w, r)
                    w.acquire(PATIENCE)
                    self.assertEqual(w.readers, 0)
                    with common.raises(self, gpufd.ChannelError, "turned-away"):
                        r.next(PATIENCE)
            common.is_error(self, gone[0].err, gpufd.ChannelError, "cursor")

    def test_a_writer_that_lies_keeps_nobody_for_ever(self):
        w, r = self.writer(), self.reader()
        self.send(w, 1)
        r._joined.words.store(c.ENTRIES + w._readers.there[0].queue.in_slot.index(1) * c.ENTRY_SIZE, 1)
        for timeout in (0.0, 0.01):
            with self.assertRaises(gpufd.TimedOutError):
                r.next(timeout)

    def test_a_dead_writer_had_not_said_where(self):
        """It has died before it stored newest and published."""
        w, r = self.writer(), self.reader()
        self.send(w, 1, 2)
        with w._readers.lock:  # it cannot drop the reader meanwhile
            m = w._readers.there[0]
            store = m.words.store
            m.words.store = lambda at, value: at in (c.NEWEST, c.PUBLISHED) or store(at, value)
            m.publish(2, 3, Meta(64))
            m.lease.revoke()
            r._joined.thread.join(PATIENCE)
            self.assertEqual((r.err.last, r.next(PATIENCE).sequence), (3, 3))

    def test_killed(self):
        """Either side, in a process of its own: what the reader held is free, and what was whole can be taken."""
        w = self.writer()
        reader = self.python(
            "import gpufd.channel, sys, time\n"
            "r = gpufd.channel.Reader(socket=sys.argv[1], policy='latest'); print('ready', flush=True); r.next(); print('has', flush=True); time.sleep(99)",
            self.path, waits_for="ready")  # fmt: skip
        self.send(w, 1)
        self.assertEqual(reader.stdout.readline(), "has\n")
        self.send(w, *range(2, 12))
        reader.kill()
        end = time.monotonic() + PATIENCE
        while w.readers:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)
        f = self.takes(self.reader(join="newest"), 11)
        self.send(w, *range(12, 22))
        self.assertEqual(f.tobytes(), frame(11))
        w.close()
        f.release()
        writer = self.python(
            "import gpufd.channel, sys, time\n"
            "w = gpufd.channel.Writer('cam', socket=sys.argv[1], slots=3, slot_size=8); print('ready', flush=True); w.await_readers(1)\n"
            "for n in range(1, 8): w.send(b'%d' % n)\n"
            "time.sleep(99)", self.path, waits_for="ready")  # fmt: skip
        with channel.Reader(socket=self.path, policy="latest") as r:
            while r._joined.words.load(c.PUBLISHED) < 7:
                time.sleep(0.001)
            writer.kill()
            writer.wait()
            r.attachment.wait(PATIENCE)
            with r.next(PATIENCE) as f:
                self.assertEqual((f.sequence, f.tobytes()), (7, b"7"))
            with common.raises(self, gpufd.LostError, "lost") as e:
                r.next(PATIENCE)
            self.assertEqual(e.exception.last, 7)


class WithPrograms(common.Scene):
    """Against gpufd channel write and read."""

    SIZE, SLOTS = 64 << 10, 3

    def program(self, *args, **options):
        p = subprocess.Popen([str(programs() / "gpufd"), "channel", *args, "--socket", self.path, "--timeout", "60s"], **{"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options})
        self.addCleanup(lambda: (p.kill(), p.wait()))
        return p

    def frames(self, n):
        return [struct.pack("<Q", i) * (self.SIZE // 8) for i in range(1, n + 1)]

    def test_reads_what_go_writes(self):
        """Each frame is whole as long as it is held, and Go's writer goes round the slots meanwhile."""
        want = self.frames(400)
        with open(os.path.join(self.dir, "in"), "wb") as f:
            f.writelines(want)
        with open(os.path.join(self.dir, "in"), "rb") as f:
            p = self.program("write", "cam", "--slots", str(self.SLOTS), "--slot-size", str(self.SIZE), "--rate", "2000", stdin=f)
        wait, seen = random.Random(7), 0
        with channel.Reader("cam", socket=self.path, policy="latest", wait=PATIENCE) as r:
            for f in r.frames(PATIENCE):
                self.assertGreater(f.sequence, seen)
                seen = f.sequence
                first = f.tobytes()
                time.sleep(wait.random() * 0.01)  # some twenty frames at the most
                self.assertTrue(first == f.tobytes() == want[seen - 1], f"frame {seen}")
                self.assertTrue(f.whole)
            s = r.stats
        self.assertEqual((seen, s.received + s.lost, s.passed), (400, 400, 0))
        self.assertLess(s.received, 400)
        self.assertEqual(p.wait(PATIENCE), 0)

    def test_writes_what_go_reads(self):
        """Go's reader is given whole frames, the last one last, and never keeps the writer waiting."""
        want, out = self.frames(400), os.path.join(self.dir, "out")
        with channel.Writer("cam", socket=self.path, slots=self.SLOTS, slot_size=self.SIZE) as w:
            p = self.program("read", "cam", "--policy", "latest", "-o", out)
            w.await_readers(1, PATIENCE)
            refused = [str(programs() / "gpufd"), "channel", "read", "cam", "--socket", self.path, "--policy", "latest", "-o", os.devnull]
            told = subprocess.run(refused, stderr=subprocess.PIPE, timeout=PATIENCE).stderr
            self.assertIn(b"latest", told)
            self.assertIn(b"a channel of 3 slots admits 1 reader of policy latest, and has 1", told)
            for data in want:
                w.send(data, timeout=PATIENCE)
            self.assertEqual(w.stats.max_stall, 0.0)
        self.assertEqual(p.wait(PATIENCE), 0)
        with open(out, "rb") as f:
            data = f.read()
        got = [data[i : i + self.SIZE] for i in range(0, len(data), self.SIZE)]
        seen = [struct.unpack_from("<Q", g)[0] for g in got]
        self.assertEqual(seen, sorted(set(seen)))
        self.assertTrue(all(g == want[n - 1] for g, n in zip(got, seen)))
        self.assertEqual(seen[-1], 400)


class Entries(unittest.TestCase):
    def test_entries(self):
        words = {c.STAMP: 4, c.SEQUENCE: 6, c.SLOT: 2, c.TIME: 2_000_000, c.BYTES: 10, c.LENGTH: 9}

        def raw(**changed):
            values = [{**words, **{getattr(c, k): v for k, v in changed.items()}}[at] for at in range(0, c.USER, 8)]
            return struct.pack("<6Q", *values) + b"nine more".ljust(c.MAX_USER, b"\0")

        e = channel.decode_entry(raw())
        self.assertEqual(e, channel.Entry(6, 2, 10, 2_000_000, b"nine more"))
        self.assertEqual(channel.decode_entry(bytearray(raw()) + b"more"), e)
        for bad, says in ((raw()[:-1], "255 bytes; want 256"), (raw(STAMP=0), "of no frame"), (raw(STAMP=3), "stamp 3"), (raw(SLOT=4096), "slot 4096"),
                          (raw(LENGTH=209), "209 user bytes")):  # fmt: skip
            with common.raises(self, gpufd.ChannelError, "cursor", says):
                channel.decode_entry(bad)
        with self.assertRaises(gpufd.UsageError):
            channel.decode_entry("entry")

    def test_now(self):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.assertTrue(before <= channel.now() <= time.clock_gettime_ns(time.CLOCK_MONOTONIC))


if __name__ == "__main__":
    unittest.main()
