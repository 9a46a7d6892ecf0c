"""A part that is being made for a keeper: booked, filled, digested, delivered."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .. import arguments, log
from ..errors import ClosedError, DriverError, Error, KeeperError, LostError, UsageError
from ..memory import libcuda
from ..memory.base import Memory
from ..memory.device import Device, device_name
from ..memory.digest import Digester
from ..memory.drivers import allocate, device_size, device_uuid, driver_kind, place_of
from ..objects import NotCopied, called, human
from ..wire.records import CUDA, MAX_CHUNKS, READ_ONLY, READ_WRITE, driver_name
from .client import Booking, Client
from .types import Holder

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
PIECE = 16 << 20  # bytes that are copied to the host at a time
LARGEST_CHUNK = 896 << 20
"""Bytes. A put that moves tensors needs the weights, the largest storage, one chunk and what PyTorch's
cache has (torch/weights.py, _FREED); docs/python.md promises that the last two are 1 GiB at most."""


@dataclass(frozen=True)
class Delivered:
    """The outcome of a put."""

    version: int  #: 0 while parts are missing
    missing: int  #: parts that other writers have to deliver
    digest: str
    bytes: int

    def __repr__(self) -> str:
        state = f"version {self.version}" if self.version else f"{self.missing} part{'s' if self.missing != 1 else ''} missing"
        return f"<gpufd.Delivered {state}, {human(self.bytes)}, {self.digest[:20]}…>"


def chunk_for(size: int, chunk: int = 0) -> int:
    """The size of chunks for a buffer that grows to size bytes: what is asked for, or else that
    of as few equal ones as possible. Each chunk costs who attaches an import and an access."""
    chunks = -(-size // LARGEST_CHUNK)
    return chunk or max(-(-size // chunks), -(-size // MAX_CHUNKS))


def memory_digest(memory: Memory, size: int, add: Callable[[int], object] = lambda n: None) -> str:
    """Return the digest of the first size bytes, computed on the device where it is one. add is
    called with the bytes of each step; a device has one."""
    if memory.driver == CUDA:
        from ..memory.devicedigest import DeviceDigester

        with memory.using("a digest"):
            memory.finish()
            with contextlib.closing(DeviceDigester(libcuda.load(), memory.ordinal)) as device:
                device.add(memory.ptr, 0, size)
                digest = device.digest()
        add(size)
        return digest
    host = Digester()
    for at in range(0, size, PIECE):
        piece = memory.read(at, min(PIECE, size - at))
        host.add(at, piece)
        add(len(piece))
    return host.digest()


class Deposit(NotCopied):
    """One part, from its booking to its delivery. Whoever made it calls deliver or abandon.

    ``memory`` is None before the first grow, unless there is memory already that is to be delivered as it is. It stays its owner's when the part is delivered:
    read-only then, because the keeper has it.
    """

    def __init__(
        self, client: Client, name: str, size: int, *, device: Device = 0, driver: str | int | None = None, chunk: int = 0,
        labels: Mapping[str, str] | None = None, part: int = 0, parts: int = 1, transaction: str = "",
        expect: int | None = None, lifetime: float = 0.0, memory: Memory | None = None,
    ) -> None:  # fmt: skip
        arguments.booking(name, part, parts, transaction, labels, expect, lifetime)
        arguments.number("chunk", chunk)
        if size <= 0:
            raise UsageError(f"there is nothing to keep under {name}: it has no bytes")
        self.kind = driver_kind(driver)
        self.device = place_of(device, self.kind)
        check_room(name, size, self.kind, self.device)
        self.client, self.name, self.size, self.part = client, name, size, part
        self.chunk = chunk_for(size, chunk)
        self.memory = memory
        self.booking: Booking | None = client.book(
            name, size, device_name(device_uuid(self.kind, self.device)), driver_name(self.kind), part=part, parts=parts,
            transaction=transaction, labels=labels, expect=expect, lifetime=lifetime,
        )  # fmt: skip
        self._digest, self._table, self._layout = "", b"", ""
        self._ready = False
        log.debug("booked %d bytes of %s device %d for part %d of %s, in chunks of %d", size, driver_name(self.kind), self.device, part, name, self.chunk)

    def __repr__(self) -> str:
        there = self.memory.size if self.memory is not None and not self.memory.closed else 0
        return f"<gpufd.Deposit {called(self.name)} part {self.part}, {human(there)} of {human(self.size)}, {'open' if self.booking else 'over'}>"

    def grow(self, size: int) -> Memory:
        """Extend the memory to at least size bytes, which are zeros where nobody has written. Waits for
        room as long as the client waits."""
        if self.memory is None:
            self.memory = self._with_room(self._make)
        while self.memory.size < min(size, self.size):  # one at a time: a chunk without room leaves the others
            self._with_room(self._add)
        return self.memory

    def _make(self) -> Memory:
        memory = allocate(min(self.size, self.chunk), chunk=self.chunk, device=self.device, driver=self.kind, capacity=self.size)
        clear(memory, 0)
        return memory

    def _add(self) -> Memory:
        memory = self.memory
        assert memory is not None
        before = memory.size
        memory.grow(min(self.size, (memory.chunks + 1) * memory.chunk))  # the last chunk may have room still
        clear(memory, before)
        return memory

    def _with_room(self, make: Callable[[], Memory]) -> Memory:
        """make, again until the device has room for it."""
        deadline, waits = time.monotonic() + self.client.timeout, False
        while True:
            try:
                return make()
            except (DriverError, OSError) as e:
                if not is_no_room(e):
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._no_room(e) from None
                if not waits:
                    log.debug("part %d of %s waits for room on device %d: %s", self.part, self.name, self.device, e)
                waits = True
            time.sleep(min(ROOM_PAUSE, left))  # no driver tells when there is room

    def _no_room(self, why: BaseException) -> KeeperError:
        """Name who holds memory of the device."""
        device = device_name(device_uuid(self.kind, self.device))
        text, holders, uses = f"device {device} has no room for {self.size} bytes: {why}", [], []
        with contextlib.suppress(Error, OSError):
            for name in self.client.list():
                there = sum(p.bytes for p in name.parts if p.device == device)
                if there:
                    uses.append((there, name))
                    holders += [dict(h.raw) for h in name.holders]
        uses.sort(key=lambda use: use[0], reverse=True)
        for there, name in uses[:NAMED]:
            text += f"; {name.name} has {there} bytes there, in use by {processes(name.holders)} (gpufd drain {name.name} frees them first)"
        if uses[NAMED:]:
            text += f"; and {len(uses) - NAMED} more, with {sum(there for there, _ in uses[NAMED:])} bytes"
        return KeeperError("no-room", text, holders)

    def prepare(self, table: bytes, digest: str = "", layout: str = "") -> str:
        """Make the memory read-only here, compute its digest unless it is given, and send
        descriptors and table, of which layout is the layout. Returns the digest. Only deliver is left to do."""
        memory, booking = self._open()
        memory.finish()
        memory.protect(READ_ONLY)
        self._table, self._layout, self._digest = table, layout, digest or memory_digest(memory, self.size)
        try:
            booking.prepare(memory.fds, table)
            self._ready = True
        except LostError as e:
            if e.reason == "nobody-listens":
                raise
            self._ready = False  # deliver sends them, to the next keeper
        return self._digest

    def deliver(self, table: bytes = b"", digest: str = "", layout: str = "") -> Delivered:
        """Deliver the part to the keeper. The memory stays mapped, read-only."""
        memory, booking = self._open()
        if not self._digest:
            self.prepare(table, digest, layout)
        version, missing = booking.deliver(describe(memory, self.size), self._digest, memory.fds, self._table, layout=self._layout, prepared=self._ready)
        self.booking = None
        state = f"version {version} is committed" if version else f"{missing} parts are missing"
        log.debug("delivered part %d of %s: %s", self.part, self.name, state)
        return Delivered(version, missing, self._digest, self.size)

    def _open(self) -> tuple[Memory, Booking]:
        if self.booking is None:
            raise ClosedError(f"part {self.part} of {self.name} was delivered or given up")
        return self.grow(self.size), self.booking

    def abandon(self) -> None:
        """Give the booking up, if there is one. The memory is the caller's. It is writable again
        unless the keeper has it, or may have it: readers rely on what was written."""
        booking, self.booking = self.booking, None
        if booking is None:
            return
        log.debug("gave up part %d of %s", self.part, self.name)
        if not booking.cancel():
            return
        if self.memory is not None and not self.memory.closed:
            self.memory.protect(READ_WRITE)

    def close(self) -> None:
        """abandon what was not delivered, and let the memory go."""
        with contextlib.suppress(Error):
            self.abandon()
        if self.memory is not None:
            self.memory.close(force=True)


NAMED = 3  # names in a message: those that have most


def processes(holders: Iterable[Holder]) -> str:
    """How many processes holders are. One of another PID namespace has the pid 0; the keeper's
    number for it tells it from others, where there is one."""
    known = {h.raw.get("process") or ((h.uid, h.gid, h.pid) if h.pid else (i,)) for i, h in enumerate(holders)}
    return f"{len(known)} process{'' if len(known) == 1 else 'es'}"


def check_room(name: str, size: int, kind: int, ordinal: int) -> None:
    """Refuse what can never fit: more than the whole device has."""
    try:
        total = device_size(kind, ordinal)
    except (DriverError, ValueError):
        return  # allocating says why
    if size > total:
        raise KeeperError("too-large", f"{name} wants {size} bytes of device {ordinal}, which has {total}: it can never fit")


ROOM_PAUSE = 0.2  # seconds between two tries to allocate


def is_no_room(e: BaseException) -> bool:
    """Return whether a device had no memory left."""
    if isinstance(e, DriverError):
        return e.number == OUT_OF_MEMORY
    return isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.ENOMEM)


def clear(memory: Memory, at: int) -> None:
    """Clear memory that was just made, from there on. That of a file is clear."""
    from ..memory.cuda import CudaMemory

    if isinstance(memory, CudaMemory):
        with memory.current() as lib:
            lib.call("cuMemsetD8Async", memory.ptr + at, 0, memory.size - at, None)
            lib.call("cuStreamSynchronize", None)


def describe(memory: Memory, size: int) -> dict[str, int]:
    """Return the description of memory for a keeper. size bytes of it count."""
    return {
        "size": size, "chunk_size": memory.chunk, "chunks": memory.chunks,
        "granularity": memory.granularity, "generation": memory.generation,
    }  # fmt: skip
