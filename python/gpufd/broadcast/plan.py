"""The plan of a broadcast, as the ranks tell each other, and its result."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import KeeperError
from ..keeper.types import Info


@dataclass(frozen=True)
class Rank:
    """Each rank's description of itself, before anything is done."""

    rank: int
    host: str
    keeper: str  # the same for ranks that have one keeper together
    has: bool  # the keeper serves the version already
    version: int  # that the keeper has now
    error: str = ""


@dataclass(frozen=True)
class Part:
    """A part as rank 0's keeper has it."""

    part: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Plan:
    """The version that rank 0's keeper has."""

    name: str
    version: int
    labels: Mapping[str, str]
    parts: tuple[Part, ...]
    transaction: str
    error: str = ""
    reason: str = ""  #: of the error

    @classmethod
    def of(cls, info: Info) -> Plan:
        if info.version == 0 or any(p.state != "ok" for p in info.parts):
            raise KeeperError(info.state, f"{info.name} of rank 0's keeper is {info.state}, and not served")
        parts = tuple(Part(p.part, p.bytes, p.digest) for p in info.parts)
        return cls(info.name, info.version, dict(info.labels), parts, f"broadcast-{secrets.token_hex(8)}")

    def is_served(self, info: Info | None) -> bool:
        """Return whether a keeper has the same digests and labels already, and serves them."""
        if info is None or info.state != "ok" or dict(info.labels) != dict(self.labels):
            return False
        return tuple(Part(p.part, p.bytes, p.digest) for p in info.parts) == self.parts


@dataclass
class Result:
    """The result on this rank."""

    name: str = ""
    version: int = 0  # in this rank's keeper
    received: int = 0  # bytes that this rank has received
    sent: int = 0  # that it was the source of
    seconds: float = 0.0  # of the transport
    skipped: bool = False  # the keeper served it already
    ranks: int = 0  # that received
    warnings: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """GB/s that came to each receiving rank."""
        moved = self.received or self.sent
        return moved / self.seconds / 1e9 if self.seconds else 0.0


def mover(ranks: Sequence[Rank], keeper: str, part: int) -> int:
    """The rank that moves a part from or to a keeper: the parts go round the ranks that have
    the keeper together, so with a rank for each GPU each moves its own."""
    there = [r.rank for r in ranks if r.keeper == keeper]
    return there[part % len(there)]
