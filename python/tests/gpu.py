"""What frameworks do with shared memory of a GPU: PyTorch, CuPy, numba and JAX.

	python3 python/tests/gpu.py -v

It needs a GPU, gpufd's programs (GPUFD_BIN, or Go to build them) and whichever frameworks
there are: a test of one that is missing is skipped, and says so; with GPUFD_REQUIRE=gpu
that is a failure. In the end it prints a table of what was seen. What could lose the
context, a write through memory that is mapped read-only, is done in a child process.
"""

import contextlib
import ctypes
import importlib
import os
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import replace

from keepers import Keeper  # first: it says where the package is

import common
import gpufd
from gpufd.memory import cuda as _cuda
from gpufd.memory import libcuda as _driver

SIZE = (64 << 20) + 8
SEEN = []  # rows of the table


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        common.missing("gpu", f"{sys.executable} has no {name}: {e}")


def seen(framework, what, found):
    SEEN.append((framework, what, found))


def outcome(f):
    """What a call comes to, in a line."""
    try:
        return "taken", f()
    except Exception as e:
        return f"{type(e).__name__}: {' '.join(str(e).split())[:120]}", None


# Of each: ways is how it takes an array; fill sets all elements, and returns the array that has
# them then.


class Torch:
    name = "torch"
    ways = ("by_dlpack", "by_interface")

    def __init__(self):
        self.lib = module("torch")
        if not self.lib.cuda.is_available():
            common.missing("gpu", "PyTorch sees no GPU")

    def by_dlpack(self, array):
        return self.lib.from_dlpack(array)

    def by_interface(self, array):
        return self.lib.as_tensor(array, device="cuda")

    def pointer(self, a):
        return a.data_ptr()

    def first(self, a):
        return int(a.flatten()[0].item())

    def fill(self, a, n):
        a.fill_(n)
        self.lib.cuda.synchronize()
        return a

    def read_only(self, a):
        return "no such flag"


class CuPy:
    name = "cupy"
    ways = Torch.ways

    def __init__(self):
        self.lib = module("cupy")

    def by_dlpack(self, array):
        return self.lib.from_dlpack(array)

    def by_interface(self, array):
        return self.lib.asarray(array)

    def pointer(self, a):
        return a.data.ptr

    def first(self, a):
        return int(a.ravel()[0].get())

    def fill(self, a, n):
        a.fill(n)
        self.lib.cuda.Device().synchronize()
        return a

    def read_only(self, a):
        return f"writeable {getattr(a.flags, 'writeable', 'has no such flag')}"


class Numba:
    name = "numba"
    ways = ("by_interface",)  # it has no from_dlpack

    def __init__(self):
        self.lib = module("numba.cuda")

    def by_interface(self, array):
        return self.lib.as_cuda_array(array)

    def pointer(self, a):
        return a.device_ctypes_pointer.value

    def first(self, a):
        return int(a.copy_to_host().ravel()[0])

    def fill(self, a, n):
        def set_all(a, n):
            i = cuda.grid(1)
            if i < a.size:
                a[i] = n

        cuda, flat = self.lib, a.ravel()  # of the same memory
        cuda.jit(set_all)[-(-flat.size // 256), 256](flat, n)
        self.lib.synchronize()
        return a

    def read_only(self, a):
        return "no such flag"


class Jax:
    name = "jax"
    ways = Torch.ways

    def __init__(self):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        self.lib = module("jax")
        if self.lib.default_backend() != "gpu":
            common.missing("gpu", "JAX sees no GPU")

    def by_dlpack(self, array):
        return module("jax.dlpack").from_dlpack(array)

    def by_interface(self, array):
        return module("jax.numpy").asarray(array)

    def pointer(self, a):
        return a.unsafe_buffer_pointer()

    def first(self, a):
        return int(a.ravel()[0])

    def fill(self, a, n):
        """Its arrays cannot be written, but a function may have the memory of an argument for its
        result. Whether JAX does that with memory of others is what the test finds out."""
        return self.lib.jit(lambda x: x * 0 + n, donate_argnums=0)(a).block_until_ready()

    def read_only(self, a):
        return "arrays cannot be written"


FRAMEWORKS = {f.name: f for f in (Torch, CuPy, Numba, Jax)}

# In a child: attach to argv[1], take it as argv[3] says with framework argv[2], write.
WRITE = """
import gpu
framework = gpu.FRAMEWORKS[sys.argv[2]]()
att = gpufd.attach(socket=sys.argv[1], driver="cuda")
a = getattr(framework, sys.argv[3])(att.view("I32", 1024))
b = framework.fill(a, 7)
print("written", framework.first(b), "in place" if framework.pointer(b) == att.ptr else "elsewhere")
"""


class OnGPU(common.Scene):
    framework = None

    @classmethod
    def setUpClass(cls):
        try:
            there = _driver.has_device()
        except gpufd.Error as e:
            common.missing("gpu", str(e))
        if not there:
            common.missing("gpu", "there is no GPU here")

    def setUp(self):
        super().setUp()
        os.environ["GPUFD_DRIVER"] = "cuda"

    def nothing_left(self):
        """A GPU's driver keeps descriptors from its first use on; Growth counts."""


def vitals():
    """Descriptors and mappings of this process, and free bytes of the device."""
    lib = _driver.load()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with lib.current(_cuda.context_of(0)):
        lib.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    with open("/proc/self/maps") as f:
        return len(common.settled_fds()), sum(1 for _ in f), free.value


class Package(OnGPU):
    """The package alone, against the programs in Go on the GPU."""

    def test_from_go(self):
        p = self.producer("--size", str(SIZE), "--chunk", "2MiB", "--salt", "5")
        with gpufd.attach(socket=self.path) as att:
            self.assertEqual(att.read(0, 4), ((1337 ^ 0xDEADBEEF ^ 5) & 0xFFFFFFFF).to_bytes(4, "little"))
            with self.assertRaises(gpufd.ReadOnlyError):
                att.write(0, b"x")
            copy = att.view("U32", 16).copy()
            self.assertEqual(copy.tobytes(), att.read(0, 64))
            att.report()
        self.ends(p, 0)

    def test_follow_versions(self):
        with gpufd.allocate(4096) as one, gpufd.allocate(4096) as two, gpufd.Server(self.path) as server:
            one.write(0, b"1")
            two.write(0, b"2")
            server.offer("x", one)
            seen_ = []
            for att in gpufd.follow("x", socket=self.path, within=60):
                seen_.append(att.read(0, 1))
                if len(seen_) == 2:
                    break
                server.replace("x", two)
            self.assertEqual(seen_, [b"1", b"2"])

    def test_device_error(self):
        """An error of the driver has its name and number."""
        with self.assertRaises(gpufd.DriverError) as caught:
            gpufd.allocate(1 << 60)
        self.assertEqual((caught.exception.name, caught.exception.number), ("CUDA_ERROR_OUT_OF_MEMORY", 2))

    def test_growth(self):
        """Attach and close, again and again: 10,000 times with GPUFD_SOAK=1."""
        rounds = 10_000 if os.environ.get("GPUFD_SOAK") == "1" else 500
        with gpufd.allocate(4 << 20, chunk=2 << 20) as memory, gpufd.offer("x", memory, socket=self.path):

            def once():
                with gpufd.attach(socket=self.path) as att:
                    del att

            for _ in range(100):
                once()
            before = vitals()
            began = time.monotonic()
            for _ in range(rounds):
                once()
            took = (time.monotonic() - began) / rounds
            after = vitals()
        seen("gpufd", f"{rounds} times attach and close", f"{took * 1e6:.0f} µs each; descriptors, maps, device bytes before {before}, after {after}")
        self.assertLessEqual(after[0], before[0] + 2)
        self.assertLessEqual(after[1], before[1] + 32)
        self.assertLessEqual(before[2] - after[2], 8 << 20)


class Frameworks(OnGPU):
    """Each framework: without a copy, both ways, and the flag."""

    def each(self, name):
        try:
            framework = FRAMEWORKS[name]()
        except unittest.SkipTest as e:
            seen(name, "", f"not tried: {e}")
            raise
        with gpufd.allocate(SIZE, chunk=2 << 20) as memory, gpufd.Server(self.path) as server:
            memory.write(0, (42).to_bytes(4, "little") * 1024)
            server.offer("x", memory, gpufd.READ_WRITE)
            for how in framework.ways:
                self.read_write(framework, how, memory)
                self.read_only(framework, how)
                self.write_through(framework, how)

    def read_write(self, framework, how, memory):
        with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att:
            view = att.view("I32", (16, 64))
            said, a = outcome(lambda: getattr(framework, how)(view))
            if a is None:
                view.release()
                return seen(framework.name, f"{how}, read-write", said)
            copied = framework.pointer(a) != view.ptr
            self.assertEqual(framework.first(a), 42)
            if not copied:
                with self.assertRaises(gpufd.InUseError):
                    att.close()
            said = "a copy" if copied else "no copy"
            wrote, b = outcome(lambda: framework.fill(a, 43))
            if b is None:
                said += f", and a write: {wrote}"
            elif framework.pointer(b) == view.ptr:
                self.assertEqual(memory.read(0, 4), (43).to_bytes(4, "little"), "the producer does not see it")
                said += ", written"
            else:
                self.assertEqual(framework.first(b), 43)
                said += ", and what is written lies elsewhere"
            memory.write(0, (42).to_bytes(4, "little") * 1024)
            seen(framework.name, f"{how}, read-write", said)
            del a, b
            view.release()

    def read_only(self, framework, how):
        with gpufd.attach(socket=self.path) as att:
            view = att.view("I32", (16, 64))
            said, a = outcome(lambda: getattr(framework, how)(view))
            if a is not None:
                self.assertEqual(framework.first(a), 42)
                said = f"{'no copy' if framework.pointer(a) == view.ptr else 'a copy'}; {framework.read_only(a)}"
            seen(framework.name, f"{how}, read-only", said)
            del a
            view.release()
            private = view_of_copy(att)
            said, b = outcome(lambda: getattr(framework, how)(private))
            if b is not None:
                self.assertEqual(framework.first(b), 42)
            seen(framework.name, f"{how}, copy() of read-only", said)

    def write_through(self, framework, how):
        """A write where the memory is mapped read-only, in a process of its own."""
        p = self.python(WRITE, self.path, framework.name, how)
        out, _ = p.communicate(timeout=300)
        last = [line for line in out.splitlines() if line.strip()][-1:]
        seen(framework.name, f"{how}, a write to read-only", f"exit {p.returncode}: {last[0][:140] if last else ''}")
        with gpufd.attach(socket=self.path) as att:
            self.assertEqual(att.read(0, 4), (42).to_bytes(4, "little"), "a reader has changed the memory")

    def test_torch(self):
        self.each("torch")

    def test_cupy(self):
        self.each("cupy")

    def test_numba(self):
        self.each("numba")

    def test_jax(self):
        self.each("jax")

    def test_torch_types(self):
        """Each type as PyTorch has it."""
        torch = Torch().lib
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, gpufd.READ_WRITE, socket=self.path):
            with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att:
                for name in gpufd.DTYPES:
                    said, a = outcome(lambda name=name: torch.from_dlpack(att.view(name, 8)))
                    seen("torch", name, said if a is None else str(a.dtype))
                    del a

    def test_torch_streams(self):
        """A private copy is whole on the stream that takes it, without a wait of the caller's."""
        torch = Torch().lib
        with gpufd.allocate(256 << 20) as memory, gpufd.offer("x", memory, socket=self.path):
            torch.from_dlpack(memory.view("I32")).fill_(9)
            torch.cuda.synchronize()
            with gpufd.attach(socket=self.path) as att:
                for _ in range(20):
                    with torch.cuda.stream(torch.cuda.Stream()):
                        self.assertTrue(bool((torch.from_dlpack(att.copy().view("I32")) == 9).all()))

    def test_torch_outlives_names(self):
        """A tensor keeps its attachment alive, and the interpreter ends with it."""
        Torch()
        with gpufd.allocate(SIZE) as memory, gpufd.offer("x", memory, socket=self.path):
            text = "import torch\nt = torch.from_dlpack(gpufd.attach(socket=sys.argv[1]).view('I32', 1024))\nimport gc; gc.collect(); print(int(t.sum()))"
            self.ends(self.python(text, self.path), 0, "0")


def view_of_copy(att):
    return att.view("I32", (16, 64)).copy()


class Kept(OnGPU):
    """A keeper of the program in Go: parts, versions, a keeper that is killed."""

    def setUp(self):
        super().setUp()
        self.kept = self.keeper()

    def keeper(self):
        k = Keeper(self.dir)
        self.addCleanup(k.close)
        return k

    def put(self, *numbers):
        """Have the keeper keep a part for each number, of 16 MiB of it, all on one device."""
        flags = []
        for part, number in enumerate(numbers):
            path = os.path.join(self.dir, f"part{part}")
            with open(path, "wb") as f:
                f.write(number.to_bytes(4, "little") * (4 << 20))
            flags += ["--part", f"{part}@0={path}"]
        self.ends(self.start("gpufd", "put", "model", *flags, "--label", "revision=main", "--socket", self.kept.socket), 0)

    def test_two_parts(self):
        """Each framework takes both parts of a version, without a copy."""
        self.put(41, 42)
        with gpufd.get("model", socket=self.kept.socket, labels={"revision": "main"}) as version:
            version.verify()
        with common.raises(self, gpufd.MismatchError, "labels"):
            gpufd.get("model", socket=self.kept.socket, labels={"revision": "other"})
        for name, how in (("torch", "by_dlpack"), ("cupy", "by_dlpack"), ("cupy", "by_interface"), ("numba", "by_interface")):
            with self.subTest(name, how=how):
                framework = FRAMEWORKS[name]()
                with gpufd.attach_parts("model", socket=self.kept.socket) as parts:
                    self.assertEqual([(att.kept.part, att.kept.parts) for att in parts], [(0, 2), (1, 2)])
                    for att, number in zip(parts, (41, 42)):
                        view = att.view("I32", (16, 64))
                        a = getattr(framework, how)(view)
                        self.assertEqual((framework.pointer(a), framework.first(a)), (view.ptr, number))
                        with self.assertRaises(gpufd.InUseError):
                            att.close()
                        del a
                        view.release()
                    del att, view
                seen(name, f"{how}, both parts of a version that a keeper keeps", "no copy")

    def test_follow(self):
        """Version after version; between them the keeper is killed, and its successor knows the lease."""
        self.put(1)
        got = []
        for att in gpufd.follow("model", socket=self.kept.socket, within=60):
            got.append((att.version, att.read(0, 4)))
            if len(got) == 2:
                break
            self.kept.kill()
            self.assertTrue(att.wait(60))
            self.kept = self.keeper()
            att.resume()
            self.assertEqual(att.read(att.size - 4, 4), (1).to_bytes(4, "little"))
            self.put(2)
            self.assertTrue(att.wait(60, superseded=True))
        self.assertEqual(got, [(1, (1).to_bytes(4, "little")), (2, (2).to_bytes(4, "little"))])

    def test_torch_module(self):
        """A module that another process has put: tensors over its memory, and the same result."""
        torch = Torch().lib
        import gpufd.torch

        out = self.ends(self.python(PUT, self.kept.socket), 0)
        state = gpufd.torch.load("model", socket=self.kept.socket, labels={"a": "b"})
        other = torch.nn.Linear(64, 64, device="meta", dtype=torch.bfloat16)
        other.load_state_dict(state, assign=True)
        self.assertEqual(other.weight.data_ptr(), state["weight"].data_ptr())
        with torch.inference_mode():
            self.assertEqual(str(other(torch.ones(1, 64, device="cuda", dtype=torch.bfloat16)).float().sum().item()), out.split()[-1])
        del state, other

    def test_devices(self):
        """A device by its ordinal, as PyTorch says it, or by the UUID that the keeper says."""
        torch = Torch().lib
        import gpufd.torch

        socket, here = self.kept.socket, torch.device("cuda", 0)
        gpufd.torch.put("model", {"w": torch.arange(8.0, device=here)}, socket=socket, device="cuda:0")
        with gpufd.Client(socket) as client:
            uuid = client.stat("model").parts[0].device
        self.assertTrue(uuid.startswith("GPU-"), uuid)
        for device in (None, 0, "cuda:0", "cuda", here, torch.device("cuda"), uuid):
            with self.subTest(str(device)):
                state = gpufd.torch.load("model", socket=socket, device=device)
                self.assertEqual((state["w"].device, state["w"].tolist()), (here, list(range(8))))
                del state
                with gpufd.get("model", socket=socket, device=device) as version:
                    self.assertEqual(version[0].attachment.device, 0)
                if device is not None:
                    gpufd.put("bytes", b"x", socket=socket, device=device)
                    gpufd.torch.put("model", {"w": torch.arange(8.0)}, socket=socket, device=device)
                    with gpufd.allocate(8, device=device) as memory:
                        self.assertEqual(memory.ordinal, 0)
        beyond = torch.cuda.device_count()
        for device in (beyond, f"cuda:{beyond}", torch.device("cuda", beyond), "GPU-00000000-0000-0000-0000-000000000000"):
            with self.subTest(str(device)), common.raises(self, gpufd.MismatchError, "device"):
                gpufd.torch.load("model", socket=socket, device=device)
        for device in ("cpu", torch.device("cpu"), "meta", "cuda:", -1, True):
            with self.subTest(str(device)), self.assertRaises(gpufd.UsageError):
                gpufd.torch.load("model", socket=socket, device=device)

    def test_small_types(self):
        """F4, E8M0 and the other types of a byte, there and back; and F6, which PyTorch does not have."""
        torch = Torch().lib
        import gpufd.torch

        socket = self.kept.socket
        small = ("F4", "F8_E8M0", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
        self.assertEqual([name for name in small if name not in gpufd.torch.DTYPES], [], f"PyTorch {torch.__version__} lacks them")
        raw = {name: (torch.arange(64, dtype=torch.uint8, device="cuda") + i).view(4, 16) for i, name in enumerate(small)}
        state = {name: t.clone().view(gpufd.torch.DTYPES[name]) for name, t in raw.items()}
        state["turned"] = raw["F4"].clone().t().view(gpufd.torch.DTYPES["F4"])
        gpufd.torch.put("model", state, socket=socket)
        loaded = gpufd.torch.load("model", socket=socket)
        self.assertEqual(list(loaded), list(state))
        for name, t in raw.items():
            self.assertEqual((loaded[name].dtype, loaded[name].shape), (gpufd.torch.DTYPES[name], t.shape))
            self.assertTrue(torch.equal(loaded[name].view(torch.uint8), t), name)
        self.assertEqual((loaded["turned"].dtype, loaded["turned"].stride()), (gpufd.torch.DTYPES["F4"], (1, 16)))
        self.assertTrue(torch.equal(loaded["turned"].view(torch.uint8), raw["F4"].t()))
        with gpufd.get("model", socket=socket) as version:
            shapes = {t.name: (t.dtype, t.shape) for t in version[0].table.tensors}
            paths = version.save(self.dir)
        self.assertEqual(shapes, {name: (name, (4, 32 if name == "F4" else 16)) for name in small})
        del loaded
        self.as_safetensors_has_them(raw, paths[0])

    def as_safetensors_has_them(self, raw, path):
        """The library safetensors reads what was put, and what it writes is loaded, where it knows the types."""
        torch, library = Torch().lib, module("safetensors.torch")
        said, there = outcome(lambda: library.load_file(path))
        seen("torch", "small types that safetensors reads", said)
        for name, t in (there or {}).items():
            self.assertEqual((there[name].dtype, there[name].shape), (gpufd.torch.DTYPES[name], t.shape))
            self.assertTrue(torch.equal(there[name].view(torch.uint8), raw[name].cpu()), name)
        for name in raw:
            path = os.path.join(self.dir, f"{name}.safetensors")
            said, _ = outcome(lambda: library.save_file({"t": raw[name].cpu().view(gpufd.torch.DTYPES[name])}, path))  # noqa: B023
            seen("torch", f"{name} that safetensors writes", said)
            if said == "taken":
                gpufd.put("file", path, socket=self.kept.socket)
                back = gpufd.torch.load("file", socket=self.kept.socket)["t"]
                self.assertEqual((back.dtype, back.shape), (gpufd.torch.DTYPES[name], raw[name].shape))
                self.assertTrue(torch.equal(back.view(torch.uint8), raw[name]), name)
                del back

    def test_only_tensors_of_a_type_that_torch_lacks_raise(self):
        torch = Torch().lib
        import gpufd.torch

        header = b'{"f6":{"dtype":"F6_E2M3","shape":[2,4],"data_offsets":[4,10]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        path = os.path.join(self.dir, "f6.safetensors")
        with open(path, "wb") as f:
            f.write(len(header).to_bytes(8, "little") + header + bytes(10))
        gpufd.put("model", path, socket=self.kept.socket)
        state = gpufd.torch.load("model", socket=self.kept.socket)
        self.assertEqual((list(state), state["w"].tolist(), list(state.lacking)), (["w"], [0.0], ["f6"]))
        with self.assertRaisesRegex(gpufd.UnavailableError, f"'f6' is of type F6_E2M3, which PyTorch {torch.__version__.split('+')[0]}"):
            state["f6"]
        del state

    def test_put_of_arrays(self):
        """What has DLPack, or CUDA's interface, behind the work that makes it: types and shapes stay."""
        torch = Torch().lib
        import gpufd.torch

        made = {
            "a": torch.full((1 << 20,), 3.0, device="cuda", dtype=torch.bfloat16), "b": torch.arange(6, device="cuda").reshape(2, 3),
            "c": torch.ones(5, dtype=torch.bool), "d": torch.ones(3, device="cuda", dtype=torch.bool), "e": torch.zeros(0, 4, device="cuda"),
        }  # fmt: skip
        gpufd.put("arrays", made, socket=self.kept.socket)
        state = gpufd.torch.load("arrays", socket=self.kept.socket)
        for name, t in made.items():
            self.assertEqual((state[name].dtype, state[name].shape), (t.dtype, t.shape))
            self.assertTrue(torch.equal(state[name].cpu(), t.cpu()), name)
        del state
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(200_000_000)
            gpufd.put("alone", torch.full((1 << 20,), 7, device="cuda", dtype=torch.int32), socket=self.kept.socket)
        (alone,) = gpufd.torch.load("alone", socket=self.kept.socket).values()
        self.assertEqual((alone[0].item(), alone[-1].item()), (7, 7))
        del alone
        with self.assertRaisesRegex(gpufd.UsageError, "gpufd.torch.put"):
            gpufd.put("alone", torch.nn.Parameter(made["a"]), socket=self.kept.socket)
        try:
            import cupy
        except ImportError:
            return
        gpufd.put("cupy", cupy.arange(6, dtype="f4").reshape(3, 2), socket=self.kept.socket)
        (alone,) = gpufd.torch.load("cupy", socket=self.kept.socket).values()
        self.assertEqual(alone.cpu().tolist(), [[0, 1], [2, 3], [4, 5]])


# In a child: have the keeper at argv[1] keep a module, and print what it computes then.
PUT = """
import torch, gpufd.torch
torch.manual_seed(1)
m = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
gpufd.torch.put("model", m, socket=sys.argv[1], labels={"a": "b"})
with torch.inference_mode():
    print(m(torch.ones(1, 64, device="cuda", dtype=torch.bfloat16)).float().sum().item())
"""


class Hostile(OnGPU):
    """A producer that dies or lies costs its reader an error."""

    def test_killed(self):
        p = self.producer("--consumers", "0")
        with gpufd.attach(socket=self.path) as att:
            p.kill()
            self.assertTrue(att.wait(60))
            self.assertTrue(att.err.died())
            self.assertEqual(len(att.read()), att.size, "the memory stays")

    def test_lies(self):
        """Each is an error. Nothing of them is left, and the context works."""
        with gpufd.allocate(4 << 20, chunk=2 << 20) as memory, gpufd.allocate(8 << 20, chunk=4 << 20) as larger:
            memory.write(0, b"as it was")
            self.attempts(memory, larger)
            before = vitals()
            for _ in range(20):
                self.attempts(memory, larger)
            after = vitals()
            self.assertEqual(after[0], before[0])
            self.assertLessEqual(after[1], before[1] + 8)
            self.assertLessEqual(before[2] - after[2], 8 << 20)
            with gpufd.offer("x", memory, socket=self.path), gpufd.attach(socket=self.path) as att:
                self.assertEqual(att.read(0, 9), b"as it was")

    def attempts(self, memory, larger):
        lies = ({"chunk_size": 4 << 20, "size": 8 << 20}, {"device": bytes(16)}, {"size": 3 << 20, "chunk_size": 3 << 20, "chunks": 1, "fds": 1},
                {"driver": gpufd.SOFT}, {"granularity": 3 << 20})  # fmt: skip
        for lie in lies:
            with gpufd.Server(self.path) as server:
                offering = server.offer("x", memory)
                offering.record = replace(offering.record, **lie)
                with self.subTest(str(lie)), self.assertRaises(gpufd.Error):
                    gpufd.attach(socket=self.path)
        with tempfile.TemporaryFile() as file, contextlib.ExitStack() as opened:
            file.truncate(2 << 20)
            others = {"null": os.open("/dev/null", os.O_RDWR), "memfd": os.memfd_create("x")}
            if os.path.exists("/dev/nvidiactl"):
                others["nvidiactl"] = os.open("/dev/nvidiactl", os.O_RDWR)
            others["pipe"], other_end = os.pipe()
            for fd in (*others.values(), other_end):
                opened.callback(os.close, fd)
            others.update(file=file.fileno(), larger=larger.fds[0])
            for what, fd in others.items():
                fds, memory.fds = memory.fds, [memory.fds[0], fd]  # the first chunk is as it should be
                try:
                    with gpufd.offer("x", memory, socket=self.path), self.subTest(what), self.assertRaises(gpufd.DriverError):
                        gpufd.attach(socket=self.path)
                finally:
                    memory.fds = fds


VERSIONS = ("torch", "cupy-cuda12x", "cupy-cuda13x", "numba", "numba-cuda", "jax", "transformers", "accelerate", "safetensors")


def main():
    ok = unittest.main(exit=False).result.wasSuccessful()
    if SEEN:
        versions = subprocess.run([sys.executable, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True).stdout.splitlines()
        print("versions:", ", ".join(v for v in versions if v.split("==")[0].lower() in VERSIONS))
        for row in SEEN:
            print(" | ".join(row))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
