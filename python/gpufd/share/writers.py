"""The processes of consumers whose leases have ended, and that an offer waits for: they may still write."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from functools import partial

from .broker import Broker
from .broker import events as e
from .lease import Lease
from .loop import Loop


class Writers:
    """The watch over such processes. It tells the broker when they die."""

    def __init__(self, loop: Loop, bring: Callable[[e.Event], None]) -> None:
        self._loop, self._bring = loop, bring
        self._left: list[tuple[int, Lease]] = []  # whose leases have ended just now
        self._watched: dict[int, Lease] = {}

    def add(self, number: int, lease: Lease) -> None:
        """Note the end of a lease, before the broker is told of it. number is its process's."""
        self._left.append((number, lease))

    def watch(self, broker: Broker) -> None:
        """Watch the processes of those that were added, where the broker waits for them."""
        left, self._left = self._left, []
        for number, lease in left:
            if number in self._watched or not broker.awaits(number):
                continue
            if lease._fence.process.died():
                self._bring(e.Die(number))
            else:
                self._watched[number] = lease
                self._loop.watch(lease._fence.process.fileno(), selectors.EVENT_READ, partial(self._died, number))

    def look(self) -> None:
        """Tell the broker of those that have died, without waiting for the thread."""
        for number, lease in list(self._watched.items()):
            if lease._fence.process.died():
                self._died(number)

    def _died(self, number: int, events: int = 0) -> None:
        self._forget(number)
        self._bring(e.Die(number))

    def forget(self, broker: Broker) -> None:
        """Watch those no longer that the broker does not wait for."""
        for number in [n for n in self._watched if not broker.awaits(n)]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        if lease := self._watched.pop(number, None):
            self._loop.unwatch(lease._fence.process.fileno())
