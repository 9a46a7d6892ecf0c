"""Waits of both sides, which the log names when they take long."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable

from .. import log
from ..keeper.tables import quote
from ..memory.device import device_name
from ..wire.sockets import directory

_LONG, _AGAIN = 5.0, 10.0  # seconds of a wait after which it is logged, first and then


class Wait:
    """A wait until a deadline, in pieces between which the log says what it is for.

    until   when the piece ends
    """

    def __init__(self, deadline: float, what: Callable[[], str], say: Callable[..., None] = log.info) -> None:
        self._begin, self._deadline, self._what, self._say = time.monotonic(), deadline, what, say
        self._next = self._begin + _LONG
        self.until = min(deadline, self._next)

    def is_over(self) -> bool:
        """Return whether the deadline has come. Log what is waited for, if that takes long."""
        now = time.monotonic()
        if now >= self._deadline:
            return True
        if now >= self._next:
            self._say("%s for %.0f s", self._what(), now - self._begin)
            self._next = now + _AGAIN
            self.until = min(self._deadline, self._next)
        return False


def others_there(offer: str) -> str:
    """Return a sentence on the publishers that listen in the directory of default sockets, for the error that there is none of an offer's name."""
    wanted, there = _parts(offer), _publishers()
    if not there or not wanted:
        return ""
    some = ", ".join(f"{quote(name)} on {device_name(uuid)}" for name, uuid in there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
    hint = "; name that GPU by publisher=" if any(name == wanted[0] for name, _ in there) else ""
    return f"; there {'is' if len(there) == 1 else 'are'} {some}{hint}"


def _publishers() -> list[tuple[str, bytes]]:
    """Return the names and GPUs of those that listen."""
    offers = os.path.join(directory(), "offers")
    try:
        files = sorted(os.listdir(offers))
    except OSError:
        return []
    found = ((file, _parts(urllib.parse.unquote(file.removesuffix(".sock")))) for file in files)
    return [parts for file, parts in found if parts and _listens(os.path.join(offers, file))]


def _parts(offer: str) -> tuple[str, bytes] | None:
    """Return what publisher_name has made an offer's name of, or None if it is another's."""
    name, _, uuid = offer.rpartition("@")
    if not name or len(uuid) != 32 or any(digit not in "0123456789abcdef" for digit in uuid):
        return None
    return name, bytes.fromhex(uuid)


def listener(path: str | os.PathLike[str]) -> str:
    """Return which process listens at a socket, in brackets and behind a blank, or "" if nobody knows."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.setblocking(False)
        try:
            s.connect(os.fspath(path))
            pid = int.from_bytes(s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        except OSError:
            return ""
    return f" (process {pid})" if pid else ""  # 0 in another PID namespace


def _listens(path: str) -> bool:
    """Return whether somebody listens at a socket: one that was killed has left it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.setblocking(False)
        try:
            return s.connect_ex(path) in (0, errno.EAGAIN)
        except OSError:  # a path that is too long
            return False
