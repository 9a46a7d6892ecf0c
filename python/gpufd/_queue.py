"""The decisions of the two sides of a channel; nothing here reads or writes memory of others."""

from __future__ import annotations

from collections.abc import Sequence

from ._cursor import DROP_NEWEST, DROP_OLDEST, GIVEN
from ._errors import CursorError


class Queue:
    """The writer's knowledge of one reader: which frames it was given, by numbers from 1
    without gaps, and in which slots they are."""

    def __init__(self, policy: int, slots: int) -> None:
        self.policy = policy
        self.published = 0  # number of the last frame that it was given
        self.released = 0  # that it gave back, as far as was looked
        self.in_slot = [0] * slots  # number of the last frame that it was given in each

    def see(self, released: int) -> None:
        """Note how far the reader has released; CursorError where that cannot be."""
        if not self.released <= released <= self.published:
            raise CursorError(f"{released} frames are released where {self.released} were, and {self.published} were given")
        self.released = released

    def holds(self, slot: int) -> bool:
        """Whether the writer has to leave the slot to the reader."""
        return self.policy != DROP_OLDEST and self.in_slot[slot] > self.released

    def give(self, slot: int) -> int:
        """Note that the reader gets the frame in the slot. Returns the frame's number."""
        self.published += 1
        self.in_slot[slot] = self.published
        return self.published

    def may_keep(self, share: int) -> bool:
        """Whether a reader that drops the newest has fewer frames than its share."""
        return self.published - self.released < share

    def retires(self, slot: int) -> int:
        """The number of the frame whose entry is not whole any more once the slot has another
        frame, or 0."""
        n = self.in_slot[slot]
        if self.policy != DROP_OLDEST or n == 0 or self.published - n >= len(self.in_slot):
            return 0
        return n


def pick(queues: Sequence[Queue], frames: Sequence[int], last: int) -> tuple[int, bool]:
    """The slot of the next frame: the first behind last that nobody holds, and True. Without
    one the slot to wait for, that of the oldest frame which only readers that block hold."""
    slots = len(frames)
    oldest, found = GIVEN, 0
    for i in range(slots):
        slot = (last + 1 + i) % slots
        holding = {q.policy for q in queues if q.holds(slot)}
        if not holding:
            return slot, True
        if DROP_NEWEST not in holding and frames[slot] < oldest:
            found, oldest = slot, frames[slot]
    return found, False


def has_room(queues: Sequence[Queue], slots: int, slot: int) -> bool:
    """Whether readers that drop the newest may be given the frame in slot: all of them
    together hold half of the slots at most."""
    droppers = [q for q in queues if q.policy == DROP_NEWEST]
    kept = 1 + sum(1 for s in range(slots) if s != slot and any(q.holds(s) for q in droppers))
    return kept <= slots // 2


def share_of(slots: int, readers: int) -> int:
    """How many frames each of so many readers that drop the newest may keep: one that stands
    still does not leave the others without any."""
    return max(1, slots // 2 // readers)


def choose(policy: int, next_: int, published: int, slots: int) -> int:
    """The number of the frame that a reader takes next, or 0. One that was passed by goes on
    with the newest."""
    if published < next_:
        return 0
    return published if policy == DROP_OLDEST and published - next_ >= slots else next_


def behind(number: int, published: int) -> int:
    """The number to look for when that frame was not whole any more."""
    return max(number + 1, published)


def check_published(policy: int, published: int, seen: int, released: int, slots: int) -> None:
    """CursorError where so many frames cannot have been given. A stream may release ahead of them."""
    if published < seen or policy != DROP_OLDEST and published > released + slots or published >= GIVEN:
        raise CursorError(f"{published} frames were given where {seen} were, of which {released} are released, with {slots} slots")
