"""The state of a broker's offers and sessions."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...wire import records as wire
from .events import Fence, Peers, Reason, Terms

if TYPE_CHECKING:
    from ...wire.peer import Peer


class State(enum.IntEnum):
    """The state of a session. The first three have no lease."""

    ASKING = 0  # the application is asked
    QUEUED = 1  # waits for the offer of a name
    BEHIND = 2  # waits for newer memory than that of an offer
    GRANTED = 3  # has a lease, and waits for the data
    SERVED = 4  # was told that the data is there
    MAPPED = 5  # has mapped the memory
    OVER = 6  # End was returned


@dataclass(eq=False)
class Session:
    """One consumer's connection."""

    id: int
    peer: Peer
    want: wire.Attach
    process: int
    doubt: str  # why the end of its process cannot be known, or ""
    state: State = State.ASKING
    was_served: bool = False  # it was told that the data is there, before it ended
    told: float = -math.inf  # when it last heard of progress

    asked: Offer | None = None  # the application is being asked about
    waits_for: str = ""  # the name in whose queue it is, or was before it was asked about; or ""
    knows: Offer | None = None  # behind which it waits
    lease: Offer | None = None  # of which it has a lease

    heir: Session | None = None  # reattached, and has its place with it
    heir_of: Session | None = None

    def knows_of(self, o: Offer) -> bool:
        """Return whether an offer's memory is no newer than what the session has."""
        return not self.want.reattach and 0 < self.want.after and o.terms.record.generation <= self.want.after

    def is_of_process_of(self, s: Session) -> bool:
        return self.process == s.process and (self.process != 0 or self.peer == s.peer and self.peer.pid != 0)

    def bequeath(self) -> bool:
        """Leave the place to the sessions of the same process that have it, too, and return whether there are any."""
        if self.heir:
            self.heir.heir_of = self.heir_of
        if self.heir_of:
            self.heir_of.heir = self.heir
        return bool(self.heir or self.heir_of)


@dataclass(eq=False)
class Offer:
    """An offer from its claim until it has finished. It may be prepared, is published, and then
    loses its name to another before it is over, or does not."""

    id: int
    terms: Terms
    stands: bool  # ends only by Retire or Withdraw
    claimed: bool = False  # counts among the makers of its name
    described: bool = False
    published: bool = False
    replaced: bool = False  # another has its name, or its place
    newer: int = 0  # the generation of what took its place, or 0
    over: bool = False  # withdrawn: its leases end

    places: int = 0  # leases that count
    ended: int = 0  # those of them that have ended
    number: int = 0  # the last lease's
    live: list[Session] = field(default_factory=list)  # whose connections are not over
    behind: list[Session] = field(default_factory=list)  # know the memory, and wait for newer
    idle_at: float = 0.0
    grace_at: float = 0.0

    awaits: bool = False  # AwaitWriters waits
    earlier: list[Offer] = field(default_factory=list)  # those that it waits for
    writers: list[tuple[int, Peer]] = field(default_factory=list)  # processes of sessions that are over and may still write
    gave_up: bool = False  # fences are waited for no longer
    open: Peers = field(default_factory=Peers)  # may have legacy memory open
    unsure: Peers = field(default_factory=Peers)  # may still write
    doubt: str = ""  # why the first of unsure may, and it cannot be known for how long

    @property
    def name(self) -> str:
        return self.terms.record.name

    @property
    def generation(self) -> int:
        return self.terms.record.generation

    @property
    def fenced(self) -> bool:
        return self.terms.fence != Fence.NONE

    def is_of(self, generation: int) -> bool:
        """Return whether consumers that have mapped memory of a generation have the offer's."""
        return not self.terms.record.legacy and self.generation == generation

    def lease_of(self, s: Session) -> Session | None:
        """Return a session of the same process that has a lease, and whose place nobody has taken over, or None.

        That it has detached may not have been heard yet: it was said over another connection.
        """
        return next((x for x in self.live if x.state != State.OVER and not x.heir and x.is_of_process_of(s)), None)

    def gives(self, want: wire.Attach) -> int:
        """Return the access that a session has."""
        return wire.READ_WRITE if self.terms.record.legacy else want.access  # nothing can keep it from writing

    def end_reason(self, restarting: bool = False) -> Reason:
        """Return why leases end with their offer."""
        if restarting:
            return Reason.RESTARTING
        return Reason.SUPERSEDED if self.replaced else Reason.WITHDRAWN

    def doubts(self, peer: Peer, why: str) -> None:
        """Note that a peer may still write the memory."""
        if not self.doubt and not self.unsure.peers:
            self.doubt = why
        self.unsure = self.unsure.with_(peer)
