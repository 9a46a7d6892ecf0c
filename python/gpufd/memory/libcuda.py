"""libcuda by ctypes: the calls that this package makes, with their prototypes, and errors
that name the call, its number and what the driver says of it."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

from ..errors import ClosedError, DriverError, UnavailableError


NOT_READY = 600
NO_DEVICE = 100

# Attributes of devices.
COMPUTE_MAJOR, COMPUTE_MINOR, HANDLE_TYPE_FD_SUPPORTED, MPS_ENABLED = 75, 76, 103, 133
HANDLE_TYPE_FD = 1
LOCATION_DEVICE, ALLOCATION_PINNED = 1, 1
PROT_READ, PROT_READWRITE = 1, 3
PROCESS_STATES = ("running", "locked", "checkpointed", "failed")


class MemLocation(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocFlags(ctypes.Structure):
    _fields_ = [("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", MemLocation),
        ("win32HandleMetaData", c_void_p),
        ("allocFlags", AllocFlags),
    ]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", MemLocation), ("flags", c_int)]


class IpcHandle(ctypes.Structure):
    """Passed by value."""

    _fields_ = [("reserved", c_char * 64)]


class Uuid(ctypes.Structure):
    _fields_ = [("bytes", c_ubyte * 16)]


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = [("timeoutMs", c_uint), ("reserved0", c_uint), ("reserved1", c_uint64 * 7)]


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair: the device that was, and the one that takes its place."""

    _fields_ = [("oldUuid", Uuid), ("newUuid", Uuid)]


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs."""

    _fields_ = [("gpuPairs", POINTER(GpuPair)), ("gpuPairsCount", c_uint), ("reserved", c_char * 44), ("reserved1", c_uint64)]


class MemOp(ctypes.Structure):
    """CUstreamBatchMemOpParams, of a word of 64 bits that is waited for or written."""

    _fields_ = [
        ("operation", c_int),
        ("address", c_uint64),
        ("value", c_uint64),
        ("flags", c_uint),
        ("alias", c_uint64),
        ("pad", c_uint64),
    ]


WAIT_64, WRITE_64 = 4, 5  # operations

PTR = c_uint64  # CUdeviceptr
HANDLE = c_uint64  # CUmemGenericAllocationHandle
DEVICE = c_int
OBJECT = c_void_p  # contexts, streams, events, modules, functions

# The functions, by the name that they have in libcuda, and the types of their arguments.
_PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [POINTER(c_int)],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(DEVICE), c_int],
    "cuDeviceGetName": [c_char_p, c_int, DEVICE],
    "cuDeviceGetUuid": [POINTER(Uuid), DEVICE],
    "cuDeviceGetUuid_v2": [POINTER(Uuid), DEVICE],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, DEVICE],
    "cuDeviceTotalMem_v2": [POINTER(c_size_t), DEVICE],
    "cuDevicePrimaryCtxRetain": [POINTER(OBJECT), DEVICE],
    "cuDevicePrimaryCtxRelease_v2": [DEVICE],
    "cuCtxPushCurrent_v2": [OBJECT],
    "cuCtxPopCurrent_v2": [POINTER(OBJECT)],
    "cuCtxSynchronize": [],
    "cuMemGetAllocationGranularity": [POINTER(c_size_t), POINTER(AllocationProp), c_int],
    "cuMemCreate": [POINTER(HANDLE), c_size_t, POINTER(AllocationProp), c_uint64],
    "cuMemRelease": [HANDLE],
    "cuMemExportToShareableHandle": [c_void_p, HANDLE, c_int, c_uint64],
    "cuMemImportFromShareableHandle": [POINTER(HANDLE), c_void_p, c_int],
    "cuMemAddressReserve": [POINTER(PTR), c_size_t, c_size_t, PTR, c_uint64],
    "cuMemAddressFree": [PTR, c_size_t],
    "cuMemMap": [PTR, c_size_t, c_size_t, HANDLE, c_uint64],
    "cuMemUnmap": [PTR, c_size_t],
    "cuMemSetAccess": [PTR, c_size_t, POINTER(AccessDesc), c_size_t],
    "cuMemAlloc_v2": [POINTER(PTR), c_size_t],
    "cuMemFree_v2": [PTR],
    "cuMemGetInfo_v2": [POINTER(c_size_t), POINTER(c_size_t)],
    "cuMemGetAddressRange_v2": [POINTER(PTR), POINTER(c_size_t), PTR],
    "cuMemcpyDtoHAsync_v2": [c_void_p, PTR, c_size_t, OBJECT],
    "cuMemcpyHtoDAsync_v2": [PTR, c_void_p, c_size_t, OBJECT],
    "cuMemcpyDtoDAsync_v2": [PTR, PTR, c_size_t, OBJECT],
    "cuMemsetD8Async": [PTR, c_ubyte, c_size_t, OBJECT],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuMemHostGetDevicePointer_v2": [POINTER(PTR), c_void_p, c_uint],
    "cuPointerGetAttribute": [c_void_p, c_int, PTR],
    "cuStreamCreate": [POINTER(OBJECT), c_uint],
    "cuStreamDestroy_v2": [OBJECT],
    "cuStreamSynchronize": [OBJECT],
    "cuStreamQuery": [OBJECT],
    "cuStreamWaitEvent": [OBJECT, OBJECT, c_uint],
    "cuStreamWaitValue64_v2": [OBJECT, PTR, c_uint64, c_uint],
    "cuStreamWriteValue64_v2": [OBJECT, PTR, c_uint64, c_uint],
    "cuStreamBatchMemOp_v2": [OBJECT, c_uint, POINTER(MemOp), c_uint],
    "cuStreamBatchMemOp": [OBJECT, c_uint, POINTER(MemOp), c_uint],
    "cuStreamIsCapturing": [OBJECT, POINTER(c_int)],
    "cuStreamWaitValue64": [OBJECT, PTR, c_uint64, c_uint],
    "cuStreamWriteValue64": [OBJECT, PTR, c_uint64, c_uint],
    "cuEventCreate": [POINTER(OBJECT), c_uint],
    "cuEventDestroy_v2": [OBJECT],
    "cuEventRecord": [OBJECT, OBJECT],
    "cuEventQuery": [OBJECT],
    "cuEventSynchronize": [OBJECT],
    "cuIpcGetMemHandle": [POINTER(IpcHandle), PTR],
    "cuIpcOpenMemHandle_v2": [POINTER(PTR), IpcHandle, c_uint],
    "cuIpcCloseMemHandle": [PTR],
    "cuIpcGetEventHandle": [POINTER(IpcHandle), OBJECT],
    "cuIpcOpenEventHandle": [POINTER(OBJECT), IpcHandle],
    "cuModuleLoadData": [POINTER(OBJECT), c_void_p],
    "cuModuleUnload": [OBJECT],
    "cuModuleGetFunction": [POINTER(OBJECT), OBJECT, c_char_p],
    "cuCheckpointProcessGetState": [c_int, POINTER(c_int)],
    "cuCheckpointProcessLock": [c_int, POINTER(LockArgs)],
    "cuCheckpointProcessCheckpoint": [c_int, c_void_p],
    "cuCheckpointProcessRestore": [c_int, POINTER(RestoreArgs)],
    "cuCheckpointProcessUnlock": [c_int, c_void_p],
    "cuLaunchKernel": [OBJECT, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, OBJECT, POINTER(c_void_p), POINTER(c_void_p)],
}

# Where the newer function is missing, the older one has the same arguments.
_OLDER = {
    "cuDeviceGetUuid_v2": "cuDeviceGetUuid",
    "cuStreamWaitValue64_v2": "cuStreamWaitValue64",
    "cuStreamWriteValue64_v2": "cuStreamWriteValue64",
    "cuStreamBatchMemOp_v2": "cuStreamBatchMemOp",
}

# The calls whose results that mean "not supported" say so of this machine; of others
# they say it of what came.
_PROBES = ("cuInit", "cuDevice", "cuCtx", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExport", "cuMemImport", "cuIpc")
_NOT_HERE = (100, 801, 803, 804)


class Libcuda:
    """An opened libcuda. Calls are methods by name: ``call("cuMemUnmap", ptr, size)``."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self._lib = lib
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """The C function, with its prototype; UnavailableError where the driver lacks it."""
        f = self._functions.get(name)
        if f is not None:
            return f
        prototype = _PROTOTYPES[name]
        try:
            f = getattr(self._lib, name)
        except AttributeError:
            if name in _OLDER:
                return self.function(_OLDER[name])
            raise UnavailableError(f"the driver has no {name}: it is too old") from None
        f.argtypes, f.restype = prototype, c_int
        self._functions[name] = f
        return f

    def code(self, name: str, *args: Any) -> int:
        """Call a function, for its CUresult."""
        return int(self.function(name)(*args))

    def call(self, name: str, *args: Any) -> None:
        """Call a function; DriverError unless it succeeds."""
        self.check(name, self.code(name, *args))

    def check(self, name: str, code: int) -> None:
        """Raise what a driver call says, unless it is success."""
        if code:
            raise self.error(name, code)

    def error(self, name: str, code: int) -> DriverError:
        plain = name.split("_v")[0]
        reason = "unavailable" if code in _NOT_HERE and plain.startswith(_PROBES) else ""
        return DriverError(plain, code, self._text("cuGetErrorName", code), self._text("cuGetErrorString", code), reason=reason)

    def _text(self, function: str, code: int) -> str:
        out = c_char_p()
        if self.function(function)(code, ctypes.byref(out)) or not out.value:
            return "an error that the driver has no name for"
        return out.value.decode("utf-8", "replace")

    # Calls that give something back.

    def made(self, name: str, *args: Any, of: Any = c_void_p) -> int:
        """Call a function whose first argument is where it puts what it makes."""
        out = of()
        self.call(name, ctypes.byref(out), *args)
        return int(out.value or 0)

    def device_count(self) -> int:
        return self.made("cuDeviceGetCount", of=c_int)

    def device(self, ordinal: int) -> int:
        return self.made("cuDeviceGet", ordinal, of=c_int)

    def attribute(self, device: int, attribute: int) -> int:
        return self.made("cuDeviceGetAttribute", attribute, device, of=c_int)

    def total_memory(self, device: int) -> int:
        """Bytes of a device, in use or not."""
        return self.made("cuDeviceTotalMem_v2", device, of=c_size_t)

    def device_name(self, device: int) -> str:
        out = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", out, 128, device)
        return out.value.decode("utf-8", "replace").strip()

    def uuid(self, device: int) -> bytes:
        """As the wire has it: that of the MIG instance, where there are such."""
        out = Uuid()
        self.call("cuDeviceGetUuid_v2", ctypes.byref(out), device)
        return bytes(out.bytes)

    def uuids(self) -> list[bytes]:
        """Return the UUIDs of all devices that are visible, by ordinal."""
        return [self.uuid(self.device(i)) for i in range(self.device_count())]

    def current(self, context: int) -> Current:
        """Make a context current in this thread, and what was before afterwards: ``with lib.current(context):``."""
        return Current(self, context)


class Current:
    """A context that is current in this thread, for a ``with``."""

    __slots__ = "_context", "_lib"

    def __init__(self, lib: Libcuda, context: int) -> None:
        self._lib, self._context = lib, context

    def __enter__(self) -> Libcuda:
        self._lib.call("cuCtxPushCurrent_v2", self._context)
        return self._lib

    def __exit__(self, *_: object) -> None:
        self._lib.call("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))


_lock = threading.Lock()
_opened: Libcuda | None = None
_pid = 0  # of the process that has opened it


def load() -> Libcuda:
    """libcuda, initialised. UnavailableError where there is none, DriverError where its
    cuInit fails."""
    global _opened, _pid
    with _lock:
        if _opened is not None and _pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {_pid}, which uses CUDA: a child cannot (multiprocessing: use spawn)", reason="forked")
        if _opened is None:
            try:
                lib = Libcuda(ctypes.CDLL("libcuda.so.1"))
            except OSError:
                raise UnavailableError("libcuda could not be opened; without a GPU there is the software driver (GPUFD_DRIVER=soft)") from None
            lib.call("cuInit", 0)
            _opened, _pid = lib, os.getpid()
        return _opened


def has_device() -> bool:
    """Return whether there is a libcuda that finds a device. A driver that is broken in another
    way is an error."""
    try:
        load()
    except DriverError as e:
        if e.number == NO_DEVICE:
            return False
        raise
    except UnavailableError:
        return False
    return True
