"""Memory that is unmapped while its addresses stay, and mapped there again: both sides, on the software driver."""

import contextlib
import gc
import os
import socket
import threading
import time
import unittest
import unittest.mock as mock

from keepers import Keeper, KeeperTest  # first: it says where the package is

import common
import gpufd
from gpufd.wire import records as wire
from gpufd.wire.conn import Conn, dial
from test_reserve import mappings

MIB = 1 << 20


def flat():
    """The descriptors and mappings of this process, counted."""
    gc.collect()
    with open("/proc/self/maps") as f:
        return len(common.settled_fds()), len(f.readlines())


class Detached(common.Scene):
    def setUp(self):
        super().setUp()
        self.kinds = []
        self.memory = self.allocated(b"first")
        self.server = self.served()
        self.offering = self.server.offer("x", self.memory, gpufd.READ_WRITE)

    def allocated(self, begins, size=4 * MIB):
        memory = gpufd.allocate(size, chunk=2 * MIB)
        self.addCleanup(memory.close, True)
        memory.write(0, begins)
        return memory

    def served(self, **options):
        server = gpufd.Server(self.path, timeout=common.PATIENCE, on_event=lambda e: self.kinds.append(e.kind), **options)
        self.addCleanup(server.close)
        return server

    def attach(self, name="x", **options):
        att = gpufd.attach(name, socket=self.path, **options)
        self.addCleanup(att.close, True)
        return att

    def lease_of(self, name="x", number=-1):
        leases = self.server.leases(name)
        return leases[number]

    def detached(self, **options):
        """An attachment that is detached, as its producer knows."""
        att = self.attach(**options)
        self.assertTrue(att.detach())
        lease = self.lease_of()
        common.wait_for(lambda: lease.detached, "DETACHED")
        return att, lease

    def test_detach_and_reattach(self):
        for at in (None, gpufd.reserve(8 * MIB)):
            with self.subTest(at):
                att = self.attach(at=at)
                ptr, array = att.ptr, att.view("U8", 5)
                shown, before = array.memoryview(), common.settled_fds()
                lease = self.lease_of()
                self.assertFalse(att.detached or lease.detached)
                self.assertTrue(att.detach())
                self.assertEqual((att.detached, att.done, att.err, mappings(ptr)), (True, False, None, "---p"))
                self.assertLess(len(common.settled_fds()), len(before), "no descriptor of the memory is left")
                common.wait_for(lambda: lease.detached, "DETACHED")
                self.assertEqual([repr(o).rsplit(", ", 1)[1] for o in (att, lease, array, att.memory)], ["detached>"] * 4)
                self.memory.write(0, b"again")
                self.assertTrue(att.reattach())
                self.assertEqual((att.ptr, array.ptr, bytes(shown), att.read(0, 5), att.detached), (ptr, ptr, b"again", b"again", False))
                self.assertTrue(lease.wait(common.PATIENCE))
                self.assertIsNone(lease.err, "it was left in order")
                self.assertFalse(self.lease_of().detached)
                del shown
                att.close()
                self.memory.write(0, b"first")
        self.assertIn("detached", self.kinds)

    def test_nothing_works_meanwhile(self):
        att = self.attach()
        array = att.view("U8", 4)
        att.detach()
        for call in (array.tobytes, array.copy, array.__dlpack__, array.memoryview, array.view, array.__array__, lambda: array.ptr,
                     lambda: array.__array_interface__, att.read, att.view, att.copy, lambda: att.ptr, lambda: att.__array_interface__,
                     lambda: att.memory.hold("x"), lambda: att.memory.finish() or att.memory.check()):  # fmt: skip
            common.error_of(self, gpufd.ClosedError, "detached", call)
        with common.raises(self, gpufd.ClosedError, "detached", "^'x' is detached: reattach first$"):
            array.tobytes()

    def test_out_of_turn(self):
        att = self.attach()
        with common.raises(self, gpufd.UsageError, "usage", "not detached"):
            att.reattach()
        for keep in (-1, 0, "1", True):
            with self.subTest(keep), common.raises(self, gpufd.UsageError, "usage"):
                att.detach(keep)
        self.assertFalse(att.detached)
        att.close()
        for call in (att.detach, att.reattach):
            common.error_of(self, gpufd.ClosedError, "closed", call)

    def test_how_long_it_is_kept(self):
        att, lease = self.detached()
        self.assertTrue(att.detach(keep=600), "a second one sets the time anew")
        self.assertTrue(att.detach(keep=0.05))
        self.assertTrue(att.wait(common.PATIENCE))
        with common.raises(self, gpufd.LeaseEndedError, "revoked", "it was detached for longer than the 0.05 s that it asked for"):
            raise att.err
        self.assertTrue(lease.wait(common.PATIENCE))
        self.assertEqual(lease.err.reason, "revoked")
        self.assertFalse(att.detach(), "the lease is over")
        self.assertTrue(att.reattach(), "the memory is there still")
        self.assertIsNone(att.err)
        att.close()
        att = self.attach()
        att.detach(keep=1e300)
        self.assertFalse(att.wait(0.02))

    def test_a_newer_version(self):
        att, _ = self.detached()
        self.server.replace("x", self.allocated(b"newer"))
        self.assertTrue(att.wait_superseded(common.PATIENCE))
        self.assertTrue(att.reattach(), "what was replaced is there for the lease")
        self.assertEqual((att.read(0, 5), att.wait_superseded(common.PATIENCE)), (b"first", True))
        array, ptr = att.view("U8", 5), att.ptr
        att.detach()
        self.assertFalse(att.reattach(newest=True))
        self.assertEqual((att.ptr, array.tobytes(), att.superseded), (ptr, b"newer", False))
        self.assertTrue(self.offering.wait(common.PATIENCE), "the older offer ends with its last lease")

    def test_what_is_gone(self):
        """The memory whose lease was not kept may be another's by now. Then the newest is there."""
        att, _ = self.detached()
        generation = att.generation
        self.server.replace("x", self.allocated(b"newer"), grace=0.0)
        self.assertTrue(att.wait(common.PATIENCE))
        self.assertEqual(att.err.reason, "superseded")
        with common.raises(self, gpufd.RefusedError, "other-memory", "not the memory of generation"):
            att.reattach()
        self.assertEqual((att.detached, att.generation), (True, generation))
        self.assertFalse(att.reattach(newest=True))
        self.assertEqual(att.read(0, 5), b"newer")

    def test_what_does_not_fit(self):
        att, lease = self.detached()
        self.assertEqual(att.reattach(), True)
        att.ptr  # which reserves the address
        att.detach()
        larger = self.server.replace("x", self.allocated(b"larger", 6 * MIB))
        with common.raises(self, gpufd.MismatchError, "too-large"):
            att.reattach(newest=True)
        self.assertEqual((att.detached, att.err, att.size, larger.wait(0)), (True, None, 4 * MIB, False))
        self.assertTrue(att.reattach(), "the lease of the older memory is as it was")
        self.assertEqual(att.read(0, 5), b"first")

    def test_it_fails_late(self):
        """What was mapped before the producer took it back is detached again."""
        with gpufd.reserve(4 * MIB) as at:
            att = self.attach(at=at)
            att.detach()
            self.offering.close()
            pending = self.server.offer("x", self.allocated(b"never"), pending=True)
            thread = threading.Thread(target=lambda: (common.wait_for(lambda: mappings(at.ptr) == "r--s", "the mapping"), pending.close()))
            thread.start()
            with common.raises(self, gpufd.LeaseEndedError, "withdrawn"):
                att.reattach(newest=True)
            thread.join()
            mine = self.memory.generation
            self.assertEqual((att.detached, mappings(at.ptr), att.generation, att.memory.generation, att.err.reason), (True, "---p", mine, mine, "withdrawn"))
            self.server.offer("x", self.memory)
            self.assertTrue(att.reattach())
            self.assertEqual(att.read(0, 5), b"first")
            att.close()

    def test_writers_give_their_lease_up(self):
        att = self.attach(access=gpufd.READ_WRITE)
        lease, ptr, descriptor = self.lease_of(), att.ptr, att.fileno()
        self.assertFalse(att.detach())
        self.assertTrue(lease.wait(common.PATIENCE))
        self.assertEqual((lease.err, lease.detached), (None, False))
        common.is_error(self, att.err, gpufd.ClosedError, "detached")
        self.assertEqual((att.done, att.fileno()), (True, descriptor))
        self.assertTrue(att.wait(1))
        self.assertTrue(att.reattach())
        self.assertEqual((att.ptr, att.err), (ptr, None))
        att.write(0, b"FIRST")
        self.assertEqual(self.memory.read(0, 5), b"FIRST")

    def test_what_is_in_use(self):
        att = self.attach(reoffer=True)
        with gpufd.offer("on", att.memory, socket=self.path + "2"):
            with common.raises(self, gpufd.InUseError, "in-use", "offer 'on'"):
                att.detach()
            self.assertEqual((att.detached, self.lease_of().detached, att.read(0, 5)), (False, False, b"first"))
        self.assertTrue(att.detach())
        self.assertTrue(att.reattach())
        with gpufd.offer("on", att.memory, socket=self.path + "2"), gpufd.attach("on", socket=self.path + "2") as other:
            self.assertEqual(other.read(0, 5), b"first")
        array = att.view("U8", 5)
        shown = array.memoryview()
        att.detach()
        with common.raises(self, gpufd.InUseError, "in-use"):
            att.close()
        del shown
        att.close()

    def test_one_place(self):
        """An offer for one consumer goes on for the one that detaches, and counts it once."""
        offering = self.server.offer("one", self.memory, leases=1)
        att = self.attach("one")
        for newest in (False, True, False):
            att.detach()
            with common.raises(self, gpufd.RefusedError, "busy"):
                gpufd.attach("one", socket=self.path)
            self.assertTrue(att.reattach(newest=newest))
        att.close()
        self.assertTrue(offering.wait(common.PATIENCE))

    def test_what_is_said_meanwhile(self):
        att, lease = self.detached()
        lease.notify(b"one")
        self.assertEqual(att.notices(common.PATIENCE), [b"one"])
        att.notify(b"two")
        self.assertEqual(lease.notices(common.PATIENCE), [b"two"])
        lease.notify(b"three")
        att.reattach()
        self.assertEqual(att.notices(), [b"three"])

    def test_a_consumer_dies(self):
        p = self.python(f"att = gpufd.attach('x', socket={self.path!r})\natt.detach()\nprint('detached', flush=True)\nsys.stdin.read()", waits_for="detached")
        lease = self.lease_of()
        common.wait_for(lambda: lease.detached, "DETACHED")
        p.kill()
        self.assertTrue(lease.wait(common.PATIENCE))
        common.is_error(self, lease.err, gpufd.LostError, "lost")

    def test_the_end(self):
        att, lease = self.detached()
        att.reattach()
        ptr, lease = att.ptr, self.lease_of()
        att.detach()
        att.close()
        self.assertTrue(lease.wait(common.PATIENCE))
        self.assertEqual((lease.err, mappings(ptr)), (None, None))
        with gpufd.reserve(4 * MIB) as at:
            att = gpufd.attach("x", socket=self.path, at=at)
            lease = self.lease_of()
            att.detach()
            del att
            gc.collect()
            self.assertTrue(lease.wait(common.PATIENCE), "nothing refers to it")
            self.assertEqual(mappings(at.ptr), "---p")
        out = self.ends(self.python(f"att = gpufd.attach('x', socket={self.path!r})\natt.detach()\nprint('done')"), 0, "done")
        self.assertNotIn("Error", out)
        common.wait_for(lambda: not self.server.leases("x"), "the end of the last lease")

    def test_after_a_fork(self):
        att, lease = self.detached()
        pid = os.fork()
        if not pid:
            try:
                for call in (att.reattach, att.detach, att.read):
                    common.error_of(self, gpufd.ClosedError, "forked", call)
                att.close()
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertFalse(lease.done)
        self.assertTrue(att.reattach())

    def test_a_restart(self):
        """A detached attachment takes a lease of the producer's successor, and detaches there."""
        for follows in (False, True):
            with self.subTest(follows):
                following = gpufd.follow("x", socket=self.path) if follows else None
                att = next(following) if follows else self.attach()
                ptr = att.ptr
                att.detach(keep=600)
                self.server.shutdown()
                if not follows:
                    self.assertTrue(att.wait(common.PATIENCE))
                    self.assertEqual(att.err.reason, "restarting")
                self.server = self.served()
                self.server.offer("x", self.memory)
                if follows:
                    common.wait_for(lambda: not att.done and self.server.leases("x"), "another lease")
                else:
                    att.resume()
                lease = self.lease_of()
                common.wait_for(lambda: lease.detached, "DETACHED")
                self.assertEqual((att.err, att.detached), (None, True))
                self.assertTrue(att.reattach())
                self.assertEqual((att.ptr, att.read(0, 5)), (ptr, b"first"))
                (following or att).close()

    def test_the_time_goes_on(self):
        """A restart of the producer does not begin it anew."""
        att, _ = self.detached()
        att.detach(keep=600)
        self.server.shutdown()
        self.assertTrue(att.wait(common.PATIENCE))
        self.server = self.served()
        self.server.offer("x", self.memory)
        time.sleep(0.01)
        att.resume()
        lease = self.lease_of()
        common.wait_for(lambda: lease.detached, "DETACHED")
        (session,) = self.server._serving.sessions.values()
        self.assertLessEqual(session._kept_for, 599_991)
        self.assertGreater(session._kept_for, 500_000)

    def test_the_producer_is_gone(self):
        att, _ = self.detached()
        self.server.close()
        self.assertTrue(att.wait(common.PATIENCE))
        common.error_of(self, gpufd.LostError, "nobody-listens", att.reattach)
        self.assertTrue(att.detached)

    def test_threads(self):
        """Readers get the bytes, or hear that the memory is detached; nothing is unmapped under them."""
        att, seen = self.attach(), []

        def read():
            for _ in range(300):
                try:
                    seen.append(att.read(0, 5))
                except gpufd.ClosedError as e:
                    seen.append(e.reason)
                time.sleep(0.0002)  # others have their turn

        threads = [threading.Thread(target=read) for _ in range(2)]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            with contextlib.suppress(gpufd.InUseError):  # a thread reads just now
                att.detach()
                att.reattach()
        self.assertLessEqual(set(seen), {b"first", "detached"})

    def test_a_thousand_times(self):
        """Neither descriptors nor mappings grow."""
        newer = self.allocated(b"newer")
        with gpufd.reserve(4 * MIB) as at:
            att = self.attach(at=at)
            for i in range(300):
                att.detach()
                if i % 10 == 5:
                    self.server.replace("x", (newer, self.memory)[i // 10 % 2])
                att.reattach(newest=True)
                if i == 20:
                    before = flat()
            self.assertEqual(att.ptr, at.ptr)
            common.wait_for(lambda: len(self.server._serving.sessions) == 1, "the end of older leases")
            fds, maps = flat()
            self.assertLessEqual(fds, before[0])
            self.assertLess(maps, before[1] + 20, "Python itself maps some now and then")
            att.close()


class Older(common.Scene):
    """Peers that do not know of it, and those that say it out of turn."""

    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4 * MIB, chunk=2 * MIB)
        self.addCleanup(self.memory.close)
        self.memory.write(0, b"first")

    def test_an_older_producer(self):
        """It is told farewell, and asked for an offer as ever."""
        heard, other = [], gpufd.allocate(4 * MIB, chunk=2 * MIB)
        self.addCleanup(other.close)

        def serve(listener):
            for memory in (self.memory, other, self.memory):
                conn = Conn(listener.accept()[0], common.PATIENCE)
                heard.append(conn.receive()[0])
                conn.send(memory.offer("x"), memory.fds)
                try:
                    while True:
                        heard.append(conn.receive_any(0, time.monotonic() + common.PATIENCE)[0])
                except gpufd.LostError:
                    conn.sock.close()

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.path)
            listener.listen(2)
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            with gpufd.attach("x", socket=self.path) as att:
                self.assertFalse(att.detach())
                with common.raises(self, gpufd.RefusedError, "other-memory", "not the memory of generation"):
                    att.reattach()
                self.assertTrue(att.reattach())
                self.assertEqual(att.read(0, 5), b"first")
            thread.join(common.PATIENCE)
        self.assertEqual([type(r).__name__ for r in heard], ["Attach", "Mapped", "Farewell", "Attach", "Verdict", "Attach", "Mapped", "Farewell"])
        self.assertEqual([r.reattach for r in heard if isinstance(r, wire.Attach)], [0, 0, 0])

    def test_out_of_turn(self):
        """Before MAPPED, by a writer, or of a channel's memory, it ends the session."""
        with gpufd.Server(self.path, timeout=common.PATIENCE) as server:
            server.offer("x", self.memory, gpufd.READ_WRITE)
            server.offer("c", self.memory, cursors=gpufd.Cursors(64, lambda lease, fd: None))
            for name, access, says in (("x", wire.READ_ONLY, ()), ("x", wire.READ_WRITE, (wire.Mapped(self.memory.generation),)),
                                       ("c", wire.READ_ONLY, (wire.Mapped(self.memory.generation),))):  # fmt: skip
                with self.subTest(name=name, access=access):
                    conn, _ = dial(self.path, gpufd.Policy(), common.PATIENCE)
                    conn.send(wire.Attach(wire.SOFT, access, name, wire.TAKES_CURSORS, process=0))
                    for record in (*says, wire.Detached(0)):
                        conn.send(record)
                    record = None
                    while not isinstance(record, wire.Refuse):
                        record, fds = conn.receive(wire.MAX_FDS)
                        for fd in fds:
                            os.close(fd)
                        if isinstance(record, wire.Offer):
                            self.assertEqual(record.capabilities, wire.TAKES_DETACH)
                    self.assertEqual(record.code, wire.BAD_RECORD)
                    self.assertIn("DETACHED where", record.text)
                    conn.sock.close()

    def test_what_is_detached_is_released(self):
        """Nobody waits for a consumer that had unmapped the memory, though its process lives and it did not say farewell."""
        with gpufd.Server(self.path, timeout=common.PATIENCE) as server:
            offering = server.offer("x", self.memory)
            conn, _ = dial(self.path, gpufd.Policy(), common.PATIENCE)
            conn.send(wire.Attach(wire.SOFT, wire.READ_ONLY, "x", process=0))
            for fd in conn.receive(wire.MAX_FDS)[1]:
                os.close(fd)
            conn.send(wire.Mapped(self.memory.generation))
            conn.send(wire.Detached(0))
            (lease,) = offering.leases
            common.wait_for(lambda: lease.detached, "DETACHED")
            conn.sock.close()
            self.assertTrue(lease.wait(common.PATIENCE))
            self.assertEqual(lease.err.reason, "lost")
            lease.await_fence(0, gpufd.RELEASED)

    def test_a_verdict_that_is_due(self):
        with gpufd.Server(self.path, timeout=common.PATIENCE) as server:
            offering = server.offer("x", self.memory, verdict=True)
            with gpufd.attach("x", socket=self.path) as att:
                (lease,), (session,) = offering.leases, server._serving.sessions.values()
                common.wait_for(lambda: session._mapped, "MAPPED")
                before = session.deadline
                att.detach()
                common.wait_for(lambda: lease.detached, "DETACHED")
                self.assertGreater(session.deadline, before, "as PROGRESS renews it")
                att.report()
            self.assertTrue(lease.wait(common.PATIENCE))
            self.assertIsNone(lease.err)

    def test_two_writers_of_a_process(self):
        """Those that share a place by reattaching are watched once, until their process has died."""
        with gpufd.Server(self.path, timeout=common.PATIENCE) as server:
            offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
            selector = server._serving.loop._selector.get_map()
            before = len(selector)
            p = self.python(TWO_WRITERS, self.path, waits_for="left")
            common.wait_for(lambda: not offering.leases, "the end of its leases")
            self.assertEqual(len(selector), before + 1)
            with common.raises(self, gpufd.FenceError, "pending"):
                offering.close(timeout=0)
            self.end(p)
            common.wait_for(lambda: len(selector) == before, "the end of the watch")


TWO_WRITERS = """
from gpufd.wire import records as wire
from gpufd.wire.conn import dial

with gpufd.attach("x", socket=sys.argv[1], access=gpufd.READ_WRITE) as att:
    conn, _ = dial(sys.argv[1], gpufd.Policy(), 60)
    conn.send(wire.Attach(wire.SOFT, wire.READ_WRITE, "x", process=0, reattach=att.generation))
    conn.receive(wire.MAX_FDS)
    conn.send(wire.Mapped(att.generation))
    conn.sock.close()
print("left", flush=True)
sys.stdin.read()
"""


class Versions(KeeperTest):
    """What a keeper keeps, in parts."""

    def setUp(self):
        super().setUp()
        self.k = self.keeper()
        self.n = 0

    def put(self, *parts, name="m"):
        self.n += 1
        for i, data in enumerate(parts):
            gpufd.put(name, {f"w{i}": data}, socket=self.k.socket, part=i, parts=len(parts), transaction=f"t{self.n}")

    def get(self, name="m", **options):
        version = gpufd.get(name, socket=self.k.socket, **options)
        self.addCleanup(version.close, True)
        return version

    def bytes(self, *values):
        return [self.array(bytes([v]) * 16) for v in values]

    def array(self, data):
        memory = gpufd.allocate(len(data))
        self.addCleanup(memory.close, True)
        memory.write(0, data)
        return memory.view("U8", len(data))

    def places(self, n):
        return [gpufd.reserve(4 * MIB) for _ in range(n)]

    def test_all_parts(self):
        self.put(*self.bytes(1, 2))
        version = self.get(at=(places := self.places(2)))
        self.assertEqual([part.attachment.ptr for part in version], [p.ptr for p in places])
        w = version["w1"]
        self.assertTrue(version.detach(keep=600))
        self.assertIn("detached", repr(version))
        self.assertIn("detached", repr(version[0]))
        for call in (w.tobytes, lambda: version["w0"], version.arrays):
            common.error_of(self, gpufd.ClosedError, "detached", call)
        self.assertTrue(version.reattach())
        with common.raises(self, gpufd.UsageError, "usage", "version 1 of m is not detached"):
            version.reattach()
        self.put(*self.bytes(3, 4))
        version.detach()
        self.assertTrue(version.reattach(), "the version that it had")
        self.assertEqual((w.tobytes()[0], version.version), (2, 1))
        self.assertTrue(version.wait_superseded(common.PATIENCE))
        version.detach()
        self.assertFalse(version.reattach(newest=True))
        self.assertEqual((w.tobytes()[0], version["w0"].tobytes()[0], version.version, version[1].data.version), (4, 3, 2, 2))
        self.assertEqual([part.attachment.ptr for part in version], [p.ptr for p in places])

    def test_other_tables(self):
        """The names and places are those of the version that is there."""
        gpufd.put("m", {"old": self.array(b"0" * 16)}, socket=self.k.socket)
        version = self.get()
        self.assertEqual(list(version[0]), ["old"])
        version.detach()
        for name, size, text in (("new", 16, "tensor 'new' is only in the new one"), ("old", 8, r"tensor 'old' has the shape \[8\], and had \[16\]")):
            gpufd.put("m", {name: self.array(b"1" * size)}, socket=self.k.socket)
            version.wait_superseded(common.PATIENCE)
            text = f"version [23] of m has another layout than version 1, whose address it is to get: {text}"
            with self.subTest(name), common.raises(self, gpufd.MismatchError, "layout", text), mock.patch.object(version[0].memory, "attach_again") as attach_again:
                version.reattach(newest=True)
            attach_again.assert_not_called()
            self.assertEqual((version.version, version[0].attachment.detached), (1, True))
        gpufd.put("m", {"old": self.array(b"2" * 16)}, socket=self.k.socket, metadata={"k": "v"})
        self.assertFalse(version.reattach(newest=True))
        self.assertEqual((version["old"].tobytes(), version.metadata, version.version), (b"2" * 16, {"k": "v"}, 4))

    def test_other_numbers_of_parts(self):
        for before, after in ((1, 2), (2, 1), (3, 2), (2, 3)):
            with self.subTest(before=before, after=after):
                name = f"m{before}{after}"
                self.put(*self.bytes(*range(before)), name=name)
                version = self.get(name)
                version.detach()
                self.put(*self.bytes(*range(after)), name=name)
                for part in version:
                    part.attachment.wait_superseded(common.PATIENCE)
                with common.raises(self, gpufd.MismatchError, "tensors", f"the newest version of {name} has more or fewer parts than version 1, which has {before}"):
                    version.reattach(newest=True)
                self.assertEqual([part.attachment.detached for part in version], [True] * before)
                self.assertTrue(version.reattach())
        self.put(*self.bytes(1, 2))
        version = self.get(part=1)
        version.detach()
        self.put(*self.bytes(1))
        version.wait_superseded(common.PATIENCE)
        common.error_of(self, gpufd.MismatchError, "tensors", lambda: version.reattach(newest=True))
        with gpufd.Client(self.k.socket) as client:
            client.remove("m")
        common.error_of(self, gpufd.NotFoundError, "not-found", lambda: version.reattach(newest=True))

    def test_a_name_that_drains(self):
        """The error says so, as get's does."""
        self.put(*self.bytes(1))
        version = self.get()
        version.detach()
        with gpufd.Client(self.k.socket) as client:
            client.drain("m")
            for newest in (False, True):
                with common.raises(self, gpufd.KeeperError, "draining", "m, version 1, is draining"):
                    version.reattach(newest=newest)
            self.assertEqual(version[0].attachment.detached, True)
            client.drain("m", False)
        self.assertTrue(version.reattach())

    def test_a_part_that_was_taken(self):
        """It goes by the table of the version that is there, whatever is asked first."""
        gpufd.put("m", {"a": self.array(b"0" * 16), "b": self.array(b"1" * 16)}, socket=self.k.socket)
        with self.get() as version:
            (part,) = version.take()
        att = part.attachment
        self.addCleanup(att.close, True)
        self.assertEqual(part["b"].tobytes(), b"1" * 16)
        att.detach()
        gpufd.put("m", {"b": self.array(b"2" * 16), "a": self.array(b"3" * 16)}, socket=self.k.socket)
        att.wait_superseded(common.PATIENCE)
        self.assertFalse(att.reattach(newest=True))
        self.assertEqual((part["b"].tobytes(), part["a"].tobytes()), (b"2" * 16, b"3" * 16))

    def test_labels(self):
        """Those that were demanded are demanded of a newer version, too."""
        gpufd.put("m", {"w": self.array(b"0" * 16)}, socket=self.k.socket, labels={"type": "fp8"})
        version = self.get(labels={"type": "fp8"})
        version.detach()
        gpufd.put("m", {"w": self.array(b"1" * 16)}, socket=self.k.socket, labels={"type": "fp16"})
        version.wait_superseded(common.PATIENCE)
        with common.raises(self, gpufd.MismatchError, "labels", "m has type='fp16', and type='fp8' was asked for"):
            version.reattach(newest=True)
        self.assertEqual((version.version, version[0].attachment.detached), (1, True))
        self.assertTrue(version.reattach())

    def test_what_is_gone_while_its_name_drains(self):
        """The name drains: the keeper says that before it says what else it has."""
        self.put(*self.bytes(1))
        version = self.get()
        version.detach(keep=0.001)
        self.assertTrue(version[0].attachment.wait(common.PATIENCE))
        self.put(*self.bytes(2))
        with gpufd.Client(self.k.socket) as client:
            common.wait_for(lambda: not client.stat("m").raw["retired"], "the end of version 1")
            client.drain("m")
        with common.raises(self, gpufd.KeeperError, "draining"):
            version.reattach()

    def test_all_or_none(self):
        self.put(*self.bytes(1, 2))
        version = self.get()
        with version[1].memory.using("a test"), common.raises(self, gpufd.InUseError, "in-use", "a test"):
            version.detach()
        self.assertEqual([part.attachment.detached for part in version], [False, False])
        version.detach(keep=600)
        time.sleep(0.02)
        for parts in (self.bytes(3), self.bytes(4, 5, 6), [*self.bytes(7), self.array(b"8" * 8)]):
            self.put(*parts)
            for part in version:
                part.attachment.wait_superseded(common.PATIENCE)
            with self.subTest(len(parts)), common.raises(self, gpufd.MismatchError, "layout" if len(parts) == 2 else "tensors"):
                version.reattach(newest=True)
            self.assertEqual([part.attachment.detached for part in version], [True] * 2)
            for part in version:
                self.assertTrue(500 < part.attachment._lease._kept_until - time.monotonic() < 599.99, "its time has not begun anew")

    def test_a_commit_in_between(self):
        """All parts are of one version, though another one is committed while they are reattached."""
        self.put(*self.bytes(1, 2))
        version, reattach = self.get(), gpufd.Attachment._reattach
        version.detach()
        self.put(*self.bytes(3, 4))
        due = [self.bytes(5, 6)]
        for part in version:
            part.attachment.wait_superseded(common.PATIENCE)

        def late(att, *args):
            same = reattach(att, *args)
            if due:
                self.put(*due.pop())
            return same

        with mock.patch.object(gpufd.Attachment, "_reattach", late):
            self.assertFalse(version.reattach(newest=True))
        self.assertEqual((version.version, version["w0"].tobytes()[0], version["w1"].tobytes()[0]), (3, 5, 6))

    def test_places(self):
        self.put(*self.bytes(1, 2))
        for at in (self.places(1), self.places(1)[0], self.places(3)):
            with self.subTest(at), common.raises(self, gpufd.UsageError, "usage", "m, version 1, has 2 parts, and at has reservations for [13]"):
                self.get(at=at)
        with common.raises(self, gpufd.UsageError, "usage", "at is a gpufd.Reservation"):
            self.get(at=1)
        one = self.get(part=1, at=(place := self.places(1)[0]))
        self.assertEqual(one[0].attachment.ptr, place.ptr)
        with common.raises(self, gpufd.UsageError, "usage", "at has 2 reservations, and one part"):
            self.get(part=1, at=self.places(2))

    def test_a_restart(self):
        """An attachment of follow that is detached takes a lease of the keeper's successor, and detaches there."""
        self.put(*self.bytes(1))
        following = gpufd.follow("m", socket=self.k.socket)
        self.addCleanup(following.close)
        att = next(following)
        ptr = att.ptr
        self.assertTrue(att.detach())
        self.k.kill()
        again = Keeper(self.directory)
        self.addCleanup(again.close)
        common.wait_for(lambda: not att.done and att.err is None and att._lease.error is None, "another lease")
        self.put(*self.bytes(2))
        self.assertTrue(att.wait_superseded(common.PATIENCE))
        self.assertTrue(att.reattach())
        self.assertEqual((att.ptr, att.read(0, 1), att.version), (ptr, b"\1", 1))


if __name__ == "__main__":
    unittest.main()
