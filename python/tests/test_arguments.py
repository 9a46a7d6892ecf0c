"""Arguments that make no sense: UsageError before anything is sent. And waits, which wake when there is something."""

import contextlib
import json
import math
import os
import socket
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from gpufd import channel
from gpufd import arguments as _arguments
from gpufd.wire import conn as _conn
from gpufd.keeper import control as _control
from gpufd.errors import LostError
from gpufd.keeper import Client

NO_TEXT = (5, b"x", None, ["x"], "\ud800")
NO_NUMBER = ("1", 1.5, None, -1, True, 10**4000)
NO_TIME = ("1", -1, math.nan, True, [1])
NO_STEP = (*NO_TIME, 0)


class Nobody:
    """A socket at which somebody listens and counts who comes: nobody may."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(path)
        self.sock.listen(8)
        self.sock.setblocking(False)

    def came(self):
        try:
            self.sock.accept()[0].close()
            return True
        except BlockingIOError:
            return False


class Sent(common.Scene):
    """Whatever is wrong, nothing is sent, and nobody is connected to."""

    def setUp(self):
        super().setUp()
        self.nobody = [Nobody(p) for p in (self.path, self.path + ".ctl")]
        for n in self.nobody:
            self.addCleanup(n.sock.close)

    def refused(self, call, *args, **named):
        with self.subTest(f"{getattr(call, '__name__', call)} {args} {named}"[:150]):
            with self.assertRaises(gpufd.UsageError) as caught:
                done = call(*args, **named)
                if hasattr(done, "__next__"):
                    next(done)
            self.assertLess(len(str(caught.exception)), 400)
            self.assertFalse(any(n.came() for n in self.nobody))

    def test_put(self):
        for bad in (
            *({"labels": v} for v in ({"step": 3}, {3: "step"}, {"a": None}, {"a": b"x"}, "a=b", ["a"], 5, {"a": "\udfff"}, {"\ud800": "a"})),
            *({"expect_version": v} for v in NO_NUMBER if v is not None), *({"transaction": v} for v in (*NO_TEXT, "x" * 65)),
            *({"part": v} for v in (*NO_NUMBER, 1)), *({"parts": v} for v in (*NO_NUMBER, 0, 2)),
            *({"device": v} for v in NO_NUMBER), *({"chunk": v} for v in NO_NUMBER), *({"timeout": v} for v in NO_STEP),
            {"driver": "wood"}, {"driver": 9}, {"driver": 1.5},
        ):  # fmt: skip
            self.refused(gpufd.put, "x", b"data", socket=self.path, **bad)
        for name in (*NO_TEXT, ""):
            self.refused(gpufd.put, name, b"data", socket=self.path)
            self.refused(gpufd.get, name, socket=self.path)
        for bad in (5, None, object(), {"a": b"x"}, {5: memoryview(b"abcd").cast("i")}, [1, 2], ["a", 5], memoryview(b"abcd")[::2]):
            self.refused(gpufd.put, "x", bad, socket=self.path)
        for path in (5, "", "a\0b", "x" * 200, "\ud800", 1.5):
            self.refused(gpufd.put, "x", b"data", socket=path)
            self.refused(gpufd.get, "x", socket=path)
            self.refused(gpufd.attach, socket=path)
            self.refused(gpufd.list, socket=path)
            self.refused(gpufd.follow, socket=path)
            self.refused(channel.Reader, socket=path)
            self.refused(gpufd.Server, path)

    def test_attach(self):
        everywhere = [
            *({"access": v} for v in (2, "READ_ONLY", None, True)), *({"device": v} for v in NO_NUMBER if v is not None),
            {"driver": "wood"}, *({"timeout": v} for v in NO_STEP),
            *({"max_chunks": v} for v in NO_NUMBER), *({"max_size": v} for v in NO_NUMBER if v is not None), *({"max_data": v} for v in NO_NUMBER),
            {"connected": 5}, {"connected": None}, {"reoffer": "yes"},
        ]  # fmt: skip
        labels = [{"labels": {"a": 3}}, {"labels": "a"}]
        for bad in [*everywhere, *labels, {"policy": 5}, {"policy": None}, {"within": 0}, {"within": "1"}, {"within": math.nan}]:
            self.refused(gpufd.attach, "x", socket=self.path, **bad)
            self.refused(gpufd.attach_parts, "x", socket=self.path, **bad)
            if bad != {"within": 0}:
                self.refused(gpufd.follow, "x", socket=self.path, **bad)
        for bad in ({"part": v} for v in NO_NUMBER if v is not None):
            self.refused(gpufd.attach, "x", socket=self.path, **bad)
            self.refused(gpufd.get, "x", socket=self.path, **bad)
        for bad in ({"newer_than": -1}, {"newer_than": "1"}, {"wait": True}, {"wait": 2}, {"legacy": 5}, {"opener": 5}, {"max_cursors": 1 << 40}):
            self.refused(gpufd.attach, socket=self.path, **bad)
        for name in NO_TEXT:
            self.refused(gpufd.attach, name, socket=self.path)
            self.refused(gpufd.follow, name, socket=self.path)
            self.refused(channel.Reader, name, socket=self.path)
        for bad in [*everywhere, {"policy": "later"}, {"policy": ["block"]}, {"join": 5}, {"wait": "1"}, {"wait": -1}]:
            self.refused(channel.Reader, "x", socket=self.path, **bad)
        for bad in [*everywhere, {"policy": "later"}, {"join": 5}, {"within": -1}, {"within": "1"}]:
            self.refused(channel.follow, "x", socket=self.path, **bad)
        for bad in [{"timeout": v} for v in NO_STEP] + [{"policy": 5}]:
            self.refused(gpufd.list, socket=self.path, **bad)
            self.refused(Client, self.path, **(bad if "timeout" in bad else {"policy": 5}))
        for ids in (5, ["root"], "12"):
            self.refused(gpufd.Policy, uids=ids)

    def test_client(self):
        with Client(self.path) as c:
            for bad in (*NO_TEXT, ""):
                for call in (c.stat, c.find, c.remove, c.drain):
                    self.refused(call, bad)
            for bad in NO_TEXT:
                self.refused(c.watch, bad)
                if bad != 5:  # an ordinal
                    self.refused(c.drain_device, bad)
                self.refused(c.report, "x", 1, 0, bad, "why")
                self.refused(c.report, "x", 1, 0, "damaged", bad)
            for bad in NO_NUMBER:
                self.refused(c.remove, "x", bad)
                self.refused(c.report, "x", bad, 0, "damaged", "why")
                self.refused(c.report, "x", 1, bad, "damaged", "why")
                self.refused(c.book, "x", bad, "GPU-", "soft")
            self.refused(c.drain, "x", "no")
            self.refused(c.book, "x", 1, 5, "soft")
            self.refused(c.book, "x", 1, "GPU-", 5)
            self.refused(c.book, "x", 1, "GPU-", "soft", lifetime="1")
            self.refused(c.ask, {"op": {1, 2}})
            self.refused(c.ask, {"op": "\ud800"})


class Offered(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4096)
        self.addCleanup(self.memory.close)

    def refused(self, call, *args, **named):
        with self.subTest(f"{getattr(call, '__name__', call)} {args} {named}"[:150]), self.assertRaises(gpufd.UsageError):
            call(*args, **named)

    def test_server(self):
        for bad in [{"timeout": v} for v in NO_STEP] + [{"mode": 0o1000}, {"mode": "600"}, {"connections": "5"}, {"connections_per_peer": None},
                                                          {"policy": 5}, {"authorize": 5}, {"on_event": 5}]:  # fmt: skip
            self.refused(gpufd.Server, self.path, **bad)
            self.refused(channel.Writer, "x", socket=self.path, slots=2, slot_size=8, **bad)
        self.assertFalse(os.path.exists(self.path))
        for bad in ({"slots": "2"}, {"slots": 0}, {"slot_size": 1.5}, {"stall": "1"}, {"stall": math.nan}, {"readers": 0}, {"readers": "1"}, {"streams": 5},
                    {"any_order": "1"}, {"any_order": 1, "streams": 1}, {"any_order": 1, "slots": 385}, {"drop": "yes"}, {"on_gone": 5}, {"name": 5}, {"name": ""}, {"device": "0"}):  # fmt: skip
            self.refused(channel.Writer, socket=self.path, **{"name": "x", "slots": 2, "slot_size": 8, **bad})
        with gpufd.Server(self.path) as s:
            for bad in ({"access": 5}, {"access": "rw"}, {"data": "text"}, {"data": 5}, {"verdict": "yes"}, {"leases": "1"}, {"leases": -1}, {"fence": 3},
                        {"fence": True}, {"pending": "yes"}, {"synchronized": None}, {"cursors": 4096}, {"on_event": 5}, {"on_lease": 5}):  # fmt: skip
                self.refused(s.offer, "x", self.memory, **bad)
                self.refused(s.replace, "x", self.memory, **bad)
            self.refused(s.replace, "x", self.memory, grace="1")
            for bad in NO_TEXT:
                self.refused(s.offer, bad, self.memory)
                self.refused(s.expect, bad)
            self.refused(s.working, "1")
            self.refused(gpufd.Cursors, 0, print)
            self.refused(gpufd.Cursors, 4096, None)
            offering = s.offer("x", self.memory, gpufd.READ_WRITE)
            for bad in NO_TIME:
                self.refused(offering.wait, bad)
                self.refused(offering.wait, idle=bad)
                self.refused(offering.close, timeout=bad)
                self.refused(s.close, timeout=bad)
            with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att, gpufd.counter(att.memory, 0) as counter:
                (lease,) = offering.leases
                for bad in NO_TIME:
                    for call in (lease.wait, lease.notices, lease.await_fence, att.wait, att.notices, att.await_fence):
                        self.refused(call, bad)
                    self.refused(lease.notify, b"x", bad)
                    self.refused(counter.wait, 1, bad)
                self.assertFalse(counter.broken)
                for call in (lease.notify, att.notify):
                    self.refused(call, "text")
                    self.refused(call, b"x" * 4097)
                self.refused(lease.await_fence, 1, 9)
                self.refused(att.progress, "1")
                self.refused(att.report, 5)
                self.refused(att.read, "1")
                self.refused(counter.wait, "1", 1)
                self.assertFalse(lease.done)
                self.assertIsNone(att.err)

    def test_frames(self):
        with channel.Writer("x", socket=self.path, slots=2, slot_size=8) as w, channel.Reader(socket=self.path) as r:
            for bad in NO_TIME:
                for call in (w.acquire, r.next, r.frames, r.await_fence):
                    self.refused(call, bad)
                self.refused(w.await_readers, 1, bad)
                self.refused(w.send, b"x", timeout=bad)
            self.refused(w.send, "text")
            self.refused(w.send, b"x", user="text")
            self.refused(w.await_readers, "1")
            slot = w.acquire(1)
            for bad in ({"size": "1"}, {"size": 9}, {"user": "x"}, {"user": bytes(209)}, {"time_ns": 1.5}):
                self.refused(w.publish, slot, **bad)
            self.refused(slot.write, "text")
            self.refused(slot.write, b"x", "1")
            w.publish(slot)

    def test_no_bound(self):
        """None is no bound, and so is infinity, wherever a timeout is taken."""
        for bound in (None, math.inf):
            with gpufd.Server(self.path, timeout=bound) as s:
                offering = s.offer("x", self.memory)
                self.assertEqual([o.name for o in gpufd.list(socket=self.path, timeout=bound)], ["x"])
                with gpufd.attach(socket=self.path, timeout=bound) as att:
                    att.notify(b"a")
                    (lease,) = offering.leases
                    self.assertEqual(lease.notices(bound), [b"a"])
                    lease.notify(b"b", bound)
                    self.assertEqual(att.notices(bound), [b"b"])
                self.assertTrue(lease.wait(bound))
                self.assertTrue(att.wait(bound))
                for att in gpufd.follow("x", socket=self.path, within=bound, timeout=bound):
                    break
                att.close()
                s.replace("x", self.memory, grace=bound)
                self.assertTrue(offering.wait(bound, idle=bound))
                s.close(timeout=bound)
            with channel.Writer("x", socket=self.path, slots=2, slot_size=8, timeout=bound, stall=bound) as w, channel.Reader(socket=self.path, timeout=bound, wait=bound) as r:
                w.await_readers(1, bound)
                w.send(b"x", timeout=bound)
                r.next(bound).release()


class Knocking(common.Scene):
    def test_a_keeper_that_hangs_up_is_not_asked_for_ever(self):
        """Whatever it dislikes: all tries together have the timeout."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(server.close)
        server.bind(self.path + ".ctl")
        server.listen(16)
        booked = []

        def serve():
            while True:
                try:
                    conn, _ = server.accept()
                except OSError:
                    return
                with conn, contextlib.suppress(OSError):
                    op = json.loads(conn.recv(65536)[1:])["op"]
                    if op == "status":
                        conn.send(b"\x01" + json.dumps({"status": {"pid": 1}}).encode())
                        conn.recv(65536)
                    else:
                        booked.append(op)

        thread = threading.Thread(target=serve)
        thread.start()
        begin = time.monotonic()
        with Client(self.path, timeout=0.5) as c:
            self.assertRaises(LostError, c.book, "x", 1, "GPU-00000000-0000-0000-0000-000000000000", "soft")
        self.assertLess(time.monotonic() - begin, 20)
        self.assertLessEqual(len(booked), 12)  # with pauses that grow
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Waits(common.Scene):
    """A wait wakes when there is something: none of these comes near the second, or the minute, that it may sleep."""

    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4096)
        self.addCleanup(self.memory.close)
        self.server = gpufd.Server(self.path)
        self.addCleanup(self.server.close)
        self.offering = self.server.offer("x", self.memory)

    def waiting(self, wait):
        """Have a thread wait; returns what gives its result."""
        got = []
        thread = threading.Thread(target=lambda: got.append(wait()), daemon=True)
        thread.start()

        def result():
            thread.join(common.PATIENCE)
            self.assertFalse(thread.is_alive())
            return got[0]

        return result

    def test_notices_of_a_lease(self):
        """The thread of the server wakes who waits: a condition that sleeps for ever otherwise."""
        with gpufd.attach(socket=self.path) as att:
            (lease,) = self.offering.leases
            with mock.patch.object(lease, "_changed", Forever(lease._changed)):
                result = self.waiting(lambda: lease.notices(None))
                lease._changed.slept.wait(common.PATIENCE)
                att.notify(b"news")
                self.assertEqual(result(), [b"news"])
                result = self.waiting(lambda: lease.wait(None))
                att.close()
                self.assertTrue(result())

    def test_notices_that_another_thread_reads(self):
        with gpufd.attach(socket=self.path) as att:
            (lease,) = self.offering.leases
            there = threading.Event()
            sleep = att._lease._sleep

            def slept(bell, seconds):
                there.set()
                sleep(bell, seconds)

            with mock.patch.object(att._lease, "_sleep", slept):
                result = self.waiting(lambda: att.notices(None))
                there.wait(common.PATIENCE)
                with att._lease.lock:  # so that the thread that waits cannot read it
                    lease.notify(b"news")
                    while not att._lease.notices:
                        att._lease.pump()
                self.assertEqual(result(), [b"news"])
                there.clear()
                result = self.waiting(lambda: att.wait(None, superseded=True))
                there.wait(common.PATIENCE)
                with att._lease.lock:
                    self.server.replace("x", self.memory)
                    while not att.superseded:
                        pass
                self.assertTrue(result())
                there.clear()
                result = self.waiting(lambda: att.wait(None))
                there.wait(common.PATIENCE)
                att.close()
                self.assertTrue(result())
            self.assertEqual(att._lease.bells, {})


class Forever:
    """A condition whose wait ends by being told alone, not by its time."""

    def __init__(self, condition):
        self.condition, self.slept = condition, threading.Event()

    def __enter__(self):
        return self.condition.__enter__()

    def __exit__(self, *error):
        return self.condition.__exit__(*error)

    def notify_all(self):
        self.condition.notify_all()

    def wait(self, timeout):
        self.slept.set()
        if not self.condition.wait(common.PATIENCE):
            raise AssertionError("nobody was told")


class Files(common.Scene):
    def test_too_many_open_files(self):
        """Said in words, with the limit, by whatever opens one."""
        text = (
            "import resource, os\n"
            "path = sys.argv[1]\n"
            "memory = gpufd.allocate(1)\n"
            "server = gpufd.Server(path); server.offer('x', memory)\n"
            "client = gpufd.Client(path)\n"
            "import gpufd.memory.soft, gpufd.memory.libcuda, gpufd.channel, socket\n"
            "gpufd.list, gpufd.attach, gpufd.get, gpufd.put, gpufd.follow\n"  # modules are files, too
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))\n"
            "held = []\n"
            "try:\n"
            "    while True: held.append(os.dup(0))\n"
            "except OSError: pass\n"
            "calls = [lambda: gpufd.attach(socket=path), lambda: gpufd.list(path), lambda: gpufd.allocate(1), client.status, lambda: gpufd.Server(path + '2'),\n"
            "         lambda: gpufd.put('y', b'x', socket=path), lambda: gpufd.put('y', '/etc/passwd', socket=path), lambda: server.offer('y', memory, data=bytes(100_000)),\n"
            "         lambda: gpufd.channel.Reader(socket=path), lambda: gpufd.get('y', socket=path), lambda: next(gpufd.follow('x', socket=path, within=1))]\n"
            "for i, call in enumerate(calls):\n"
            "    try: call()\n"
            "    except gpufd.UnavailableError as e:\n"
            "        assert 'too many open files' in str(e) and 'ulimit -n allows 64' in str(e) and e.reason == 'too-many-files' and e.exit == 3, e\n"
            "    else: raise AssertionError(i)\n"
            "for fd in held: os.close(fd)\n"
            "with gpufd.attach(socket=path): pass\n"
            "server.close()\n"
            "print('all of them')\n"
        )
        self.ends(self.python(text, self.path), 0, "all of them")


class Checks(unittest.TestCase):
    def test_seconds(self):
        self.assertEqual([_arguments.seconds("t", v) for v in (0, 1, 2.5, None, math.inf, 10**400)], [0, 1, 2.5, math.inf, math.inf, math.inf])
        for bad in NO_STEP:
            self.assertRaisesRegex(gpufd.UsageError, "or None for no bound", _arguments.step, bad)

    def test_names_of_what_is_wrong(self):
        for call, says in (
            (lambda: _arguments.labels({"step": 3}), "label 'step' is text, not 3"),
            (lambda: _arguments.number("expect_version", "1"), "expect_version is a whole number, not '1'"),
            (lambda: _arguments.text("a transaction", 5), "a transaction is text, not 5"),
            (lambda: _arguments.number("part", 10**5000), "part a number of more than 20 digits: 0 to"),
            (lambda: _conn.check_path(5), "a socket is a path, not int"),
            (lambda: _control.encode({"a": {1}}), "no JSON"),
        ):
            self.assertRaisesRegex(gpufd.UsageError, says, call)


if __name__ == "__main__":
    unittest.main()
