"""Reserved addresses, and memory that is mapped there: at one address again, and at another."""

import ctypes
import os
import unittest

import common
import gpufd
from gpufd.memory.soft import SoftMemory

MIB = 1 << 20


def mappings(address):
    """The permissions of what is mapped at an address, or None."""
    with open("/proc/self/maps") as f:
        for line in f:
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                return line.split()[1]
    return None


class Reserved(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4 * MIB, chunk=2 * MIB)
        self.addCleanup(self.memory.close)
        self.memory.write(0, b"first" + bytes(3 * MIB) + b"later")
        server = gpufd.Server(self.path)
        self.addCleanup(server.close)
        server.offer("x", self.memory, gpufd.READ_WRITE)

    def attach(self, **options):
        att = gpufd.attach(socket=self.path, **options)
        self.addCleanup(att.close, True)
        return att

    def test_reservation(self):
        with gpufd.reserve(2 * MIB + 1) as at:
            self.assertEqual((at.size, at.closed), (4 * MIB, False))
            self.assertEqual(mappings(at.ptr), "---p")
            self.assertEqual(repr(at), f"<gpufd.Reservation 4 MiB at {at.ptr:#x}, free>")
        self.assertEqual((at.closed, mappings(at.ptr)), (True, None))
        at.close()
        self.assertIn("closed", repr(at))
        with common.raises(self, gpufd.ClosedError, "closed"):
            self.attach(at=at)
        for size in (0, -1, 1.5, "1"):
            with self.subTest(size), common.raises(self, gpufd.UsageError, "usage"):
                gpufd.reserve(size)
        with common.raises(self, gpufd.MismatchError, "device"):
            gpufd.reserve(1, device="GPU-ffffffff-0506-0708-090a-0b0c0d0e0f10")

    def test_detached_memory_keeps_its_place(self):
        at = gpufd.reserve(4 * MIB)
        att = self.attach(at=at)
        att.detach()
        with common.raises(self, gpufd.InUseError, "in-use", "was detached from the reservation"):
            at.close()
        att.reattach()
        self.assertEqual((att.ptr, att.read(0, 5)), (at.ptr, b"first"))
        att.detach()
        att.close()
        at.close()

    def test_a_lost_one_is_given_back(self):
        at = gpufd.reserve(1)
        ptr = at.ptr
        del at
        self.assertIsNone(mappings(ptr))

    def test_what_is_mapped_there_keeps_it(self):
        at = gpufd.reserve(8 * MIB)
        ptr, att = at.ptr, self.attach(at=at)
        del at
        self.assertEqual((att.ptr, mappings(ptr)), (ptr, "r--s"))
        att.close()
        self.assertEqual(mappings(ptr), "---p", "the attachment has it until that is gone, too")

    def test_attach_at(self):
        at = gpufd.reserve(8 * MIB)
        self.addCleanup(at.close)
        for _ in range(3):
            with self.attach(at=at, access=gpufd.READ_WRITE) as att:
                self.assertEqual((att.ptr, att.memory.reservation), (at.ptr, at))
                self.assertEqual(ctypes.string_at(at.ptr, 5), b"first")
                self.assertEqual(ctypes.string_at(at.ptr + 3 * MIB + 5, 5), b"later")
                self.assertEqual((mappings(at.ptr), mappings(at.ptr + 4 * MIB)), ("rw-s", "---p"))
                for call in (at.close, lambda: self.attach(at=at), lambda: self.take(at=at)):
                    e = common.error_of(self, gpufd.InUseError, "in-use", call)
                    self.assertIn("'x' is mapped at the reservation of 8388608 bytes", str(e))
                    self.assertEqual(e.views, ("'x'",))
                self.assertEqual(att.read(0, 5), b"first")
                self.assertEqual(repr(at), f"<gpufd.Reservation 8 MiB at {at.ptr:#x}, mapped>")
            self.assertEqual(mappings(at.ptr), "---p")

    def test_what_does_not_fit(self):
        with gpufd.reserve(2 * MIB) as at:
            with common.raises(self, gpufd.MismatchError, "too-large", "'x' takes 4194304 bytes of address space, and the reservation has 2097152"):
                self.attach(at=at)
            other = gpufd.Reservation(gpufd.CUDA, 1 << 40, 8 * MIB, lambda ptr, size: None)
            with common.raises(self, gpufd.UsageError, "usage", "of the soft driver cannot be mapped at a reservation of the cuda driver"):
                self.attach(at=other)
            with common.raises(self, gpufd.UsageError, "usage", "at is a gpufd.Reservation, not 4096"):
                self.attach(at=4096)
            with common.raises(self, gpufd.UsageError, "usage", "legacy"):
                self.attach(at=at, legacy=True)

    def test_after_a_fork(self):
        """A child has no part in what its parent has reserved."""
        with gpufd.reserve(4 * MIB) as at:
            pid = os.fork()
            if not pid:
                try:
                    at.close()
                    self.assertEqual(mappings(at.ptr), "---p", "it is the parent's to give back")
                    common.error_of(self, gpufd.ClosedError, "forked", at.take, gpufd.SOFT, 1, "x")
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            with self.attach(at=at) as att:
                self.assertEqual(att.ptr, at.ptr)

    # Memory itself.

    def take(self, **options):
        memory = SoftMemory.take(self.memory.offer("x"), self.memory.fds, gpufd.READ_ONLY, **options)
        self.addCleanup(memory.close, True)
        return memory

    def test_detach_and_attach_again(self):
        for at in (None, gpufd.reserve(4 * MIB)):
            with self.subTest(at):
                memory = self.take(at=at)
                ptr, before = memory.ptr, common.settled_fds()
                whole = memory.view().memoryview()
                memory.detach()
                self.assertEqual((mappings(ptr), memory.files), ("---p", [-1, -1]))
                self.assertEqual(len(common.settled_fds()), len(before) - 2)
                self.assertIn("detached", repr(memory))
                memory.attach_again(self.memory.offer("x"), self.memory.fds)
                self.assertEqual((memory.ptr, bytes(whole[:5]), memory.read(0, 5)), (ptr, b"first", b"first"))
                self.assertEqual(len(common.settled_fds()), len(before))
                with common.raises(self, gpufd.UsageError, "usage", "is not detached"):
                    memory.attach_again(self.memory.offer("x"), self.memory.fds)
                del whole
                memory.detach()
                memory.close()
                with common.raises(self, gpufd.ClosedError, "closed"):
                    memory.attach_again(self.memory.offer("x"), self.memory.fds)

    def test_what_cannot_be_detached(self):
        with common.raises(self, gpufd.UsageError, "usage", "only another process's memory"):
            self.memory.detach()
        memory = self.take(reoffer=True)
        with gpufd.offer("again", memory, socket=self.path + "2"):
            with common.raises(self, gpufd.InUseError, "in-use", "offer 'again'"):
                memory.detach()
            self.assertEqual(memory.read(0, 5), b"first")
        memory.detach()
        self.assertEqual(memory.fds, [])
        memory.attach_again(self.memory.offer("x"), self.memory.fds, reoffer=True)
        self.assertEqual(len(memory.fds), 2)

    def test_other_memory_at_the_same_address(self):
        """Arrays go on with it, but those that do not fit into it."""
        memory = self.take()
        first, last = memory.view("U8", 5), memory.view("U8", 1, 4 * MIB - 1)
        ptr = first.ptr
        memory.detach()
        with gpufd.allocate(6 * MIB) as larger, gpufd.allocate(2 * MIB) as smaller:
            with common.raises(self, gpufd.MismatchError, "too-large"):
                memory.attach_again(larger.offer("larger"), larger.fds)
            with common.raises(self, gpufd.ClosedError, "detached", "'x' is detached: reattach first"):
                first.tobytes()
            self.assertEqual((memory.size, memory.generation), (4 * MIB, self.memory.generation))
            smaller.write(0, b"other")
            memory.attach_again(smaller.offer("smaller"), smaller.fds)
            self.assertEqual((memory.size, memory.generation, first.ptr, first.tobytes()), (2 * MIB, smaller.generation, ptr, b"other"))
            with common.raises(self, gpufd.ClosedError, "closed", "ends at byte 4194304, and the memory that was attached since has 2097152"):
                last.tobytes()

    def test_move(self):
        memory, at, small = self.take(), gpufd.reserve(8 * MIB), gpufd.reserve(MIB)
        before, own = memory.ptr, memory.reservation
        array = memory.view("U8", 5)
        shown = array.memoryview()
        with common.raises(self, gpufd.InUseError, "in-use", "memoryview"):
            memory.move(at)
        del shown
        with common.raises(self, gpufd.MismatchError, "too-large"):
            memory.move(small)
        self.assertEqual((memory.ptr, memory.read(0, 5)), (before, b"first"))
        memory.move(at)
        self.assertEqual((memory.ptr, mappings(at.ptr), mappings(before), own.closed), (at.ptr, "r--s", None, True))
        self.assertEqual((array.ptr, array.tobytes(), ctypes.string_at(at.ptr, 5)), (at.ptr, b"first", b"first"))
        memory.move(at)
        other = gpufd.reserve(4 * MIB)
        memory.move(other)
        self.assertEqual((mappings(at.ptr), mappings(other.ptr)), ("---p", "r--s"))
        memory.detach()
        memory.attach_again(self.memory.offer("x"), self.memory.fds)
        self.assertEqual(memory.ptr, other.ptr)
        with common.raises(self, gpufd.UsageError, "usage", "can be moved"):
            self.memory.move(at)
        at.close()

    def test_moving_in_where_other_memory_was_detached(self):
        """As a new version of a model is checked at a second address, and then takes the first one."""
        at = gpufd.reserve(4 * MIB)
        old = self.take(at=at)
        shown = old.view().memoryview()
        with gpufd.allocate(4 * MIB) as newer:
            newer.write(0, b"newer")
            checked = SoftMemory.take(newer.offer("newer"), newer.fds, gpufd.READ_ONLY)
            self.addCleanup(checked.close, True)
            with common.raises(self, gpufd.InUseError, "in-use", "'x' is mapped"):
                checked.move(at)
            self.assertEqual(checked.read(0, 5), b"newer")
            old.detach()
            checked.move(at)
            self.assertEqual(bytes(shown[:5]), b"newer")
            with common.raises(self, gpufd.InUseError, "in-use", "'newer' is mapped"):
                old.attach_again(self.memory.offer("x"), self.memory.fds)
            del shown
            old.close()
            self.assertEqual(ctypes.string_at(at.ptr, 5), b"newer")


if __name__ == "__main__":
    unittest.main()
