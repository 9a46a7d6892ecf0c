"""Tells what a descriptor is of without asking another user, and judges those that another
user sent: run as a program, in a process of its own. So it imports nothing of gpufd.

A file of a stranger's own file system (FUSE) runs its owner's code at each close of a
descriptor of it, also at that of a copy, and when a process ends: nothing ends that wait."""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import sys
import tempfile

_NVIDIA = 195  # the number of its character devices
_AT_FDCWD, _AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = -100, 0x1000, 0x4000
_STATX_TYPE, _STATX_MNT_ID = 1, 0x1000
# File systems without a block device that only this machine's kernel answers for: overlay, Btrfs, ZFS, bcachefs.
_FILE_SYSTEMS = (0x794C7630, 0x9123683E, 0x2FC12FC1, 0xCA451A4E)
_F_GET_SEALS = 1034

FIT, UNFIT, FULL, LEFT = b"f", b"u", b"l", b"d"  # what is said of a record
JUDGE, LEAVE = b"j", b"d"  # what is asked for


class _Statx(ctypes.Structure):  # struct statx of linux/stat.h
    _fields_ = [
        ("mask", ctypes.c_uint32), ("blksize", ctypes.c_uint32), ("attributes", ctypes.c_uint64), ("nlink", ctypes.c_uint32),
        ("uid", ctypes.c_uint32), ("gid", ctypes.c_uint32), ("mode", ctypes.c_uint16), ("spare0", ctypes.c_uint16),
        ("ino", ctypes.c_uint64), ("size", ctypes.c_uint64), ("blocks", ctypes.c_uint64), ("attributes_mask", ctypes.c_uint64),
        ("times", ctypes.c_uint64 * 8), ("rdev_major", ctypes.c_uint32), ("rdev_minor", ctypes.c_uint32),
        ("dev_major", ctypes.c_uint32), ("dev_minor", ctypes.c_uint32), ("mnt_id", ctypes.c_uint64), ("spare", ctypes.c_uint64 * 13),
    ]  # fmt: skip


class _Statfs(ctypes.Structure):  # struct statfs of linux, 64 bits
    _fields_ = [("type", ctypes.c_long), ("rest", ctypes.c_long * 31)]


_libc = ctypes.CDLL(None, use_errno=True)


def _statx(directory: int, path: bytes) -> _Statx | None:
    """Return the kernel's own knowledge of a file (AT_STATX_DONT_SYNC)."""
    st = _Statx()
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    try:
        failed = _libc.statx(directory, path, flags, _STATX_TYPE | _STATX_MNT_ID, ctypes.byref(st))
    except AttributeError:  # an old C library
        return None
    return None if failed or not st.mask & _STATX_TYPE else st


def _own_mounts() -> set[int]:
    """The mounts of / and of the temporary directory, where they are of such a file system."""
    own = set()
    for path in ("/", tempfile.gettempdir()):
        fs = _Statfs()
        if _libc.statfs(os.fsencode(path), ctypes.byref(fs)) == 0 and fs.type & 0xFFFFFFFF in _FILE_SYSTEMS:
            st = _statx(_AT_FDCWD, os.fsencode(path))
            if st is not None and st.mask & _STATX_MNT_ID:
                own.add(st.mnt_id)
    return own


def quiet(fd: int) -> bool:
    """Return whether closing a descriptor, or asking for its size, waits for nobody: it is of memory,
    of NVIDIA's devices, of a file on a disk, or of what the kernel alone answers for."""
    try:
        fcntl.fcntl(fd, _F_GET_SEALS)
        return True
    except OSError:
        pass
    st = _statx(fd, b"")
    if st is None:
        return False
    if stat.S_ISCHR(st.mode):
        return bool(st.rdev_major == _NVIDIA)
    if stat.S_ISREG(st.mode):
        return bool(st.dev_major) or bool(st.mask & _STATX_MNT_ID) and st.mnt_id in _own_mounts()
    return stat.S_IFMT(st.mode) == 0  # anon_inode


def _main() -> None:
    """Answer what comes on standard input about the socket of that number, until it ends."""
    import socket

    sock = socket.socket(fileno=int(sys.argv[1]))

    def peek() -> tuple[list[int], bool, bool]:
        """The descriptors of the first record, whether some are missing, and whether there is any."""
        _, control, flags, _ = sock.recvmsg(1, 2048, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        fds: list[int] = []
        for level, kind, payload in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += [int.from_bytes(payload[i : i + 4], sys.byteorder) for i in range(0, len(payload) - 3, 4)]
        return fds, bool(flags & socket.MSG_CTRUNC), bool(control)

    def judge() -> bytes:
        fds, cut, _ = peek()
        if all(quiet(fd) for fd in fds):
            for fd in fds:
                os.close(fd)
            return FULL if cut else FIT
        if cut:
            return FULL  # the record stays, and what came of it goes with this process
        sock.recv(1, socket.MSG_DONTWAIT)
        return UNFIT

    def leave() -> bytes:
        """Take all that is in the queue: with SO_PASSCRED there is something beside each record."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        while True:
            _, cut, some = peek()
            if cut or not some:
                return LEFT
            sock.recv(1, socket.MSG_DONTWAIT)

    while True:
        asked = os.read(0, 1)
        if not asked:
            os._exit(0)
        try:
            answer = judge() if asked == JUDGE else leave()
        except OSError:
            answer = FIT  # as whoever receives it finds out
        if answer != FIT:
            sock.close()
        os.write(1, answer)
        if answer != FIT:
            os._exit(0)


if __name__ == "__main__":
    _main()
