"""The work of a server, under one lock: connections become sessions, their records become events for the
broker, and the broker's actions are performed."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..arguments import FOR_EVER
from ..errors import Error, InUseError, RefusedError, UsageError
from ..memory.base import Memory
from ..objects import NotCopied
from ..wire import records as wire
from ..wire.conn import Conn, close_later
from ..wire.listen import Listener
from ..wire.peer import Peer, Policy, Process, peer_of
from ..wire.records import READ_ONLY, READ_WRITE
from .broker import Broker, Options
from .broker import events as e
from .fence import Fence
from .lease import Event, Lease, LeaseCalls
from .loop import Loop
from .offering import OfferCalls, Offering, Terms, lists, told
from .session import Session, SessionCalls, Stage
from .writers import Writers

_MORE_WORDS = 64  # connections beyond the places that are told that these are taken
_TIME_IS_OVER = "the producer offers other memory, and the time for this one is over"
_NOT_ADMITTED = wire.Refuse(wire.NOT_ADMITTED, "the producer does not admit you to this offer")


@dataclass(frozen=True)
class Limits:
    """The bounds of a server's connections."""

    policy: Policy
    timeout: float  # seconds of a step
    connections: int
    connections_per_peer: int


class Serving(NotCopied):
    """The sessions and offers of a server, and the broker that decides about them."""

    def __init__(
        self, listener: Listener, limits: Limits, authorize: Callable[[Peer, wire.Offer], None] | None, on_event: Callable[[Event], None] | None
    ) -> None:
        self.limits, self.authorize, self.on_event = limits, authorize, on_event
        self.broker = Broker(Options(consults=authorize is not None, hides=authorize is not None))
        self.loop = Loop(listener, self)
        self.sessions: dict[int, Session] = {}
        self.offerings: dict[int, Offering] = {}
        self.expected: dict[str, int] = {}  # names, and the offers that claim them
        self.leases: weakref.WeakSet[Lease] = weakref.WeakSet()  # whose processes are watched
        self.closed = False
        self.restarting = False  # it closes for a successor
        self._number = 0  # the last number of an offer or a session
        self._events: deque[e.Event] = deque()
        self._stepping = False
        self._taken: set[int] = set()  # offers that cannot have their names
        self._timers: dict[int, tuple[float, e.Event]] = {}  # of offers: when, and what then
        self._writers = Writers(self.loop, self.bring)
        self._session_calls = SessionCalls(self.bring, self.tell, self._list_to, self._watch, self._process_of, self._gone, self._drop)
        self._offer_calls = OfferCalls(self.loop.changed, self.publish, self.withdraw, self.give_up, self.loop.not_by_thread)

    def _next(self) -> int:
        """Return a number for an offer or a session."""
        self._number += 1
        return self._number

    # The broker.

    def bring(self, event: e.Event) -> None:
        """Apply an event, and perform what follows. It runs under the lock. An event that an action
        brings waits until all actions before are performed."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                for action in self.broker.step(time.monotonic(), self._events.popleft()):
                    self._perform(action)
                if not self._events:
                    self._writers.watch(self.broker)
        finally:
            self._stepping = False
        self.loop.changed.notify_all()
        if not self.loop.is_current():
            self.loop.wake()

    def _perform(self, action: e.Action) -> None:
        session, offering = self.sessions.get(getattr(action, "session", 0)), self.offerings.get(getattr(action, "offer", 0))
        match action:
            case e.Taken(offer=number):
                self._taken.add(number)
            case e.Consult() if session and offering:
                self.loop.later(partial(self._consult, session, offering))
            case e.Grant() if session and offering:
                self._grant(session, offering, action)
            case e.Refuse() if session:
                self._refuse(session, action)
            case e.Replaced() if offering:
                self._begin_grace(offering)
            case e.Timer(at=at) if offering:
                self._timers[offering.id] = at, e.Tick(offering.id)
            case e.Over() if offering:
                offering.ended = True
                self._timers.pop(offering.id, None)
            case e.Finished() if offering:
                self._finish(offering, action)
            case _ if session:
                session.perform(action)

    # Sessions.

    def accepted(self, sock: socket.socket) -> None:
        """Begin a session, if there is a place for the peer."""
        peer, limits = peer_of(sock), self.limits
        session = Session(self._next(), Conn(sock, limits.timeout), peer, self._session_calls)
        of_peer = sum(1 for s in self.sessions.values() if (s.peer.pid, s.peer.uid) == (peer.pid, peer.uid))
        self.sessions[session.id] = session
        self._watch(session)
        try:
            limits.policy.check(peer)
        except RefusedError as error:
            session.fail(wire.NOT_ADMITTED, "the producer does not admit you", error)
        else:
            if len(self.sessions) > limits.connections or of_peer >= limits.connections_per_peer:
                session.fail(wire.BUSY, "all places are taken", Error(f"all places are taken ({peer})"))
        if session.stage is Stage.LEAVING and len(self.sessions) > limits.connections + _MORE_WORDS:
            session.drop()  # a peer that hears why takes a place, too

    def _ready(self, session: Session, events: int) -> None:
        if events & selectors.EVENT_WRITE and not session.dropped:
            session.flush()
            self.loop.changed.notify_all()
        if events & selectors.EVENT_READ and not session.dropped:
            session.read()

    def _watch(self, session: Session) -> None:
        """Wait for what a session waits for."""
        if session.conn.foul:
            self.loop.unwatch(session.conn.sock)
        elif not session.dropped:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.outbox else 0)
            self.loop.watch(session.conn.sock, events, partial(self._ready, session))

    def _process_of(self, session: Session) -> int:
        """Return a number for the process of a session: its own, or that of a lease of the same process, whose place it shares when it reattaches."""
        again = session.ask.reattach if session.ask and session.peer.pid else 0
        for s in self.sessions.values():
            if again and s.lease and s.offering and s.offering.record.generation == again and s.peer == session.peer and s.lease._fence.process.lives():
                return s.process
        return session.id

    def _gone(self, session: Session) -> None:
        """Tell the broker that a lease is over."""
        lease = session.lease
        if lease and not session.told_gone:
            session.told_gone = True
            self._writers.add(session.process, lease)
            self.bring(e.Gone(session.id, session.sent_fds, lease._fence.released, session.may_be_open))

    def _drop(self, session: Session) -> None:
        """Forget a session, whose connection is over."""
        if not self.sessions.pop(session.id, None):
            return
        self.loop.unwatch(session.conn.sock)
        if self.loop.listener.no_fds:  # nothing in the queue can make closing wait
            session.conn.sock.close()
        else:
            close_later(session.conn.sock)
        session.conn.hears = lambda record: None
        if session.lease:
            session.lease._hang_up()
        self.loop.changed.notify_all()

    def _grant(self, session: Session, offering: Offering, grant: e.Grant) -> None:
        """Tell the application of a lease, and send the offer."""
        ask = session.ask
        assert ask
        access = READ_WRITE if offering.record.legacy else ask.access
        fence = Fence(session.peer, Process(session.conn.sock, session.peer), ask.process)
        calls = LeaseCalls(partial(self._revoke, session), session.say, lambda: bool(session.outbox))
        lease = Lease(grant.number, access, fence, self.loop.changed, calls)
        session.lease, session.offering = lease, offering
        offering.held.append(lease)
        self.leases.add(lease)
        if doubt := fence.doubt():
            self.bring(e.Lose(session.process, doubt))
        fault = offering.begin_cursors(lease)
        if fault:
            return session.fail(wire.BUSY, str(fault), fault)
        self.tell(offering, Event("connected", session.peer, lease))
        if offering.terms.on_lease:
            self.loop.later(partial(offering.terms.on_lease, lease))
        session.send_offer(offering, lease, grant.pending)

    def _refuse(self, session: Session, action: e.Refuse) -> None:
        """Turn a session away that gets no lease."""
        no = action.because or _NOT_ADMITTED
        known = action.denied or no.code == wire.NO_OFFER  # the application has heard of it, or has nothing to do with it
        session.refuse(no, None if known else Error(f"{no.text} ({session.peer})"))

    def _revoke(self, session: Session, why: str) -> None:
        session.revoked = why
        self.bring(e.Revoke(session.id))

    def tell(self, offering: Offering | None, event: Event) -> None:
        """Let the thread call the functions of the application with an event."""
        for f in (offering.terms.on_event if offering else None, self.on_event):
            if f:
                self.loop.later(partial(f, event))
        self.loop.changed.notify_all()

    # The application's decisions, on the thread and without the lock.

    def _consult(self, session: Session, offering: Offering) -> None:
        """Ask whether a consumer may have an offer."""
        assert session.ask
        admitted = self._admits(session.peer, replace(offering.record, access=session.ask.access))
        with self.loop.changed:
            self.bring(e.Answer(session.id, offering.id, denied=not admitted))

    def _admits(self, peer: Peer, record: wire.Offer) -> bool:
        if self.authorize is None:
            return True
        try:
            self.authorize(peer, record)
        except Exception as error:
            self.tell_refused(peer, error)
            return False
        return True

    def tell_refused(self, peer: Peer, error: Exception) -> None:
        with self.loop.changed:
            self.tell(None, Event("refused", peer, None, told(error)))

    def _list_to(self, session: Session) -> None:
        """Answer LIST: all offers of one instant."""
        there = [self.offerings[number] for number in self.broker.there().values()]
        offers = [(o.record, o.listing()) for o in there]
        if self.authorize is None:
            self._say_list(session, [listing for _, listing in offers])
        else:
            self.loop.later(partial(self._list_admitted, session, offers))

    def _list_admitted(self, session: Session, offers: Sequence[tuple[wire.Offer, wire.Listing]]) -> None:
        admitted = [listing for r, listing in offers if self._admits(session.peer, replace(r, access=READ_ONLY))]
        with self.loop.changed:
            if session.stage is not Stage.LEAVING:
                self._say_list(session, admitted)

    def _say_list(self, session: Session, offers: Sequence[wire.Listing]) -> None:
        for record in lists(offers):
            session.say(record)
        session.leave()

    # Offers. All of this runs under the lock.

    def offer(self, memory: Memory, record: wire.Offer, terms: Terms, replaces: bool, grace: float | None) -> Offering:
        """Make an offer, and publish or prepare it."""
        if self._stepping:
            raise UsageError("cursors are begun while the server is at work: make the offer later")
        offering = Offering(self._next(), memory, record, terms, self._offer_calls)
        offering.grace = grace
        self.offerings[offering.id] = offering
        fence = e.Fence(terms.fence or 0)
        try:
            self._try(e.Claim(offering.id, e.Terms(offering.record, record.generation, fence, terms.leases, replaces=replaces)))
        except Error:
            del self.offerings[offering.id]
            offering.let_go()
            raise
        self.bring(e.Describe(offering.id, offering.record, record.generation))
        self._try(e.Prepare(offering.id) if offering.pending else e.Publish(offering.id))
        if expected := self.expected.pop(offering.name, 0):
            self.bring(e.Withdraw(expected))
        self.loop.start()
        return offering

    def _try(self, event: e.Claim | e.Prepare | e.Publish) -> None:
        """Bring an event, and raise if it is answered by Taken."""
        self.bring(event)
        if event.offer in self._taken:
            self._taken.clear()
            name = self.offerings[event.offer].name
            raise InUseError(f"there is an offer {name!r} here, or one is being made: replace it, or end it", reason="name-taken")

    def publish(self, offering: Offering) -> None:
        """Say that the data of a pending offer is there."""
        offering.record, offering.pending = replace(offering.record, pending=False), False
        self._try(e.Publish(offering.id))

    def withdraw(self, offering: Offering, why: str) -> None:
        """Give an offer to nobody any more, and take it back from all consumers."""
        if not offering.ended:
            offering.why = why
            self.bring(e.Withdraw(offering.id, self.restarting))

    def give_up(self, offering: Offering) -> None:
        """End the wait for those that may still write an offer's memory."""
        self._writers.look()
        self.bring(e.GiveUp(offering.id))

    def _begin_grace(self, offering: Offering) -> None:
        """Begin the time that the leases of an offer go on, which the offer that replaces it says."""
        by = self.offerings.get(self.broker.named(offering.name))
        if by and by.grace is not None:
            self._timers[offering.id] = time.monotonic() + by.grace, e.Withdraw(offering.id)

    def _finish(self, offering: Offering, finished: e.Finished) -> None:
        """Let go of an offer's memory, and of the processes that it has waited for."""
        del self.offerings[offering.id]
        offering.let_go(finished)
        self._writers.forget(self.broker)

    def expect(self, name: str) -> None:
        """Let consumers that ask for a name wait until it is offered."""
        if name not in self.expected:
            self.expected[name] = number = self._next()
            nothing = wire.Offer(0, 0, 0, b"", 0, 0, 0, 0, 0, 0, name)
            self.bring(e.Claim(number, e.Terms(nothing, number, replaces=True)))
            if number in self._taken:  # it is being made
                self._taken.clear()
                del self.expected[name]
        self.loop.start()

    def working(self, done: int, total: int) -> None:
        """Tell consumers that wait how far this side is."""
        if not total:  # the broker has nothing to report
            for session in list(self.sessions.values()):
                if session.waits:
                    session.progress(done, total)
            return
        for name in {*self.expected, *(o.name for o in self.offerings.values() if o.pending)}:
            self.bring(e.Work(name, done, total))

    # Times.

    def next_time(self) -> float | None:
        """Return when to look at the time again, or None."""
        times = [t for s in self.sessions.values() for t in (s.deadline, s.kept_until) if t is not None and t < FOR_EVER]
        return min((*times, *(at for at, _ in self._timers.values())), default=None)

    def look_at_times(self) -> None:
        """End what has taken too long."""
        now = time.monotonic()
        for session in list(self.sessions.values()):
            if session.deadline is not None and session.deadline <= now and not session.dropped:
                session.late()
            elif session.kept_until is not None and session.kept_until <= now:
                session.kept_enough()
        for number, (at, event) in list(self._timers.items()):
            if at <= now:
                del self._timers[number]
                if isinstance(event, e.Withdraw):
                    self.offerings[number].why = _TIME_IS_OVER
                self.bring(event)

    # The end.

    def is_over(self) -> bool:
        """Return whether the thread may end."""
        return self.closed and not self.sessions

    def close(self, why: str, wait: float | None) -> None:
        """End all offers and connections, and wait for the connections."""
        self.loop.stop_accepting()
        for offering in self.offerings.values():
            if not offering.ended:
                offering.why = why
        self.bring(e.Close(self.restarting))
        for session in list(self.sessions.values()):
            session.leave()
        self.loop.wake()
        self.loop.changed.wait_for(lambda: not self.sessions or not self.loop.runs, wait)
        for session in list(self.sessions.values()):
            session.late()
            session.drop()

    def forked(self) -> None:
        """Let go of copies in a child after a fork, and leave the parent's files alone."""
        self.loop.forked()
        self._offer_calls.changed = self.loop.changed
        for session in self.sessions.values():
            with contextlib.suppress(OSError):
                session.conn.sock.close()
        for lease in list(self.leases):
            lease._drop_cursors()
        for offering in self.offerings.values():
            offering.held.clear()
            offering.let_go()
        self.sessions, self.offerings, self._timers = {}, {}, {}
        self.broker = Broker()
