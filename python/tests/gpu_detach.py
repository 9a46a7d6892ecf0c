"""Addresses that stay while memory comes and goes, on a GPU: reserve, detach, reattach, and CUDA graphs that go on.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_detach.py -v

It needs a GPU, and neither PyTorch nor Go. In the end it prints how long detaching and reattaching took.
"""

import ctypes
import gc
import signal
import statistics
import sys
import time
import unittest

import gpu  # first: it says where the package is

import common
import gpufd
from gpufd.memory import cuda as _cuda
from gpufd.memory import libcuda as _driver
from gpufd.memory.devicedigest import DeviceDigester
from gpufd.memory.digest import digest_of

MIB, GIB = 1 << 20, 1 << 30
SIZE = 8 * MIB
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
SLACK = 32 * MIB  # of the device's free memory, which the driver uses as well
TIMES = []  # lines to print


class Graph:
    """A CUDA graph, captured of what f queues on a stream."""

    PROTOTYPES = {
        "cuStreamBeginCapture_v2": [ctypes.c_void_p, ctypes.c_int],
        "cuStreamEndCapture": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)],
        "cuGraphInstantiateWithFlags": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_uint64],
        "cuGraphLaunch": [ctypes.c_void_p, ctypes.c_void_p],
        "cuGraphExecDestroy": [ctypes.c_void_p],
        "cuGraphDestroy": [ctypes.c_void_p],
    }

    def __init__(self, f):
        self.raw = ctypes.CDLL("libcuda.so.1")
        for name, types in self.PROTOTYPES.items():
            getattr(self.raw, name).argtypes = types
        self.lib = _driver.load()
        with self.lib.current(_cuda.context_of(0)):
            self.stream = self.lib.made("cuStreamCreate", NON_BLOCKING)
            self.call("cuStreamBeginCapture_v2", self.stream, RELAXED)
            f(self.stream)
            graph, self.exec = ctypes.c_void_p(), ctypes.c_void_p()
            self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
            self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.exec), graph, 0)
            self.call("cuGraphDestroy", graph)

    def call(self, name, *args):
        code = getattr(self.raw, name)(*args)
        if code:
            raise self.lib.error(name, code)

    def replay(self):
        with self.lib.current(_cuda.context_of(0)):
            self.call("cuGraphLaunch", self.exec, self.stream)
            self.lib.call("cuStreamSynchronize", self.stream)

    def close(self):
        with self.lib.current(_cuda.context_of(0)):
            self.call("cuGraphExecDestroy", self.exec)
            self.lib.call("cuStreamDestroy_v2", self.stream)


class Detached(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.server = gpufd.Server(self.path, timeout=common.PATIENCE)
        self.addCleanup(self.server.close)

    def allocated(self, value, size=SIZE, **options):
        """Memory whose bytes are all of one value."""
        memory = gpufd.allocate(size, **options)
        self.addCleanup(memory.close, True)
        with memory.current() as lib:
            lib.call("cuMemsetD8Async", memory.ptr, value, size, None)
        memory.finish()
        return memory

    def attach(self, **options):
        att = gpufd.attach("x", socket=self.path, **options)
        self.addCleanup(att.close, True)
        return att

    def reserve(self, size):
        at = gpufd.reserve(size)
        self.addCleanup(at.close)
        return at

    def test_an_address_again_and_again(self):
        self.server.offer("x", self.allocated(1, chunk=2 * MIB))
        at = self.reserve(SIZE + 1)
        self.assertEqual((at.size, at.ptr % (2 * MIB)), (SIZE + 2 * MIB, 0))
        for _ in range(3):
            with self.attach(at=at) as att:
                self.assertEqual((att.ptr, att.read(SIZE - 1, 1)), (at.ptr, b"\x01"))
                with self.assertRaises(gpufd.InUseError):
                    self.attach(at=at)
                with self.assertRaises(gpufd.InUseError):
                    at.close()
        small = self.reserve(2 * MIB)
        with common.raises(self, gpufd.MismatchError, "too-large"):
            self.attach(at=small)

    def test_graphs_go_on(self):
        """A copy and a kernel that were captured replay over the same memory, mapped again, and over the next version's."""
        self.server.offer("x", self.allocated(1))
        out, att = self.allocated(0), self.attach(at=self.reserve(SIZE))
        digester = DeviceDigester(_driver.load(), 0)
        self.addCleanup(digester.close)

        digester.add(att.ptr, 0, SIZE)  # so that the driver loads the kernel before the capture

        def work(stream):
            digester.cu.call("cuMemcpyDtoDAsync_v2", out.ptr, att.ptr, SIZE, stream)
            digester.add(att.ptr, 0, SIZE, stream)

        graph = Graph(work)
        self.addCleanup(graph.close)

        def replayed():
            digester.reset()
            digester._end = SIZE
            graph.replay()
            return out.read(0, 1) + out.read(SIZE - 1, 1), digester.digest()

        def of(value):
            return bytes([value] * 2), digest_of(bytes([value]) * SIZE)

        array = att.view("U8", 4)
        self.assertEqual(replayed(), of(1))
        self.assertTrue(att.detach())
        common.error_of(self, gpufd.ClosedError, "detached", array.tobytes)
        self.assertTrue(att.reattach())
        self.assertEqual(replayed(), of(1))
        self.server.replace("x", self.allocated(2))
        self.assertTrue(att.wait_superseded(common.PATIENCE))
        att.detach()
        self.assertFalse(att.reattach(newest=True))
        self.assertEqual((replayed(), array.tobytes()), (of(2), b"\x02" * 4))
        self.server.replace("x", self.allocated(3))
        checked = self.attach()  # at a second address, and then moved
        self.assertEqual(checked.read(0, 1), b"\x03")
        att.detach()
        checked.memory.move(att.memory.reservation)
        self.assertEqual(replayed(), of(3))

    def test_detach_frees_the_memory(self):
        """Of a producer that was killed, the mapping alone keeps the memory; its end gives it back."""
        p = self.python(
            f"m = gpufd.allocate({GIB})\nwith gpufd.offer('alone', m, socket={self.path + '2'!r}):\n    print('offers', flush=True)\n    sys.stdin.read()",
            waits_for="offers",
        )
        att = gpufd.attach("alone", socket=self.path + "2")
        self.addCleanup(att.close, True)
        ptr = att.ptr
        p.send_signal(signal.SIGKILL)
        p.wait()
        self.assertTrue(att.wait(common.PATIENCE))
        free = gpu.vitals()[2]
        self.assertFalse(att.detach(), "there is no lease any more")
        common.wait_for(lambda: gpu.vitals()[2] > free + GIB - SLACK, "the device's memory")
        with self.assertRaises(gpufd.LostError):
            att.reattach()
        with self.allocated(5, GIB) as memory, gpufd.offer("alone", memory, socket=self.path + "2"):
            self.assertFalse(att.reattach(newest=True))
            self.assertEqual((att.ptr, att.read(GIB - 1, 1)), (ptr, b"\x05"))
            att.close()

    def test_detach_waits_for_the_device(self):
        self.server.offer("x", self.allocated(7, GIB))
        att, out = self.attach(), self.allocated(0, GIB)
        lib = _driver.load()
        with lib.current(_cuda.context_of(0)):
            stream = lib.made("cuStreamCreate", NON_BLOCKING)
            for _ in range(100):  # about 0.1 s
                lib.call("cuMemcpyDtoDAsync_v2", out.ptr, att.ptr, GIB, stream)
            att.detach()
            lib.call("cuStreamQuery", stream)
            lib.call("cuStreamDestroy_v2", stream)
        self.assertEqual(out.read(GIB - 1, 1), b"\x07", "the context is good, and the copies were made")
        self.assertTrue(att.reattach())

    def test_a_thousand_rounds(self):
        """Neither descriptors nor mappings nor the device's memory grow."""
        one, two = self.allocated(1, chunk=2 * MIB), self.allocated(2, chunk=2 * MIB)
        self.server.offer("x", one)
        att, before = self.attach(at=self.reserve(SIZE)), None
        for i in range(1000):
            self.assertTrue(att.detach())
            if i % 10 == 5:
                self.server.replace("x", (two, one)[i // 10 % 2])
            att.reattach(newest=True)
            if i == 50:
                before = self.settled()
        after = self.settled()
        self.assertLessEqual(after[0], before[0])
        self.assertLess(after[1], before[1] + 20, "Python itself maps some now and then")
        self.assertGreaterEqual(after[2], before[2] - SLACK)

    def settled(self):
        common.wait_for(lambda: len(self.server._serving.sessions) == 1, "the end of older leases")
        gc.collect()
        return gpu.vitals()

    def test_times(self):
        """Print what it takes. Of 64 GiB if the device has room for that."""
        size = 64 * GIB if gpu.vitals()[2] > 80 * GIB else GIB
        given = self.allocated(1, size)
        self.server.offer("x", given)
        att, took = self.attach(at=self.reserve(size)), {"detach": [], "reattach": [], "import and map": []}

        def timed(what, f, *args):
            begin = time.perf_counter()
            value = f(*args)
            took[what].append(1e3 * (time.perf_counter() - begin))
            return value

        for _ in range(7):
            timed("detach", att.detach)
            timed("reattach", att.reattach)
        att.detach()
        for _ in range(7):
            timed("import and map", att.memory.attach_again, att.offer, given.fds)()
        for what, ms in took.items():
            TIMES.append(f"{what} of {size // GIB} GiB: median {statistics.median(ms):.2f} ms, longest {max(ms):.2f} ms")


def main():
    ok = unittest.main(exit=False).result.wasSuccessful()
    print(*TIMES, sep="\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
