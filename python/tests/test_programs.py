"""The package against gpufd's programs in Go, both directions, and against itself."""

import gc
import json
import os
import pathlib
import signal
import socket
import tempfile
import threading
import time
import unittest

import common
import gpufd
from keepers import stop_store

SIZE = (5 << 20) + 3


def integer(i, salt=0):
    """The demo's data: docs/wire.md."""
    return ((i * 2 + 1337) & 0xFFFFFFFF) ^ 0xDEADBEEF ^ salt


class FromGo(common.Scene):
    """Attaching to what a Go program offers."""

    def test_attach(self):
        numpy = common.need_numpy()
        p = self.producer("--size", str(SIZE), "--chunk", "2MiB", "--salt", "5", "--consumers", "1")
        (listing,) = gpufd.list(socket=self.path)
        self.assertEqual((listing.name, listing.size, listing.access, listing.data_size), ("producer", SIZE, gpufd.READ_ONLY, 16))
        with gpufd.attach("producer", socket=self.path) as att:
            self.assertEqual((att.size, att.generation, att.device, att.peer.pid), (SIZE, listing.generation, 0, p.pid))
            integers = numpy.asarray(att.view("U32"))
            want = numpy.arange(integers.size, dtype=numpy.uint32) * numpy.uint32(2) + numpy.uint32(1337)
            self.assertTrue((integers == want ^ numpy.uint32(0xDEADBEEF ^ 5)).all(), "chunks are not side by side")
            self.assertEqual(att.read(4 << 20, 4), integer(1 << 20, 5).to_bytes(4, "little"))
            with self.assertRaises(ValueError):
                integers[0] = 1
            with self.assertRaises(gpufd.ReadOnlyError):
                att.write(0, b"x")
            del integers
            att.progress(SIZE)
            att.report()
            self.assertEqual((att.done, att.err), (True, None))
            self.assertTrue(att.wait(common.PATIENCE))
            with self.assertRaises(gpufd.ClosedError):
                att.progress(SIZE)
        self.assertIsNone(att.err)
        self.ends(p, 0, "verified")

    def test_verdict(self):
        p = self.producer()
        with gpufd.attach(socket=self.path) as att:
            att.report("one bit is wrong")
            self.assertEqual((att.done, att.err), (True, None))
        self.ends(p, 1, "one bit is wrong")

    def test_refused(self):
        self.producer("--consumers", "0")
        gpufd.attach(socket=self.path, max_size=1 << 20).close()  # the granularity does not count
        for error, options in (("not-found", {"name": "other"}), ("access", {"access": gpufd.READ_WRITE}),
                               ("device", {"device": 1}), ("too-large", {"max_size": (1 << 20) - 1}),
                               ("too-large", {"max_data": 15}), ("stale", {"newer_than": 1 << 62})):  # fmt: skip
            with self.subTest(str(options)), common.raises(self, gpufd.Error, error):
                gpufd.attach(socket=self.path, **options).close()
        with common.raises(self, gpufd.LostError, "nobody-listens"):
            gpufd.attach(socket=self.path + "x")
        with self.assertRaises(gpufd.UsageError):
            gpufd.attach(socket="/" + 107 * "x")
        with common.raises(self, gpufd.RefusedError, "not-admitted"):
            gpufd.attach(socket=self.path, policy=Nobody())

    def test_read_write(self):
        p = self.producer("--access", "rw", "--consumers", "0")
        with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as one, gpufd.attach(socket=self.path) as other:
            one.write(2, b"xyz")
            self.assertEqual(other.read(2, 3), b"xyz")
            other.report()
            one.report()
        p.send_signal(signal.SIGTERM)
        self.ends(p, 0)

    def test_revoked_and_lost(self):
        p = self.producer("--consumers", "0")
        with gpufd.attach(socket=self.path) as att:
            self.assertFalse(att.wait(0.01))
            p.send_signal(signal.SIGTERM)
            self.assertTrue(att.wait(common.PATIENCE))
            common.is_error(self, att.err, gpufd.LeaseEndedError, "withdrawn")
            self.assertEqual(len(att.read()), att.size, "the memory stays")
        p.wait()
        p = self.producer("--consumers", "0")
        with gpufd.attach(socket=self.path) as att:
            with self.assertRaisesRegex(gpufd.FenceError, "its lease has not ended"):
                att.await_fence(0)
            p.kill()
            self.assertTrue(att.wait(common.PATIENCE))
            self.assertIsInstance(att.err, gpufd.LostError)
            self.assertTrue(att.err.died())
            att.await_fence(common.PATIENCE)
            self.assertTrue(att.fenced)
            with common.raises(self, gpufd.LostError, "nobody-listens"):
                att.resume()


class Nobody(gpufd.Policy):
    def check(self, peer):
        raise gpufd.RefusedError(f"uid {peer.uid} is not admitted ({peer})", reason="not-admitted")


class Keeper(common.Scene):
    """Readers of a keeper."""

    def setUp(self):
        super().setUp()
        self.addCleanup(self.stop_stores)  # after the keeper's end, which would start another
        self.keeper = self.start("gpufd", "keeper", "--socket", self.path, waits_for="Keeping")

    def stop_stores(self):
        """End the fd stores of this path: they outlive their keepers."""
        for pid in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (pid / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(w.startswith(self.path.encode()) for w in words) and b"fd-store" in words:
                stop_store(int(pid.name))

    def put(self, *words):
        self.ends(self.start("gpufd", "put", *words, "--socket", self.path), 0)

    def file(self, data):
        with tempfile.NamedTemporaryFile(dir=self.dir, delete=False) as f:
            f.write(data)
        return f.name

    def test_versions_parts_labels(self):
        self.put("llama", self.file(b"first" * 1000), "--label", "revision=main")
        with gpufd.attach("llama", socket=self.path, labels={"revision": "main"}) as att:
            self.assertEqual((att.version, att.labels, att.kept.parts, att.read(0, 5)), (1, {"revision": "main"}, 1, b"first"))
            self.assertTrue(att.kept.digest.startswith("gpufd-d1:"))
            with common.raises(self, gpufd.MismatchError, "labels", "revision='main', and revision='old' was asked for"):
                gpufd.attach("llama", socket=self.path, labels={"revision": "old"})
            self.assertFalse(att.superseded)
            self.put("llama", self.file(b"second" * 1000))
            self.assertTrue(att.wait(common.PATIENCE, superseded=True))
            self.assertTrue(att.superseded)
            self.assertEqual(att.read(0, 5), b"first", "a version that a reader has stays")
        with gpufd.attach("llama", socket=self.path, part=0) as att:
            self.assertEqual((att.version, att.read(0, 6)), (2, b"second"))
        self.put("two", "--part", "0@0=" + self.file(b"a" * 9), "--part", "1@1=" + self.file(b"b" * 9))
        with gpufd.attach_parts("two", socket=self.path) as parts:
            self.assertEqual([(p.kept.part, p.device, p.read()) for p in parts], [(0, 0, b"a" * 9), (1, 1, b"b" * 9)])
        with gpufd.attach("two", socket=self.path, part=1) as att:
            self.assertEqual(att.read(), b"b" * 9)
        with self.assertRaises(gpufd.NotFoundError):
            gpufd.attach("two", socket=self.path, part=2)
        self.assertEqual([o.name for o in gpufd.list(socket=self.path)], ["llama", "two/0", "two/1"])

    def test_resume(self):
        """A keeper that is killed and started again has the same memory."""
        self.put("llama", self.file(b"kept"))
        with gpufd.attach("llama", socket=self.path) as att:
            view = att.view()
            with self.assertRaisesRegex(gpufd.UsageError, "has not ended"):
                att.resume()
            self.keeper.kill()
            self.assertTrue(att.wait(common.PATIENCE))
            self.keeper.wait()
            self.start("gpufd", "keeper", "--socket", self.path, waits_for="Keeping")
            att.resume()
            self.assertFalse(att.done)
            self.assertEqual(view.tobytes(), b"kept")

    def test_follow(self):
        self.put("llama", self.file(b"1"))
        seen = []
        for att in gpufd.follow("llama", socket=self.path, within=common.PATIENCE):
            seen.append((att.version, att.read()))
            if att.version == 3:
                break
            self.put("llama", self.file(b"%d" % (att.version + 1)))
        self.assertEqual(seen, [(1, b"1"), (2, b"2"), (3, b"3")])

    def test_the_keeper_restarts(self):
        """Ended in order, or killed: what is mapped stays, views alive or not, and gets a lease again."""
        self.put("llama", self.file(b"1"))
        versions = 0
        for att in gpufd.follow("llama", socket=self.path, within=common.PATIENCE):
            versions += 1
            if att.version == 2:
                break
            at, view = att.ptr, att.view()
            used = view.__dlpack__(max_version=(1, 0))
            for end in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                self.keeper.send_signal(end)
                self.keeper.wait()
                self.assertFalse(att.done, att.err)
                self.assertFalse(att.wait(0.01))
                self.keeper = self.start("gpufd", "keeper", "--socket", self.path, waits_for="Keeping")
                common.wait_for(lambda: not att.done and att.peer.pid == self.keeper.pid, "another lease")
                self.assertEqual((att.ptr, view.tobytes()), (at, b"1"))
                self.assertEqual(att._lease.conn.timeout, 30.0, "that of its options")
            self.put("llama", self.file(b"2"))
            self.assertTrue(att.wait(common.PATIENCE, superseded=True))
        self.assertEqual(versions, 2, "what is used does not end it")
        self.assertEqual(view.tobytes(), b"1")
        del used, view, att
        gc.collect()

    def test_without_a_lease_for_so_long(self):
        self.put("llama", self.file(b"1"))
        for att in gpufd.follow("llama", socket=self.path, within=common.PATIENCE, max_absence=0.02):
            self.keeper.kill()
            self.keeper.wait()
            self.assertTrue(att.wait(common.PATIENCE))
            self.assertIsInstance(att.err, gpufd.LostError)
            break

    def test_drain_is_a_notice(self):
        self.put("llama", self.file(b"1"))
        with gpufd.attach("llama", socket=self.path) as att:
            drain = self.start("gpufd", "drain", "llama", "--socket", self.path)
            self.assertEqual([json.loads(n) for n in att.notices(common.PATIENCE)], [{"gpufd": "drain"}])
        self.ends(drain, 0)


class ToGo(common.Scene):
    """Offering to a Go program: its consumer, which verifies the demo's data."""

    def memory(self, size=SIZE, chunk=2 << 20, salt=9):
        m = gpufd.allocate(size, chunk=chunk)
        self.addCleanup(m.close)
        data = b"".join(integer(i, salt).to_bytes(4, "little") for i in range(-(-size // 4)))[:size]
        m.write(0, data)
        return m, (-(-size // 4)).to_bytes(8, "little") + salt.to_bytes(4, "little") + bytes(4)

    def consumer(self, *flags):
        return self.start("consumer", "--socket", self.path, *flags)

    def test_offer(self):
        memory, data = self.memory()
        events = []
        with gpufd.Server(self.path) as server:
            offering = server.offer("producer", memory, data=data, verdict=True, leases=2, on_event=lambda e: events.append(e.kind))
            with self.assertRaises(gpufd.InUseError):
                memory.close()
            with common.raises(self, gpufd.InUseError, "name-taken"):
                server.offer("producer", memory)
            self.ends(self.consumer(), 0, "PASSED")
            self.ends(self.consumer(), 0, "PASSED")
            self.assertTrue(offering.wait(common.PATIENCE))
        self.assertEqual([e for e in events if e != "progress"], ["connected", "sent", "mapped", "verdict", "ended"] * 2)
        memory.close()

    def test_wrong(self):
        memory, data = self.memory(1030)
        memory.write(17, b"\0")
        ended = []
        with gpufd.Server(self.path, on_event=lambda e: ended.append(e.err) if e.kind == "ended" else None) as server:
            offering = server.offer("producer", memory, data=data, verdict=True, leases=1)
            self.ends(self.consumer(), 1, "first at index 4")
            self.assertTrue(offering.wait(common.PATIENCE))
        common.is_error(self, ended[0], gpufd.VerdictError, "bad-verdict")
        self.assertIn("first at index 4", str(ended[0]))

    def test_many_chunks(self):
        """Descriptors in more than one record."""
        memory = gpufd.allocate(130 * (2 << 20), chunk=2 << 20)
        self.addCleanup(memory.close)
        with gpufd.offer("x", memory, socket=self.path), gpufd.attach(socket=self.path) as att:
            self.assertEqual(att.offer.chunks, 130)
            memory.write(129 * (2 << 20), b"last")
            self.assertEqual(att.read(129 * (2 << 20), 4), b"last")

    def test_pending(self):
        """A consumer that is there before the data maps the memory, and waits."""
        memory, data = self.memory()
        with gpufd.Server(self.path) as server:
            server.expect("producer")
            consumer = self.consumer()
            deadline = time.monotonic() + common.PATIENCE
            while not server._serving.sessions and time.monotonic() < deadline:
                server.working(1, 2)
                time.sleep(0.01)
            offering = server.offer("producer", memory, data=data, pending=True, verdict=True, leases=1)
            while not offering.leases and time.monotonic() < deadline:
                time.sleep(0.01)
            server.working(1, 2)
            offering.publish()
            self.ends(consumer, 0, "PASSED")
            self.assertTrue(offering.wait(common.PATIENCE))

    def test_killed(self):
        """A consumer that dies is lost, and fenced when it is dead."""
        memory, data = self.memory()
        leases = []
        with gpufd.Server(self.path) as server:
            server.offer("producer", memory, gpufd.READ_WRITE, data=data, on_lease=leases.append)
            child = self.python(f"a = gpufd.attach(socket={self.path!r}, access=gpufd.READ_WRITE); print('there'); a.wait()", waits_for="there")
            (lease,) = server.leases("producer")
            self.assertEqual((lease.access, lease.peer.pid, lease.done, lease.fenced), (gpufd.READ_WRITE, child.pid, False, False))
            child.kill()
            self.assertTrue(lease.wait(common.PATIENCE))
            self.assertIsInstance(lease.err, gpufd.LostError)
            lease.await_fence(common.PATIENCE)
            self.assertTrue(lease.err.died() and lease.fenced)
        self.assertEqual(leases, [lease])


class BothPython(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(SIZE)
        self.addCleanup(self.memory.close)

    def served(self, **options):
        server = gpufd.Server(self.path, timeout=10, **options)
        self.addCleanup(server.close)
        return server

    def test_large_data(self):
        for n in (0, 4096, 4097, 1 << 20):
            data = bytes(i * 7 % 251 for i in range(n))
            with gpufd.offer("x", self.memory, socket=self.path, data=data), gpufd.attach(socket=self.path) as att:
                self.assertTrue(att.data == data)
                self.assertEqual(gpufd.list(socket=self.path)[0].data_size, n)
        with common.raises(self, gpufd.MismatchError, "too-large"):
            gpufd.offer("x", self.memory, socket=self.path, data=bytes((64 << 20) + 1))

    def test_notices(self):
        server = self.served()
        offering = server.offer("x", self.memory)
        with gpufd.attach(socket=self.path) as att:
            (lease,) = offering.leases
            lease.notify(b"to you")
            self.assertEqual(att.notices(10), [b"to you"])
            att.notify(b"1")
            att.notify(b"2")
            got = lease.notices(10)
            while len(got) < 2:
                got += lease.notices(10)
            self.assertEqual(got, [b"1", b"2"])
            for i in range(40):
                lease.notify(b"%d" % i)
            self.assertEqual(att.notices(10)[-1], b"39")
            with self.assertRaises(gpufd.UsageError):
                att.notify(bytes(4097))
        self.assertTrue(lease.wait(10))
        self.assertIsNone(lease.err, "it has left in order")
        lease.await_fence(10, gpufd.RELEASED)
        with self.assertRaisesRegex(gpufd.FenceError, "its process has not ended"):
            lease.await_fence(0.01)

    def test_revoke(self):
        server = self.served()
        offering = server.offer("x", self.memory)
        with gpufd.attach(socket=self.path) as one, gpufd.attach(socket=self.path) as other:
            offering.leases[0].revoke("your time is over")
            self.assertTrue(one.wait(10))
            common.is_error(self, one.err, gpufd.LeaseEndedError, "revoked")
            self.assertIn("your time is over", str(one.err))
            self.assertFalse(other.done)
            with common.raises(self, gpufd.LeaseEndedError, "revoked"):
                one.notify(b"x")
            one.resume()
            self.assertFalse(one.done)

    def test_replace(self):
        server = self.served()
        first = server.offer("x", self.memory)
        with gpufd.allocate(SIZE) as newer:
            with gpufd.attach(socket=self.path) as att:
                second = server.replace("x", newer, grace=None)
                self.assertTrue(att.wait(10, superseded=True))
                self.assertFalse(att.done)
                self.assertFalse(first.over)
                with gpufd.attach(socket=self.path, newer_than=att.generation) as later:
                    self.assertEqual(later.generation, newer.generation)
                    with common.raises(self, gpufd.MismatchError, "stale"):
                        gpufd.attach(socket=self.path, newer_than=later.generation)
            self.assertTrue(first.wait(10))
            with gpufd.attach(socket=self.path) as att:
                third = server.replace("x", self.memory, grace=0.05)
                self.assertTrue(att.wait(10))
                common.is_error(self, att.err, gpufd.LeaseEndedError, "superseded")
                with common.raises(self, gpufd.RefusedError, "other-memory"):
                    att.resume()
            self.assertTrue(second.wait(10))
            third.close()

    def test_wait_for_newer(self):
        server = self.served()
        server.offer("x", self.memory)
        with gpufd.allocate(1) as newer:
            threading.Timer(0.2, lambda: server.replace("x", newer)).start()
            with gpufd.attach("x", socket=self.path, newer_than=self.memory.generation, wait=True) as att:
                self.assertEqual(att.generation, newer.generation)
            server.close()

    def test_ends_have_reasons(self):
        for reason, end in (
            ("withdrawn", lambda server, offering: offering.close()),
            ("withdrawn", lambda server, offering: server.close()),
            ("restarting", lambda server, offering: server.shutdown()),
            ("superseded", lambda server, offering: server.replace("x", self.memory, grace=0)),
            ("revoked", lambda server, offering: offering.leases[0].revoke("slow")),
        ):
            server = self.served()
            offering = server.offer("x", self.memory)
            with gpufd.attach(socket=self.path) as att:
                lease = offering.leases[0]
                end(server, offering)
                self.assertTrue(att.wait(common.PATIENCE))
                common.is_error(self, att.err, gpufd.LeaseEndedError, reason)
                self.assertTrue(lease.wait(common.PATIENCE))
                common.is_error(self, lease.err, gpufd.LeaseEndedError, reason)
            server.close()

    def test_follow_a_producer_that_restarts(self):
        """With the same memory it goes on, and with other memory the body gets that."""
        served = self.served()
        served.offer("x", self.memory)
        seen = []
        for att in gpufd.follow("x", socket=self.path, within=common.PATIENCE):
            seen.append(att.generation)
            if len(seen) == 2:
                break
            served.shutdown()
            self.assertFalse(att.wait(0.01), att.err)
            served = self.served()
            served.offer("x", self.memory)
            common.wait_for(lambda: not att.done and served.leases("x"), "another lease")
            served.shutdown()
            served = self.served()
            newer = gpufd.allocate(1)
            self.addCleanup(newer.close, True)
            served.offer("x", newer)
            self.assertTrue(att.wait(common.PATIENCE))
            common.is_error(self, att.err, gpufd.LeaseEndedError, "superseded")
        self.assertEqual(seen, [self.memory.generation, newer.generation])

    def test_follow_with_overlap(self):
        server = self.served()
        server.offer("x", self.memory)
        versions, all_ = [gpufd.allocate(1) for _ in range(2)], []
        for m in versions:
            self.addCleanup(m.close, True)
        for att in gpufd.follow("x", socket=self.path, within=common.PATIENCE, overlap=True):
            all_.append(att)
            if len(all_) == 3:
                break
            if len(all_) == 2:
                att.close()  # it is bad
            server.replace("x", versions[len(all_) - 1], grace=None)
        self.assertEqual([a.generation for a in all_], [m.generation for m in (self.memory, *versions)])
        self.assertTrue(all(a._lease.closed for a in all_), "the loop's end closes them")

    def test_follow_says_why_it_waits(self):
        reasons = []

        def on_wait(error):
            reasons.append(error)
            if len(reasons) == 1:
                self.served().offer("y", self.memory)

        with self.assertRaisesRegex(gpufd.TimedOutError, "there is no offer"):
            next(gpufd.follow("x", socket=self.path, within=6, on_wait=on_wait))  # the server may take seconds to start
        self.assertEqual([e.reason for e in reasons], ["nobody-listens", "not-found"])
        self.assertTrue(all(e.retryable for e in reasons))
        self.assertFalse(gpufd.RefusedError(reason="denied").retryable)

    def test_follow_says_why_it_waited_before_the_last_try(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:

            def on_wait(error):
                silent.bind(self.path)
                silent.listen()

            with self.assertRaisesRegex(gpufd.TimedOutError, "the peer took longer .*; before that, .*nobody is listening"):
                next(gpufd.follow("x", socket=self.path, within=4, on_wait=on_wait))  # it is called after a second

    def test_follow_a_producer_that_comes_back(self):
        served = self.served()
        served.offer("x", self.memory, data=b"one")
        seen = []
        for att in gpufd.follow("x", socket=self.path, within=20):
            seen.append(att.data)
            if len(seen) == 3:
                break
            if len(seen) == 2:
                att.report()  # judged: not the same again
                newer = gpufd.allocate(1)
                self.addCleanup(newer.close, True)
                served.replace("x", newer, data=b"three")
                continue
            served.close()
            served = self.served()
            served.offer("x", self.memory, data=b"two")
        self.assertEqual(seen, [b"one", b"two", b"three"])

    def test_authorize(self):
        def decide(peer, offer):
            if offer.access == gpufd.READ_WRITE:
                raise PermissionError("readers only")

        refused = []
        server = self.served(authorize=decide, on_event=lambda e: refused.append(str(e.err)) if e.kind == "refused" else None)
        server.offer("x", self.memory, gpufd.READ_WRITE)
        gpufd.attach(socket=self.path).close()
        with common.raises(self, gpufd.RefusedError, "denied"):
            gpufd.attach(socket=self.path, access=gpufd.READ_WRITE)
        self.assertEqual(len(gpufd.list(socket=self.path)), 1)
        server.close()
        self.assertIn("PermissionError: readers only", refused[0])

    def test_fence(self):
        """An offer that waits for who may write ends when they have let go."""
        server = self.served()
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.RELEASED)
        att = gpufd.attach(socket=self.path, access=gpufd.READ_WRITE)
        self.assertTrue(att.awaits_release)
        closing = threading.Thread(target=offering.close)
        closing.start()
        self.assertTrue(att.wait(10))
        closing.join(0.1)
        self.assertTrue(closing.is_alive(), "it did not wait for the writer")
        att.close()
        closing.join(10)
        self.assertFalse(closing.is_alive())
        offering = server.offer("x", self.memory, gpufd.READ_WRITE, fence=gpufd.FENCED)
        with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE):
            with self.assertRaises(gpufd.FenceError) as caught:
                offering.close(timeout=0.2)
            self.assertEqual([p.pid for p in caught.exception.peers], [os.getpid()])

    def test_places(self):
        server = self.served(connections=2)
        server.offer("x", self.memory)
        with gpufd.attach(socket=self.path), gpufd.attach(socket=self.path):
            with common.raises(self, gpufd.RefusedError, "busy"):
                gpufd.attach(socket=self.path)

    def test_reoffer(self):
        """Memory that was attached to is offered on."""
        self.memory.write(0, b"on")
        other = self.path + "2"
        with gpufd.offer("x", self.memory, socket=self.path):
            with gpufd.attach(socket=self.path) as att, common.raises(self, gpufd.MismatchError, "handle"):
                gpufd.offer("x", att.memory, socket=other)
            with gpufd.attach(socket=self.path, reoffer=True) as att:
                with gpufd.offer("y", att.memory, socket=other), gpufd.attach(socket=other) as onward:
                    self.assertEqual((onward.read(0, 2), onward.generation), (b"on", self.memory.generation))
                    with self.assertRaisesRegex(gpufd.InUseError, "offer 'y'"):
                        att.close()

    def test_events_that_fail(self):
        """An error of the application's function costs nobody a lease."""

        def fail(event):
            raise RuntimeError("of the application")

        server = self.served(on_event=fail)
        server.offer("x", self.memory)
        with common.quiet_excepthook() as seen:
            gpufd.attach(socket=self.path).close()
            gpufd.attach(socket=self.path).close()
            server.close()
        self.assertTrue(seen and all(isinstance(e, RuntimeError) for e in seen))

    def test_counters(self):
        with gpufd.allocate(256) as control:
            control.write(0, bytes(256))
            with gpufd.offer("c", control, gpufd.READ_WRITE, socket=self.path), gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att:
                with gpufd.counter(control, 0) as ours, gpufd.counter(att.memory, 0) as theirs:
                    ours.signal(3)
                    theirs.wait(2, 5)
                    threading.Timer(0.05, ours.signal, (4,)).start()
                    theirs.wait(4, 5)
                    with self.assertRaisesRegex(gpufd.InUseError, "counter 0"):
                        att.close()
                    for n in (0, -1, (1 << 63) - 1):
                        with self.assertRaisesRegex(gpufd.UsageError, "counts from 1"):
                            ours.signal(n)
                    with self.assertRaises(gpufd.TimedOutError):
                        theirs.wait(5, 0.05)
                    with common.raises(self, gpufd.ClosedError, "given-up"):
                        theirs.wait(1, 1)
                    with common.raises(self, gpufd.ClosedError, "given-up", "another waiter"):
                        ours.wait(1, 1)
                control.write(128, (9).to_bytes(8, "little") + (1).to_bytes(8, "little"))  # signalled behind a wait that was given up
                with gpufd.counter(att.memory, 1) as theirs:
                    for _ in range(2):
                        with common.raises(self, gpufd.ClosedError, "given-up", "given up"):
                            theirs.wait(9, common.PATIENCE)
                for slot in (2, -1):
                    with self.assertRaisesRegex(gpufd.UsageError, "has room for 2"):
                        gpufd.counter(control, slot)
                with self.assertRaises(gpufd.UnavailableError):
                    gpufd.IPCEvent(control)


if __name__ == "__main__":
    unittest.main()
