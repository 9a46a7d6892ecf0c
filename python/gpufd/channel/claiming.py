"""Claiming the newest frame of a channel: docs/wire.md, "The newest frame"."""

from __future__ import annotations

from typing import NoReturn

from ..errors import ChannelError
from . import cursor as c
from .cursor import EntryWords
from .frame import Frame
from .joined import Joined


class Claiming(Joined):
    """A reader of LATEST, which claims the slot of the newest frame, and then looks again whether that is
    still whole there. The writer marks the frame before it looks at the claim, so one of the two sees the other."""

    # Whoever inherits this makes them.
    _next: int
    _last: int

    def _claim(self) -> Frame | None:
        """Take the newest frame; None if the writer was first: then there is a newer one."""
        slot, frame = self._newest(), None
        at = self.shape.entry_at(slot)
        try:
            self._words.store(c.CLAIM, slot + 1)
            self._words.fence()  # as the writer's, between its mark and its look at the claim
            stamp = self._words.load(at + c.STAMP)
            frame = None if stamp % 2 else self._claimed(stamp // 2, slot)
            return frame
        finally:
            if frame is None:
                self._words.store(c.CLAIM, 0)  # before the newest is looked for again

    def _newest(self) -> int:
        """The slot of the newest frame. Once the writer is lost, it is that of the last whole frame, of which the
        writer may not have said where it is."""
        if self._lost:
            slot = self.shape.find(self._words, self._whole)
            if slot is None:
                self._raise_why()
        else:
            slot = self._words.load(c.NEWEST)
            if slot >= self.slots:
                raise ChannelError(f"the newest frame is in slot {slot} of {self.slots}", reason="cursor")
        return slot

    def _claimed(self, number: int, slot: int) -> Frame:
        """Copy what the writer says of the frame in the slot, which does not change any more."""
        if self._lost and number > self._whole:
            self._raise_why()
        w, at = self._words, self.shape.entry_at(slot)
        e = EntryWords.read(w, at)
        if number < self._next or e.slot != slot or e.bytes > self.slot_size or e.length > c.MAX_USER or e.sequence <= self._last:
            raise ChannelError(
                f"frame {e.sequence}, number {number}, behind {self._last}, number {self._next - 1}, {e.bytes} bytes and {e.length}, "
                f"as that of slot {e.slot} in slot {slot} of {self.slots}",
                reason="cursor",
            )
        return self._keep_entry(number, e, c.read_user(w, at, e.length))

    def _raise_why(self) -> NoReturn:
        """The writer lives, and has gone on."""
        self._check_kept()
        raise self._why

    def _keep_entry(self, number: int, e: EntryWords, user: bytes) -> Frame:
        raise NotImplementedError
