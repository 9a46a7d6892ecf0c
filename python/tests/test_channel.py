"""Channels by the host, on the software driver: against gpufd's programs, and against liars."""

import ctypes
import fcntl
import json
import os
import queue
import random
import signal
import subprocess
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE, programs
from gpufd.channel import cursor as c
from gpufd import channel
from gpufd.channel import words as _words
from gpufd.channel.joined import Joined
from gpufd.channel.member import Member, Meta
from gpufd.channel.queue import Queue, check_published, choose, has_room, pick

SIZE = 4099  # bytes of a frame
VECTORS = common.ROOT / "channel/testdata/cursors.json"
ANY_ORDER = ("any order", "given back in any order", "any order, by a stream", "any order, waited for")  # vectors
POLICIES = ("block", "drop-oldest", "drop-newest", "latest")


def load(vector):
    """The cursors of a vector, mapped, whose file is closed."""
    fd = os.memfd_create("cursors", os.MFD_CLOEXEC)
    try:
        os.truncate(fd, vector["size"])
        for at, word in vector["words"].items():
            os.pwrite(fd, bytes.fromhex(word), int(at, 16))
        return _words.map_words(fd, vector["size"])
    finally:
        os.close(fd)


class Words(unittest.TestCase):
    """All three ways to load and store, whichever this machine takes."""

    def test_words_and_bells(self):
        kinds = [_words.Words, _words.FencedWords] + ([_words.AtomicWords] if _words._atomic else [])
        for kind in kinds:
            with self.subTest(kind.__name__):
                w = kind(-1, 4096)
                for at, value in ((0, 1), (8, (1 << 64) - 1), (4088, 0x0123456789ABCDEF)):
                    w.store(at, value)
                    self.assertEqual(w.load(at), value)
                self.assertEqual(ctypes.string_at(w.address + 4088, 8).hex(), "efcdab8967452301")
                w.fence()
                self.assertFalse(w.await_(64, 0, time.monotonic() + 0.02, lambda: w.load(128) == 1))
                woken = []

                def sleeper(w=w, woken=woken):
                    woken.append(w.await_(64, 0, time.monotonic() + PATIENCE, lambda: w.load(128) == 1))

                thread = threading.Thread(target=sleeper)
                thread.start()
                while not w.load(64):
                    time.sleep(0.001)
                w.store(128, 1)
                w.ring(64)
                thread.join(PATIENCE)
                self.assertEqual(woken, [True])
                w.close()
                with self.assertRaises(gpufd.ClosedError):
                    w.load(0)

    def test_a_ring_wakes_at_once(self):
        """A sleeper is woken by the bell, not by the end of its pause."""
        w = _words.map_words(-1, 4096)
        w.store(64, 0)
        slept = []

        def sleeper():
            begin = time.monotonic()
            w.sleep(64, 0.9, lambda: False)
            slept.append(time.monotonic() - begin)

        for _ in range(5):
            thread = threading.Thread(target=sleeper)
            thread.start()
            while not w.load(64):
                time.sleep(0.001)
            time.sleep(0.02)
            w.ring(64)
            thread.join(PATIENCE)
        self.assertLess(min(slept), 0.5)
        w.close()


class Vectors(unittest.TestCase):
    def test_vectors(self):
        vectors = {v["name"]: load(v) for v in json.loads(VECTORS.read_text())["vectors"]}
        self.addCleanup(lambda: [w.close() for w in vectors.values()])
        self.assertEqual(set(vectors), {"fresh", "joined", "two frames", "passed by", "ended", "latest", "claimed", "latest of a dead writer", "one slot", *ANY_ORDER})
        shape = c.Shape.new(3, 1000, False)
        for name, w in vectors.items():
            self.assertEqual(c.Shape.read(w, 3072, 7), c.Shape(1 if name == "one slot" else 3, 1000, 1024, False, 7, name in ANY_ORDER))
        self.assertEqual((shape.size, shape.cursor_size), (3072, 8192))
        joined, two = vectors["joined"], vectors["two frames"]
        self.assertEqual([joined.load(at) for at in (c.READER_STATE, c.POLICY, c.JOIN, c.START)], [c.JOINED, c.DROP_OLDEST, 1, 5])
        self.assertEqual(two.load(c.PUBLISHED), 2)
        self.assertEqual(c.EntryWords.read(two, shape.entry(1)), c.EntryWords(2, 5, 1, 1_000_000, 1000, 0))
        self.assertEqual(c.EntryWords.read(two, shape.entry(2)), c.EntryWords(4, 6, 2, 2_000_000, 10, 9))
        self.assertEqual(c.read_user(two, shape.entry(2), 9), b"nine more")
        passed, ended = vectors["passed by"], vectors["ended"]
        self.assertEqual((passed.load(c.RELEASED), passed.load(shape.entry(2) + c.STAMP)), (1, 5))
        self.assertEqual((ended.load(c.WRITER_STATE), ended.load(c.LAST)), (c.ENDED, 6))
        latest, claimed = vectors["latest"], vectors["claimed"]  # whose newest frames have the entries of their slots
        self.assertEqual((latest.load(c.POLICY), latest.load(c.NEWEST), latest.load(c.CLAIM)), (c.LATEST, 2, 0))
        self.assertEqual(c.EntryWords.read(latest, shape.entry_at(2)), c.EntryWords(4, 6, 2, 2_000_000, 10, 9))
        self.assertEqual((claimed.load(c.NEWEST), claimed.load(c.CLAIM), claimed.load(shape.entry_at(1))), (0, 3, 3))
        self.assertEqual([shape.find(vectors["latest of a dead writer"], n) for n in (2, 3, 4, 5)], [2, 0, 1, None])

    def test_what_the_package_writes(self):
        """The package's own writer makes the bytes of the vectors."""
        want = json.loads(VECTORS.read_text())["vectors"]
        shape = c.Shape(3, 1000, 1024, False, 7)
        w = _words.map_words(-1, shape.cursor_size)
        self.addCleanup(w.close)

        def state(name):
            v = next(v for v in want if v["name"] == name)
            raw = ctypes.string_at(w.address, v["size"])
            mine = {f"{at:04x}": raw[at : at + 8].hex() for at in range(0, len(raw), 8) if any(raw[at : at + 8])}
            self.assertEqual(mine, v["words"], name)

        shape.write(w)
        state("fresh")
        for at, value in ((c.POLICY, 2), (c.JOIN, 1), (c.READER_STATE, 1), (c.START, 5)):
            w.store(at, value)
        state("joined")
        cursor = type("Cursor", (), {"words": w})()
        m = Member(cursor, shape, None)
        m.queue = Queue(c.DROP_OLDEST, 3)
        m.publish(1, 5, Meta(1000, b"", 1_000_000))
        m.publish(2, 6, Meta(10, b"nine more", 2_000_000))
        state("two frames")

    def test_what_the_package_writes_of_the_newest(self):
        want = {v["name"]: v for v in json.loads(VECTORS.read_text())["vectors"]}
        shape = c.Shape(3, 1000, 1024, False, 7)
        w = _words.map_words(-1, shape.cursor_size)
        self.addCleanup(w.close)

        def state(name):
            raw = ctypes.string_at(w.address, want[name]["size"])
            mine = {f"{at:04x}": raw[at : at + 8].hex() for at in range(0, len(raw), 8) if any(raw[at : at + 8])}
            self.assertEqual(mine, want[name]["words"], name)

        shape.write(w)
        for at, value in ((c.POLICY, c.LATEST), (c.JOIN, 2), (c.READER_STATE, 1), (c.START, 5)):
            w.store(at, value)
        m = Member(type("Cursor", (), {"words": w})(), shape, None)
        m.queue, m.first = Queue(c.LATEST, 3), 5
        m.publish(1, 5, Meta(1000, b"", 1_000_000))
        m.publish(2, 6, Meta(10, b"nine more", 2_000_000))
        state("latest")
        self.assertEqual(m.sequence_of(2), 6)
        w.store(c.CLAIM, 3)
        m.publish(0, 7, Meta(1000, b"", 3_000_000))
        self.assertFalse(m.claims(1, 8))
        state("claimed")
        self.assertTrue(m.claims(2, 8))
        state("claimed")
        m.publish(1, 8, Meta(1000, b"", 4_000_000))
        w.store(c.NEWEST, 0)
        w.store(c.PUBLISHED, 3)
        state("latest of a dead writer")

    def test_what_the_package_writes_in_any_order(self):
        want = {v["name"]: v for v in json.loads(VECTORS.read_text())["vectors"]}

        def member(shape):
            w = _words.map_words(-1, shape.cursor_size)
            self.addCleanup(w.close)
            shape.write(w)
            cursor = type("Cursor", (), {"words": w, "device": 1 << 60})()
            m = Member(cursor, shape, None)
            m.queue = Queue(c.BLOCK, shape.slots)
            return m, w

        def state(name, w):
            raw = ctypes.string_at(w.address, want[name]["size"])
            mine = {f"{at:04x}": raw[at : at + 8].hex() for at in range(0, len(raw), 8) if any(raw[at : at + 8])}
            self.assertEqual(mine, want[name]["words"], name)

        m, w = member(c.Shape(1, 1000, 1024, False, 7))
        joined = ((c.POLICY, c.BLOCK), (c.JOIN, 1), (c.READER_STATE, c.JOINED), (c.START, 5))
        for at, value in joined:
            w.store(at, value)
        m.publish(0, 5, Meta(1000, b"", 1_000_000))
        w.store(m.shape.release_word(0), 1)
        m.publish(0, 6, Meta(1000, b"", 2_000_000))
        w.store(c.NOTED, 41)
        m.want(3)
        state("one slot", w)
        m, w = member(c.Shape(3, 1000, 1024, False, 7, True))
        state("any order", w)
        for at, value in joined:
            w.store(at, value)
        for slot in range(3):
            m.publish(slot, 5 + slot, Meta(1000, b"", 1_000_000))
        for slot, number in ((1, 2), (2, 3)):
            w.store(m.shape.release_word(slot), number)
        m.look()
        self.assertEqual(m.queue.kept(), [0])
        m.publish(1, 8, Meta(1000, b"", 2_000_000))
        state("given back in any order", w)
        words = m.describe(2, 9, Meta(10, b"nine more", 3_000_000))
        w.store(c.WRITER_POLLS, 1)
        state("any order, by a stream", w)
        m.queue.give(2)
        for at, value in words:
            w.store(at - m.cursor.device, value)
        w.store(c.READER_POLLS, 1)
        m.want(6)
        state("any order, waited for", w)
        m.look()
        self.assertEqual(m.queue.kept(), [0, 1, 2])

    def test_heads_that_are_no_heads(self):
        fresh = next(v for v in json.loads(VECTORS.read_text())["vectors"] if v["name"] == "fresh")
        for at, value, says in ((c.MAGIC, 1, "GPFDCHN1"), (c.VERSION, 2, "version 2"), (c.FLAGS, 3, "flags 0x3"), (c.FLAGS, 4, "flags 0x4"), (c.SLOTS, 0, "0 slots"),
                                (c.SLOTS, 4097, "4097 slots"), (c.SLOT_SIZE, 0, "slots of 0 bytes"), (c.SLOT_SIZE, 1025, "1025 bytes"),
                                (c.STRIDE, 1 << 63, "apart"), (c.GENERATION, 8, "generation 8")):  # fmt: skip
            w = load(fresh)
            w.store(at, value)
            with common.raises(self, gpufd.ChannelError, "cursor") as e:
                c.Shape.read(w, 3072, 7)
            self.assertIn(says, str(e.exception))
            w.close()

    def test_what_is_decided(self):
        q = Queue(c.BLOCK, 3)
        self.assertEqual([q.give(s) for s in (1, 2)], [1, 2])
        self.assertTrue(q.holds(1) and q.holds(2) and not q.holds(0))
        self.assertEqual(pick([q], [0, 1, 2], 2, 2), (0, True))
        q.give(0)
        self.assertEqual(pick([q], [3, 1, 2], 3, 0), (1, False))
        with common.raises(self, gpufd.ChannelError, "cursor"):
            q.see(4)
        q.see(2)
        with common.raises(self, gpufd.ChannelError, "cursor"):
            q.see(1)
        old, new = Queue(c.DROP_OLDEST, 4), Queue(c.DROP_NEWEST, 4)
        self.assertEqual((old.give(0), old.retires(0), old.retires(1), old.holds(0)), (1, 1, 0, False))
        self.assertTrue(has_room([old, new], 4, 0))
        new.give(0)
        new.give(1)
        self.assertFalse(has_room([old, new], 4, 2))
        self.assertEqual([choose(p, 3, n, 4) for p, n in ((1, 2), (1, 9), (2, 6), (2, 7))], [0, 3, 3, 7])
        for published in (1, 8, c.GIVEN):
            with common.raises(self, gpufd.ChannelError, "cursor"):
                check_published(c.BLOCK, published, 2, 3, 4)


class WithPrograms(common.Scene):
    """Against gpufd channel write and read, with every frame's bytes checked."""

    def frames(self, n, seed):
        data = random.Random(seed).randbytes(n * SIZE - 100)
        return data, [data[i : i + SIZE] for i in range(0, len(data), SIZE)]

    def channel_program(self, *args, stdin=None):
        p = subprocess.Popen([str(programs() / "gpufd"), "channel", *args, "--socket", self.path, "--timeout", "60s"], stdin=stdin or subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.addCleanup(lambda: (p.kill(), p.wait(), p.stdout.close(), p.stderr.close(), p.stdin and p.stdin.close()))
        return p

    def writes(self, data, *flags):
        path = os.path.join(self.dir, "in")
        with open(path, "wb") as f:
            f.write(data)
        with open(path, "rb") as f:
            return self.channel_program("write", "cam", "--slot-size", str(SIZE), "--json", *flags, stdin=f)

    def result(self, p, code=0):
        out, err = p.communicate(timeout=PATIENCE)
        self.assertEqual(p.returncode, code, err.decode())
        return json.loads(out.splitlines()[-1])

    def test_reads_what_go_writes(self):
        data, want = self.frames(300, 1)
        for policy in POLICIES:
            with self.subTest(policy):
                pace = [] if policy == "block" else ["--rate", "3000"]
                p = self.writes(data, "--slots", "4", *pace)
                with channel.Reader("cam", socket=self.path, policy=policy, wait=PATIENCE) as r:
                    self.assertEqual((r.slots, r.slot_size, r.first), (4, SIZE, 1))
                    seen = passed = 0
                    for i, frame in enumerate(r.frames(PATIENCE)):
                        got = frame.tobytes()
                        self.assertGreater(frame.sequence, seen)
                        seen = frame.sequence
                        if policy != "block" and i % 10 == 9:
                            time.sleep(0.005)
                        if not frame.whole:
                            passed += 1
                        elif i % 10 != 9:
                            self.assertEqual(got, want[seen - 1])
                    s = r.stats
                    common.is_error(self, r.err, gpufd.ChannelError, "ended")
                    self.assertEqual(r.err.exit, 1)
                self.assertEqual(s.received + s.lost, 300)
                self.assertGreaterEqual(s.passed, passed)
                if policy == "block":
                    self.assertEqual((s.received, s.lost, s.passed), (300, 0, 0))
                self.assertEqual(self.result(p)["frames"], 300)

    def test_writes_what_go_reads(self):
        data, want = self.frames(200, 2)
        readers = {}
        for i, policy in enumerate(("block", "block", "drop-oldest", "drop-newest", "latest")):
            out = os.path.join(self.dir, f"out{i}")
            readers[out] = policy, self.channel_program("read", "cam", "--policy", policy, "-o", out, "--json")
        gone = []
        with channel.Writer("cam", socket=self.path, slots=5, slot_size=SIZE, on_gone=gone.append) as w:
            w.await_readers(5, PATIENCE)
            for i, frame in enumerate(want):
                if i % 2:
                    self.assertEqual(w.send(frame, timeout=PATIENCE), i + 1)
                else:
                    slot = w.acquire(PATIENCE)
                    self.assertIs(w.acquire(), slot)
                    slot.view("U8", len(frame)).memoryview()[:] = frame
                    w.publish(slot, size=len(frame), user=b"x" * (i % 209))
            self.assertEqual((w.last, w.stats.frames, w.readers), (200, 200, 5))
        self.assertEqual(w.stats.given + w.stats.skipped, 1000)
        for out, (policy, p) in readers.items():
            o = self.result(p)
            with open(out, "rb") as f:
                got = f.read()
            if policy == "block":
                self.assertEqual(got, data)
                self.assertEqual((o["received"], o["lost"]), (200, 0))
            else:
                frames = [got[i : i + SIZE] for i in range(0, len(got), SIZE)]
                places = [want.index(f) for f in frames]
                self.assertEqual(places, sorted(set(places)))
                self.assertEqual(len(frames), o["received"])
                self.assertLessEqual(o["received"] + o["lost"], 200)
        self.assertEqual([g.err for g in gone], [None] * 5)

    def test_go_readers_killed(self):
        """A reader is killed: the writer goes on, and the other one misses nothing."""
        data, want = self.frames(400, 3)
        out = os.path.join(self.dir, "out")
        good = self.channel_program("read", "cam", "-o", out, "--json")
        gone = []
        with channel.Writer("cam", socket=self.path, slots=3, slot_size=SIZE, on_gone=gone.append) as w:
            w.await_readers(1, PATIENCE)
            for n in range(4):
                victim = self.channel_program("read", "cam", "-o", os.devnull, "--json")
                w.await_readers(2, PATIENCE)
                for i in range(100 * n, 100 * n + 100):
                    if i % 100 == 50:
                        victim.send_signal(signal.SIGSTOP)
                    if i % 100 == 60:
                        victim.kill()
                    try:
                        w.send(want[i], timeout=0.05 if i % 100 < 60 else PATIENCE)
                    except gpufd.TimedOutError:
                        victim.kill()  # it was stopped and holds all slots
                        w.send(want[i], timeout=PATIENCE)
        self.assertEqual(self.result(good)["received"], 400)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), data)
        self.assertEqual(sum(isinstance(g.err, gpufd.LostError) for g in gone), 4)

    def test_go_writer_killed(self):
        """What was whole can be taken; the error says which was the last."""
        p = self.channel_program("write", "cam", "--slot-size", "64", stdin=subprocess.PIPE)
        with channel.Reader(socket=self.path, wait=PATIENCE) as r:
            p.stdin.write(b"a" * 64 + b"b" * 64 + b"c")
            p.stdin.flush()
            with r.next(PATIENCE) as first:
                self.assertEqual((first.tobytes(), first.sequence), (b"a" * 64, 1))
            deadline = time.monotonic() + PATIENCE
            while r._joined.words.load(c.PUBLISHED) < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            p.kill()
            p.wait()
            r.attachment.wait(PATIENCE)
            with r.next(PATIENCE) as second:
                self.assertEqual(second.tobytes(), b"b" * 64)
            with common.raises(self, gpufd.LostError, "lost") as e:
                r.next(PATIENCE)
            self.assertEqual((e.exception.last, e.exception.exit, e.exception.died()), (2, 4, True))
            self.assertIn("the last whole frame is 2", str(e.exception))
            r.await_fence(PATIENCE)

    def test_follows_a_writer_that_restarts(self):
        seen = []
        first = self.channel_program("write", "cam", "--slot-size", "64", "--frames", "1", stdin=subprocess.PIPE)
        first.stdin.write(b"1" * 64)
        first.stdin.flush()
        for r in channel.follow("cam", socket=self.path, within=PATIENCE):
            seen += [f.tobytes()[:1] for f in r.frames(PATIENCE)]
            if len(seen) == 2:
                break
            self.result_of(first)
            second = self.channel_program("write", "cam", "--slot-size", "64", "--frames", "1", stdin=subprocess.PIPE)
            second.stdin.write(b"2" * 64)
            second.stdin.flush()
        self.assertEqual(seen, [b"1", b"2"])

    def result_of(self, p):
        self.assertEqual(p.wait(PATIENCE), 0, p.stderr.read())


class InProcess(common.Scene):
    """A writer and readers of this package."""

    def writer(self, **options):
        w = channel.Writer("cam", socket=self.path, **{"slots": 3, "slot_size": 64, **options})
        self.addCleanup(w.close)
        return w

    def reader(self, **options):
        r = channel.Reader("cam", socket=self.path, **options)
        self.addCleanup(r.close)
        return r

    def test_a_frame(self):
        numpy = common.need_numpy()
        w, r = self.writer(), self.reader()
        slot = w.acquire()
        numpy.frombuffer(slot.view("I32", (4, 4)).memoryview(), "i4")[:] = numpy.arange(16)
        before = time.monotonic_ns()
        w.publish(slot, user=b"left camera")
        frame = r.next(PATIENCE)
        self.assertEqual((frame.sequence, frame.size, frame.user, frame.meta), (1, 64, b"left camera", 0))
        self.assertTrue(before <= frame.time <= time.monotonic_ns())
        seen = numpy.frombuffer(frame.view("I32", (4, 4)).memoryview(), "i4").reshape(4, 4)
        self.assertEqual(seen[3, 3], 15)
        self.assertTrue(frame.whole)
        with self.assertRaises(gpufd.UsageError):
            frame.view("U8", 65)
        with self.assertRaises(gpufd.InUseError):
            r.close()
        frame.release()
        with common.raises(self, gpufd.ChannelError, "order"):
            frame.release()
        del seen
        r.close()
        r.close()
        for call in (r.next, lambda: r.release(frame)):
            with self.assertRaises(gpufd.ClosedError):
                call()

    def test_deadlines_and_stalls(self):
        w, r = self.writer(stall=0.0), self.reader()
        with self.assertRaises(gpufd.TimedOutError):
            r.next(0.01)
        for i in range(3):
            w.send(bytes([i]) * 64)
        with self.assertRaises(gpufd.TimedOutError):
            w.acquire(0.01)
        held = [r.next(PATIENCE) for _ in range(3)]
        with common.raises(self, gpufd.ChannelError, "order"):
            r.next(0.01)
        with common.raises(self, gpufd.ChannelError, "order"):
            held[1].release()
        held[0].release()
        w.send(b"x", timeout=PATIENCE)
        self.assertGreater(w.stats.max_stall, -1)

    def test_stall_raises_or_drops(self):
        for drop in (False, True):
            with self.subTest(drop=drop), channel.Writer("cam", socket=self.path, slots=2, slot_size=8, stall=0.05, drop=drop) as w, channel.Reader(socket=self.path) as r:
                w.send(b"1")
                w.send(b"2")
                if not drop:
                    with common.raises(self, gpufd.ChannelError, "stalled"):
                        w.acquire(PATIENCE)
                    continue
                held = r.next(PATIENCE)
                self.assertTrue(held.whole)
                w.acquire(PATIENCE)
                self.check_dropped(r, held)

    def check_dropped(self, r, held):
        """A reader that the writer does not count in any more is given nothing, and what it has
        is not said to be whole."""
        self.assertFalse(held.whole)
        for call in (lambda: r.check(held), held.release, lambda: r.next(PATIENCE)):
            with common.raises(self, gpufd.ChannelError, "dropped"):
                call()
        self.assertEqual((len(r._position.held), r.stats.received, r.stats.passed), (0, 1, 1))
        with common.raises(self, gpufd.ChannelError, "dropped"):
            list(r.frames(PATIENCE))

    def test_counted_out_whose_lease_has_ended(self):
        gone = threading.Event()
        w, r = self.writer(slots=2, on_gone=lambda g: gone.set()), self.reader()
        w.send(b"1")
        w.send(b"2")
        held = r.next(PATIENCE)
        r.check(held)
        w._readers.there[0].lease.revoke()
        self.assertTrue(gone.wait(PATIENCE))
        w.send(b"3")  # into the slot of the first
        w.send(b"4")
        self.check_dropped(r, held)
        self.assertIsNone(self.reader(join="newest").err)

    def test_left_whose_lease_goes_on(self):
        """A reader that has said that it has left keeps nobody waiting, whatever becomes of its lease."""
        gone = queue.Queue()
        w = self.writer(slots=2, on_gone=gone.put)
        for policy in ("block", "drop-newest"):
            with self.subTest(policy):
                r = self.reader(policy=policy)
                for _ in range(2):
                    w.send(b"held", timeout=PATIENCE)
                r._joined.words.store(c.READER_STATE, c.LEFT)
                r._joined.words.ring(c.WRITER_BELL)
                for _ in range(5):
                    w.send(b"on", timeout=PATIENCE)
                self.assertIsNone(gone.get(timeout=PATIENCE).err)
                self.assertIsNone(r.attachment.err)
                r.close()
        w.close()
        self.assertTrue(gone.empty())

    def test_a_writer_goes_on_while_its_end_is_seen(self):
        """It gives frames, and drops the reader, when that has looked what was published. That is no nonsense."""
        for drops in (False, True):
            with self.subTest(drops=drops), channel.Writer("cam", socket=self.path, slots=8, slot_size=64) as w, channel.Reader(socket=self.path) as r:
                w.send(b"1")
                r.next(PATIENCE)
                looked, go_on = threading.Event(), threading.Event()

                class Lock:
                    """That of the reader, which it gets when it may go on."""

                    def acquire(self, looked=looked, go_on=go_on):
                        looked.set()
                        go_on.wait(PATIENCE)

                    def release(self):
                        pass

                r._joined.mu = Lock()
                with w._readers.lock:  # it cannot drop the reader meanwhile
                    m = w._readers.there[0]
                    m.lease.revoke()
                    self.assertTrue(looked.wait(PATIENCE))
                    for n in range(2, 6):
                        m.publish(n, n, Meta(64))
                        self.assertEqual(r.next(PATIENCE).sequence, n)
                    if drops:
                        w._readers.drop(m, c.DROPPED, None)
                    go_on.set()
                    want = (gpufd.ChannelError, "dropped") if drops else (gpufd.LostError, "lost")
                    with common.raises(self, *want):
                        r.next(PATIENCE)
                    r._joined.thread.join(PATIENCE)
                    common.is_error(self, r.err, *want)
                    with common.raises(self, *want):
                        r.next(PATIENCE)

    def test_a_stream_goes_on_while_its_end_is_seen(self):
        """A writer that lives gives frames when a reader by streams has looked what was published.
        That is no nonsense."""
        with channel.Writer("cam", socket=self.path, slots=8, slot_size=64) as w, channel.Reader(socket=self.path) as r:
            w.send(b"1")
            r.next(PATIENCE)
            with w._readers.lock:
                m = w._readers.there[0]
                r._joined.tracker, load, looked = mock.Mock(), r._joined.words.load, []

                def look(at):
                    word = load(at)
                    if at == c.PUBLISHED and threading.current_thread() is r._joined.thread and not looked:
                        looked.append(word)
                        m.publish(2, 2, Meta(64))
                        r._position.check_told()
                    return word

                r._joined.words.load = look
                m.lease.revoke()
                r._joined.thread.join(PATIENCE)
                self.assertEqual(looked, [1])
                common.is_error(self, r.err, gpufd.LostError, "lost")
                with common.raises(self, gpufd.LostError, "lost"):
                    r.next(PATIENCE)

    def test_dropped_while_frames_are_read(self):
        w, r = self.writer(slots=2), self.reader()
        w.send(b"1")
        w.send(b"2")
        with common.raises(self, gpufd.ChannelError, "dropped"):
            for frame in r:
                self.assertEqual(frame.sequence, 1)
                with w._readers.lock:
                    w._readers.drop(w._readers.there[0], c.DROPPED, None)

    def test_drop_oldest_is_passed_by(self):
        w, r = self.writer(), self.reader(policy="drop-oldest")
        for i in range(20):
            w.send(bytes([i]) * 64)
        frame = r.next(PATIENCE)
        self.assertEqual((frame.sequence, frame.tobytes(), r.stats.lost), (20, bytes([19]) * 64, 19))
        for i in range(3):
            w.send(b"later")
        self.assertFalse(frame.whole)
        with common.raises(self, gpufd.ChannelError, "passed"):
            frame.release()
        self.assertEqual(r.stats.passed, 1)
        for i in range(2):  # the next two are there, in order
            w.send(bytes([i]))
        self.assertGreater(r.next(PATIENCE).sequence, 22)

    def test_after_passed_comes_the_newest(self):
        w, r = self.writer(slots=8), self.reader(policy="drop-oldest")
        w.send(b"1")
        frame = r.next(PATIENCE)
        for _ in range(8):
            w.send(b"later")
        with common.raises(self, gpufd.ChannelError, "passed"):
            frame.release()
        self.assertEqual((r.next(PATIENCE).sequence, r.stats.lost), (9, 7))

    def test_the_server_ends_under_the_writer(self):
        server = gpufd.Server(self.path)
        self.addCleanup(server.close)
        w = channel.Writer("cam", socket=server, slots=2, slot_size=8)
        self.addCleanup(w.close)
        r = self.reader()
        w.send(b"1")
        slot = w.acquire(PATIENCE)
        self.assertEqual((w.readers, w.done, w.err), (1, False, None))
        failed = []

        def awaits_two():
            try:
                w.await_readers(2)
            except gpufd.ChannelError as e:
                failed.append(e)

        waits = threading.Thread(target=awaits_two)
        waits.start()
        server.close()
        waits.join(PATIENCE)
        self.assertEqual(len(failed), 1)
        for call in (w.acquire, lambda: w.publish(slot), lambda: w.send(b"2"), lambda: w.await_readers(0)):
            with common.raises(self, gpufd.ChannelError, "not-offered"):
                call()
        self.assertEqual((w.readers, w.done, w.err.reason), (0, True, "not-offered"))
        with self.assertRaises((gpufd.LostError, gpufd.ChannelError)):  # whichever this side hears first
            for _ in range(2):
                r.next(PATIENCE)
        w.close()
        self.assertIsInstance(w.err, gpufd.ClosedError)

    def test_drop_newest_keeps_half(self):
        w, r = self.writer(slots=4), self.reader(policy="drop-newest")
        for i in range(10):
            w.send(bytes([i]), timeout=PATIENCE)
        self.assertEqual(w.stats.skipped, 8)
        self.assertEqual([f.tobytes() for f in (r.next(PATIENCE), r.next(PATIENCE))], [b"\0", b"\1"])
        for f in list(r._position.held):
            f.release()
        w.send(b"again")
        frame = r.next(PATIENCE)
        self.assertEqual((frame.sequence, frame.tobytes(), r.stats.lost), (11, b"again", 8))

    def test_drop_newest_is_shared(self):
        """A reader that stands still leaves others of its kind their share."""
        w = self.writer(slots=8)
        still, quick = self.reader(policy="drop-newest"), self.reader(policy="drop-newest")
        for n in range(1, 51):
            w.send(bytes([n]))
            with quick.next(PATIENCE) as frame:
                self.assertEqual(frame.sequence, n)
        self.assertEqual(quick.stats.lost, 0)
        w.close()
        for n in (1, 2):
            with still.next(PATIENCE) as frame:
                self.assertEqual(frame.sequence, n)
        for _ in range(2):
            with common.raises(self, gpufd.ChannelError, "ended"):
                still.next(PATIENCE)
        self.assertEqual((still.stats.received, still.stats.lost), (2, 48))

    def test_joins_the_newest(self):
        w = self.writer()
        w.send(b"first", user=b"a")
        w.send(b"second", user=b"b")
        for policy in POLICIES:
            with channel.Reader(socket=self.path, policy=policy, join="newest") as r, r.next(PATIENCE) as frame:
                self.assertEqual((frame.sequence, frame.tobytes(), frame.user), (2, b"second", b"b"))
        r = self.reader()
        w.send(b"third")
        self.assertEqual((r.first, r.next(PATIENCE).sequence), (3, 3))

    def test_joins_a_writer_that_ends_at_once(self):
        """It admits the reader and ends while the reader looks whether it has done either."""
        ask = Joined._ask

        def ask_slowly(r, deadline, word, w):
            load, looked = r.words.load, []
            before = load(word)  # what a look just before the admission finds

            def until(done):
                limit = time.monotonic() + PATIENCE
                while not done():
                    self.assertLess(time.monotonic(), limit)
                    time.sleep(0.001)

            def look(at):
                if at != word or looked:
                    return load(at)
                looked.append(before)
                until(lambda: load(c.START))
                w.send(b"1")
                w.close()
                until(lambda: r.attachment.done)
                return before

            r.words.load = look
            ask(r, deadline)
            self.assertEqual(looked, [0])

        for word in (c.START, c.WRITER_STATE):
            with (
                self.subTest(word=hex(word)),
                self.writer() as w,
                mock.patch.object(Joined, "_ask", lambda r, deadline, word=word, w=w: ask_slowly(r, deadline, word, w)),
                self.reader() as r,
            ):
                self.assertEqual(r.next(PATIENCE).tobytes(), b"1")
                with common.raises(self, gpufd.ChannelError, "ended"):
                    r.next(PATIENCE)

    def test_refusals_by_name(self):
        with self.assertRaises(gpufd.UsageError):
            channel.Reader(socket=self.path, policy="all")
        with self.assertRaises(gpufd.UsageError):
            channel.Writer("cam", socket=self.path, slots=0, slot_size=64)
        w = self.writer(readers=1, streams=True)
        with common.raises(self, gpufd.RefusedError, "not-understood"):
            gpufd.attach("cam", socket=self.path)
        with common.raises(self, gpufd.ChannelError, "policy"):
            channel.Reader("cam", socket=self.path, policy="drop-oldest")
        r = self.reader()
        with common.raises(self, gpufd.ChannelError, "turned-away"):
            channel.Reader("cam", socket=self.path)
        for call in (lambda: r.next_on(0), lambda: r.release_on(0, None), lambda: w.acquire_on(0), lambda: w.publish_on(0, None)):
            with common.raises(self, gpufd.UnavailableError, "no-streams"):
                call()
        w.send(b"by the host")
        self.assertEqual(r.next(PATIENCE).tobytes(), b"by the host")
        with gpufd.Server(self.path + "2") as server, gpufd.allocate(64) as memory, server.offer("plain", memory):
            with common.raises(self, gpufd.ChannelError, "no-channel"):
                channel.Reader(socket=server.path)
        slot = w.acquire()
        with self.assertRaises(gpufd.UsageError):
            w.publish(slot, user=bytes(209))
        with self.assertRaises(gpufd.UsageError):
            w.publish(slot, size=65)
        w.publish(slot)
        with common.raises(self, gpufd.ChannelError, "order"):
            w.publish(slot)

    def test_readers_that_write_nonsense(self):
        for at, value in ((c.RELEASED, 3), (c.RELEASED, c.GIVEN)):
            with self.subTest(at=at, value=value):
                gone = []
                with channel.Writer("cam", socket=self.path, slots=2, slot_size=8, on_gone=gone.append) as w, channel.Reader(socket=self.path) as r:
                    w.send(b"1")
                    r._joined.words.store(at, value)
                    w.acquire(PATIENCE)
                    self.assertEqual(w.readers, 0)
                    with common.raises(self, gpufd.ChannelError, "turned-away"):
                        r.next(PATIENCE)
                common.is_error(self, gone[0].err, gpufd.ChannelError, "cursor")

    def test_writers_that_write_nonsense(self):
        shape = c.Shape.new(3, 64, False)
        entry = shape.entry(1)
        for words, says in (({c.PUBLISHED: 4}, "4 frames were given"), ({c.PUBLISHED: c.GIVEN}, "were given"), ({entry: 1}, "not whole"),
                            ({entry + c.SLOT: 3}, "slot 3"), ({entry + c.BYTES: 65}, "65 bytes"), ({entry + c.LENGTH: 209}, "209 in"),
                            ({entry + c.SEQUENCE: 0}, "frame 0 behind")):  # fmt: skip
            with self.subTest(says), channel.Writer("cam", socket=self.path, slots=3, slot_size=64) as w, channel.Reader(socket=self.path) as r:
                w.send(b"1")
                for at, value in words.items():
                    r._joined.words.store(at, value)
                with common.raises(self, gpufd.ChannelError, "cursor") as e:
                    r.next(PATIENCE)
                self.assertIn(says, str(e.exception))
        w, r = self.writer(), self.reader()
        w.send(b"1")
        w.send(b"2")
        r.next(PATIENCE)
        r._joined.words.store(shape.entry(2) + c.SLOT, r._position.held[0].index)
        with common.raises(self, gpufd.ChannelError, "cursor"):
            r.next(PATIENCE)

    def test_a_writer_that_drops_who_joins_badly(self):
        w = self.writer()
        with gpufd.attach("cam", socket=self.path, max_cursors=c.MAX_CURSOR) as att:
            self.assertEqual(fcntl.fcntl(att.cursors, fcntl.F_GET_SEALS), 7)
            words = _words.map_words(att.cursors, os.fstat(att.cursors).st_size)
            words.store(c.POLICY, 4)
            words.store(c.READER_STATE, c.JOINED)
            self.assertTrue(att.wait(PATIENCE))
            self.assertEqual(words.load(c.WRITER_STATE), c.REFUSED)
            words.close()
        with gpufd.attach("cam", socket=self.path, max_cursors=c.MAX_CURSOR):
            pass  # it never joins
        with common.raises(self, gpufd.MismatchError, "too-large"):
            gpufd.attach("cam", socket=self.path, max_cursors=4096)
        w.send(b"1")

    def test_threads_and_a_close_meanwhile(self):
        w, r = self.writer(), self.reader()
        errors = []

        def takes():
            try:
                r.next()
            except gpufd.Error as e:
                errors.append(e)

        def acquires():
            try:
                while True:
                    w.send(b"x")
            except gpufd.Error as e:
                errors.append(e)

        for target, side in ((takes, r), (acquires, w)):
            thread = threading.Thread(target=target)
            thread.start()
            if side is w:
                second = channel.Reader(socket=self.path)
                time.sleep(0.05)
            side.close()
            thread.join(PATIENCE)
            self.assertFalse(thread.is_alive())
        second.close()
        self.assertEqual([type(e) for e in errors], [gpufd.ClosedError, gpufd.ClosedError])

    def test_writer_killed_and_reader_killed(self):
        """Both sides are this package's, in processes of their own."""
        writer = self.python(
            "import gpufd.channel, sys, time\n"
            "w = gpufd.channel.Writer('cam', socket=sys.argv[1], slots=2, slot_size=8)\n"
            "print('ready'); w.await_readers(1); w.send(b'one'); w.send(b'two'); time.sleep(99)", self.path, waits_for="ready")  # fmt: skip
        with channel.Reader(socket=self.path) as r:
            self.assertEqual([f.tobytes() for f in (r.next(PATIENCE), r.next(PATIENCE))], [b"one", b"two"])
            writer.kill()
            r._position.held[0].release()
            with common.raises(self, gpufd.LostError, "lost") as e:
                r.next(PATIENCE)
            self.assertEqual(e.exception.last, 2)
        writer.wait()
        gone = threading.Event()
        w = self.writer(slots=2, on_gone=lambda g: gone.set())
        reader = self.python(
            "import gpufd.channel, sys, time\n"
            "r = gpufd.channel.Reader(socket=sys.argv[1]); print('ready'); r.next(); print('has'); time.sleep(99)", self.path, waits_for="ready")  # fmt: skip
        w.send(b"one")
        w.send(b"two")
        reader.stdout.readline()
        reader.kill()
        begin = time.monotonic()
        w.send(b"three", timeout=PATIENCE)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertTrue(gone.wait(PATIENCE))

    def test_forked(self):
        w, r = self.writer(), self.reader()
        pid = os.fork()
        if pid == 0:
            code = 0
            for call in (r.next, w.acquire):
                try:
                    call()
                    code = 1
                except gpufd.ClosedError:
                    pass
            r.close()
            w.close()
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        w.send(b"1")
        self.assertEqual(r.next(PATIENCE).tobytes(), b"1")


if __name__ == "__main__":
    unittest.main()
