"""What another user sends: memory is taken, and what its owner can keep from being closed never comes in."""

import contextlib
import os
import socket
import threading
import time
import traceback
import unittest

import common
import fuse
import gpufd
from gpufd.wire import aside as _aside
from gpufd.wire import quiet as _quiet
from gpufd.wire.conn import Conn

STRANGER = 4242
SIZE = 2 << 20


class Strangers(common.Scene):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to be another user")
        os.chmod(self.dir, 0o711)
        self.memory = gpufd.allocate(SIZE)
        self.addCleanup(self.memory.close)

    def produce(self, fd, records=1):
        """A process of another user that offers that descriptor, and waits for the end."""
        path = os.path.join(self.dir, "stranger")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        os.chmod(path, 0o666)
        offer = self.memory.offer("x")
        fd = os.dup(fd)  # a fork closes those of memory
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(STRANGER, STRANGER, STRANGER)
                os.setresuid(STRANGER, STRANGER, STRANGER)
                listener.listen(1)  # which says who listens
                os.write(told, b"x")
                conn = Conn(listener.accept()[0], common.PATIENCE)
                conn.receive()
                for _ in range(records):
                    conn.send(offer, [fd])
                with contextlib.suppress(gpufd.Error, OSError):
                    while True:
                        conn.receive_any(0, time.monotonic() + common.PATIENCE)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        self.addCleanup(self.ended, pid)
        for mine in (fd, told):
            os.close(mine)
        listener.close()
        with open(ready, "rb") as says:
            self.assertEqual(says.read(1), b"x", "the stranger has failed")
        return path

    def ended(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
        os.waitpid(pid, 0)

    def attach(self, path, **options):
        return gpufd.attach("x", socket=path, timeout=common.PATIENCE, policy=gpufd.Policy(uids=[STRANGER]), **options)

    def test_memory(self):
        self.memory.write(0, b"hello")
        with self.attach(self.produce(self.memory.fds[0])) as att:
            self.assertEqual(bytes(att.memory.read(0, 5)), b"hello")

    def test_file_that_hangs(self):
        """Attaching fails in its time, this process never has the descriptor, and another process has what else was sent."""
        f = fuse.File()
        self.addCleanup(self.nobody_left)
        self.addCleanup(f.abort)
        path = self.produce(f.fd, records=3)
        self.addCleanup(f.abort)  # before the stranger's end is waited for
        os.close(f.fd)
        f.fd = -1
        f.silence()
        begun = time.monotonic()
        with self.assertRaisesRegex(gpufd.WireError, "closing may wait for"):
            self.attach(path)
        common.settled_fds()  # the connection is closed, too
        self.assertLess(time.monotonic() - begun, common.PATIENCE / 2)
        self.assertEqual(len(_aside._left), 2)
        self.assertTrue(all(p.poll() is None for p in _aside._left))

    def nobody_left(self):
        deadline = time.monotonic() + common.PATIENCE
        while any([p.poll() is None for p in _aside._left]):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        _aside._left.clear()

    def test_bounded(self):
        class Hangs:
            def poll(self):
                return None

        _aside._left.extend([Hangs()] * _aside.MOST_LEFT)
        self.addCleanup(_aside._left.clear)
        with self.assertRaisesRegex(gpufd.WireError, "64 processes"):
            self.attach(self.produce(self.memory.fds[0]))
        common.settled_fds()


class Quiet(unittest.TestCase):
    def test_kinds(self):
        a, b = socket.socketpair()
        with a, b, open(__file__) as here, open("/dev/null") as null, open("/proc/self/maps") as proc:
            memory = os.memfd_create("x")
            try:
                got = [_quiet.quiet(fd) for fd in (memory, here.fileno(), null.fileno(), proc.fileno(), a.fileno())]
            finally:
                os.close(memory)
        self.assertEqual(got, [True, True, False, False, False])

    def test_nobody_is_asked(self):
        f = fuse.File()
        self.addCleanup(f.abort)
        f.silence()
        said = []
        thread = threading.Thread(target=lambda: said.append(_quiet.quiet(f.fd)), daemon=True)
        thread.start()
        thread.join(common.PATIENCE)
        self.assertEqual(said, [False])


if __name__ == "__main__":
    unittest.main()
