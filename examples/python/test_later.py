"""The programs against peers of a later version: what these say beyond version 1 is ignored,
or refused by name, as docs/wire.md says under "How the format grows".

The consumers in Python and C meet a producer that is written here, and the producer in
Python a consumer.
"""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from dataclasses import replace

import demo
import gpufd
from gpufd.wire import records as wire
from gpufd.wire.conn import Conn, close_all, data_file

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 20.0  # seconds that anything here may take
SIZE = 3 << 20  # two chunks of the offer
NULL = os.devnull

# What is never given out: docs/wire.md, "Numbers".
TYPE, FIELD, REQUIRED = 0x7F00, 0x7F00, 0xFF00
LOWER, UPPER = 0xFFFE, 1 << 16  # flags


def invented(flags=0, type_=TYPE, body=b"invented"):
    """A record of a type that nobody knows."""
    return wire.HEADER.pack(wire.MAGIC, 1, type_, flags, len(body)) + body


def later(record, *fields, flags=0):
    """A record of a known type with more fields, which are numbers and values."""
    body = wire.encode(record)[16:]
    for number, value in fields:
        body += struct.pack("<HH", number, len(value)) + value
    return invented(flags, record.TYPE, body)


SKIPPED = invented(wire.IGNORABLE)


def more(record):
    """A record with all that may be skipped."""
    return later(record, (FIELD, b"later"), (FIELD + 1, b""), flags=LOWER | wire.IGNORABLE)


# What has to be refused, and what the refusal names.
UNKNOWN = (
    ("type", invented(), "type 32512"),
    ("flag", later(wire.Progress(1, 2), flags=UPPER), "flags 0x10000"),
    ("flag of what is ignorable", invented(wire.IGNORABLE | UPPER), "flags 0x10000"),
    ("field", later(wire.Progress(1, 2), (FIELD, b""), (REQUIRED, b"x")), "field 65280"),
)


class Peer(Conn):
    """The end of a connection that is ours; it says bytes, and hears records."""

    def __init__(self, sock):
        super().__init__(sock, PATIENCE)
        self.meter.RATE = 1 << 30

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def say(self, *records, fds=()):
        for data in records:
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
            while True:
                try:
                    self.sock.sendmsg([data], control, socket.MSG_NOSIGNAL)
                    break
                except BlockingIOError:
                    self.wait(select.POLLOUT, time.monotonic() + PATIENCE)

    def hear(self, wanted):
        """The next record but PROGRESS, which is of that type."""
        while True:
            record, fds = self.receive(wire.MAX_FDS)
            close_all(fds)
            if not isinstance(record, wire.Progress):
                break
        if not isinstance(record, wanted):
            raise AssertionError(f"{record} where {wanted} is expected")
        return record

    def drip(self, data, over):
        """Say something, again and again, until it is over or the peer is gone."""
        with contextlib.suppress(OSError):
            while not over.wait(0.05):
                self.say(data)

    def flood(self, data):
        """Say something until the peer is gone."""
        with contextlib.suppress(OSError):
            for _ in range(100000):
                self.say(data)


class Scene(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "s")

    def start(self, command, *flags):
        """A program of ours, which ends before the test does."""
        p = subprocess.Popen([*command, "-socket", self.path, "-driver", "soft", *flags],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def ends(self, p, code, *says):
        out, _ = p.communicate(timeout=PATIENCE)
        self.assertEqual(p.returncode, code, out)
        for text in says:
            self.assertIn(text, out)

    def dripping(self, peer, data):
        """Have the peer say that until the test calls what this returns."""
        over = threading.Event()
        thread = threading.Thread(target=peer.drip, args=(data, over))
        thread.start()

        def stop():
            over.set()
            thread.join()

        self.addCleanup(stop)
        return stop


class Consumers:
    """The tests of a consumer, whose command a class below has."""

    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(SIZE, chunk=2 << 20, driver="soft")
        self.addCleanup(self.memory.close)
        demo.fill(self.memory, 7)
        offer = self.memory.offer("producer", gpufd.READ_ONLY, demo.pack_data(SIZE, 7))
        self.first = replace(offer, fds=1)  # of two records
        self.second = replace(offer, first=1, fds=1)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.listener.close)
        self.listener.bind(self.path)
        self.listener.listen(1)
        self.listener.settimeout(PATIENCE)

    @contextlib.contextmanager
    def attached(self, *flags):
        """A consumer that has said ATTACH: the program, our end, and what it said."""
        p = self.start(self.command, *flags)
        with Peer(self.listener.accept()[0]) as peer:
            yield p, peer, peer.hear(wire.Attach)

    def offer(self, peer):
        peer.say(wire.encode(self.first), fds=self.memory.fds[:1])
        peer.say(wire.encode(self.second), fds=self.memory.fds[1:])

    def test_all_that_may_be_skipped(self):
        """Wherever a record may come, and in every record."""
        pending = [replace(r, pending=True, process=None) for r in (self.first, self.second)]
        with self.attached() as (p, peer, said):
            self.assertEqual(said.capabilities & wire.TAKES_LEGACY, 0, "it takes no legacy handles of the software driver")
            peer.say(SKIPPED, later(wire.Progress(0, 9, 1 << 40)), more(wire.Progress(1, 9)), SKIPPED)
            peer.say(later(pending[0], (0, b""), (1, struct.pack("<QQ", 6, 6)), (FIELD, b"1"), flags=LOWER), fds=self.memory.fds[:1])
            peer.say(SKIPPED)
            peer.say(more(pending[1]), fds=self.memory.fds[1:])
            peer.say(SKIPPED, more(wire.Publish(self.first.generation)))
            peer.hear(wire.Mapped)
            peer.say(SKIPPED, more(wire.Progress(2, 9)))
            self.assertTrue(peer.hear(wire.Verdict).ok)
            peer.say(SKIPPED)
            peer.close()
            self.ends(p, 0, "PASSED")

    def test_last_words(self):
        """REFUSE and REVOKE end the conversation as ever."""
        for record, code, text in ((wire.Refuse(4, "come again"), 1, "come again"), (wire.Refuse(99, "new"), 1, "(code 99)"),
                                   (wire.Revoke("no more"), 4, "no more")):  # fmt: skip
            with self.subTest(text), self.attached() as (p, peer, _):
                peer.say(SKIPPED, more(record))
                self.ends(p, code, text)

    def test_unknown_before_mapped(self):
        cases = UNKNOWN + (
            ("field of an offer", later(self.first, (REQUIRED, b"")), "field 65280"),
            ("flag of an offer", later(self.first, flags=UPPER), "flags 0x10000"),
            ("handle type", wire.encode(replace(self.first, handle_type=8)), "handles of type 8"),
        )
        for name, data, names in cases:
            with self.subTest(name), self.attached() as (p, peer, _):
                peer.say(data, fds=self.memory.fds[:1] if data[6] == wire.Offer.TYPE else ())
                verdict = peer.hear(wire.Verdict)
                peer.close()
                self.assertFalse(verdict.ok)
                self.assertIn(names, verdict.text)
                self.ends(p, 1, names)

    def test_unknown_after_mapped(self):
        for name, data, names in UNKNOWN:
            with self.subTest(name), self.attached() as (p, peer, _):
                self.offer(peer)
                peer.hear(wire.Mapped)
                peer.say(data)
                refuse = peer.hear((wire.Refuse, wire.Verdict))
                if isinstance(refuse, wire.Verdict):  # which it may say before it reads
                    self.assertTrue(refuse.ok)
                    refuse = peer.hear(wire.Refuse)
                peer.close()
                self.assertEqual(refuse.code, wire.NOT_KNOWN)
                self.assertIn(names, refuse.text)
                self.ends(p, 1, names)

    def test_malformed(self):
        """Nothing of a record is ignored that is not a field, and no descriptor."""
        null = os.open(NULL, os.O_RDONLY)
        self.addCleanup(os.close, null)
        for name, data, fds in (
            ("a descriptor with what is ignorable", SKIPPED, [null]),
            ("a field twice", later(wire.Progress(1, 2), (FIELD, b""), (FIELD, b"")), []),
            ("a byte too many", invented(0, wire.Progress.TYPE, bytes(17)), []),
            ("short capabilities", later(wire.Progress(1, 2), (1, bytes(7))), []),
        ):
            with self.subTest(name), self.attached() as (p, peer, _):
                peer.say(data, fds=fds)
                self.assertFalse(peer.hear(wire.Verdict).ok)
                peer.close()
                self.ends(p, 1)

    def test_legacy_handle(self):
        """One that was not asked for is refused."""
        legacy = wire.Offer(gpufd.SOFT, 3, 1, bytes(16), SIZE, SIZE, 0, 7, 0, 0, "producer", demo.pack_data(SIZE, 7),
                             handle_type=wire.LEGACY, handle=bytes(64))  # fmt: skip
        with self.attached() as (p, peer, _):
            peer.say(wire.encode(legacy))
            self.assertIn("legacy handle", peer.hear(wire.Verdict).text)
            peer.close()
            self.ends(p, 1, "legacy handle")

    def test_data(self):
        """Application data in a DATA is for a consumer that says that it takes it; another one
        refuses it, which should not come."""
        fd = data_file(self.first.data)
        self.addCleanup(os.close, fd)
        first, second = (replace(r, data=b"", data_size=len(r.data)) for r in (self.first, self.second))
        with self.attached() as (p, peer, said):
            peer.say(wire.encode(first), fds=self.memory.fds[:1])
            peer.say(wire.encode(second), fds=self.memory.fds[1:])
            takes = said.capabilities & wire.TAKES_DATA
            with contextlib.nullcontext() if takes else contextlib.suppress(PermissionError):  # who takes no more descriptors
                peer.say(wire.encode(wire.Data()), fds=[fd])
            self.assertEqual(bool(takes), self.takes_data)
            if takes:
                peer.hear(wire.Mapped)
            self.assertEqual(peer.hear(wire.Verdict).ok, self.takes_data)
            peer.close()
            self.ends(p, 0 if takes else 1)

    def test_patience(self):
        """What is ignored renews nobody's patience."""
        with self.attached("-timeout", "500ms") as (p, peer, _):
            stop = self.dripping(peer, SKIPPED)
            self.ends(p, 4)
            stop()

    def test_flood(self):
        """What is ignored counts."""
        with self.attached() as (p, peer, _):
            peer.flood(SKIPPED)
            self.assertIn("records a second", peer.hear(wire.Verdict).text)
            self.ends(p, 1, "records a second")


class PythonConsumer(Consumers, Scene):
    takes_data = True
    command = [sys.executable, "-B", str(HERE / "consumer.py")]


class CConsumer(Consumers, Scene):
    takes_data = False

    @classmethod
    def setUpClass(cls):
        if not shutil.which("cc"):
            if "cc" in os.environ.get("GPUFD_REQUIRE", "").split(","):
                raise AssertionError("GPUFD_REQUIRE lists cc, but there is no C compiler here")
            raise unittest.SkipTest("there is no C compiler here")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.command = [os.path.join(directory.name, "consumer")]
        source = str(HERE / "../c/consumer.c")
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", cls.command[0], source, "-ldl"], check=True)

    def test_at_work(self):
        """Who looks whether the memory is wanted back does not wait behind what is ignored."""
        with gpufd.allocate(16 << 20, driver="soft") as chunk, self.attached() as (p, peer, _):
            size = 64 * chunk.size  # so that verifying it takes a while: 64 times the same
            offer = chunk.offer("producer", gpufd.READ_ONLY, demo.pack_data(size, 7))
            peer.say(wire.encode(replace(offer, size=size, chunks=64, fds=64)), fds=64 * chunk.fds)
            peer.say(SKIPPED)
            self.assertIsInstance(peer.receive()[0], wire.Mapped)
            self.assertIsInstance(peer.receive()[0], wire.Progress)  # behind which it looks
            self.assertIn("data differs", peer.hear(wire.Verdict).text)
            peer.close()
            self.ends(p, 1, "data differs")


class Producer(Scene):
    """producer.py against a consumer of a later version."""

    attach = wire.Attach(gpufd.SOFT, gpufd.READ_ONLY, "producer")

    def serving(self, *flags):
        p = self.start([sys.executable, "-B", str(HERE / "producer.py")], *flags)
        lines = iter(p.stdout.readline, "")  # ends with the program
        self.assertTrue(any("Waiting for consumer" in line for line in lines), "it does not serve")
        return p

    def connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(PATIENCE)
        sock.connect(self.path)
        return Peer(sock)

    def refused(self, peer, code, names=""):
        refuse = peer.hear(wire.Refuse)
        self.assertEqual(refuse.code, code, refuse.text)
        self.assertIn(names, refuse.text)

    def honest(self):
        """All that may be skipped, wherever a record may come."""
        with self.connect() as peer:
            peer.say(SKIPPED, later(self.attach, (0, b""), (1, struct.pack("<QQ", 1, 9)), (FIELD, b"later"), flags=LOWER))
            offer = peer.hear(wire.Offer)
            self.assertEqual(offer.capabilities, wire.TAKES_DETACH)
            peer.say(SKIPPED, more(wire.Progress(1, 2)), more(wire.Mapped(offer.generation)), SKIPPED)
            verdict = bytearray(more(wire.Verdict(True)))
            verdict[17] = 1  # a reserved byte
            peer.say(bytes(verdict))
            with self.assertRaises(gpufd.LostError):
                peer.hear(wire.Refuse)

    def test_all_that_may_be_skipped(self):
        p = self.serving()
        self.honest()
        self.ends(p, 0, "verified")

    def test_unknown_first(self):
        """Each costs its own connection: the next one is served."""
        p = self.serving()
        cases = UNKNOWN + (
            ("field of ATTACH", later(self.attach, (1, bytes(8)), (REQUIRED, b"x")), "field 65280 of ATTACH"),
            ("flag of ATTACH", later(self.attach, flags=UPPER), "flags 0x10000"),
        )
        for name, data, names in cases:
            with self.subTest(name), self.connect() as peer:
                peer.say(SKIPPED, data)
                self.refused(peer, wire.NOT_KNOWN, names)
        self.honest()
        self.ends(p, 0)

    def test_unknown_later(self):
        p = self.serving("-consumers", str(len(UNKNOWN) + 1))
        for name, data, names in UNKNOWN:
            with self.subTest(name), self.connect() as peer:
                peer.say(wire.encode(self.attach))
                mapped = wire.Mapped(peer.hear(wire.Offer).generation)
                peer.say(wire.encode(mapped), data)
                self.refused(peer, wire.NOT_KNOWN, names)
        self.honest()
        self.ends(p, 1, *(names for _, _, names in UNKNOWN))

    def test_malformed(self):
        p = self.serving()
        null = os.open(NULL, os.O_RDONLY)
        self.addCleanup(os.close, null)
        with self.connect() as peer:
            try:
                peer.say(SKIPPED, fds=[null])
                self.refused(peer, wire.BAD_RECORD)
            except PermissionError:
                pass  # it takes no descriptors, by SO_PASSRIGHTS
        with self.connect() as peer:
            peer.say(later(self.attach, (FIELD + 1, b""), (FIELD, b"")))
            self.refused(peer, wire.BAD_RECORD)
        self.honest()
        self.ends(p, 0)

    def test_patience(self):
        p = self.serving("-timeout", "500ms", "-consumers", "0")
        with self.connect() as peer:
            stop = self.dripping(peer, SKIPPED)
            self.refused(peer, wire.TOO_LATE)
            stop()
        p.send_signal(signal.SIGTERM)
        self.ends(p, 0)

    def test_flood(self):
        p = self.serving()
        with self.connect() as peer:
            peer.flood(SKIPPED)
            self.refused(peer, wire.TOO_FAST)
        self.honest()
        self.ends(p, 0)


if __name__ == "__main__":
    unittest.main()
