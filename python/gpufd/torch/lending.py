"""Memory behind handles: where a tensor's bytes lie, and how long they are offered.

A :class:`Loan` is memory that this process offers at a socket of its own. It ends when each handle
was rebuilt and all receivers have let go, when it is released, or when no receiver has come in time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import Error
from ..memory.base import Memory
from ..memory.base import _all as _memories
from ..memory.drivers import allocate
from ..memory.tensor import bytes_over
from ..objects import living
from ..share.attachment import _all as _attachments
from ..share.kept import kept_of
from ..share.lease import Event
from ..share.offering import Offering
from ..share.server import Server
from ..wire.listen import take_lock
from ..wire.records import MAX_NOTICE
from .storages import span_of, storage_of, with_room

_SOCKET = re.compile(r"[0-9]+-[0-9a-f]{16}")  # the name of one

SLAB = 64 << 20  # bytes of memory that copies of small storages share, at most
_FIRST_SLAB = 2 << 20
_SMALL = 8 << 20  # bytes of a storage that is copied together with others
_WHOLE = 4  # a storage is copied as a whole if it has at most so many times the tensor's bytes, or is small
_ALIGN = 512  # of copies, as PyTorch's allocator aligns
_PLACES = 8192  # connections of receivers: one for each loan that a receiver has
_TICK = 0.05  # seconds between two looks at time limits, at least


@dataclass(frozen=True)
class Place:
    """Bytes that another process can attach to, and the tensor in them."""

    about: dict[str, Any]  #: what the handle says of the memory
    ordinal: int
    begin: int  #: of the storage, in the memory
    size: int  #: of the storage
    offset: int  #: of the tensor in the storage, in elements
    ticket: int
    memory: Memory


@dataclass
class _Copy:
    """A copy of a storage, or of a part of it."""

    first: int  # of the copied bytes, in the storage
    size: int
    at: int  # in the loan's memory


@dataclass
class Loan:
    """Memory that this process offers to those who get its handles."""

    memory: Memory
    offering: Offering
    copied: bool  #: the memory was made for copies, and goes with the loan
    used: int = 0  #: bytes that copies take
    last: int = 0  #: number of the newest ticket
    pending: dict[int, int] = field(default_factory=dict)  #: tickets, with the receivers that are still to come
    limit: float = 0.0
    until: float = 0.0
    copies: dict[Any, _Copy] = field(default_factory=dict)
    keeps: dict[int, Any] = field(default_factory=dict)  #: storages that receivers see, so their bytes stay theirs

    @property
    def generation(self) -> int:
        """Return the memory's generation when it was offered: it may have grown since."""
        return self.offering.record.generation

    def ticket(self, receivers: int, limit: float) -> int:
        """Return the number of a new handle, which so many receivers are to rebuild."""
        self.last += 1
        self.pending[self.last] = receivers
        self.limit = max(self.limit, limit)
        self.touch()
        return self.last

    def touch(self) -> None:
        """Start the time limit anew."""
        self.until = time.monotonic() + self.limit

    def taken(self, said: bytes) -> None:
        """Note which tickets a receiver says that it has rebuilt."""
        ranges = ranges_of(said)
        for ticket in [t for t in self.pending if any(begin <= t <= end for begin, end in ranges)]:
            left = self.pending.pop(ticket, 1) - 1
            if left > 0:
                self.pending[ticket] = left


class Lender:
    """The loans of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.loans: dict[int, Loan] = {}  # by generation
        self._server: Server | None = None
        self._slab: Loan | None = None
        self._changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None

    # The places of tensors.

    def place(self, t: Any, kind: int, receivers: int, limit: float) -> Place:
        """Find or make memory that has a tensor's bytes and that others can attach to."""
        memory = memory_of(t, kind)
        if memory is not None:
            kept = _keeper_of(memory)
            if kept is not None:
                return _place_in(t, memory, kept, 0)
            if len(memory.fds) == memory.chunks:
                _wait(t)
                with self.lock:
                    loan = self.loans.get(memory.generation) or self._lend(memory, False)
                    loan.keeps[storage_of(t).data_ptr()] = storage_of(t)
                    return _place_in(t, memory, self._about(loan), loan.ticket(receivers, limit))
        return self._copied(t, kind, receivers, limit)

    def _copied(self, t: Any, kind: int, receivers: int, limit: float) -> Place:
        """Place the bytes of a tensor in a copy: an earlier one, if that still equals the tensor, or a new one."""
        first, size = _range_to_copy(t)
        storage = storage_of(t)
        key = (str(t.device), storage.data_ptr(), storage.nbytes())
        with self.lock:
            found = self._again(t, key)
            loan, copy = found if found else self._copy(t, key, first, size, kind)
            ticket = loan.ticket(receivers, limit)
            offset = t.storage_offset() - copy.first // t.element_size()
            return Place(self._about(loan), loan.memory.ordinal, copy.at, copy.size, offset, ticket, loan.memory)

    def _again(self, t: Any, key: Any) -> tuple[Loan, _Copy] | None:
        begin = t.storage_offset() * t.element_size()
        end = begin + span_of(t)
        for loan in self.loans.values():
            copy = loan.copies.get(key)
            if copy is not None and copy.first <= begin and end <= copy.first + copy.size and copy.first % t.element_size() == 0:
                there = bytes_over(loan.memory, copy.at + begin - copy.first, end - begin, "a comparison")
                if torch.equal(there, _bytes_in(t, begin, end - begin)):
                    return loan, copy
        return None

    def _copy(self, t: Any, key: Any, first: int, size: int, kind: int) -> tuple[Loan, _Copy]:
        ordinal = t.device.index or 0
        loan = self._room(size, ordinal, kind)
        copy = _Copy(first, size, loan.used)
        with torch.no_grad():
            bytes_over(loan.memory, copy.at, size, "a copy").copy_(_bytes_in(t, first, size))
        _wait(t)
        loan.used += -(-size // _ALIGN) * _ALIGN
        loan.copies[key] = copy
        return loan, copy

    def _room(self, size: int, ordinal: int, kind: int) -> Loan:
        """Return a loan with room for so many bytes more."""
        slab = self._slab
        if size > _SMALL:
            return self._lend(_allocated(size, ordinal, kind), True)
        if slab is None or slab.memory.ordinal != ordinal or slab.memory.driver != kind or slab.used + size > slab.memory.size:
            lent = sum(loan.memory.size for loan in self.loans.values() if loan.copied)
            size = max(-(-size // _FIRST_SLAB) * _FIRST_SLAB, min(SLAB, 2 * lent))
            slab = self._slab = self._lend(_allocated(size, ordinal, kind), True)
        return slab

    # Loans.

    def _lend(self, memory: Memory, copied: bool) -> Loan:
        server = self._server = self._server or Server(_socket_path(), connections=_PLACES, connections_per_peer=_PLACES)
        generation = memory.generation
        hears = functools.partial(self._hears, generation)
        offering = server.offer(f"handle-{generation}", memory, memory.access, synchronized=True, on_event=hears)
        loan = self.loans[generation] = Loan(memory, offering, copied)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="gpufd-handles", daemon=True)
            self._thread.start()
        return loan

    def _about(self, loan: Loan) -> dict[str, Any]:
        assert self._server is not None
        return {"socket": self._server.path, "name": loan.offering.name, "generation": loan.generation}

    def _hears(self, generation: int, event: Event) -> None:
        """Note what a receiver has done, on the server's thread."""
        with self.lock:
            loan = self.loans.get(generation)
            if loan is None or event.lease is None or event.kind not in ("mapped", "ended"):
                return
            loan.touch()
            if event.kind == "ended":
                said = event.lease.notices()
                loan.taken(said[-1] if said else b"")
                if not loan.pending and not loan.offering.leases:
                    self._end(loan)

    def _end(self, loan: Loan) -> None:
        """Offer the memory no more. What receivers have mapped stays good."""
        loan.keeps.clear()
        del self.loans[loan.generation]
        if loan is self._slab:
            self._slab = None
        alone = loan.offering.withdraw("the sender of this tensor has released it")
        if loan.copied and alone:
            loan.memory.close(force=True)  # no work on it is under way: each copy was waited for

    def _watch(self) -> None:
        """End loans that nobody has taken in time."""
        with self.lock:
            while self.loans:
                now = time.monotonic()
                for loan in list(self.loans.values()):
                    if loan.until <= now and loan.offering.leases:
                        loan.touch()
                    elif loan.until <= now:
                        self._end(loan)
                if self.loans:
                    nearest = min(loan.until for loan in self.loans.values()) - now
                    self._changed.wait(min(max(nearest, _TICK), 1.0))
            self._thread = None

    def release(self, generation: int | None = None) -> int:
        """End one loan, or all, and return how many there were."""
        with self.lock:
            loans = [loan for loan in self.loans.values() if generation in (None, loan.generation)]
            for loan in loans:
                self._end(loan)
            self._changed.notify_all()
            return len(loans)


# Tickets, as receivers report them: all that they have rebuilt, since some reports may be lost.


def tickets_said(tickets: Iterable[int]) -> bytes:
    """Return numbers as ranges, such as 1-99,102: the newest that fit a notice."""
    ranges: list[list[int]] = []
    for n in sorted(tickets):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    text = ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges)
    return text[-MAX_NOTICE:].partition(",")[2].encode() if len(text) > MAX_NOTICE else text.encode()


def ranges_of(said: bytes) -> list[tuple[int, int]]:
    """Return the ranges of numbers that a receiver reports."""
    return [(int(m[1]), int(m[2] or m[1])) for m in re.finditer(rb"([0-9]{1,12})(?:-([0-9]{1,12}))?", said)]


# Memory.


def memory_of(t: Any, kind: int) -> Memory | None:
    """Return the memory of this package that a tensor's storage lies in, or None."""
    storage = storage_of(t)
    address, size = storage.data_ptr(), storage.nbytes()
    for memory in living(_memories):
        at = memory.mapped_at()
        if at and at <= address and address + size <= at + memory.size and memory.driver == kind:
            return memory
    return None


def _keeper_of(memory: Memory) -> dict[str, Any] | None:
    """Describe where the keeper offers this memory that it was loaded from, if it still does."""
    for att in living(_attachments):
        if att.memory is memory and not att.done and not att.superseded:
            with contextlib.suppress(Error):
                kept = kept_of(att.offer)
                return {
                    "socket": os.path.abspath(att.socket), "name": kept.name, "version": kept.version, "part": kept.part,
                    "generation": att.generation,
                }  # fmt: skip
    return None


def _allocated(size: int, ordinal: int, kind: int) -> Memory:
    return with_room(lambda: allocate(size, device=ordinal, driver=kind))


def _place_in(t: Any, memory: Memory, about: dict[str, Any], ticket: int) -> Place:
    storage = storage_of(t)
    return Place(about, memory.ordinal, storage.data_ptr() - memory.ptr, storage.nbytes(), t.storage_offset(), ticket, memory)


def _range_to_copy(t: Any) -> tuple[int, int]:
    """Return the first byte of a storage that is copied for a tensor, and how many are."""
    whole, item = storage_of(t).nbytes(), t.element_size()
    if whole <= max(_SMALL, _WHOLE * span_of(t)):
        return 0, whole
    return t.storage_offset() * item, span_of(t)


def _bytes_in(t: Any, first: int, size: int) -> Any:
    """Return bytes of a tensor's storage, as a tensor."""
    empty = torch.empty(0, dtype=torch.uint8, device=t.device)
    return empty.set_(storage_of(t), first, (size,), (1,))


def _wait(t: Any) -> None:
    """Wait for what the current stream does to a tensor: the receiver's streams know nothing of it."""
    if t.device.type == "cuda":
        torch.cuda.current_stream(t.device).synchronize()


# The socket.


def _socket_path() -> str:
    """Return a new path in the directory of handles, and remove what dead processes left there."""
    directory = os.environ.get("GPUFD_HANDLE_DIR")
    if not directory:
        directory = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"gpufd-handles-{os.geteuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    try:
        names = os.listdir(directory)
    except OSError as e:
        raise Error(f"the directory of handles: {e}; make it, or set GPUFD_HANDLE_DIR") from e
    for name in names:
        if _SOCKET.fullmatch(name):
            _remove_if_dead(os.path.join(directory, name))
    return os.path.join(os.path.abspath(directory), f"{os.getpid()}-{secrets.token_hex(8)}")


def _remove_if_dead(path: str) -> None:
    """Remove a socket whose owner has died: it held the lock."""
    with contextlib.suppress(Error, OSError):
        lock = take_lock(path + ".lock")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.unlink(path + ".lock")
        finally:
            os.close(lock)


_lender = Lender()


def lender() -> Lender:
    """Return the lender of this process, which is not that of its parent."""
    global _lender
    if _lender.pid != os.getpid():
        _lender = Lender()
    return _lender
