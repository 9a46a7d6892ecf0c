"""The calls of libcuda, against a stand-in in C that has its names and prototypes.

The tests run in a process of their own, whose loader finds the stand-in as libcuda.so.1.
What a GPU does is in gpu.py.
"""

import ctypes
import mmap
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import types
import unittest
import unittest.mock
from dataclasses import replace

import common
import gpufd
from gpufd.memory import cuda as _cuda
from gpufd.keeper import put as _put
from gpufd.wire import records as wire
from gpufd.memory.cuda import CudaMemory
from gpufd.keeper.deposit import Deposit, memory_digest

HERE = pathlib.Path(__file__).resolve().parent
INSIDE = "GPUFD_TEST_CHILD"


class StandIn(unittest.TestCase):
    @unittest.skipIf(os.environ.get(INSIDE), "it is the other process")
    def test_with_the_stand_in(self):
        if not shutil.which("cc"):
            common.missing("cc", "there is no C compiler here")
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", directory + "/libcuda.so.1", HERE / "fakecuda.c"], check=True)
            env = {**os.environ, INSIDE: "1", "LD_LIBRARY_PATH": directory, "GPUFD_DRIVER": "cuda"}
            p = subprocess.run([sys.executable, "-B", "-m", "unittest", "-v", "test_cuda"], cwd=HERE, env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=300)  # fmt: skip
        self.assertEqual(p.returncode, 0, p.stdout)
        self.assertIn("test_every_step_fails", p.stdout)


@unittest.skipUnless(os.environ.get(INSIDE), "in the process with the stand-in")
class Gpu(common.Scene):
    @classmethod
    def setUpClass(cls):
        cls.fake = ctypes.CDLL("libcuda.so.1")
        cls.fake.fake_log.restype = ctypes.c_char_p

    def setUp(self):
        super().setUp()
        os.environ["GPUFD_DRIVER"] = "cuda"

    def tearDown(self):
        self.fail_at("")
        self.assertEqual((self.fake.fake_count(), self.fake.fake_depth()), (0, 0), "things of the driver are left")

    def fail_at(self, name, code=1):
        _cuda.forget()
        self.fake.fake_fail(name.encode(), code)

    def test_shared(self):
        with gpufd.allocate((5 << 20) + 3, chunk=2 << 20, device=1, capacity=9 << 20) as made:
            self.assertEqual((made.chunks, made.ordinal, made.uuid), (3, 1, bytes(range(1, 17))))
            made.write((2 << 20) - 2, b"abcd")
            self.assertEqual([os.get_inheritable(fd) for fd in made.fds], [False] * 3)
            with gpufd.offer("x", made, gpufd.READ_WRITE, socket=self.path), gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att:
                self.assertEqual((att.device, att.read((2 << 20) - 2, 4)), (1, b"abcd"))
                att.write(0, b"z")
                self.assertEqual(made.read(0, 1), b"z")
                with gpufd.attach(socket=self.path) as reader:
                    self.assertEqual(reader.memory.access, gpufd.READ_ONLY)
                    with self.assertRaises(gpufd.ReadOnlyError):
                        reader.write(0, b"z")
            at = made.ptr
            made.grow((5 << 20) + 4)  # which takes no chunk more
            made.grow(8 << 20)
            self.assertEqual((made.ptr, made.chunks, made.read((2 << 20) - 2, 4)), (at, 4, b"abcd"))
            made.write((8 << 20) - 1, b"!")
            with self.assertRaises(gpufd.UsageError):
                made.grow(11 << 20)
            made.protect(gpufd.READ_ONLY)
            with self.assertRaises(gpufd.ReadOnlyError):
                made.write(0, b"")

    def test_devices(self):
        """By the UUID that the driver says, or as PyTorch says it."""
        for device in ("cuda:1", "GPU-01020304-0506-0708-090a-0b0c0d0e0f10"):
            with gpufd.allocate(1, device=device) as made, gpufd.offer("x", made, socket=self.path), gpufd.attach(socket=self.path, device=device) as att:
                self.assertEqual((made.ordinal, att.device), (1, 1))
                with common.raises(self, gpufd.MismatchError, "device"):
                    gpufd.attach(socket=self.path, device="cuda")
        with common.raises(self, gpufd.MismatchError, "device", "CUDA_VISIBLE_DEVICES"):
            gpufd.allocate(1, device="GPU-ffffffff-0506-0708-090a-0b0c0d0e0f10")

    def test_a_part_that_grows(self):
        """As a put lets it grow, tensor by tensor: mostly within a chunk, whose size may be no
        multiple of the granularity. The driver sets no access of 0 bytes."""
        client = types.SimpleNamespace(book=lambda *args, **options: None, timeout=common.PATIENCE)
        for chunk, size in ((0, 12_345), (0, 5 << 20), (3_000_000, 3_500_000), (3_000_000, 9_000_001), (2 << 20, 5 << 20), (1, 4 << 20)):
            deposit = Deposit(client, "x", size, device=1, chunk=chunk)
            for part in sorted((1, 2, 100, 4096, size // 3, size // 2, size - 1, size)):
                memory = deposit.grow(part)
                self.assertGreaterEqual(memory.size, part)
            with self.subTest(chunk=chunk, size=size):
                self.assertEqual((memory.size, memory.chunks), (size, -(-size // memory.chunk)))
                self.assertEqual(memory.read(), bytes(size))
            deposit.close()

    def test_lies(self):
        with gpufd.allocate(5 << 20, chunk=2 << 20) as made:
            offer = made.offer("x")
            for error, lie, device in (("device", {"device": bytes(16)[:15] + b"x"}, None), ("device", {}, 1),
                                       ("descriptor", {"chunk_size": 3 << 20, "granularity": 1 << 20}, None),
                                       ("not-imported", {"chunk_size": 4 << 20}, None)):  # fmt: skip
                with self.subTest(str(lie)), common.raises(self, gpufd.Error, error):
                    CudaMemory.take(replace(offer, **lie), made.fds, gpufd.READ_ONLY, device)
            with self.assertRaisesRegex(gpufd.Error, "descriptor 0"):
                CudaMemory.take(offer, [0], gpufd.READ_ONLY)

    def test_every_step_fails(self):
        """Each failure names the call, its number and what it means, and leaves nothing."""
        for call in ("cuDeviceGet", "cuDeviceGetAttribute", "cuCtxPushCurrent", "cuDeviceGetUuid", "cuDeviceGetName",
                     "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap",
                     "cuMemSetAccess"):  # fmt: skip
            self.fail_at(call + {"cuCtxPushCurrent": "_v2", "cuDeviceGetUuid": "_v2"}.get(call, ""))
            with self.subTest(call), self.assertRaisesRegex(gpufd.DriverError, rf"^{call}: CUDA_ERROR_INVALID_VALUE \(1\): what it means$") as caught:
                gpufd.allocate(5 << 20, chunk=2 << 20).close()
            self.assertEqual((caught.exception.function, caught.exception.number, caught.exception.name), (call, 1, "CUDA_ERROR_INVALID_VALUE"))
            self.fail_at("")
            self.assertEqual(self.fake.fake_count(), 0, call)
        with gpufd.allocate(5 << 20, chunk=2 << 20) as made:
            offer, before = made.offer("x"), self.fake.fake_count()
            for call in ("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"):
                self.fail_at(call)
                with self.subTest(call), common.raises(self, gpufd.DriverError, "not-imported") as caught:
                    CudaMemory.take(offer, made.fds, gpufd.READ_ONLY)
                self.assertEqual(caught.exception.function, call)
                self.fail_at("")
                self.assertEqual(self.fake.fake_count(), before, call)

    def test_addresses_stay(self):
        """Detached memory leaves its address alone; each step back may fail, and can be tried again."""
        with gpufd.allocate(5 << 20, chunk=2 << 20, device=1) as made, gpufd.reserve(7 << 20, device=1) as at:
            made.write(0, b"first")
            self.assertEqual((at.size, at.driver), (8 << 20, gpufd.CUDA))
            offer, before = made.offer("x"), self.fake.fake_count()
            for where in (None, at):
                taken = CudaMemory.take(offer, made.fds, gpufd.READ_ONLY, at=where)
                ptr, array = taken.ptr, taken.view("U8", 5)
                there = self.fake.fake_count()
                self.fail_at("cuCtxSynchronize")
                with self.assertRaises(gpufd.DriverError):
                    taken.detach()
                self.fail_at("")
                self.assertEqual((taken.detached, self.fake.fake_count()), (False, there), "it waits for the device first")
                self.assertEqual(array.__cuda_array_interface__["data"], (ptr, True))
                taken.detach()
                self.assertEqual(self.fake.fake_count(), there - 6, "three chunks are unmapped and released")
                for call in (array.tobytes, array.__dlpack__, lambda: array.ptr, lambda: array.__cuda_array_interface__, lambda: taken.read(0, 1), array.copy):
                    common.error_of(self, gpufd.ClosedError, "detached", call)
                for call in ("cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"):
                    self.fail_at(call)
                    with self.subTest(call), common.raises(self, gpufd.DriverError, "not-imported"):
                        taken.attach_again(offer, made.fds)
                    self.fail_at("")
                    self.assertEqual(self.fake.fake_count(), there - 6, call)
                taken.attach_again(offer, made.fds)
                self.assertEqual((taken.ptr, array.ptr, array.tobytes(), self.fake.fake_count()), (ptr, ptr, b"first", there))
                array.release()
                taken.close()
                self.assertEqual(self.fake.fake_count(), before)
            with gpufd.allocate(2 << 20) as elsewhere, CudaMemory.take(offer, made.fds, gpufd.READ_ONLY) as taken:
                taken.detach()
                with common.raises(self, gpufd.MismatchError, "device"):
                    taken.attach_again(elsewhere.offer("x"), elsewhere.fds)

    def test_restored_on_other_devices(self):
        """The driver's checkpoint may have exchanged the devices meanwhile."""
        with gpufd.allocate(2 << 20, device=1) as made, CudaMemory.take(made.offer("x"), made.fds, gpufd.READ_ONLY) as taken:
            taken.detach()
            there = taken.cu.uuids()
            with unittest.mock.patch.object(type(taken.cu), "uuids", lambda cu: there[::-1]), common.raises(self, gpufd.MismatchError, "device"):
                taken.attach_again(made.offer("x"), made.fds)
            taken.attach_again(made.offer("x"), made.fds)

    def test_a_digest_is_work_with_the_memory(self):
        """Another thread may not detach it meanwhile."""
        test = self

        class Digester:
            def __init__(self, cu, ordinal): ...

            def add(self, ptr, offset, size):
                with common.raises(test, gpufd.InUseError, "in-use", "a digest"):
                    taken.detach()

            def digest(self):
                return "gpufd-d1:x"

            def close(self): ...

        with gpufd.allocate(2 << 20) as made, CudaMemory.take(made.offer("x"), made.fds, gpufd.READ_ONLY) as taken:
            with unittest.mock.patch("gpufd.memory.devicedigest.DeviceDigester", Digester):
                self.assertEqual(memory_digest(taken, taken.size), "gpufd-d1:x")
            taken.detach()

    def test_moves(self):
        with gpufd.allocate(4 << 20, chunk=2 << 20) as made, gpufd.reserve(4 << 20) as at:
            made.write(0, b"first")
            with CudaMemory.take(made.offer("x"), made.fds, gpufd.READ_ONLY) as taken:
                ptr, there = taken.ptr, self.fake.fake_count()
                for call in ("cuMemMap", "cuMemSetAccess", "cuCtxSynchronize"):
                    self.fail_at(call)
                    with self.subTest(call), self.assertRaises(gpufd.DriverError):
                        taken.move(at)
                    self.fail_at("")
                    self.assertEqual((taken.ptr, taken.read(0, 5), self.fake.fake_count()), (ptr, b"first", there))
                taken.move(at)
                self.assertEqual((taken.ptr, taken.read(0, 5)), (at.ptr, b"first"))
                self.assertEqual(self.fake.fake_count(), there - 1, "its own address is given back")
                with common.raises(self, gpufd.InUseError, "in-use"):
                    at.close()
            at.close()

    def test_not_supported(self):
        """Of a device and of importing it says what this machine cannot; of a mapping, that
        what came is not what was said."""
        for call, exit_ in (("cuMemCreate", 3), ("cuMemExportToShareableHandle", 3), ("cuMemMap", 1), ("cuMemSetAccess", 1)):
            self.fail_at(call, 801)
            with self.subTest(call), self.assertRaises(gpufd.DriverError) as caught:
                gpufd.allocate(1)
            self.assertEqual(caught.exception.exit, exit_, call)
            self.assertEqual(caught.exception.reason == "unavailable", exit_ == 3)
            self.fail_at("")
        with gpufd.allocate(1) as made:
            for call, exit_ in (("cuMemImportFromShareableHandle", 3), ("cuMemMap", 1)):
                self.fail_at(call, 801)
                with self.subTest(call), self.assertRaises(gpufd.DriverError) as caught:
                    CudaMemory.take(made.offer("x"), made.fds, gpufd.READ_ONLY)
                self.assertEqual(caught.exception.exit, exit_, call)
                self.fail_at("")

    def test_missing_function(self):
        with gpufd.allocate(1) as made, self.assertRaisesRegex(gpufd.UnavailableError, "the driver has no cuMemGetInfo_v2"):
            made.cu.function("cuMemGetInfo_v2")

    def test_legacy(self):
        with gpufd.allocate((5 << 20) + 3, device=1, handle="legacy") as made:
            made.write(0, b"legacy memory")
            offer = made.offer("x")
            offer.check()
            self.assertEqual((offer.access, offer.chunks, offer.chunk_size, offer.offset), (gpufd.READ_WRITE, 1, 6 << 20, 0))
            self.assertEqual(wire.decode(wire.encode(offer)), offer)
            with gpufd.Server(self.path, timeout=10) as server:
                server.offer("x", made)
                with common.raises(self, gpufd.RefusedError, "not-understood"):
                    gpufd.attach(socket=self.path)
                with gpufd.attach(socket=self.path, legacy=True) as att:
                    self.assertEqual((att.access, att.device, att.read(0, 6)), (gpufd.READ_WRITE, 1, b"legacy"))
                    with common.raises(self, gpufd.MismatchError, "handle"):
                        att.resume()
                    att.report()
                    self.assertTrue(att.memory.closed, "it is closed before the verdict")
            part = replace(offer, size=6, offset=7)
            with CudaMemory.take(part, [], gpufd.READ_ONLY) as taken:
                self.assertEqual(taken.read(), b"memory")
            with CudaMemory.take(replace(offer, device=bytes(15) + b"x"), [], gpufd.READ_ONLY) as taken:  # hidden here
                self.assertEqual(taken.ordinal, 0)
            for lie, device in (({}, 0), ({"handle": bytes(64)}, None), ({"chunk_size": 8 << 20}, None)):
                with self.subTest(str(lie)), self.assertRaises(gpufd.Error):
                    CudaMemory.take(replace(offer, **lie), [], gpufd.READ_ONLY, device)

    def test_legacy_is_waited_for(self):
        """A producer that takes legacy memory back waits until it is closed, and not longer."""
        with gpufd.allocate(1 << 20, handle="legacy") as made:
            server = gpufd.Server(self.path, timeout=10)
            offering = server.offer("x", made)
            att = gpufd.attach(socket=self.path, legacy=True)
            (lease,) = offering.leases
            closing = threading.Thread(target=offering.close)
            closing.start()
            self.assertTrue(att.wait(10))
            closing.join(0.1)
            self.assertTrue(closing.is_alive(), "it did not wait until the memory is closed")
            att.close()
            closing.join(10)
            self.assertFalse(closing.is_alive())
            common.is_error(self, lease.err, gpufd.LeaseEndedError, "withdrawn")
            server.close()
            server = gpufd.Server(self.path, timeout=0.5)
            offering = server.offer("x", made)
            with gpufd.attach(socket=self.path, legacy=True):
                (lease,) = offering.leases
                offering.close()
                common.is_error(self, lease.err, gpufd.VerdictError, "still-open")
                self.assertIn(f"pid {os.getpid()}", str(lease.err))
            server.close()

    def test_arrays(self):
        """What frameworks read of an array, and which stream waits for our copies."""
        with gpufd.allocate(4 << 20) as made:
            made.write(0, bytes(range(64)))
            with gpufd.offer("x", made, socket=self.path), gpufd.attach(socket=self.path) as att:
                view = att.view("F32", (2, 4), 16)
                self.assertEqual(view.__dlpack_device__(), (2, 0))
                described = view.__cuda_array_interface__
                self.assertEqual(described, {"shape": (2, 4), "typestr": "<f4", "strides": None, "data": (att.ptr + 16, True), "version": 3, "stream": None})
                with self.assertRaisesRegex(gpufd.InUseError, "array interface"):
                    att.close()
                view.release()
                self.assertFalse(hasattr(att.view("BF16"), "__cuda_array_interface__"))
                self.assertFalse(hasattr(view, "__array_interface__"))
                copy = att.copy()
                self.assertEqual(copy.__cuda_array_interface__["stream"], 1)
                self.assertFalse(copy.__cuda_array_interface__["data"][1])
                before = self.fake.fake_log().decode()
                for stream in (None, 1, 2, -1, 0x7007):
                    copy.__dlpack__(stream=stream)
                self.assertEqual(self.fake.fake_log().decode()[len(before):], "112" + str(0x7007 % 10))
                for stream in (0, -2, True, "1"):
                    with self.assertRaises(BufferError):
                        copy.__dlpack__(stream=stream)
                with self.assertRaises(gpufd.ExportError):
                    copy.memoryview()
                self.assertEqual(copy.view("U8", 64).tobytes(), bytes(range(64)))
                copy.release()
                copy.memory.close()
                att.__cuda_array_interface__
                with self.assertRaisesRegex(gpufd.InUseError, r"att\.view\(\)"):
                    att.close()
                att.close(force=True)

    def test_counters(self):
        with gpufd.allocate(256) as made:
            made.write(0, bytes(256))
            with gpufd.counter(made, 1) as ours, gpufd.counter(made, 1) as theirs:
                theirs.signal(3)
                ours.wait(3, 1)
                with self.assertRaises(gpufd.TimedOutError):
                    ours.wait(5, 0.05)
                self.assertEqual(int.from_bytes(made.read(128, 8), "little"), (1 << 63) - 1, "the stream was freed")
            made.write(0, (7).to_bytes(8, "little") + (1).to_bytes(8, "little"))  # as a stream that was given up writes
            with gpufd.counter(made, 0) as c:
                for _ in range(2):  # the first is known to be of no use, and so are all later ones
                    with common.raises(self, gpufd.ClosedError, "given-up", "given up"):
                        c.wait(7, common.PATIENCE)
            made.write(0, bytes(256))
            for call in ("cuStreamCreate", "cuStreamWaitValue64_v2", "cuStreamQuery"):
                self.fail_at(call)
                with self.subTest(call), self.assertRaises(gpufd.DriverError), gpufd.counter(made, 0) as c:
                    c.wait(1, 0.01)
                self.fail_at("")
                made.write(0, bytes(256))
            with gpufd.IPCEvent(made) as ours, gpufd.IPCEvent(made, ours.handle) as theirs:
                theirs.record()
                ours.wait(1)
            with self.assertRaises(gpufd.DriverError):
                gpufd.IPCEvent(made, bytes(64))

    def test_work_that_has_failed(self):
        """What the driver says of it is raised by close, and nothing is left."""
        made = gpufd.allocate(4 << 20)
        with gpufd.offer("x", made, socket=self.path):
            att = gpufd.attach(socket=self.path)
            self.fail_at("cuCtxSynchronize", 700)
            with self.assertRaisesRegex(gpufd.DriverError, r"cuCtxSynchronize: .* \(700\)"):
                att.close()
            self.assertTrue(att.memory.closed)
            self.assertIsInstance(att.err, gpufd.ClosedError)
            self.fail_at("")
        made.close()

    def test_put_of_arrays_of_a_gpu(self):
        """By CUDA's interface, or by DLPack where that has no name for the type: on the device, without the host."""
        with gpufd.allocate(4 << 20) as theirs, gpufd.allocate(4 << 20) as ours:
            theirs.write(0, bytes(range(64)))
            data = {"a": theirs.view("F32", (2, 2), 16), "b": theirs.view("BF16", (3,), 2), "c": theirs.view("BOOL", (), 5)}
            source = _put._source(data)
            self.assertEqual([t[:3] for t in source.table.tensors], [("a", "F32", (2, 2)), ("b", "BF16", (3,)), ("c", "BOOL", ())])
            with unittest.mock.patch.object(type(ours), "write", None):
                source.write(ours)
            self.assertEqual([ours.read(t.offset, t.bytes) for t in source.table.tensors], [bytes(range(16, 32)), bytes(range(2, 8)), b"\5"])
            for view in data.values():
                view.release()
            del data, source, view
            with gpufd.allocate(4096, driver="soft") as host, self.assertRaisesRegex(gpufd.UsageError, "software driver"):
                _put._source(theirs.view("BF16", (3,))).write(host)

    def test_bytes_are_not_copied(self):
        """What is written comes from where it is: of bytes, of a slice, and of memory that nobody can write."""
        with gpufd.allocate(4 << 20) as made, open("/proc/self/exe", "rb") as f, mmap.mmap(f.fileno(), 8192, prot=mmap.PROT_READ) as m:
            for at, data in enumerate((b"bytes", bytearray(b"array"), memoryview(b"a slice")[2:], memoryview(m)[3:4099])):
                made.write(at * 8192, data)
                self.assertEqual(made.read(at * 8192, len(data)), bytes(data))
                if isinstance(data, memoryview):
                    data.release()
            made.write(0, b"")
            with self.assertRaisesRegex(gpufd.UsageError, "contiguous"):
                made.write(0, memoryview(b"abcd")[::2])
            with self.assertRaises(gpufd.UsageError):
                made.write(made.size - 1, b"ab")
            large = bytearray(64 << 20)
            with gpufd.allocate(len(large)) as other:
                tracemalloc.start()
                other.write(0, large)
                _, most = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            self.assertLess(most, 1 << 20)

    def test_fork(self):
        """CUDA does not work in a child: it is told so, and not by a number of the driver's."""
        with gpufd.allocate(1) as made:
            child = os.fork()
            if child == 0:
                try:
                    made.read()
                except gpufd.ClosedError:
                    try:
                        gpufd.allocate(1)
                    except gpufd.ClosedError:
                        os._exit(7)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)


if __name__ == "__main__":
    unittest.main()
