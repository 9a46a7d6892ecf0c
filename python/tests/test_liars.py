"""Peers that lie, flood, are silent or short of something: they cost an error, and no more."""

import contextlib
import os
import resource
import socket
import threading
import time
import unittest
from dataclasses import replace

import common
import gpufd
from gpufd.wire import records as wire
from gpufd.wire.conn import Conn, close_all, dial

SIZE = 3 << 20


class Producers(common.Scene):
    """Attaching to what says whatever it likes."""

    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(SIZE, chunk=2 << 20)
        self.addCleanup(self.memory.close)
        self.good = self.memory.offer("x")

    def converse(self, *says, then=lambda att: None, timeout=10.0, goes_on=None, **options):
        """What attaching comes to with a producer that says that. Offers come with the memory.
        Returns the last record that it heard."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self.path + str(time.monotonic_ns() % 10**9)
        heard = []
        with listener:
            listener.bind(path)
            listener.listen(1)
            thread = threading.Thread(target=self.lie, args=(listener, says, heard, goes_on))
            thread.start()
            try:
                with gpufd.attach(socket=path, timeout=timeout, **options) as att:
                    then(att)
            finally:
                thread.join(common.PATIENCE)
        return heard

    def lie(self, listener, says, heard, goes_on):
        conn = Conn(listener.accept()[0], common.PATIENCE)
        conn.meter.RATE = 1 << 30
        try:
            heard.append(conn.receive()[0])
            for record in says:
                fds = self.memory.fds[record.first : record.first + record.fds] if isinstance(record, wire.Offer) else []
                with contextlib.suppress(gpufd.LostError):  # who has left may have said why
                    conn.send(record, fds)
            while True:
                heard.append(conn.receive_any(0, time.monotonic() + common.PATIENCE)[0])
                while goes_on and isinstance(heard[-1], wire.Verdict):
                    conn.send(goes_on)
                    time.sleep(0.02)
        except (gpufd.LostError, OSError):
            pass
        finally:
            conn.sock.close()

    def test_honest(self):
        pending, generation = replace(self.good, pending=True), self.good.generation
        for says in ((self.good,), (replace(self.good, fds=1), replace(self.good, first=1, fds=1)), (wire.Progress(1, 2), self.good),
                     (pending, wire.Progress(1, 2), wire.Publish(generation)), (self.good, wire.Notice(b"x"), wire.Superseded(9))):  # fmt: skip
            heard = self.converse(*says)
            self.assertEqual([type(r) for r in heard], [wire.Attach, wire.Mapped, wire.Farewell])

    def test_lies_before_mapped(self):
        """The producer is told what is wrong, and nothing is left here."""
        pending = replace(self.good, pending=True)
        for error, *says in (
            ("malformed", replace(self.good, size=0)),
            ("malformed", replace(self.good, driver=wire.CUDA)),
            ("malformed", replace(self.good, name="y")),
            ("malformed", replace(self.good, resume=self.good.generation, fds=0)),
            ("malformed", replace(self.good, fds=1), replace(self.good, first=1, fds=1, size=SIZE + 1)),
            ("malformed", replace(self.good, fds=1), replace(self.good, first=1, fds=1, generation=1)),
            ("malformed", pending, wire.Publish(1)),
            ("protocol", pending, wire.Confirm(self.good.generation)),
            ("protocol", wire.Mapped(1)),
            ("device", replace(self.good, device=bytes(16))),
            ("descriptor", replace(self.good, chunk_size=4 << 20, size=5 << 20)),
            ("too-large", replace(self.good, data_size=(64 << 20) + 1)),
            ("revoked", wire.Revoke("no")),
            ("revoked", pending, wire.Revoke("no")),
            ("busy", wire.Refuse(wire.BUSY, "full\x1b[2J")),
            ("refused", wire.Refuse(999)),
            ("timed-out",),
            ("timed-out", pending),
        ):
            with self.subTest(str(says)[:200]), common.raises(self, gpufd.Error, error) as caught:
                self.converse(*says, name="x", timeout=0.3 if error == "timed-out" else 10)
            self.assertNotIn("\x1b", str(caught.exception))

    def test_lies_after_mapped(self):
        """They end the lease, and the producer is refused; the memory stays until close."""
        for record in (wire.Publish(1), wire.Confirm(1), wire.Mapped(1), wire.Data()):
            def then(att):
                self.assertTrue(att.wait(common.PATIENCE))
                self.assertIsInstance(att.err, gpufd.WireError)
                self.assertEqual(len(att.read()), SIZE)

            with self.subTest(str(record)):
                heard = self.converse(self.good, record, then=then)
                self.assertIsInstance(heard[-1], wire.Refuse)

    def test_progress_behind_a_verdict(self):
        """It renews nothing."""
        began = time.monotonic()
        with self.assertRaises(gpufd.TimedOutError):
            self.converse(self.good, then=lambda att: att.report(), timeout=0.5, goes_on=wire.Progress(1, 2))
        self.assertLess(time.monotonic() - began, 30)

    def test_lists(self):
        a = wire.Listing(2, 1, 1, False, bytes(16), 1, 1, 0, "a")
        b = replace(a, name="b")
        for error, *says in ((None, wire.Listed(0, (a, b))), (None, wire.Listed(1, (a,)), wire.Listed(0, (b,))), (None, wire.Listed(0)),
                             ("malformed", wire.Listed(0, (b, a))), ("malformed", wire.Listed(2, (a,)), wire.Listed(0, (b,))),
                             ("too-large", wire.Listed(5000, (a,))), ("protocol", wire.Publish(1))):  # fmt: skip
            path = self.path + str(time.monotonic_ns() % 10**9)
            with self.subTest(str(says)[:100]), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path)
                listener.listen(1)
                thread = threading.Thread(target=self.lie, args=(listener, says, [], None))
                thread.start()
                with contextlib.nullcontext() if error is None else common.raises(self, gpufd.Error, error):
                    gpufd.list(socket=path, timeout=10)
                thread.join(common.PATIENCE)


class Consumers(common.Scene):
    """Serving what says whatever it likes."""

    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(1)
        self.addCleanup(self.memory.close)
        self.events = []

    def served(self, timeout=10.0, **options):
        server = gpufd.Server(self.path, timeout=timeout, on_event=self.events.append)
        self.addCleanup(server.close)
        return server, server.offer("x", self.memory, gpufd.READ_WRITE, **options)

    def conn(self):
        conn, _ = dial(self.path, gpufd.Policy(), common.PATIENCE)
        self.addCleanup(conn.sock.close)
        conn.meter.RATE = 1 << 30
        return conn

    def attached(self, access=wire.READ_ONLY):
        """A connection that has the offer, and what it was sent."""
        conn = self.conn()
        conn.send(wire.Attach(wire.SOFT, access, "x", process=0))
        offer, fds = conn.receive(wire.MAX_FDS)
        close_all(fds)
        return conn, offer

    def refused(self, conn, code):
        while True:
            record, _ = conn.receive()
            if isinstance(record, wire.Refuse):
                break
        self.assertEqual(record.code, code, record.text)

    def test_lies(self):
        """Each costs its own connection."""
        self.served()
        for first in (wire.Progress(1, 2), wire.Mapped(1), wire.Verdict(True)):
            conn = self.conn()
            conn.send(first)
            self.refused(conn, wire.BAD_RECORD)
        for said in (wire.Mapped(1), wire.Verdict(True), wire.Publish(1), wire.Attach(wire.SOFT, 1)):
            conn, _ = self.attached()
            conn.send(said)
            self.refused(conn, wire.BAD_RECORD)
        conn, offer = self.attached()
        for _ in range(2):
            conn.send(wire.Mapped(offer.generation))
        self.refused(conn, wire.BAD_RECORD)
        gpufd.attach(socket=self.path).close()

    def test_silence_and_floods(self):
        server, offering = self.served(timeout=0.5, verdict=True)
        self.refused(self.conn(), wire.TOO_LATE)
        conn, offer = self.attached()
        self.refused(conn, wire.TOO_LATE)
        conn, offer = self.attached()
        conn.send(wire.Mapped(offer.generation))
        self.refused(conn, wire.TOO_LATE)
        conn, offer = self.attached()
        with contextlib.suppress(gpufd.LostError):
            for _ in range(5000):
                conn.send(wire.Progress(1, 2))
        self.refused(conn, wire.TOO_FAST)

    def test_writer_that_talks(self):
        """Nothing that a writer says ends its time to let go, but its farewell."""
        server, offering = self.served(fence=gpufd.RELEASED)
        conn, offer = self.attached(wire.READ_WRITE)
        self.assertTrue(offer.process & wire.AWAITS_RELEASE)
        conn.send(wire.Mapped(offer.generation))
        closing = threading.Thread(target=offering.close)
        closing.start()
        self.assertIsInstance(conn.receive()[0], wire.Revoke)
        for n in range(1500):
            conn.send(wire.Progress(n, 700))
        closing.join(0.2)
        self.assertTrue(closing.is_alive(), "it did not wait for the writer")
        gpufd.list(socket=self.path)  # others are answered meanwhile
        conn.send(wire.Farewell())
        closing.join(common.PATIENCE)
        self.assertFalse(closing.is_alive())

    def test_out_of_descriptors(self):
        """Who cannot be accepted waits until there are descriptors again."""
        self.served()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(peer.close)
        spare = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, common.settled_fds())) + 8, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    spare.append(os.dup(0))
            peer.connect(self.path)
            time.sleep(0.3)
        finally:
            close_all(spare)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gpufd.attach(socket=self.path).close()
        self.assertIsNone(gpufd.attach(socket=self.path).close())


if __name__ == "__main__":
    unittest.main()
