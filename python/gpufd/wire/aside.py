"""Has another process look at what another user sends, before it may come into this one.

A descriptor whose close waits for its sender must never be in this process's table. So a
process of its own judges it there. If it is unfit, that process takes it and ends, which may take as long as
the stranger likes: nobody waits for that. A peer of our own user could stop us by other means."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

from ..errors import TimedOutError, WireError
from . import quiet
from .peer import peer_of

if TYPE_CHECKING:
    import subprocess

MOST_LEFT = 64  # processes that wait for strangers

_left: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def is_foreign(sock: socket.socket) -> bool:
    """Return whether the peer of a socket is another user."""
    try:
        return peer_of(sock).uid != os.geteuid()
    except OSError:
        return False


def _program() -> list[str] | None:
    if not sys.executable or getattr(sys, "frozen", False) or not os.path.exists(quiet.__file__):
        return None
    return [sys.executable, "-I", "-S", quiet.__file__]


class Aside:
    """The process that judges what comes on a socket. It begins with the first question."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> subprocess.Popen[bytes] | None:
        import subprocess  # which most never need

        program = _program()
        if program is None:
            return None
        with _lock:
            _left[:] = [p for p in _left if p.poll() is None]
            if len(_left) >= MOST_LEFT:
                raise WireError(f"a descriptor of another user's: {len(_left)} processes that closed earlier ones still wait for their owners")
        fd = self.sock.fileno()
        return subprocess.Popen([*program, str(fd)], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                bufsize=0, start_new_session=True)  # fmt: skip

    def ask(self, question: bytes, deadline: float) -> bytes | None:
        """The answer; None where there can be no such process."""
        if self.process is None:
            self.process = self._begin()
        p = self.process
        if p is None:
            return None
        assert p.stdin is not None and p.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            p.stdin.write(question)
        poll = select.poll()
        poll.register(p.stdout, select.POLLIN)
        if not poll.poll(max(0, min(int((deadline - time.monotonic()) * 1000) + 1, 1 << 30))):
            raise TimedOutError("the process that looks at descriptors of another user took too long")
        answer: bytes = p.stdout.read(1) or b""
        if answer != quiet.FIT:
            self.close()
        return answer

    def judge(self, deadline: float) -> None:
        """Raise unless the descriptors of the first record may come into this process."""
        answer = self.ask(quiet.JUDGE, deadline)
        if answer == quiet.UNFIT:
            raise WireError("a descriptor that closing may wait for: of another user, memory and the driver's descriptors alone are taken")
        if answer == quiet.FULL:
            raise WireError("more descriptors than ulimit -n allows")
        if answer == b"":
            raise WireError(f"{sys.executable} does not run, which is to look at the descriptors of another user first")

    def close(self) -> None:
        """Let the process end. One that has something to close may never do so."""
        p, self.process = self.process, None
        if p is None:
            return
        for end in (p.stdin, p.stdout):
            if end is not None:
                end.close()
        if p.poll() is None:
            with _lock:
                _left.append(p)


def leave_queue(sock: socket.socket, timeout: float = 10.0) -> None:
    """Let a process empty the queue of a socket that was shut down."""
    aside = Aside(sock)
    with contextlib.suppress(WireError, TimedOutError, OSError):
        aside.ask(quiet.LEAVE, time.monotonic() + timeout)
    aside.close()
