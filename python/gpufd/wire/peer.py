"""The process at the other end of a connection: credentials, policy, and the process' end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from ..errors import RefusedError, UsageError


_SO_PEERPIDFD = 77  # from Linux 6.5 on


@dataclass(frozen=True)
class Peer:
    """The process at the other end, as it was when it connected or began to listen. The kernel says so."""

    pid: int  #: 0 if it is in another PID namespace
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"pid {self.pid or 'unknown'} uid {self.uid} gid {self.gid}"


def peer_of(sock: socket.socket) -> Peer:
    return Peer(*struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


@dataclass(frozen=True)
class Policy:
    """Whom to talk to: this process's own user, and the users and groups that are named."""

    uids: Collection[int] = frozenset()
    gids: Collection[int] = frozenset()

    def __post_init__(self) -> None:
        for what, ids in (("uids", self.uids), ("gids", self.gids)):
            if not isinstance(ids, Collection) or not all(isinstance(i, int) for i in ids):
                raise UsageError(f"{what} of a policy are numbers of users or groups, such as {{1000}}, not {ids!r}")

    def check(self, peer: Peer) -> None:
        """Raise RefusedError (not-admitted) if the peer is not admitted."""
        if peer.uid == _overflow_uid() and not _all_users_have_numbers():
            raise RefusedError(f"uid {peer.uid} stands for every user unknown in this user namespace ({peer})", reason="not-admitted")
        if peer.uid != os.geteuid() and peer.uid not in self.uids and peer.gid not in self.gids:
            raise RefusedError(f"uid {peer.uid} is not admitted ({peer})", reason="not-admitted")


def check_policy(policy: object) -> None:
    if not isinstance(policy, Policy):
        raise UsageError(f"a policy is a gpufd.Policy, not {type(policy).__name__}")


def _overflow_uid() -> int:
    try:
        return int(_told("/proc/sys/kernel/overflowuid"))
    except OSError:
        return 65534


def _all_users_have_numbers() -> bool:
    """Return whether this process is in no user namespace that would hide a user."""
    try:
        return _told("/proc/self/uid_map").split() == [b"0", b"0", b"4294967295"]
    except OSError:
        return False


def _told(path: str) -> bytes:
    """A short file of the kernel's, in three system calls."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


class Process:
    """The process that connected or listened, watched by its pidfd. Without a pidfd,
    ``why`` says what is missing, and nothing will be known of its end."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self._fd, self.why, self._dead = -1, "", False
        try:
            self._fd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
            os.set_inheritable(self._fd, False)
        except OSError:
            self._open(peer)

    def _open(self, peer: Peer) -> None:
        if peer.pid == 0:
            self.why = "the kernel gives no descriptor of a process in another PID namespace"
            return
        try:
            self._fd = os.pidfd_open(peer.pid)
        except OSError as e:
            self.why = f"pidfd_open: {e.strerror}"

    def died(self, timeout: float = 0.0) -> bool:
        """Return whether the process has died, or does within so many seconds."""
        if self._dead or self._fd < 0:
            return self._dead
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        self._dead = bool(poll.poll(min(max(0.0, timeout) * 1000, 1 << 30)))
        return self._dead

    def lives(self) -> bool:
        """Return whether the process is known to live."""
        return self._fd >= 0 and not self.died()

    def fileno(self) -> int:
        """The pidfd, which is readable when the process has died, or -1."""
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
