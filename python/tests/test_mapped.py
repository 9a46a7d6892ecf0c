"""The mark of a process that has memory of others mapped."""

import os
import struct
import subprocess
import sys
import unittest

import common
import gpufd
from gpufd.memory import mapped


class Mapped(common.Scene):
    def test_imports_are_counted_while_they_are_mapped(self):
        here = mapped.imports_of(os.getpid())
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, socket=self.path):
            self.assertEqual(mapped.imports_of(os.getpid()), here, "memory of our own")
            with gpufd.attach(socket=self.path), gpufd.attach(socket=self.path):
                self.assertEqual(mapped.imports_of(os.getpid()), here + 2)
            att = gpufd.attach(socket=self.path)
            view = att.view().__dlpack__(max_version=(1, 0))
            self.assertRaises(gpufd.InUseError, att.close)
            self.assertEqual(mapped.imports_of(os.getpid()), here + 1)
            del view, att
            with gpufd.attach(socket=self.path) as att:
                att.memory.detach()
                self.assertEqual(mapped.imports_of(os.getpid()), here, "detached")
        self.assertEqual(mapped.imports_of(os.getpid()), here)

    def test_an_import_that_fails_is_counted_no_more(self):
        here = mapped.imports_of(os.getpid())
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, socket=self.path) as offering:
            offering.record = offering.record.__class__(**{**vars(offering.record), "chunk_size": 4 << 20})
            with self.assertRaises(gpufd.MismatchError):
                gpufd.attach(socket=self.path)
        self.assertEqual(mapped.imports_of(os.getpid()), here)

    def test_other_processes(self):
        """By its file alone: 8 bytes, little-endian, of whichever program."""
        text = f"import os, sys; fds = [os.memfd_create({mapped.NAME!r}), os.memfd_create({mapped.NAME!r}), os.memfd_create('other')]\n"
        text += "for fd, n in zip(fds, (2, 1 << 8, 5)): os.write(fd, n.to_bytes(8, 'little'))\nprint(flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-S", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            self.assertEqual(mapped.imports_of(other.pid), 258)
        with self.assertRaises(ProcessLookupError):
            mapped.imports_of(other.pid)

    def test_whoever_closes_all_descriptors(self):
        """Its own file, under the number that the mark had, is left alone; the next import makes another mark."""
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, socket=self.path):
            self.ends(self.python(CLOSES_ALL, self.path), 0, "done")

    def test_a_child_has_no_mark_of_its_parents(self):
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, socket=self.path), gpufd.attach(socket=self.path):
            r, w = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.write(w, struct.pack("<q", mapped.imports_of(os.getpid())))
                os._exit(0)
            os.close(w)
            with open(r, "rb") as f:
                self.assertEqual(struct.unpack("<q", f.read()), (0,))
            os.waitpid(pid, 0)
            self.assertGreaterEqual(mapped.imports_of(os.getpid()), 1)


CLOSES_ALL = """
import os
from gpufd.memory import mapped

def mark():
    (fd,) = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.realpath("/proc/self/fd/" + fd).endswith(mapped.NAME + " (deleted)")]
    return fd

def check(*what):
    assert what[0] == what[1], what

with gpufd.attach(socket=sys.argv[1]):
    mine = os.memfd_create("mine")
    os.write(mine, b"sixteen bytes...")
    check(mapped.imports_of(os.getpid()), 1)
    old = mark()
    os.dup2(mine, old)
    check(mapped.imports_of(os.getpid()), 0)
    with gpufd.attach(socket=sys.argv[1]):
        check(mapped.imports_of(os.getpid()), 2)
    os.dup2(mine, mark())
    pid = os.fork()
    if pid == 0:
        os._exit(os.fstat(old).st_size)
    check(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 16)
check(mapped.imports_of(os.getpid()), 0)
check(os.pread(mine, 100, 0), b"sixteen bytes...")
print("done")
"""


if __name__ == "__main__":
    unittest.main()
