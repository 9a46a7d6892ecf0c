"""Where sockets are if the caller names none."""

from __future__ import annotations

import contextlib
import os
import urllib.parse

from ..errors import Error, UsageError, suppress


def directory() -> str:
    """Return the directory of the default sockets: the one that the containers of a Kubernetes
    ResourceClaim share, or else one of the user's."""
    claim = os.environ.get("NVIDIA_DRA_LOCAL_IPC_DIR", "")
    if os.path.isabs(claim):
        return os.path.join(claim, "gpufd")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "gpufd")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"gpufd-{os.getuid()}")


def default_socket() -> str:
    """Return the keeper's socket where none is named, as the command gpufd finds it: that of
    GPUFD_SOCKET, or else keeper.sock in the directory of the default sockets."""
    return os.environ.get("GPUFD_SOCKET") or os.path.join(directory(), "keeper.sock")


def offer_socket(name: str) -> str:
    """Return the socket at which offer and Writer listen where none is named: offers/NAME.sock in
    the directory of the default sockets. In NAME all but letters, digits and "_.-~" are escaped as in URLs."""
    path = os.path.join(directory(), "offers", urllib.parse.quote(name, safe="") + ".sock")
    if len(os.fsencode(path)) > 107:
        raise UsageError(f"the default socket of {name!r} would be {len(os.fsencode(path))} bytes long, and 107 are allowed: pass socket=")
    return path


def make_offer_socket(name: str) -> str:
    """Return offer_socket, whose directory exists then, for this user alone."""
    from .listen import check_directory

    path = offer_socket(name)
    offers = os.path.dirname(path)
    for each in (os.path.dirname(offers), offers):
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(each, 0o700)
            check_directory(each)
        except OSError as e:
            raise Error(f"the directory of default sockets: {e}; set XDG_RUNTIME_DIR, or say socket=") from e
    return path


def sockets_of(name: str) -> list[str]:
    """Return the sockets at which a name may be found where none is named: that of its own offer, if there
    is one, and the keeper's."""
    own: list[str] = []
    with suppress(UsageError, "usage"):  # a name that is too long for a socket of its own
        own = [path for path in (offer_socket(name),) if os.path.exists(path)] if name else []
    return [*own, default_socket()]
