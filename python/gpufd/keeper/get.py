"""gpufd.get: attach to what a keeper keeps."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from .. import arguments, log
from ..errors import DriverError, Error, MismatchError, RefusedError, TimedOutError, UsageError, keeper_error
from ..memory.device import Device, device_name
from ..memory.drivers import device_uuid, driver_kind, place_of
from ..memory.reservation import Reservation
from ..share.attach import Parts, attach, attach_parts
from ..share.kept import kept_of
from ..wire.records import READ_ONLY
from .control import TIMEOUT, HasSocket, path_of
from .version import Version

if TYPE_CHECKING:
    from .types import Info


def get(
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, part: int | Literal["here"] | None = None,
    labels: Mapping[str, str] | None = None, access: int = READ_ONLY, device: Device | None = None, driver: str | int | None = None,
    at: Reservation | Sequence[Reservation] | None = None, timeout: float | None = TIMEOUT,
) -> Version:  # fmt: skip
    """Attach to the current version of what a keeper keeps under a name.

    The caller closes the Version, best by ``with``. All its parts are of one version, even if
    another one is committed meanwhile.

    socket      the keeper's socket, or a Client; None for the default one
    part        attach to that part alone; "here" means the only part that is on the device, by
                default the current one
    labels      labels that the version must have, or MismatchError
    at          map the part at the beginning of this reservation (gpufd.reserve), or each of several parts
                at that of its number
    access, device, driver, timeout
                as of attach

    Raises KeeperError, whose reason says whether the name is drained or damaged, NotFoundError,
    and what attach raises.
    """
    path = path_of(socket)
    arguments.name(name)
    if isinstance(part, str) and part != "here":
        raise UsageError(f'part is a number, or "here", not {arguments.short(part)}')
    try:
        if part is None:
            parts = attach_parts(name, socket=path, labels=labels, access=access, device=device, driver=driver, at=at, timeout=timeout)
        elif isinstance(part, str):
            parts = _attach_here(path, name, labels, access, device, driver, _only(at), timeout)
        else:
            parts = _attach_one(path, name, part, labels, access, device, driver, _only(at), timeout)
    except RefusedError as e:
        from .refusals import explained

        raise explained(path, name, part if isinstance(part, int) else None, timeout, e) from e
    except (DriverError, MismatchError) as e:
        if e._offer is None:
            raise
        from .client import Client

        with contextlib.suppress(Error, OSError), Client(path, timeout=timeout) as client:
            kept = kept_of(e._offer)
            client.report(kept.name, kept.version, kept.part, "quarantined", str(e))
        raise
    try:
        version = Version(path, timeout, parts)
    except BaseException:
        parts.close()
        raise
    log.debug("got %s, version %d: %d of %d parts, %d bytes", name, version.version, len(parts), parts[0].kept.parts, sum(p.size for p in parts))
    return version


def _only(at: Reservation | Sequence[Reservation] | None) -> Reservation | None:
    """The reservation for one part."""
    if not isinstance(at, Sequence):
        return at
    if len(at) != 1:
        raise UsageError(f"at has {len(at)} reservations, and one part is attached to")
    return at[0]


def _attach_one(
    path: str, name: str, part: int, labels: Mapping[str, str] | None, access: int, device: Device | None, driver: str | int | None,
    at: Reservation | None, timeout: float | None,
) -> Parts:  # fmt: skip
    return Parts([attach(name, socket=path, part=part, labels=labels, access=access, device=device, driver=driver, at=at, timeout=timeout)])


def _attach_here(
    path: str, name: str, labels: Mapping[str, str] | None, access: int, device: Device | None, driver: str | int | None,
    at: Reservation | None, timeout: float | None,
) -> Parts:  # fmt: skip
    """Attach to the only part that is on a device, as the keeper lists them by its UUID.

    A new version may be committed behind the list: then the list is asked for again.
    """
    from .client import Client

    kind = driver_kind(driver)
    ordinal = place_of("cuda" if device is None else device, kind)
    there = device_name(device_uuid(kind, ordinal))
    deadline = time.monotonic() + arguments.step(timeout)
    with Client(path, timeout=timeout) as client:
        info = client.stat(name)
        while True:
            part = _part_on(info, there, ordinal)
            try:
                parts = _attach_one(path, name, part, labels, access, ordinal, kind, at, timeout)
                if parts[0].kept.version == info.version:
                    return parts
                parts.close()
            except (RefusedError, MismatchError):
                if client.stat(name).version == info.version:
                    raise
            info = client.stat(name)
            if time.monotonic() > deadline:
                raise TimedOutError(f"{name} got a new version whenever its part was attached to")
            log.debug("version %d of %s came meanwhile: looking for its part again", info.version, name)


def _part_on(info: Info, device: str, ordinal: int) -> int:
    """Return the number of the only part of a version that is on a device."""
    if info.version == 0:
        raise keeper_error("not-found", f"{info.name} has no version yet")
    found = [p.part for p in info.parts if p.device == device]
    what = f"{info.name}, version {info.version}"
    if not found:
        places = ", ".join(f"part {p.part} is on {p.device}" for p in info.parts[:8])
        more = f" and {len(info.parts) - 8} more" if len(info.parts) > 8 else ""
        raise MismatchError(f"no part of {what}, is on device {ordinal}, {device}: {places}{more}", reason="device")
    if len(found) > 1:
        some = ", ".join(map(str, found[:8])) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        raise UsageError(f"{len(found)} parts of {what}, are on device {ordinal}, {device}: say which of {some}")
    return found[0]
