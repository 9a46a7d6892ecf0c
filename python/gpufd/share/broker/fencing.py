"""Memory that a consumer could write is fenced when its work on it has ended: its connection is
over, and it has said so or its process has died. Offers with a fence wait for that when they are
over, and so do later offers of the same memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...wire import records as wire
from .events import Fence, Gone
from .state import Offer, Session


@dataclass
class Process:
    """A process that has sessions or fences."""

    users: int = 0  # sessions, and fences
    fences: int = 0  # offers that wait for it
    dead: bool = False
    doubt: str = ""  # why its end cannot be known any more


class Fencing:
    """The processes of sessions, and the offers with a fence by their memory."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.memory: dict[int, list[Offer]] = {}  # offers with a fence that have not finished

    def use(self, number: int) -> None:
        """Count a session or a fence of a process."""
        if number:
            self.processes.setdefault(number, Process()).users += 1

    def unuse(self, number: int) -> None:
        """Undo use."""
        if p := self.processes.get(number):
            p.users -= 1
            if not p.users:
                del self.processes[number]

    def awaits(self, number: int) -> bool:
        """Return whether an offer waits for the end of a process."""
        p = self.processes.get(number)
        return p is not None and p.fences > 0

    def add(self, o: Offer) -> None:
        """Note the memory of an offer that has one now."""
        if o.fenced:
            self.memory.setdefault(o.terms.memory, []).append(o)

    def remove(self, o: Offer) -> None:
        """Forget an offer that has finished."""
        others = [x for x in self.memory.pop(o.terms.memory, []) if x is not o]
        if others:
            self.memory[o.terms.memory] = others

    def die(self, number: int) -> list[Offer]:
        """Note the death of a process. Return the offers that waited for it."""
        p = self.processes.get(number)
        if not p:
            return []
        p.dead = True
        return self.settle(number, "")

    def lose(self, number: int, doubt: str) -> list[Offer]:
        """Note that the end of a process cannot be known. Return the offers that waited for it."""
        p = self.processes.get(number)
        if not p or p.dead:
            return []
        p.doubt = doubt or "its end cannot be known"
        return self.settle(number, p.doubt)

    def settle(self, number: int, doubt: str) -> list[Offer]:
        """End the wait for a process. With a doubt, it may still write."""
        settled = []
        for memory in sorted(self.memory):
            for o in self.memory[memory]:
                for at, (process, peer) in enumerate(o.writers):
                    if process == number:
                        if doubt:
                            o.doubts(peer, doubt)
                        self.pass_(o, at)
                        settled.append(o)
                        break
        return settled

    def pass_(self, o: Offer, at: int) -> None:
        """End the wait of an offer for one of its writers."""
        number, _ = o.writers.pop(at)
        self.processes[number].fences -= 1
        self.unuse(number)

    def pass_all(self, o: Offer) -> None:
        """Give up the wait of an offer for its writers, which may still write."""
        while o.writers:
            o.doubts(o.writers[0][1], "")
            self.pass_(o, 0)

    def await_writer(self, o: Offer, s: Session, gone: Gone) -> None:
        """Make an offer wait for a session whose lease has ended, if that may still write."""
        fence = o.terms.fence
        if not o.fenced or not gone.sent or o.gives(s.want) != wire.READ_WRITE or fence == Fence.RELEASED and gone.released:
            return
        p = self.processes.get(s.process)
        if p is None:
            o.doubts(s.peer, s.doubt)
        elif p.dead:
            return
        elif p.doubt:
            o.doubts(s.peer, p.doubt)
        elif all(process != s.process for process, _ in o.writers):
            self.use(s.process)
            p.fences += 1
            o.writers.append((s.process, s.peer))
