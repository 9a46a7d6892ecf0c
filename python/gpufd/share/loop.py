"""The thread of a server, which speaks with all consumers and waits for none of them."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..arguments import FOR_EVER
from ..errors import Error, RefusedError, UsageError
from ..objects import NotCopied
from ..wire import records as wire
from ..wire.conn import Conn, close_later
from ..wire.listen import Listener
from ..wire.peer import Peer, Policy, peer_of
from .lease import Lease
from .session import LEAVING, Session

if TYPE_CHECKING:
    from .offering import Offering

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # they pass
_MORE_WORDS = 64  # connections beyond the places that are told that these are taken


class Loop(NotCopied):
    """Accepts connections, and has their sessions read, write and look at the time. Other
    threads work under the lock, changed, and wake it."""

    def __init__(
        self, path: str | os.PathLike[str], policy: Policy, timeout: float, mode: int, connections: int, connections_per_peer: int
    ) -> None:
        self.policy, self.timeout = policy, timeout
        self.connections, self.connections_per_peer = connections, connections_per_peer
        self.changed = threading.Condition(threading.RLock())
        self.sessions: dict[Session, None] = {}
        self.replaced: list[tuple[float | None, Offering]] = []  # until when, and what
        self.closed = False
        self.restarting = False  # it closes for a successor
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()  # whose processes are watched
        self._events: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._pid = os.getpid()
        self._paused = 0.0  # until when nothing is accepted
        self.listener = Listener(path, mode)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._wake, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None

    def end(self, offering: Offering, why: str) -> None:
        """Give an offer to nobody any more, and take it back from all consumers."""
        raise NotImplementedError

    def session_of(self, conn: Conn, peer: Peer) -> Session:
        """A new session."""
        raise NotImplementedError

    def settle(self, offering: Offering) -> None:
        """Let go of the memory of an offer that has ended when nobody has it."""
        raise NotImplementedError

    def _start(self) -> None:
        if self._thread is None:
            self._selector.register(self.listener.sock, selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._run, name="gpufd-server", daemon=True)
            self._thread.start()

    def not_by_thread(self) -> None:
        """Raise in a function of the application that the server's thread has called."""
        if threading.current_thread() is self._thread:
            raise UsageError("on_event and on_lease cannot wait for the end of what they are told of")

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def watch(self, session: Session) -> None:
        """Look for what a session waits for."""
        if session in self.sessions and not session.conn.foul:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.outbox else 0)
            with contextlib.suppress(KeyError, ValueError, OSError):
                if self._selector.get_key(session.conn.sock).events != events:
                    self._selector.modify(session.conn.sock, events, session)
                    self.wake()

    def unwatch(self, session: Session) -> None:
        self._unregister(session.conn.sock)

    def _unregister(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(sock)

    def drop(self, session: Session) -> None:
        """Forget a session, whose connection is over."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        session.state = LEAVING
        session.outbox.clear()
        self._unregister(session.conn.sock)
        if self.listener.no_fds:  # nothing in the queue can make closing wait
            session.conn.sock.close()
        else:
            close_later(session.conn.sock)
        session.conn.hears = lambda record: None
        if session.lease:
            session.lease._session = None  # what is left of it is the application's
            session.lease._drop_cursors()
        if session.offering:
            self.settle(session.offering)
        self.changed.notify_all()

    def _run(self) -> None:
        while True:
            with self.changed:
                if self.closed and not self.sessions:
                    self._thread = None
                    self.changed.notify_all()
                    break
                wait = self._next()
            try:
                ready = self._selector.select(wait)
            except (OSError, ValueError):  # a socket was closed meanwhile
                continue
            with self.changed:
                for key, events in ready:
                    self._ready(key, events)
                self._look_at_times()
                calls, self._events = self._events, deque()
            self._call(calls)
        self._call(self._events)

    def _call(self, calls: deque[tuple[Callable[[Any], None], Any]]) -> None:
        for f, argument in calls:
            try:
                f(argument)
            except Exception:  # of the application: it is told as an uncaught one of a thread is
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _next(self) -> float | None:
        """Seconds until something has to be looked at."""
        times = [s.deadline for s in self.sessions if s.deadline is not None and s.deadline < FOR_EVER]
        times += [t for t, _ in self.replaced if t is not None]
        times += [self._paused] if self._paused else []
        return min(3600.0, max(0.0, min(times) - time.monotonic())) if times else None

    def _ready(self, key: selectors.SelectorKey, events: int) -> None:
        session = key.data
        if key.fileobj is self._woken:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        elif session is None:
            self._accept()
        elif session in self.sessions:
            if events & selectors.EVENT_WRITE:
                session.flush()
                self.changed.notify_all()
                if session.offering and not session.outbox:
                    self.settle(session.offering)
            if events & selectors.EVENT_READ:
                session.readable()

    def _look_at_times(self) -> None:
        now = time.monotonic()
        for session in list(self.sessions):
            if session.deadline is not None and session.deadline <= now:
                session.late()
        for until, offering in list(self.replaced):
            if until is not None and until <= now:
                self.end(offering, "the producer offers other memory, and the time for this one is over")
        if self._paused and self._paused <= now and not self.closed:
            self._paused = 0.0
            with contextlib.suppress(KeyError, ValueError):
                self._selector.register(self.listener.sock, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:
            if e.errno in _EXHAUSTED:  # until somebody lets go of something
                self._paused = time.monotonic() + 0.1
                self._unregister(self.listener.sock)
            return
        try:
            self._begin(sock)
        except OSError:
            close_later(sock)

    def _begin(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        session = self.session_of(Conn(sock, self.timeout), peer)
        of_peer = sum(1 for s in self.sessions if (s.peer.pid, s.peer.uid) == (peer.pid, peer.uid))
        self.sessions[session] = None
        self._selector.register(sock, selectors.EVENT_READ, session)
        try:
            self.policy.check(peer)
        except RefusedError as e:
            session.refuse(wire.NOT_ADMITTED, "the producer does not admit you", e)
        else:
            if len(self.sessions) > self.connections or of_peer >= self.connections_per_peer:
                session.refuse(wire.BUSY, "all places are taken", Error(f"all places are taken ({peer})"))
        if session.state == LEAVING and len(self.sessions) > self.connections + _MORE_WORDS:
            self.drop(session)  # who hears why takes a place, too
