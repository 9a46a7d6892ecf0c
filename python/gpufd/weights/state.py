"""The state that a subscriber and its updates share: :class:`SubscriberState`."""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import NamedTuple

from .. import arguments
from ..channel.reader import Reader
from ..errors import ChannelError, ClosedError, Error, InUseError, LostError, WeightsError, suppress
from ..log import info
from .claims import TAKEN, Claims
from .frames import FAILED
from .reading import Bucket, UpdateReader, torn


class Past(NamedTuple):
    """An update that is over."""

    updates: UpdateReader
    number: int
    step: int
    why: str = ""  # it is torn


class SubscriberState:
    """The weights of a subscriber: which update they are of, what tensors keep, and where updates come from.

    copies_to   the device that copies are to be on, if it is not that of the frames
    updates     those of the publisher that is there, or None
    mapped      those of the publisher over whose memory a model is bound
    whole       the update that was loaded whole last, or None
    torn        the update that did not end whole, if none was loaded since
    left        the readers of publishers that are gone, whose tensors are alive
    closed      the subscriber was closed, or is being closed
    """

    def __init__(self, copies_to: int | None) -> None:
        self.copies_to = copies_to
        self.claims = Claims()
        self.updates: UpdateReader | None = None
        self.mapped: UpdateReader | None = None
        self.whole: Past | None = None
        self.torn: Past | None = None
        self.left: list[Reader] = []
        self.closed = False
        weakref.finalize(self, self.claims.end).atexit = False  # when neither the subscriber nor an update is there

    def check_open(self) -> None:
        """Raise ClosedError if the subscriber was closed."""
        if self.closed:
            raise ClosedError("the subscriber was closed")

    def check(self) -> None:
        """Raise WeightsError (torn) if the weights may be of two steps."""
        if self.torn:
            raise torn(self.torn.step, f"{self.torn.why}; no other was loaded whole since")

    def take(self, updates: UpdateReader, deadline: float) -> Bucket | None:
        """Take the next frame, if one comes in time. Note which update it, or the end, tears.

        The caller has given back the frame before, claimed it, or pushed it back: otherwise an interrupt has lost it, and it comes again.
        """
        left = deadline - time.monotonic()
        updates.recover(self.claims.keeps)
        try:
            return updates.next(None if left == arguments.FOR_EVER else max(0.0, left))
        except Error as e:
            raise told(updates.reader, e) from None
        finally:
            if updates.torn:
                self.fail(updates, updates.torn.number)

    # Updates that are over.

    def loaded(self, updates: UpdateReader, number: int, step: int) -> None:
        """Note that an update was loaded whole. It takes the place of what was torn before, and not of what was torn behind it."""
        if not self.torn or self.torn.updates is not updates or number >= self.torn.number:
            self.whole, self.torn = Past(updates, number, step), None
        self._note(updates, number & ~FAILED)
        self.let_go()

    def fail(self, updates: UpdateReader, number: int) -> None:
        """Tell the publisher that this side is done with an update, and has not loaded it whole."""
        self._note(updates, number | FAILED)

    @staticmethod
    def _note(updates: UpdateReader, number: int) -> None:
        with suppress(Error, "closed", "ended", "lost"):
            updates.reader.note(number)

    def poison(self, updates: UpdateReader, number: int, step: int, why: str) -> None:
        """Note that the weights may be of two steps."""
        self.torn = Past(updates, number, step, why)

    # The end of a publisher.

    def lose(self, updates: UpdateReader, why: Error) -> None:
        """Note that there is nothing more from a publisher. Its memory stays while tensors of it, or a model, are there."""
        self.claims.collect()
        w = self.whole
        lives = isinstance(why, LostError) and updates.reader.attachment.peer.pid and not why.died()  # it has its buckets then
        taken = why.reason in TAKEN or lives
        if taken and w and w.updates is updates and (updates is self.mapped or self.claims.of(updates.reader)):
            self.poison(updates, w.number, w.step, str(why))
        self.leave(updates)

    def leave(self, updates: UpdateReader) -> None:
        """Take no more updates from a publisher."""
        if self.updates is updates:
            self.updates = None
        if updates is not self.mapped and updates.reader not in self.left:
            self.left.append(updates.reader)
        self.let_go()

    def let_go(self) -> Error | None:
        """Give back slots, and close what is left of publishers that are gone, as far as no tensor keeps them. Return the error of one that does not close."""
        self.claims.collect()
        failed = None
        for reader in [r for r in self.left if not self.claims.of(r)]:
            try:
                self.claims.close(reader)
                with contextlib.suppress(ValueError):  # another thread let go of it, too
                    self.left.remove(reader)
            except Error as e:
                if not isinstance(e, InUseError):
                    failed = e
                    info("%s is gone, and cannot be left yet: %s", trainer_of(reader), e)
        return failed


def trainer_of(reader: Reader) -> str:
    """Return how errors and the log name the publisher of a reader."""
    return f"the trainer (process {reader.attachment.peer.pid})"


def told(reader: Reader, e: Error) -> Error:
    """Return what a channel's error means for a subscriber."""
    trainer = trainer_of(reader)
    if e.reason == "ended":
        return WeightsError(f"{trainer} has ended in order", reason="ended")
    if e.reason == "dropped":
        return ChannelError(f"{trainer} has dropped this subscriber, which took too long, or whose connection has ended", reason="dropped")
    if e.reason == "turned-away":
        return ChannelError(f"{trainer} has refused this subscriber: {reader.attachment.err or 'it has no room for more'}", reason="turned-away")
    if isinstance(e, LostError):
        return LostError(f"{trainer} died, or hung up", e._died, last=e.last, reason=e.reason)
    if isinstance(e, ClosedError):
        return ClosedError("the subscriber belongs to the process that this one was forked from: make another one here" if e.reason == "forked" else "the subscriber was closed", reason=e.reason)
    return e
