"""One publisher's frames, as a subscriber takes them: :class:`UpdateReader`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..channel.frame import Frame
from ..channel.reader import Reader
from ..errors import ChannelError, Error, TimedOutError, WeightsError
from .frames import FIRST, LAST, Assembly, Entry, Head, Table, malformed
from .meta import decode_metadata


@dataclass(frozen=True)
class Bucket:
    """A frame of an update."""

    frame: Frame
    head: Head
    entries: tuple[Entry, ...]
    over: bool  # it ends the update

    @property
    def is_first(self) -> bool:
        return bool(self.head.flags & FIRST)

    @property
    def is_last(self) -> bool:
        """Whether the update is whole with this bucket."""
        return bool(self.head.flags & LAST)


class UpdateReader:
    """The frames of one publisher, in order.

    torn    the update that the last frame, or the end, has torn, or None
    """

    def __init__(self, reader: Reader) -> None:
        """Take a reader of the publisher's channel. Raises WeightsError ("malformed") if that is none of weights."""
        if not reader.shape.any_order:
            raise malformed("the slots of its channel do not come back in any order, as those of weights do", "a channel")
        self.reader = reader
        self.metadata, self.in_place = decode_metadata(reader.attachment.data)
        if self.in_place and reader.slots != 1:
            raise malformed(f"it is in place, and has {reader.slots} slots instead of one", "a channel")
        self.torn: Head | None = None
        self._assembly = Assembly(self.metadata, self.in_place)
        self._tables: dict[bytes, Table] = {}  # by digest: those of this update and of the one before
        self._before: dict[bytes, Table] = {}
        self._pending: Bucket | None = None
        self._last: Bucket | None = None  # that next has returned

    def next(self, timeout: float | None) -> Bucket | None:
        """Wait for the next frame of an update. Return None for one that only tears an update, and if none comes in time.

        Raises what Reader.next does at the end, which tears the update under way, and WeightsError ("malformed"). Whoever gets a
        bucket gives its frame back.
        """
        pending, self._pending = self._pending, None
        self.torn = None
        if pending:
            return pending
        try:
            frame = self.reader.next(timeout)
        except TimedOutError:
            return None
        except Error:
            self._end()
            raise
        try:
            bucket = self._bucket_of(frame)
        except BaseException:
            self._end()
            frame.release()
            raise
        if not bucket:
            frame.release()
        self._last = bucket
        return bucket

    def _bucket_of(self, frame: Frame) -> Bucket | None:
        """Return what a frame is, or None if it belongs to no update."""
        a, head = self._assembly, Head.decode(frame.user, frame.size)
        if not a.wants(head):
            self.torn = a.torn
            return None
        if head.flags & FIRST:
            self._before, self._tables = self._tables, {}
        entries = self._entries(frame, head) if head.tensors else ()
        a.take(head, entries)
        over = a.is_over(head)
        self.torn = a.torn
        return Bucket(frame, head, entries, over)

    def _entries(self, frame: Frame, head: Head) -> tuple[Entry, ...]:
        """Return the entries of a frame's table, which need not be read again."""
        table = self._tables.get(head.digest) or self._before.get(head.digest)
        if table:
            table.check(head)
        else:
            table = Table.decode(frame.view("U8", head.table_bytes, head.table_at).tobytes(), head)
        self._tables[head.digest] = table
        return table.entries

    def push_back(self, bucket: Bucket) -> None:
        """Have next return a bucket again."""
        self._pending = bucket

    def recover(self, kept: Callable[[Frame], bool]) -> None:
        """Have next return the last bucket again if its frame is held, and not kept: an interrupt came before anybody had it."""
        last = self._last
        if last and not kept(last.frame) and self.reader.holds(last.frame):  # in this order: a thread gives back what was kept
            self._pending = last

    def check(self, bucket: Bucket) -> None:
        """Raise ChannelError (dropped, turned-away) if the publisher has taken the slots of this side, so that the bucket may have been written since."""
        if not bucket.frame.whole:
            raise ChannelError("the publisher has dropped this subscriber, and may have written its buckets since", reason="dropped")

    def _end(self) -> None:
        self._assembly.end()
        self.torn = self._assembly.torn


def torn(step: int, why: str) -> WeightsError:
    """Return the error for an update that did not end whole, and of which tensors were handed out."""
    return WeightsError(f"the update of step {step} is torn, so the weights here may be of two steps: {why}", step=step)
