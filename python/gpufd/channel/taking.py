"""Copying what the writer says of a frame: docs/wire.md, "To take" and "The newest frame"."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ChannelError
from . import cursor as c
from .cursor import EntryWords, Shape
from .joined import Joined
from .words import Words


@dataclass(frozen=True)
class Told:
    """A frame as the writer describes it."""

    number: int  # the reader's own
    sequence: int  # the channel's
    slot: int
    size: int
    time: int = 0
    user: bytes = b""
    fields: bytes | None = None  # that say what the frame is, with their header; None if the writer's stream may say it later


def copy_entry(w: Words, shape: Shape, number: int, last: int) -> Told | None:
    """Copy the entry of a frame, whose stamp was right a moment ago; last is the sequence of the frame taken before.

    Return None if the writer has overtaken this reader meanwhile.
    """
    at = shape.entry(number)
    e = EntryWords.read(w, at)
    fault = e.bytes > shape.slot_size or e.length > c.MAX_USER or e.slot >= shape.slots or e.sequence <= last
    told = None if fault else _told(w, at, number, e)
    if w.load(at + c.STAMP) != 2 * number:
        return None
    if fault:
        raise ChannelError(f"frame {e.sequence} behind {last}, {e.bytes} bytes and {e.length} in slot {e.slot} of {shape.slots}", reason="cursor")
    return told


def _told(w: Words, at: int, number: int, e: EntryWords) -> Told:
    return Told(number, e.sequence, e.slot, e.bytes, e.time, c.read_user(w, at, e.length), c.read_fields(w, at, e.length, e.sequence))


# By a reader of LATEST, which claims the slot of the newest frame, and then looks again whether the frame is still
# whole there. The writer marks the frame before it looks at the claim, so one of the two sees the other.


def claim_newest(joined: Joined, next_: int, last: int) -> Told | None:
    """Claim the newest frame; None if the writer was first: then there is a newer one.

    next_ is the least number that it may have, last the sequence of the frame taken before.
    """
    w, slot, told = joined.words, _newest(joined), None
    try:
        w.store(c.CLAIM, slot + 1)
        w.fence()  # as the writer's, between its mark and its look at the claim
        stamp = w.load(joined.shape.entry_at(slot) + c.STAMP)
        told = None if stamp % 2 else _copy_claimed(joined, stamp // 2, slot, next_, last)
        return told
    finally:
        if told is None:
            w.store(c.CLAIM, 0)  # before the newest is looked for again


def _newest(joined: Joined) -> int:
    """Return the slot of the newest frame. Once the writer is lost, it is that of the last whole frame, of which the
    writer may not have said where it is."""
    shape = joined.shape
    if joined.lost:
        found = shape.find(joined.words, joined.whole)
        if found is None:
            joined.raise_why()
        return found
    slot = joined.words.load(c.NEWEST)
    if slot >= shape.slots:
        raise ChannelError(f"the newest frame is in slot {slot} of {shape.slots}", reason="cursor")
    return slot


def _copy_claimed(joined: Joined, number: int, slot: int, next_: int, last: int) -> Told:
    """Copy the entry of the frame in the slot, which does not change any more."""
    if joined.lost and number > joined.whole:
        joined.raise_why()
    w, shape = joined.words, joined.shape
    at = shape.entry_at(slot)
    e = EntryWords.read(w, at)
    if number < next_ or e.slot != slot or e.bytes > shape.slot_size or e.length > c.MAX_USER or e.sequence <= last:
        raise ChannelError(
            f"frame {e.sequence}, number {number}, behind {last}, number {next_ - 1}, {e.bytes} bytes and {e.length}, "
            f"as that of slot {e.slot} in slot {slot} of {shape.slots}",
            reason="cursor",
        )
    return _told(w, at, number, e)
