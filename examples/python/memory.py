"""Memory behind the descriptors of an offer: of the software driver, or of a GPU.

Soft copies from and to the files that stand for its memory. Cuda goes by way of
cuda.bindings; what it maps has __cuda_array_interface__, so that CuPy and PyTorch take
it without a copy.
Either is a Buffer: read and write are for any range, and close gives all of it back.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib
import mmap
import os
import secrets
import stat
import struct
import time

from gpufd import CUDA, LEGACY, MAX_CHUNKS, READ_ONLY, READ_WRITE, SOFT, CannotHere, Error, Offer, process_flags, replace

GRANULARITY = 2 << 20  # of the software driver


def layout(size, chunk, granularity):
    """The number of chunks and the size of each for a buffer of size bytes."""
    chunk = -(-(chunk or size) // granularity) * granularity
    chunks = -(-size // chunk)
    if chunks > MAX_CHUNKS:
        raise Error(f"{size} bytes in chunks of {chunk} are {chunks} chunks, and {MAX_CHUNKS} are allowed")
    return chunks, chunk


class Buffer:
    """Memory in equal chunks, side by side; descriptors of it if it was made here."""

    driver = granularity = size = chunk = chunks = 0
    device = bytes(16)
    handle, offset = b"", 0  # of memory that is shared by a legacy handle
    takes_legacy = False  # whether take opens those
    access = READ_WRITE

    def __init__(self):
        self.fds = []  # ours; one a chunk
        self.undo = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.undo.close()
        self.fds = []

    def offer(self, name, access, data):
        """The offer of all of it."""
        generation = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        offer = Offer(self.driver, access, self.chunks, self.device, self.size, self.chunk, self.granularity, generation,
                      0, min(64, self.chunks), name, data, process=process_flags(self.driver))  # fmt: skip
        if self.handle:  # anybody who opens it may write
            offer = replace(offer, access=READ_WRITE, fds=0, handle_type=LEGACY, offset=self.offset, handle=self.handle)
        return offer

    def own(self, fd):
        self.fds.append(fd)
        self.undo.callback(os.close, fd)


# The software driver.

TRAILER = struct.Struct("<16sIIQ16s8s8s")  # magic, kind, ordinal, size, device, id, pool
TRAILER_SIZE = 4096
TRAILER_MAGIC = b"gpufd soft mem 1"


def soft_directory():
    """Where the software driver keeps its memory, as docs/wire.md says."""
    if os.environ.get("GPUFD_SOFT_DIR"):
        return os.environ["GPUFD_SOFT_DIR"]
    want = 2 << 30
    text = os.environ.get("GPUFD_SOFT_MEMORY", "")
    for suffix, unit in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)):
        if text and text.endswith(suffix):
            want = int(text[: len(text) - len(suffix)]) * unit
            break
    name = f"gpufd-soft-{os.geteuid()}"
    with contextlib.suppress(OSError):
        st = os.statvfs("/dev/shm")
        if st.f_blocks * st.f_frsize >= want and is_tmpfs("/dev/shm"):
            return os.path.join("/dev/shm", name)
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", name)


def is_tmpfs(path):
    with open("/proc/self/mounts") as f:
        mounts = [line.split() for line in f]
    return [m[2] for m in mounts if m[1] == path][-1:] == ["tmpfs"]


def soft_machine():
    """The 16 bytes that the devices' UUIDs are made of; made here if they are not there."""
    path = soft_directory()
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    st = os.lstat(path)
    if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o077:
        raise CannotHere(f"{path}: is no directory of ours that nobody else can enter")
    lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        name = os.path.join(path, "machine")
        if not os.path.exists(name):
            with open(name + ".new", "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
                f.write(secrets.token_hex(16) + "\n")
            os.rename(name + ".new", name)
        with open(name) as f:
            return bytes.fromhex(f.read().strip())
    finally:
        os.close(lock)


def soft_uuid(ordinal):
    return hashlib.sha256(f"gpufd soft device {ordinal} of {soft_machine().hex()}".encode()).digest()[:16]


class Soft(Buffer):
    """Its memory is files, which whoever has a descriptor can cut off. read and write copy
    by system calls: they raise OSError then. What view gives cannot: see there."""

    driver, granularity = SOFT, GRANULARITY
    about = "software driver: files, read and written by Python"

    def __init__(self):
        super().__init__()
        self.files, self.views = [], {}  # a descriptor a chunk; maps of those that were asked for

    @classmethod
    def make(cls, size, chunk=0, device=0):
        """Memory of our own. It is in no directory: the descriptors are all there is."""
        b = cls()
        try:
            b.size, b.device = size, soft_uuid(device)
            b.chunks, b.chunk = layout(size, chunk, GRANULARITY)
            for _ in range(b.chunks):
                b.own(os.memfd_create("gpufd", os.MFD_CLOEXEC))
                os.posix_fallocate(b.fds[-1], 0, b.chunk + TRAILER_SIZE)
                trailer = TRAILER.pack(TRAILER_MAGIC, 1, device, b.chunk, b.device, secrets.token_bytes(8), bytes(8))
                os.pwrite(b.fds[-1], trailer, b.chunk)
                b.files.append(b.fds[-1])
            return b
        except BaseException:
            b.close()
            raise

    @classmethod
    def make_legacy(cls, size, device=0, library=None):
        raise CannotHere("the software driver's legacy handles are for its own processes; take --handle vmm")

    @classmethod
    def take(cls, offer, fds, access, device=None, library=None):
        """The memory of an offer. The descriptors stay the caller's."""
        if offer.legacy:
            raise CannotHere("a legacy handle of the software driver can only be opened by its own processes; have the producer take -handle vmm")
        if device is not None and offer.device != soft_uuid(device):
            raise Error(f"memory of another device: it is on {offer.device.hex()}, and device {device} was asked for")
        b = cls()
        try:
            b.size, b.chunks, b.chunk, b.device = offer.size, offer.chunks, offer.chunk_size, offer.device
            b.access = access
            for fd in fds:
                check_trailer(fd, offer)
                b.hold(fd)
            return b
        except BaseException:
            b.close()
            raise

    def hold(self, fd):
        own = os.dup(fd)
        self.undo.callback(os.close, own)
        self.files.append(own)

    def view(self, i):
        """A chunk's bytes, mapped. Python dies by SIGBUS when it touches what a holder of a
        descriptor has cut off, so this is for peers that are trusted."""
        if i not in self.views:
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if self.access == READ_WRITE else 0)
            self.views[i] = mmap.mmap(self.files[i], self.chunk, mmap.MAP_SHARED, prot)
            self.undo.callback(self.views[i].close)
        return self.views[i]

    def close(self):
        self.files, self.views = [], {}
        super().close()

    def ranges(self, at, n):
        """Chunk, offset in it and length of each part of a range."""
        while n:
            i, offset = divmod(at, self.chunk)
            part = min(n, self.chunk - offset)
            yield i, offset, part
            at, n = at + part, n - part

    def read(self, at, n):
        return b"".join(self.read_part(*part) for part in self.ranges(at, n))

    def read_part(self, i, at, n):
        """As many bytes as a system call gives at once, until all are there."""
        got = b""
        while len(got) < n:
            more = os.pread(self.files[i], n - len(got), at + len(got))
            if not more:
                raise cut_off(i)
            got = got + more if got else more
        return got

    def write(self, at, data):
        if self.access != READ_WRITE:
            raise Error("the memory was attached read-only and cannot be written")
        left = memoryview(data)
        for i, offset, part in self.ranges(at, len(left)):
            self.write_part(i, offset, left[:part])
            left = left[part:]

    def write_part(self, i, at, data):
        if os.fstat(self.files[i]).st_size < at + len(data):  # the call would make it longer again
            raise cut_off(i)
        while data:
            n = os.pwrite(self.files[i], data, at)
            at, data = at + n, data[n:]

    def finish(self):
        """What was written is there: it is memory."""


def cut_off(chunk):
    return OSError(errno.EFAULT, f"chunk {chunk} was cut off: a holder of its descriptor has made the file shorter")


def check_trailer(fd, offer):
    """Raise unless the descriptor is memory of the software driver as the offer says."""
    st = os.fstat(fd)
    fault = None
    if not stat.S_ISREG(st.st_mode) or st.st_size < TRAILER_SIZE:
        fault = "the descriptor is no memory of the software driver"
    elif st.st_blocks * 512 < st.st_size:  # to read it would take memory of this machine
        fault = "the descriptor is no memory of the software driver: the file has holes"
    elif st.st_size != offer.chunk_size + TRAILER_SIZE:
        fault = f"the chunk size is not the size of the memory that came: {offer.chunk_size} and {st.st_size - TRAILER_SIZE}"
    else:
        magic, kind, _, size, device, _, _ = TRAILER.unpack(os.pread(fd, TRAILER.size, offer.chunk_size))
        if magic != TRAILER_MAGIC or kind != 1 or size != offer.chunk_size:
            fault = "the descriptor is no memory of the software driver"
        elif device != offer.device:
            fault = "the memory is of another device than the offer says"
    if fault:
        raise Error(fault)


# CUDA.

# The calls whose results that mean "not supported" say so of this machine; of others
# they say it of what came.
PROBES = ("cuInit", "cuDevice", "cuCtx", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExport", "cuMemImport", "cuIpc")


def module(name, package):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        why = "is not installed" if isinstance(e, ModuleNotFoundError) else f"cannot be imported: {e}"
        raise CannotHere(f"{package} {why}") from None


def runtime_call(function, *args):
    """A call of CUDA's runtime API by way of CuPy, or an Error that names it."""
    runtime = module("cupy", "CuPy").cuda.runtime
    try:
        return getattr(runtime, function)(*args)
    except runtime.CUDARuntimeError as e:
        raise Error(f"cupy.cuda.runtime.{function}: {e}") from None


def libcuda():
    """Whether there is a libcuda, and what its cuInit says."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False, None
    return True, lib.cuInit(0)


class Cuda(Buffer):
    """Memory of a GPU, in the primary context of its device, which stays current in the
    calling thread. ptr is the address."""

    driver, takes_legacy = CUDA, True

    def __init__(self):
        super().__init__()
        self.cu = module("cuda.bindings.driver", "cuda.bindings")
        self.ptr = self.ordinal = 0
        self.access = READ_WRITE
        self.call("cuInit", 0)

    @property
    def about(self):
        return f"libcuda by way of cuda.bindings, device {self.ordinal}: {self.name}"

    def call(self, function, *args):
        """A driver call: what it returns, or an Error that names it."""
        code, *out = getattr(self.cu, function)(*args)
        self.check(function, code)
        return out[0] if len(out) == 1 else out or None

    def check(self, function, code):
        """Raise what a driver call says, unless it is success."""
        if code != self.cu.CUresult.CUDA_SUCCESS:
            _, text = self.cu.cuGetErrorString(code)
            words = text.decode() if isinstance(text, bytes) else str(text)
            kind = CannotHere if int(code) in (100, 801, 803, 804) and function.startswith(PROBES) else Error
            raise kind(f"{function}: {code.name} ({int(code)}): {words}")

    def uuid(self, ordinal):
        """As the wire has it: that of the MIG instance, where there are such."""
        get = "cuDeviceGetUuid_v2" if hasattr(self.cu, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        raw = self.call(get, self.call("cuDeviceGet", ordinal)).bytes
        return bytes(raw)[:16].ljust(16, b"\0")

    def open_device(self, ordinal, legacy=False):
        """Make the device's primary context current, as CuPy and PyTorch do."""
        cu, device = self.cu, self.call("cuDeviceGet", ordinal)
        if not legacy:
            attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            if not self.call("cuDeviceGetAttribute", attribute, device):
                raise CannotHere(f"device {ordinal} does not export memory as file descriptors")
        context = self.call("cuDevicePrimaryCtxRetain", device)
        self.undo.callback(self.call, "cuDevicePrimaryCtxRelease", device)
        self.call("cuCtxSetCurrent", context)
        name = self.call("cuDeviceGetName", 128, device)
        self.name = (name.split(b"\0")[0].decode() if isinstance(name, bytes) else str(name)).strip()
        self.ordinal, self.device = ordinal, self.uuid(ordinal)
        if legacy:
            return
        self.prop = cu.CUmemAllocationProp()
        self.prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.prop.location.id = ordinal
        self.prop.requestedHandleTypes = self.handle_type
        least = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self.call("cuMemGetAllocationGranularity", self.prop, least))

    @property
    def handle_type(self):
        return self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    @classmethod
    def make(cls, size, chunk=0, device=0):
        """Memory of our own, mapped read-write, with a descriptor for each chunk."""
        b = cls()
        try:
            b.open_device(device)
            b.size = size
            b.chunks, b.chunk = layout(size, chunk, b.granularity)

            def handle(_):
                h = b.call("cuMemCreate", b.chunk, b.prop, 0)
                b.undo.callback(b.call, "cuMemRelease", h)
                b.own(int(b.call("cuMemExportToShareableHandle", h, b.handle_type, 0)))
                os.set_inheritable(b.fds[-1], False)
                return h

            b.map(handle, READ_WRITE)
            return b
        except BaseException:
            b.close()
            raise

    @classmethod
    def make_legacy(cls, size, device=0, library=None):
        """Memory that is shared by a legacy handle: of cuMemAlloc, or an array that the
        library has allocated, which lies in a larger allocation, all of it shared."""
        b = cls()
        try:
            b.open_device(device, legacy=True)
            b.size, b.chunks = size, 1
            if library is None:
                b.ptr = int(b.call("cuMemAlloc", -(-size // GRANULARITY) * GRANULARITY))
                b.undo.callback(b.call, "cuMemFree", b.ptr)
            else:
                array, b.ptr = allocate(library, size, device)
                b.undo.callback(lambda kept: None, array)
            base, b.chunk = (int(n) for n in b.call("cuMemGetAddressRange", b.ptr))
            b.offset, b.handle = b.ptr - base, b.ipc_handle(base, library)
            return b
        except BaseException:
            b.close()
            raise

    def ipc_handle(self, base, library):
        if library == "cupy":  # the runtime API's 64 bytes are the same
            return bytes(runtime_call("ipcGetMemHandle", base))
        return bytes(self.call("cuIpcGetMemHandle", base).reserved)

    def open_legacy(self, offer, device, library):
        """Open the memory of a legacy offer, on its device if that is visible here."""
        here = [self.uuid(i) for i in range(self.call("cuDeviceGetCount"))]
        hidden = offer.device not in here and device is None
        self.open_device(0 if hidden else self.find(offer.device, device), legacy=True)
        self.size, self.chunks, self.chunk, self.device = offer.size, 1, offer.chunk_size, offer.device
        if library == "cupy":
            lazy_enable_peer_access = 1
            base = int(runtime_call("ipcOpenMemHandle", offer.handle, lazy_enable_peer_access))
            self.undo.callback(runtime_call, "ipcCloseMemHandle", base)
        else:
            handle = self.cu.CUipcMemHandle()
            handle.reserved = offer.handle
            lazy = self.cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            base = int(self.call("cuIpcOpenMemHandle", handle, int(lazy)))
            self.undo.callback(self.call, "cuIpcCloseMemHandle", base)
        _, whole = self.call("cuMemGetAddressRange", base)
        if int(whole) < offer.chunk_size:
            raise Error(f"the allocation is of {int(whole)} bytes, and the offer says {offer.chunk_size}")
        self.ptr = base + offer.offset

    @classmethod
    def take(cls, offer, fds, access, device=None, library=None):
        """The memory of an offer, on whichever device it is. The descriptors stay the
        caller's."""
        b = cls()
        if offer.legacy:
            try:
                b.open_legacy(offer, device, library)
                return b
            except BaseException:
                b.close()
                raise
        try:
            b.open_device(b.find(offer.device, device))
            if offer.chunk_size % b.granularity:
                raise Error(f"the chunk size, {offer.chunk_size}, is no multiple of the granularity here, {b.granularity}")
            b.size, b.chunks, b.chunk = offer.size, offer.chunks, offer.chunk_size

            def handle(i):
                if fds[i] == 0:
                    raise Error("descriptor 0 cannot be imported; start this program with standard input open")
                h = b.call("cuMemImportFromShareableHandle", fds[i], b.handle_type)
                b.undo.callback(b.call, "cuMemRelease", h)
                return h

            b.map(handle, access)
            return b
        except BaseException:
            b.close()
            raise

    def find(self, uuid, wanted):
        """The ordinal here of the device with that UUID."""
        here = [self.uuid(i) for i in range(self.call("cuDeviceGetCount"))]
        if uuid not in here:
            raise Error(f"the memory is on device {uuid.hex()}, which is not visible to this process (CUDA_VISIBLE_DEVICES?)")
        if wanted not in (None, here.index(uuid)):
            raise Error(f"memory of another device: it is on {uuid.hex()}, and device {wanted} was asked for")
        return here.index(uuid)

    def map(self, handle_of, access):
        """Reserve address space, map a handle for each chunk there and set access."""
        cu, whole = self.cu, self.chunks * self.chunk
        self.access = access
        self.ptr = int(self.call("cuMemAddressReserve", whole, 0, 0, 0))
        self.undo.callback(self.call, "cuMemAddressFree", self.ptr, whole)
        for i in range(self.chunks):
            at = self.ptr + i * self.chunk
            handle = handle_of(i)
            self.call("cuMemMap", at, self.chunk, 0, handle, 0)
            self.undo.callback(self.call, "cuMemUnmap", at, self.chunk)
        desc = cu.CUmemAccessDesc()
        desc.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        desc.location.id = self.ordinal
        flags = cu.CUmemAccess_flags
        desc.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if access == READ_WRITE else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        self.call("cuMemSetAccess", self.ptr, whole, [desc], 1)

    def read(self, at, n):
        host = ctypes.create_string_buffer(n)
        self.call("cuMemcpyDtoH", ctypes.addressof(host), self.ptr + at, n)
        return host.raw

    def write(self, at, data):
        host = ctypes.create_string_buffer(bytes(data), len(data))
        self.call("cuMemcpyHtoD", self.ptr + at, ctypes.addressof(host), len(data))

    def finish(self):
        """Wait for all work on the memory, which has to be done before it is offered."""
        self.call("cuCtxSynchronize")

    def integers(self):
        """The whole 32-bit integers, for libraries: see View."""
        return View(self)


def allocate(library, size, ordinal):
    """An array of bytes of a library, and where it is."""
    if library == "cupy":
        cupy = module("cupy", "CuPy")
        with cupy.cuda.Device(ordinal):
            array = cupy.empty(size, dtype=cupy.uint8)
        return array, array.data.ptr
    torch = module("torch", "PyTorch")
    array = torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", ordinal))
    return array, array.data_ptr()


class View:
    """__cuda_array_interface__ of a buffer's 32-bit integers. Who takes it keeps it, and
    it the buffer; but close of the buffer unmaps, whoever still looks.

    The interface has a mark for what must not be written. PyTorch refuses what bears it,
    so the mark is left away; the driver refuses the write nevertheless.
    """

    def __init__(self, buffer):
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "shape": (buffer.size // 4,),
            "typestr": "<i4",
            "data": (buffer.ptr, False),
            "strides": None,
            "version": 3,
        }


def choose(name):
    """The class of a driver: auto takes the software driver where there is no GPU."""
    if name == "soft":
        return Soft
    there, code = libcuda()
    if name == "auto" and (not there or code == 100):
        return Soft
    if not there:
        raise CannotHere("libcuda could not be opened; without a GPU there is --driver soft")
    return Cuda
