"""Whether a peer's work on the memory has ended, after its lease has."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import arguments
from ..errors import Error, FenceError, LostError
from ..wire.peer import Peer, Process
from ..wire.records import MAY_OUTLIVE

RELEASED, FENCED = 1, 2  # by its word; by the death of its process
_NAMES = {RELEASED: "released", FENCED: "fenced"}
_DEATH_TIME = 0.5  # seconds that a process which was killed takes to be dead, at most


class Fence:
    """The knowledge of one connection about the process at its other end. says are the flags that the
    peer has told of its process, or None."""

    def __init__(self, peer: Peer, process: Process, says: int | None) -> None:
        self.peer, self.process, self.says = peer, process, says
        self.over = self.released = self.closed = False

    def end(self, released: bool) -> None:
        """The lease has ended; released says that the peer has left in order."""
        if not self.over:
            self.over, self.released = True, released

    def doubt(self) -> str:
        """Why it will not be known when the peer is fenced, or ""."""
        if self.closed:
            return "its process is not watched any more"
        if self.process.why:
            return self.process.why
        if self.says is None:
            return "the peer is older and does not say whether it runs under MPS"
        if self.says & MAY_OUTLIVE:
            return "the peer says that it may run under MPS, where its work outlives it"
        return ""

    def is_(self, want: int, timeout: float = 0.0) -> bool:
        """Return whether the peer is fenced as wanted, or is so within that time."""
        if not self.over:
            return False
        return want == RELEASED and self.released or not self.doubt() and self.process.died(timeout)

    def await_(self, want: int, timeout: float | None, ended: Callable[[float], bool]) -> None:
        """Wait until the peer is fenced as wanted. ended waits for the end of the lease."""
        arguments.one_of("a fence", want, _NAMES, "RELEASED or FENCED")
        timeout = arguments.seconds("a timeout", timeout)
        deadline = time.monotonic() + timeout
        doubt = self.doubt()
        if doubt and want == FENCED:
            raise self._error("unknown", want, doubt)
        if not ended(timeout):
            raise self._error("pending", want, f"its lease has not ended within {timeout:g} s")
        if want == RELEASED and self.released:
            return
        if doubt:
            raise self._error("unknown", want, doubt)
        if not self.process.died(deadline - time.monotonic()):
            raise self._error("pending", want, f"its process has not ended within {timeout:g} s")

    def _error(self, reason: str, want: int, why: str) -> FenceError:
        return FenceError(f"waiting until the memory is {_NAMES[want]} by {self.peer}: {why}", [self.peer], reason=reason)

    def lost(self, left: bool, error: Error) -> Error:
        """The meaning of a connection's end."""
        if left:
            return LostError("the peer has left", reason="left")
        if self.says is None or self.process.why:
            return LostError(str(error))
        process = self.process
        dead = process.died()
        return LostError(f"{error}: {'its process has died' if dead else 'it has said no farewell'}", lambda: process.died(_DEATH_TIME))

    def close(self) -> None:
        if not self.closed:
            self.process.died()  # what is known stays known
            self.closed = True
            self.process.close()
