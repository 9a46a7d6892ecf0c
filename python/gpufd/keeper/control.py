"""The messages of a keeper's control socket, docs/wire.md#keeper: JSON objects, each in one
record or several, descriptors beside the first."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time
from collections.abc import Iterable
from typing import Any, Protocol

from ..errors import LostError, TimedOutError, UsageError, WireError, keeper_error
from ..wire.conn import close_later, take_no_fds
from ..wire.sockets import default_socket
from .tables import compact

SUFFIX = ".ctl"
TIMEOUT = 30.0  # seconds that a keeper has for an answer, where nothing else is said
MAX_PIECE = 60 << 10  # bytes of a message in a record
MAX_MESSAGE = 256 << 10  # of a request
MAX_REPLY = 256 << 20  # of a reply: all names
MORE, LAST = 0, 1  # what a record begins with


def encode(message: dict[str, Any]) -> list[bytes]:
    """The records of a request."""
    try:
        text = compact(message)
    except (TypeError, ValueError) as e:  # UnicodeEncodeError, too
        raise UsageError(f"a request to a keeper that is no JSON: {e}") from None
    if len(text) > MAX_MESSAGE:
        raise UsageError(f"a message of {len(text)} bytes to a keeper, and {MAX_MESSAGE} are allowed")
    pieces = [text[at : at + MAX_PIECE] for at in range(0, len(text), MAX_PIECE)]
    return [bytes([LAST if i == len(pieces) - 1 else MORE]) + piece for i, piece in enumerate(pieces)]


class Decoder:
    """Makes a message of the records that come."""

    def __init__(self, limit: int = MAX_REPLY) -> None:
        self.limit, self.text = limit, bytearray()

    def add(self, record: bytes) -> dict[str, Any] | None:
        """The message that ends with this record, or None while there is more to come."""
        if not record or record[0] > LAST:
            raise WireError("a message of the keeper's with a record that begins otherwise than with 0 or 1")
        if len(self.text) + len(record) > self.limit:
            raise WireError(f"a message of the keeper's of more than {self.limit} bytes")
        self.text += record[1:]
        if record[0] == MORE:
            return None
        text, self.text = bytes(self.text), bytearray()
        try:
            message = json.loads(text.decode())
        except (ValueError, RecursionError) as e:
            raise WireError(f"a message of the keeper's that is no JSON: {e}") from None
        if not isinstance(message, dict):
            raise WireError("a message of the keeper's that is no JSON object")
        return message


class Control:
    """A connection to a keeper. It owns the socket, and is for one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        take_no_fds(sock)
        self.sock = sock

    def close(self) -> None:
        close_later(self.sock)

    def ask(self, message: dict[str, Any], deadline: float, fds: Iterable[int] = ()) -> dict[str, Any]:
        """Send a request with copies of descriptors, and return its reply. Errors:
        KeeperError; LostError and TimedOutError, after which the connection is of no use."""
        self.send(message, deadline, fds)
        return self.receive(deadline)

    def send(self, message: dict[str, Any], deadline: float, fds: Iterable[int] = ()) -> None:
        files = array.array("i", fds)
        for record in encode(message):
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if files else []
            self._send(record, control, deadline)
            files = array.array("i")

    def _send(self, record: bytes, control: list[Any], deadline: float) -> None:
        while True:
            try:
                self.sock.sendmsg([record], control, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)
            except (BrokenPipeError, ConnectionResetError):
                raise LostError("the keeper hung up") from None
            except PermissionError:  # Linux 6.16: it does not take descriptors over this connection, or not yet
                raise LostError("the keeper does not take this connection's descriptors: it may have just started") from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next reply; KeeperError if it is one."""
        decoder = Decoder()
        while True:
            message = decoder.add(self._receive(deadline))
            if message is not None:
                break
        no = message.get("error")
        if isinstance(no, dict):
            holders = [h for h in no.get("holders") or () if isinstance(h, dict)]
            raise keeper_error(str(no.get("code", "failed")), str(no.get("message", "no reason given")), holders)
        return message

    def _receive(self, deadline: float) -> bytes:
        ended = False
        while True:
            try:
                # Without room for descriptors: a keeper sends none, and none are taken.
                record, _, flags, _ = self.sock.recvmsg(MAX_PIECE + 2)
            except BlockingIOError:
                if ended:
                    raise WireError("a record of length 0 from the keeper") from None
                self._wait(select.POLLIN, deadline)
                continue
            except ConnectionResetError:
                record, flags = b"", 0
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise WireError("a record of the keeper's that is too long, or has descriptors")
            if record:
                return record
            if ended:  # a record that was queued before the end may show up only behind it
                raise LostError("the keeper hung up")
            ended = True

    def _wait(self, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.sock, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(min(left * 1000 + 1, 1 << 30)):
            raise TimedOutError("the keeper has not answered in time")


class HasSocket(Protocol):
    """A keeper's Client."""

    @property
    def socket(self) -> str: ...


def path_of(keeper: str | os.PathLike[str] | HasSocket | None) -> str:
    """The readers' socket of a keeper, as callers name it."""
    if keeper is None:
        return default_socket()
    if isinstance(keeper, (str, os.PathLike)):
        return os.fspath(keeper)
    there = getattr(keeper, "socket", None)
    if not isinstance(there, str):
        raise UsageError(f"{type(keeper).__name__} is no path of a keeper's socket, and no Client")
    return there
