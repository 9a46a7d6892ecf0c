"""The events that a :class:`Broker` takes, and the actions that it returns.

Offers, sessions, processes and memory are numbers that the caller gives out, from 1. No number is
used twice. Times are seconds of any clock that never goes back.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Union

from ...wire import records as wire

if TYPE_CHECKING:
    from ...wire.peer import Peer


class Reason(enum.Enum):
    """The reason why a session has ended."""

    WITHDRAWN = "withdrawn"  # its offer has ended, and the name is given up
    SUPERSEDED = "superseded"  # other memory has the name, and the time of the older is over
    REVOKED = "revoked"  # its lease was taken back
    RESTARTING = "restarting"  # the offer's maker ends for a successor
    LEFT = "left"  # it left in order
    LOST = "lost"  # its connection ended without a farewell
    JUDGED = "judged"  # it gave its verdict
    FAILED = "failed"  # it broke the protocol, took too long, could not attach or be served


class Fence(enum.IntEnum):
    """The sign from a consumer that an offer waits for in the end."""

    NONE = 0
    RELEASED = 1  # the consumer has said that it does not use the memory any more, or its process has died
    FENCED = 2  # its process has died


@dataclass(frozen=True)
class Terms:
    """The terms of an offer: how it ends, and what it waits for."""

    record: wire.Offer  # what consumers are told: name, memory, access and what they must take
    memory: int  # the same for offers of the same memory, which may have grown
    fence: Fence = Fence.NONE
    leases: int = 0  # consumers that it admits in all; 0 is no bound
    idle: float | None = None  # seconds that it goes on without a lease; None is no bound
    grace: float | None = None  # seconds that its leases go on after it was replaced; None is no bound
    replaces: bool = False  # takes its name from the offer that has it
    resumes: bool = False  # is for consumers that have mapped its memory, and has no name; ends only by Retire or Withdraw


# Events of names and offers.


@dataclass(frozen=True)
class Work:
    """Say how far the offer of a name is: sessions that wait for it are told."""

    name: str
    done: int
    total: int


@dataclass(frozen=True)
class Claim:
    """Begin an offer. Taken answers if the name is another's: then there is no offer."""

    offer: int
    terms: Terms


@dataclass(frozen=True)
class Describe:
    """Complete the terms of an offer that is claimed."""

    offer: int
    record: wire.Offer
    memory: int


@dataclass(frozen=True)
class AwaitWriters:
    """Ask whether an offer's memory may still be written on account of an earlier offer that has
    not finished. WritersDone answers: with wait only when it cannot any more."""

    offer: int
    wait: bool = False


@dataclass(frozen=True)
class Prepare:
    """Hand out the descriptors of an offer whose data is not there yet. Taken answers this, or
    Publish, if the name is another's by now; then Withdraw the offer."""

    offer: int


@dataclass(frozen=True)
class Publish:
    """Say that an offer's data is there. in_order: where a later offer has the name already, this
    one is superseded at once."""

    offer: int
    in_order: bool = False


@dataclass(frozen=True)
class Supersede:
    """Take an offer's name away, because memory of that generation, of another name, has its
    place. Its leases go on."""

    offer: int
    by: int


@dataclass(frozen=True)
class Retire:
    """End an offer without a name after its last lease."""

    offer: int


@dataclass(frozen=True)
class Withdraw:
    """End an offer, in whatever state it is. restarting: there is or will be a successor."""

    offer: int
    restarting: bool = False


@dataclass(frozen=True)
class GiveUp:
    """End the wait for an offer's fences."""

    offer: int


@dataclass(frozen=True)
class Tick:
    """Say that the time of a Timer has come."""

    offer: int


@dataclass(frozen=True)
class Close:
    """End everything. restarting: there is or will be a successor."""

    restarting: bool = False


# Events of sessions and processes.


@dataclass(frozen=True)
class Ask:
    """Say what a new session wants. process is 0, and doubt says why, if its end cannot be known."""

    session: int
    peer: Peer
    want: wire.Attach
    process: int = 0
    doubt: str = ""


@dataclass(frozen=True)
class Answer:
    """Say what the application decided after Consult. denied: it does not admit the session to
    the offer. hidden: the session must not learn that there is one."""

    session: int
    offer: int
    denied: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Map:
    """Say that a session has mapped the memory of that generation. Out of turn, this ends the
    session as FAILED."""

    session: int
    generation: int


@dataclass(frozen=True)
class Detach:
    """Say that a session has unmapped the memory, and keeps its lease. Out of turn, this ends the session
    as FAILED: without MAPPED, and of memory that is writable or not by descriptors alone."""

    session: int


@dataclass(frozen=True)
class Revoke:
    """End one lease."""

    session: int


@dataclass(frozen=True)
class Leave:
    """Say why a session ends on its own side: its connection is over, it said something out of
    turn, or could not be sent what it was to get. End answers."""

    session: int
    reason: Reason


@dataclass(frozen=True)
class Gone:
    """Say that the connection of a session is over, after End."""

    session: int
    sent: bool = False  # it was sent a descriptor, at least
    released: bool = False  # it has said that it does not use the memory any more, or never had it
    open: bool = False  # it may have legacy memory open


@dataclass(frozen=True)
class Die:
    """Say that a process has died."""

    process: int


@dataclass(frozen=True)
class Lose:
    """Say that the end of a process cannot be known any more, and why."""

    process: int
    doubt: str = ""


Event = Union[
    Work, Claim, Describe, AwaitWriters, Prepare, Publish, Supersede, Retire, Withdraw, GiveUp, Tick, Close,
    Ask, Answer, Map, Detach, Revoke, Leave, Gone, Die, Lose,
]  # fmt: skip


# Actions for one session.


@dataclass(frozen=True)
class Consult:
    """Ask the application whether a session may have an offer. Answer follows."""

    session: int
    offer: int


@dataclass(frozen=True)
class Wait:
    """Note that a session waits, and nothing is to be sent now."""

    session: int


@dataclass(frozen=True)
class Progress:
    """Tell a session that waits how far its offer is. It may be left out where sending would block."""

    session: int
    done: int
    total: int


@dataclass(frozen=True)
class Grant:
    """Tell the application of a lease, and then send the offer: without its data if pending, and
    without descriptors if the session resumes."""

    session: int
    offer: int
    number: int  # of the lease within its offer, from 1
    pending: bool


@dataclass(frozen=True)
class Complete:
    """Tell a session that the data is there."""

    session: int


@dataclass(frozen=True)
class Newer:
    """Tell a session that memory of another generation has the place of its own."""

    session: int
    generation: int


@dataclass(frozen=True)
class Confirm:
    """Note that a session has mapped the memory. A session with legacy memory waits to hear it."""

    session: int


@dataclass(frozen=True)
class Refuse:
    """End a session that has no lease. denied: the application has refused it, and because is None."""

    session: int
    denied: bool = False
    because: wire.Refuse | None = None


@dataclass(frozen=True)
class End:
    """End a session. If it has a lease, Gone is to follow."""

    session: int
    reason: Reason
    served: bool  # it was told that the data is there
    mapped: bool


# Actions for the maker of an offer.


@dataclass(frozen=True)
class Taken:
    """Note that an offer cannot have its name, or that everything has ended (closed)."""

    offer: int
    closed: bool = False


@dataclass(frozen=True)
class WritersDone:
    """Answer AwaitWriters. in_use: consumers of the earlier offer by may still write the memory."""

    offer: int
    in_use: bool = False
    by: int = 0


@dataclass(frozen=True)
class Replaced:
    """Note that other memory has the offer's place."""

    offer: int


@dataclass(frozen=True)
class Timer:
    """Ask for a Tick at that time, in place of an earlier one."""

    offer: int
    at: float


@dataclass(frozen=True)
class Over:
    """Note that an offer ends, and how its leases do. idle: it had no lease for as long as its
    terms allow."""

    offer: int
    reason: Reason
    idle: bool = False


MAX_PEERS = 64  # in a list: an offer may go on for as long as the machine


@dataclass(frozen=True)
class Peers:
    """Some peers that something is true of."""

    peers: tuple[Peer, ...] = ()  # each once, MAX_PEERS at most
    more: int = 0  # sessions of others

    def with_(self, one: Peer) -> Peers:
        """Return these and one more."""
        if one in self.peers:
            return self
        if len(self.peers) == MAX_PEERS:
            return replace(self, more=self.more + 1)
        return replace(self, peers=(*self.peers, one))


@dataclass(frozen=True)
class Finished:
    """Note that an offer's leases have ended, and that nobody writes its memory any more but
    those of unsure. The memory may be let go."""

    offer: int
    open: Peers = field(default_factory=Peers)  # may have legacy memory open
    unsure: Peers = field(default_factory=Peers)  # may still write
    doubt: str = ""  # why the first of unsure may; "" is GiveUp


Action = Union[
    Consult, Wait, Progress, Grant, Complete, Newer, Confirm, Refuse, End,
    Taken, WritersDone, Replaced, Timer, Over, Finished,
]  # fmt: skip
