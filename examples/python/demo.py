"""What consumer.py and producer.py have in common: the demo's data, flags, exit codes."""

import argparse
import array
import contextlib
import itertools
import os
import importlib
import pathlib
import pwd
import resource
import signal
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "python"))  # not installed

import gpufd  # noqa: E402

NAME = "producer"  # of the demo's offer
PIECE = 4 << 20  # bytes that are made or compared at a time, a multiple of 4
BEAT = 0.25  # seconds between two progress records
MASK = (1 << 32) - 1


def on(stream):
    """Return a context in which PyTorch uses the stream; one that does nothing without a stream."""
    return sys.modules["torch"].cuda.stream(stream) if stream else contextlib.nullcontext()


# The data: docs/wire.md, "The demo's data".


def count(size):
    """The number of integers in size bytes; a partial last one counts."""
    return -(-size // 4)


def many(n, thing):
    """The number and its noun."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def pack_data(size, salt):
    """The application data of the demo's offer."""
    return struct.pack("<QII", count(size), salt, 0)


def unpack_data(offer):
    """The salt, having checked the rest."""
    if len(offer.data) != 16:
        raise gpufd.WireError(f"the offer {offer.name!r} is not the demo's: {len(offer.data)} bytes of data, want 16")
    integers, salt, zero = struct.unpack("<QII", offer.data)
    if zero or integers != count(offer.size):
        raise gpufd.WireError(f"the offer says {integers} integers, and its size is {offer.size}")
    return salt


def at(i, salt):
    """The integer at index i."""
    return ((i * 2 + 1337) & MASK) ^ 0xDEADBEEF ^ salt


def pattern(first, n, salt):
    """The n bytes from the integer at index first on."""
    integers = count(n)
    start = (2 * first + 1337) & MASK
    end = start + 2 * integers
    numbers = array.array("I", range(start, min(end, MASK + 1), 2))
    numbers.extend(range(start + 2 * len(numbers) - (MASK + 1), end - (MASK + 1), 2))
    if sys.byteorder == "big":
        numbers.byteswap()
    key = struct.pack("<I", 0xDEADBEEF ^ salt) * integers
    whole = int.from_bytes(numbers.tobytes(), "little") ^ int.from_bytes(key, "little")
    return whole.to_bytes(4 * integers, "little")[:n]


def word(b, i):
    return int.from_bytes(b[4 * i : 4 * i + 4], "little")


def pieces(size):
    """Offset and length of each piece."""
    return ((at, min(PIECE, size - at)) for at in range(0, size, PIECE))


def fill(buffer, salt):
    """Write the demo's data with the CPU."""
    for offset, n in pieces(buffer.size):
        buffer.write(offset, pattern(offset // 4, n, salt))


class Comparison:
    """Counts the integers that are wrong, and remembers the first."""

    def __init__(self, salt):
        self.salt, self.wrong, self.first = salt, 0, None

    def add(self, offset, got):
        want = pattern(offset // 4, len(got), self.salt)
        if got == want:
            return
        bad = [i for i in range(count(len(got))) if word(got, i) != word(want, i)]
        self.wrong += len(bad)
        if self.first is None:
            i = bad[0]
            self.first = f"first at index {offset // 4 + i}, want 0x{word(want, i):08x}, got 0x{word(got, i):08x}"

    def text(self):
        many = "1 integer is" if self.wrong == 1 else f"{self.wrong} integers are"
        return f"data differs: {self.first}; {many} wrong" if self.wrong else ""


def compare(buffer, salt, progress):
    """Compare with the CPU. progress is told of the bytes done now and then."""
    c, beat = Comparison(salt), time.monotonic()
    for offset, n in pieces(buffer.size):
        c.add(offset, buffer.read(offset, n))
        if time.monotonic() - beat > BEAT:
            progress(offset + n)
            beat = time.monotonic()
    return c.text()


# The data, by libraries that use the GPU. Each makes an array of 32-bit integers over
# the shared memory, without a copy; a partial last integer is left to the CPU.


def module(name, package):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        why = "is not installed" if isinstance(e, ModuleNotFoundError) else f"cannot be imported: {e}"
        raise gpufd.UnavailableError(f"{package} {why}") from None


def runtime_call(function, *args):
    """A call of CUDA's runtime API by way of CuPy, or an Error that names it."""
    runtime = module("cupy", "CuPy").cuda.runtime
    try:
        return getattr(runtime, function)(*args)
    except runtime.CUDARuntimeError as e:
        raise gpufd.Error(f"cupy.cuda.runtime.{function}: {e}") from None


class Integers:
    """__cuda_array_interface__ of the whole 32-bit integers, without the mark for what must
    not be written: PyTorch refuses what bears it. The driver refuses the write nevertheless,
    and the process' context is lost; the demo only reads."""

    def __init__(self, buffer):
        self.view = buffer.view("I32")
        described = self.view.__cuda_array_interface__
        self.__cuda_array_interface__ = {**described, "data": (described["data"][0], False)}


class CuPy:
    name = "CuPy"

    def __init__(self, buffer):
        self.lib = module("cupy", "CuPy")
        self.device = self.lib.cuda.Device(buffer.ordinal)
        self.device.use()
        self.array = self.lib.asarray(Integers(buffer))
        if self.array.size and self.array.data.ptr != buffer.ptr:
            raise gpufd.Error("CuPy has made a copy")

    def want(self, first, n, salt):
        i = self.lib.arange(first, first + n, dtype=self.lib.uint64)
        return ((i * 2 + 1337).astype(self.lib.uint32) ^ self.lib.uint32(0xDEADBEEF ^ salt)).view(self.lib.int32)

    def equal(self, a, b):
        return bool((a == b).all())

    def wait(self):
        self.device.synchronize()


class Torch:
    name = "PyTorch"

    def __init__(self, buffer):
        self.lib = module("torch", "PyTorch")
        if not self.lib.cuda.is_available():
            raise gpufd.UnavailableError("PyTorch sees no GPU")
        self.device = self.lib.device("cuda", buffer.ordinal)
        self.lib.cuda.set_device(self.device)
        self.array = self.lib.as_tensor(Integers(buffer), device=self.device)
        if self.array.numel() and self.array.data_ptr() != buffer.ptr:
            raise gpufd.Error("PyTorch has made a copy")

    def want(self, first, n, salt):
        """int32 wraps as the data does."""
        start = (2 * first + 1337) & MASK
        i = self.lib.arange(n, dtype=self.lib.int64, device=self.device) * 2 + start
        i = (i & MASK) ^ (0xDEADBEEF ^ salt)
        return self.lib.where(i >= 1 << 31, i - (1 << 32), i).to(self.lib.int32)

    def equal(self, a, b):
        return bool(self.lib.equal(a, b))

    def wait(self):
        self.lib.cuda.synchronize(self.device)


LIBRARIES = {"cupy": CuPy, "torch": Torch}
GPU_PIECE = 16 << 20  # integers that are made or compared at a time


def gpu_fill(library, buffer, salt):
    """Write the demo's data with kernels of the library."""
    whole = buffer.size // 4
    for first in range(0, whole, GPU_PIECE):
        n = min(GPU_PIECE, whole - first)
        library.array[first : first + n] = library.want(first, n, salt)
    library.wait()
    rest = buffer.size % 4
    if rest:
        buffer.write(whole * 4, pattern(whole, rest, salt))


def gpu_compare(library, buffer, salt, progress):
    """Compare with kernels of the library; what differs is looked at by the CPU."""
    whole = buffer.size // 4
    c, beat = Comparison(salt), time.monotonic()
    for first in range(0, whole, GPU_PIECE):
        n = min(GPU_PIECE, whole - first)
        if not library.equal(library.array[first : first + n], library.want(first, n, salt)):
            for offset, length in pieces(4 * n):
                c.add(4 * first + offset, buffer.read(4 * first + offset, length))
        if time.monotonic() - beat > BEAT:
            progress(4 * (first + n))
            beat = time.monotonic()
    if buffer.size % 4:
        c.add(4 * whole, buffer.read(4 * whole, buffer.size % 4))
    library.wait()
    return c.text()


def library_of(args, buffer):
    """What --with asks for, over the buffer; None for the CPU."""
    if args.library == "bindings":
        return None
    if buffer.driver != gpufd.CUDA:
        raise gpufd.UsageError(f"--with {args.library} needs a GPU")
    library = LIBRARIES[args.library](buffer)
    print(f"  {library.name} {library.lib.__version__} has an array over the memory, without a copy")
    return library


def driver_of(args):
    """The kind of driver that the flags ask for."""
    from gpufd.memory.drivers import driver_kind

    return driver_kind(args.driver)


def allocate(library, size, ordinal):
    """An array of bytes of a library, as memory that is shared by a legacy handle: it lies in
    a larger allocation, all of which is shared."""
    from gpufd.memory.cuda import CudaMemory

    if library == "cupy":
        cupy = module("cupy", "CuPy")
        with cupy.cuda.Device(ordinal):
            array = cupy.empty(size, dtype=cupy.uint8)
        handle = lambda base: bytes(runtime_call("ipcGetMemHandle", base))  # noqa: E731  # the runtime API's 64 bytes are the same
        return CudaMemory.at(array.data.ptr, size, ordinal, array, handle)
    torch = module("torch", "PyTorch")
    array = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", ordinal))
    return CudaMemory.at(array.data_ptr(), size, ordinal, array)


def opener_of(args):
    """What opens legacy memory: CuPy's runtime API, or None for the package."""
    if args.library != "cupy":
        return None
    from gpufd.memory.cuda import CudaMemory

    def opener(offer):
        lazy_enable_peer_access = 1
        return CudaMemory.opened(
            offer, args.device, lambda handle: int(runtime_call("ipcOpenMemHandle", handle, lazy_enable_peer_access)),
            lambda base: runtime_call("ipcCloseMemHandle", base),
        )  # fmt: skip

    return opener


# Flags, with the meaning that those of the commands in Go have.


def seconds(text):
    """A duration, as 30s, 1m30s, 500ms, or a number of seconds."""
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    total, number, rest = 0.0, "", text
    while rest:
        digits = len(list(itertools.takewhile(lambda c: c.isdigit() or c == ".", rest)))
        number, rest = rest[:digits], rest[digits:]
        letters = len(list(itertools.takewhile(str.isalpha, rest)))
        unit, rest = rest[:letters] or "s", rest[letters:]
        if not digits or unit not in units:
            raise argparse.ArgumentTypeError(f"want a duration as 30s or 500ms, not {text!r}")
        total += float(number) * units[unit]
    if not 0 < total < 1e6:
        raise argparse.ArgumentTypeError(f"want a duration as 30s or 500ms, not {text!r}")
    return total


def size(text):
    """Bytes, with or without KiB, MiB or GiB."""
    for suffix, unit in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)):
        if text.endswith(suffix):
            digits = text[: len(text) - len(suffix)]
            if not digits.isdecimal() or not 0 < int(digits) * unit < 1 << 63:
                raise argparse.ArgumentTypeError(f"want bytes, as 4096 or 5MiB, not {text!r}")
            return int(digits) * unit


def salt(text):
    try:
        n = int(text, 0)
    except ValueError:
        n = -1
    if not 0 <= n <= MASK:
        raise argparse.ArgumentTypeError(f"want a number of 32 bits, not {text!r}")
    return n


def uids(text):
    """Users, by number or name."""
    try:
        return frozenset(int(u) if u.isdecimal() else pwd.getpwnam(u).pw_uid for u in text.split(","))
    except KeyError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaint is a line."""

    def error(self, message):
        raise gpufd.UsageError(message)


def default_socket():
    """Where the programs meet that are not told: docs/wire.md, "The demo's data"."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "gpufd", "producer.sock")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"gpufd-{os.getuid()}", "producer.sock")


def parser(about):
    p = Parser(description=about, allow_abbrev=False)

    def flag(name, **how):
        p.add_argument(f"--{name}", f"-{name}", **how)

    flag("socket", default=default_socket(), metavar="PATH", help="path of the socket (%(default)s)")
    drivers = ("auto", "cuda", "soft")
    driver = os.environ.get("GPUFD_DRIVER") or "auto"
    if driver not in drivers:  # choices are not held against a default
        raise gpufd.UsageError(f"GPUFD_DRIVER is auto, cuda or soft, not {driver!r}")
    flag("driver", default=driver, choices=drivers,
         help="auto takes the software driver only where there is no GPU")  # fmt: skip
    flag("timeout", type=seconds, default=30.0, metavar="DURATION", help="longest wait for a peer, and for each step (30s)")
    flag("access", default="ro", choices=("ro", "rw"), help="how the memory may be mapped (ro)")
    flag("allow-uid", type=uids, default=frozenset(), metavar="U[,U…]", help="users to talk to besides our own")
    flag("with", dest="library", default="bindings", choices=("bindings", "cupy", "torch"),
         help="what touches the data on a GPU: the CPU by copies (bindings), or kernels of CuPy or PyTorch")  # fmt: skip
    return p, flag


def run(name, main):
    """Call main, and return the exit code; what went wrong is a line on standard error."""
    sys.stdout.reconfigure(line_buffering=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a chunk takes up to two descriptors
    try:
        return main() or 0
    except gpufd.Error as e:
        text, code = str(e), e.exit
    except KeyboardInterrupt:
        text, code = "interrupted", 1
    except (OSError, ValueError, OverflowError, MemoryError) as e:
        text, code = f"{type(e).__name__}: {e}", 1
    print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    return code


class Stopped(Exception):
    """A signal has asked the producer to end."""


class Signals:
    """The signals that ask the producer to end. They raise Stopped, until noted is set: then asked says whether
    one has come. While threads wait for each other, an exception at any place may leave their locks taken."""

    def __init__(self):
        self.asked = self.noted = False
        for s in (signal.SIGINT, signal.SIGTERM):
            signal.signal(s, self._come)

    def _come(self, *_):
        self.asked = True
        if not self.noted:
            raise Stopped
