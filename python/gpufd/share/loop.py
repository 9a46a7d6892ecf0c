"""The thread of a server. It waits for sockets, times and other threads, and knows neither sessions nor
offers: its work is in serving.py."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..errors import UsageError
from ..objects import NotCopied
from ..wire.conn import close_later
from ..wire.listen import Listener

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # they pass
_PAUSE = 0.1  # seconds without accepting, where something is exhausted


class Work(Protocol):
    """The work of a loop. It is done under the lock, and must not wait."""

    def accepted(self, sock: socket.socket) -> None:
        """Take a connection."""

    def next_time(self) -> float | None:
        """Return when to look at the time again, or None."""

    def look_at_times(self) -> None:
        """Do what the time has come for."""

    def is_over(self) -> bool:
        """Return whether the thread may end."""


class Loop(NotCopied):
    """One thread, and the lock under which it and others do their work: changed."""

    def __init__(self, listener: Listener, work: Work) -> None:
        self.listener, self.changed = listener, threading.Condition(threading.RLock())
        self._work = work
        self._calls: deque[Callable[[], None]] = deque()
        self._paused = 0.0  # until when nothing is accepted
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (self._wake, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._hear)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, and accept, unless that is so."""
        if self._thread is None:
            self._selector.register(self.listener.sock, selectors.EVENT_READ, self._accept)
            self._thread = threading.Thread(target=self._run, name="gpufd-server", daemon=True)
            self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread is not None

    def is_current(self) -> bool:
        """Return whether the thread calls."""
        return threading.current_thread() is self._thread

    def not_by_thread(self) -> None:
        """Raise in a function of the application that the thread has called."""
        if self.is_current():
            raise UsageError("on_event and on_lease cannot wait for the end of what they are told of")

    def wake(self) -> None:
        """Let the thread look anew at what it waits for."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def later(self, f: Callable[[], None]) -> None:
        """Let the thread call a function of the application, without the lock."""
        self._calls.append(f)
        if not self.is_current():
            self.wake()

    def watch(self, sock: socket.socket | int, events: int, ready: Callable[[int], None]) -> None:
        """Call ready with what a socket is ready for, until unwatch."""
        with contextlib.suppress(ValueError, OSError):
            try:
                if self._selector.get_key(sock).events == events:
                    return
                self._selector.modify(sock, events, ready)
            except KeyError:
                self._selector.register(sock, events, ready)
            if not self.is_current():
                self.wake()

    def unwatch(self, sock: socket.socket | int) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(sock)

    def stop_accepting(self) -> None:
        """Close the listener."""
        self._paused = 0.0
        self.unwatch(self.listener.sock)
        self.listener.close()

    def close(self) -> None:
        """Wait for the thread, whose work is over, and close what it has."""
        thread = self._thread
        self.wake()
        if thread and not self.is_current():
            thread.join(5)
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def forked(self) -> None:
        """Let go of copies in a child after a fork, and leave the parent's files alone."""
        self.changed = threading.Condition(threading.RLock())
        self.listener.forked()
        for close in (self._wake.close, self._woken.close, self._selector.close):
            with contextlib.suppress(OSError):
                close()
        self._thread = None

    # The thread.

    def _run(self) -> None:
        while True:
            with self.changed:
                if self._work.is_over():
                    self._thread = None
                    self.changed.notify_all()
                    break
                wait = self._wait()
            try:
                ready = self._selector.select(wait)
            except (OSError, ValueError):  # a socket was closed meanwhile
                continue
            with self.changed:
                for key, events in ready:
                    key.data(events)
                self._resume_accepting()
                self._work.look_at_times()
            self._call()
        self._call()

    def _call(self) -> None:
        """Call the functions of the application."""
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception:  # of the application: it is told as an uncaught one of a thread is
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _wait(self) -> float | None:
        """Return the seconds until something has to be looked at."""
        if self._calls:
            return 0.0
        times = [t for t in (self._work.next_time(), self._paused or None) if t is not None]
        return min(3600.0, max(0.0, min(times) - time.monotonic())) if times else None

    def _hear(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _accept(self, events: int) -> None:
        try:
            sock, _ = self.listener.sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:
            if e.errno in _EXHAUSTED:  # until somebody lets go of something
                self._paused = time.monotonic() + _PAUSE
                self.unwatch(self.listener.sock)
            return
        try:
            self._work.accepted(sock)
        except OSError:
            close_later(sock)

    def _resume_accepting(self) -> None:
        if self._paused and self._paused <= time.monotonic():
            self._paused = 0.0
            self.watch(self.listener.sock, selectors.EVENT_READ, self._accept)
