"""Memory of the software driver: files, as docs/wire.md says.

read and write copy by system calls, so they raise MismatchError (cut-off) where a holder of the
descriptor has made a file shorter. What is mapped (``ptr``, and all views) cannot: Python
dies by SIGBUS then. That driver is for tests, among peers that are trusted.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterator, Sequence

from ..errors import Error, MismatchError, UnavailableError, UsageError
from ..wire.records import READ_WRITE, SOFT, Offer
from . import libc, mapped
from .base import Memory, layout, new_generation
from .device import device_name
from .reservation import Reservation

GRANULARITY = 2 << 20  # of the software driver
TRAILER = struct.Struct("<16sIIQ16s8s8s")  # magic, kind, ordinal, size, device, id, pool
TRAILER_SIZE = 4096
TRAILER_MAGIC = b"gpufd soft mem 1"
DEVICES = 64


def soft_memory() -> int:
    """Bytes of a device of the software driver."""
    text = os.environ.get("GPUFD_SOFT_MEMORY", "")
    for suffix, unit in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)):
        if text and text.endswith(suffix):
            return int(text[: len(text) - len(suffix)]) * unit
    return 2 << 30


def soft_directory() -> str:
    """Where the software driver keeps its memory."""
    if os.environ.get("GPUFD_SOFT_DIR"):
        return os.environ["GPUFD_SOFT_DIR"]
    name = f"gpufd-soft-{os.geteuid()}"
    with contextlib.suppress(OSError):
        st = os.statvfs("/dev/shm")
        if st.f_blocks * st.f_frsize >= soft_memory() and _is_tmpfs("/dev/shm"):
            return os.path.join("/dev/shm", name)
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", name)


def _is_tmpfs(path: str) -> bool:
    with open("/proc/self/mounts") as f:
        mounts = [line.split() for line in f]
    return [m[2] for m in mounts if m[1] == path][-1:] == ["tmpfs"]


def soft_machine() -> bytes:
    """The 16 bytes that the devices' UUIDs are made of; made here if they are not there."""
    path = soft_directory()
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    st = os.lstat(path)
    if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o077:
        raise UnavailableError(f"{path}: is no directory of ours that nobody else can enter")
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


def soft_uuid(ordinal: int) -> bytes:
    """The UUID of a visible device."""
    return _uuid_of(_chosen(ordinal), soft_machine())


def _uuid_of(ordinal: int, machine: bytes) -> bytes:
    return hashlib.sha256(f"gpufd soft device {ordinal} of {machine.hex()}".encode()).digest()[:16]


def soft_devices() -> int:
    """How many devices the software driver has here."""
    text = os.environ.get("GPUFD_SOFT_DEVICES") or "2"
    if not text.isdecimal() or int(text) > DEVICES:
        raise UnavailableError(f"GPUFD_SOFT_DEVICES={text}: a number from 0 to {DEVICES}")
    return int(text)


def soft_visible() -> list[int]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order, as the software driver in Go
    has them, and libcuda: entries up to the first that names no device, and none at all where
    one is named twice."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(soft_devices()))
    visible: list[int] = []
    for entry in text.split(","):
        found = _named(entry.strip())
        if found is None:
            break
        if found in visible:
            return []
        visible.append(found)
    return visible


def _named(entry: str) -> int | None:
    """The device of an index, or of a UUID or the one that begins so."""
    if not entry.startswith("GPU-"):
        return int(entry) if re.fullmatch(r"\+?[0-9]{1,9}|-0+", entry, re.ASCII) and int(entry) < soft_devices() else None
    prefix, machine = entry[4:].lower(), soft_machine()
    fit = [i for i in range(soft_devices()) if device_name(_uuid_of(i, machine))[4:].startswith(prefix)] if prefix else []
    return fit[0] if len(fit) == 1 else None


def _chosen(ordinal: int) -> int:
    """The software driver's number of a device, by its ordinal among the visible ones."""
    visible = soft_visible()
    if not visible:
        raise UnavailableError("the software driver has no device here (CUDA_VISIBLE_DEVICES, GPUFD_SOFT_DEVICES)")
    if ordinal >= len(visible):
        raise MismatchError(f"there is no device {ordinal}: the software driver has {len(visible)} (GPUFD_SOFT_DEVICES, CUDA_VISIBLE_DEVICES)", reason="device")
    return visible[ordinal]


def _ordinal_of(device: bytes) -> int:
    """Return the visible device of that UUID, or raise MismatchError (device)."""
    machine, visible = soft_machine(), soft_visible()
    if not visible:
        _chosen(0)
    for ordinal, i in enumerate(visible):
        if _uuid_of(i, machine) == device:
            return ordinal
    there = ", ".join(device_name(_uuid_of(i, machine)) for i in visible)
    raise MismatchError(
        f"the memory is on device {device_name(device)}, which is not visible to this process "
        f"(CUDA_VISIBLE_DEVICES, GPUFD_SOFT_DEVICES, or another GPUFD_SOFT_DIR); visible devices: {there}",
        reason="device",
    )


def _check_room(size: int) -> None:
    """Raise if the machine's memory cannot have room for size bytes: trying takes all of it first."""
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > there:
        raise UnavailableError(f"{size} bytes of the software driver's memory, and this machine has {there} bytes")


class SoftMemory(Memory):
    """Memory of the software driver. See the module."""

    driver = SOFT
    about = "software driver: files, read and written by Python"
    takes_legacy = False

    def __init__(self, access: int = READ_WRITE) -> None:
        super().__init__(access)
        self.granularity = GRANULARITY
        self.files: list[int] = []  # a descriptor a chunk
        self._capacity = 0  # chunks that there is address space for
        self._number = 0  # of the device, where the memory is our own: its ordinal without CUDA_VISIBLE_DEVICES

    @classmethod
    def make(cls, size: int, chunk: int = 0, device: int = 0, capacity: int = 0) -> SoftMemory:
        """Memory of our own. It is in no directory: the descriptors are all there is."""
        chosen = _chosen(device)
        b = cls()
        try:
            b.ordinal, b.uuid, b._number = device, _uuid_of(chosen, soft_machine()), chosen
            chunks, b.chunk = layout(size, chunk, GRANULARITY)
            _check_room(size)
            b._capacity = max(chunks, layout(max(capacity, size), b.chunk, GRANULARITY)[0])
            b._append(chunks)
            b.size = size
            b.generation = new_generation()
            return b
        except BaseException:
            b.close()
            raise

    def _append(self, chunks: int) -> None:
        for _ in range(chunks - self.chunks):
            fd = os.memfd_create("gpufd", os.MFD_CLOEXEC)
            self._own(fd)
            os.posix_fallocate(fd, 0, self.chunk + TRAILER_SIZE)
            trailer = TRAILER.pack(TRAILER_MAGIC, 1, self._number, self.chunk, self.uuid, secrets.token_bytes(8), bytes(8))
            os.pwrite(fd, trailer, self.chunk)
            self.files.append(fd)
            if self.reservation:
                self._map_chunk(self.reservation.ptr, self.chunks)
            self.chunks += 1

    def grow(self, size: int) -> None:
        with self._lock:
            self.check()
            chunks, _ = layout(size, self.chunk, GRANULARITY)
            if size <= self.size:
                raise UsageError(f"memory of {self.size} bytes cannot grow to {size}")
            if chunks > self._capacity:
                raise UsageError(f"{chunks} chunks, and there is room for {self._capacity} (capacity)")
            self._append(chunks)
            self.size, self.generation = size, new_generation()

    @classmethod
    def make_legacy(cls, size: int, device: int = 0) -> SoftMemory:
        raise UnavailableError("the software driver's legacy handles are for its own processes; take --handle vmm")

    @classmethod
    def take(
        cls, offer: Offer, fds: Sequence[int], access: int, device: int | None = None, reoffer: bool = False, at: Reservation | None = None
    ) -> SoftMemory:
        """The memory of an offer, mapped at a reservation if there is one. The descriptors stay the caller's."""
        if offer.legacy:
            raise UnavailableError(
                "a legacy handle of the software driver can only be opened by its own processes; have the producer take -handle vmm"
            )
        b = cls(access)
        try:
            b.reservation = at
            b._take(offer, fds, device, reoffer)
            return b
        except BaseException:
            b.close(force=True)
            raise

    def _take(self, offer: Offer, fds: Sequence[int], device: int | None, reoffer: bool) -> None:
        ordinal = _ordinal_of(offer.device)
        if device is not None and ordinal != device:
            raise MismatchError(f"memory of another device: it is on {device_name(offer.device)}, and device {device} was asked for", reason="device")
        self._imports.callback(mapped.note())
        self._describe(offer)
        self.ordinal, self._capacity, self.files = ordinal, offer.chunks, []
        for fd in fds:
            check_trailer(fd, offer)
            self._hold(fd, reoffer)
        if self.reservation:
            self._map_at(self._mapping, self.reservation)

    def _hold(self, fd: int, reoffer: bool) -> None:
        own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        if reoffer:
            self._own(own)
        else:
            self._imports.callback(os.close, own)
        self.files.append(own)

    # The mapping.

    @property
    def ptr(self) -> int:
        """The address of the mapping, which is made when it is asked for."""
        with self._lock:
            self.check()
            at = self.reservation
            if not at:
                at = self.reserve(self._capacity * self.chunk, self.ordinal)
                with contextlib.ExitStack() as mapping:
                    self._map_at(mapping, at)
                    self._mapping, self._own_range, self.reservation = mapping.pop_all(), at, at
            return at.ptr

    @staticmethod
    def reserve(size: int, ordinal: int) -> Reservation:
        """Reserve so many bytes of address space, rounded up to the granularity."""
        size = -(-size // GRANULARITY) * GRANULARITY
        at = libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | libc.MAP_NORESERVE, -1, 0)
        if at in (None, libc.MAP_FAILED):
            raise Error(f"mmap of {size} bytes: {os.strerror(ctypes.get_errno())}")
        return Reservation(SOFT, at, size, libc.munmap)

    def _map_at(self, mapping: contextlib.ExitStack, at: Reservation) -> None:
        at.take(SOFT, len(self.files) * self.chunk, self._what())
        mapping.callback(at.leave)
        mapping.callback(_blank, at.ptr, at.size)
        for i in range(len(self.files)):
            self._map_chunk(at.ptr, i)

    def _map_chunk(self, ptr: int, i: int) -> None:
        if os.fstat(self.files[i]).st_size < self.chunk:
            raise _cut_off(i)
        at = libc.mmap(ptr + i * self.chunk, self.chunk, self._protection(), mmap.MAP_SHARED | libc.MAP_FIXED, self.files[i], 0)
        if at in (None, libc.MAP_FAILED):
            raise Error(f"mmap of chunk {i}: {os.strerror(ctypes.get_errno())}")

    def _protection(self) -> int:
        return mmap.PROT_READ | (mmap.PROT_WRITE if self.access == READ_WRITE else 0)

    def protect(self, access: int) -> None:
        with self._lock:
            self.check()
            self.access = access
            if self.reservation and libc.mprotect(self.reservation.ptr, self.chunks * self.chunk, self._protection()):
                raise Error(f"mprotect: {os.strerror(ctypes.get_errno())}")

    # Bytes, by system calls.

    def _ranges(self, at: int, n: int) -> Iterator[tuple[int, int, int]]:
        """Chunk, offset in it and length of each part of a range."""
        self.check_range(at, n)
        while n:
            i, offset = divmod(at, self.chunk)
            part = min(n, self.chunk - offset)
            yield i, offset, part
            at, n = at + part, n - part

    def read(self, at: int = 0, n: int | None = None) -> bytes:
        with self.using("a read"):
            return b"".join(self._read_part(*part) for part in self._ranges(at, self.up_to(at, n)))

    def _read_part(self, i: int, at: int, n: int) -> bytes:
        """As many bytes as a system call gives at once, until all are there."""
        got = b""
        while len(got) < n:
            more = os.pread(self.files[i], n - len(got), at + len(got))
            if not more:
                raise _cut_off(i)
            got = got + more if got else more
        return got

    def write(self, at: int, data: bytes | bytearray | memoryview) -> None:
        self.check_write()
        left = memoryview(data).cast("B")
        with self.using("a write"):
            for i, offset, part in self._ranges(at, len(left)):
                self._write_part(i, offset, left[:part])
                left = left[part:]

    def _write_part(self, i: int, at: int, data: memoryview) -> None:
        if os.fstat(self.files[i]).st_size < at + len(data):  # the call would make it longer again
            raise _cut_off(i)
        while data:
            n = os.pwrite(self.files[i], data, at)
            at, data = at + n, data[n:]

    def private(self, size: int) -> SoftMemory:
        return SoftMemory.make(size, device=self.ordinal)

    def copy_from(self, other: Memory, at: int, n: int) -> None:
        step = 16 << 20
        for done in range(0, n, step):
            self.write(done, other.read(at + done, min(step, n - done)))

    def _release(self) -> None:
        self.files = [-1] * len(self.files)  # the numbers will be others'
        super()._release()

    def _forked(self) -> None:
        for fd in set(self.files) - set(self.fds):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.files = []
        super()._forked()


def _blank(ptr: int, size: int) -> None:
    """Unmap what is in a range, which stays reserved."""
    if libc.mmap(ptr, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | libc.MAP_NORESERVE | libc.MAP_FIXED, -1, 0) in (None, libc.MAP_FAILED):
        raise Error(f"mmap of {size} bytes at {ptr:#x}: {os.strerror(ctypes.get_errno())}")


def _cut_off(chunk: int) -> MismatchError:
    return MismatchError(f"chunk {chunk} was cut off: a holder of its descriptor has made the file shorter", reason="cut-off")


def check_trailer(fd: int, offer: Offer) -> None:
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
        raise MismatchError(fault, reason="descriptor")
