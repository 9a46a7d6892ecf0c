"""A keeper's description of itself and of the memory that it keeps, as its replies have it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Error, WireError
from ..objects import called, human


# Members that are not known here are in raw.


@dataclass(frozen=True)
class Pool:
    """Memory of a keeper's host in which versions are parked."""

    wanted: int  #: bytes, as the keeper was told
    bytes: int  #: that there are
    free: int
    error: str  #: why there are fewer than were wanted

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Pool {human(self.free)} of {human(self.bytes)} free{', ' + self.error[:100] if self.error else ''}>"


@dataclass(frozen=True)
class Status:
    """A keeper's description of itself."""

    pid: int
    store_pid: int  #: 0 where there is none
    since: str  #: RFC 3339
    names: int
    version: str
    pool: Pool | None  #: for parking; None where there is none and none was wanted

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Status process {self.pid}, {self.names} name{'s' if self.names != 1 else ''}, {self.version[:32]}>"


@dataclass(frozen=True)
class Holder:
    """A process that has a lease of what is kept, or that may still write it."""

    pid: int  #: 0 in another PID namespace
    uid: int
    gid: int
    part: int
    access: str
    since: str  #: RFC 3339
    fenced: bool  #: it is known to have ended
    detached: bool  #: it has none of the memory, and keeps its lease
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Holder process {self.pid} of user {self.uid}, part {self.part}, {self.access[:16]}{', ended' if self.fenced else ', detached' if self.detached else ''}>"


@dataclass(frozen=True)
class PartInfo:
    """A keeper's description of a part."""

    part: int
    device: str  #: as GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
    bytes: int
    digest: str
    layout: str  #: a digest of where which tensors lie, or "" if its writer gave none
    parked: bool  #: its bytes are in memory of the host, and not on the device
    state: str  #: ok, damaged, quarantined
    reason: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<gpufd.keeper.PartInfo {self.part}, {human(self.bytes)} on {self.device[:40]}, {self.state[:16]}{', parked' if self.parked else ''}>"


@dataclass(frozen=True)
class Info:
    """A keeper's description of a name: docs/keeper.md, "Who holds the memory"."""

    name: str
    version: int  #: 0: there is none yet
    state: str  #: ok, damaged, quarantined, draining; without a version reserved or removed
    digest: str
    bytes: int
    reserved_bytes: int
    frees_bytes: int
    parked_bytes: int  #: in memory of the host, of all versions
    labels: Mapping[str, str]
    parts: tuple[PartInfo, ...]
    holders: tuple[Holder, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        n = len(self.parts)
        return f"<gpufd.keeper.Info {called(self.name)} version {self.version}: {n} part{'s' if n != 1 else ''}, {human(self.bytes)}, {self.state[:16]}>"


@dataclass(frozen=True)
class Moved:
    """What parking or unparking a version has taken."""

    version: int
    bytes: int  #: that were copied; 0 if all were there already
    copy_seconds: float  #: for the copies alone
    seconds: float  #: in all

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Moved version {self.version}, {human(self.bytes)} in {self.seconds:.2f} s>"


@dataclass(frozen=True)
class Event:
    """Something that happened to a name."""

    time: str  #: RFC 3339
    name: str
    event: str  #: committed, draining, removed, damaged, quarantined, parked, unparked
    version: int
    text: str

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Event {called(self.name)} version {self.version} {self.event[:16]}>"


def text_of(value: Mapping[str, Any], name: str) -> str:
    return str(value.get(name) or "")


def number_of(value: Mapping[str, Any], name: str) -> int:
    return int(value.get(name) or 0)


def status_of(v: Mapping[str, Any]) -> Status:
    p = v.get("pool")
    pool = Pool(number_of(p, "wanted"), number_of(p, "bytes"), number_of(p, "free"), text_of(p, "error")) if p else None
    return Status(number_of(v, "pid"), number_of(v, "store_pid"), text_of(v, "since"), number_of(v, "names"), text_of(v, "version"), pool)


def moved_of(v: Mapping[str, Any]) -> Moved:
    return Moved(number_of(v, "version"), number_of(v, "bytes"), float(v.get("copy_seconds") or 0), float(v.get("seconds") or 0))


def _holder(v: Mapping[str, Any]) -> Holder:
    return Holder(
        number_of(v, "pid"), number_of(v, "uid"), number_of(v, "gid"), number_of(v, "part"),
        text_of(v, "access"), text_of(v, "since"), bool(v.get("fenced")), bool(v.get("detached")), v,
    )  # fmt: skip


def _part(v: Mapping[str, Any]) -> PartInfo:
    return PartInfo(
        number_of(v, "part"), text_of(v, "device"), number_of(v, "bytes"), text_of(v, "digest"),
        text_of(v, "layout"), bool(v.get("parked")), text_of(v, "state"), text_of(v, "reason"), v,
    )  # fmt: skip


def info_of(v: Mapping[str, Any]) -> Info:
    labels = {str(key): str(value) for key, value in (v.get("labels") or {}).items()}
    return Info(
        text_of(v, "name"), number_of(v, "version"), text_of(v, "state"), text_of(v, "digest"),
        number_of(v, "bytes"), number_of(v, "reserved_bytes"), number_of(v, "frees_bytes"), number_of(v, "parked_bytes"), labels,
        tuple(_part(p) for p in v.get("parts") or ()), tuple(_holder(h) for h in v.get("holders") or ()), v,
    )  # fmt: skip


@contextlib.contextmanager
def sense(what: str) -> Iterator[None]:
    """A reply whose members are of other types than they should be, as WireError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as e:
        if isinstance(e, Error):
            raise
        raise WireError(f"the keeper's {what} makes no sense: {e!r}") from None
