"""The records of docs/wire.md against the vectors, and connections against liars.

	python3 -m unittest discover -s examples/python
"""

import array
import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import struct
import tempfile
import threading
import time
import unittest

import gpufd

HERE = pathlib.Path(__file__).resolve().parent
VECTORS = pathlib.Path(os.environ.get("GPUFD_VECTORS", HERE / "../../share/internal/wire/testdata/vectors.json"))


# Types of docs/wire.md that gpufd.py has no use for: it takes them for a later program's.
LEFT_OUT = {11: "notice", 12: "list", 13: "listed", 15: "superseded"}


def left_out(data):
    """Whether a record is of one of those types."""
    return struct.unpack_from("<H", data, 6)[0] in LEFT_OUT if len(data) >= 8 else False


def fields(record):
    """A record as the vectors describe it."""
    out = {}
    optional = {"pending"} | {name for name, _ in record.FIELDS.values()}
    for name, value in vars(record).items():
        if isinstance(value, bytes):
            value = value.hex()
        if name in ("offset", "handle") and not record.legacy:
            continue
        if value or name not in optional:
            out[name] = value
    return out


def record_of(type_, described):
    """The record that a vector describes."""
    cls = next(t for t in gpufd.TYPES.values() if t.__name__.lower() == type_)
    described = dict(described)
    for name in ("device", "data", "handle"):
        if name in described:
            described[name] = bytes.fromhex(described[name])
    return cls(**described)


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = json.loads(VECTORS.read_text())

    def test_every_type_is_there(self):
        known = {type_: t.__name__.lower() for type_, t in gpufd.TYPES.items()}
        self.assertFalse(known.keys() & LEFT_OUT.keys())
        self.assertEqual({v["type"] for v in self.file["vectors"]}, {*known.values(), *LEFT_OUT.values()})

    def test_valid_records(self):
        for v in self.file["vectors"]:
            with self.subTest(v["name"]):
                data = bytes.fromhex(v["hex"])
                if left_out(data):
                    self.is_left_out(v, data)
                    continue
                record = gpufd.decode(data)
                self.assertEqual(type(record).__name__.lower(), v["type"])
                self.assertEqual(fields(record), v["fields"])
                self.assertEqual(record, record_of(v["type"], v["fields"]))
                self.assertEqual(gpufd.encode(record), data)
                if isinstance(record, gpufd.Offer):
                    record.check()

    def is_left_out(self, v, data):
        """Ignored where that is allowed, and else refused by name."""
        type_, flags = struct.unpack_from("<HI", data, 6)
        self.assertEqual(v["type"], LEFT_OUT[type_])
        if flags & gpufd.IGNORABLE:
            self.is_ignored({"type": type_}, data)
        else:
            self.is_refused({"names": f"type {type_}"}, data)

    def test_cut_off(self):
        for v in self.file["vectors"]:
            data = bytes.fromhex(v["hex"])
            for n in range(len(data)):
                with self.assertRaises(gpufd.Malformed, msg=f"{v['name']}, {n} bytes"):
                    gpufd.decode(data[:n])

    def test_invalid_records(self):
        self.assertGreater(len(self.file["invalid"]), 30)
        for v in self.file["invalid"]:
            if left_out(bytes.fromhex(v["hex"])):
                continue
            with self.subTest(v["name"]), self.assertRaises(gpufd.Malformed) as caught:
                gpufd.decode(bytes.fromhex(v["hex"]))
            version = v["why"].startswith("version") or "newer version" in v["why"]
            self.assertEqual(caught.exception.code, gpufd.OTHER_VERSION if version else gpufd.BAD_RECORD, v["name"])


    def test_foreign_records(self):
        """Of a later program: ignored, refused by name, or taken for what of it is known."""
        self.assertEqual({v["what"] for v in self.file["foreign"]}, {"ignored", "refused", "taken"})
        for v in self.file["foreign"]:
            with self.subTest(v["name"]):
                data = bytes.fromhex(v["hex"])
                if left_out(data):
                    self.is_left_out(v, data)
                else:
                    getattr(self, "is_" + v["what"])(v, data)

    def is_ignored(self, v, data):
        self.assertEqual(gpufd.decode(data), gpufd.Unknown(int(v["type"])))

    def is_refused(self, v, data):
        with self.assertRaises(gpufd.Malformed) as caught:
            gpufd.decode(data)
        self.assertEqual(caught.exception.code, gpufd.NOT_KNOWN)
        self.assertIn(v["names"], str(caught.exception))

    def is_taken(self, v, data):
        record = gpufd.decode(data)
        self.assertEqual(record, record_of(v["type"], v["fields"]))
        self.assertEqual(fields(record), v["fields"])
        self.assertEqual(gpufd.decode(gpufd.encode(record)), record)


class Offers(unittest.TestCase):
    good = gpufd.Offer(2, 1, 3, bytes(16), 5 << 20, 2 << 20, 2 << 20, 1, 0, 3, "x")

    def test_numbers(self):
        self.good.check()
        for change in (
            {"chunks": 0}, {"chunks": 4097}, {"fds": 0}, {"fds": 65}, {"first": 1}, {"granularity": 0}, {"chunk_size": 0},
            {"chunk_size": (2 << 20) + 4096}, {"size": 0}, {"size": 4 << 20}, {"size": (6 << 20) + 1}, {"size": 1 << 63},
            {"chunk_size": 1 << 63, "size": (2 << 63) + 1},
        ):  # fmt: skip
            with self.subTest(str(change)), self.assertRaises(gpufd.Malformed):
                gpufd.replace(self.good, **change).check()

    def test_records_that_contradict(self):
        first = gpufd.replace(self.good, fds=2)
        second = gpufd.replace(self.good, first=2, fds=1)
        second.continues(first)
        for change in ({"first": 1}, {"size": 6 << 20}, {"generation": 2}, {"name": "y"}, {"data": b"z"}, {"pending": True}):
            with self.subTest(str(change)), self.assertRaises(gpufd.Malformed):
                gpufd.replace(second, **change).continues(first)


def open_fds():
    for thread in threading.enumerate():
        if thread.name == "close":
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
        self.conn = gpufd.Conn(a, 0.2)

    def part(self):
        self.conn.close()
        self.liar.close()

    def lie(self, data, fds=()):
        null = os.open("/dev/null", os.O_RDONLY)
        rights = array.array("i", [null] * fds if isinstance(fds, int) else fds)
        self.liar.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])
        os.close(null)

    def test_silence(self):
        with self.assertRaises(gpufd.TimedOut):
            self.conn.receive()

    def test_end(self):
        self.lie(gpufd.encode(gpufd.Revoke("bye")))
        self.liar.close()
        self.assertEqual(self.conn.receive(), (gpufd.Revoke("bye"), []))
        with self.assertRaises(gpufd.Lost):
            self.conn.receive()

    def test_end_that_never_comes(self):
        """Behind the verdict progress renews nothing."""
        over = threading.Event()

        def drip():
            for _ in range(600):
                if over.wait(0.05):
                    return
                self.lie(gpufd.encode(gpufd.Progress(1, 2)))

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            began = time.monotonic()
            with self.assertRaises(gpufd.TimedOut):
                gpufd.Attachment(self.conn, None).report(True)
            self.assertLess(time.monotonic() - began, 15)
        finally:
            over.set()
            dripping.join()

    def test_farewell_to_nobody(self):
        """Who does not read is not waited for longer than a second, whatever the timeout."""
        self.conn.timeout = 30.0
        with contextlib.suppress(gpufd.TimedOut):
            while True:
                self.conn.send(gpufd.Progress(1, 2), deadline=0)
        began = time.monotonic()
        self.conn.farewell(gpufd.Refuse(gpufd.BUSY))
        self.assertLess(time.monotonic() - began, 5)

    def test_leaving_in_order(self):
        """Who has said nothing else says farewell, and who reads one goes on to the end."""
        for over, last in ((False, gpufd.encode(gpufd.Farewell())), (True, b"")):
            with self.subTest(last):
                self.part()
                self.meet()
                with gpufd.Attachment(self.conn, None) as att:
                    att.over = over
                self.assertEqual(self.liar.recv(9999), last)
        for process, last in ((gpufd.AWAITS_RELEASE, gpufd.encode(gpufd.Farewell())), (0, b"")):
            with self.subTest(process):
                self.part()
                self.meet()
                self.lie(gpufd.encode(gpufd.Revoke("give it back")))
                with self.assertRaises(gpufd.Revoked), gpufd.Attachment(self.conn, None) as att:
                    att.offer = gpufd.replace(Offers.good, process=process)
                    att.hear()
                self.assertEqual(self.liar.recv(9999), last)
        self.part()
        self.meet()
        self.lie(gpufd.encode(gpufd.Farewell()))
        self.lie(gpufd.encode(gpufd.Progress(1, 2)))
        self.assertEqual(self.conn.receive()[0], gpufd.Progress(1, 2))

    def test_reset(self):
        """A peer that closes without having read resets; its last record comes behind."""
        self.conn.send(gpufd.Progress(1, 2))
        self.lie(gpufd.encode(gpufd.Refuse(gpufd.BUSY)))
        self.liar.close()
        self.assertEqual(self.conn.receive()[0], gpufd.Refuse(gpufd.BUSY))

    def test_descriptors(self):
        one = gpufd.encode(gpufd.replace(Offers.good, chunks=1, fds=1, size=1))
        for name, data, sent, taken in (
            ("none taken", gpufd.encode(gpufd.Progress(0, 0)), 1, 0),
            ("more than are taken", one, 65, 64),
            ("too many", one, 2, 64),
            ("too few", one, 0, 64),
            ("with what has none", gpufd.encode(gpufd.Progress(0, 0)), 1, 64),
            ("with nonsense", b"nonsense", 3, 64),
            ("without a record", b"", 3, 64),
            ("neither a record", b"", 0, 64),
            ("too long", bytes(gpufd.MAX_RECORD + 1), 3, 64),
        ):
            with self.subTest(name):
                self.part()
                self.meet()
                self.lie(data, sent)
                with self.assertRaises(gpufd.Malformed):
                    self.conn.receive(taken)

    def test_what_is_not_taken_stays(self):
        """A record with a descriptor that is not wanted stays in the queue, where it makes
        nobody wait, and nothing behind it is read."""
        one = gpufd.encode(gpufd.replace(Offers.good, chunks=1, fds=1, size=1))
        for name, data, taken in (("none taken", gpufd.encode(gpufd.Progress(0, 0)), 0), ("a socket", one, 64)):
            with self.subTest(name):
                self.part()
                self.meet()
                with socket.socket() as passed:
                    self.lie(data, [passed.fileno()])
                self.lie(gpufd.encode(gpufd.Progress(0, 0)))
                with self.assertRaises(gpufd.Malformed):
                    self.conn.receive(taken)
                with self.assertRaises(gpufd.TimedOut):
                    self.conn.receive(taken)
                self.assertTrue(self.conn.sock.recvmsg(1, 0, socket.MSG_PEEK)[2] & socket.MSG_CTRUNC)
                self.liar.close()
                with self.assertRaises(gpufd.Lost):
                    self.conn.receive(taken)

    def test_data(self):
        """What is no sealed memory stays in the queue; of another size it is refused."""
        plain = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        sealed = gpufd.data_file(b"12345")
        pipe = os.pipe()
        try:
            for fds in ([plain], [pipe[0]], [self.liar.fileno()], [sealed, sealed], []):
                self.part()
                self.meet()
                self.lie(gpufd.encode(gpufd.Data()), fds)
                with self.assertRaises(gpufd.Malformed):
                    self.conn.receive(1)
            self.part()
            self.meet()
            self.lie(gpufd.encode(gpufd.Data()), [sealed])
            record, fds = self.conn.receive(1)
            self.assertEqual(record, gpufd.Data())
            self.assertEqual(gpufd.read_data(fds[0], 5), b"12345")
            with self.assertRaises(gpufd.Malformed):
                gpufd.read_data(fds[0], 6)
            gpufd.close_all(fds)
        finally:
            gpufd.close_all([plain, sealed, *pipe])

    def test_close_on_exec(self):
        self.lie(gpufd.encode(gpufd.replace(Offers.good, chunks=1, fds=1, size=1)), 1)
        _, fds = self.conn.receive(64)
        self.assertEqual([os.get_inheritable(fd) for fd in fds], [False])
        gpufd.close_all(fds)

    def test_flood(self):
        with self.assertRaises(gpufd.Malformed) as caught:
            for _ in range(100000):  # 3,000 where nothing holds us up
                self.lie(gpufd.encode(gpufd.Progress(0, 0)))
                self.conn.receive()
        self.assertEqual(caught.exception.code, gpufd.TOO_FAST)


class Legacy(unittest.TestCase):
    """Both sides of a conversation about a legacy handle, and what a liar says in it."""

    good = gpufd.Offer(2, 3, 1, bytes(16), 5, 2 << 20, 0, 77, 0, 0, "x", handle_type=gpufd.LEGACY, handle=bytes(range(64)))

    def setUp(self):
        self.before = open_fds()
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "s")

    def tearDown(self):
        self.dir.cleanup()
        self.assertEqual(open_fds(), self.before, "descriptors are left")

    def test_honest(self):
        server = gpufd.Server(self.path, timeout=5)
        thread = threading.Thread(target=server.serve, args=(self.good, [], 1))
        thread.start()
        with gpufd.attach(self.path, "", gpufd.SOFT, timeout=5, legacy=True) as att:
            self.assertEqual((att.offer, att.fds), (self.good, []))
            att.wait_published()
            att.mapped()
            att.report(True)
        thread.join()
        server.close()
        self.assertEqual((server.verified, server.errors), (1, []))

    def large(self, n, **kwargs):
        """What attaching to an offer of n bytes of application data comes to."""
        server = gpufd.Server(self.path, timeout=5)
        offer = gpufd.replace(self.good, data=bytes(i * 7 % 251 for i in range(n)))
        thread = threading.Thread(target=server.serve, args=(offer, [], 1))
        thread.start()
        try:
            with self.assertRaises(gpufd.Refused) as caught, gpufd.attach(self.path, "", gpufd.SOFT, timeout=5):
                pass
            self.assertEqual(caught.exception.code, gpufd.NOT_KNOWN)
            with gpufd.attach(self.path, "", gpufd.SOFT, timeout=5, legacy=True, **kwargs) as att:
                att.mapped()
                att.report(True)
                return att.offer.data == offer.data
        finally:
            thread.join()
            server.close()

    def test_large_data(self):
        for n in (gpufd.MAX_DATA, gpufd.MAX_DATA + 1, 1 << 20):
            self.assertTrue(self.large(n))
        with self.assertRaises(gpufd.Error):
            self.large(5000, max_data=4999)

    def test_resumed(self):
        """Who has the memory already is sent no descriptors, and no other memory."""
        offer = gpufd.replace(Offers.good, chunks=1, size=1, fds=0, generation=77)
        null = os.open("/dev/null", os.O_RDONLY)
        server = gpufd.Server(self.path, timeout=5)
        thread = threading.Thread(target=server.serve, args=(offer, [null], 1))
        thread.start()
        for generation in (78, 77):
            conn, _ = gpufd.dial(self.path, gpufd.Policy(), 5)
            conn.send(gpufd.Attach(gpufd.SOFT, gpufd.READ_ONLY, "", resume=generation))
            answer, fds = conn.receive(gpufd.MAX_FDS)
            self.assertEqual(fds, [])
            if generation == 78:
                self.assertEqual(answer.code, gpufd.OTHER_MEMORY)
            else:
                self.assertEqual(answer, gpufd.replace(offer, resume=77))
                answer.check()
                conn.send(gpufd.Mapped(77))
                conn.send(gpufd.Verdict(True))
                with self.assertRaises(gpufd.Lost):
                    conn.receive()
            conn.close()
        thread.join()
        server.close()
        os.close(null)
        self.assertEqual((server.verified, server.failed), (1, 0))

    def test_not_taken(self):
        """Who does not say that it takes legacy handles is sent none; the next one is served."""
        server = gpufd.Server(self.path, timeout=5)
        thread = threading.Thread(target=server.serve, args=(self.good, [], 1))
        thread.start()
        with self.assertRaises(gpufd.Refused) as caught:
            gpufd.attach(self.path, "", gpufd.SOFT, timeout=5)
        self.assertEqual(caught.exception.code, gpufd.NOT_KNOWN)
        self.assertIn("legacy handle", str(caught.exception))
        with gpufd.attach(self.path, "", gpufd.SOFT, timeout=5, legacy=True) as att:
            att.mapped()
            att.report(True)
        thread.join()
        server.close()
        self.assertEqual((server.verified, server.failed), (1, 0))

    def test_signal(self):
        """One that interrupts no system call of the main thread ends serving all the same."""

        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        def send():  # this thread takes it, as the other one does not
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, stop)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        server = gpufd.Server(self.path, timeout=30)
        sender = threading.Thread(target=send)
        began = time.monotonic()
        sender.start()
        try:
            with self.assertRaises(Stopped):
                server.serve(self.good, [], 1)
        finally:
            sender.join()
            server.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.signal(signal.SIGUSR1, before)
        self.assertLess(time.monotonic() - began, 15)

    def revoked(self, timeout, end):
        """What closing a server comes to with a consumer that then does end, and how long
        that takes. The timeout is for that alone."""
        server = gpufd.Server(self.path)

        def serve():  # the program serves and closes in one thread
            with contextlib.suppress(OSError, ValueError):
                server.serve(self.good, [], 1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        closing = threading.Thread(target=server.close)
        att = gpufd.attach(self.path, "", gpufd.SOFT, timeout=5, legacy=True)
        try:
            att.mapped()
            server.timeout = timeout
            closing.start()
            with self.assertRaises(gpufd.Revoked):
                while True:
                    att.progress(1)
                    time.sleep(0.01)
            closing.join(0.1)
            self.assertTrue(closing.is_alive(), "closed without us")
            began = time.monotonic()
            end(att)
            closing.join(20)
            self.assertFalse(closing.is_alive())
        finally:
            att.close()
        self.assertEqual(server.conns, {})
        thread.join(5)
        return server.errors, time.monotonic() - began

    def test_revoked(self):
        """The producer waits until the memory is closed, and no longer than its timeout."""
        for name, end in (("closed", lambda att: att.close()), ("a verdict", lambda att: att.conn.send(gpufd.Verdict(True)))):
            with self.subTest(name):
                errors, took = self.revoked(10, end)
                self.assertEqual(errors, [])
                self.assertLess(took, 5)

    def test_too_much(self):
        """Nothing that a consumer says ends its time to close the memory, even if it is of no
        type that is known, or too much."""

        class Unknown(gpufd.Progress):
            TYPE = 99

        def end(att):
            for n in range(700):
                att.conn.send(Unknown(n, 700))
                att.conn.send(gpufd.Progress(n, 700))
            att.conn.send(gpufd.Verdict(True))

        errors, _ = self.revoked(30, end)
        self.assertEqual(errors, [])

    def test_stays_open(self):
        errors, took = self.revoked(3, lambda att: None)
        self.assertLess(took, 19)
        self.assertEqual([type(e) for e in errors], [gpufd.StillOpen])
        self.assertIn(f"pid {os.getpid()}", str(errors[0]))
        self.assertEqual(errors[0].exit, 4)

    def test_silent_and_open(self):
        """A consumer that takes too long is told so, and waited for all the same."""
        server = gpufd.Server(self.path)
        thread = threading.Thread(target=server.serve, args=(self.good, [], 1))
        thread.start()
        with gpufd.attach(self.path, "", gpufd.SOFT, timeout=5, legacy=True) as att:
            for conn in list(server.conns):
                conn.timeout = 1  # for what it does not say behind this
            began = time.monotonic()
            att.mapped()
            thread.join(20)
            self.assertGreater(time.monotonic() - began, 1.9)
            with self.assertRaises(gpufd.Refused):
                att.hear()
        server.close()
        self.assertEqual([type(e) for e in server.errors], [gpufd.StillOpen, gpufd.TimedOut])

    def converse(self, *says, timeout=10):
        """What attaching comes to with a producer that says that, the offer first."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen(1)

            def lie():
                sock, _ = listener.accept()
                with contextlib.suppress(OSError), sock:
                    sock.recv(9999)
                    for record in says:
                        sock.send(gpufd.encode(record))
                    while (answer := sock.recv(9999)) and answer[6] not in (gpufd.Refuse.TYPE, gpufd.Verdict.TYPE):
                        pass

            thread = threading.Thread(target=lie)
            thread.start()
            try:
                with gpufd.attach(self.path, "", gpufd.SOFT, timeout=timeout, legacy=True) as att:
                    att.wait_published()
                    att.mapped()
            finally:
                thread.join()
                os.unlink(self.path)

    def test_lies(self):
        pending = gpufd.replace(self.good, pending=True)
        yes = gpufd.Confirm(77)
        self.converse(self.good, yes)
        self.converse(self.good, gpufd.Progress(1, 2), yes)
        self.converse(pending, gpufd.Publish(77), yes)
        for error, says in (
            (gpufd.TimedOut, (self.good,)),
            (gpufd.Malformed, (self.good, gpufd.Confirm(78))),
            (gpufd.Malformed, (self.good, gpufd.Publish(77))),
            (gpufd.Malformed, (pending, yes)),
            (gpufd.Revoked, (self.good, gpufd.Revoke("freed"))),
            (gpufd.Refused, (self.good, gpufd.Refuse(4))),
            (gpufd.Malformed, (gpufd.replace(self.good, size=0),)),
            (gpufd.Malformed, (gpufd.replace(self.good, offset=1 << 63),)),
            (gpufd.Malformed, (gpufd.replace(self.good, driver=1),)),
        ):
            with self.subTest(str(says)), self.assertRaises(error):
                self.converse(*says, timeout=0.3 if error is gpufd.TimedOut else 10)


class Servers(unittest.TestCase):
    def setUp(self):
        self.null = os.open("/dev/null", os.O_RDONLY)
        self.before = open_fds()
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "s")

    def tearDown(self):
        self.assertEqual(os.listdir(self.dir.name), [], "files are left")
        self.dir.cleanup()
        self.assertEqual(open_fds(), self.before, "descriptors are left")
        os.close(self.null)

    def serve(self, say=lambda line: None):
        """A server, and the thread in which it serves one consumer a byte of nothing."""
        server = gpufd.Server(self.path, timeout=5, say=say)
        offer = gpufd.replace(Offers.good, chunks=1, fds=1, size=1)
        thread = threading.Thread(target=server.serve, args=(offer, [self.null], 1), daemon=True)
        thread.start()
        return server, thread

    def attach(self):
        return gpufd.attach(self.path, "x", gpufd.SOFT, timeout=5)

    def test_nobody_reads_what_it_says(self):
        """Where standard output is gone, the consumer is counted all the same."""

        def say(line):
            raise BrokenPipeError

        server, thread = self.serve(say)
        with contextlib.suppress(gpufd.Error), self.attach() as att:
            att.mapped()
            att.report(True)
        thread.join(20)
        self.assertFalse(thread.is_alive(), "the server serves on")
        server.close()
        self.assertEqual(server.verified + server.failed, 1)

    def test_out_of_descriptors(self):
        """Who cannot be accepted waits until there are descriptors again."""
        server, thread = self.serve()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        spare = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    spare.append(os.dup(self.null))
            peer.connect(self.path)
            time.sleep(0.3)
            self.assertTrue(thread.is_alive(), "the server has ended")
        finally:
            gpufd.close_all(spare)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            peer.close()
        with self.attach() as att:
            att.mapped()
            att.report(True)
        thread.join(20)
        self.assertFalse(thread.is_alive(), "the server serves on")
        server.close()
        self.assertEqual((server.verified, server.errors), (1, []))


if __name__ == "__main__":
    unittest.main()
