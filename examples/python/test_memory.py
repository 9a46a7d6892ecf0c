"""memory.py and demo.py: the software driver's files, and the calls of a GPU's driver,
of which a stand-in for cuda.bindings takes the arguments as strictly as that does.
"""

import contextlib
import ctypes
import enum
import mmap
import os
import sys
import tempfile
import types
import unittest

import demo
import gpufd
import memory


def open_fds():
    return set(os.listdir("/proc/self/fd"))


class Data(unittest.TestCase):
    def test_integers(self):
        """What docs/wire.md says, and where its arithmetic wraps."""
        for salt in (0, 1, 0xFFFFFFFF):
            for first in (0, 1, (1 << 31) - 670, (1 << 32) - 3, (1 << 33) + 1):
                whole = b"".join(demo.at(first + i, salt).to_bytes(4, "little") for i in range(2000))
                for n in (1, 3, 4, 5, 7998, 8000):
                    self.assertEqual(demo.pattern(first, n, salt), whole[:n], (salt, first, n))

    def test_comparison(self):
        good = demo.pattern(0, 10, 5)
        for i, index in ((0, 0), (3, 0), (4, 1), (9, 2)):
            bad = bytearray(good)
            bad[i] ^= 0x80
            c = demo.Comparison(5)
            c.add(0, bytes(bad))
            self.assertIn(f"first at index {index}, ", c.text())
            self.assertIn("; 1 integers are wrong", c.text())
        c = demo.Comparison(5)
        c.add(0, good)
        self.assertEqual(c.text(), "")

    def test_flags(self):
        self.assertEqual([demo.seconds(t) for t in ("30s", "1m30s", "500ms", "2")], [30, 90, 0.5, 2])
        self.assertEqual([demo.size(t) for t in ("1", "4KiB", "5MiB", "1GiB")], [1, 4096, 5 << 20, 1 << 30])


class Software(unittest.TestCase):
    def setUp(self):
        self.before = open_fds()
        self.dir = tempfile.TemporaryDirectory()
        os.environ["GPUFD_SOFT_DIR"] = os.path.join(self.dir.name, "soft")

    def tearDown(self):
        self.dir.cleanup()
        del os.environ["GPUFD_SOFT_DIR"]
        self.assertEqual(open_fds(), self.before, "descriptors are left")

    def test_identity_stays(self):
        self.assertEqual(memory.soft_uuid(0), memory.soft_uuid(0))
        self.assertNotEqual(memory.soft_uuid(0), memory.soft_uuid(1))

    def test_shared(self):
        with memory.Soft.make((5 << 20) + 1, 2 << 20) as made:
            demo.fill(made, 3)
            offer = made.offer("producer", gpufd.READ_ONLY, b"")
            with memory.Soft.take(offer, made.fds, gpufd.READ_WRITE) as taken:
                self.assertEqual(demo.compare(taken, 3, print), "")
                taken.write((2 << 20) - 1, b"ab")  # over the border of two chunks
                self.assertEqual(made.read((2 << 20) - 1, 2), b"ab")
            with memory.Soft.take(offer, made.fds, gpufd.READ_ONLY) as taken, self.assertRaisesRegex(gpufd.Error, "read-only"):
                taken.write(0, b"x")

    def test_cut_off(self):
        """A holder of the descriptor that cuts the file off costs an error, and not the life."""
        with memory.Soft.make(4 << 20, 2 << 20) as made:
            offer = made.offer("producer", gpufd.READ_WRITE, b"")
            with memory.Soft.take(offer, made.fds, gpufd.READ_WRITE) as taken:
                os.ftruncate(made.fds[1], 4096)
                for buffer in (made, taken):
                    self.assertEqual(buffer.read(2 << 20, 4096), bytes(4096), "what is left")
                    buffer.write(2 << 20, bytes(4096))
                    for at, n in ((2 << 20, 4097), (3 << 20, 1), ((2 << 20) - 1, 5000)):
                        with self.assertRaisesRegex(OSError, "chunk 1 was cut off"):
                            buffer.read(at, n)
                        with self.assertRaisesRegex(OSError, "chunk 1 was cut off"):
                            buffer.write(at, bytes(n))
                self.assertEqual(os.fstat(made.fds[1]).st_size, 4096, "and writing does not make it longer")

    def test_holes(self):
        """A file of holes is not taken: to read it would take memory of this machine."""
        size = 1 << 40
        fd = os.memfd_create("sparse", os.MFD_CLOEXEC)
        try:
            device = memory.soft_uuid(0)
            os.pwrite(fd, memory.TRAILER.pack(memory.TRAILER_MAGIC, 1, 0, size, device, bytes(8), bytes(8)), size)
            os.truncate(fd, size + memory.TRAILER_SIZE)
            with memory.Soft.make(1) as made:
                offer = gpufd.replace(made.offer("producer", gpufd.READ_ONLY, b""), size=size, chunk_size=size)
            with self.assertRaisesRegex(gpufd.Error, "holes"):
                memory.Soft.take(offer, [fd], gpufd.READ_ONLY)
        finally:
            os.close(fd)

    def test_legacy(self):
        """What stands for a legacy handle here is no file that could be mapped."""
        with memory.Soft.make(1) as made:
            offer = gpufd.replace(made.offer("x", 3, b""), handle_type=gpufd.LEGACY, fds=0, granularity=0, handle=bytes(64))
        for call in (lambda: memory.Soft.make_legacy(1), lambda: memory.Soft.take(offer, [], gpufd.READ_ONLY)):
            with self.assertRaises(gpufd.CannotHere) as caught:
                call()
            self.assertEqual(caught.exception.exit, 3)

    def test_lies(self):
        with memory.Soft.make(1 << 20) as made, tempfile.TemporaryFile() as other:
            other.truncate((2 << 20) + memory.TRAILER_SIZE)
            offer = made.offer("producer", gpufd.READ_ONLY, b"")
            r, w = os.pipe()
            for lie, fd in (({}, other.fileno()), ({}, r), ({"chunk_size": 4 << 20}, made.fds[0]), ({"device": bytes(16)}, made.fds[0])):
                with self.assertRaises(gpufd.Error):
                    memory.Soft.take(gpufd.replace(offer, **lie), [fd], gpufd.READ_ONLY)
            os.close(r)
            os.close(w)


# A stand-in for cuda.bindings.driver: handles are memfds, addresses those of this process.

CUresult = enum.IntEnum("CUresult", {"CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_NOT_READY": 600, "CUDA_ERROR_NOT_SUPPORTED": 801})
HandleType = enum.IntEnum("HandleType", {"CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": 1})
Access = enum.IntEnum("Access", {"CU_MEM_ACCESS_FLAGS_PROT_READ": 1, "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": 3})
UUIDS = [bytes(range(16)), bytes(range(1, 17))]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Driver(types.ModuleType):
    """Counts what is there: things must be empty in the end."""

    CUresult = CUresult
    CUmemAllocationHandleType = HandleType
    CUmemAccess_flags = Access
    CUdevice_attribute = enum.IntEnum("A", {"CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103})
    CUipcMem_flags = enum.IntEnum("I", {"CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": 1})
    CUmemAllocationType = enum.IntEnum("T", {"CU_MEM_ALLOCATION_TYPE_PINNED": 1})
    CUmemLocationType = enum.IntEnum("L", {"CU_MEM_LOCATION_TYPE_DEVICE": 1})
    CUmemAllocationGranularity_flags = enum.IntEnum("G", {"CU_MEM_ALLOC_GRANULARITY_MINIMUM": 0})

    def __init__(self):
        super().__init__("cuda.bindings.driver")
        self.things, self.fail_at, self.code = [], None, CUresult.CUDA_ERROR_INVALID_VALUE

    def __getattribute__(self, name):
        if name == super().__getattribute__("__dict__").get("fail_at"):
            return lambda *_: (self.code,)
        return super().__getattribute__(name)

    @staticmethod
    def CUmemAllocationProp():
        return types.SimpleNamespace(location=types.SimpleNamespace())

    CUmemAccessDesc = CUmemAllocationProp

    class CUipcMemHandle:
        reserved = bytes(64)

    def cuMemAlloc(self, size):
        at = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.things.append(("memory", at, size))
        return self.ok(at)

    def cuMemFree(self, at):
        (thing,) = [t for t in self.things if t[:2] == ("memory", at)]
        self.things.remove(thing)
        libc.munmap(at, thing[2])
        return self.ok()

    def cuMemGetAddressRange(self, at):
        (thing,) = {t[1:] for t in self.things if t[0] == "memory" and t[1] <= at < t[1] + t[2]}
        return self.ok(*thing)

    def cuIpcGetMemHandle(self, at):
        handle = self.CUipcMemHandle()
        handle.reserved = at.to_bytes(8, "little") + bytes(56)
        return self.ok(handle)

    def cuIpcOpenMemHandle(self, handle, flags):
        assert isinstance(handle.reserved, bytes) and len(handle.reserved) == 64 and flags == 1
        at = int.from_bytes(handle.reserved[:8], "little")
        if not any(t[:2] == ("memory", at) for t in self.things):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.things.append(("opened", at))
        return self.ok(at)

    def cuIpcCloseMemHandle(self, at):
        self.things.remove(("opened", at))
        return self.ok()

    def ok(self, *out):
        return (CUresult.CUDA_SUCCESS, *out)

    def cuInit(self, flags):
        return self.ok()

    def cuGetErrorString(self, code):
        return self.ok(b"what it means")

    def cuDeviceGetCount(self):
        return self.ok(len(UUIDS))

    def cuDeviceGet(self, ordinal):
        return self.ok(ordinal)

    def cuDeviceGetUuid(self, device):
        return self.ok(types.SimpleNamespace(bytes=UUIDS[device]))

    def cuDeviceGetName(self, length, device):
        return self.ok(b"stand-in" + bytes(length - 8))

    def cuDeviceGetAttribute(self, attribute, device):
        assert isinstance(attribute, self.CUdevice_attribute)
        return self.ok(1)

    def cuDevicePrimaryCtxRetain(self, device):
        self.things.append("context")
        return self.ok("context")

    def cuDevicePrimaryCtxRelease(self, device):
        self.things.remove("context")
        return self.ok()

    def cuCtxSetCurrent(self, context):
        return self.ok()

    def cuCtxSynchronize(self):
        return self.ok()

    def cuMemGetAllocationGranularity(self, prop, option):
        assert (prop.type, prop.location.type, prop.requestedHandleTypes) == (1, 1, HandleType(1))
        return self.ok(2 << 20)

    def cuMemCreate(self, size, prop, flags):
        fd = os.memfd_create("stand-in")
        os.truncate(fd, size)
        self.things.append(("handle", fd))
        return self.ok(fd)

    def cuMemRelease(self, handle):
        self.things.remove(("handle", handle))
        os.close(handle)
        return self.ok()

    def cuMemExportToShareableHandle(self, handle, kind, flags):
        assert isinstance(kind, HandleType) and flags == 0
        return self.ok(os.dup(handle))

    def cuMemImportFromShareableHandle(self, fd, kind):
        assert isinstance(fd, int) and isinstance(kind, HandleType)
        self.things.append(("handle", own := os.dup(fd)))
        return self.ok(own)

    def cuMemAddressReserve(self, size, align, hint, flags):
        at = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.things.append(("reserved", at, size))
        return self.ok(at)

    def cuMemAddressFree(self, at, size):
        self.things.remove(("reserved", at, size))
        libc.munmap(at, size)
        return self.ok()

    def cuMemMap(self, at, size, offset, handle, flags):
        assert os.fstat(handle).st_size == size and offset == 0
        fixed = 0x10
        assert libc.mmap(at, size, 0, mmap.MAP_SHARED | fixed, handle, 0) == at
        self.things.append(("mapped", at, size))
        return self.ok()

    def cuMemUnmap(self, at, size):
        self.things.remove(("mapped", at, size))
        return self.ok()

    def cuMemSetAccess(self, at, size, descs, count):
        assert len(descs) == count == 1 and descs[0].location.type == 1
        libc.mprotect(at, size, {1: mmap.PROT_READ, 3: mmap.PROT_READ | mmap.PROT_WRITE}[int(descs[0].flags)])
        return self.ok()

    def cuMemcpyDtoH(self, to, at, n):
        ctypes.memmove(to, at, n)
        return self.ok()

    def cuMemcpyHtoD(self, at, source, n):
        ctypes.memmove(at, source, n)
        return self.ok()


def install(driver):
    """Have it stand in for cuda.bindings.driver; what is returned ends that."""
    modules = {n: sys.modules.get(n) for n in ("cuda", "cuda.bindings", "cuda.bindings.driver")}
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = driver
    sys.modules.update({"cuda": types.ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.driver": driver})

    def remove():
        for name, m in modules.items():
            sys.modules.pop(name)
            if m is not None:
                sys.modules[name] = m

    return remove


class Gpu(unittest.TestCase):
    def setUp(self):
        self.before = open_fds()
        self.driver = Driver()
        self.remove = install(self.driver)

    def tearDown(self):
        self.remove()
        self.assertEqual(self.driver.things, [], "things of the driver are left")
        self.assertEqual(open_fds(), self.before, "descriptors are left")

    def test_shared(self):
        with memory.Cuda.make((5 << 20) + 3, 2 << 20, device=1) as made:
            demo.fill(made, 9)
            offer = made.offer("producer", gpufd.READ_WRITE, demo.pack_data(made.size, 9))
            offer.check()
            self.assertEqual((offer.device, offer.chunks), (UUIDS[1], 3))
            self.assertEqual([os.get_inheritable(fd) for fd in made.fds], [False] * 3)
            for access in (gpufd.READ_ONLY, gpufd.READ_WRITE):
                with memory.Cuda.take(offer, made.fds, access) as taken:
                    self.assertEqual(taken.ordinal, 1)
                    self.assertEqual(demo.compare(taken, 9, print), "")
                    view = taken.integers().__cuda_array_interface__
                    self.assertEqual((view["shape"], view["data"]), (((5 << 18),), (taken.ptr, False)))
            for lie, device in (({"device": bytes(16)}, None), ({}, 0), ({"chunk_size": 3 << 20, "granularity": 1 << 20}, None)):
                with self.assertRaises(gpufd.Error):
                    memory.Cuda.take(gpufd.replace(offer, **lie), made.fds, gpufd.READ_ONLY, device)

    def test_every_step_fails(self):
        for call in ("cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuDeviceGetUuid",
                     "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
                     "cuMemSetAccess"):  # fmt: skip
            self.driver.fail_at = call
            with self.subTest(call), self.assertRaisesRegex(gpufd.Error, f"^{call}: CUDA_ERROR_INVALID_VALUE .1.: what it means$"):
                memory.Cuda.make(5 << 20, 2 << 20)
        self.driver.fail_at = None
        with memory.Cuda.make(5 << 20, 2 << 20) as made:
            offer = made.offer("x", gpufd.READ_ONLY, b"")
            for call in ("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuDeviceGetCount"):
                self.driver.fail_at = call
                with self.subTest(call), self.assertRaises(gpufd.Error):
                    memory.Cuda.take(offer, made.fds, gpufd.READ_ONLY)
                self.driver.fail_at = None

    def test_not_supported(self):
        """Of a device, of memory and of importing it says what this machine cannot; of a
        mapping, that what came is not what was said: a GPU does so for another size."""
        self.driver.code = CUresult.CUDA_ERROR_NOT_SUPPORTED
        for call, exit_ in (("cuInit", 3), ("cuDevicePrimaryCtxRetain", 3), ("cuMemCreate", 3), ("cuMemExportToShareableHandle", 3),
                            ("cuMemMap", 1), ("cuMemSetAccess", 1)):  # fmt: skip
            self.driver.fail_at = call
            with self.subTest(call), self.assertRaises(gpufd.Error) as caught:
                memory.Cuda.make(1)
            self.assertEqual(caught.exception.exit, exit_, call)
        self.driver.fail_at = None
        with memory.Cuda.make(1) as made:
            for call, exit_ in (("cuMemImportFromShareableHandle", 3), ("cuMemMap", 1)):
                self.driver.fail_at = call
                with self.subTest(call), self.assertRaises(gpufd.Error) as caught:
                    memory.Cuda.take(made.offer("x", gpufd.READ_ONLY, b""), made.fds, gpufd.READ_ONLY)
                self.assertEqual(caught.exception.exit, exit_, call)
            self.driver.fail_at = None

    def test_legacy(self):
        with memory.Cuda.make_legacy((5 << 20) + 3, device=1) as made:
            demo.fill(made, 9)
            offer = made.offer("producer", gpufd.READ_ONLY, b"")
            offer.check()
            self.assertEqual((offer.access, offer.chunks, offer.chunk_size, offer.offset), (gpufd.READ_WRITE, 1, 6 << 20, 0))
            self.assertEqual(gpufd.decode(gpufd.encode(offer)), offer)
            with memory.Cuda.take(offer, [], gpufd.READ_ONLY) as taken:
                self.assertEqual((taken.ordinal, taken.access), (1, gpufd.READ_WRITE))
                self.assertEqual(demo.compare(taken, 9, print), "")
                self.assertEqual(taken.integers().__cuda_array_interface__["data"], (made.ptr, False))
            with memory.Cuda.take(gpufd.replace(offer, device=bytes(16)), [], gpufd.READ_ONLY) as taken:  # hidden here
                self.assertEqual(taken.ordinal, 0)
            part = gpufd.replace(offer, size=7, offset=4093)
            with memory.Cuda.take(part, [], gpufd.READ_ONLY) as taken:
                self.assertEqual(taken.read(0, 7), made.read(4093, 7))
            for lie, device in (({}, 0), ({"device": bytes(16)}, 0), ({"handle": bytes(64)}, None), ({"chunk_size": 8 << 20}, None)):
                with self.subTest(str(lie)), self.assertRaises(gpufd.Error):
                    memory.Cuda.take(gpufd.replace(offer, **lie), [], gpufd.READ_ONLY, device)
            for call in ("cuIpcOpenMemHandle", "cuMemGetAddressRange", "cuDevicePrimaryCtxRetain"):
                self.driver.fail_at = call
                with self.subTest(call), self.assertRaises(gpufd.Error):
                    memory.Cuda.take(offer, [], gpufd.READ_ONLY)
                self.driver.fail_at = None
        for call in ("cuMemAlloc", "cuMemGetAddressRange", "cuIpcGetMemHandle"):
            self.driver.fail_at = call
            with self.subTest(call), self.assertRaises(gpufd.Error):
                memory.Cuda.make_legacy(1)
        self.driver.fail_at = None

    def test_legacy_by_library(self):
        """An array of a library's pool lies somewhere in an allocation of that."""
        _, pool = self.driver.cuMemAlloc(2 << 20)
        calls = []

        class CUDARuntimeError(RuntimeError):
            pass

        def open_(handle, flags):
            calls.append(("open", flags))
            if handle == bytes(64):
                raise CUDARuntimeError("cudaErrorInvalidValue")
            return int.from_bytes(handle[:8], "little")

        runtime = types.SimpleNamespace(
            ipcGetMemHandle=lambda at: at.to_bytes(8, "little") + bytes(56), ipcOpenMemHandle=open_,
            ipcCloseMemHandle=lambda at: calls.append(("close", at)), CUDARuntimeError=CUDARuntimeError)  # fmt: skip
        cupy = types.ModuleType("cupy")
        cupy.cuda = types.SimpleNamespace(runtime=runtime, Device=lambda n: contextlib.nullcontext())
        cupy.uint8 = "u1"
        cupy.empty = lambda n, dtype: types.SimpleNamespace(data=types.SimpleNamespace(ptr=pool + 512))
        sys.modules["cupy"] = cupy
        self.addCleanup(sys.modules.pop, "cupy")
        with memory.Cuda.make_legacy(100, library="cupy") as made:
            offer = made.offer("x", gpufd.READ_WRITE, b"")
            self.assertEqual((offer.offset, offer.chunk_size, made.ptr), (512, 2 << 20, pool + 512))
            with memory.Cuda.take(offer, [], gpufd.READ_ONLY, library="cupy") as taken:
                self.assertEqual(taken.ptr, made.ptr)
            with self.assertRaisesRegex(gpufd.Error, "ipcOpenMemHandle: cudaErrorInvalidValue"):
                memory.Cuda.take(gpufd.replace(offer, handle=bytes(64)), [], gpufd.READ_ONLY, library="cupy")
        self.assertEqual(calls, [("open", 1), ("close", pool), ("open", 1)])
        self.driver.cuMemFree(pool)

    def test_without_bindings(self):
        sys.modules["cuda.bindings.driver"] = None
        with self.assertRaises(gpufd.CannotHere) as caught:
            memory.Cuda.make(1)
        self.assertEqual(caught.exception.exit, 3)
        sys.modules["cuda.bindings.driver"] = self.driver


if __name__ == "__main__":
    unittest.main()
