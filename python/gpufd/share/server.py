"""Offering memory to other processes: :class:`Server`, :class:`Offering`, :func:`offer`.

A server has one thread, which speaks with all consumers and waits for none of them. Other threads
do all their work under the server's lock. The application's on_event and on_lease
are called on that thread, without the lock; authorize with it, on whichever thread decides.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import arguments
from ..errors import ClosedError, InUseError, UsageError, enough_files
from ..memory.base import Memory
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, Conn, check_path
from ..wire.peer import Peer, Policy, check_policy
from ..wire.records import READ_ONLY
from .fence import FENCED, RELEASED
from .lease import Event, Lease
from .offering import Cursors, Offering
from .places import Places
from .session import LEASED, LEAVING, SENT, WAITING, Session


class Server(Places):
    """Offers memory at a socket. Its maker closes it, by ``with`` or close.

    It listens from the first offer on. The socket's directory has to exist, and other users must
    not be able to write there.

    path            path of the socket
    policy          who may connect
    timeout         seconds that a consumer has for each step; None for no bound
    mode            permissions of the socket
    connections, connections_per_peer
                    how many there may be
    authorize       is called with the Peer and the Offer that it asked for; it refuses by raising
    on_event        is called with each Event, on the server's thread: it should be short
    """

    @enough_files()
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        policy: Policy = Policy(),
        timeout: float | None = DEFAULT_TIMEOUT,
        mode: int = 0o600,
        connections: int = 1024,
        connections_per_peer: int = 256,
        authorize: Callable[[Peer, wire.Offer], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        timeout = arguments.step(timeout)
        check_policy(policy)
        arguments.number("mode", mode, 0, 0o777)
        arguments.number("connections", connections)
        arguments.number("connections_per_peer", connections_per_peer)
        arguments.called("authorize", authorize)
        arguments.called("on_event", on_event)
        super().__init__(check_path(path), policy, timeout, mode, connections, connections_per_peer, authorize, on_event)
        _all.add(self)

    @property
    def path(self) -> str:
        """Path of the socket."""
        return self.listener.path

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Offers.

    def offer(
        self,
        name: str,
        memory: Memory,
        access: int = READ_ONLY,
        *,
        data: bytes = b"",
        verdict: bool = False,
        leases: int = 0,
        fence: int | None = None,
        pending: bool = False,
        synchronized: bool = False,
        cursors: Cursors | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_lease: Callable[[Lease], None] | None = None,
    ) -> Offering:
        """Offer memory under a name.

        access          the most that consumers may ask for
        data            up to 64 MiB of the application's own, for the consumers
        verdict         demand a verdict of each consumer: Attachment.report
        leases          end the offer when so many consumers have come and gone; 0 for no bound
        fence           RELEASED or FENCED: close waits until consumers that may write have ended
        pending         the data is not there yet: Offering.publish says when it is
        synchronized    do not wait for the device's work on the memory: that was done
        cursors         memory that each lease has of its own
        on_event, on_lease
                        are called with each Event, and each Lease, on the server's thread
        """
        options = {"verdict": verdict, "leases": leases, "fence": fence, "cursors": cursors, "on_event": on_event, "on_lease": on_lease}
        return self._offer(name, memory, access, data, pending, synchronized, options, None)

    def replace(
        self,
        name: str,
        memory: Memory,
        access: int = READ_ONLY,
        *,
        grace: float | None = None,
        data: bytes = b"",
        verdict: bool = False,
        leases: int = 0,
        fence: int | None = None,
        pending: bool = False,
        synchronized: bool = False,
        cursors: Cursors | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_lease: Callable[[Lease], None] | None = None,
    ) -> Offering:
        """Offer other memory under a name, in place of the memory that is offered now.

        At no instant is the name without an offer. Consumers keep the old memory, and are told
        that it is superseded. Those that have not gone after grace seconds are revoked; by
        default they are left alone. The old Offering is over when its last consumer has gone.
        The other arguments are those of offer.
        """
        options = {"verdict": verdict, "leases": leases, "fence": fence, "cursors": cursors, "on_event": on_event, "on_lease": on_lease}
        return self._offer(name, memory, access, data, pending, synchronized, options, (arguments.seconds("grace", grace),))

    @enough_files()
    def _offer(self, name: str, memory: Memory, access: int, data: Any, pending: Any, synchronized: Any,
               options: dict[str, Any], replaces: tuple[float] | None) -> Offering:  # fmt: skip
        self._check()
        if not isinstance(name, str) or not isinstance(memory, Memory):
            raise UsageError(f"an offer takes a name and Memory, not {name!r} and {type(memory).__name__}")
        wire.check_name(name)
        raw = arguments.buffer("data", data)
        check_options(options)
        wire.need_taken(len(raw), wire.MAX_LARGE_DATA)
        record = memory.offer(name, access, bytes(raw), arguments.flag("pending", pending))
        if options["fence"] is not None:
            record = replace(record, process=(record.process or 0) | wire.AWAITS_RELEASE)
        if not arguments.flag("synchronized", synchronized) and not pending:
            memory.finish()
        with self.changed:
            self._check()
            earlier = self.offerings.get(name)
            if earlier and replaces is None:
                raise InUseError(f"there is an offer {name!r} here: replace it, or end it", reason="name-taken")
            offering = Offering(self, memory, record, options)
            self.offerings[name] = offering
            self.expected.discard(name)
            if earlier and replaces is not None:
                self._supersede(earlier, offering, replaces[0])
            self._reconsider()
            self._start()
        self.wake()
        return offering

    def _supersede(self, earlier: Offering, offering: Offering, grace: float) -> None:
        earlier.ended = True
        self.replaced.append((None if grace == arguments.FOR_EVER else time.monotonic() + grace, earlier))
        for session in list(self.sessions):
            if session.offering is earlier and session.state in (SENT, LEASED):
                session.supersede(offering.record.generation)
        self.settle(earlier)

    def expect(self, name: str) -> None:
        """Have consumers that ask for a name wait until it is offered. See also working."""
        wire.check_name(arguments.text("a name", name))
        with self.changed:
            self._check()
            self.expected.add(name)
            self._start()

    def working(self, done: int = 0, total: int = 0) -> None:
        """Tell consumers that wait, for an offer or for its data, that this side is at work."""
        arguments.number("done", done)
        arguments.number("total", total)
        with self.changed:
            self._check()
            for session in list(self.sessions):
                waits = session.state == WAITING or session.state == SENT and session.offering and session.offering.pending
                if waits and not session.outbox:
                    session.say(wire.Progress(done, total))

    def leases(self, name: str) -> list[Lease]:
        """Return the leases of an offer that have not ended."""
        with self.changed:
            offering = self.offerings.get(name)
            return offering.leases if offering else []

    def close(self, why: str = "the producer has ended the offer", timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """End all offers and connections, wait for them, and remove the socket."""
        if self._pid != os.getpid():
            return
        self.not_by_thread()
        wait = arguments.bounded(arguments.seconds("a timeout", timeout))
        arguments.text("why", why)
        with self.changed:
            first, self.closed = not self.closed, True
            if not first:
                return
            self._unregister(self.listener.sock)
            self.listener.close()
            offerings = [*self.offerings.values(), *(o for _, o in self.replaced)]
            for offering in offerings:
                self.end(offering, why)
            for session in list(self.sessions):
                if session.state == WAITING:
                    session.refuse(wire.NO_OFFER, "the producer has ended")
                elif session.state != LEAVING:
                    session.leave()
            self.wake()
            self.changed.wait_for(lambda: not self.sessions or not self._thread, wait)
            for session in list(self.sessions):
                session.late()
                self.drop(session)
            thread = self._thread
        self.wake()
        if thread and thread is not threading.current_thread():
            thread.join(5)
        self._selector.close()
        self._wake.close()
        self._woken.close()
        try:
            for offering in offerings:
                if offering.fence is not None and offering.writers:
                    offering.close(why, 0)
        finally:
            for lease in list(self._leases):
                lease._fence.close()

    def shutdown(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Close for a successor, such as the next run of this program.

        Consumers learn that the producer is restarting: they go on with what they have mapped, and come back.
        """
        with self.changed:
            self.restarting = True
        self.close("the producer is restarting", timeout)

    def session_of(self, conn: Conn, peer: Peer) -> Session:
        return Session(self, conn, peer)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose server this is", reason="forked")
        if self.closed:
            raise ClosedError("the server was closed")

    def _forked(self) -> None:
        """In a child after a fork: let go of copies, and leave the parent's files alone."""
        self.changed = threading.Condition(threading.RLock())
        self.listener.forked()
        for sock in (self._wake, self._woken, *(s.conn.sock for s in self.sessions)):
            with contextlib.suppress(OSError):
                sock.close()
        for lease in list(self._leases):
            lease._drop_cursors()
        with contextlib.suppress(OSError):
            self._selector.close()
        self.sessions, self._thread = {}, None


def check_options(o: dict[str, Any]) -> None:
    """What an offer is made with."""
    arguments.flag("verdict", o["verdict"])
    arguments.number("leases", o["leases"])
    if o["fence"] is not None:
        arguments.one_of("fence", o["fence"], (RELEASED, FENCED), "RELEASED or FENCED")
    if not isinstance(o["cursors"], (Cursors, type(None))):
        raise UsageError(f"cursors are a gpufd.Cursors, not {type(o['cursors']).__name__}")
    arguments.called("on_event", o["on_event"])
    arguments.called("on_lease", o["on_lease"])


_all: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_all):
        server._forked()


def _at_exit() -> None:
    for server in list(_all):
        with contextlib.suppress(Exception):
            server.close("the producer has ended", 2.0)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
