"""Arrays: types and shapes, DLPack to the letter, NumPy, and who keeps what alive."""

import array
import ctypes
import gc
import os
import threading
import time
import unittest
import unittest.mock

import common
import gpufd
from gpufd import channel
from gpufd.memory import dlpack as _dlpack
from gpufd.keeper import put as _put
from gpufd.keeper.version import Attached

SIZE = 4 << 20

api = ctypes.pythonapi
api.PyCapsule_GetName.argtypes, api.PyCapsule_GetName.restype = [ctypes.py_object], ctypes.c_char_p
api.PyCapsule_GetPointer.argtypes, api.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
api.PyCapsule_SetName.argtypes, api.PyCapsule_SetName.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
USED = b"used_dltensor"


class Taken:
    """What a framework makes of a capsule: it renames it, and calls the deleter once."""

    def __init__(self, capsule):
        self.name = api.PyCapsule_GetName(capsule)
        kind = _dlpack._ManagedVersioned if self.name == b"dltensor_versioned" else _dlpack._Managed
        self.address = api.PyCapsule_GetPointer(capsule, self.name)
        self.managed = kind.from_address(self.address)
        assert api.PyCapsule_SetName(capsule, USED) == 0
        self.tensor = self.managed.dl_tensor

    def numbers(self, pointer):
        return [pointer[i] for i in range(self.tensor.ndim)]

    def delete(self):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.managed.deleter)(self.address)


class Offered(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(SIZE, chunk=2 << 20)
        self.addCleanup(self.memory.close)
        self.memory.write(0, bytes(range(256)) * 16)
        server = gpufd.Server(self.path)
        self.addCleanup(server.close)
        server.offer("x", self.memory, gpufd.READ_WRITE)

    def attach(self, **options):
        att = gpufd.attach(socket=self.path, **options)
        self.addCleanup(att.close, True)
        return att


class NumPy(Offered):
    """What NumPy would silently make an object of says what it is."""

    def test_what_numpy_cannot_take(self):
        numpy = common.need_numpy()
        att = self.attach()
        for dtype, says in (("BF16", "view it as U16"), ("F8_E4M3", "view it as U8")):
            with self.assertRaisesRegex(gpufd.ExportError, f"NumPy has no {dtype}: {says}"):
                numpy.asarray(att.view(dtype))
        for what in (self.memory, Attached.__new__(Attached)):
            with self.assertRaisesRegex(TypeError, "is no array"):
                numpy.asarray(what)
            with self.assertRaisesRegex(TypeError, "is no array"):
                numpy.asarray([what])
        self.assertEqual(numpy.asarray(att).shape, (SIZE,))
        view = att.view("U16", (2, 3))
        self.assertEqual(numpy.asarray(view).tolist(), view.__array__().tolist())
        self.assertEqual(view.__array__("u4").dtype, numpy.uint32)
        with channel.Writer("x", socket=self.path + "2", slots=2, slot_size=8) as w, channel.Reader(socket=self.path + "2") as r:
            w.send(b"x")
            with r.next() as frame:
                for what in (frame, w.acquire()):
                    with self.assertRaisesRegex(TypeError, "is no array"):
                        numpy.asarray(what)

    def test_memory_of_a_gpu(self):
        """NumPy cannot read it; what can asks for another interface first."""
        att = self.attach()
        view = att.view()
        with unittest.mock.patch.object(self.memory.__class__, "driver", gpufd.CUDA), self.assertRaisesRegex(gpufd.ExportError, "memory of a GPU"):
            view.__array__()


class Foreign:
    """Another library's array, which has DLPack alone."""

    def __init__(self, array, kind=1, versioned=True, fails=None):
        self.array, self.kind, self.versioned, self.fails = array, kind, versioned, fails

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, stream=None, **how):
        if how and not self.versioned:
            raise TypeError("no such argument")
        if self.fails:
            raise self.fails
        return self.array.__dlpack__(max_version=(1, 0) if self.versioned else None)


class Kept(common.Scene):
    """What put makes of arrays: their types and shapes stay, or they are refused."""

    def made(self, data):
        """The table and the bytes that would be kept."""
        source = _put._source(data)
        with gpufd.allocate(max(1, source.table.size)) as memory:
            source.write(memory)
            there = memory.read(0, source.table.size)
        return [(t.name, t.dtype, t.shape, there[t.offset : t.offset + t.bytes]) for t in source.table.tensors], there

    def alone(self, data):
        (tensor,), there = self.made(data)
        self.assertEqual(tensor[3], there)
        return tensor[:3]

    def test_types_and_shapes_stay(self):
        self.assertEqual(self.made(b"abc"), ([], b"abc"))
        self.assertEqual(self.made(bytearray(b"abc")), ([], b"abc"))
        self.assertEqual(self.made(memoryview(b"abc")), ([], b"abc"))
        self.assertEqual(self.alone(array.array("d", [1, 2])), ("array", "F64", (2,)))
        self.assertEqual(self.alone(array.array("l", [1, 2])), ("array", "I64", (2,)))
        self.assertEqual(self.alone(((ctypes.c_int16 * 3) * 2)()), ("array", "I16", (2, 3)))
        self.assertEqual(self.alone(memoryview(bytes(8)).cast("f", (2, 1))), ("array", "F32", (2, 1)))
        numpy = common.need_numpy()
        for kind, name in (("u1", "U8"), ("?", "BOOL"), ("f2", "F16"), ("<i8", "I64"), ("c8", "C64")):
            self.assertEqual(self.alone(numpy.ones((2, 1, 3), kind)), ("array", name, (2, 1, 3)))
        self.assertEqual(self.alone(numpy.float32(5)), ("array", "F32", ()))
        self.assertEqual(self.alone(numpy.ones((1, 4), "f4").T[:, :1]), ("array", "F32", (4, 1)))  # strides of a dimension of 1 are nobody's
        named, there = self.made({"a": numpy.arange(3, dtype="<u2"), "b": numpy.ones((2, 2), "f8")})
        self.assertEqual([t[:3] for t in named], [("a", "U16", (3,)), ("b", "F64", (2, 2))])
        self.assertEqual((named[0][3], named[1][3]), (b"\0\0\1\0\2\0", numpy.ones(4).tobytes()))

    def test_refused(self):
        numpy = common.need_numpy()
        masked = numpy.ma.masked_array([1, 2, 3], [0, 1, 0])
        for data, says in (
            (masked, "a masked array, whose mask would be lost"), ({"x": masked}, "x: a masked array"),
            (numpy.ones((4, 4))[:, ::2], "contiguous"), (numpy.ones((2, 2)).T, "contiguous"), (numpy.ones(2, ">f4"), ">f4"),
            (numpy.array(["2020"], "M8[D]"), "M8"), (numpy.zeros(2, [("a", "f4")]), "has no name"), (numpy.array([None]), "O"),
            ({"x": b"bytes"}, "x: bytes have no type"), ({5: numpy.ones(1)}, "name of an array is text"), (memoryview(b"abcd")[::2], "contiguous"),
            (array.array("u", "ab"), "format"), (object(), "object is no path"),
        ):  # fmt: skip
            with self.subTest(says), self.assertRaisesRegex(gpufd.UsageError, says):
                _put._source(data)

    def test_dlpack(self):
        with gpufd.allocate(4096) as memory:
            memory.write(0, bytes(range(256)))
            for versioned in (True, False):
                for kind, shape in (("F32", (2, 3)), ("BF16", (4,)), ("BOOL", (1, 1)), ("F8_E5M2", (2,)), ("I64", (0, 3)), ("U8", ())):
                    self.assertEqual(self.alone(Foreign(memory.view(kind, shape, 8), versioned=versioned)), ("array", kind, shape))
            self.assertEqual(self.made({"x": memory.view("U8", (4,), 8)})[0], [("x", "U8", (4,), bytes(range(8, 12)))])
            self.assertEqual(self.alone(memory.view("BF16", (2, 2))), ("array", "BF16", (2, 2)))
            for what, says in (
                (Foreign(memory.view(), fails=BufferError("not today")), "Foreign cannot be exported by DLPack: not today"),
                (Foreign(memory.view(), fails=RuntimeError("never")), "x: Foreign cannot be .*never"),
            ):
                with self.assertRaisesRegex(gpufd.UsageError, says):
                    _put._source({"x": what})
            gc.collect()
            self.assertEqual(memory.views(), [])

    def test_tensors_of_pytorch(self):
        try:
            import torch
        except ImportError:
            common.missing("python", "there is no PyTorch here")
        for t, name in ((torch.ones(2, 3), "F32"), (torch.ones(4, dtype=torch.bfloat16), "BF16"), (torch.ones(2, dtype=torch.bool), "BOOL"),
                        (torch.ones(4, dtype=torch.uint8), "U8"), (torch.ones(4, 2)[2:], "F32"), (torch.tensor(5), "I64")):  # fmt: skip
            self.assertEqual(self.alone(t), ("array", name, tuple(t.shape)))
        both = {"a": torch.arange(3, dtype=torch.int32), "b": torch.ones(1, dtype=torch.float64)}
        self.assertEqual([t[:3] for t in self.made(both)[0]], [("a", "I32", (3,)), ("b", "F64", (1,))])
        odd = [torch.nn.Parameter(torch.ones(2)), torch.ones(2, 2).to_sparse(), torch.ones(2, dtype=torch.cfloat).conj(), torch.nn.Linear(1, 1)]
        if hasattr(torch, "quantize_per_tensor"):
            odd.append(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8))
        for t in odd:
            with self.subTest(type(t).__name__), self.assertRaisesRegex(gpufd.UsageError, "gpufd.torch.put"):
                _put._source(t)
        self.assertRaisesRegex(gpufd.UsageError, "x: .*contiguous", _put._source, {"x": torch.ones(2, 3).T})


class Wrong(Offered):
    """Wrong arguments are said to be wrong, where they are given."""

    def test_device_that_is_not_there(self):
        with common.raises(self, gpufd.MismatchError, "device", "there is no device 9"):
            gpufd.allocate(SIZE, device=9, driver="soft")

    def test_offer_of_something_else(self):
        server = gpufd.Server(self.path + "2")
        self.addCleanup(server.close)
        for name, memory in ((3, self.memory), ("x", b"bytes")):
            with self.assertRaisesRegex(gpufd.UsageError, "takes a name and Memory"):
                server.offer(name, memory)
        server.offer("x", self.memory)  # which took no harm


class Views(Offered):
    def test_types(self):
        att = self.attach()
        for name, dtype in gpufd.DTYPES.items():
            a = att.view(name, (3, 2), 16)
            self.assertEqual((a.nbytes, a.shape, a.tobytes()), (6 * dtype.bits // 8, (3, 2), att.read(16, 6 * dtype.bits // 8)))
            self.assertEqual(str(a), f"{name}[3, 2] at byte 16")
        self.assertEqual(att.view("I32").shape, (SIZE // 4,))
        self.assertEqual(att.view("I32", (), 4).size, 1)
        self.assertEqual(att.view("I32", (0, 5)).nbytes, 0)
        inner = att.view("U8", 64, 16).view("U16", 2, 4)
        self.assertEqual((inner.offset, inner.tobytes()), (20, bytes(range(20, 24))))

    def test_refused(self):
        att = self.attach()
        for dtype, shape, offset in (("F8_E4M4", 1, 0), ("I32", 1, 2), ("I32", SIZE, 0), ("U8", -1, 0), ("U8", 1, -1), ("U8", 1, SIZE), ("U8", 1.5, 0)):
            with self.subTest(f"{dtype} {shape} {offset}"), self.assertRaises((gpufd.UsageError, TypeError)):
                att.view(dtype, shape, offset)
        with self.assertRaisesRegex(gpufd.UsageError, "goes beyond"):
            att.view("U8", 64).view("U8", 8, 60)

    def test_numpy(self):
        numpy = common.need_numpy()
        reader, writer = self.attach(), self.attach(access=gpufd.READ_WRITE)
        a = numpy.asarray(writer.view("I16", (3, 4), 6))
        self.assertEqual((a.shape, a.dtype, a[1, 2]), ((3, 4), numpy.dtype("<i2"), int.from_bytes(bytes((18, 19)), "little")))
        a[1, 2] = -7
        self.assertEqual(numpy.asarray(reader.view("I16", (3, 4), 6))[1, 2], -7, "it is the same memory")
        self.assertFalse(numpy.asarray(reader).flags.writeable)
        self.assertTrue(numpy.asarray(writer).flags.writeable)
        for name, dtype in gpufd.DTYPES.items():
            if dtype.typestr:
                self.assertEqual(numpy.asarray(writer.view(name, 3)).dtype.str.lstrip("<|"), dtype.typestr.lstrip("<|"))
            else:
                self.assertFalse(hasattr(writer.view(name, 4), "__array_interface__"))
        b = numpy.from_dlpack(writer.view("I16", (3, 4), 6))
        self.assertTrue((a == b).all())
        c = numpy.from_dlpack(reader.copy())
        self.assertTrue((c == numpy.asarray(reader)).all())
        self.assertFalse(hasattr(writer.view(), "__cuda_array_interface__"))
        self.assertFalse(hasattr(writer, "__cuda_array_interface__"))

    def test_private_copy(self):
        att = self.attach()
        copy = att.view("U8", 16, 8).copy()
        att.close()
        self.assertEqual(copy.tobytes(), bytes(range(8, 24)))
        self.assertFalse(copy.readonly)
        copy.memory.write(0, b"\xff")
        self.assertEqual(self.memory.read(8, 1), b"\x08")


class DLPack(Offered):
    def test_pairs(self):
        """F4 fills half a byte: DLPack has two in one element, as float4_e2m1fn_x2 does."""
        att = self.attach()
        view = att.view("F4", (3, 4), 4)
        self.assertEqual((view.nbytes, view.copy().tobytes(), att.view("F4").shape, view.view("F4").shape), (6, bytes(range(4, 10)), (2 * SIZE,), (12,)))
        t = Taken(view.__dlpack__(max_version=(1, 0)))
        d = t.tensor.dtype
        self.assertEqual(((d.code, d.bits, d.lanes), t.numbers(t.tensor.shape), t.numbers(t.tensor.strides)), ((17, 4, 2), [3, 2], [2, 1]))
        t.delete()
        for shape in (3, (2, 1), ()):
            with self.assertRaisesRegex(gpufd.UsageError, "the last dimension is a multiple of 2"):
                att.view("F4", shape)

    def test_versioned(self):
        for access, flags in ((gpufd.READ_ONLY, _dlpack.FLAG_READ_ONLY), (gpufd.READ_WRITE, 0)):
            att = self.attach(access=access)
            view = att.view("BF16", (2, 3), 4)
            t = Taken(view.__dlpack__(max_version=(1, 0)))
            self.assertEqual((t.name, t.managed.major, t.managed.minor, t.managed.flags), (b"dltensor_versioned", 1, 0, flags))
            self.assertEqual((t.numbers(t.tensor.shape), t.numbers(t.tensor.strides)), ([2, 3], [3, 1]))
            self.assertEqual((t.tensor.dtype.code, t.tensor.dtype.bits, t.tensor.dtype.lanes), (4, 16, 1))
            self.assertEqual((t.tensor.device.device_type, t.tensor.device.device_id), view.__dlpack_device__())
            self.assertEqual(ctypes.string_at(t.tensor.data, 12), bytes(range(4, 16)))
            t.delete()
            newer = Taken(view.__dlpack__(max_version=(2, 7)))
            self.assertEqual((newer.managed.major, newer.managed.minor), _dlpack.DLPACK_VERSION)
            newer.delete()
        t = Taken(att.__dlpack__(max_version=(1, 1), copy=True))
        self.assertEqual(t.managed.flags, _dlpack.FLAG_IS_COPIED)
        t.delete()

    def test_legacy_capsule(self):
        t = Taken(self.attach(access=gpufd.READ_WRITE).__dlpack__())
        self.assertEqual(t.name, b"dltensor")
        t.delete()
        for version in (None, (0, 8)):
            with self.assertRaisesRegex(gpufd.ReadOnlyError, r"copy\(\)") as caught:
                self.attach().__dlpack__(max_version=version)
            self.assertIsInstance(caught.exception, BufferError)
        Taken(self.attach().copy().__dlpack__()).delete()

    def test_asked_for_too_much(self):
        view = self.attach(access=gpufd.READ_WRITE).view()
        for how in ({"stream": 1}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}):
            with self.subTest(str(how)), self.assertRaises(BufferError):
                view.__dlpack__(**how)
        Taken(view.__dlpack__(stream=-1, dl_device=(1, 0), copy=False)).delete()

    def test_capsule_that_nobody_takes(self):
        att = self.attach()
        out = len(_dlpack._out)
        capsule = att.__dlpack__(max_version=(1, 0))
        self.assertEqual((len(_dlpack._out), len(att.memory.views())), (out + 1, 1))
        del capsule
        gc.collect()
        self.assertEqual((len(_dlpack._out), att.memory.views()), (out, []))
        att.close()

    def test_tensor_keeps_the_attachment(self):
        att = gpufd.attach(socket=self.path)
        t = Taken(att.view("U8", 8).__dlpack__(max_version=(1, 0)))
        lease_of = att.memory
        with self.assertRaisesRegex(gpufd.InUseError, r"closing 'x': .* 1 view: U8\[8\] at byte 0 \(DLPack\)") as caught:
            att.close()
        self.assertEqual(caught.exception.views, ("U8[8] at byte 0 (DLPack)",))
        self.assertFalse(att.done, "a close that was refused has changed nothing")
        del att, caught
        gc.collect()
        self.assertEqual(ctypes.string_at(t.tensor.data, 8), bytes(range(8)))
        self.assertFalse(lease_of.closed)
        thread = threading.Thread(target=t.delete)  # from any thread
        thread.start()
        thread.join()
        gc.collect()
        self.assertTrue(lease_of.closed, "the attachment goes with its last view")


class Lifetime(Offered):
    def test_views_by_interface(self):
        numpy = common.need_numpy()
        att = self.attach()
        a = numpy.asarray(att.view("F32", 4))
        part = a[1:2]
        del a
        with self.assertRaisesRegex(gpufd.InUseError, r"F32\[4\] at byte 0 \(memoryview\)"):
            att.close()
        del part
        att.close()
        self.assertTrue(att.done)
        for use in (att.view, att.read, lambda: att.write(0, b""), lambda: att.notify(b""), lambda: att.ptr):
            with self.assertRaises(gpufd.ClosedError):
                use()
        att.close()

    def test_an_array_of_ours_is_no_view(self):
        att = self.attach()
        view = att.view()
        att.close()
        with self.assertRaises(gpufd.ClosedError):
            view.tobytes()

    def test_with_and_an_error(self):
        """What fails in the block is not hidden by views that its traceback keeps alive."""
        numpy = common.need_numpy()
        with self.assertRaisesRegex(ValueError, "of the block"):
            with self.attach() as att:
                a = numpy.asarray(att)
                raise ValueError("of the block")
        with self.assertRaises(gpufd.InUseError):
            with self.attach() as att:
                a = numpy.asarray(att)
        del a

    def test_force(self):
        att = self.attach()
        capsule = att.__dlpack__(max_version=(1, 0))
        att.close(force=True)
        self.assertTrue(att.done)
        del capsule

    def test_threads(self):
        """Waiters end when another thread closes."""
        att = self.attach()
        over = []
        waiters = [threading.Thread(target=lambda: over.append(att.wait(common.PATIENCE))) for _ in range(4)]
        for w in waiters:
            w.start()
        time.sleep(0.05)
        att.close()
        for w in waiters:
            w.join(common.PATIENCE / 2)
        self.assertEqual(over, [True] * 4)

    def test_fork(self):
        """A child is told; the parent's attachment goes on, and ends for both with the parent."""
        att = self.attach()
        view = att.view()
        att.read(0, 1)
        r, w = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for use in (lambda: att.read(0, 1), lambda: view.tobytes(), lambda: att.done, lambda: att.notify(b"x"), lambda: self.memory.write(0, b"x")):
                try:
                    use()
                    said.append("nothing")
                except gpufd.ClosedError as e:
                    said.append("forked" if "forked from" in str(e) else str(e))
                except BaseException as e:
                    said.append(repr(e))
            att.close()
            with gpufd.attach(socket=self.path) as own:
                said.append(str(own.read(0, 1)))
            os.write(w, "\n".join(said).encode())
            os._exit(0)
        os.close(w)
        _, status = os.waitpid(child, 0)
        with open(r) as f:
            self.assertEqual(f.read().split("\n"), ["forked"] * 5 + ["b'\\x00'"])
        self.assertEqual(status, 0)
        self.assertFalse(att.done, "the child has ended the parent's lease")
        self.assertEqual(att.read(0, 2), b"\0\1")

    def test_fork_behind_close(self):
        """A child keeps what has got the numbers of memory that was closed."""
        closed = gpufd.allocate(SIZE)
        with self.attach() as att, self.attach(reoffer=True) as again:
            pass
        closed.close()
        closed.close()
        others = [os.dup(2) for _ in range(64)]
        try:
            child = os.fork()
            if child == 0:
                there = {int(fd) for fd in os.listdir("/proc/self/fd")}
                os._exit(len(set(others) - there))
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            for fd in others:
                os.close(fd)
        self.assertTrue(att.memory.closed and again.memory.closed and closed.closed, "they are still there")

    def test_exit(self):
        """An interpreter that ends leaves in order, also with views, and says nothing."""
        text = """
import ctypes, threading
att = gpufd.attach(socket={path!r})
other = gpufd.attach(socket={path!r})
kept = other.__dlpack__(max_version=(1, 0))
api = ctypes.pythonapi
api.PyCapsule_GetPointer.argtypes, api.PyCapsule_GetPointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
address = api.PyCapsule_GetPointer(kept, b"dltensor_versioned")
used = ctypes.create_string_buffer(b"used")
api.PyCapsule_SetName(kept, used)
from gpufd.memory import dlpack as _dlpack
class Late:
    def __del__(self, address=address, kind=_dlpack._ManagedVersioned, call=ctypes.CFUNCTYPE(None, ctypes.c_void_p)):
        call(kind.from_address(address).deleter)(address)  # as a framework does at its own end
late = Late()
threading.Thread(target=other.wait, daemon=True).start()
print("there")
sys.stdin.read()
"""
        leases = []
        other = self.path + "2"
        with gpufd.Server(other) as server:
            server.offer("y", self.memory, on_lease=leases.append)
            p = self.python(text.format(path=other), waits_for="there")
            self.ends(p, 0)
            for lease in leases:
                self.assertTrue(lease.wait(common.PATIENCE))
            self.assertIsNone(leases[0].err, "it said no farewell")
            self.assertIsInstance(leases[1].err, gpufd.LostError)

    def test_server_at_exit(self):
        """A server that nobody closed tells its consumers, and leaves no socket."""
        other = self.path + "2"
        p = self.python(f"m = gpufd.allocate(1); s = gpufd.Server({other!r}); s.offer('x', m); print('there'); sys.stdin.read()", waits_for="there")
        with gpufd.attach(socket=other) as att:
            self.ends(p, 0)
            self.assertTrue(att.wait(common.PATIENCE))
            common.is_error(self, att.err, gpufd.LeaseEndedError, "withdrawn")
        self.assertFalse(os.path.exists(other))


class Growth(Offered):
    def test_attach_and_close(self):
        """Attaching again and again leaves no descriptor, map or memory. GPUFD_SOAK=1: 10,000 times."""
        rounds = 10_000 if os.environ.get("GPUFD_SOAK") == "1" else 300
        numpy = common.need_numpy()

        def once():
            with gpufd.attach(socket=self.path) as att:
                a = numpy.asarray(att.view("U32", 8))
                Taken(att.view("F32", (2, 2)).__dlpack__(max_version=(1, 0))).delete()
                del a

        for _ in range(50):
            once()
        before = self.vitals()
        for _ in range(rounds):
            once()
        after = self.vitals(before[0])
        self.assertLessEqual(after[0], before[0], "descriptors")
        self.assertLessEqual(after[1], before[1] + 32, "maps")
        self.assertLess(after[2] - before[2], 8 << 20, f"memory: {before[2]} bytes before, {after[2]} after")
        self.assertEqual((len(_dlpack._out), self.memory.views()), (0, ["offer 'x'"]))

    def vitals(self, at_most=0):
        """The numbers of descriptors and of maps, and the bytes in memory, when no more than
        at_most descriptors are left, or when their number stays the same: the server closes
        its own when it has read the end."""
        gc.collect()
        fds, since = len(common.settled_fds()), time.monotonic()
        patience = common.PATIENCE if at_most else 0.5
        while fds > at_most and time.monotonic() - since < patience:
            time.sleep(0.01)
            last, fds = fds, len(common.settled_fds())
            if fds != last:
                since = time.monotonic()
        with open("/proc/self/maps") as f:
            maps = sum(1 for _ in f)
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return fds, maps, resident


if __name__ == "__main__":
    unittest.main()
