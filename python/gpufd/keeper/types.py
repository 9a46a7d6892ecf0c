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
class Status:
    """A keeper's description of itself."""

    pid: int
    store_pid: int  #: 0 where there is none
    since: str  #: RFC 3339
    names: int
    version: str

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
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Holder process {self.pid} of user {self.uid}, part {self.part}, {self.access[:16]}{', ended' if self.fenced else ''}>"


@dataclass(frozen=True)
class PartInfo:
    """A keeper's description of a part."""

    part: int
    device: str  #: as GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
    bytes: int
    digest: str
    state: str  #: ok, damaged, quarantined
    reason: str
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<gpufd.keeper.PartInfo {self.part}, {human(self.bytes)} on {self.device[:40]}, {self.state[:16]}>"


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
    labels: Mapping[str, str]
    parts: tuple[PartInfo, ...]
    holders: tuple[Holder, ...]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        n = len(self.parts)
        return f"<gpufd.keeper.Info {called(self.name)} version {self.version}: {n} part{'s' if n != 1 else ''}, {human(self.bytes)}, {self.state[:16]}>"


@dataclass(frozen=True)
class Event:
    """Something that happened to a name."""

    time: str  #: RFC 3339
    name: str
    event: str  #: committed, draining, removed, damaged, quarantined
    version: int
    text: str

    def __repr__(self) -> str:
        return f"<gpufd.keeper.Event {called(self.name)} version {self.version} {self.event[:16]}>"


def text_of(value: Mapping[str, Any], name: str) -> str:
    return str(value.get(name) or "")


def number_of(value: Mapping[str, Any], name: str) -> int:
    return int(value.get(name) or 0)


def _holder(v: Mapping[str, Any]) -> Holder:
    return Holder(
        number_of(v, "pid"), number_of(v, "uid"), number_of(v, "gid"), number_of(v, "part"),
        text_of(v, "access"), text_of(v, "since"), bool(v.get("fenced")), v,
    )  # fmt: skip


def _part(v: Mapping[str, Any]) -> PartInfo:
    return PartInfo(number_of(v, "part"), text_of(v, "device"), number_of(v, "bytes"), text_of(v, "digest"), text_of(v, "state"), text_of(v, "reason"), v)


def info_of(v: Mapping[str, Any]) -> Info:
    labels = {str(key): str(value) for key, value in (v.get("labels") or {}).items()}
    return Info(
        text_of(v, "name"), number_of(v, "version"), text_of(v, "state"), text_of(v, "digest"),
        number_of(v, "bytes"), number_of(v, "reserved_bytes"), number_of(v, "frees_bytes"), labels,
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
