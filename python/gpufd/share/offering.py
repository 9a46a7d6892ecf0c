"""Memory that is offered under a name: :class:`Offering`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .. import arguments
from ..errors import ClosedError, Error, FenceError, TimedOutError, UsageError
from ..memory.base import Memory
from ..objects import NotCopied, called, human
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, cursor_file, data_file
from ..wire.peer import Peer
from ..wire.records import READ_WRITE
from .broker.events import Fence, Finished
from .lease import Event, Lease

_LIST_RECORD = 4096  # bytes of a LISTED, at most


@dataclass(frozen=True)
class Cursors:
    """Host memory that each lease has of its own: zeros at first.

    The consumer and this process write it, and nobody else has it.

    size    bytes
    begin   is called with the lease and the descriptor, before anything is sent to the consumer
            and with the server's lock held. It maps the file, which is closed with the lease, and
            makes no offer. If it raises, the consumer is refused.
    slots   how many the memory of the offer is divided into, for lists
    """

    size: int
    begin: Callable[[Lease, int], None]
    slots: int = 0

    def __post_init__(self) -> None:
        arguments.number("the size of cursors", self.size, 1, wire.MAX_CURSORS)
        arguments.called("begin", self.begin, optional=False)


@dataclass(frozen=True)
class Terms:
    """The terms of an offer, as its maker gives them."""

    verdict: bool = False
    leases: int = 0
    fence: int | None = None
    cursors: Cursors | None = None
    on_event: Callable[[Event], None] | None = None
    on_lease: Callable[[Lease], None] | None = None

    def __post_init__(self) -> None:
        arguments.flag("verdict", self.verdict)
        arguments.number("leases", self.leases)
        if self.fence is not None:
            arguments.one_of("fence", self.fence, (Fence.RELEASED, Fence.FENCED), "RELEASED or FENCED")
        if not isinstance(self.cursors, (Cursors, type(None))):
            raise UsageError(f"cursors are a gpufd.Cursors, not {type(self.cursors).__name__}")
        arguments.called("on_event", self.on_event)
        arguments.called("on_lease", self.on_lease)


@dataclass
class OfferCalls:
    """The calls that an offer makes, of its server."""

    changed: threading.Condition  # another in a child after a fork
    publish: Callable[[Offering], None]
    withdraw: Callable[[Offering, str], None]
    give_up: Callable[[Offering], None]
    not_by_thread: Callable[[], None]


class Offering(NotCopied):
    """Memory that is offered under a name. Its maker closes it, or its server does."""

    def __init__(self, number: int, memory: Memory, record: wire.Offer, terms: Terms, calls: OfferCalls) -> None:
        self.id, self.memory, self.record = number, memory, record
        self.terms, self._calls = terms, calls
        self.pending: bool = record.pending
        self.ended = False  # nobody gets it any more
        self.over = False  # and nobody has it
        self.why = "the producer has ended the offer"  # what consumers are told then
        self.grace: float | None = None  # seconds that the leases of what it replaces go on
        self.err: Error | None = None
        self.idle_since = time.monotonic()
        self.held: list[Lease] = []  # leases that have not ended, in the order of their numbers
        self._finished: Finished | None = None
        self._warned = False  # close has told of those that may still write
        self.data_fd = -1
        if len(record.data) > wire.MAX_DATA:
            self.data_fd = data_file(record.data)
            self.record = replace(record, data=b"", data_size=len(record.data))
        if terms.cursors:
            self.record = replace(self.record, cursor_size=terms.cursors.size)
        self._token = memory.hold(f"offer {record.name!r}", pins=True)

    def __repr__(self) -> str:
        n = len(self.held)
        state = "over" if self.over else "ended" if self.ended else "pending" if self.pending else "open"
        return f"<gpufd.Offering {called(self.name)}, {human(self.memory.size)}, {n} lease{'s' if n != 1 else ''}, {state}>"

    @property
    def name(self) -> str:
        """Name of the offer."""
        return self.record.name

    def listing(self) -> wire.Listing:
        """Return what a list says of the offer now. It runs under the server's lock."""
        r, cursors = self.record, self.terms.cursors
        return wire.Listing(r.driver, r.access, r.handle_type, r.pending, r.device, r.size, r.generation, r.data_size or len(r.data), r.name,
                            len(self.held), cursors.slots if cursors else 0)  # fmt: skip

    def awaits(self, lease: Lease) -> bool:
        """Return whether a writer that is told to go is waited for."""
        return self.terms.fence is not None and lease.access == READ_WRITE

    def begin_cursors(self, lease: Lease) -> Error | None:
        """Make the memory that a lease alone has. Return why it does not get any."""
        cursors = self.terms.cursors
        if not cursors:
            return None
        try:
            lease._cursors = cursor_file(cursors.size)
            cursors.begin(lease, lease._cursors)
            return None
        except Exception as error:
            return told(error)

    def is_released_by(self, lease: Lease) -> None:
        """Note the end of a lease."""
        self.held.remove(lease)
        self.idle_since = time.monotonic()

    def let_go(self, finished: Finished | None = None) -> None:
        """Let go of the memory, which nobody has any more."""
        self.ended = self.over = True
        self._finished = finished
        fd, self.data_fd = self.data_fd, -1
        if fd >= 0:
            os.close(fd)
        self.memory.let_go(self._token)

    @property
    def leases(self) -> list[Lease]:
        """The leases that have not ended, in the order of their numbers."""
        with self._calls.changed:
            return list(self.held)

    def publish(self) -> None:
        """Say that the data of a pending offer is there.

        Wait for the work on the memory, then tell the consumers.
        """
        with self._calls.changed:
            self._check_pending()
        self.memory.finish()
        with self._calls.changed:
            self._check_pending()
            self._calls.publish(self)

    def _check_pending(self) -> None:
        if self.ended:
            raise ClosedError(f"the offer {self.name!r} has ended")
        if not self.pending:
            raise UsageError(f"the offer {self.name!r} is published already")

    def wait(self, timeout: float | None = None, idle: float | None = None) -> bool:
        """Wait until the offer is over: closed, or taken by as many consumers as it is for.

        Return False if it is not over within timeout seconds. With idle, raise TimedOutError (no-consumer) once
        no consumer has had the memory for that many seconds.
        """
        deadline, idle = time.monotonic() + arguments.seconds("a timeout", timeout), arguments.seconds("idle", idle)
        with self._calls.changed:
            while not self.over:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                alone = idle if self.held else self.idle_since + idle - time.monotonic()
                if alone <= 0:
                    raise TimedOutError(f"no consumer came within {idle:g} s", reason="no-consumer")
                self._calls.changed.wait(min(left, alone, 1.0))  # a signal that comes just before would not end the wait
        if self.err:
            raise self.err
        return True

    def withdraw(self, why: str = "the producer has ended the offer") -> bool:
        """Take the offer back from all consumers, and wait for none of them.

        Return whether nobody had the memory. Functions that the server calls may call it.
        """
        arguments.text("why", why)
        with self._calls.changed:
            alone = not self.held
            self._calls.withdraw(self, why)
            return alone

    def close(self, why: str = "the producer has ended the offer", timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Take the offer back from all consumers, and wait until they have released it.

        Consumers have a second to read that. With a fence, wait until it is known that none of
        them writes the memory any more; raise FenceError if that takes longer than timeout.
        """
        self._calls.not_by_thread()
        wait = arguments.seconds("a timeout", timeout)
        arguments.text("why", why)
        with self._calls.changed:
            self._calls.withdraw(self, why)
            self._calls.changed.wait_for(lambda: self.over, arguments.bounded(wait))
            if not self.over:
                self._calls.give_up(self)
            peers, doubt = self._unfenced(wait)
            warned, self._warned = self._warned, bool(peers)
        if peers and not warned:
            word, all_peers = Fence(self.terms.fence or 0).name.lower(), "; ".join(str(p) for p in peers)
            reason = "unknown" if self._finished and self._finished.doubt else "pending"
            raise FenceError(f"waiting until the memory is {word} by {all_peers}: {doubt}", peers, reason=reason)

    def _unfenced(self, wait: float) -> tuple[list[Peer], str]:
        """Return the peers that may still write, and why the first of them may."""
        if self._finished:
            return list(self._finished.unsure.peers), self._finished.doubt or f"its process has not ended within {wait:g} s"
        return [lease.peer for lease in self.held if self.awaits(lease)], f"its lease has not ended within {wait:g} s"

    def __enter__(self) -> Offering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def told(error: Exception) -> Error:
    """Return an error of the application's function, as an event has it."""
    return error if isinstance(error, Error) else Error(f"{type(error).__name__}: {error}")


def lists(offers: Sequence[wire.Listing]) -> list[wire.Listed]:
    """Return the answer to LIST, in as many records as it takes."""
    listings = list(offers)
    records: list[wire.Listed] = []
    while listings or not records:
        some: list[wire.Listing] = []
        length = wire.HEADER.size + 8
        while listings and length + len(listings[0].pack()) <= _LIST_RECORD:
            length += len(listings[0].pack())
            some.append(listings.pop(0))
        records.append(wire.Listed(len(listings), tuple(some)))
    return records
