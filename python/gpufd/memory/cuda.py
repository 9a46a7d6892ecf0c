"""Memory of a GPU, by ctypes calls of libcuda, in the primary context of its device, which
PyTorch, CuPy, numba and JAX use as well.

Every call pushes that context and pops it, so a thread keeps the one that it had. The
primary context is retained once for each device, until the process ends: a context that
went with its last user would be made anew, and take a third of a second each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from ..errors import DriverError, Error, MismatchError, UnavailableError, UsageError
from ..wire.records import CUDA, MAY_OUTLIVE, READ_WRITE, Offer
from . import libcuda as cu
from . import mapped
from .base import Memory, layout, new_generation
from .buffer import address_of
from .device import device_name
from .reservation import Reservation

LEGACY_GRANULARITY = 2 << 20
_IPC_LAZY_PEER_ACCESS = 1
EVENT_DISABLE_TIMING = 2

_contexts: dict[int, int] = {}
_contexts_lock = threading.Lock()


def context_of(ordinal: int) -> int:
    """The device's primary context, which is retained for as long as the process lives."""
    lib = cu.load()
    with _contexts_lock:
        if ordinal not in _contexts:
            _contexts[ordinal] = lib.made("cuDevicePrimaryCtxRetain", lib.device(ordinal))
        return _contexts[ordinal]


# Facts that do not change while a process lives are asked for once: attaching is to be quick.


@functools.cache
def _devices() -> list[bytes]:
    """The UUIDs of all devices that are visible, by ordinal."""
    return cu.load().uuids()


@functools.cache
def _facts(ordinal: int) -> tuple[bytes, str, bool]:
    """UUID and name of a device, and whether it exports memory as descriptors."""
    lib = cu.load()
    device = lib.device(ordinal)
    return lib.uuid(device), lib.device_name(device), bool(lib.attribute(device, cu.HANDLE_TYPE_FD_SUPPORTED))


@functools.cache
def _granularity(ordinal: int) -> int:
    prop, least = _prop(ordinal), 0
    return cu.load().made("cuMemGetAllocationGranularity", ctypes.byref(prop), least, of=ctypes.c_size_t)


def _prop(ordinal: int) -> cu.AllocationProp:
    return cu.AllocationProp(cu.ALLOCATION_PINNED, cu.HANDLE_TYPE_FD, cu.MemLocation(cu.LOCATION_DEVICE, ordinal))


@functools.cache
def _shares_contexts(ordinal: int) -> bool:
    """Return whether the device's contexts are those of MPS."""
    lib = cu.load()
    return lib.attribute(lib.device(ordinal), cu.MPS_ENABLED) != 0


def forget() -> None:
    """Ask anew: the driver's checkpoint may have restored the process on other devices."""
    _devices.cache_clear()
    _facts.cache_clear()
    _granularity.cache_clear()
    _shares_contexts.cache_clear()


def process_flags(ordinal: int = 0) -> int:
    """The flags of this process: whether its work may outlive it, under MPS."""
    try:
        cu.load()  # not in a child after a fork
        return MAY_OUTLIVE if _shares_contexts(ordinal) else 0
    except (DriverError, UnavailableError):
        return MAY_OUTLIVE


def find(uuid: bytes, wanted: int | None) -> int:
    """The ordinal here of the device with that UUID."""
    here = _devices()
    if uuid not in here:
        raise MismatchError(f"the memory is on device {device_name(uuid)}, which is not visible to this process (CUDA_VISIBLE_DEVICES?)", reason="device")
    if wanted not in (None, here.index(uuid)):
        raise MismatchError(f"memory of another device: it is on {device_name(uuid)}, and device {wanted} was asked for", reason="device")
    return here.index(uuid)


class CudaMemory(Memory):
    """Memory of a GPU. ``ptr`` is its device address."""

    driver = CUDA
    takes_legacy = True

    def __init__(self, access: int = READ_WRITE) -> None:
        super().__init__(access)
        self.cu = cu.load()
        self.context = 0
        self.name = ""
        self.event = 0  # behind our last work on the memory that was not waited for, or 0
        self._capacity = 0  # bytes that it can grow to
        self._handles: list[int] = []  # of the chunks

    @property
    def about(self) -> str:  # type: ignore[override]
        return f"libcuda by ctypes, device {self.ordinal}: {self.name}"

    @property
    def ptr(self) -> int:
        self.check()
        return self.mapped_at()

    @staticmethod
    def reserve(size: int, ordinal: int) -> Reservation:
        """Reserve so many bytes of address space, rounded up to the granularity of a device."""
        size, lib, context = -(-size // _granularity(ordinal)) * _granularity(ordinal), cu.load(), context_of(ordinal)

        def free(ptr: int, size: int) -> None:
            with lib.current(context):
                lib.call("cuMemAddressFree", ptr, size)

        with lib.current(context):
            return Reservation(CUDA, lib.made("cuMemAddressReserve", size, 0, 0, 0, of=cu.PTR), size, free)

    def current(self) -> cu.Current:
        """The driver, with the memory's context current in this thread, for a ``with``."""
        self.check()
        return self.cu.current(self.context)

    def _later(self, name: str, *args: object) -> None:
        """Note a call that close makes, in the context."""
        self._undo.callback(self.cu.call, name, *args)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Have the context current once for all calls that are due. They are made in any case: descriptors are to be closed."""
        code = self.cu.code("cuCtxPushCurrent_v2", self.context) if self.context else 0
        try:
            yield
        finally:
            self.cu.check("cuCtxPushCurrent_v2", code)
            if self.context:
                self.cu.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _open(self, ordinal: int, legacy: bool = False) -> None:
        uuid, name, exports = _facts(ordinal)
        if not legacy and not exports:
            raise UnavailableError(f"device {ordinal} does not export memory as file descriptors")
        self.context, self.ordinal, self.uuid, self.name = context_of(ordinal), ordinal, uuid, name
        if not legacy:
            self.granularity = _granularity(ordinal)

    # Memory of our own.

    @classmethod
    def make(cls, size: int, chunk: int = 0, device: int = 0, capacity: int = 0) -> CudaMemory:
        """Memory of our own, mapped read-write, with a descriptor for each chunk."""
        b = cls()
        try:
            b._open(device)
            chunks, b.chunk = layout(size, chunk, b.granularity)
            with b.current():
                b._capacity = layout(max(capacity, size), b.chunk, b.granularity)[0] * b.chunk
                b._own_range = b.reserve(b._capacity, device)
                b._map_at(b._mapping, b._own_range)
                b.reservation = b._own_range
                b._append(chunks)
            b.size, b.generation = size, new_generation()
            return b
        except BaseException:
            b.close()
            raise

    # These are called with the context current, once for all chunks.

    def _append(self, chunks: int) -> None:
        """Allocate and map until there are so many chunks."""
        before = self.chunks
        while self.chunks < chunks:
            self._handles.append(self._created())
            self._map_chunk(self._mapping, self.ptr, self.chunks)
            self.chunks += 1
        if self.chunks > before:  # the driver sets no access of 0 bytes
            self._set_access(self.ptr, before, self.chunks)

    def _created(self) -> int:
        prop = _prop(self.ordinal)
        handle = self.cu.made("cuMemCreate", self.chunk, ctypes.byref(prop), 0, of=cu.HANDLE)
        self._imports.callback(self.cu.call, "cuMemRelease", handle)
        fd = ctypes.c_int(-1)
        self.cu.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, cu.HANDLE_TYPE_FD, 0)
        self._own(fd.value)
        os.set_inheritable(fd.value, False)
        return handle

    def _map_at(self, mapping: contextlib.ExitStack, at: Reservation) -> None:
        at.take(CUDA, len(self._handles) * self.chunk, self._what())
        mapping.callback(at.leave)
        if self._handles:
            self._map_all(mapping, at.ptr)

    # The driver imports and maps one chunk at a time, also for several threads: docs/driver-facts.md, "Cost".
    # bench/python/attach.py measures other ways.

    def _import_all(self, fds: Sequence[int]) -> list[int]:
        return [self._imported(fd) for fd in fds]

    def _map_all(self, mapping: contextlib.ExitStack, ptr: int) -> None:
        for i in range(len(self._handles)):
            self._map_chunk(mapping, ptr, i)
        self._set_access(ptr, 0, len(self._handles))

    def _map_chunk(self, mapping: contextlib.ExitStack, ptr: int, i: int) -> None:
        at = ptr + i * self.chunk
        self.cu.call("cuMemMap", at, self.chunk, 0, self._handles[i], 0)
        mapping.callback(self.cu.call, "cuMemUnmap", at, self.chunk)

    def _set_access(self, ptr: int, first: int, end: int) -> None:
        prot = cu.PROT_READWRITE if self.access == READ_WRITE else cu.PROT_READ
        desc = cu.AccessDesc(cu.MemLocation(cu.LOCATION_DEVICE, self.ordinal), prot)
        self.cu.call("cuMemSetAccess", ptr + first * self.chunk, (end - first) * self.chunk, ctypes.byref(desc), 1)

    def grow(self, size: int) -> None:
        with self._lock:
            self.check()
            if size <= self.size or self.handle or not self._capacity:
                raise UsageError(f"memory of {self.size} bytes cannot grow to {size}")
            if size > self._capacity:
                raise UsageError(f"{size} bytes, and there is room for {self._capacity} (capacity)")
            with self.current():
                self._append(layout(size, self.chunk, self.granularity)[0])
            self.size, self.generation = size, new_generation()

    def protect(self, access: int) -> None:
        with self._lock:
            self.check()
            self.access = access
            with self.current():
                self._set_access(self.ptr, 0, self.chunks)

    @classmethod
    def plain(cls, size: int, device: int = 0) -> CudaMemory:
        """Memory of cuMemAlloc."""
        b = cls()
        try:
            b._open(device, legacy=True)
            b.size, b.chunks, b.generation = size, 1, new_generation()
            b.chunk = -(-size // LEGACY_GRANULARITY) * LEGACY_GRANULARITY
            with b.current() as lib:
                b._ptr = lib.made("cuMemAlloc_v2", b.chunk, of=cu.PTR)
            b._later("cuMemFree_v2", b._ptr)
            return b
        except BaseException:
            b.close()
            raise

    @classmethod
    def make_legacy(cls, size: int, device: int = 0) -> CudaMemory:
        """Memory that is shared by a legacy handle: all of its allocation."""
        b = cls.plain(size, device)
        try:
            b._share()
            return b
        except BaseException:
            b.close()
            raise

    @classmethod
    def at(cls, ptr: int, size: int, device: int, owner: object, handle_of: Callable[[int], bytes] | None = None) -> CudaMemory:
        """size bytes at ptr of memory of cuMemAlloc that owner keeps: another library's
        array, offered by a legacy handle. Its whole allocation is shared. handle_of makes
        the handle of the allocation at an address; without it the driver does."""
        b = cls()
        try:
            b._open(device, legacy=True)
            b.size, b.chunks, b.generation, b._ptr = size, 1, new_generation(), ptr
            b._undo.callback(lambda kept: None, owner)
            b._share(handle_of)
            return b
        except BaseException:
            b.close()
            raise

    def _share(self, handle_of: Callable[[int], bytes] | None = None) -> None:
        base, self.chunk = self._range(self._ptr)
        self.offset = self._ptr - base
        if handle_of:
            self.handle = handle_of(base)
            return
        raw = cu.IpcHandle()
        with self.current() as lib:
            lib.call("cuIpcGetMemHandle", ctypes.byref(raw), base)
        self.handle = bytes(raw)

    def _range(self, ptr: int) -> tuple[int, int]:
        """Where the allocation begins that an address is in, and its size."""
        base, whole = cu.PTR(), ctypes.c_size_t()
        with self.current() as lib:
            lib.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(whole), ptr)
        return int(base.value), int(whole.value)

    # Memory of others.

    @classmethod
    def take(
        cls, offer: Offer, fds: Sequence[int], access: int, device: int | None = None, reoffer: bool = False, at: Reservation | None = None
    ) -> CudaMemory:
        """The memory of an offer, on whichever device it is, mapped at a reservation if there is one. The descriptors
        stay the caller's."""
        b = cls(access)
        try:
            if offer.legacy:
                b._open_legacy(offer, device)
            else:
                b.reservation = at
                b._take(offer, fds, device, reoffer)
            return b
        except BaseException:
            b.close(force=True)
            raise

    def _take(self, offer: Offer, fds: Sequence[int], device: int | None, reoffer: bool) -> None:
        ordinal = find(offer.device, device)
        self._open(ordinal)
        if offer.chunk_size % self.granularity:
            raise MismatchError(f"the chunk size, {offer.chunk_size}, is no multiple of the granularity here, {self.granularity}", reason="descriptor")
        self._imports.callback(mapped.note())
        self._describe(offer)
        try:
            with self._entered():
                self._handles = self._import_all(fds)
                if not self.reservation:
                    self._own_range = self.reservation = self.reserve(offer.chunks * offer.chunk_size, ordinal)
                self._map_at(self._mapping, self.reservation)
        except DriverError as e:
            if e.reason == "unavailable":
                raise
            raise DriverError(e.function, e.number, e.name, e.text, reason="not-imported") from e
        for fd in fds if reoffer else ():
            self._own(os.dup(fd))

    def attach_again(self, offer: Offer, fds: Sequence[int], reoffer: bool = False) -> Callable[[], None]:
        forget()
        return super().attach_again(offer, fds, reoffer)

    def _imported(self, fd: int) -> int:
        if fd == 0:
            raise Error("descriptor 0 cannot be imported; start this program with standard input open")
        handle = self.cu.made("cuMemImportFromShareableHandle", ctypes.c_void_p(fd), cu.HANDLE_TYPE_FD, of=cu.HANDLE)
        self._imports.callback(self.cu.call, "cuMemRelease", handle)
        return handle

    @classmethod
    def opened(cls, offer: Offer, device: int | None, opens: Callable[[bytes], int], closes: Callable[[int], object]) -> CudaMemory:
        """The memory of a legacy offer, whose handle another library opens and closes."""
        b = cls()
        try:
            b._open_legacy(offer, device, opens, closes)
            return b
        except BaseException:
            b.close()
            raise

    def _open_legacy(
        self,
        offer: Offer,
        device: int | None,
        opens: Callable[[bytes], int] | None = None,
        closes: Callable[[int], object] | None = None,
    ) -> None:
        """Open the memory of a legacy offer, on its device if that is visible here."""
        hidden = offer.device not in _devices() and device is None
        self._open(0 if hidden else find(offer.device, device), legacy=True)
        self.size, self.chunks, self.chunk, self.uuid = offer.size, 1, offer.chunk_size, offer.device
        self.generation, self.access = offer.generation, READ_WRITE
        self._undo.callback(mapped.note())
        base = (opens or self._open_handle)(offer.handle)
        if closes:
            self._undo.callback(closes, base)
        else:
            self._later("cuIpcCloseMemHandle", base)
        _, whole = self._range(base)
        if whole < offer.chunk_size:
            raise MismatchError(f"the allocation is of {whole} bytes, and the offer says {offer.chunk_size}", reason="descriptor")
        self._ptr = base + offer.offset

    def _open_handle(self, handle: bytes) -> int:
        with self.current() as lib:
            return lib.made("cuIpcOpenMemHandle_v2", cu.IpcHandle.from_buffer_copy(handle), _IPC_LAZY_PEER_ACCESS, of=cu.PTR)

    # Bytes: on the default stream, behind what other streams of the process did that do not
    # exclude themselves from that.

    def read(self, at: int = 0, n: int | None = None) -> bytes:
        n = self.up_to(at, n)
        self.check_range(at, n)
        host = bytearray(n)
        if n:
            with self.using("a read"), address_of(host) as there:
                self._copy("cuMemcpyDtoHAsync_v2", there, self.ptr + at, n)
        return bytes(host)

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        self.check_write()
        with address_of(data) as there, memoryview(data) as raw:
            self.check_range(at, raw.nbytes)
            if raw.nbytes:
                with self.using("a write"):
                    self._copy("cuMemcpyHtoDAsync_v2", self.ptr + at, there, raw.nbytes)

    def _copy(self, name: str, *args: object) -> None:
        with self.current() as lib:
            lib.call(name, *args, None)
            lib.call("cuStreamSynchronize", None)

    def finish(self) -> None:
        with self.current() as lib:
            lib.call("cuCtxSynchronize")

    def private(self, size: int) -> CudaMemory:
        return CudaMemory.plain(size, self.ordinal)

    def copy_from(self, other: Memory, at: int, n: int) -> None:
        """Begun on the default stream; event is behind it."""
        with other.using("a copy"), self.current() as lib:
            if not self.event:
                self.event = lib.made("cuEventCreate", EVENT_DISABLE_TIMING)
                self._later("cuEventDestroy_v2", self.event)
            lib.call("cuMemcpyDtoDAsync_v2", self._ptr, other.ptr + at, n, None)
            lib.call("cuEventRecord", self.event, None)

    def wait_on(self, stream: int) -> None:
        """Let a stream wait for what this package does to the memory and has not waited for."""
        if self.event:
            with self.current() as lib:
                lib.call("cuStreamWaitEvent", ctypes.c_void_p(stream), self.event, 0)

    def process_flags(self) -> int:
        return process_flags(self.ordinal)

    def _forked(self) -> None:
        super()._forked()
        self._ptr = 0
