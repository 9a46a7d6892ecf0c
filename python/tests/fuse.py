"""A file on FUSE whose owner stops answering: served by a process of its own, for a minute at most."""

import contextlib
import ctypes
import os
import signal
import struct
import tempfile

import common

GETATTR, FLUSH = 3, 25
SIZE = 8192

_libc = ctypes.CDLL(None, use_errno=True)


class File:
    """The file: ``fd``. From ``silence`` on, operations get no answer, until ``abort``."""

    def __init__(self):
        if os.environ.get("GPUFD_EMULATED") == "1":
            common.missing("", "qemu-user has no mounts of FUSE")
        if os.geteuid() != 0:
            common.missing("", "needs root, to mount FUSE")
        self.fd, self.server = -1, 0
        try:
            dev = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as e:
            common.missing("namespaces", f"no FUSE here: {e}")
        with tempfile.TemporaryDirectory() as at:
            options = f"fd={dev},rootmode=40000,user_id=0,group_id=0,allow_other"
            failed = _libc.mount(b"gpufd-test", at.encode(), b"fuse", 0, options.encode())
            if failed:
                os.close(dev)
                common.missing("namespaces", f"no FUSE here: {os.strerror(ctypes.get_errno())}")
            self.server = os.fork()
            if self.server == 0:
                try:
                    signal.alarm(60)
                    signal.signal(signal.SIGUSR1, lambda *_: self.silent.update((GETATTR, FLUSH)))
                    self.silent = set()
                    self.serve(dev)
                finally:
                    os._exit(0)
            os.close(dev)
            try:
                self.fd = os.open(os.path.join(at, "file"), os.O_RDWR | os.O_CLOEXEC)
            finally:
                _libc.umount2(at.encode(), 2)  # MNT_DETACH

    def silence(self):
        os.kill(self.server, signal.SIGUSR1)

    def abort(self):
        if self.server:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
            self.server = 0
        if self.fd >= 0:
            with contextlib.suppress(OSError):  # the file system is gone
                os.close(self.fd)
            self.fd = -1

    def serve(self, dev):
        while True:
            try:
                request = os.read(dev, 1 << 20)
            except (FileNotFoundError, InterruptedError):
                continue
            except OSError:
                return
            op, unique, node = struct.unpack("<4xIQQ", request[:24])
            if op in self.silent:
                continue
            body, error = b"", 0
            if op == 26:  # INIT
                body = struct.pack("<IIIIHHIIHHI", 7, 31, 131072, 0, 12, 10, 65536, 1, 32, 0, 0) + bytes(28)
            elif op == 1:  # LOOKUP
                body = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + self.attributes(2)
            elif op == GETATTR:
                body = bytes(16) + self.attributes(node)
            elif op == 14:  # OPEN
                body = bytes(16)
            elif op in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
                continue
            elif op not in (FLUSH, 18):  # RELEASE
                error = -38
            try:
                os.write(dev, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
            except OSError:
                pass  # the asker has gone

    @staticmethod
    def attributes(node):
        mode = 0o40777 if node == 1 else 0o100666
        return struct.pack("<QQQQQQIIIIIIIIII", node, SIZE, 16, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
