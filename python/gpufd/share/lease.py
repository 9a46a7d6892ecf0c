"""One consumer's hold on an offer, which its producer can watch and take back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .. import arguments
from ..errors import Error, TimedOutError, UsageError
from ..objects import NotCopied
from ..wire import records as wire
from ..wire.peer import Peer
from .fence import FENCED, Fence


@dataclass(frozen=True)
class LeaseCalls:
    """The calls that a lease makes, of its connection."""

    revoke: Callable[[str], None]  # takes the lease back, and says why
    send: Callable[[wire.Record], None]  # now, or when there is room
    is_waiting: Callable[[], bool]  # whether something is still to be sent


class Lease(NotCopied):
    """One consumer's hold on an offer.

    It begins when the consumer is admitted, and ends with the connection. Nobody has to close
    it. Threads may share it.

    number      counts the leases of the offer, from 1
    access      READ_ONLY or READ_WRITE
    peer        the consumer's process
    since       time.monotonic() of its beginning
    """

    def __init__(self, number: int, access: int, fence: Fence, changed: threading.Condition, calls: LeaseCalls) -> None:
        self.number, self.access, self.peer = number, access, fence.peer
        self.since = time.monotonic()
        self._calls: LeaseCalls | None = calls  # None when the connection is over
        self._changed = changed
        self._fence = fence
        self._notices: deque[bytes] = deque(maxlen=16)
        self._over = self._detached = False
        self._err: Error | None = None
        self._cursors = -1  # the descriptor of what this lease alone has

    def __repr__(self) -> str:
        state = "over" if self._over else "detached" if self._detached else "open"
        return f"<gpufd.Lease {self.number} of {self.peer}, {wire.access_name(self.access)}, {state}>"

    def _hear(self, data: bytes) -> None:
        """Note what the consumer has sent."""
        self._notices.append(data)
        self._changed.notify_all()

    def _finish(self, error: Error | None) -> None:
        self._over, self._err = True, error
        self._changed.notify_all()

    @property
    def done(self) -> bool:
        """Whether the lease has ended."""
        return self._over

    @property
    def detached(self) -> bool:
        """Whether the consumer has unmapped the memory, and keeps its lease.

        If it takes the memory back it has another lease, and this one ends.
        """
        return self._detached

    @property
    def err(self) -> Error | None:
        """Why the lease has ended, or None if the consumer left in order.

        LostError if the consumer was killed or hung up; LeaseEndedError; VerdictError; or what the
        consumer did wrong.
        """
        return self._err

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease has ended. Return False if it has not within timeout seconds."""
        wait = arguments.seconds("a timeout", timeout)
        with self._changed:
            return self._await(lambda: self._over, wait)

    def _await(self, over: Callable[[], bool], timeout: float) -> bool:
        """Wait until over says so, with _changed held. It wakes once a second: a Unix signal, such as
        that of Ctrl-C, does not end a wait that begins just after it."""
        deadline = time.monotonic() + timeout
        while not over():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._changed.wait(min(left, 1.0))
        return True

    def revoke(self, why: str = "the producer has taken the lease back") -> None:
        """Take the lease back. The memory stays mapped in the consumer: nobody can change that."""
        arguments.text("why", why)
        with self._changed:
            if not self._over and self._calls:
                self._calls.revoke(why)

    def notify(self, data: bytes, timeout: float | None = 30.0) -> None:
        """Send the consumer up to 4,096 bytes, for its Attachment.notices."""
        wait, raw = arguments.seconds("a timeout", timeout), bytes(arguments.buffer("a notice", data))
        if len(raw) > wire.MAX_NOTICE:
            raise UsageError(f"a notice of {len(raw)} bytes, and {wire.MAX_NOTICE} are allowed")
        with self._changed:
            calls = self._calls
            if not self._over and calls:
                calls.send(wire.Notice(raw))
                waiting = calls.is_waiting
                if not self._await(lambda: self._over or not waiting(), wait):
                    raise TimedOutError(f"the consumer did not take a notice within {wait:g} s")
            if self._over:
                raise self._err or Error("the lease has ended")

    def notices(self, timeout: float | None = 0.0) -> list[bytes]:
        """Return what the consumer has sent by Attachment.notify since the last call.

        Wait up to timeout seconds for the first; with None until there is one, or the lease has ended. 16 notices are kept; then the oldest is dropped.
        """
        wait = arguments.seconds("a timeout", timeout)
        with self._changed:
            self._await(lambda: bool(self._notices) or self._over, wait)
            got = list(self._notices)
            self._notices.clear()
        return got

    @property
    def fenced(self) -> bool:
        """Whether the lease is over and the consumer has died: then none of its work runs on the device."""
        return self._over and self._fence.is_(FENCED)

    def await_fence(self, timeout: float | None, want: int = FENCED) -> None:
        """Wait until the lease has ended and the consumer's work on the memory has, too.

        want is FENCED, known by the death of its process, or RELEASED, known by its word. Raises
        FenceError after timeout seconds, with reason unknown at once if it cannot be known. The
        lease is not taken back.
        """
        self._fence.await_(want, timeout, self.wait)

    def _hang_up(self) -> None:
        """Let go of the connection: what is left of the lease is the application's."""
        self._calls = None
        self._drop_cursors()

    def _drop_cursors(self) -> None:
        fd, self._cursors = self._cursors, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._fence.close()
            self._drop_cursors()


@dataclass(frozen=True)
class Event:
    """Something that happened to an offer."""

    kind: str  #: connected, sent, mapped, progress, detached, verdict or ended; refused, which has no lease
    peer: Peer
    lease: Lease | None
    err: Error | None = None
    done: int = 0
    total: int = 0

    def __repr__(self) -> str:
        why = f", {type(self.err).__name__} ({self.err.reason})" if self.err else ""
        return f"<gpufd.Event {self.kind} of {self.peer}{f', lease {self.lease.number}' if self.lease else ''}{why}>"
