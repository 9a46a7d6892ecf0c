"""One consumer's connection, as a producer sees it. A server's thread calls it, and others
under the server's lock; nothing here waits."""

from __future__ import annotations

import contextlib
import errno
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import Error, LostError, TimedOutError, VerdictError, WireError, printable, refusal
from ..wire import records as wire
from ..wire.conn import Conn
from ..wire.peer import Peer
from ..wire.records import Record, need
from .attaching import ended
from .lease import Event, Lease

if TYPE_CHECKING:
    from .offering import Offering
    from .server import Server

# What is waited for: ATTACH or LIST; an offer; MAPPED; whatever a consumer with a lease says;
# that the peer closes.
ASKED, WAITING, SENT, LEASED, LEAVING = range(5)


class Session:
    """A connection from its beginning to its end."""

    def __init__(self, server: Server, conn: Conn, peer: Peer) -> None:
        self.server, self.conn, self.peer = server, conn, peer
        self.state = ASKED
        self.outbox: deque[tuple[Record, Sequence[int]]] = deque()
        self.ask: wire.Attach | None = None
        self.offering: Offering | None = None
        self.lease: Lease | None = None
        self.last_words = 16  # records of a peer that leaves, to be read
        self.gone = False  # the peer has hung up; what it said before may be still to be read
        self.deadline: float | None = None
        conn.hears = self.hears
        self.renew()

    def renew(self) -> None:
        self.deadline = time.monotonic() + self.conn.timeout

    # Sending.

    def say(self, record: Record, fds: Sequence[int] = ()) -> None:
        """Send a record, now or when there is room."""
        self.outbox.append((record, fds))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for. An end is found by reading."""
        try:
            while self.outbox:
                record, fds = self.outbox[0]
                self.conn.try_send(record, fds)
                self.outbox.popleft()
        except BlockingIOError:
            pass
        except LostError:
            self.gone = True
            self.outbox.clear()
        except OSError as e:
            self.outbox.clear()
            if e.errno != errno.ETOOMANYREFS:
                raise
            self.refuse(wire.BUSY, "too many descriptors are in flight", Error("too many descriptors are in flight"))
        self.server.watch(self)

    # Hearing.

    def hears(self, record: Record) -> None:
        if isinstance(record, wire.Notice) and self.lease:
            self.lease._notices.append(record.data)
            self.server.changed.notify_all()  # who waits in notices

    def readable(self) -> None:
        """Take what has come, until there is no more."""
        while self.state != LEAVING and self in self.server.sessions:
            try:
                record, _ = self.conn.receive(deadline=0)
                self.take(record)
            except TimedOutError:
                return
            except LostError as e:
                return self.ended(e)
            except WireError as e:
                self.refuse(e.code, str(e), WireError(f"{e} ({self.peer})", reason=e.reason))
        self.read_last()

    def read_last(self) -> None:
        """What comes behind the last word: nothing counts but the end, and for legacy memory a verdict."""
        for _ in range(32):  # then others have their turn
            if self not in self.server.sessions or self.conn.foul:
                break
            try:
                record, _ = self.conn.receive_any(0, 0)
                if isinstance(record, (wire.Verdict, wire.Farewell)) and self.lets_go(record):
                    return self.ended(None)
            except TimedOutError:
                return
            except LostError:
                return self.ended(None)
            except WireError:
                pass
            self.last_words -= 1
            if self.last_words < 0 and not (self.lease and self.lease._kept_back):
                return self.ended(None)
        if self.conn.foul:
            self.server.unwatch(self)

    def lets_go(self, record: Record) -> bool:
        """Whether a last word says that the memory is not used any more."""
        if isinstance(record, wire.Farewell) and self.lease:
            self.lease._fence.released = True
        return self.lease is not None and self.lease._kept_back

    def take(self, record: Record) -> None:
        if isinstance(record, wire.Refuse):
            return self.ended(refusal(record.code, printable(record.text)))
        if self.state == ASKED:
            self.take_first(record)
        elif isinstance(record, wire.Verdict):
            self.take_verdict(record)
        elif self.state == WAITING or self.lease is None:
            raise wire.unexpected(record, "an offer is waited for, and nothing")
        elif isinstance(record, wire.Progress):
            need(self.offering is None or not self.offering.pending, "PROGRESS before the data is there")
            if self.deadline is not None:
                self.renew()
            self.server.tell(self.offering, Event("progress", self.peer, self.lease, done=record.done, total=record.total))
        elif isinstance(record, wire.Mapped) and self.state == SENT:
            self.take_mapped(record)
        else:
            raise wire.unexpected(record, "a verdict" if self.state == LEASED else "MAPPED")

    def take_first(self, record: Record) -> None:
        if isinstance(record, wire.List):
            self.server.list_to(self)
            self.leave()
        elif isinstance(record, wire.Attach):
            self.ask, self.state = record, WAITING
            self.server.decide(self)
        else:
            raise wire.unexpected(record, "ATTACH")

    def take_mapped(self, record: wire.Mapped) -> None:
        offering, lease = self.offering, self.lease
        assert offering and lease
        if record.generation != offering.record.generation:
            raise WireError(f"generation {record.generation} is mapped, not that of the offer", reason="protocol")
        if offering.pending:
            raise WireError("MAPPED before the data is there", reason="protocol")
        self.state = LEASED
        if offering.record.legacy:  # which is offered still, and so it is there
            self.say(wire.Confirm(record.generation))
        if offering.verdict:
            self.renew()
        else:
            self.deadline = None
        self.server.tell(offering, Event("mapped", self.peer, lease))

    def take_verdict(self, record: wire.Verdict) -> None:
        if record.ok and self.state != LEASED:
            raise WireError("a good verdict before MAPPED", reason="protocol")
        fault: Error | None = None if record.ok else VerdictError(f"the consumer reports: {printable(record.text)} ({self.peer})", reason="bad-verdict")
        if self.gone and self.state != LEASED:  # it did not get the offer
            fault = LostError(f"the peer hung up ({self.peer})")
        if self.lease:
            if self.state != LEASED:
                self.lease._fence.released = True  # it has nothing of the memory
            self.server.tell(self.offering, Event("verdict", self.peer, self.lease, fault))
        if self.ask and self.ask.process is not None:
            self.say(wire.Farewell())
        self.state = LEAVING
        self.end_lease(fault)
        self.ended(None)

    # Ending.

    def refuse(self, code: int, text: str, error: Error | None = None) -> None:
        """Say REFUSE, and leave."""
        if self.state == LEAVING:
            return
        if error and not self.lease:
            self.server.tell(None, Event("refused", self.peer, None, error))
        self.leave(wire.Refuse(code, text), error)

    def revoke(self, why: str, reason: int = wire.REVOKED) -> None:
        """Say REVOKE, and leave."""
        if self.state != LEAVING:
            record = wire.Revoke(why, reason)
            self.leave(record, ended(record))

    def leave(self, record: Record | None = None, error: Error | None = None) -> None:
        """Say a last record, and wait a second until the peer has read it and closed; of memory
        that it may use still, as long as it takes to let go of that."""
        legacy = self.offering is not None and self.offering.record.legacy and self.lease is not None
        writes = self.lease is not None and self.offering is not None and self.offering.awaits(self.lease) and isinstance(record, wire.Revoke)
        self.state = LEAVING
        self.deadline = time.monotonic() + (self.conn.timeout if legacy or writes else min(1.0, self.conn.timeout))
        if self.lease and (legacy or writes):
            self.lease._kept_back, self.lease._pending_error = True, error
        else:
            self.end_lease(error)
        if record:
            self.say(record)

    def late(self) -> None:
        """The deadline is over."""
        if self.state == LEAVING:
            if self.lease and self.lease._kept_back and self.offering and self.offering.record.legacy:
                self.lease._pending_error = VerdictError(
                    f"a consumer may still have the legacy memory open: not closed within {self.conn.timeout:g} s by {self.peer}",
                    reason="still-open",
                )
            return self.ended(None)
        error = TimedOutError(f"the peer took longer than {self.conn.timeout:g} s ({self.peer})")
        self.refuse(wire.TOO_LATE, "you took too long over a step", error)

    def ended(self, error: Error | None) -> None:
        """The connection is over."""
        lease = self.lease
        if isinstance(error, LostError) and lease:
            error = None if self.conn.left else lease._fence.lost(False, error)
            if error is None and self.offering and self.offering.verdict:
                error = VerdictError(f"the consumer left without a verdict ({self.peer})", reason="no-verdict")
            lease._fence.released = lease._fence.released or self.conn.left
            if isinstance(error, LostError) and lease._fence.says is None and not (self.offering and self.offering.verdict):
                error = None  # an older peer, which does not say when it leaves in order
        if lease and lease._kept_back:
            error = lease._pending_error
        self.end_lease(error)
        self.server.drop(self)

    def end_lease(self, error: Error | None) -> None:
        lease = self.lease
        if lease and not lease._over:
            released = lease._fence.released
            lease._finish(error)
            lease._fence.end(released)
            self.server.lease_ended(self, lease, error)

    # The offer.

    def send_offer(self, offering: Offering) -> None:
        """Send all of the offer; the consumer has a lease from here on."""
        assert self.ask
        self.offering, self.state = offering, SENT
        record = replace(offering.record, resume=self.ask.resume, pending=offering.pending)
        if self.ask.resume or record.legacy:
            self.say(replace(record, first=0, fds=0))
        else:
            fds = offering.memory.fds[: record.chunks]
            for first in range(0, len(fds), wire.MAX_FDS):
                some = fds[first : first + wire.MAX_FDS]
                self.say(replace(record, first=first, fds=len(some)), some)
        if offering.data_fd >= 0:
            self.say(wire.Data(), [offering.data_fd])
        if self.lease and self.lease._cursors >= 0:
            self.say(wire.Cursors(), [self.lease._cursors])
        self.deadline = None
        if not offering.pending:
            self.renew()
        self.server.tell(offering, Event("sent", self.peer, self.lease))

    def publish(self) -> None:
        assert self.offering
        self.say(wire.Publish(self.offering.record.generation))
        self.renew()

    def supersede(self, generation: int) -> None:
        with contextlib.suppress(Error):
            self.say(wire.Superseded(generation))
