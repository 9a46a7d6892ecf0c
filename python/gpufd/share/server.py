"""Offering memory to other processes: :class:`Server`.

A server has one thread, which speaks with all consumers and waits for none of them. Other threads
do all their work under the server's lock. The application's functions are called on that thread,
without the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .. import arguments
from ..arguments import FOR_EVER
from ..errors import ClosedError, UsageError, enough_files
from ..memory.base import Memory
from ..objects import NotCopied, shortened
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, check_path
from ..wire.listen import Listener
from ..wire.peer import Peer, Policy, check_policy
from ..wire.records import READ_ONLY, READ_WRITE
from .lease import Event, Lease
from .offering import Cursors, Offering, Terms
from .serving import Limits, Serving


class Server(NotCopied):
    """Offers memory at a socket. Its maker closes it, by ``with`` or close.

    It listens from the first offer on. The socket's directory has to exist, and other users must
    not be able to write there.

    path            path of the socket
    policy          who may connect
    timeout         seconds that a consumer has for each step; None for no bound
    mode            permissions of the socket
    connections, connections_per_peer
                    how many there may be
    authorize       is called with the Peer and the Offer that it asked for, on the server's thread; it
                    refuses by raising
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
        self._pid = os.getpid()
        limits = Limits(policy, timeout, connections, connections_per_peer)
        self._serving = Serving(Listener(check_path(path), mode), limits, authorize, on_event)
        _all.add(self)

    @property
    def path(self) -> str:
        """Path of the socket."""
        return self._serving.loop.listener.path

    def __repr__(self) -> str:
        n = len(self._serving.offerings)
        state = "closed" if self._serving.closed else f"{n} offer{'s' if n != 1 else ''}"
        return f"<gpufd.Server {shortened(self.path)!r}, {state}>"

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
        terms = Terms(verdict, leases, fence, cursors, on_event, on_lease)
        return self._offer(name, memory, access, data, pending, synchronized, terms)

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
        terms, wait = Terms(verdict, leases, fence, cursors, on_event, on_lease), arguments.seconds("grace", grace)
        return self._offer(name, memory, access, data, pending, synchronized, terms, replaces=True, grace=None if wait == FOR_EVER else wait)

    @enough_files()
    def _offer(self, name: str, memory: Memory, access: int, data: Any, pending: Any, synchronized: Any,
               terms: Terms, replaces: bool = False, grace: float | None = None) -> Offering:  # fmt: skip
        self._check()
        if not isinstance(name, str) or not isinstance(memory, Memory):
            raise UsageError(f"an offer takes a name and Memory, not {name!r} and {type(memory).__name__}")
        wire.check_name(name)
        raw = arguments.buffer("data", data)
        wire.need_taken(len(raw), wire.MAX_LARGE_DATA)
        record = memory.offer(name, access, bytes(raw), arguments.flag("pending", pending))
        memory.offered_to_write = memory.offered_to_write or record.access == READ_WRITE
        if terms.fence is not None:
            record = replace(record, process=(record.process or 0) | wire.AWAITS_RELEASE)
        if not arguments.flag("synchronized", synchronized) and not pending:
            memory.finish()
        with self._lock:
            self._check()
            return self._serving.offer(memory, record, terms, replaces, grace)

    def expect(self, name: str) -> None:
        """Let consumers that ask for a name wait until it is offered. See also working."""
        wire.check_name(arguments.text("a name", name))
        with self._lock:
            self._check()
            self._serving.expect(name)

    def working(self, done: int = 0, total: int = 0) -> None:
        """Tell consumers that wait, for an offer or for its data, that this side is at work."""
        arguments.number("done", done)
        arguments.number("total", total)
        with self._lock:
            self._check()
            self._serving.working(done, total)

    def leases(self, name: str) -> list[Lease]:
        """Return the leases of an offer that have not ended."""
        with self._lock:
            offering = self._serving.offerings.get(self._serving.broker.named(name))
            return offering.leases if offering else []

    def close(self, why: str = "the producer has ended the offer", timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """End all offers and connections, wait for them, and remove the socket."""
        if self._pid != os.getpid():
            return
        serving = self._serving
        serving.loop.not_by_thread()
        wait = arguments.bounded(arguments.seconds("a timeout", timeout))
        arguments.text("why", why)
        with self._lock:
            if serving.closed:
                return
            serving.closed, offerings = True, list(serving.offerings.values())
            serving.close(why, wait)
        serving.loop.close()
        try:
            for offering in offerings:
                if offering.terms.fence is not None:
                    offering.close(why, 0)
        finally:
            for lease in list(serving.leases):
                lease._fence.close()

    def shutdown(self, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Close for a successor, such as the next run of this program.

        Consumers learn that the producer is restarting: they go on with what they have mapped, and come back.
        """
        arguments.seconds("a timeout", timeout)
        self._serving.loop.not_by_thread()
        with self._lock:
            self._serving.restarting = True
        self.close("the producer is restarting", timeout)

    @property
    def _lock(self) -> threading.Condition:
        return self._serving.loop.changed

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError(f"process {os.getpid()} was forked from {self._pid}, whose server this is", reason="forked")
        if self._serving.closed:
            raise ClosedError("the server was closed")


_all: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_all):
        server._serving.forked()


def _at_exit() -> None:
    for server in list(_all):
        with contextlib.suppress(Exception):
            server.close("the producer has ended", 2.0)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
