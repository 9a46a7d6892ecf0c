"""Ranks that watch each other, by a store of torch.distributed.

Each rank counts up a number in the store, and watches that of the next rank: a ring, so all
are watched however many there are, and of ranks that die together one has a living watcher.
A rank that fails, or finds its next one gone, writes down who it was; all others find that,
and end. A rank's memory and bookings end with its process.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import LostError


_TEXT, _COUNT = "gpufd/failure", "gpufd/failures"


class Watch:
    """One rank's, in threads of its own, with a connection to the store of its own. failed
    is told, in one of them, once, who failed and how."""

    def __init__(self, store: Any, rank: int, world: int, timeout: float, failed: Callable[[str], None]) -> None:
        self._store, self.rank, self.world, self._failed = store, rank, world, failed
        self._patience = timeout / 3
        self._timeout = timeout
        self._pause = min(1.0, timeout / 20)
        self._over = threading.Event()
        self._ended = threading.Event()
        self._answered = time.monotonic()
        self._telling = threading.Lock()
        self.failure = ""
        store.set_timeout(datetime.timedelta(seconds=max(1.0, timeout / 4)))
        self._thread = threading.Thread(target=self._run, name="gpufd-watch", daemon=True)
        self._guard = threading.Thread(target=self._await_answers, name="gpufd-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._guard.start()

    def stop(self) -> None:
        """Watch no more: all has been done. The others are not told, and need not be."""
        self._over.set()
        self._thread.join(timeout=2 * self._patience)

    def _run(self) -> None:
        try:
            self._turn()
        except Exception as e:  # whatever the store raises: it has gone, with the rank or agent that has it
            if not self._over.wait(self._patience):  # or all is done, and rank 0 was quicker
                self._end(f"rank 0, or torchrun's agent with the store, was lost: {first_line(e)}")

    def _turn(self) -> None:
        ahead = (self.rank + 1) % self.world
        seen, since = -1, time.monotonic()
        while not self._over.is_set():
            self._store.add(f"gpufd/alive/{self.rank}", 1)
            if self._store.add(_COUNT, 0):
                return self._end(self._store.get(_TEXT).decode())
            count = self._store.add(f"gpufd/alive/{ahead}", 0) if self.world > 1 else seen + 1
            if count != seen or self._store.add(f"gpufd/done/{ahead}", 0):
                seen, since = count, time.monotonic()
            elif time.monotonic() - since > self._patience:
                return self._end(self.report(f"rank {ahead} was lost: it has given no sign of life for {self._patience:g} s"))
            self._answered = time.monotonic()
            self._over.wait(self._pause)
        self._store.add(f"gpufd/done/{self.rank}", 1)

    def _await_answers(self) -> None:
        """End where the store answers nobody: PyTorch's waits, before libuv's came with 2.4, for
        the rest of a message whose rank was stopped, or cut off, in the middle of it."""
        while not self._over.wait(self._pause):
            silent = time.monotonic() - self._answered
            if silent > 2 * self._patience:
                self._end(f"a rank was lost: the store of rank 0, or of torchrun's agent, has not answered for {silent:.3g} s")

    def report(self, text: str) -> str:
        """End all other ranks, for the reason in the text. Return what they are told:
        the first one counts."""
        try:
            if self._store.add(_COUNT, 0) == 0:
                self._store.set(_TEXT, text)
                self._store.add(_COUNT, 1)
            else:
                text = self._store.get(_TEXT).decode()
        except Exception as e:
            text += f" (and the store: {first_line(e)})"
        return text

    def _end(self, text: str) -> None:
        with self._telling:
            if self._over.is_set():
                return
            self.failure = text
            self._over.set()
            self._ended.set()
        self._failed(text)

    def linger(self) -> None:
        """Where the store may go with this process, let the others read there why it ends."""
        if self.rank == 0:
            time.sleep(3 * self._pause)

    def explain(self, error: BaseException) -> BaseException:
        """Why a step with the others failed: what the watch finds within its time, or else the
        error itself."""
        if self._ended.wait(self._timeout * 2 / 3):
            return LostError(self.failure)
        return error


def first_line(e: BaseException) -> str:
    """An error of torch's, whose traces have many lines, in one."""
    return (str(e).strip().splitlines() or [type(e).__name__])[0]
