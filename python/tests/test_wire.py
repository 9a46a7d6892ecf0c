"""The records of docs/wire.md against the vectors, and connections against liars.

	python3 -m unittest discover -s python/tests
"""

import array
import contextlib
import json
import os
import pathlib
import socket
import tempfile
import threading
import time
import unittest
import unittest.mock

from dataclasses import replace

import common  # noqa: F401  # finds the package
import gpufd
from gpufd.wire import conn
from gpufd.wire import records as wire

HERE = pathlib.Path(__file__).resolve().parent
VECTORS = HERE / "../../internal/wire/testdata/vectors.json"


def fields(record):
    """A record as the vectors describe it."""
    out = {}
    optional = {"pending", "offers"} | {name for name, _ in getattr(record, "FIELDS", {}).values()}
    for name, value in vars(record).items():
        if isinstance(value, bytes):
            value = value.hex()
        if name in ("offset", "handle") and not record.legacy:
            continue
        if name in ("leases", "slots") and record.leases is None:
            continue
        if isinstance(value, tuple):
            value = [fields(listing) for listing in value]
        if value or name not in optional:
            out[name] = value
    return out


def record_of(type_, described):
    """The record that a vector describes."""
    cls = next(t for t in wire.TYPES.values() if t.__name__.lower() == type_)
    described = dict(described)
    for name in ("device", "data", "handle"):
        if name in described:
            described[name] = bytes.fromhex(described[name])
    if "offers" in described:
        described["offers"] = tuple(wire.Listing(**{"pending": False, **o, "device": bytes.fromhex(o["device"])}) for o in described["offers"])
    return cls(**described)


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = json.loads(VECTORS.read_text())

    def test_every_type_is_there(self):
        known = {type_: t.__name__.lower() for type_, t in wire.TYPES.items()}
        self.assertEqual({v["type"] for v in self.file["vectors"]}, set(known.values()))

    def test_valid_records(self):
        for v in self.file["vectors"]:
            with self.subTest(v["name"]):
                data = bytes.fromhex(v["hex"])
                record = wire.decode(data)
                self.assertEqual(type(record).__name__.lower(), v["type"])
                self.assertEqual(fields(record), v["fields"])
                self.assertEqual(record, record_of(v["type"], v["fields"]))
                self.assertEqual(wire.encode(record), data)
                if isinstance(record, wire.Offer):
                    record.check()

    def test_cut_off(self):
        for v in self.file["vectors"]:
            data = bytes.fromhex(v["hex"])
            for n in range(len(data)):
                with self.assertRaises(gpufd.WireError, msg=f"{v['name']}, {n} bytes"):
                    wire.decode(data[:n])

    def test_invalid_records(self):
        self.assertGreater(len(self.file["invalid"]), 30)
        for v in self.file["invalid"]:
            with self.subTest(v["name"]), self.assertRaises(gpufd.WireError) as caught:
                wire.decode(bytes.fromhex(v["hex"]))
            version = v["why"].startswith("version") or "newer version" in v["why"]
            self.assertEqual(caught.exception.code, wire.OTHER_VERSION if version else wire.BAD_RECORD, v["name"])


    def test_foreign_records(self):
        """Of a later program: ignored, refused by name, or taken for what of it is known."""
        self.assertEqual({v["what"] for v in self.file["foreign"]}, {"ignored", "refused", "taken"})
        for v in self.file["foreign"]:
            with self.subTest(v["name"]):
                data = bytes.fromhex(v["hex"])
                getattr(self, "is_" + v["what"])(v, data)

    def is_ignored(self, v, data):
        self.assertEqual(wire.decode(data), wire.Unknown(int(v["type"])))

    def is_refused(self, v, data):
        with self.assertRaises(gpufd.WireError) as caught:
            wire.decode(data)
        self.assertEqual(caught.exception.code, wire.NOT_KNOWN)
        self.assertIn(v["names"], str(caught.exception))

    def is_taken(self, v, data):
        record = wire.decode(data)
        self.assertEqual(record, record_of(v["type"], v["fields"]))
        self.assertEqual(fields(record), v["fields"])
        self.assertEqual(wire.decode(wire.encode(record)), record)


class Offers(unittest.TestCase):
    good = wire.Offer(2, 1, 3, bytes(16), 5 << 20, 2 << 20, 2 << 20, 1, 0, 3, "x")

    def test_numbers(self):
        self.good.check()
        for change in (
            {"chunks": 0}, {"chunks": 4097}, {"fds": 0}, {"fds": 65}, {"first": 1}, {"granularity": 0}, {"chunk_size": 0},
            {"chunk_size": (2 << 20) + 4096}, {"size": 0}, {"size": 4 << 20}, {"size": (6 << 20) + 1}, {"size": 1 << 63},
            {"chunk_size": 1 << 63, "size": (2 << 63) + 1},
        ):  # fmt: skip
            with self.subTest(str(change)), self.assertRaises(gpufd.WireError):
                replace(self.good, **change).check()

    def test_records_that_contradict(self):
        first = replace(self.good, fds=2)
        second = replace(self.good, first=2, fds=1)
        second.continues(first)
        for change in ({"first": 1}, {"size": 6 << 20}, {"generation": 2}, {"name": "y"}, {"data": b"z"}, {"pending": True}):
            with self.subTest(str(change)), self.assertRaises(gpufd.WireError):
                replace(second, **change).continues(first)


def open_fds():
    for thread in threading.enumerate():
        if thread.name == "gpufd-close":
            thread.join(10)
    return set(os.listdir("/proc/self/fd"))


class Connections(unittest.TestCase):
    def setUp(self):
        self.before = open_fds()
        self.meet()

    def tearDown(self):
        self.part()
        self.assertEqual(open_fds(), self.before, "descriptors are left")

    def meet(self):
        a, self.liar = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.conn = conn.Conn(a, 0.2)

    def part(self):
        self.conn.close()
        self.liar.close()

    def lie(self, data, fds=()):
        null = os.open("/dev/null", os.O_RDONLY)
        rights = array.array("i", [null] * fds if isinstance(fds, int) else fds)
        self.liar.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
        os.close(null)

    def test_a_close_without_a_thread(self):
        """Only of a queue that is known to be empty, which a peer cannot hide: a descriptor there
        can make close wait."""
        fd, peer = (0,), self.liar
        for what, say, empty in (
            ("nothing", lambda: None, True),
            ("the end", lambda: peer.close(), True),
            ("a reset", lambda: (self.conn.sock.send(b"x"), peer.close()), True),
            ("a record", lambda: peer.send(b"x"), False),
            ("a record and the end", lambda: (peer.send(b"x"), peer.close()), False),
            ("a record of length 0", lambda: peer.send(b""), False),
            ("a descriptor", lambda: self.lie(b"x", fd), False),
            ("a descriptor alone", lambda: self.lie(b"", fd), False),
            ("one behind a record of length 0", lambda: (peer.send(b""), self.lie(b"", fd)), False),
            ("one behind a reset", lambda: (self.conn.sock.send(b"x"), self.lie(b"", fd), peer.close()), False),
        ):
            with self.subTest(what):
                say()
                self.conn.sock.shutdown(socket.SHUT_RDWR)
                self.assertEqual(conn.is_empty(self.conn.sock), empty)
                with unittest.mock.patch.object(threading.Thread, "start") as start:
                    self.conn.close()
                self.assertEqual(start.called, not empty)
            self.part()
            self.meet()
            peer = self.liar
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as never:
            self.assertTrue(conn.is_empty(never))
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(directory + "/s")
            listener.listen()
            self.assertFalse(conn.is_empty(listener), "its connections have queues, too")

    def test_silence(self):
        with self.assertRaises(gpufd.TimedOutError):
            self.conn.receive()

    def test_end(self):
        self.lie(wire.encode(wire.Revoke("bye")))
        self.liar.close()
        self.assertEqual(self.conn.receive(), (wire.Revoke("bye"), []))
        with self.assertRaises(gpufd.LostError):
            self.conn.receive()

    def test_farewell_to_nobody(self):
        """Who does not read is not waited for longer than a second, whatever the timeout."""
        self.conn.timeout = 30.0
        with contextlib.suppress(gpufd.TimedOutError):
            while True:
                self.conn.send(wire.Progress(1, 2), deadline=0)
        began = time.monotonic()
        self.conn.farewell(wire.Refuse(wire.BUSY))
        self.assertLess(time.monotonic() - began, 5)

    def test_reset(self):
        """A peer that closes without having read resets; its last record comes behind."""
        self.conn.send(wire.Progress(1, 2))
        self.lie(wire.encode(wire.Refuse(wire.BUSY)))
        self.liar.close()
        self.assertEqual(self.conn.receive()[0], wire.Refuse(wire.BUSY))

    def test_descriptors(self):
        one = wire.encode(replace(Offers.good, chunks=1, fds=1, size=1))
        for name, data, sent, taken in (
            ("none taken", wire.encode(wire.Progress(0, 0)), 1, 0),
            ("more than are taken", one, 65, 64),
            ("too many", one, 2, 64),
            ("too few", one, 0, 64),
            ("with what has none", wire.encode(wire.Progress(0, 0)), 1, 64),
            ("with nonsense", b"nonsense", 3, 64),
            ("without a record", b"", 3, 64),
            ("neither a record", b"", 0, 64),
            ("too long", bytes(wire.MAX_RECORD + 1), 3, 64),
        ):
            with self.subTest(name):
                self.part()
                self.meet()
                self.lie(data, sent)
                with self.assertRaises(gpufd.WireError):
                    self.conn.receive(taken)

    def test_what_is_not_taken_stays(self):
        """A record with a descriptor that is not wanted stays in the queue, where it makes
        nobody wait, and nothing behind it is read."""
        one = wire.encode(replace(Offers.good, chunks=1, fds=1, size=1))
        for name, data, taken in (("none taken", wire.encode(wire.Progress(0, 0)), 0), ("a socket", one, 64)):
            with self.subTest(name):
                self.part()
                self.meet()
                with socket.socket() as passed:
                    self.lie(data, [passed.fileno()])
                self.lie(wire.encode(wire.Progress(0, 0)))
                with self.assertRaises(gpufd.WireError):
                    self.conn.receive(taken)
                with self.assertRaises(gpufd.TimedOutError):
                    self.conn.receive(taken)
                self.assertTrue(self.conn.sock.recvmsg(1, 0, socket.MSG_PEEK)[2] & socket.MSG_CTRUNC)
                self.liar.close()
                with self.assertRaises(gpufd.LostError):
                    self.conn.receive(taken)

    def test_data(self):
        """What is no sealed memory stays in the queue; of another size it is refused."""
        plain = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        sealed = conn.data_file(b"12345")
        pipe = os.pipe()
        try:
            for fds in ([plain], [pipe[0]], [self.liar.fileno()], [sealed, sealed], []):
                self.part()
                self.meet()
                self.lie(wire.encode(wire.Data()), fds)
                with self.assertRaises(gpufd.WireError):
                    self.conn.receive(1)
            self.part()
            self.meet()
            self.lie(wire.encode(wire.Data()), [sealed])
            record, fds = self.conn.receive(1)
            self.assertEqual(record, wire.Data())
            self.assertEqual(conn.read_data(fds[0], 5), b"12345")
            with self.assertRaises(gpufd.WireError):
                conn.read_data(fds[0], 6)
            conn.close_all(fds)
        finally:
            conn.close_all([plain, sealed, *pipe])

    def test_close_on_exec(self):
        self.lie(wire.encode(replace(Offers.good, chunks=1, fds=1, size=1)), 1)
        _, fds = self.conn.receive(64)
        self.assertEqual([os.get_inheritable(fd) for fd in fds], [False])
        conn.close_all(fds)

    def test_flood(self):
        with self.assertRaises(gpufd.WireError) as caught:
            for _ in range(100000):  # 3,000 where nothing holds us up
                self.lie(wire.encode(wire.Progress(0, 0)))
                self.conn.receive()
        self.assertEqual(caught.exception.code, wire.TOO_FAST)


if __name__ == "__main__":
    unittest.main()
