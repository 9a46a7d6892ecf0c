"""The socket of a producer, and the lock that goes with it: docs/wire.md, "Transport"."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat

from ..errors import Error, InUseError, UsageError
from .conn import SO_PASSRIGHTS, check_path, close_later


class Listener:
    """A socket that only its user may connect to, and the lock that goes with it."""

    def __init__(self, path: str | os.PathLike[str], mode: int = 0o600, backlog: int = 1024) -> None:
        self.path, self.bound = check_path(path), False
        if mode & ~0o777:
            raise UsageError(f"a mode of {mode:#o}")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.no_fds = self._refuse_fds()
        self.lock = -1
        try:
            check_directory(os.path.dirname(self.path) or ".")
            self.lock = take_lock(self.path + ".lock")
            self._remove_stale()
            os.fchmod(self.sock.fileno(), mode)  # before bind, so that nobody is quicker
            self.sock.bind(self.path)
            self.bound = True
            self.sock.listen(backlog)
            self.sock.setblocking(False)
        except OSError as e:
            self.close()
            raise Error(f"{self.path}: {e.strerror or e}") from None
        except BaseException:
            self.close()
            raise

    def _refuse_fds(self) -> bool:
        """Let the kernel refuse descriptors, also of connections that are accepted. Return whether it does."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            return False
        return True

    def _remove_stale(self) -> None:
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
                raise InUseError(f"{self.path}: somebody is listening there already: end it, or take another socket", reason="name-taken")
        os.unlink(self.path)

    def close(self) -> None:
        close_later(self.sock)  # connections that were not accepted have queues, too
        if self.bound:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        if self.lock >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + ".lock")
            os.close(self.lock)
        self.bound, self.lock = False, -1

    def forked(self) -> None:
        """In a child: let go of copies, and leave the parent's files alone."""
        with contextlib.suppress(OSError):
            self.sock.close()
        if self.lock >= 0:
            with contextlib.suppress(OSError):
                os.close(self.lock)
        self.bound, self.lock = False, -1


def check_directory(path: str) -> None:
    """Raise unless only its owner, us or root, may write to the directory."""
    try:
        st = os.stat(path)
    except FileNotFoundError:
        raise Error(f"{path}: there is no such directory; make it first: mkdir -p -m 700 {path}") from None
    if st.st_uid not in (0, os.geteuid()):
        raise Error(f"{path}: belongs to uid {st.st_uid}: make a directory of your own")
    if st.st_mode & 0o022:
        raise Error(f"{path}: others may write to it (mode {stat.S_IMODE(st.st_mode):#o}): make a directory with mode 0700")


def take_lock(path: str) -> int:
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
            raise InUseError(f"{path}: a producer has this socket already, in this process or another: end it, or take another socket", reason="name-taken") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
