"""The broker: a state machine that takes one event at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...wire import records as wire
from . import events as e
from .events import Action, Event, Reason
from .fencing import Fencing
from .names import Name, Names
from .refusals import CLOSED, misfit, no_offer, not_any_more
from .state import Offer, Session, State

PROGRESS_PAUSE = 0.25  # the shortest time between two reports of progress to one session


@dataclass(frozen=True)
class Options:
    """The questions that a broker asks the application."""

    consults: bool = False  # the application decides who gets an offer
    hides: bool = False  # a session that names no offer does not learn which there are


@dataclass(frozen=True)
class Waiter:
    """A session that waits for newer memory than that of the offer knows, or, if 0, for any."""

    session: int
    knows: int = 0


class Broker:
    """The state of one server. It is not safe for concurrent use."""

    def __init__(self, options: Options = Options()) -> None:
        self.options = options
        self.closed = False
        self._now = 0.0
        self._actions: list[Action] = []
        self._names = Names()
        self._offers: dict[int, Offer] = {}
        self._sessions: dict[int, Session] = {}
        self._fencing = Fencing()
        self._apply: dict[type, Callable[[Any], None]] = {
            e.Work: self._work, e.Claim: self._claim, e.Describe: self._describe, e.AwaitWriters: self._await_writers,
            e.Prepare: self._prepare, e.Publish: self._publish, e.Supersede: self._supersede, e.Retire: self._retire,
            e.Withdraw: self._withdraw, e.GiveUp: self._give_up, e.Tick: self._tick, e.Close: self._close,
            e.Ask: self._ask, e.Answer: self._answer, e.Map: self._map, e.Detach: self._detach, e.Revoke: self._revoke,
            e.Leave: self._leave, e.Gone: self._gone, e.Die: self._die, e.Lose: self._lose,
        }  # fmt: skip

    def step(self, now: float, event: Event) -> list[Action]:
        """Apply an event, and return what is to be done now. An event of an offer or a session
        that has ended does nothing, but that Prepare and Publish answer Taken."""
        apply = self._apply.get(type(event))
        if apply is None:
            raise TypeError(f"a broker takes events, not {type(event).__name__}")
        self._now = now
        apply(event)
        actions, self._actions = self._actions, []
        return actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    # Questions.

    def there(self) -> dict[str, int]:
        """Return the offers that are published or prepared, by name and in order."""
        return self._names.there()

    def named(self, text: str) -> int:
        """Return the offer that stands for a name, or is prepared for it, or 0."""
        return self.there().get(text, 0)

    def leases(self, offer: int) -> list[int]:
        """Return the sessions that have leases of an offer, in the order of their numbers."""
        o = self._offers.get(offer)
        return [s.id for s in o.live] if o else []

    def waiting(self) -> list[Waiter]:
        """Return the sessions that wait for an offer, oldest first."""
        waiting = [s for _, s in sorted(self._sessions.items()) if s.state in (State.QUEUED, State.BEHIND)]
        return [Waiter(s.id, s.knows.id if s.knows else 0) for s in waiting]

    def offers(self) -> int:
        """Return how many offers there are, with those that are over but have leases or fences."""
        return len(self._offers)

    def knows(self, text: str) -> bool:
        """Return whether a name stands for anything, or is expected to."""
        return self._names.get(text) is not None

    def awaits(self, process: int) -> bool:
        """Return whether an offer waits for the end of a process."""
        return self._fencing.awaits(process)

    # Names.

    def _work(self, event: e.Work) -> None:
        n = self._names.get(event.name)
        if not n or not n.makers:
            return
        n.done, n.total = event.done, event.total
        waiting = list(n.queue)
        if n.prepared:
            waiting += [s for s in n.prepared.live if s.state == State.GRANTED] + n.prepared.behind
        if n.current:
            waiting += n.current.behind
        for s in waiting:
            self._report(s, n)

    def _report(self, s: Session, n: Name) -> None:
        """Tell a session how far the offer is that it waits for, unless it has just heard."""
        if n.total and self._now - s.told >= PROGRESS_PAUSE:
            s.told = self._now
            self._do(e.Progress(s.id, n.done, n.total))

    def _close(self, event: e.Close) -> None:
        self.closed = True
        for _, s in sorted(self._sessions.items()):
            if not s.lease:
                self._refuse(s, CLOSED)
        for _, o in sorted(self._offers.items()):
            if not o.over:
                self._end(o, o.end_reason(event.restarting))

    # Offers.

    def _claim(self, event: e.Claim) -> None:
        o = Offer(event.offer, event.terms, event.terms.resumes)
        if self.closed:
            return self._do(e.Taken(o.id, closed=True))
        if not o.terms.resumes:
            if self._names.is_taken(o):
                return self._do(e.Taken(o.id))
            o.claimed = True
            self._names.at(o.name).makers += 1
        self._offers[o.id] = o

    def _describe(self, event: e.Describe) -> None:
        o = self._unpublished(event.offer)
        if o and not o.described:
            o.described = True
            o.terms = replace(o.terms, record=replace(event.record, name=o.name), memory=event.memory)
            self._fencing.add(o)

    def _unpublished(self, offer: int) -> Offer | None:
        """Return an offer that is neither published nor over, or None."""
        o = self._offers.get(offer)
        return o if o and not o.over and not o.published else None

    def _prepare(self, event: e.Prepare) -> None:
        o = self._unpublished(event.offer)
        if not o or o.terms.resumes or self._names.is_taken(o):
            return self._do(e.Taken(event.offer, self.closed))
        n = self._names.at(o.name)
        n.prepared = o
        for s in list(n.queue):
            self._attend(s)

    def _publish(self, event: e.Publish) -> None:
        o = self._unpublished(event.offer)
        if not o or not o.terms.resumes and self._names.is_taken(o):
            return self._do(e.Taken(event.offer, self.closed))
        n = self._names.at(o.name)
        if event.in_order and not o.terms.resumes and n.current and n.current.id > o.id:
            o.replaced = True
            return self._end(o, o.end_reason())
        o.published = True
        if o.terms.resumes:
            n.beside.append(o)
            return
        before, waiting = n.current, n.queue
        n.current, n.prepared, n.queue, n.done, n.total = o, None, [], 0, 0
        self._done_making(o, n)
        for s in o.live:
            if s.state == State.GRANTED:
                s.state = State.SERVED
                self._do(e.Complete(s.id))
        for s in waiting:
            self._attend(s)
        self._idle(o)
        for x in n.beside:
            self._tell_newer(x, o.generation)
        if before:
            self._replace(before, o.generation)

    def _done_making(self, o: Offer, n: Name) -> None:
        """Note that an offer is published, or has failed."""
        o.claimed = False
        n.makers -= 1
        if not n.makers:
            n.done = n.total = 0

    def _replace(self, o: Offer, by: int) -> None:
        """Take an offer's name away. Its leases go on."""
        o.replaced, o.newer = True, by
        self._do(e.Replaced(o.id))
        self._wake_behind(o)
        self._tell_newer(o, by)
        if o.terms.grace is not None:
            o.grace_at = self._now + o.terms.grace
            self._do(e.Timer(o.id, o.grace_at))
        self._end_if_done(o)

    def _tell_newer(self, o: Offer, by: int) -> None:
        """Tell the sessions that have an offer's memory that other memory has its place."""
        for s in o.live:
            if s.state != State.OVER:
                self._do(e.Newer(s.id, by))

    def _supersede(self, event: e.Supersede) -> None:
        o = self._offers.get(event.offer)
        if not o or o.over:
            return
        o.newer = event.by
        n = self._names.get(o.name)
        if not n or n.current is not o:
            return self._tell_newer(o, event.by)
        n.current = None
        self._names.tidy(o.name)
        self._replace(o, event.by)

    def _retire(self, event: e.Retire) -> None:
        o = self._offers.get(event.offer)
        if o and (o.terms.resumes or o.replaced):
            o.stands, o.replaced = False, True
            self._end_if_done(o)

    def _withdraw(self, event: e.Withdraw) -> None:
        o = self._offers.get(event.offer)
        if o and not o.over:
            self._end(o, o.end_reason(event.restarting))

    def _end(self, o: Offer, why: Reason, idle: bool = False) -> None:
        """End an offer: its name is free, and its leases end."""
        o.over, o.awaits = True, False
        self._do(e.Over(o.id, why, idle))
        self._unname(o)
        self._wake_behind(o)
        for s in list(o.live):
            self._end_session(s, why)
        self._finish(o)

    def _unname(self, o: Offer) -> None:
        """Take an offer off its name. If it was the last that was being made, those who wait for
        it are refused."""
        n = self._names.get(o.name)
        if not n:
            return
        n.beside = [x for x in n.beside if x is not o]
        n.current = None if n.current is o else n.current
        n.prepared = None if n.prepared is o else n.prepared
        if o.claimed:
            self._done_making(o, n)
        if not n.makers:
            for s in list(n.queue):
                self._refuse(s, self._no_offer(s.want.name if self.options.hides else o.name))
        self._names.tidy(o.name)

    def _wake_behind(self, o: Offer) -> None:
        """Attend again the sessions that wait behind an offer."""
        for s in list(o.behind):
            self._attend(s)

    def _end_if_done(self, o: Offer) -> None:
        """End an offer whose last lease has ended, or whose name is another's and that has none."""
        if o.over:
            return self._finish(o)
        if o.stands or not o.published:
            return
        if 0 < o.terms.leases <= o.ended or o.replaced and o.places == o.ended:
            self._end(o, o.end_reason())
        else:
            self._idle(o)

    def _idle(self, o: Offer) -> None:
        """Begin the time that an offer without leases goes on."""
        if o.terms.idle is not None and o.places == o.ended:
            o.idle_at = self._now + o.terms.idle
            self._do(e.Timer(o.id, o.idle_at))

    def _tick(self, event: e.Tick) -> None:
        o = self._offers.get(event.offer)
        if not o or o.over or not o.published:
            return
        if o.terms.grace is not None and o.replaced and self._now >= o.grace_at:
            self._end(o, o.end_reason())
        elif o.terms.idle is not None and o.places == o.ended and self._now >= o.idle_at:
            self._end(o, o.end_reason(), idle=True)

    def _no_offer(self, asked: str) -> wire.Refuse:
        return no_offer(asked, () if self.options.hides else self.there())

    # Sessions.

    def _ask(self, event: e.Ask) -> None:
        s = Session(event.session, event.peer, event.want, event.process, event.doubt)
        self._sessions[s.id] = s
        self._fencing.use(s.process)
        if self.closed:
            return self._refuse(s, CLOSED)
        self._attend(s)

    def _answer(self, event: e.Answer) -> None:
        s = self._sessions.get(event.session)
        if not s or s.state != State.ASKING or not s.asked or s.asked.id != event.offer:
            return
        allowed, s.asked = s.asked, None
        if event.hidden:
            self._refuse(s, self._no_offer(""))
        elif event.denied:
            self._forget(s)
            self._do(e.Refuse(s.id, denied=True))
        else:
            self._attend(s, allowed)

    def _attend(self, s: Session, allowed: Offer | None = None) -> None:
        """Find what a session without a lease gets now. allowed is the offer that the application
        has just admitted it to."""
        text = self._names.meant_by(s)
        exactly = s.want.reattach and not s.want.after  # otherwise it takes newer memory, too
        o = self._find_again(s, text) if s.want.reattach else None
        if not exactly and (not o or self._names.newer_than(o)):
            o = self._names.find(s, text)
        self._leave_lines(s)
        n = self._names.get(text)
        about = o or n and n.stands_for  # in place of memory to reattach that is not there: what has its name
        if about and self.options.consults and about is not allowed:
            s.state, s.asked = State.ASKING, about
            self._do(e.Consult(s.id, about.id))
        elif exactly and not o:
            self._refuse(s, not_any_more(text, s.want.reattach) if about else self._no_offer(s.want.name))
        elif o and s.knows_of(o):
            s.state, s.knows = State.BEHIND, o
            o.behind.append(s)
            self._wait(s, o.name)
        elif o:
            self._grant(s, o)
        elif n and n.makers:
            s.state, s.waits_for = State.QUEUED, text
            n.queue.append(s)
            self._wait(s, text)
        else:
            self._refuse(s, self._no_offer(s.want.name))

    def _find_again(self, s: Session, text: str) -> Offer | None:
        """Return the offer of the memory that a session wants again: one of which its process has a lease, or else the last."""
        there = [o for o in self._offers.values() if self._names.has_again(o, s, text)]
        return max(there, key=lambda o: (o.lease_of(s) is not None, o.id)) if there else None

    def _wait(self, s: Session, text: str) -> None:
        """Let a session wait for the next offer of a name."""
        self._do(e.Wait(s.id))
        if (n := self._names.get(text)) and n.makers:
            self._report(s, n)

    def _leave_lines(self, s: Session) -> None:
        """Take a session out of where it waits."""
        if n := self._names.get(s.waits_for):
            n.queue = [x for x in n.queue if x is not s]
        if s.knows:
            s.knows.behind = [x for x in s.knows.behind if x is not s]
        s.knows = s.asked = None

    def _grant(self, s: Session, o: Offer) -> None:
        """Give a session a lease, if the offer fits what it wants."""
        before = o.lease_of(s) if s.want.reattach and o.is_of(s.want.reattach) else None
        if no := misfit(o, s.want, placed=before is not None):
            return self._refuse(s, no)
        if before:
            s.heir_of, before.heir = before, s
        else:
            o.places += 1
        o.number += 1
        o.live.append(s)
        s.lease, s.state = o, State.SERVED if o.published else State.GRANTED
        self._do(e.Grant(s.id, o.id, o.number, not o.published))
        if by := self._names.newer_than(o):
            self._do(e.Newer(s.id, by))

    def _refuse(self, s: Session, no: wire.Refuse) -> None:
        """End a session without a lease."""
        self._forget(s)
        self._do(e.Refuse(s.id, because=no))

    def _forget(self, s: Session) -> None:
        """Drop a session without a lease."""
        self._leave_lines(s)
        self._drop(s)

    def _drop(self, s: Session) -> None:
        del self._sessions[s.id]
        self._fencing.unuse(s.process)

    def _map(self, event: e.Map) -> None:
        s = self._sessions.get(event.session)
        if not s or s.state == State.OVER:
            return
        if s.state == State.SERVED and s.lease and event.generation == s.lease.generation:
            s.state = State.MAPPED
            self._do(e.Confirm(s.id))
        else:
            self._end_session(s, Reason.FAILED)

    def _detach(self, event: e.Detach) -> None:
        if s := self._sessions.get(event.session):
            o = s.lease
            if not o or s.state != State.MAPPED or o.gives(s.want) != wire.READ_ONLY or o.terms.record.cursor_size:
                self._end_session(s, Reason.FAILED)

    def _revoke(self, event: e.Revoke) -> None:
        s = self._sessions.get(event.session)
        if s and s.lease:
            self._end_session(s, Reason.REVOKED)

    def _leave(self, event: e.Leave) -> None:
        if s := self._sessions.get(event.session):
            self._end_session(s, event.reason)

    def _end_session(self, s: Session, why: Reason) -> None:
        """End a session, unless it has ended."""
        if s.state == State.OVER:
            return
        was, s.state = s.state, State.OVER
        s.was_served = was >= State.SERVED
        self._do(e.End(s.id, why, s.was_served, was == State.MAPPED))
        if not s.lease:
            self._forget(s)

    def _gone(self, event: e.Gone) -> None:
        s = self._sessions.get(event.session)
        if not s or s.state != State.OVER or not s.lease:
            return
        o = s.lease
        o.live.remove(s)
        if s.bequeath():
            pass  # its process has the place still
        elif s.was_served:
            o.ended += 1
        else:
            o.places -= 1  # it leaves its place to another consumer
        if event.open:
            o.open = o.open.with_(s.peer)
        self._fencing.await_writer(o, s, event)
        self._drop(s)
        self._end_if_done(o)

    # Processes that may still write.

    def _die(self, event: e.Die) -> None:
        for o in self._fencing.die(event.process):
            self._finish(o)

    def _lose(self, event: e.Lose) -> None:
        for o in self._fencing.lose(event.process, event.doubt):
            self._finish(o)

    def _give_up(self, event: e.GiveUp) -> None:
        if o := self._offers.get(event.offer):
            o.gave_up = True
            self._finish(o)

    def _finish(self, o: Offer) -> None:
        """End an offer that is over, has no leases, and waits for no writer."""
        if not o.over or o.live or self._offers.get(o.id) is not o:
            return
        if o.gave_up:
            self._fencing.pass_all(o)
        if o.writers:
            return
        del self._offers[o.id]
        self._fencing.remove(o)
        self._do(e.Finished(o.id, o.open, o.unsure, o.doubt))
        if o.fenced:
            for _, waiting in sorted(self._offers.items()):
                self._unblock(waiting, o)

    def _await_writers(self, event: e.AwaitWriters) -> None:
        o = self._unpublished(event.offer)
        if not o:
            return
        o.awaits, o.earlier = False, [x for x in self._fencing.memory.get(o.terms.memory, []) if x is not o and self._names.is_earlier(x)]
        if not o.earlier:
            self._do(e.WritersDone(o.id))
        elif event.wait:
            o.awaits = True
        else:
            self._do(e.WritersDone(o.id, in_use=True, by=o.earlier[0].id))

    def _unblock(self, o: Offer, finished: Offer) -> None:
        """Note that an offer has finished for which another may wait."""
        if not o.awaits or finished not in o.earlier:
            return
        o.earlier.remove(finished)
        if finished.unsure.peers:
            o.awaits = False
            self._do(e.WritersDone(o.id, in_use=True, by=finished.id))
        elif not o.earlier:
            o.awaits = False
            self._do(e.WritersDone(o.id))
