"""The decisions of a server, under its lock: who gets which offer, and when that is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from ..errors import Error
from ..wire import records as wire
from ..wire.conn import cursor_file
from ..wire.peer import Peer, Policy, Process
from ..wire.records import READ_ONLY, READ_WRITE
from .lease import Event, Lease
from .loop import Loop
from .offering import Offering
from .session import LEASED, SENT, WAITING, Session

_LIST_RECORD = 4096  # bytes of a LISTED, at most


class Places(Loop):
    """The offers of a server, and what sessions ask of them."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Policy,
        timeout: float,
        mode: int,
        connections: int,
        connections_per_peer: int,
        authorize: Callable[[Peer, wire.Offer], None] | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        super().__init__(path, policy, timeout, mode, connections, connections_per_peer)
        self.authorize, self.on_event = authorize, on_event
        self.offerings: dict[str, Offering] = {}
        self.expected: set[str] = set()

    def decide(self, session: Session) -> None:
        """Give the offer to a consumer that has said ATTACH, make the consumer wait, or refuse it."""
        ask = session.ask
        assert ask
        offering = self._find(ask.name)
        if offering is None:
            if ask.name in self.expected:
                session.deadline = None
                return
            names = ", ".join(repr(n) for n in sorted(self.offerings)[:8])
            text = f"there is no offer {ask.name!r} here" if ask.name else f"say which offer: {names}" if names else "there is no offer here"
            return session.refuse(wire.NO_OFFER, text)
        if ask.after and offering.record.generation <= ask.after:
            session.deadline = None
            return
        code, text = self._objection(ask, offering.record)
        if not code and not self._authorized(session.peer, replace(offering.record, access=ask.access)):
            code, text = wire.NOT_ADMITTED, "the producer does not admit you to this offer"
        if code:
            return session.refuse(code, text, Error(f"{text} ({session.peer})"))
        self._admit(session, ask, offering)

    def _find(self, name: str) -> Offering | None:
        there = [o for o in self.offerings.values() if not o.ended and (not o.most or o.admitted < o.most)]
        if not name:
            return there[0] if len(there) == 1 else None
        return next((o for o in there if o.name == name), None)

    def _objection(self, ask: wire.Attach, o: wire.Offer) -> tuple[int, str]:
        """Why a consumer that asks this way does not get an offer, or code 0."""
        if ask.driver != o.driver:
            return wire.OTHER_DRIVER, f"the producer uses the {wire.driver_name(o.driver)} driver and the consumer {wire.driver_name(ask.driver)}"
        if ask.access > o.access:
            return wire.TOO_MUCH_ACCESS, f"{o.name!r} is offered read-only, and read-write was asked for"
        if ask.resume and (o.legacy or ask.resume != o.generation):
            return wire.OTHER_MEMORY, f"{o.name!r} is not the memory of generation {ask.resume}"
        if o.legacy and not ask.capabilities & wire.TAKES_LEGACY:
            return wire.NOT_KNOWN, f"{o.name!r} is offered by a legacy handle, and the consumer takes none"
        if o.data_size and not ask.capabilities & wire.TAKES_DATA:
            return wire.NOT_KNOWN, f"{o.name!r} has {o.data_size} bytes of application data, and the consumer takes {wire.MAX_DATA}"
        if o.cursor_size and not ask.capabilities & wire.TAKES_CURSORS:
            return wire.NOT_KNOWN, f"each consumer of {o.name!r} has cursors of its own, and this one takes none"
        return 0, ""

    def _authorized(self, peer: Peer, record: wire.Offer) -> bool:
        if self.authorize is None:
            return True
        try:
            self.authorize(peer, record)
        except Exception as e:
            self.tell(None, Event("refused", peer, None, e if isinstance(e, Error) else Error(f"{type(e).__name__}: {e}")))
            return False
        return True

    def _admit(self, session: Session, ask: wire.Attach, offering: Offering) -> None:
        offering.admitted += 1
        access = READ_WRITE if offering.record.legacy else ask.access
        lease = Lease(session, offering.admitted, access, Process(session.conn.sock, session.peer), ask.process)
        session.lease, session.offering = lease, offering
        self._leases.add(lease)
        fault = self._begin_cursors(lease, offering)
        if fault:
            return session.refuse(wire.BUSY, str(fault), fault)
        if offering.fence is not None and access == READ_WRITE:
            offering.writers = [w for w in offering.writers if not (w.done and w._fence.is_(offering.fence))] + [lease]
        self.tell(offering, Event("connected", session.peer, lease))
        if offering.on_lease:
            self._events.append((offering.on_lease, lease))
        session.send_offer(offering)

    def _begin_cursors(self, lease: Lease, offering: Offering) -> Error | None:
        """Make the memory that the lease alone has. Returns why it does not get any."""
        if not offering.cursors:
            return None
        try:
            lease._cursors = cursor_file(offering.cursors.size)
            offering.cursors.begin(lease, lease._cursors)
            return None
        except Exception as e:
            return e if isinstance(e, Error) else Error(f"{type(e).__name__}: {e}")

    def _reconsider(self) -> None:
        """Look anew at what those wait for that wait."""
        for session in list(self.sessions):
            if session.state == WAITING:
                self.decide(session)

    def list_to(self, session: Session) -> None:
        """Answer LIST: all offers of one instant, in as many records as it takes."""
        records = [o.record for _, o in sorted(self.offerings.items(), key=lambda x: x[0].encode()) if not o.ended]
        listings = [wire.Listing(r.driver, r.access, r.handle_type, r.pending, r.device, r.size, r.generation, r.data_size or len(r.data), r.name)
                    for r in records if self._authorized(session.peer, replace(r, access=READ_ONLY))]  # fmt: skip
        while True:
            some: list[wire.Listing] = []
            length = wire.HEADER.size + 8
            while listings and length + len(listings[0].pack()) <= _LIST_RECORD:
                length += len(listings[0].pack())
                some.append(listings.pop(0))
            session.say(wire.Listed(len(listings), tuple(some)))
            if not listings:
                return

    def lease_ended(self, session: Session, lease: Lease, error: Error | None) -> None:
        offering = session.offering
        if offering:
            offering.idle_since = time.monotonic()
            self.tell(offering, Event("ended", session.peer, lease, error))
            if offering.most and offering.admitted >= offering.most and not offering.leases:
                self.end(offering, "the offer was for so many consumers")
            self.settle(offering)

    def end(self, offering: Offering, why: str) -> None:
        """Give an offer to nobody any more, and take it back from all consumers."""
        offering.ended = True
        if self.offerings.get(offering.name) is offering:
            del self.offerings[offering.name]
            self._reconsider()
        replaced = any(o is offering for _, o in self.replaced)
        reason = wire.RESTARTING if self.restarting else wire.SUPERSEDED if replaced else wire.WITHDRAWN
        for session in list(self.sessions):
            if session.offering is offering and session.state in (SENT, LEASED):
                session.revoke(why, reason)
        self.settle(offering)

    def settle(self, offering: Offering) -> None:
        """Let go of the memory of an offer that has ended when nobody has it."""
        using = any(s.offering is offering and (s.outbox or s.lease and not s.lease._over) for s in self.sessions)
        if offering.over or not offering.ended or using:
            return
        offering.over = True
        self.replaced = [r for r in self.replaced if r[1] is not offering]
        if offering.data_fd >= 0:
            os.close(offering.data_fd)
            offering.data_fd = -1
        offering.memory.let_go(offering._token)
        self.changed.notify_all()

    def tell(self, offering: Offering | None, event: Event) -> None:
        """Have the functions of the application called with an event."""
        for f in (offering.on_event if offering else None, self.on_event):
            if f:
                self._events.append((f, event))
        self.changed.notify_all()
