"""A consumer's conversation, from ATTACH to MAPPED: docs/wire.md, "Conversation"."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .. import arguments
from ..errors import DriverError, Error, LeaseEndedError, LostError, MismatchError, RefusedError, UsageError, WireError, printable, refusal
from ..memory.base import Memory
from ..memory.drivers import memory_class
from ..memory.reservation import Reservation
from ..wire import records as wire
from ..wire.conn import close_all, dial, read_data
from ..wire.peer import Peer, Policy, Process, check_policy
from ..wire.records import READ_ONLY, READ_WRITE, Offer, Record, need
from .kept import check_labels, kept_of

GRANULE = 2 << 20  # the granularity of all devices that are known


@dataclass(frozen=True)
class Options:
    """The options of attach, kept to attach again."""

    path: str
    name: str
    access: int
    device: int | None
    driver: int
    timeout: float
    within: float | None
    policy: Policy
    max_chunks: int
    max_size: int | None
    max_data: int
    max_cursors: int
    newer_than: int
    wait: bool
    legacy: bool
    reoffer: bool
    at: Reservation | None
    labels: Mapping[str, str]
    connected: Callable[[Peer], None]
    opener: Callable[[Offer], Memory] | None

    def check(self) -> None:
        arguments.one_of("access", self.access, (READ_ONLY, READ_WRITE), "READ_ONLY or READ_WRITE")
        if arguments.text("a name", self.name):
            wire.check_name(self.name)
        for what, value in (("device", self.device), ("max_size", self.max_size)):
            if value is not None:
                arguments.number(what, value)
        for what, value in (("max_chunks", self.max_chunks), ("max_data", self.max_data), ("newer_than", self.newer_than)):
            arguments.number(what, value)
        arguments.number("max_cursors", self.max_cursors, 0, wire.MAX_CURSORS)
        for what, value in (("wait", self.wait), ("legacy", self.legacy), ("reoffer", self.reoffer)):
            arguments.flag(what, value)
        arguments.called("connected", self.connected, optional=False)
        arguments.called("opener", self.opener)
        check_policy(self.policy)
        if self.wait and not self.newer_than:
            raise UsageError("wait without newer_than: there is nothing to wait for")
        if self.legacy and self.reoffer:
            raise UsageError("legacy memory cannot be offered on")
        if not isinstance(self.at, (Reservation, type(None))):
            raise UsageError(f"at is a gpufd.Reservation, not {arguments.short(self.at)}")
        if self.at and self.legacy:
            raise UsageError("legacy memory has the address that the driver says, and cannot be mapped at a reservation")
        if self.at:
            self.at.check(self.driver)


@dataclass(frozen=True)
class Again:
    """Memory that was detached, and is to be mapped where it was.

    offer   that of the memory
    newest  other memory may come, if the name stands for it
    asks    the producer takes field 32770
    fits    is called with the offer before it is mapped, and raises what is against that
    """

    memory: Memory
    offer: Offer
    newest: bool
    asks: bool
    fits: Callable[[Offer], object]

    @property
    def generation(self) -> int:
        """The generation to ask for, or 0."""
        return self.offer.generation if self.asks else 0

    @property
    def same(self) -> Offer | None:
        """The offer of the memory, if no other may come."""
        return None if self.newest else self.offer


class Attaching:
    """The conversation from ATTACH to MAPPED.

    resumes     memory that is mapped already, or is detached and stays so
    again       memory that is detached, and is to be mapped
    takes       capabilities of the producer, which its first record says
    """

    def __init__(self, o: Options, resumes: tuple[Offer, Memory] | None = None, again: Again | None = None) -> None:
        self.o, self.resumes, self.again = o, resumes, again
        self.takes: int | None = None
        self._unmap: Callable[[], None] = lambda: None  # undoes map
        self.until = None if o.within is None else time.monotonic() + o.within
        self.conn, self.peer = dial(o.path, o.policy, o.timeout if o.within is None else min(o.timeout, max(o.within, 0.001)))
        self.aside: list[Record] = []
        self.conn.hears = self.aside.append
        self.process = Process(self.conn.sock, self.peer)
        self.offer: Offer | None = None
        self.fds: list[int] = []
        self.cursors: list[int] = []  # the descriptor of what this lease alone has
        self.mapped = False

    def run(self) -> tuple[Offer, Memory]:
        try:
            self.o.connected(self.peer)
            offer = self.take()
            memory = self.map(offer)
            close_all(self.fds)  # the mapping keeps the memory
            self.fds = []
            self.await_published(offer)
            self.say(wire.Mapped(offer.generation))
            self.mapped = True
            while offer.legacy and not self.hears(wire.Confirm, offer):
                pass
            return offer, memory
        except BaseException as e:
            self.give_up(e)
            raise

    def give_up(self, error: BaseException) -> None:
        """Leave nothing behind, and tell a producer that is there what failed."""
        self._unmap()
        close_all(self.fds + self.cursors)
        self.fds, self.cursors = [], []
        if isinstance(error, WireError) and self.mapped and not isinstance(error, LostError):
            self.conn.farewell(wire.Refuse(error.code, str(error)))
        elif isinstance(error, LeaseEndedError):
            with contextlib.suppress(Error, OSError):
                self.conn.send(wire.Farewell(), deadline=self.conn.shortly())
        elif not getattr(error, "_of_peer", False) and not isinstance(error, LostError):
            self.conn.farewell(wire.Verdict(False, str(error) or type(error).__name__), waits=isinstance(error, Exception))  # an interrupt is to end this at once
        self.conn.close()
        self.process.close()

    def deadline(self) -> float:
        step = time.monotonic() + self.o.timeout
        return step if self.until is None else min(step, self.until)

    def say(self, record: Record) -> None:
        """Send a record. A producer that has hung up may have said why."""
        try:
            self.conn.send(record, deadline=self.deadline())
        except LostError:
            while True:
                self.hear()

    def hear(self, max_fds: int = 0) -> tuple[Record, list[int]]:
        """The next record, with its descriptors; raises what ends the conversation."""
        record, fds = self.conn.receive(max_fds, self.deadline())
        if self.takes is None:
            self.takes = int(getattr(record, "capabilities", 0))
        error = ending(record)
        if error is None:
            return record, fds
        try:
            raise error
        finally:
            del error  # the error has this frame: no cycle, which would keep all its callers have

    def take(self) -> Offer:
        """Ask for the offer and take its descriptors."""
        o = self.o
        takes = wire.TAKES_DATA | (wire.TAKES_LEGACY if o.legacy else 0) | (wire.TAKES_CURSORS if o.max_cursors else 0)
        again = self.again.generation if self.again else 0
        after = again if self.again and self.again.newest else o.newer_than if o.wait else 0
        ask = wire.Attach(o.driver, o.access, o.name, takes,
                          resume=self.resumes[0].generation if self.resumes else 0,
                          after=after, process=process_flags(o.driver), reattach=again)  # fmt: skip
        self.say(ask)
        last: Offer | None = None
        while last is None or not last.legacy and not last.resume and len(self.fds) < last.chunks:
            record, fds = self.hear(wire.MAX_FDS)
            if isinstance(record, wire.Progress):
                continue
            if not isinstance(record, Offer):
                raise WireError(f"{record.type_name()} where an offer is expected", reason="protocol")
            self.fds += fds  # ours to close, whatever the record says
            record.check()
            need(not self.fds or not record.legacy, "descriptors and a legacy handle in one offer")
            if last is None:
                self.check_first(record, ask)
                self.offer = record
            else:
                record.continues(last)
            last = record
        offer = self.offer
        assert offer is not None
        if offer.data_size:
            self.fds += self.take_file(wire.Data, "application data")
            offer = replace(offer, data=read_data(self.fds[-1], offer.data_size))
            close_all([self.fds.pop()])
        if offer.cursor_size:
            self.cursors = self.take_file(wire.Cursors, "cursors")
            there = os.fstat(self.cursors[0]).st_size
            need(there == offer.cursor_size, f"{there} bytes of cursors came, and the offer says {offer.cursor_size}")
        self.conn.take_no_fds()
        return offer

    def check_first(self, offer: Offer, ask: wire.Attach) -> None:
        need(offer.first == 0, f"an offer that begins with chunk {offer.first}")
        need(ask.name in ("", offer.name), f"an offer of another name: {offer.name!r}")
        need(offer.driver == ask.driver,
             f"the producer uses the {wire.driver_name(offer.driver)} driver and this program {wire.driver_name(ask.driver)}")  # fmt: skip
        need(offer.access >= ask.access, "less access than was asked for")
        need(offer.resume == ask.resume, "an offer of memory that is mapped here already, where it is not, or the other way round")
        need(not offer.legacy or ask.capabilities & wire.TAKES_LEGACY, "an offer by a legacy handle, to a consumer that takes none")
        o = self.o
        beyond = o.max_size and (offer.size > o.max_size or offer.chunks * offer.chunk_size - o.max_size >= GRANULE)
        if offer.chunks > o.max_chunks or beyond:
            chunks = f"{offer.chunks} chunk{'s' if offer.chunks != 1 else ''}"
            raise MismatchError(f"an offer of {offer.size} bytes in {chunks} of {offer.chunk_size} is more than is taken here", reason="too-large")
        wire.need_taken(len(offer.data) or offer.data_size, o.max_data)
        if offer.cursor_size > o.max_cursors:
            raise MismatchError(f"{offer.cursor_size} bytes of cursors are more than the {o.max_cursors} that are taken here", reason="too-large")
        if o.newer_than and offer.generation <= o.newer_than:
            raise MismatchError(f"generation {offer.generation} is offered, which is not newer than {o.newer_than}", reason="stale")
        same = self.resumes[0] if self.resumes else self.again and self.again.same
        if same and offer.generation != same.generation:
            raise RefusedError(f"{offer.name!r} is not the memory of generation {same.generation} any more: take the newest", reason="other-memory")
        if same and offer.memory() != same.memory():
            raise WireError("the memory that is offered is not what is mapped here, though its generation is", reason="protocol")

    def take_file(self, kind: type[Record], what: str) -> list[int]:
        """The descriptor that comes behind the offer in a record of that kind."""
        while True:
            record, fds = self.hear(1)
            if isinstance(record, kind):
                return fds
            close_all(fds)
            need(isinstance(record, wire.Progress), f"{record.type_name()} where {what} is expected")

    def map(self, offer: Offer) -> Memory:
        if self.resumes:
            return self.resumes[1]
        if self.again:
            if offer.legacy:
                raise MismatchError("legacy memory has the address that the driver says, and cannot be mapped where other memory was", reason="handle")
            if self.o.labels:
                kept = kept_of(offer)
                check_labels(kept.name, kept.labels, self.o.labels)
            self.again.fits(offer)
            self._unmap = self.again.memory.attach_again(offer, self.fds, self.o.reoffer)
            return self.again.memory
        if self.o.opener and offer.legacy:
            return self._ours(self.o.opener(offer))
        try:
            memory = memory_class(offer.driver).take(offer, self.fds, self.o.access, self.o.device, self.o.reoffer, self.o.at)
        except (DriverError, MismatchError) as e:
            if e.reason in ("descriptor", "not-imported"):
                e._offer = offer
            raise
        return self._ours(memory)

    def _ours(self, memory: Memory) -> Memory:
        self._unmap = functools.partial(memory.close, force=True)
        return memory

    def await_published(self, offer: Offer) -> None:
        """Wait for the data of a pending offer."""
        while offer.pending:
            if self.hears(wire.Publish, offer):
                return

    def hears(self, wanted: type[wire._Generation], offer: Offer) -> bool:
        """Return whether the next record is that one, of this offer; PROGRESS may come first."""
        record, _ = self.hear()
        if isinstance(record, wanted):
            need(record.generation == offer.generation,
                 f"{wanted.type_name()} of generation {record.generation}, not that of the offer")  # fmt: skip
            return True
        if not isinstance(record, wire.Progress):
            raise wire.unexpected(record, wanted.type_name())
        return False


_ENDS = {
    wire.WITHDRAWN: ("withdrawn by the producer", "withdrawn"),
    wire.SUPERSEDED: ("the producer offers newer memory", "superseded"),
    wire.RESTARTING: ("the producer is restarting", "restarting"),
}


def ended(record: wire.Revoke) -> LeaseEndedError:
    """The error of a REVOKE. A reason that this version does not know is a revocation."""
    if record.reason in _ENDS:
        text, reason = _ENDS[record.reason]
        return LeaseEndedError(text, reason=reason)
    return LeaseEndedError("revoked by the producer" + (f": {printable(record.text)}" if record.text else ""), reason="revoked")


def ending(record: Record) -> Error | None:
    """The error that a record ends the conversation with, or None."""
    error: Error | None = None
    if isinstance(record, wire.Refuse):
        error = refusal(record.code, printable(record.text))
    elif isinstance(record, wire.Revoke):
        error = ended(record)
    if error:
        error._of_peer = True  # type: ignore[attr-defined]
    return error


def process_flags(driver: int) -> int:
    """The flags of this process in ATTACH."""
    if driver == wire.SOFT:
        return 0
    from ..memory import cuda as _cuda

    return _cuda.process_flags()
