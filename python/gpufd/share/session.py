"""One consumer's connection, as a producer sees it: records in, events for the broker out, and the
broker's actions as records. Nothing here waits, and all of it runs under the server's lock."""

from __future__ import annotations

import enum
import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import Error, LostError, TimedOutError, VerdictError, WireError, printable, refusal
from ..wire import records as wire
from ..wire.conn import Conn
from ..wire.peer import Peer
from ..wire.records import READ_ONLY, Record, need
from .attaching import ended
from .broker import events as e
from .broker.events import Reason
from .lease import Event, Lease
from .offering import Offering

_MAX_LAST_WORDS = 16  # records that are read of a peer that leaves
_AT_ONCE = 32  # records of one peer; then others have their turn
_REVOKED = {Reason.WITHDRAWN: wire.WITHDRAWN, Reason.SUPERSEDED: wire.SUPERSEDED, Reason.REVOKED: wire.REVOKED, Reason.RESTARTING: wire.RESTARTING}


class Stage(enum.Enum):
    """The stage of a conversation: the record that is to come next."""

    ASKED = enum.auto()  # ATTACH or LIST
    WAITING = enum.auto()  # none: the consumer waits
    SENT = enum.auto()  # MAPPED
    LEASED = enum.auto()  # a verdict, or none
    LEAVING = enum.auto()  # the end


@dataclass(frozen=True)
class SessionCalls:
    """The calls that a session makes."""

    bring: Callable[[e.Event], None]  # an event for the broker
    tell: Callable[[Offering | None, Event], None]  # an event for the application
    list_to: Callable[[Session], None]
    watch: Callable[[Session], None]  # what it has to send has changed
    process_of: Callable[[Session], int]  # a number for its process
    gone: Callable[[Session], None]  # its lease has ended, and all is sent
    drop: Callable[[Session], None]  # its connection is over


class Session:
    """A connection from its beginning to its end."""

    def __init__(self, number: int, conn: Conn, peer: Peer, calls: SessionCalls) -> None:
        self.id, self.conn, self.peer, self.calls = number, conn, peer, calls
        self.stage = Stage.ASKED
        self.outbox: deque[tuple[Record, Sequence[int]]] = deque()
        self.ask: wire.Attach | None = None
        self.process = 0  # the broker's number of its process
        self.offering: Offering | None = None
        self.lease: Lease | None = None
        self.dropped = False
        self.sent_fds = False  # a descriptor, at least, was sent
        self.told_gone = False  # the broker knows that the lease is over
        self.may_be_open = False  # legacy memory, by a consumer that has not said that it closed it
        self.revoked = ""  # why the application takes the lease back
        self._last: tuple[Record | None, Error | None] = None, None  # the last word, where this side finds fault, and the lease's error
        self._mapped = False  # the consumer has said so
        self._kept_back = False  # the lease's end waits until the consumer lets go of the memory
        self._last_words = _MAX_LAST_WORDS
        self._hung_up = False  # what the peer said before may be still to be read
        self.deadline: float | None = None
        self.kept_until: float | None = None  # when a detached lease ends
        self._kept_for = 0  # milliseconds
        conn.hears = self._hears
        self._renew()

    def _renew(self) -> None:
        self.deadline = time.monotonic() + self.conn.timeout

    @property
    def waits(self) -> bool:
        """Whether the consumer waits for an offer or for its data."""
        return self.stage is Stage.WAITING or self.stage is Stage.SENT and self.offering is not None and self.offering.pending

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
                self.sent_fds = self.sent_fds or bool(fds)
                self.outbox.popleft()
        except BlockingIOError:
            pass
        except LostError:
            self._hung_up = True
            self.outbox.clear()
        except OSError as error:
            self.outbox.clear()
            text = "too many descriptors are in flight" if error.errno == errno.ETOOMANYREFS else f"the producer cannot send: {error.strerror}"
            self.fail(wire.BUSY, text, Error(f"{text} ({self.peer})"))
        self.calls.watch(self)
        self._check_gone()

    # Hearing.

    def _hears(self, record: Record) -> None:
        if isinstance(record, wire.Notice) and self.lease:
            self.lease._hear(record.data)

    def read(self) -> None:
        """Take what has come, until there is no more."""
        while self.stage is not Stage.LEAVING and not self.dropped:
            try:
                record, _ = self.conn.receive(deadline=0)
                self._take(record)
            except TimedOutError:
                return
            except LostError as error:
                return self._ended(error, Reason.LOST)
            except WireError as error:
                self.fail(error.code, str(error), WireError(f"{error} ({self.peer})", reason=error.reason))
        self._read_last()

    def _read_last(self) -> None:
        """Take what comes behind the last word: nothing counts but the end, and for legacy memory a verdict."""
        for _ in range(_AT_ONCE):
            if self.dropped or self.conn.foul:
                break
            try:
                record, _ = self.conn.receive_any(0, 0)
                self._mapped = self._mapped or isinstance(record, wire.Mapped)
                if isinstance(record, (wire.Verdict, wire.Farewell)) and self._lets_go(record):
                    return self._ended(None, Reason.LEFT)
            except TimedOutError:
                return
            except LostError:
                return self._ended(None, Reason.LOST)
            except WireError:
                pass
            self._last_words -= 1
            if self._last_words < 0 and not self._kept_back:
                return self._ended(None, Reason.FAILED)
        if self.conn.foul:
            self.calls.watch(self)

    def _lets_go(self, record: Record) -> bool:
        """Return whether a last word says that the memory is not used any more."""
        if isinstance(record, wire.Farewell) and self.lease:
            self.lease._fence.released = True
        elif isinstance(record, wire.Verdict) and not record.ok:
            self._note_failure()
        return self._kept_back

    def _note_failure(self) -> None:
        """Note that the consumer cannot attach: it has nothing of the memory, unless it had mapped
        that before it asked."""
        if self.lease and not self._mapped and self.ask and not self.ask.resume:
            self.lease._fence.released = True

    def _take(self, record: Record) -> None:
        if isinstance(record, wire.Refuse):
            self._note_failure()
            return self._ended(refusal(record.code, printable(record.text)), Reason.FAILED)
        if self.stage is Stage.ASKED:
            self._take_first(record)
        elif isinstance(record, wire.Verdict):
            self._take_verdict(record)
        elif not self.offering or not self.lease:
            raise wire.unexpected(record, "an offer is waited for, and nothing")
        elif isinstance(record, wire.Progress):
            self._take_progress(record, self.offering, self.lease)
        elif isinstance(record, wire.Mapped) and self.stage is Stage.SENT:
            self._take_mapped(record, self.offering)
        elif isinstance(record, wire.Detached) and self._may_detach(self.offering, self.lease):
            self._take_detached(record, self.offering, self.lease)
        else:
            raise wire.unexpected(record, "a verdict" if self.stage is Stage.LEASED else "MAPPED")

    def _take_first(self, record: Record) -> None:
        if isinstance(record, wire.List):
            self.stage = Stage.WAITING
            self.calls.list_to(self)
        elif isinstance(record, wire.Attach):
            self.ask, self.stage = record, Stage.WAITING
            self.process = self.calls.process_of(self)
            self.calls.bring(e.Ask(self.id, self.peer, record, self.process))
        else:
            raise wire.unexpected(record, "ATTACH")

    def _take_progress(self, record: wire.Progress, offering: Offering, lease: Lease) -> None:
        need(not offering.pending, "PROGRESS before the data is there")
        if self.deadline is not None:
            self._renew()
        self.calls.tell(offering, Event("progress", self.peer, lease, done=record.done, total=record.total))

    def _take_mapped(self, record: wire.Mapped, offering: Offering) -> None:
        text = "MAPPED before the data is there" if offering.pending else f"generation {record.generation} is mapped, not that of the offer"
        self._blame(wire.BAD_RECORD, text, WireError(f"{text} ({self.peer})", reason="protocol"))
        self.calls.bring(e.Map(self.id, record.generation))

    def _may_detach(self, offering: Offering, lease: Lease) -> bool:
        return self.stage is Stage.LEASED and lease.access == READ_ONLY and not offering.terms.cursors

    def _take_detached(self, record: wire.Detached, offering: Offering, lease: Lease) -> None:
        """Note that the consumer has unmapped the memory, and how long the lease is to be kept."""
        self.calls.bring(e.Detach(self.id))
        lease._detached = True
        self.kept_until = time.monotonic() + record.keep / 1000 if record.keep else None
        self._kept_for = record.keep
        if self.deadline is not None:
            self._renew()
        self.calls.tell(offering, Event("detached", self.peer, lease))

    def _take_verdict(self, record: wire.Verdict) -> None:
        if record.ok and self.stage is not Stage.LEASED:
            raise WireError("a good verdict before MAPPED", reason="protocol")
        fault: Error | None = None if record.ok else VerdictError(f"the consumer reports: {printable(record.text)} ({self.peer})", reason="bad-verdict")
        if self._hung_up and self.stage is not Stage.LEASED:  # it did not get the offer
            fault = LostError(f"the peer hung up ({self.peer})")
        if self.lease:
            self._note_failure()
            self.calls.tell(self.offering, Event("verdict", self.peer, self.lease, fault))
        if self.ask and self.ask.process is not None:
            self.say(wire.Farewell())
        self._over(fault, Reason.JUDGED)

    # The broker's actions.

    def perform(self, action: e.Action) -> None:
        """Perform an action that takes no more than the connection."""
        match action:
            case e.Wait():
                self.deadline = None
            case e.Progress(done=done, total=total):
                self.progress(done, total)
            case e.Complete():
                self._complete()
            case e.Newer(generation=generation):
                self.say(wire.Superseded(generation))
            case e.Confirm():
                self._confirm()
            case e.End(reason=reason):
                self._end(reason)

    def progress(self, done: int, total: int) -> None:
        """Tell a consumer that waits how far its offer is, unless it has enough to read."""
        if not self.outbox:
            self.say(wire.Progress(done, total, capabilities=wire.TAKES_DETACH))

    def send_offer(self, offering: Offering, lease: Lease, pending: bool) -> None:
        """Send all of the offer. The consumer has the lease from here on."""
        assert self.ask
        self.stage = Stage.SENT
        record = replace(offering.record, resume=self.ask.resume, pending=pending, capabilities=wire.TAKES_DETACH)
        if self.ask.resume or record.legacy:
            self.say(replace(record, first=0, fds=0))
        else:
            fds = offering.memory.fds[: record.chunks]
            for first in range(0, len(fds), wire.MAX_FDS):
                if self._last[0]:  # sending has failed
                    return
                some = fds[first : first + wire.MAX_FDS]
                self.say(replace(record, first=first, fds=len(some)), some)
        if offering.data_fd >= 0:
            self.say(wire.Data(), [offering.data_fd])
        if lease._cursors >= 0:
            self.say(wire.Cursors(), [lease._cursors])
        if self._last[0]:
            return
        self.deadline = None
        if not pending:
            self._renew()
        self.calls.tell(offering, Event("sent", self.peer, lease))

    def _complete(self) -> None:
        """Say that the data is there."""
        assert self.offering
        self.say(wire.Publish(self.offering.record.generation))
        self._renew()

    def _confirm(self) -> None:
        """Note that the consumer has mapped the memory."""
        assert self.offering
        self.stage, self._mapped = Stage.LEASED, True
        if self.offering.record.legacy:  # which is offered still, and so it is there
            self.say(wire.Confirm(self.offering.record.generation))
        if self.offering.terms.verdict:
            self._renew()
        else:
            self.deadline = None
        self.calls.tell(self.offering, Event("mapped", self.peer, self.lease))

    def refuse(self, no: wire.Refuse, error: Error | None) -> None:
        """Say that the consumer gets no lease, and leave."""
        if error:
            self.calls.tell(None, Event("refused", self.peer, None, error))
        self._leave(no, error)

    def _end(self, reason: Reason) -> None:
        """Say why the session has ended, and leave, unless the connection is over."""
        if reason is Reason.FAILED:
            self._leave(*self._last)
        elif reason in _REVOKED and self.offering:
            word = wire.Revoke(self.revoked if reason is Reason.REVOKED else self.offering.why, _REVOKED[reason])
            self._leave(word, ended(word))

    # Ending.

    def kept_enough(self) -> None:
        """Take a lease back that was detached for as long as its consumer wanted."""
        self.kept_until = None
        if self.lease:
            self.lease.revoke(f"it was detached for longer than the {self._kept_for / 1000:g} s that it asked for")

    def _blame(self, code: int, text: str, error: Error | None) -> None:
        """Prepare the last word to a peer that is at fault."""
        self._last = wire.Refuse(code, text), error

    def fail(self, code: int, text: str, error: Error | None = None) -> None:
        """End the session: the peer is at fault, or cannot be served."""
        if self.stage is Stage.LEAVING:
            return
        if error and not self.lease:
            self.calls.tell(None, Event("refused", self.peer, None, error))
        self._blame(code, text, error)
        if self.ask:
            self.calls.bring(e.Leave(self.id, Reason.FAILED))
        else:  # the broker does not know it
            self._leave(*self._last)

    def leave(self) -> None:
        """Wait for the peer to close: all is said."""
        if self.stage is not Stage.LEAVING:
            self._leave(None, None)

    def _leave(self, record: Record | None, error: Error | None) -> None:
        """Say a last record, and wait a second until the peer has read it and closed; of memory
        that it may use still, as long as it takes to let go of that."""
        if self.stage is Stage.LEAVING:
            return
        legacy, writes = False, False
        if self.lease and self.offering:
            legacy = self.offering.record.legacy
            writes = self.offering.awaits(self.lease) and isinstance(record, wire.Revoke)
        self.stage = Stage.LEAVING
        self.deadline = time.monotonic() + (self.conn.timeout if legacy or writes else min(1.0, self.conn.timeout))
        self._last, self._kept_back = (record, error), legacy or writes
        if not self._kept_back:
            self._end_lease(error)
        if record:
            self.say(record)
        self._check_gone()

    def late(self) -> None:
        """Note that the deadline is over."""
        if self.stage is not Stage.LEAVING:
            error = TimedOutError(f"the peer took longer than {self.conn.timeout:g} s ({self.peer})")
            return self.fail(wire.TOO_LATE, "you took too long over a step", error)
        if self._kept_back and self.offering and self.offering.record.legacy:
            self.may_be_open = True
            text = f"a consumer may still have the legacy memory open: not closed within {self.conn.timeout:g} s by {self.peer}"
            self._last = None, VerdictError(text, reason="still-open")
        self._ended(None, Reason.FAILED)

    def _ended(self, error: Error | None, reason: Reason) -> None:
        """Note that the connection is over."""
        if isinstance(error, LostError) and self.lease:
            error = self._meaning(error, self.lease)
        self._over(self._last[1] if self._kept_back else error, reason)

    def _meaning(self, error: LostError, lease: Lease) -> Error | None:
        """Return why the lease ends with its connection, or None if the consumer has left in order."""
        judged = self.offering is not None and self.offering.terms.verdict
        meaning = None if self.conn.left else lease._fence.lost(False, error)
        if meaning is None and judged:
            return VerdictError(f"the consumer left without a verdict ({self.peer})", reason="no-verdict")
        if isinstance(meaning, LostError) and lease._fence.says is None and not judged:
            return None  # an older peer, which does not say when it leaves in order
        return meaning

    def _over(self, error: Error | None, reason: Reason) -> None:
        """End the lease, and drop the connection."""
        self.stage = Stage.LEAVING
        if self.ask:
            self.calls.bring(e.Leave(self.id, reason))
        self._end_lease(error)
        self.dropped = True
        self.outbox.clear()
        self._check_gone()
        self.calls.drop(self)

    def drop(self) -> None:
        """Drop the connection at once."""
        if not self.dropped:
            self._over(self._last[1] if self._kept_back else None, Reason.FAILED)

    def _end_lease(self, error: Error | None) -> None:
        lease, offering = self.lease, self.offering
        if lease and offering and not lease.done:
            released = lease._fence.released or self.conn.left or lease.detached
            lease._finish(error)
            lease._fence.end(released)
            offering.is_released_by(lease)
            self.calls.tell(offering, Event("ended", self.peer, lease, error))

    def _check_gone(self) -> None:
        """Tell the broker when the lease has ended, and nothing of the memory is still to be sent."""
        if self.lease and self.lease.done and not self.outbox:
            self.calls.gone(self)
