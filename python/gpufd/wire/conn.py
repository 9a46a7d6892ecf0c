"""Connections of records with descriptors, as docs/wire.md says under "Transport".

Every wait has a deadline, and every descriptor that comes is given to the caller or closed.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..errors import Error, LostError, RefusedError, TimedOutError, UsageError, WireError
from .aside import Aside, is_foreign, leave_queue
from .peer import Peer, Policy, peer_of
from .quiet import quiet
from .records import MAX_FDS, MAX_RECORD, Cursors, Data, Farewell, Notice, Offer, Record, Superseded, Unknown, decode, encode, need

SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW  # of cursors
SEALS = fcntl.F_SEAL_WRITE | SIZE_SEALS  # of application data
MAX_PATH = 107  # bytes of a socket's path
SO_PASSRIGHTS = 83  # of the kernel, from Linux 6.16 on
DEFAULT_TIMEOUT = 30.0

T = TypeVar("T")


# Application data that does not fit an OFFER.


def data_file(data: bytes) -> int:
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


def seals_of(fd: int) -> int:
    """The seals of a descriptor. One that is no file of memory says at once that it has none."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return 0


def is_sealed(fd: int) -> bool:
    """Return whether a descriptor is a file that nobody can change."""
    return seals_of(fd) & SEALS == SEALS


def cursor_file(size: int) -> int:
    """A descriptor of a file of zeros that everybody who has it may write, and whose size
    nobody can change."""
    fd = os.memfd_create("gpufd cursors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_SEAL)
        return fd
    except BaseException:
        os.close(fd)
        raise


def is_cursors(fd: int) -> bool:
    """Return whether a descriptor is a file that can be written, and whose size nobody can change."""
    return seals_of(fd) & SEALS == SIZE_SEALS


def read_data(fd: int, size: int) -> bytes:
    """All of a file that is_sealed, which is as large as the offer said."""
    there = os.fstat(fd).st_size
    need(there == size, f"{there} bytes of application data came, and the offer says {size}")
    parts: list[bytes] = []
    done = 0
    while done < size:
        more = os.pread(fd, size - done, done)
        need(more, "the application data ends early")
        parts.append(more)
        done += len(more)
    return b"".join(parts)


# Descriptors and sockets.


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def is_no_socket(fd: int) -> bool:
    return not stat.S_ISSOCK(os.fstat(fd).st_mode)


def close_later(sock: socket.socket) -> None:
    """Close a socket without waiting. Closing drops what is in the queue: a descriptor there
    can make it wait for as long as its sender likes (SO_LINGER). So where there is anything, a
    thread closes it. The process's end does not wait."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # the peer hears of it now, and can send nothing more
    if is_empty(sock):
        sock.close()
        return
    if sys.is_finalizing():  # a thread would never start
        sock.detach()
        return
    try:
        threading.Thread(target=_close_alone, args=(sock,), name="gpufd-close", daemon=True).start()
    except RuntimeError:  # there is no thread to be had
        sock.detach()


def _close_alone(sock: socket.socket) -> None:
    if is_foreign(sock):
        leave_queue(sock)
    sock.close()


def is_empty(sock: socket.socket) -> bool:
    """Return whether the queue of a socket that was shut down is known to have nothing in it. With
    SO_PASSCRED each record says who sent it, so even an empty record without descriptors shows
    as MSG_CTRUNC where there is no room for that, and only the end does not."""
    try:
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False  # connections that were not accepted have queues, too
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        data, _, flags, _ = past_reset(lambda: sock.recvmsg(1, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return not data and not flags & socket.MSG_CTRUNC
    except OSError as e:
        return e.errno == errno.ENOTCONN  # it never had a peer


def take_no_fds(sock: socket.socket) -> None:
    """Let the kernel refuse descriptors that are sent to a socket, if it can."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


class Meter:
    """Bounds a peer's records to 1,000 a second, which may come at once."""

    RATE = 1000

    def __init__(self) -> None:
        self.left, self.at = float(self.RATE), time.monotonic()

    def fill(self) -> None:
        now = time.monotonic()
        self.left, self.at = min(self.RATE, self.left + (now - self.at) * self.RATE), now

    def count(self) -> None:
        self.fill()
        if self.left < 1:
            raise WireError(f"more than {self.RATE} records a second", reason="rate")
        self.left -= 1

    def wait(self) -> None:
        """Until there may be another one."""
        self.fill()
        while self.left < 1:
            time.sleep((1 - self.left) / self.RATE)
            self.fill()


class Conn:
    """A connected socket. timeout is how many seconds each send and receive may take."""

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        sock.setblocking(False)
        self.foreign, self.aside = is_foreign(sock), Aside(sock)
        self.sock, self.timeout, self.meter = sock, timeout, Meter()
        self.foul = False  # the queue begins with descriptors that are not taken, and is left so
        self.left = False  # the peer has said farewell
        self.hears: Callable[[Record], None] = lambda record: None  # is told of NOTICE and SUPERSEDED

    def close(self) -> None:
        self.aside.close()
        close_later(self.sock)

    def take_no_fds(self) -> None:
        """No descriptors belong here from now on."""
        self.aside.close()
        take_no_fds(self.sock)

    def wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.sock, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(min(left * 1000 + 1, 1 << 30)):
            raise TimedOutError(f"the peer took longer than {self.timeout:g} s")

    def try_send(self, record: Record, fds: Sequence[int] = ()) -> None:
        """Send a record with copies of descriptors, or BlockingIOError."""
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.sock.sendmsg([encode(record)], control, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError):
            raise LostError() from None

    def send(self, record: Record, fds: Sequence[int] = (), deadline: float | None = None) -> None:
        """Send a record with copies of descriptors."""
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self.try_send(record, fds)
            except BlockingIOError:
                self.wait(select.POLLOUT, deadline)

    def receive(self, max_fds: int = 0, deadline: float | None = None) -> tuple[Record, list[int]]:
        """The next record and its descriptors, which the caller owns; LostError at the end.
        What is ignored does not renew the deadline."""
        if deadline is None:
            deadline = time.monotonic() + self.timeout
        while True:
            record, fds = self.receive_any(max_fds, deadline)
            if not self.is_aside(record):
                return record, fds

    def is_aside(self, record: Record) -> bool:
        """Return whether the record changes nothing of the conversation; it is noted then."""
        if isinstance(record, Unknown):
            return True
        if isinstance(record, Farewell):
            self.left = True
            return True
        if isinstance(record, (Notice, Superseded)):
            self.hears(record)
            return True
        self.left = False  # any other record behind a farewell takes it back
        return False

    def receive_any(self, max_fds: int, deadline: float) -> tuple[Record, list[int]]:
        """The next record, also one to be ignored."""
        if self.foul:
            self.wait(select.POLLRDHUP, deadline)
            raise LostError()
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
                raise LostError()
            ended = True
        return self.take_record(data, flags, max_fds, deadline)

    def take_record(self, data: bytes, flags: int, max_fds: int, deadline: float) -> tuple[Record, list[int]]:
        """Return the record that was looked at. With descriptors, the record stays in the queue until they are
        known to be wanted."""
        self.foul = bool(flags & socket.MSG_CTRUNC)
        if not self.foul:
            past_reset(lambda: self.sock.recv(MAX_RECORD))
        self.meter.count()
        need(not flags & socket.MSG_TRUNC, f"a record of more than {MAX_RECORD} bytes")
        need(data, "descriptors without a record")
        record = decode(data)
        want = record.fds if isinstance(record, Offer) else 1 if isinstance(record, (Data, Cursors)) else 0
        need(want <= max_fds, f"{want} descriptors, and {max_fds} are taken")
        need(self.foul == bool(want), f"a record that is to have {want} descriptors came with {'some' if self.foul else 'none'}")
        if want and self.foreign:
            self.aside.judge(deadline)
        good = is_sealed if isinstance(record, Data) else is_cursors if isinstance(record, Cursors) else is_no_socket
        return record, self.take(want, good) if want else []

    def look(self) -> tuple[bytes, int]:
        """The next record, left in the queue, and MSG_CTRUNC if it has descriptors; b"" at
        the end, or for a record of length 0, which is taken."""
        for _ in range(2):  # a record that was queued before the peer closed may show up only now
            data, _, flags, _ = self.sock.recvmsg(MAX_RECORD, 0, socket.MSG_PEEK)
            if data or flags & socket.MSG_CTRUNC:
                return data, flags
        return self.sock.recv(1), 0

    def take(self, want: int, good: Callable[[int], bool]) -> list[int]:
        """The descriptors of the record that was looked at, which leaves the queue if all
        is well, and they are good. A peer may pass a socket that makes whoever closes it last wait (SO_LINGER).
        So sockets are not taken, and closing what MSG_PEEK made is safe: it is not the last
        while the record is in the queue."""
        room = socket.CMSG_LEN(4 * want)
        _, control, flags, _ = past_reset(lambda: self.sock.recvmsg(1, room, socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC))
        fds = array.array("i")
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        try:
            need(not flags & socket.MSG_CTRUNC, f"more than the {want} descriptors that it says, or than ulimit -n allows")
            need(len(fds) == want, f"{len(fds)} descriptors came with a record that is to have {want}")
            need(all((not self.foreign or quiet(fd)) and good(fd) for fd in fds), "a descriptor that is a socket, or application data or cursors that are not sealed as they should be")
            past_reset(lambda: self.sock.recv(MAX_RECORD))  # without room for them: we have them
            self.foul = False
        except BaseException:
            close_all(fds)
            raise
        return list(fds)

    def shortly(self) -> float:
        """Until when a peer is waited for that may not read any more."""
        return time.monotonic() + min(1.0, self.timeout)

    def farewell(self, record: Record, waits: bool = True) -> None:
        """Send a last record, and wait until the peer has read it and closed, not longer
        than a second for both. Without waits return when it is sent."""
        deadline = self.shortly()
        with contextlib.suppress(Error, OSError):
            self.send(record, deadline=deadline)
            if waits:
                self.drain(deadline)

    def drain(self, deadline: float) -> None:
        """Read what comes until the peer closes: 16 records at most."""
        with contextlib.suppress(LostError):
            for _ in range(16):
                with contextlib.suppress(WireError):
                    close_all(self.receive_any(MAX_FDS, deadline)[1])


def past_reset(receive: Callable[[], T]) -> T:
    """receive of a record that is known to be in the queue. A reset may come before it, once."""
    try:
        return receive()
    except ConnectionResetError:
        return receive()


def check_path(path: str | os.PathLike[str]) -> str:
    """The path of a socket, as text; UsageError if it can be none."""
    try:
        path = os.fsdecode(path)
        size = len(os.fsencode(path))
    except TypeError:
        raise UsageError(f"a socket is a path, not {type(path).__name__}") from None
    except UnicodeError:
        raise UsageError(f"a socket's path that is no UTF-8: {path!r}") from None
    if not path or "\0" in path or size > MAX_PATH:
        raise UsageError(f"a socket's path has 1 to {MAX_PATH} bytes, none of them 0: {path!r}")
    return path


def dial(path: str | os.PathLike[str], policy: Policy, timeout: float) -> tuple[Conn, Peer]:
    """Connect to a producer that is admitted. Returns the Conn and the Peer."""
    path = check_path(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # The kernel bounds a connect that waits for room by the time to send.
        whole = int(min(timeout, 1e9))  # a bound of 31 years is none
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", whole, int(min(timeout - whole, 0.999) * 1e6) or 1))
        sock.connect(path)
        peer = peer_of(sock)
        policy.check(peer)
        return Conn(sock, timeout), peer
    except BlockingIOError:
        close_later(sock)
        raise TimedOutError(f"{path}: the producer did not accept within {timeout:g} s") from None
    except RefusedError as e:
        close_later(sock)
        raise RefusedError(f"{path}: {e}", reason="not-admitted") from None
    except PermissionError as e:
        close_later(sock)
        raise RefusedError(f"{path}: {e.strerror}", reason="not-admitted") from None
    except OSError as e:
        close_later(sock)
        raise LostError(f"{path}: nobody is listening there: {e.strerror}; start the producer or gpufd keeper first, with the same socket", reason="nobody-listens") from None
    except BaseException:
        close_later(sock)
        raise
