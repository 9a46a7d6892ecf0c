"""gpufd's wire protocol, version 1, in the Python standard library alone (3.9 and newer).

A client of docs/wire.md: records to bytes and back, connections with deadlines, and
the two conversations, take (a consumer's) and Server (a producer's). Nothing here
knows CUDA: what is passed on are file descriptors; memory.py maps them.

Every length is checked before anything is made of it, every wait has a deadline, and
every descriptor that comes is given to the caller or closed.
"""

import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import ClassVar

CUDA, SOFT = 1, 2  # kinds of driver
READ_ONLY, READ_WRITE = 1, 3  # kinds of access
DESCRIPTORS, LEGACY = 1, 2  # types of handles
HANDLE_SIZE = 64  # bytes of a legacy handle
MAX_RECORD = 8192  # bytes taken; the longest record that there is today is shorter
MAX_FDS = 64  # descriptors in a record
MAX_CHUNKS = 4096
MAX_NAME, MAX_DATA, MAX_TEXT = 255, 4096, 4096
MAX_LARGE_DATA = 64 << 20  # application data that comes in a DATA
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # what nobody can do to that
MAX_PATH = 107  # bytes of a socket's path
SO_PASSRIGHTS = 83  # of the kernel, from Linux 6.16 on

# Codes of REFUSE.
NO_OFFER, TOO_MUCH_ACCESS, OTHER_DRIVER, BUSY, OTHER_VERSION, BAD_RECORD, TOO_LATE, NOT_ADMITTED, TOO_FAST, NOT_KNOWN, OTHER_MEMORY = range(1, 12)

# Capabilities: a consumer takes offers by a legacy handle, and application data in a DATA.
TAKES_LEGACY, TAKES_DATA = 1 << 0, 1 << 1

# Flags of a process: its work may go on after its death, or it cannot tell; the producer waits until who may write says
# FAREWELL.
MAY_OUTLIVE, AWAITS_RELEASE = 1 << 0, 1 << 1


def process_flags(driver):
    """What is known of a process without asking its driver."""
    return 0 if driver == SOFT else MAY_OUTLIVE


def driver_name(kind):
    return {CUDA: "cuda", SOFT: "soft"}.get(kind, f"kind {kind}")


class Error(Exception):
    """What went wrong, in a line, and the exit code that it stands for."""

    exit = 1


class Usage(Error):
    """Wrong usage."""

    exit = 2


class CannotHere(Error):
    """This machine lacks what is needed."""

    exit = 3


class Lost(Error):
    """The peer is gone."""

    exit = 4


class TimedOut(Error):
    """The peer took too long."""

    exit = 4


class Revoked(Error):
    """The producer has ended the offer."""

    exit = 4


class StillOpen(Error):
    """A consumer did not close legacy memory in time, which is freed under it."""

    exit = 4


class Malformed(Error):
    """The peer sent what no version-1 peer sends now. code is what REFUSE says of it."""

    def __init__(self, text, code=BAD_RECORD):
        super().__init__(text)
        self.code = code


class Refused(Error):
    """The peer said REFUSE."""

    def __init__(self, record):
        super().__init__(f"refused: {printable(record.text) or 'no reason given'} (code {record.code})")
        self.code = record.code
        if record.code == TOO_LATE:
            self.exit = 4


def printable(text):
    """A peer's text without what would steer a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


# Records.

HEADER = struct.Struct("<4sHHII")  # magic, version, type, flags, length
OFFER = struct.Struct("<BBBBI16sQQQQIIHH")
MAGIC = b"GPFD"
VERSION = 1
IGNORABLE = 1  # a flag: who does not know the type ignores the record
FLAGS_REQUIRED = 0xFFFF0000  # flags that have to be known
FIELD_REQUIRED = 0x8000  # fields from here on have to be known


class Reader:
    """Takes fields from a record, one behind the other."""

    def __init__(self, record):
        self.left = memoryview(record)

    def take(self, n):
        if n > len(self.left):
            raise Malformed(f"too short: {n} bytes are missing of {len(self.left)}")
        taken, self.left = self.left[:n], self.left[n:]
        return bytes(taken)

    def unpack(self, layout):
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self, length, most=MAX_TEXT):
        if length > most:
            raise Malformed(f"a text of {length} bytes, and {most} are allowed")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed("a text that is no UTF-8") from None

    def name(self, length):
        name = self.text(length, MAX_NAME)
        if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name):
            raise Malformed("a name with control characters")
        return name

    def fields(self, record):
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
                need(values[name] or name != "resume", "generation 0 is no memory's")
            else:
                need_known(number < FIELD_REQUIRED, f"field {number} of {record.__name__.upper()}")
        return values


def pack_text(text, most=MAX_TEXT):
    """A text behind its length; cut at most bytes, between two characters."""
    b = text.encode("utf-8")[:most].decode("utf-8", "ignore").encode("utf-8")
    return struct.pack("<H", len(b)) + b


def pack_name(name):
    b = name.encode("utf-8")
    if len(b) > MAX_NAME:
        raise Usage(f"a name of {len(b)} bytes, and {MAX_NAME} are allowed")
    return struct.pack("<H", len(b)) + b


def pack_fields(record):
    """What a record says in fields: no capabilities are none, and no process is None."""
    packed = b""
    for number, (name, layout) in sorted(record.FIELDS.items()):
        if getattr(record, name) != getattr(type(record), name):
            value = struct.pack(layout, getattr(record, name))
            packed += struct.pack("<HH", number, len(value)) + value
    return packed


def need(ok, text):
    if not ok:
        raise Malformed(text)


def need_known(ok, what):
    if not ok:
        raise Malformed(f"the peer uses what this program does not know: {what}", NOT_KNOWN)


class Record:
    """What one record says. FIELDS are those behind the table of its type, by number: the
    attribute, and how struct packs it."""

    FIELDS: ClassVar[dict] = {}
    FLAGS: ClassVar[int] = 0


CAPABILITIES = {1: ("capabilities", "<Q")}  # a field of the first record of each side
PROCESS = {2: ("process", "<Q")}  # flags; who says it says FAREWELL when it leaves in order


@dataclass(frozen=True)
class Attach(Record):
    TYPE: ClassVar[int] = 1
    FIELDS: ClassVar[dict] = {**CAPABILITIES, **PROCESS, 3: ("after", "<Q"), 0x8001: ("resume", "<Q")}
    driver: int
    access: int
    name: str = ""
    capabilities: int = 0
    resume: int = 0  # generation of memory that is mapped already, or 0
    after: int = 0  # memory of a larger generation is waited for; a Server here has one offer, and skips it
    process: int = None

    def body(self):
        return struct.pack("<BBH", self.driver, self.access, 0) + pack_name(self.name)

    @classmethod
    def parse(cls, r):
        driver, access, _, length = r.unpack("<BBHH")
        need(access in (READ_ONLY, READ_WRITE), f"access {access} is unknown")
        return cls(driver, access, r.name(length))


@dataclass(frozen=True)
class Offer(Record):
    TYPE: ClassVar[int] = 2
    FIELDS: ClassVar[dict] = {**CAPABILITIES, **PROCESS, 4: ("data_size", "<Q"), 0x8001: ("resume", "<Q")}
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
    process: int = None

    @property
    def legacy(self):
        return self.handle_type == LEGACY

    def body(self):
        name = pack_name(self.name)[2:]
        return OFFER.pack(
            self.driver, self.access, self.handle_type, self.pending, self.chunks, self.device, self.size, self.chunk_size,
            self.granularity, self.generation, self.first, self.fds, len(name), len(self.data)
        ) + name + self.data + (struct.pack("<Q", self.offset) + self.handle if self.legacy else b"")  # fmt: skip

    @classmethod
    def parse(cls, r):
        (driver, access, handle_type, pending, chunks, device, size, chunk_size, granularity, generation, first, fds,
         name_length, data_length) = r.unpack(OFFER.format)  # fmt: skip
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

    def check_legacy(self):
        need((self.chunks, self.first, self.fds, self.granularity) == (1, 0, 0, 0),
             "legacy memory is one chunk, without descriptors and granularity")  # fmt: skip
        need(self.access == READ_WRITE, "legacy memory cannot be read-only")
        need(0 < self.size <= self.chunk_size and self.offset <= self.chunk_size - self.size,
             f"{self.size} bytes at {self.offset} of an allocation of {self.chunk_size}")  # fmt: skip

    def check(self):
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

    def continues(self, before):
        """Raise if this is not the record that follows another of the same offer."""
        alike = replace(before, first=before.first + before.fds, fds=self.fds, capabilities=self.capabilities)
        need(self == alike, "records of an offer contradict each other")


@dataclass(frozen=True)
class Refuse(Record):
    TYPE: ClassVar[int] = 3
    code: int
    text: str = ""

    def body(self):
        return struct.pack("<H", self.code) + pack_text(self.text)

    @classmethod
    def parse(cls, r):
        code, length = r.unpack("<HH")
        return cls(code, r.text(length))


@dataclass(frozen=True)
class Progress(Record):
    TYPE: ClassVar[int] = 4
    FIELDS: ClassVar[dict] = CAPABILITIES
    done: int
    total: int
    capabilities: int = 0

    def body(self):
        return struct.pack("<QQ", self.done, self.total)

    @classmethod
    def parse(cls, r):
        return cls(*r.unpack("<QQ"))


@dataclass(frozen=True)
class Mapped(Record):
    TYPE: ClassVar[int] = 5
    generation: int

    def body(self):
        return struct.pack("<Q", self.generation)

    @classmethod
    def parse(cls, r):
        return cls(*r.unpack("<Q"))


@dataclass(frozen=True)
class Verdict(Record):
    TYPE: ClassVar[int] = 6
    ok: bool
    text: str = ""

    def body(self):
        return struct.pack("<BB", self.ok, 0) + pack_text(self.text)

    @classmethod
    def parse(cls, r):
        verdict, _, length = r.unpack("<BBH")
        need(verdict in (0, 1), f"a verdict of {verdict}")
        return cls(bool(verdict), r.text(length))


@dataclass(frozen=True)
class Revoke(Record):
    TYPE: ClassVar[int] = 7
    text: str = ""

    def body(self):
        return pack_text(self.text)

    @classmethod
    def parse(cls, r):
        return cls(r.text(*r.unpack("<H")))


@dataclass(frozen=True)
class Publish(Record):
    TYPE: ClassVar[int] = 8
    generation: int

    def body(self):
        return struct.pack("<Q", self.generation)

    @classmethod
    def parse(cls, r):
        return cls(*r.unpack("<Q"))


@dataclass(frozen=True)
class Confirm(Record):
    TYPE: ClassVar[int] = 9
    generation: int

    def body(self):
        return struct.pack("<Q", self.generation)

    @classmethod
    def parse(cls, r):
        return cls(*r.unpack("<Q"))


@dataclass(frozen=True)
class Data(Record):
    """Comes with one descriptor: the application data of the offer before it."""

    TYPE: ClassVar[int] = 14

    def body(self):
        return b""

    @classmethod
    def parse(cls, r):
        return cls()


@dataclass(frozen=True)
class Farewell(Record):
    """The sender leaves in order: a consumer has unmapped the memory."""

    TYPE: ClassVar[int] = 10
    FLAGS: ClassVar[int] = IGNORABLE

    def body(self):
        return b""

    @classmethod
    def parse(cls, r):
        return cls()


@dataclass(frozen=True)
class Unknown(Record):
    """A record of a type that is not known here, and may be ignored."""

    type: int


TYPES = {t.TYPE: t for t in (Attach, Offer, Refuse, Progress, Mapped, Verdict, Revoke, Publish, Confirm, Farewell, Data)}


def encode(record):
    """The bytes of a record."""
    body = record.body() + pack_fields(record)
    return HEADER.pack(MAGIC, VERSION, record.TYPE, record.FLAGS, len(body)) + body


def decode(data):
    """The record that the bytes are, or Malformed. Of an offer, check is left to do."""
    r = Reader(data)
    magic, version, type_, flags, length = r.unpack(HEADER.format)
    need(magic == MAGIC, "a record that does not begin with GPFD")
    if version != VERSION:
        raise Malformed(f"the peer speaks version {version}, this program {VERSION}", OTHER_VERSION)
    need(length == len(r.left), f"{length} bytes follow, it says, and {len(r.left)} do")
    need_known(not flags & FLAGS_REQUIRED, f"flags {flags & FLAGS_REQUIRED:#x}")
    if type_ not in TYPES:
        need_known(flags & IGNORABLE, f"records of type {type_}")
        return Unknown(type_)
    record = TYPES[type_].parse(r)
    return replace(record, **r.fields(TYPES[type_]))


# Application data that does not fit an OFFER.


def data_file(data):
    """A descriptor of a file of memory that nobody can change."""
    fd = os.memfd_create("gpufd data", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(fd, "wb", closefd=False) as f:
            f.write(data)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
        return fd
    except BaseException:
        os.close(fd)
        raise


def is_sealed(fd):
    """Whether a descriptor is such a file. Any other says at once that it has no seals."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False


def read_data(fd, size):
    """All of a file that is_sealed, which is as large as the offer said."""
    there = os.fstat(fd).st_size
    need(there == size, f"{there} bytes of application data came, and the offer says {size}")
    data = b""
    while len(data) < size:
        more = os.pread(fd, size - len(data), len(data))
        need(more, "the application data ends early")
        data = data + more if data else more
    return data


# Peers.


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says it was when it connected or listened."""

    pid: int  # 0 if it is in another PID namespace
    uid: int
    gid: int

    def __str__(self):
        return f"pid {self.pid or 'unknown'} uid {self.uid} gid {self.gid}"


def peer_of(sock):
    return Peer(*struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


@dataclass(frozen=True)
class Policy:
    """Whom to talk to: our own user, and those that are named."""

    uids: frozenset = frozenset()
    gids: frozenset = frozenset()

    def check(self, peer):
        """Raise PermissionError if the peer is not admitted."""
        if peer.uid == overflow_uid() and not all_users_have_numbers():
            raise PermissionError(f"uid {peer.uid} stands for every user unknown in this user namespace ({peer})")
        if peer.uid != os.geteuid() and peer.uid not in self.uids and peer.gid not in self.gids:
            raise PermissionError(f"uid {peer.uid} is not admitted ({peer})")


def overflow_uid():
    try:
        with open("/proc/sys/kernel/overflowuid") as f:
            return int(f.read())
    except OSError:
        return 65534


def all_users_have_numbers():
    """Whether this process is in no user namespace that would hide a user."""
    try:
        with open("/proc/self/uid_map") as f:
            return f.read().split() == ["0", "0", "4294967295"]
    except OSError:
        return False


# Connections.


def close_all(fds):
    for fd in fds:
        os.close(fd)


def is_no_socket(fd):
    return not stat.S_ISSOCK(os.fstat(fd).st_mode)


def close_later(sock):
    """Close a socket without waiting. Closing drops what is in the queue: a descriptor there
    can make it wait for as long as its sender likes (SO_LINGER). The process's end does not."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # the peer hears of it now
    try:
        threading.Thread(target=sock.close, name="close", daemon=True).start()
    except RuntimeError:  # there is no thread to be had
        sock.detach()


def take_no_fds(sock):
    """Have the kernel refuse descriptors that are sent to a socket, if it can."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


class Meter:
    """Bounds a peer's records to 1,000 a second, which may come at once."""

    RATE = 1000

    def __init__(self):
        self.left, self.at = float(self.RATE), time.monotonic()

    def fill(self):
        now = time.monotonic()
        self.left, self.at = min(self.RATE, self.left + (now - self.at) * self.RATE), now

    def count(self):
        self.fill()
        if self.left < 1:
            raise Malformed(f"more than {self.RATE} records a second", TOO_FAST)
        self.left -= 1

    def wait(self):
        """Until there may be another one."""
        self.fill()
        while self.left < 1:
            time.sleep((1 - self.left) / self.RATE)
            self.fill()


class Conn:
    """A connected socket. timeout is how many seconds each send and receive may take."""

    def __init__(self, sock, timeout):
        sock.setblocking(False)
        self.sock, self.timeout, self.meter = sock, timeout, Meter()
        self.foul = False  # the queue begins with descriptors that are not taken, and is left so

    def close(self):
        close_later(self.sock)

    def wait(self, event, deadline):
        poll = select.poll()
        poll.register(self.sock, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(min(left * 1000 + 1, 1 << 30)):
            raise TimedOut(f"the peer took longer than {self.timeout:g} s")

    def send(self, record, fds=(), deadline=None):
        """Send a record with copies of descriptors."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        while True:
            try:
                self.sock.sendmsg([encode(record)], control, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                self.wait(select.POLLOUT, deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise Lost("the peer hung up") from None

    def receive(self, max_fds=0, deadline=None):
        """The next record and its descriptors, which the caller owns; Lost at the end. What
        is ignored does not renew the deadline."""
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        while True:
            record, fds = self.receive_any(max_fds, deadline)
            if not isinstance(record, (Unknown, Farewell)):
                return record, fds

    def receive_any(self, max_fds, deadline):
        """The next record, also one to be ignored."""
        if self.foul:
            self.wait(select.POLLRDHUP, deadline)
            raise Lost("the peer hung up")
        ended = False
        while True:
            try:
                data, flags = self.look()
            except BlockingIOError:
                need(not ended, "a record of length 0")  # an end stays one
                self.wait(select.POLLIN, deadline)
                continue
            except ConnectionResetError:
                data, flags = b"", 0
            if data or flags & socket.MSG_CTRUNC:
                break
            # A record that was queued before the peer closed may show up only now.
            if ended:
                raise Lost("the peer hung up")
            ended = True
        # With descriptors, the record stays in the queue until they are known to be wanted.
        self.foul = bool(flags & socket.MSG_CTRUNC)
        if not self.foul:
            past_reset(self.sock.recv, MAX_RECORD)
        self.meter.count()
        need(not flags & socket.MSG_TRUNC, f"a record of more than {MAX_RECORD} bytes")
        need(data, "descriptors without a record")
        record = decode(data)
        want = record.fds if isinstance(record, Offer) else 1 if isinstance(record, Data) else 0
        need(want <= max_fds, f"{want} descriptors, and {max_fds} are taken")
        need(self.foul == bool(want), f"a record that is to have {want} descriptors came with {'some' if self.foul else 'none'}")
        return record, self.take(want, is_sealed if isinstance(record, Data) else is_no_socket) if want else []

    def look(self):
        """The next record, left in the queue, and MSG_CTRUNC if it has descriptors; b"" at
        the end, or for a record of length 0, which is taken."""
        for _ in range(2):  # a record that was queued before the peer closed may show up only now
            data, _, flags, _ = self.sock.recvmsg(MAX_RECORD, 0, socket.MSG_PEEK)
            if data or flags & socket.MSG_CTRUNC:
                return data, flags
        return self.sock.recv(1), 0

    def take(self, want, good):
        """The descriptors of the record that was looked at, which leaves the queue if all
        is well, and they are good. A peer may pass a socket that makes whoever closes it last wait (SO_LINGER).
        So sockets are not taken, and closing what MSG_PEEK made is safe: it is not the last
        while the record is in the queue."""
        room = socket.CMSG_LEN(4 * want)
        _, control, flags, _ = past_reset(self.sock.recvmsg, 1, room, socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC)
        fds = array.array("i")
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        try:
            need(not flags & socket.MSG_CTRUNC, f"more than the {want} descriptors that it says, or than ulimit -n allows")
            need(len(fds) == want, f"{len(fds)} descriptors came with a record that is to have {want}")
            need(all(good(fd) for fd in fds), "a descriptor that is a socket, or application data that is not sealed")
            past_reset(self.sock.recv, MAX_RECORD)  # without room for them: we have them
            self.foul = False
        except BaseException:
            close_all(fds)
            raise
        return list(fds)

    def shortly(self):
        """Until when a peer is waited for that may not read any more."""
        return time.monotonic() + min(1.0, self.timeout)

    def farewell(self, record):
        """Send a last record, and wait until the peer has read it and closed, not longer
        than a second for both."""
        deadline = self.shortly()
        with contextlib.suppress(Error, OSError):
            self.send(record, deadline=deadline)
            self.drain(deadline)

    def let_go(self, record=None):
        """Send a last record, if there is one, to a consumer that may have legacy memory
        open, and wait until it has not: until it closes the connection, or says VERDICT.
        Nothing else that it says, in records or not, renews the time for that or ends it.
        Returns whether it came to that."""
        deadline = time.monotonic() + self.timeout
        with contextlib.suppress(Error, OSError):
            if record:
                self.send(record, deadline=self.shortly())
        while time.monotonic() < deadline:
            self.meter.wait()
            try:
                if isinstance(self.receive(deadline=deadline)[0], Verdict):
                    return True
            except Lost:
                return True
            except Malformed:
                self.meter.left -= 1  # counts, too, if it was no record
            except (Error, OSError):
                return False
        return False

    def drain(self, deadline):
        """Read what comes until the peer closes: 16 records at most."""
        with contextlib.suppress(Lost):
            for _ in range(16):
                with contextlib.suppress(Malformed):
                    close_all(self.receive_any(MAX_FDS, deadline)[1])


def past_reset(receive, *args):
    """receive of a record that is known to be in the queue. A reset may come before it, once."""
    try:
        return receive(*args)
    except ConnectionResetError:
        return receive(*args)


# The consumer.


def dial(path, policy, timeout):
    """Connect to a producer that is admitted. Returns the Conn and the Peer."""
    if not path or len(os.fsencode(path)) > MAX_PATH:
        raise Usage(f"a socket's path has 1 to {MAX_PATH} bytes: {path}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # The kernel bounds a connect that waits for room by the time to send.
        whole = int(timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, int((timeout - whole) * 1e6) or 1))
        sock.connect(path)
        peer = peer_of(sock)
        policy.check(peer)
        return Conn(sock, timeout), peer
    except BlockingIOError:
        close_later(sock)
        raise TimedOut(f"{path}: the producer did not accept within {timeout:g} s") from None
    except PermissionError as e:
        close_later(sock)
        raise Error(f"{path}: {e}") from None
    except OSError as e:
        close_later(sock)
        raise Error(f"{path}: nobody is listening there: {e.strerror}; start the producer first, with the same --socket") from None
    except BaseException:
        close_later(sock)
        raise


class Attachment:
    """A consumer's conversation: who has it has the lease, until close.

    offer is what came; fds are its descriptors, one a chunk, which close closes, or
    drop_fds as soon as they are imported. Of a legacy offer there are none: the memory
    is opened by offer.handle, and has to be closed before report and before close, because
    the producer may free it then.
    """

    def __init__(self, conn, peer):
        self.conn, self.peer = conn, peer
        self.offer, self.fds = None, []
        self.mapped_said = self.over = False  # over: there is no more to say

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Tell the producer of a failure that it does not know of, or that all is done and
        the memory unmapped, and close."""
        if isinstance(error, Malformed) and self.mapped_said:
            self.conn.farewell(Refuse(error.code, str(error)))
        elif error is not None and not self.over and not isinstance(error, Lost):
            self.conn.farewell(Verdict(False, str(error) or kind.__name__))
        elif (error is None and not self.over) or (isinstance(error, Revoked) and self.awaited()):
            self.drop_fds()
            with contextlib.suppress(Error, OSError):
                self.conn.send(Farewell(), deadline=self.conn.shortly())
        self.close()

    def awaited(self):
        """Whether the producer keeps the connection until it has heard a farewell."""
        return bool(self.offer and self.offer.process and self.offer.process & AWAITS_RELEASE)

    def close(self):
        self.drop_fds()
        self.conn.close()

    def drop_fds(self):
        fds, self.fds = self.fds, []
        close_all(fds)

    def say(self, record):
        """Send a record. A producer that has hung up may have said why."""
        try:
            self.conn.send(record)
        except Lost:
            while True:
                self.hear()

    def hear(self, max_fds=0, deadline=None):
        """The next record, with its descriptors; raises what ends the conversation."""
        record, fds = self.conn.receive(max_fds, deadline)
        if isinstance(record, Refuse):
            self.over = True
            raise Refused(record)
        if isinstance(record, Revoke):
            self.over = True
            raise Revoked(f"the producer ended the offer: {printable(record.text)}")
        return record, fds

    def take(self, attach, max_chunks, max_size, max_data):
        """Ask for the offer and take its descriptors."""
        self.say(attach)
        while not self.offer or not self.offer.legacy and len(self.fds) < self.offer.chunks:
            record, fds = self.hear(MAX_FDS)
            if isinstance(record, Progress):
                continue
            if not isinstance(record, Offer):
                raise Malformed(f"{type(record).__name__.upper()} where an offer is expected")
            self.fds += fds  # ours to close, whatever the record says
            record.check()
            need(not self.fds or not record.legacy, "descriptors and a legacy handle in one offer")
            if self.offer:
                record.continues(self.last)
            else:
                self.first_record(record, attach, max_chunks, max_size)
                need_taken(len(record.data) or record.data_size, max_data)
            self.offer = self.offer or record
            self.last = record
        if self.offer.data_size:
            self.offer = replace(self.offer, data=self.take_data())
        take_no_fds(self.conn.sock)

    def take_data(self):
        """The application data that comes behind the offer."""
        while True:
            record, fds = self.hear(1)
            try:
                if isinstance(record, Data):
                    return read_data(fds[0], self.offer.data_size)
                need(isinstance(record, Progress), f"{type(record).__name__.upper()} where application data is expected")
            finally:
                close_all(fds)

    def first_record(self, offer, attach, max_chunks, max_size):
        need(offer.first == 0, f"an offer that begins with chunk {offer.first}")
        need(attach.name in ("", offer.name), f"an offer of another name: {offer.name!r}")
        need(offer.driver == attach.driver,
             f"the producer uses the {driver_name(offer.driver)} driver and this program {driver_name(attach.driver)}")  # fmt: skip
        need(offer.access >= attach.access, "less access than was asked for")
        need(offer.resume == attach.resume, "an offer to who has the memory already, to a consumer that has not")
        need(not offer.legacy or attach.capabilities & TAKES_LEGACY, "an offer by a legacy handle, to a consumer that takes none")
        if offer.chunks > max_chunks or (max_size and offer.chunks * offer.chunk_size > max_size):
            raise Error(f"an offer of {offer.chunks} chunks and {offer.chunks * offer.chunk_size} bytes is more than is taken here")

    def wait_published(self):
        """Wait for the data of a pending offer."""
        while self.offer.pending:
            if self.hears(Publish):
                return

    def hears(self, wanted):
        """Whether the next record is that one, of this offer; PROGRESS may come first."""
        record, _ = self.hear()
        if isinstance(record, wanted):
            need(record.generation == self.offer.generation,
                 f"{wanted.__name__.upper()} of generation {record.generation}, not that of the offer")  # fmt: skip
            return True
        need(isinstance(record, Progress), f"{type(record).__name__.upper()} where {wanted.__name__.upper()} is expected")
        return False

    def mapped(self):
        """Say that the memory is mapped, or opened. Of legacy memory, the producer has to
        confirm then that it is what was offered: the handle alone does not say so."""
        self.say(Mapped(self.offer.generation))
        self.mapped_said = True
        while self.offer.legacy and not self.hears(Confirm):
            pass

    def progress(self, done):
        """Say that the work goes on: it renews the producer's patience. Revoked, where
        legacy memory is to be closed."""
        self.say(Progress(done, self.offer.size))
        if self.offer.legacy:
            self.look()

    def look(self):
        """Hear what has come, without waiting for more."""
        with contextlib.suppress(TimedOut):
            while True:
                record, _ = self.hear(deadline=0)
                need(isinstance(record, Progress), f"{type(record).__name__.upper()} to a consumer that is attached")

    def report(self, ok, text=""):
        """Give the verdict, and wait until the producer has read it and closed."""
        self.say(Verdict(ok, text))
        self.over = True
        deadline = time.monotonic() + self.conn.timeout  # which progress does not renew
        with contextlib.suppress(Lost):
            while True:
                record, _ = self.hear(deadline=deadline)
                need(isinstance(record, Progress), f"{type(record).__name__.upper()} behind the verdict")


def need_taken(size, max_data):
    if size > max_data:
        raise Error(f"{size} bytes of application data are more than the {max_data} that are taken here")


def attach(path, name, driver, access=READ_ONLY, policy=Policy(), timeout=30.0, max_chunks=MAX_CHUNKS, max_size=None,
           connected=lambda peer: None, legacy=False, max_data=MAX_LARGE_DATA, process=None):  # fmt: skip
    """Take the offer of that name ("" for the only one), by a legacy handle only if legacy
    says that the caller opens those. connected is told the Peer as
    soon as there is one. process has flags: who knows that it does not run under MPS says 0.
    The caller maps att.fds, waits
    for att.wait_published(), says att.mapped(), and may say att.report(); to be used
    with with, which tells the producer of failures, and else says farewell: the memory is
    unmapped before that ends."""
    conn, peer = dial(path, policy, timeout)
    att = Attachment(conn, peer)
    try:
        connected(peer)
        wish = Attach(driver, access, name, TAKES_DATA | (TAKES_LEGACY if legacy else 0),
                      process=process_flags(driver) if process is None else process)  # fmt: skip
        att.take(wish, max_chunks, max_size, max_data)
    except BaseException as e:
        att.__exit__(type(e), e, None)
        raise
    return att


# The producer.

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # they pass


class Listener:
    """A socket that only its user may connect to, and the lock that goes with it."""

    def __init__(self, path):
        if not path or len(os.fsencode(path)) > MAX_PATH:
            raise Usage(f"a socket's path has 1 to {MAX_PATH} bytes: {path}")
        self.path, self.bound = path, False
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        take_no_fds(self.sock)  # nor do those that it accepts
        self.lock = -1
        try:
            check_directory(os.path.dirname(path) or ".")
            self.lock = take_lock(path + ".lock")
            self.remove_stale()
            os.fchmod(self.sock.fileno(), 0o600)  # before bind, so that nobody is quicker
            self.sock.bind(path)
            self.bound = True
            self.sock.listen(128)
            self.sock.setblocking(False)
        except OSError as e:
            self.close()
            raise Error(f"{path}: {e.strerror or e}") from None
        except BaseException:
            self.close()
            raise

    def remove_stale(self):
        """Remove the socket of a producer that died; anything else is somebody's."""
        try:
            mode = os.lstat(self.path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise Error(f"{self.path}: is there, and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            if probe.connect_ex(self.path) != errno.ECONNREFUSED:
                raise Error(f"{self.path}: somebody is listening there already")
        os.unlink(self.path)

    def close(self):
        close_later(self.sock)  # connections that were not accepted have queues, too
        if self.bound:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        if self.lock >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + ".lock")
            os.close(self.lock)
        self.bound, self.lock = False, -1


def check_directory(path):
    """Raise unless only its owner, us or root, may write to the directory."""
    st = os.stat(path)
    if st.st_uid not in (0, os.geteuid()):
        raise Error(f"{path}: belongs to uid {st.st_uid}: make a directory of your own")
    if st.st_mode & 0o022:
        raise Error(f"{path}: others may write to it (mode {stat.S_IMODE(st.st_mode):#o}): make a directory with mode 0700")


def take_lock(path):
    """The lock file, locked. Its owner removes it, so a lock on one that is gone is none."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd)):
                    return fd
        except BlockingIOError:
            os.close(fd)
            raise Error(f"{path}: another producer has the socket") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


class Server:
    """Serves one offer, each consumer on a thread of its own, which touches no driver.

    say is called with what happens, as lines. Results are counted in verified and
    failed; errors has what went wrong.
    """

    MAX_CONNECTIONS = 64

    def __init__(self, path, policy=Policy(), timeout=30.0, say=lambda line: None):
        self.listener = Listener(path)
        self.policy, self.timeout, self.say = policy, timeout, say
        self.verified = self.failed = 0
        self.errors = []
        self.changed = threading.Condition()
        self.conns = {}  # to their peers
        self.ending = self.legacy = False
        self.data = None  # a descriptor of application data that does not fit an OFFER
        self.wake, self.woken = socket.socketpair()  # a consumer has come to its end
        self.wake.setblocking(False)

    def serve(self, offer, fds, consumers):
        """Serve until so many consumers have had their verdict, for 0 without end, or
        nobody has come for the timeout."""
        self.legacy = offer.legacy
        need_taken(len(offer.data), MAX_LARGE_DATA)
        if len(offer.data) > MAX_DATA:
            self.data = data_file(offer.data)
            offer = replace(offer, data=b"", data_size=len(offer.data))
        with self.signals():
            self.wait(offer, fds, consumers)

    @contextlib.contextmanager
    def signals(self):
        """A signal wakes the main thread in any case, and its handler runs: one that comes
        just before a thread blocks would wait for what it waits for."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def wait(self, offer, fds, consumers):
        deadline = time.monotonic() + self.timeout
        poll = select.poll()
        poll.register(self.listener.sock, select.POLLIN)
        poll.register(self.woken, select.POLLIN)
        while not consumers or self.verified + self.failed < consumers:
            with self.changed:
                busy = bool(self.conns)
            left = deadline - time.monotonic()
            if not busy and consumers and left <= 0:
                raise TimedOut(f"no consumer came within {self.timeout:g} s")
            wait = None if busy or not consumers else left * 1000 + 1
            for fd, _ in poll.poll(wait):
                if fd == self.woken.fileno():
                    self.woken.recv(64)
                    deadline = time.monotonic() + self.timeout
                else:
                    self.accept(offer, fds)

    def accept(self, offer, fds):
        try:
            sock, _ = self.listener.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:
            if e.errno not in EXHAUSTED:
                raise
            time.sleep(0.1)  # until somebody lets go of something
            return
        conn = Conn(sock, self.timeout)
        peer = peer_of(sock)
        with self.changed:
            full = len(self.conns) >= self.MAX_CONNECTIONS
            if not full:
                self.conns[conn] = peer
        if full:
            with contextlib.suppress(Error, OSError):
                conn.send(Refuse(BUSY, "all places are taken"), deadline=0)
            conn.close()
            return
        threading.Thread(target=self.converse, args=(conn, peer, offer, fds), daemon=True).start()

    def converse(self, conn, peer, offer, fds):
        """One consumer, from its ATTACH to its verdict."""
        lease = False
        outcome = None
        try:
            self.policy.check(peer)
            attach = self.expect_attach(conn, offer)
            self.send_offer(conn, offer, [] if attach.resume else fds, attach.resume)
            lease = True
            self.say(f"Consumer {peer} was sent {'an IPC handle' if offer.legacy else f'{len(fds)} descriptors'}")
            verdict = self.expect_verdict(conn, offer)
            if attach.process is not None:
                with contextlib.suppress(Error, OSError):
                    conn.send(Farewell(), deadline=conn.shortly())
            if not verdict.ok:
                outcome = Error(f"the consumer reports: {printable(verdict.text)} ({peer})")
        except PermissionError as e:
            self.say(f"  turned a peer away: {e}")
            conn.farewell(Refuse(NOT_ADMITTED, "the producer does not admit you"))
        except Malformed as e:
            self.part(conn, lease, Refuse(e.code, str(e)))
            outcome = Error(f"{e} ({peer})")
        except TimedOut as e:
            self.part(conn, lease, Refuse(TOO_LATE, "you took too long over a step"))
            outcome = TimedOut(f"{e} ({peer})")
        except Lost as e:
            outcome = e
        except Exception as e:  # Refused, and a system that is short of something
            self.part(conn, lease)
            outcome = e if isinstance(e, Error) else Error(f"{type(e).__name__}: {e}")
        finally:
            conn.close()
            self.count(conn, lease, outcome)

    def part(self, conn, lease, record=None):
        """Say the last to a consumer. Of one that has a legacy handle, wait until the memory
        is closed."""
        if not (lease and self.legacy):
            if record:
                conn.farewell(record)
        elif not conn.let_go(record):
            self.kept([self.conns[conn]])

    def kept(self, peers):
        """Note who did not close legacy memory in time."""
        names = "; ".join(str(peer) for peer in peers)
        self.errors.append(StillOpen(f"legacy memory may be open still: it was not closed within {self.timeout:g} s by {names}"))

    def count(self, conn, lease, outcome):
        """The last of a connection, which counts at once. It is forgotten when that is said,
        because close waits for its thread."""
        with self.changed:
            line = None
            if outcome and not self.ending:
                line = f"  consumer: {outcome}"
            if lease and not outcome:
                self.verified += 1
                line = "Consumer verified data successfully!"
            elif lease and not self.ending:
                self.failed += 1
                self.errors.append(outcome)
            self.conns[conn] = None  # nothing of it is open
            self.changed.notify_all()
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            if line:
                self.say(line)
        with self.changed:
            del self.conns[conn]
            self.changed.notify_all()
        with contextlib.suppress(OSError):
            self.wake.send(b".")

    def expect_attach(self, conn, offer):
        record, _ = conn.receive()
        need(isinstance(record, Attach), f"{type(record).__name__.upper()} where ATTACH is expected")
        if record.name not in ("", offer.name):
            raise Malformed(f"there is no offer {record.name!r} here", NO_OFFER)
        if record.driver != offer.driver:
            text = f"the producer uses the {driver_name(offer.driver)} driver and the consumer {driver_name(record.driver)}"
            raise Malformed(text, OTHER_DRIVER)
        if record.access > offer.access:
            raise Malformed(f"{offer.name!r} is offered read-only, and read-write was asked for", TOO_MUCH_ACCESS)
        if record.resume and (offer.legacy or record.resume != offer.generation):
            raise Malformed(f"{offer.name!r} is not the memory of generation {record.resume}", OTHER_MEMORY)
        if offer.legacy and not record.capabilities & TAKES_LEGACY:
            raise Malformed(f"{offer.name!r} is offered by a legacy handle, and the consumer takes none", NOT_KNOWN)
        if offer.data_size and not record.capabilities & TAKES_DATA:
            raise Malformed(f"{offer.name!r} has {offer.data_size} bytes of application data, and the consumer takes {MAX_DATA}", NOT_KNOWN)
        return record

    def send_offer(self, conn, offer, fds, resume):
        if offer.legacy or resume:
            conn.send(replace(offer, resume=resume))
        for first in range(0, len(fds), MAX_FDS):
            some = fds[first : first + MAX_FDS]
            try:
                conn.send(replace(offer, first=first, fds=len(some)), some)
            except OSError as e:
                if e.errno != errno.ETOOMANYREFS:
                    raise
                raise Malformed("too many descriptors are in flight", BUSY) from None
        if self.data is not None:
            conn.send(Data(), [self.data])

    def expect_verdict(self, conn, offer):
        mapped = False
        while True:
            record, _ = conn.receive()
            if isinstance(record, Refuse):
                raise Refused(record)
            if isinstance(record, Mapped):
                need(not mapped, "MAPPED a second time")
                need(record.generation == offer.generation, f"generation {record.generation} is mapped, not that of the offer")
                mapped = True
                if offer.legacy:  # which the caller keeps until serve has returned
                    conn.send(Confirm(offer.generation))
            elif isinstance(record, Verdict):
                need(mapped or not record.ok, "a good verdict before MAPPED")
                return record
            else:
                need(isinstance(record, Progress), f"{type(record).__name__.upper()} where a verdict is expected")

    def close(self, why="the producer has ended the offer"):
        """Tell who is still there, and hang up. Who may have legacy memory open is waited for
        until it has not, for the timeout: errors says who has, and the memory can be freed."""
        self.listener.close()
        with self.changed:
            self.ending = True
            left = [conn for conn, peer in self.conns.items() if peer]
        for conn in left:
            with contextlib.suppress(Error, OSError):
                conn.send(Revoke(why), deadline=conn.shortly())
        if self.legacy:
            with self.changed:
                self.changed.wait_for(lambda: not any(self.conns.values()), timeout=self.timeout)
                left = [conn for conn, peer in self.conns.items() if peer]
                if left:
                    self.kept([self.conns[conn] for conn in left])
        for conn in left:
            with contextlib.suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RD)  # its thread sees the end
        with self.changed:
            self.changed.wait_for(lambda: not self.conns, timeout=10.0)
        if self.data is not None:
            os.close(self.data)
            self.data = None
        self.wake.close()
        self.woken.close()
