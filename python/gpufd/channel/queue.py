"""The decisions of the two sides of a channel; nothing here reads or writes memory of others."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ChannelError
from .cursor import BLOCK, DROP_NEWEST, DROP_OLDEST, GIVEN, LATEST, policy_name


class Queue:
    """The writer's knowledge of one reader: which frames it was given, by numbers from 1
    without gaps, and in which slots they are."""

    def __init__(self, policy: int, slots: int) -> None:
        self.policy = policy
        self.published = 0  # number of the last frame that it was given
        self.released = 0  # that it gave back, as far as was looked
        self.in_slot = [0] * slots  # number of the last frame that it was given in each
        self.back = [0] * slots  # in any order: number of the last frame in each that it gave back, as far as was looked
        self.claimed = 0  # with LATEST: 1 + the slot that it claimed when that was looked at last, or 0
        self.denied_for = 0  # with LATEST: the sequence for which its claim kept the writer from a slot last

    def see(self, released: int) -> None:
        """Note how far the reader has released. Raises ChannelError ("cursor") if that cannot be."""
        if not self.released <= released <= self.published:
            raise ChannelError(f"{released} frames are released where {self.released} were, and {self.published} were given", reason="cursor")
        self.released = released

    def see_back(self, slot: int, number: int) -> None:
        """Note which frame in the slot the reader gave back last. Raises ChannelError ("cursor") if that cannot be."""
        if not self.back[slot] <= number <= self.in_slot[slot]:
            raise ChannelError(f"frame number {number} is given back in slot {slot}, where {self.back[slot]} was, and {self.in_slot[slot]} was given", reason="cursor")
        self.back[slot] = number

    def kept(self) -> list[int]:
        """Return the slots that the reader keeps, in any order."""
        return [slot for slot, n in enumerate(self.in_slot) if n > self.back[slot]]

    def holds(self, slot: int) -> bool:
        """Return whether the writer has to leave the slot to the reader."""
        if self.policy == LATEST:  # also the newest frame, so that there is one
            return 0 < self.published == self.in_slot[slot] or self.claimed == slot + 1
        return self.policy != DROP_OLDEST and self.in_slot[slot] > max(self.released, self.back[slot])

    def see_claim(self, claim: int) -> None:
        """Note which slot a reader of LATEST claims. Raises ChannelError ("cursor") if that cannot be."""
        slots = len(self.in_slot)
        if claim > slots or claim and not self.in_slot[claim - 1]:
            raise ChannelError(f"the reader's claim is {claim}; want 0, or 1 more than one of the {slots} slots, in which it was given a frame", reason="cursor")
        self.claimed = claim

    def deny(self, slot: int, sequence: int) -> None:
        """Note that the reader claims the slot which the writer has chosen for the frame of that sequence.
        Raises ChannelError ("cursor") if it has claimed another one meanwhile: it can only claim the newest frame's then, which
        the writer does not choose."""
        if self.denied_for == sequence:
            raise ChannelError(f"the reader claims slot {slot}, after another, while the writer chooses one for frame {sequence}", reason="cursor")
        self.claimed, self.denied_for = slot + 1, sequence

    def give(self, slot: int) -> int:
        """Note that the reader gets the frame in the slot. Returns the frame's number."""
        self.published += 1
        self.in_slot[slot] = self.published
        return self.published

    def may_keep(self, share: int) -> bool:
        """Return whether a reader that drops the newest has fewer frames than its share."""
        return self.published - self.released < share

    def retires(self, slot: int) -> int:
        """Return the number of the frame whose entry is not whole any more once the slot has another
        frame, or 0."""
        n = self.in_slot[slot]
        if self.policy != DROP_OLDEST or n == 0 or self.published - n >= len(self.in_slot):
            return 0
        return n


def pick(queues: Sequence[Queue], frames: Sequence[int], written: int, last: int) -> tuple[int, bool]:
    """Return the slot of the next frame: the first behind last that nobody holds and no stream of the writer has still
    to write, and True. Without one the slot to wait for, that of the oldest frame which only readers that block hold.

    frames has the sequence of each slot's frame, and written is that of the last one that was written.
    """
    slots = len(frames)
    oldest, found = GIVEN, 0
    for i in range(slots):
        slot = (last + 1 + i) % slots
        holding = {q.policy for q in queues if q.holds(slot)}
        if not holding and frames[slot] <= written:
            return slot, True
        if holding == {BLOCK} and frames[slot] < oldest:
            found, oldest = slot, frames[slot]
    return found, False


def has_room(queues: Sequence[Queue], slots: int, slot: int) -> bool:
    """Return whether readers that drop the newest may be given the frame in slot: all of them
    together hold half of the slots at most."""
    droppers = [q for q in queues if q.policy == DROP_NEWEST]
    kept = 1 + sum(1 for s in range(slots) if s != slot and any(q.holds(s) for q in droppers))
    return kept <= slots // 2


def share_of(slots: int, readers: int) -> int:
    """Return how many frames each of so many readers that drop the newest may keep: one that stands
    still does not leave the others without any."""
    return max(1, slots // 2 // readers)


def most_latest(slots: int, drop_newest: bool) -> int:
    """Return how many readers of LATEST a channel admits. Each may keep a slot from the writer, which needs one to
    write to and one for the newest frame; readers that drop the newest, if there are any, keep half of the slots."""
    return max(0, slots - 2 - slots // 2) if drop_newest else slots - 2


def check_room(policy: int, slots: int, latest: int, drop_newest: int) -> None:
    """Raise ChannelError ("policy") if a reader of that policy has no room beside so many of LATEST and of DROP_NEWEST."""
    most = most_latest(slots, drop_newest > 0)
    if policy == LATEST and latest >= most:
        beside = f" beside drop-newest, which keeps {slots // 2} slots" if drop_newest else ""
        raise ChannelError(
            f"a channel of {slots} slots admits {most} {'reader' if most == 1 else 'readers'} of policy {policy_name(LATEST)}{beside}, and has {latest}: "
            "each may hold a slot, the writer needs one to write to, and one has the newest frame; more need a channel of more slots",
            reason="policy",
        )
    most = most_latest(slots, True)
    if policy == DROP_NEWEST and latest > most:
        raise ChannelError(
            f"readers of drop-newest keep up to {slots // 2} of {slots} slots, which leaves room for {most} {'reader' if most == 1 else 'readers'} "
            f"of policy {policy_name(LATEST)}, and there are {latest}; both need a channel of more slots",
            reason="policy",
        )


def choose(policy: int, next_: int, published: int, slots: int) -> int:
    """Return the number of the frame that a reader takes next, or 0. One that was passed by goes on
    with the newest, and one of LATEST always does."""
    if published < next_:
        return 0
    return published if policy == LATEST or policy == DROP_OLDEST and published - next_ >= slots else next_


def behind(number: int, published: int) -> int:
    """Return the number to look for when that frame was not whole any more."""
    return max(number + 1, published)


def check_published(policy: int, published: int, seen: int, released: int | None, slots: int) -> None:
    """Raise ChannelError ("cursor") if so many frames cannot have been given. A stream may release ahead of them.
    If released is None, only a number that falls is refused."""
    most = GIVEN - 1 if released is None or policy in (DROP_OLDEST, LATEST) else min(released + slots, GIVEN - 1)
    if not seen <= published <= most:
        raise ChannelError(f"{published} frames were given where {seen} were, of which {released or 0} are released, with {slots} slots", reason="cursor")
