"""Files that this process writes for the user: where, and whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

from ..errors import Error


MOST_LINKS = 40  # that the kernel follows, too


def output_path(path: str | os.PathLike[str]) -> str:
    """The path to write to for one that the user named: it follows links of this user and of root,
    also to a file that is not there yet. A link that somebody else has put there could lead what is
    written over any file of this user's, so that is an Error.

    Only the last element of the path is looked at. The kernel follows the links to its directory
    (proc_sys_fs(5), protected_symlinks).
    """
    there = os.fsdecode(path)
    for _ in range(MOST_LINKS):
        try:
            st = os.lstat(there)
        except OSError:
            return there  # whoever opens it says what is wrong
        if not stat.S_ISLNK(st.st_mode):
            return there
        to = os.readlink(there)
        if st.st_uid not in (0, os.geteuid()):
            raise Error(f"{there} is a link that user {st.st_uid} has put there, to {to!r}: it is not followed; name another file")
        there = os.path.join(os.path.dirname(there), to)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to be written, which has the path once it is whole. Errors name that path."""
    target = output_path(path)
    temporary = os.path.join(os.path.dirname(target), f".gpufd-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as f:
            yield f
        os.replace(temporary, target)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(e, OSError) and not isinstance(e, Error) and e.filename in (None, temporary):
            raise OSError(e.errno, e.strerror, os.fsdecode(path)) from None
        raise
