"""A server's decisions as its consumers and its application see them: the rules are the broker's."""

import contextlib
import errno
import os
import threading
import time
import unittest
import unittest.mock

import common
import gpufd
from gpufd.wire import records as wire
from gpufd.wire.conn import close_all, dial

SIZE = 4096


class Served(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory, self.other, self.third = (gpufd.allocate(SIZE) for _ in range(3))
        for memory in (self.memory, self.other, self.third):
            self.addCleanup(memory.close)
        self.events = []

    def served(self, **options):
        server = gpufd.Server(self.path, timeout=common.PATIENCE, on_event=self.events.append, **options)
        self.addCleanup(server.close)
        return server

    def conn(self, name="x", access=wire.READ_ONLY, **more):
        """A connection that has asked for a name."""
        conn, _ = dial(self.path, gpufd.Policy(), common.PATIENCE)
        self.addCleanup(conn.sock.close)
        conn.send(wire.Attach(wire.SOFT, access, name, process=0, **more))
        return conn

    def hear(self, conn):
        record, fds = conn.receive(wire.MAX_FDS)
        close_all(fds)
        return record

    def heard(self, conn, kind):
        record = self.hear(conn)
        self.assertIsInstance(record, kind)
        return record

    def waits(self, server, count=1):
        common.wait_for(lambda: len(server._serving.broker.waiting()) == count, "a consumer that waits")


class Waiting(Served):
    def test_who_comes_early(self):
        """Those that wait get the offer of their name, or hear that there will be none."""
        server = self.served()
        server.expect("x")
        server.expect("y")
        one, other = self.conn("x"), self.conn("y")
        self.waits(server, 2)
        server.working(1, 4)
        self.assertEqual((self.heard(one, wire.Progress).total, self.heard(other, wire.Progress).done), (4, 1))
        server.offer("x", self.memory)
        self.assertEqual(self.heard(one, wire.Offer).generation, self.memory.generation)
        self.waits(server, 1)
        server.close()
        self.assertEqual(self.heard(other, wire.Refuse).code, wire.NO_OFFER)
        self.assertIsInstance(self.hear(one), wire.Revoke)

    def test_expected_once(self):
        """Behind the end of an offer that was expected, nobody waits for another."""
        server = self.served()
        server.expect("x")
        server.expect("x")
        server.offer("x", self.memory).close()
        self.assertEqual(self.heard(self.conn(), wire.Refuse).code, wire.NO_OFFER)

    def test_at_work_without_numbers(self):
        server = self.served()
        server.expect("x")
        conn = self.conn("x")
        self.waits(server)
        server.working()
        self.assertEqual(self.heard(conn, wire.Progress), wire.Progress(0, 0, capabilities=wire.TAKES_DETACH))

    def test_the_only_offer(self):
        server = self.served()
        server.offer("a", self.memory)
        self.assertEqual(self.heard(self.conn(""), wire.Offer).name, "a")
        server.offer("b", self.memory)
        self.assertIn('by its name: "a", "b"', self.heard(self.conn(""), wire.Refuse).text)

    def test_names_are_hidden(self):
        """With authorize, a consumer does not learn the names of offers by asking for none."""
        server = self.served(authorize=lambda peer, offer: None)
        server.offer("a", self.memory)
        server.offer("b", self.memory)
        self.assertNotIn('"a"', self.heard(self.conn(""), wire.Refuse).text)


class Replaced(Served):
    def test_pending(self):
        """Until other memory is published, consumers get what there is; no third offer comes between."""
        server = self.served()
        server.offer("x", self.memory)
        pending = server.replace("x", self.other, pending=True)
        with self.assertRaisesRegex(gpufd.InUseError, "being made"):
            server.replace("x", self.memory)
        with gpufd.attach(socket=self.path) as att:
            self.assertEqual(att.generation, self.memory.generation)
            self.assertFalse(att.superseded)
            pending.publish()
            self.assertTrue(att.wait(common.PATIENCE, superseded=True))
        with gpufd.attach(socket=self.path) as att:
            self.assertEqual(att.generation, self.other.generation)

    def test_a_pending_offer_that_fails(self):
        """The offer that was to be replaced goes on, and the name can be had again."""
        server = self.served()
        server.offer("x", self.memory)
        server.replace("x", self.other, pending=True).close()
        server.replace("x", self.other).close()
        self.assertEqual(self.heard(self.conn(), wire.Refuse).code, wire.NO_OFFER)

    def test_grace(self):
        """Without a grace, the leases of the earlier memory go on; with one of 0, they end."""
        server = self.served()
        first = server.offer("x", self.memory)
        conn = self.conn()
        self.heard(conn, wire.Offer)
        server.replace("x", self.other)
        self.assertFalse(first.wait(0.2))
        self.assertEqual((len(first.leases), server.leases("x")), (1, []))
        with gpufd.attach(socket=self.path) as att:
            (lease,) = server.leases("x")
            server.replace("x", self.third, grace=0)
            self.assertTrue(att.wait(common.PATIENCE))
            self.assertEqual(att.err.reason, "superseded")
            self.assertTrue(lease.wait(common.PATIENCE))
            self.assertEqual(lease.err.reason, "superseded")

    def test_name_taken(self):
        server = self.served()
        server.offer("x", self.memory)
        with self.assertRaises(gpufd.InUseError) as caught:
            server.offer("x", self.memory)
        self.assertEqual(caught.exception.reason, "name-taken")
        server.close()
        self.memory.close()  # no offer holds it


class Places(Served):
    def test_all_taken(self):
        server = self.served()
        offering = server.offer("x", self.memory, leases=1)
        conn = self.conn()
        self.heard(conn, wire.Offer)
        self.assertEqual(self.heard(self.conn(), wire.Refuse).code, wire.BUSY)
        conn.send(wire.Mapped(self.memory.generation))
        conn.send(wire.Farewell())
        conn.close()
        self.assertTrue(offering.wait(common.PATIENCE))
        self.assertEqual(self.heard(self.conn(), wire.Refuse).code, wire.NO_OFFER)

    def test_a_place_that_was_not_used(self):
        """A consumer that goes before the data is there leaves its place to another."""
        server = self.served()
        offering = server.offer("x", self.memory, leases=1, pending=True)
        conn = self.conn()
        self.heard(conn, wire.Offer)
        conn.close()
        common.wait_for(lambda: not offering.leases, "the end of a lease")
        other = self.conn()
        self.heard(other, wire.Offer)
        offering.publish()
        self.heard(other, wire.Publish)

    def test_mapped_too_early(self):
        server = self.served()
        server.offer("x", self.memory, pending=True)
        conn = self.conn()
        self.heard(conn, wire.Offer)
        conn.send(wire.Mapped(self.memory.generation))
        no = self.heard(conn, wire.Refuse)
        self.assertEqual((no.code, no.text), (wire.BAD_RECORD, "MAPPED before the data is there"))


class Asked(Served):
    def test_the_lock_is_free(self):
        """Authorize may wait for what other threads do with the server."""
        met = threading.Barrier(2)

        def decide(peer, offer):
            met.wait(common.PATIENCE)  # until the other thread is there
            met.wait(common.PATIENCE)  # and has had the server

        server = self.served(authorize=decide)
        server.offer("x", self.memory)
        conn = self.conn()
        met.wait(common.PATIENCE)
        self.assertEqual(server.leases("x"), [])
        server.offer("y", self.memory)
        met.wait(common.PATIENCE)
        self.assertEqual(self.heard(conn, wire.Offer).name, "x")

    def test_an_offer_that_ends_meanwhile(self):
        """A consumer that was admitted to an offer is asked about anew if another has the name."""
        asked, go_on = [], threading.Event()

        def decide(peer, offer):
            asked.append(offer.generation)
            self.assertTrue(len(asked) > 1 or go_on.wait(common.PATIENCE))

        server = self.served(authorize=decide)
        server.offer("x", self.memory)
        conn = self.conn()
        common.wait_for(lambda: asked, "the question")
        server.replace("x", self.other)
        go_on.set()
        self.assertEqual(self.heard(conn, wire.Offer).generation, self.other.generation)
        self.assertEqual(asked, [self.memory.generation, self.other.generation])

    def test_one_event_for_a_refusal(self):
        def decide(peer, offer):
            raise PermissionError("not you")

        server = self.served(authorize=decide)
        server.offer("x", self.memory)
        no = self.heard(self.conn(), wire.Refuse)
        self.assertEqual((no.code, "not you" in no.text), (wire.NOT_ADMITTED, False))
        server.close()
        self.assertEqual([(e.kind, str(e.err)) for e in self.events], [("refused", "PermissionError: not you")])

    def test_a_list(self):
        """A list has the offers that the peer may know of."""

        def decide(peer, offer):
            if offer.name == "secret":
                raise PermissionError

        server = self.served(authorize=decide)
        server.offer("secret", self.memory)
        server.offer("x", self.memory)
        self.assertEqual([listing.name for listing in gpufd.list(socket=self.path)], ["x"])

    def test_a_list_counts(self):
        """A list says how many leases an offer has now, and the slots of a channel."""
        server = self.served()
        server.offer("x", self.memory)
        writer = gpufd.channel.Writer("y", slots=3, slot_size=64, socket=server)
        self.addCleanup(writer.close)

        def listed():
            return [(o.name, o.leases, o.slots) for o in gpufd.list(socket=self.path)]

        self.assertEqual(listed(), [("x", 0, 0), ("y", 0, 3)])
        with gpufd.attach("x", socket=self.path), gpufd.attach("x", socket=self.path):
            self.assertEqual(listed()[0], ("x", 2, 0))
        common.wait_for(lambda: listed()[0] == ("x", 0, 0), "the ends of leases")


class Fenced(Served):
    def writer(self):
        child = self.python(f"a = gpufd.attach(socket={self.path!r}, access=gpufd.READ_WRITE); print('there'); sys.stdin.readline(); a.close(); print('closed'); sys.stdin.readline()", waits_for="there")
        return child

    def closing(self, offering):
        """A thread that closes the offer, and would wait for longer than this test."""
        thread = threading.Thread(target=offering.close, kwargs={"timeout": 10 * common.PATIENCE}, daemon=True)
        thread.start()
        return thread

    def test_death(self):
        """An offer that waits for the death of its writers holds the memory until then."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        child = self.writer()
        closing = self.closing(offering)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        common.wait_for(lambda: not offering.leases, "the end of the lease")
        closing.join(0.1)
        self.assertTrue(closing.is_alive() and not offering.over)
        with self.assertRaises(gpufd.InUseError):
            self.memory.close()
        child.kill()
        closing.join(common.PATIENCE)
        self.assertTrue(offering.over)
        self.memory.close()

    def test_death_before_the_end_of_the_lease(self):
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        child = self.writer()
        with server._lock:
            child.kill()
            child.wait()
        closing = self.closing(offering)
        closing.join(common.PATIENCE)
        self.assertTrue(offering.over)

    def test_death_that_nobody_has_seen(self):
        """Close looks once more at those that it would name."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        child = self.writer()
        (lease,) = offering.leases
        child.stdin.write("\n")
        child.stdin.flush()
        common.wait_for(lambda: not offering.leases, "the end of the lease")
        server._serving.loop.unwatch(lease._fence.process.fileno())  # as when the thread has ended
        child.kill()
        child.wait()
        offering.close(timeout=0)
        self.assertTrue(offering.over)

    def test_no_more_waiting(self):
        """Close names those that may still write, once; then nobody is waited for."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        child = self.writer()
        child.stdin.write("\n")
        child.stdin.flush()
        common.wait_for(lambda: not offering.leases, "the end of the lease")
        with self.assertRaisesRegex(gpufd.FenceError, "fenced by .*its process has not ended within 0.1 s") as caught:
            offering.close(timeout=0.1)
        self.assertEqual([p.pid for p in caught.exception.peers], [child.pid])
        self.assertTrue(offering.over)
        offering.close()
        server.close()

    def test_a_server_that_closes(self):
        """It tells of writers at once, those that have died apart."""
        server = self.served()
        server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        child = self.writer()
        child.kill()
        child.wait()
        server.close()
        other = gpufd.Server(self.path)
        other.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.RELEASED)
        child = self.writer()
        os.kill(child.pid, 19)  # SIGSTOP: it cannot answer
        with self.assertRaisesRegex(gpufd.FenceError, "released by"):
            other.close(timeout=0.2)

    def test_one_that_could_not_attach(self):
        """A consumer that says so while its lease is taken back is not waited for, unless it had mapped the memory."""
        server = self.served()
        for said, fenced in ((wire.Verdict(False, "no room"), False), (wire.Mapped(self.memory.generation), True)):
            offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.RELEASED)
            conn = self.conn(access=wire.READ_WRITE)
            self.heard(conn, wire.Offer)
            closing = threading.Thread(target=self.closed, args=(offering, fenced))
            closing.start()
            self.heard(conn, wire.Revoke)
            conn.send(said)
            with contextlib.suppress(gpufd.LostError):  # the first verdict may have been the last word
                conn.send(wire.Verdict(False, "no room"))
            closing.join(common.PATIENCE)
            self.assertEqual(self.said.pop(), fenced)

    def test_a_farewell_that_comes_first(self):
        """A consumer that has said farewell before its lease is taken back, and closes only then, is not waited for."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.RELEASED)
        conn = self.conn(access=wire.READ_WRITE)
        self.heard(conn, wire.Offer)
        conn.send(wire.Mapped(self.memory.generation))
        conn.send(wire.Farewell())
        (session,) = server._serving.sessions.values()
        common.wait_for(lambda: session.conn.left, "the farewell")
        closing = threading.Thread(target=self.closed, args=(offering, False))
        closing.start()
        self.heard(conn, wire.Revoke)
        conn.close()
        closing.join(common.PATIENCE)
        self.assertFalse(self.said.pop())

    said = []

    def closed(self, offering, fenced):
        try:
            offering.close(timeout=1 if fenced else common.PATIENCE)
            self.said.append(False)
        except gpufd.FenceError:
            self.said.append(True)

    def test_an_unknown_end(self):
        """A writer that may outlive its process cannot be waited for."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        conn, _ = dial(self.path, gpufd.Policy(), common.PATIENCE)
        self.addCleanup(conn.sock.close)
        conn.send(wire.Attach(wire.SOFT, wire.READ_WRITE, "x", process=wire.MAY_OUTLIVE))
        self.heard(conn, wire.Offer)
        conn.close()
        common.wait_for(lambda: not offering.leases, "the end of the lease")
        with self.assertRaisesRegex(gpufd.FenceError, "may run under MPS") as caught:
            offering.close()
        self.assertEqual(caught.exception.reason, "unknown")


class Slow(Served):
    def test_memory_of_what_is_still_to_be_sent(self):
        """A consumer that does not read keeps no lease, and the memory only until its connection is over."""
        server = self.served()
        offering = server.offer("x", self.memory)
        conn = self.conn()
        self.heard(conn, wire.Offer)
        (lease,) = offering.leases
        with self.assertRaises(gpufd.TimedOutError):
            while True:
                lease.notify(bytes(4096), timeout=0.05)
        closing = threading.Thread(target=offering.close)
        closing.start()
        self.assertTrue(lease.wait(common.PATIENCE))
        closing.join(0.1)
        self.assertTrue(closing.is_alive())
        closing.join(common.PATIENCE)
        self.assertTrue(offering.over)


    def test_one_that_cannot_be_sent_anything(self):
        """It costs neither the maker of the offer nor the other consumers anything."""
        server = self.served()
        server.expect("x")
        one, other = self.conn(), self.conn()
        self.waits(server, 2)
        first = min(server._serving.sessions.values(), key=lambda s: s.id)
        with unittest.mock.patch.object(first.conn, "try_send", side_effect=OSError(errno.ENOBUFS, "no buffers")):
            server.offer("x", self.memory)
        self.heard(other, wire.Offer)
        common.wait_for(lambda: len(server.leases("x")) == 1, "the end of a lease")
        server.close()
        self.assertIn("cannot send: no buffers", " ".join(str(e.err) for e in self.events if e.kind == "ended"))

    def test_cursors_that_fail(self):
        """Begin may refuse a consumer, and makes no offer meanwhile."""
        server = self.served()

        def begin(lease, fd):
            server.offer("y", self.other)

        server.offer("x", self.memory, cursors=gpufd.Cursors(64, begin))
        no = self.heard(self.conn(capabilities=wire.TAKES_CURSORS), wire.Refuse)
        self.assertEqual(no.code, wire.BUSY)
        self.assertIn("make the offer later", no.text)
        self.assertEqual([listing.name for listing in gpufd.list(socket=self.path)], ["x"])


class Forked(Served):
    def test_child(self):
        """A child of the server's process has none of it, and its calls neither wait nor disturb."""
        server = self.served()
        offering = server.offer("x", self.memory, fence=gpufd.RELEASED)
        with gpufd.attach(socket=self.path) as att:
            pid = os.fork()
            if not pid:
                code = 1
                with contextlib.suppress(BaseException):
                    begun = time.monotonic()
                    offering.close()
                    server.close()
                    with contextlib.suppress(gpufd.ClosedError):
                        server.offer("y", self.memory)
                        begun = 0
                    code = int(offering.leases != [] or time.monotonic() - begun > 5)
                os._exit(code)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertFalse(att.wait(0.1))
            self.assertEqual(len(offering.leases), 1)


if __name__ == "__main__":
    unittest.main()
