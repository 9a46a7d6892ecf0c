"""The records of docs/wire.md, version 1: to bytes and back. No sockets, no memory.

Every length is checked before anything is made of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from ..errors import MismatchError, UsageError, WireError
from ..objects import called, human

CUDA, SOFT = 1, 2  # kinds of driver
READ_ONLY, READ_WRITE = 1, 3  # kinds of access
DESCRIPTORS, LEGACY = 1, 2  # types of handles
HANDLE_SIZE = 64  # bytes of a legacy handle
MAX_RECORD = 8192  # bytes taken; the longest record that there is today is shorter
MAX_FDS = 64  # descriptors in a record
MAX_CHUNKS = 4096
MAX_NAME, MAX_DATA, MAX_TEXT = 255, 4096, 4096
MAX_LARGE_DATA = 64 << 20  # application data that comes in a DATA
MAX_NOTICE = 4096
MAX_CURSORS = 16 << 20  # memory of one lease's own, which comes in a CURSORS
MAX_LISTED = 4096  # offers of a list

# Codes of REFUSE.
NO_OFFER, TOO_MUCH_ACCESS, OTHER_DRIVER, BUSY, OTHER_VERSION, BAD_RECORD, TOO_LATE, NOT_ADMITTED, TOO_FAST, NOT_KNOWN, OTHER_MEMORY, PARTS = range(1, 13)

WITHDRAWN, SUPERSEDED, REVOKED, RESTARTING = 1, 2, 3, 4  # reasons of REVOKE

# Capabilities: a consumer takes offers by a legacy handle, application data in a DATA, and
# memory of its own in a CURSORS; a producer takes DETACHED, and a wish to reattach.
TAKES_LEGACY, TAKES_DATA, TAKES_CURSORS, TAKES_DETACH = 1 << 0, 1 << 1, 1 << 2, 1 << 3

# Flags of a process: its work may go on after its death, or it cannot tell; the producer
# waits until who may write says FAREWELL.
MAY_OUTLIVE, AWAITS_RELEASE = 1 << 0, 1 << 1

HEADER = struct.Struct("<4sHHII")  # magic, version, type, flags, length
_OFFER = struct.Struct("<BBBBI16sQQQQIIHH")
_LISTING = struct.Struct("<BBBB16sQQQH")
_COUNTS = struct.Struct("<II")  # behind the name
MAGIC = b"GPFD"
VERSION = 1
IGNORABLE = 1  # a flag: who does not know the type ignores the record
FLAGS_REQUIRED = 0xFFFF0000  # flags that have to be known
FIELD_REQUIRED = 0x8000  # fields from here on have to be known


def driver_name(kind: int) -> str:
    return {CUDA: "cuda", SOFT: "soft"}.get(kind, f"kind {kind}")


def access_name(access: int) -> str:
    return {READ_ONLY: "read-only", READ_WRITE: "read-write"}.get(access, f"access {access}")


def need(ok: object, text: str) -> None:
    if not ok:
        raise WireError(text)


def need_known(ok: object, what: str) -> None:
    if not ok:
        raise WireError(f"the peer uses what this program does not know: {what}", reason="unsupported")


def need_taken(size: int, max_data: int) -> None:
    if size > max_data:
        raise MismatchError(f"{size} bytes of application data are more than the {max_data} that are taken here", reason="too-large")


def unexpected(record: Record, wanted: str) -> WireError:
    return WireError(f"{record.type_name()} where {wanted} is expected", reason="protocol")


class Reader:
    """Takes fields from a record, one behind the other."""

    def __init__(self, record: bytes) -> None:
        self.left = memoryview(record)

    def take(self, n: int) -> bytes:
        if n > len(self.left):
            raise WireError(f"too short: {n} bytes are missing of {len(self.left)}")
        taken, self.left = self.left[:n], self.left[n:]
        return bytes(taken)

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self, length: int, most: int = MAX_TEXT) -> str:
        if length > most:
            raise WireError(f"a text of {length} bytes, and {most} are allowed")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise WireError("a text that is no UTF-8") from None

    def name(self, length: int) -> str:
        name = self.text(length, MAX_NAME)
        if has_controls(name):
            raise WireError("a name with control characters")
        return name

    def fields(self, record: type[Record]) -> dict[str, int]:
        """The rest: the fields that the class of record knows, by name."""
        last, values = -1, {}
        while self.left:
            number, length = self.unpack("<HH")
            value = self.take(length)
            need(number > last, f"field {number} behind field {last}")
            last = number
            if number in record.FIELDS:
                name, layout = record.FIELDS[number]
                need(length >= struct.calcsize(layout), f"{name} of {length} bytes")
                (values[name],) = struct.unpack_from(layout, value)
                need(values[name] or name not in ("resume", "reattach"), "generation 0 is no memory's")
            else:
                need_known(number < FIELD_REQUIRED, f"field {number} of {record.__name__.upper()}")
        need(not {"resume", "reattach"} <= values.keys(), "a wish to resume and one to reattach")
        return values


def has_controls(name: str) -> bool:
    return any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name)


def check_name(name: str) -> None:
    """Raise UsageError unless an offer can have the name."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"a name that is no UTF-8: {name!r}") from None
    if not 0 < size <= MAX_NAME:
        raise UsageError(f"a name of {size} bytes, and 1 to {MAX_NAME} are allowed")
    if has_controls(name):
        raise UsageError(f"a name with control characters: {name!r}")


def pack_text(text: str, most: int = MAX_TEXT) -> bytes:
    """A text behind its length; cut at most bytes, between two characters."""
    b = text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore").encode("utf-8")
    return struct.pack("<H", len(b)) + b


def pack_name(name: str) -> bytes:
    b = name.encode("utf-8")
    if len(b) > MAX_NAME:
        raise UsageError(f"a name of {len(b)} bytes, and {MAX_NAME} are allowed")
    return struct.pack("<H", len(b)) + b


R = TypeVar("R", bound="Record")


class Record:
    """The contents of one record. FIELDS are those behind the table of its type, by number: the
    attribute, and how struct packs it."""

    TYPE: ClassVar[int] = 0
    FIELDS: ClassVar[dict[int, tuple[str, str]]] = {}
    FLAGS: ClassVar[int] = 0

    def body(self) -> bytes:
        return b""

    @classmethod
    def parse(cls: type[R], r: Reader) -> R:
        return cls()

    @classmethod
    def type_name(cls) -> str:
        return cls.__name__.upper()


def pack_fields(record: Record) -> bytes:
    """Return the fields of a record: no capabilities are none, and no process is None."""
    packed = b""
    for number, (name, layout) in sorted(record.FIELDS.items()):
        if getattr(record, name) != getattr(type(record), name):
            value = struct.pack(layout, getattr(record, name))
            packed += struct.pack("<HH", number, len(value)) + value
    return packed


_CAPABILITIES = {1: ("capabilities", "<Q")}  # a field of the first record of each side
_PROCESS = {2: ("process", "<Q")}  # flags; who says it says FAREWELL when it leaves in order


@dataclass(frozen=True)
class Attach(Record):
    TYPE = 1
    FIELDS = {**_CAPABILITIES, **_PROCESS, 3: ("after", "<Q"), 0x8001: ("resume", "<Q"), 0x8002: ("reattach", "<Q")}
    driver: int
    access: int
    name: str = ""
    capabilities: int = 0
    resume: int = 0  # generation of memory that is mapped already, or 0
    after: int = 0  # memory of a larger generation is waited for; with reattach, newer memory is taken, too
    process: int | None = None
    reattach: int = 0  # generation of memory that was detached and is wanted again, or 0; not with resume

    def body(self) -> bytes:
        return struct.pack("<BBH", self.driver, self.access, 0) + pack_name(self.name)

    @classmethod
    def parse(cls, r: Reader) -> Attach:
        driver, access, _, length = r.unpack("<BBHH")
        need(access in (READ_ONLY, READ_WRITE), f"access {access} is unknown")
        return cls(driver, access, r.name(length))


@dataclass(frozen=True)
class Offer(Record):
    TYPE = 2
    FIELDS = {**_CAPABILITIES, **_PROCESS, 4: ("data_size", "<Q"), 5: ("cursor_size", "<Q"), 0x8001: ("resume", "<Q")}
    driver: int
    access: int
    chunks: int
    device: bytes  # UUID
    size: int
    chunk_size: int
    granularity: int
    generation: int
    first: int
    fds: int
    name: str
    data: bytes = b""
    pending: bool = False
    handle_type: int = DESCRIPTORS
    offset: int = 0  # of legacy memory in its allocation, whose size is chunk_size
    handle: bytes = b""
    capabilities: int = 0
    data_size: int = 0  # of data that comes in a DATA, or 0
    resume: int = 0  # what the consumer has mapped, which is sent no descriptors, or 0
    cursor_size: int = 0  # of memory that comes in a CURSORS, or 0
    process: int | None = None

    def __repr__(self) -> str:
        return f"<gpufd.Offer {called(self.name)}, {human(self.size)}, {driver_name(self.driver)}, {access_name(self.access)}>"

    @property
    def legacy(self) -> bool:
        return self.handle_type == LEGACY

    def body(self) -> bytes:
        name = pack_name(self.name)[2:]
        return _OFFER.pack(
            self.driver, self.access, self.handle_type, self.pending, self.chunks, self.device, self.size, self.chunk_size,
            self.granularity, self.generation, self.first, self.fds, len(name), len(self.data)
        ) + name + self.data + (struct.pack("<Q", self.offset) + self.handle if self.legacy else b"")  # fmt: skip

    @classmethod
    def parse(cls, r: Reader) -> Offer:
        (driver, access, handle_type, pending, chunks, device, size, chunk_size, granularity, generation, first, fds,
         name_length, data_length) = r.unpack(_OFFER.format)  # fmt: skip
        need(access in (READ_ONLY, READ_WRITE), f"access {access} is unknown")
        need_known(handle_type in (DESCRIPTORS, LEGACY), f"handles of type {handle_type}")
        need(pending in (0, 1), f"pending is {pending}")
        need(name_length > 0, "an offer without a name")
        need(data_length <= MAX_DATA, f"{data_length} bytes of data, and {MAX_DATA} are allowed")
        name = r.name(name_length)
        offer = cls(driver, access, chunks, device, size, chunk_size, granularity, generation, first, fds, name,
                    r.take(data_length), bool(pending), handle_type)  # fmt: skip
        if not offer.legacy:
            return offer
        offer = replace(offer, offset=r.unpack("<Q")[0], handle=r.take(HANDLE_SIZE))
        offer.check_legacy()
        return offer

    def check_legacy(self) -> None:
        need((self.chunks, self.first, self.fds, self.granularity) == (1, 0, 0, 0),
             "legacy memory is one chunk, without descriptors and granularity")  # fmt: skip
        need(self.access == READ_WRITE, "legacy memory cannot be read-only")
        need(0 < self.size <= self.chunk_size and self.offset <= self.chunk_size - self.size,
             f"{self.size} bytes at {self.offset} of an allocation of {self.chunk_size}")  # fmt: skip

    def check(self) -> None:
        """Raise if the numbers make no buffer."""
        need(not (self.data and self.data_size), "application data in OFFER and DATA")
        if self.legacy:
            return self.check_legacy()
        need(1 <= self.chunks <= MAX_CHUNKS, f"an offer of {self.chunks} chunks")
        if self.resume:
            need((self.resume, self.first, self.fds) == (self.generation, 0, 0), "a resumed offer with descriptors, or of another generation")
        else:
            need(1 <= self.fds <= MAX_FDS, f"a record with {self.fds} descriptors")
        need(self.first + self.fds <= self.chunks, f"chunks {self.first} to {self.first + self.fds - 1} of {self.chunks}")
        need(self.granularity > 0, "the granularity is 0")
        need(self.chunk_size > 0 and self.chunk_size % self.granularity == 0,
             f"the chunk size is {self.chunk_size}, no multiple of the granularity, {self.granularity}")  # fmt: skip
        need(self.chunks * self.chunk_size < 1 << 64, "more bytes than 64 bits hold")
        need((self.chunks - 1) * self.chunk_size < self.size <= self.chunks * self.chunk_size,
             f"the size is {self.size}, in {self.chunks} chunks of {self.chunk_size}")  # fmt: skip

    def continues(self, before: Offer) -> None:
        """Raise if this is not the record that follows another of the same offer."""
        alike = replace(before, first=before.first + before.fds, fds=self.fds, capabilities=self.capabilities)
        need(self == alike, "records of an offer contradict each other")

    def memory(self) -> tuple[int, bytes, int, int, int, int, int]:
        """The offer's description of the memory, to compare."""
        return self.driver, self.device, self.size, self.chunk_size, self.chunks, self.granularity, self.generation


@dataclass(frozen=True)
class Refuse(Record):
    TYPE = 3
    code: int
    text: str = ""

    def body(self) -> bytes:
        return struct.pack("<H", self.code) + pack_text(self.text)

    @classmethod
    def parse(cls, r: Reader) -> Refuse:
        code, length = r.unpack("<HH")
        return cls(code, r.text(length))


@dataclass(frozen=True)
class Progress(Record):
    TYPE = 4
    FIELDS = _CAPABILITIES
    done: int
    total: int
    capabilities: int = 0

    def body(self) -> bytes:
        return struct.pack("<QQ", self.done, self.total)

    @classmethod
    def parse(cls, r: Reader) -> Progress:
        return cls(*r.unpack("<QQ"))


class _Number(Record):
    """A record that says a number and nothing else."""

    def body(self) -> bytes:
        return struct.pack("<Q", *vars(self).values())

    @classmethod
    def parse(cls: type[R], r: Reader) -> R:
        return cls(*r.unpack("<Q"))


@dataclass(frozen=True)
class _Generation(_Number):
    generation: int


class Mapped(_Generation):
    TYPE = 5


@dataclass(frozen=True)
class Verdict(Record):
    TYPE = 6
    ok: bool
    text: str = ""

    def body(self) -> bytes:
        return struct.pack("<BB", self.ok, 0) + pack_text(self.text)

    @classmethod
    def parse(cls, r: Reader) -> Verdict:
        verdict, _, length = r.unpack("<BBH")
        need(verdict in (0, 1), f"a verdict of {verdict}")
        return cls(bool(verdict), r.text(length))


@dataclass(frozen=True)
class Revoke(Record):
    TYPE = 7
    FIELDS = {6: ("reason", "<Q")}
    text: str = ""
    reason: int = 0  # WITHDRAWN and so on; an older producer says none, and a later one may say others

    def body(self) -> bytes:
        return pack_text(self.text)

    @classmethod
    def parse(cls, r: Reader) -> Revoke:
        return cls(r.text(*r.unpack("<H")))


class Publish(_Generation):
    TYPE = 8


class Confirm(_Generation):
    TYPE = 9


@dataclass(frozen=True)
class Farewell(Record):
    """The sender leaves in order: a consumer has unmapped the memory."""

    TYPE = 10
    FLAGS = IGNORABLE


@dataclass(frozen=True)
class Notice(Record):
    TYPE = 11
    FLAGS = IGNORABLE
    data: bytes = b""

    def body(self) -> bytes:
        return struct.pack("<H", len(self.data)) + self.data

    @classmethod
    def parse(cls, r: Reader) -> Notice:
        (length,) = r.unpack("<H")
        need(length <= MAX_NOTICE, f"a notice of {length} bytes, and {MAX_NOTICE} are allowed")
        return cls(r.take(length))


@dataclass(frozen=True)
class List(Record):
    TYPE = 12


@dataclass(frozen=True)
class Listing:
    """A producer's description of one of its offers, in a list."""

    driver: int  #: CUDA or SOFT
    access: int  #: the most that may be asked for
    handle_type: int
    pending: bool  #: the data is not there yet
    device: bytes  #: UUID
    size: int
    generation: int
    data_size: int  #: bytes of application data
    name: str
    leases: int | None = None  #: that consumers have now; None if the producer is older than that
    slots: int = 0  #: of a channel

    def __repr__(self) -> str:
        return f"<gpufd.Listing {called(self.name)}, {human(self.size)}, {driver_name(self.driver)}, {access_name(self.access)}>"

    def pack(self) -> bytes:
        name = self.name.encode("utf-8")
        body = _LISTING.pack(self.driver, self.access, self.handle_type, self.pending, self.device, self.size,
                             self.generation, self.data_size, len(name)) + name  # fmt: skip
        if self.leases is not None:
            body += _COUNTS.pack(self.leases, self.slots)
        return struct.pack("<H", len(body)) + body

    @classmethod
    def take(cls, r: Reader) -> Listing:
        (length,) = r.unpack("<H")
        own = Reader(r.take(length))
        driver, access, handle_type, pending, device, size, generation, data_size, name_length = own.unpack(_LISTING.format)
        need(access in (READ_ONLY, READ_WRITE), f"access {access} is unknown")
        need(pending in (0, 1), f"pending is {pending}")
        need(name_length > 0, "an offer without a name")
        name = own.name(name_length)
        leases, slots = own.unpack(_COUNTS.format) if len(own.left) >= _COUNTS.size else (None, 0)
        return cls(driver, access, handle_type, bool(pending), device, size, generation, data_size, name, leases, slots)


@dataclass(frozen=True)
class Listed(Record):
    TYPE = 13
    left: int
    offers: tuple[Listing, ...] = ()

    def body(self) -> bytes:
        return struct.pack("<IHH", self.left, len(self.offers), 0) + b"".join(o.pack() for o in self.offers)

    @classmethod
    def parse(cls, r: Reader) -> Listed:
        left, count, _ = r.unpack("<IHH")
        need(count or not left, "a record without an offer that is not the last")
        need(count * 48 <= len(r.left), f"{count} offers in {len(r.left)} bytes")
        return cls(left, tuple(Listing.take(r) for _ in range(count)))


@dataclass(frozen=True)
class Data(Record):
    """Comes with one descriptor: the application data of the offer before it."""

    TYPE = 14


@dataclass(frozen=True)
class Cursors(Record):
    """Comes with one descriptor: memory that this consumer and the producer alone have."""

    TYPE = 16


@dataclass(frozen=True)
class Detached(_Number):
    """A consumer has unmapped and released the memory. Its lease is to be kept for keep milliseconds; 0 is as long as the connection lives."""

    TYPE = 17
    keep: int = 0


class Superseded(_Generation):
    TYPE = 15
    FLAGS = IGNORABLE


@dataclass(frozen=True)
class Unknown(Record):
    """A record of a type that is not known here, and may be ignored."""

    type: int


_RECORDS: tuple[type[Record], ...] = (
    Attach, Offer, Refuse, Progress, Mapped, Verdict, Revoke, Publish, Confirm, Farewell, Notice, List, Listed, Data, Superseded, Cursors, Detached
)  # fmt: skip
TYPES = {t.TYPE: t for t in _RECORDS}


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    body = record.body() + pack_fields(record)
    return HEADER.pack(MAGIC, VERSION, record.TYPE, record.FLAGS, len(body)) + body


def decode(data: bytes) -> Record:
    """The record that the bytes are, or WireError. Of an offer, check is left to do."""
    r = Reader(data)
    magic, version, type_, flags, length = r.unpack(HEADER.format)
    need(magic == MAGIC, "a record that does not begin with GPFD")
    if version != VERSION:
        raise WireError(f"the peer speaks version {version}, this program {VERSION}", reason="version")
    need(length == len(r.left), f"{length} bytes follow, it says, and {len(r.left)} do")
    need_known(not flags & FLAGS_REQUIRED, f"flags {flags & FLAGS_REQUIRED:#x}")
    if type_ not in TYPES:
        need_known(flags & IGNORABLE, f"records of type {type_}")
        return Unknown(type_)
    kind = TYPES[type_]
    record = kind.parse(r)
    fields = r.fields(kind)
    return replace(record, **fields) if fields else record
