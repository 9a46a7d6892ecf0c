"""Memory that is offered under a name: :class:`Offering`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..errors import ClosedError, Error, FenceError, TimedOutError, UsageError
from ..memory.base import Memory
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, data_file
from ..wire.records import READ_WRITE
from .lease import Event, Lease
from .session import SENT

if TYPE_CHECKING:
    from .server import Server


@dataclass(frozen=True)
class Cursors:
    """Host memory that each lease has of its own: zeros at first.

    The consumer and this process write it, and nobody else has it.

    size    bytes
    begin   is called with the lease and the descriptor, before anything is sent to the consumer
            and with the server's lock held. It maps the file, which is closed with the lease.
            If it raises, the consumer is refused.
    """

    size: int
    begin: Callable[[Lease, int], None]

    def __post_init__(self) -> None:
        arguments.number("the size of cursors", self.size, 1, wire.MAX_CURSORS)
        arguments.called("begin", self.begin, optional=False)


class Offering:
    """Memory that is offered under a name. Its maker closes it, or its server does."""

    def __init__(self, server: Server, memory: Memory, record: wire.Offer, options: dict[str, Any]) -> None:
        self.server, self.memory, self.record = server, memory, record
        self.pending: bool = record.pending
        self.verdict: bool = options["verdict"]
        self.most: int = options["leases"]
        self.fence: int | None = options["fence"]
        self.on_event: Callable[[Event], None] | None = options["on_event"]
        self.on_lease: Callable[[Lease], None] | None = options["on_lease"]
        self.admitted = 0
        self.ended = False  # nobody gets it any more
        self.over = False  # and nobody has it
        self.err: Error | None = None
        self.idle_since = time.monotonic()
        self.writers: list[Lease] = []  # to be fenced
        self.cursors: Cursors | None = options["cursors"]
        self.data_fd = -1
        if len(record.data) > wire.MAX_DATA:
            self.data_fd = data_file(record.data)
            self.record = replace(record, data=b"", data_size=len(record.data))
        if self.cursors:
            self.record = replace(self.record, cursor_size=self.cursors.size)
        self._token = memory.hold(f"offer {record.name!r}")

    @property
    def name(self) -> str:
        """Name of the offer."""
        return self.record.name

    def awaits(self, lease: Lease) -> bool:
        """Whether a writer that is told to go is waited for."""
        return self.fence is not None and lease.access == READ_WRITE

    @property
    def leases(self) -> list[Lease]:
        """The leases that have not ended, in the order of their numbers."""
        with self.server.changed:
            return sorted((s.lease for s in self.server.sessions if s.offering is self and s.lease and not s.lease._over), key=lambda x: x.number)

    def publish(self) -> None:
        """Say that the data of a pending offer is there.

        Wait for the work on the memory, then tell the consumers.
        """
        with self.server.changed:
            if self.ended:
                raise ClosedError(f"the offer {self.name!r} has ended")
            if not self.pending:
                raise UsageError(f"the offer {self.name!r} is published already")
        self.memory.finish()
        with self.server.changed:
            self.pending = False
            self.record = replace(self.record, pending=False)
            for session in list(self.server.sessions):
                if session.offering is self and session.state == SENT:
                    session.publish()
        self.server.wake()

    def wait(self, timeout: float | None = None, idle: float | None = None) -> bool:
        """Wait until the offer is over: closed, or taken by as many consumers as it is for.

        Return False if it is not over within timeout seconds. With idle, raise NoConsumerError once
        no consumer has had the memory for that many seconds.
        """
        deadline, idle = time.monotonic() + arguments.seconds("a timeout", timeout), arguments.seconds("idle", idle)
        with self.server.changed:
            while not self.over:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                alone = idle if self.leases else self.idle_since + idle - time.monotonic()
                if alone <= 0:
                    raise TimedOutError(f"no consumer came within {idle:g} s", reason="no-consumer")
                self.server.changed.wait(min(left, alone, 1.0))  # a signal that comes just before would not end the wait
        if self.err:
            raise self.err
        return True

    def close(self, why: str = "the producer has ended the offer", timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Take the offer back from all consumers, and wait until they have released it.

        Consumers have a second to read that. With a fence, wait until it is known that none of
        them writes the memory any more; raise FenceError if that takes longer than timeout.
        """
        self.server.not_by_thread()
        wait = arguments.seconds("a timeout", timeout)
        arguments.text("why", why)
        deadline = time.monotonic() + wait
        with self.server.changed:
            self.server.end(self, why)
            self.server.wake()
            self.server.changed.wait_for(lambda: self.over, arguments.bounded(wait))
            writers, self.writers = self.writers, []
        peers: list[Any] = []
        doubts = ""
        for lease in writers:
            try:
                lease.await_fence(max(0.0, deadline - time.monotonic()), self.fence or 0)
            except FenceError as e:
                peers, doubts = [*peers, *e.peers], str(e)
        if peers:
            raise FenceError(doubts, peers)

    def __enter__(self) -> Offering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
