"""order.py: counters on the software driver's files, and the calls of a GPU's driver, of
which a stand-in takes the arguments and answers when a stream's wait is over.
"""

import ctypes
import os
import tempfile
import threading
import types
import unittest
import unittest.mock

import gpufd
import memory
import order
import test_memory


class Numbers(unittest.TestCase):
    def test_reached(self):
        """By the sign of the difference, in 64 bits; what gives up frees all."""
        for number, n, yes in ((0, 1, False), (1, 1, True), (2, 1, True), (order.GIVEN_UP, 1, True),
                               (order.GIVEN_UP, order.GIVEN_UP - 1, True), (5, order.GIVEN_UP - 1, False)):  # fmt: skip
            self.assertEqual(order.reached(number, n), yes, (number, n))


class Counters(unittest.TestCase):
    """What holds on either driver."""

    def counters(self, buffer, slot=1):
        return order.counter(buffer, slot), order.counter(buffer, slot)

    def number(self, buffer, slot=1):
        return int.from_bytes(buffer.read(slot * order.STRIDE, 8), "little")

    def both(self, buffer):
        ours, theirs = self.counters(buffer)
        with ours, theirs:
            theirs.signal(3)
            self.assertEqual(self.number(buffer), 3)
            ours.wait(2, 1)
            ours.wait(3, 1)
            timer = threading.Timer(0.05, theirs.signal, (4,))
            timer.start()
            ours.wait(4, 5)
            timer.join()
            for n in (0, -1, order.GIVEN_UP):
                for call in (lambda n=n: theirs.signal(n), lambda n=n: ours.wait(n, 1)):
                    with self.assertRaisesRegex(gpufd.Error, "counts from 1"):
                        call()
            with self.assertRaises(gpufd.TimedOut):
                ours.wait(5, 0.05)
            self.assertEqual(self.number(buffer), order.GIVEN_UP)
            for call in (lambda: ours.wait(1, 1), lambda: ours.signal(9)):
                with self.assertRaisesRegex(gpufd.Error, "given up"):
                    call()
            self.assertEqual(self.number(buffer, 0), 0, "another slot")

    def interrupted(self, buffer):
        """Who is interrupted while it waits has given its slot up, and left nothing waiting."""
        ours, theirs = self.counters(buffer)

        def poll(*_):
            raise KeyboardInterrupt

        with ours, theirs, unittest.mock.patch.object(order, "poll", poll):
            with self.assertRaises(KeyboardInterrupt):
                ours.wait(1, 1)
            with self.assertRaisesRegex(gpufd.Error, "was given up"):
                ours.wait(1, 1)
        self.assertEqual(self.number(buffer), order.GIVEN_UP)

    def refused(self, buffer):
        with self.assertRaisesRegex(gpufd.Error, "has room for 2"):
            order.counter(buffer, 2)
        with self.assertRaisesRegex(gpufd.Error, "has room for 2"):
            order.counter(buffer, -1)
        buffer.access = gpufd.READ_ONLY
        with self.assertRaisesRegex(gpufd.Error, "read-only"):
            order.counter(buffer, 0)


class Software(Counters):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        os.environ["GPUFD_SOFT_DIR"] = os.path.join(self.dir.name, "soft")

    def tearDown(self):
        self.dir.cleanup()
        del os.environ["GPUFD_SOFT_DIR"]

    def test_counter(self):
        with memory.Soft.make(2 * order.STRIDE) as buffer:
            self.both(buffer)
            self.refused(buffer)
        with memory.Soft.make(2 * order.STRIDE) as buffer:
            self.interrupted(buffer)

    def test_other_waiter(self):
        """Two that wait at a slot: the patient one hears that the other gave it up."""
        with memory.Soft.make(2 * order.STRIDE) as buffer:
            ours, other = self.counters(buffer)
            with ours, other:
                timer = threading.Timer(0.05, lambda: self.assertRaises(gpufd.TimedOut, other.wait, 1, 0))
                timer.start()
                with self.assertRaisesRegex(gpufd.TimedOut, "by another waiter"):
                    ours.wait(1, 5)
                timer.join()

    def test_event(self):
        with memory.Soft.make(1) as buffer, self.assertRaises(gpufd.CannotHere):
            order.IPCEvent(buffer)


class Driver(test_memory.Driver):
    """With streams, which wait for a value at most, and events."""

    CUipcEventHandle = test_memory.Driver.CUipcMemHandle

    def __init__(self):
        super().__init__()
        self.waits, self.recorded, self.happened = {}, 0, 0

    def cuStreamCreate(self, flags):
        assert flags == 1
        self.things.append(thing := types.SimpleNamespace(kind="stream"))
        return self.ok(thing)

    def cuStreamDestroy(self, stream):
        self.things.remove(stream)
        return self.ok()

    def word(self, at):
        return ctypes.c_uint64.from_address(at)

    def cuStreamWaitValue64(self, stream, at, n, flags):
        assert flags == 0 and at % 8 == 0
        self.waits[id(stream)] = (at, n)
        return self.ok()

    def cuStreamWriteValue64(self, stream, at, n, flags):
        assert flags == 0 and not self.waiting(stream)
        self.word(at).value = n
        return self.ok()

    def waiting(self, stream):
        at, n = self.waits.get(id(stream), (None, 0))
        return at is not None and ctypes.c_int64(self.word(at).value - n).value < 0

    def cuStreamQuery(self, stream):
        return (test_memory.CUresult(600 if self.waiting(stream) else 0),)

    def cuStreamSynchronize(self, stream):
        assert not self.waiting(stream), "it would hang"
        return self.ok()

    def cuEventCreate(self, flags):
        assert flags == 6
        self.things.append("event")
        return self.ok("event")

    def cuIpcGetEventHandle(self, event):
        handle = self.CUipcEventHandle()
        handle.reserved = b"e" * 64
        return self.ok(handle)

    def cuIpcOpenEventHandle(self, handle):
        if handle.reserved != b"e" * 64:
            return (test_memory.CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.things.append("event")
        return self.ok("event")

    def cuEventRecord(self, event, stream):
        self.recorded += 1
        return self.ok()

    def cuEventQuery(self, event):
        return (test_memory.CUresult(600 if self.happened < self.recorded else 0),)

    def cuEventDestroy(self, event):
        self.things.remove(event)
        return self.ok()


class Gpu(Counters):
    def setUp(self):
        self.driver = Driver()
        self.remove = test_memory.install(self.driver)

    def tearDown(self):
        self.remove()
        self.assertEqual(self.driver.things, [], "things of the driver are left")

    def test_counter(self):
        with memory.Cuda.make(2 * order.STRIDE) as buffer:
            self.both(buffer)
            self.refused(buffer)
        with memory.Cuda.make(2 * order.STRIDE) as buffer:
            self.interrupted(buffer)

    def test_steps_fail(self):
        with memory.Cuda.make(2 * order.STRIDE) as buffer:
            for call in ("cuStreamCreate", "cuStreamWaitValue64", "cuStreamQuery", "cuStreamWriteValue64"):
                self.driver.fail_at = call
                with self.subTest(call), self.assertRaisesRegex(gpufd.Error, f"^{call}: CUDA_ERROR_INVALID_VALUE"):
                    with order.counter(buffer, 0) as c:
                        c.wait(1, 0.01)
                self.driver.fail_at = None
                self.driver.waits.clear()
                buffer.write(0, bytes(order.STRIDE))

    def test_event(self):
        with memory.Cuda.make(1) as buffer:
            with order.IPCEvent(buffer) as ours, order.IPCEvent(buffer, ours.handle) as theirs:
                ours.wait(1)  # never recorded
                theirs.record()
                with self.assertRaises(gpufd.TimedOut):
                    ours.wait(0.05)
                self.driver.happened = 1
                ours.wait(1)
            with self.assertRaisesRegex(gpufd.Error, "^cuIpcOpenEventHandle: "):
                order.IPCEvent(buffer, bytes(64))
            self.driver.fail_at = "cuIpcGetEventHandle"
            with self.assertRaises(gpufd.Error):
                order.IPCEvent(buffer)
            self.driver.fail_at = None


if __name__ == "__main__":
    unittest.main()
