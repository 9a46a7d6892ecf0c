"""A reader, as the writer of a channel knows it."""

from __future__ import annotations

from dataclasses import dataclass

from .. import arguments
from ..errors import Error, UsageError
from ..share.lease import Lease
from . import cursor as c
from .cursor import Cursor, Shape, check_room, words_of
from .format import Format, encode, pack, packed_size
from .queue import Queue
from .streams import Tracker


@dataclass(frozen=True)
class Meta:
    """The data that goes with a frame."""

    size: int
    user: bytes = b""
    time: int = 0
    fields: bytes = b""  # that say what the frame is


def meta_of(slot_size: int, size: int | None, user: bytes, time: int, format: Format | None) -> Meta:
    """Return the data that goes with a frame. Raises UsageError if it, or the frame, has no room."""
    if format is not None and not isinstance(format, Format):
        raise UsageError(f"a format is a gpufd.channel.Format, not {type(format).__name__}")
    wanted = format.nbytes if format else None
    check_room(slot_size, max(wanted or 0, arguments.number("size", size or 0)))
    if size is None:
        size = slot_size if wanted is None else wanted
    if (wanted or 0) > size:
        raise UsageError(f"a frame of {size} bytes, and the format says {wanted}")
    own, fields = bytes(arguments.buffer("user", user)), encode(format) if format else b""
    if len(own) > c.MAX_USER:
        raise UsageError(f"a frame with {len(own)} bytes of the application's own: {c.MAX_USER} are the most")
    left = (c.MAX_USER - len(own)) // 8 * 8
    if packed_size(fields) > left:
        raise UsageError(
            f"a frame's format takes {packed_size(fields)} bytes, and {left} of {c.MAX_USER} are left beside {len(own)} of the application's own: "
            "say less of either"
        )
    return Meta(size, own, time, fields)


@dataclass(frozen=True)
class Gone:
    """A reader that is gone."""

    lease: int  #: number of its lease
    released: int  #: sequence of the last frame that it gave back, or 0
    err: Error | None  #: why it is gone; None if it left in order


class Member:
    """A reader that has joined, or is to."""

    def __init__(self, cursor: Cursor, shape: Shape, lease: Lease) -> None:
        self.cursor, self.words, self.shape, self.lease = cursor, cursor.words, shape, lease
        self.queue = Queue(0, shape.slots)
        self.joined = False  # or turned away: it is not waited for
        self.first = 0  # sequence of the frame with number 1, where readers block
        self.gone = False  # it is given nothing any more
        self.why: Error | None = None
        self.until: int | None = None  # what the tracker says when no stream waits for it any more; once it is gone and unpinned
        self.revoke = False  # its lease is to be taken back
        self.pins = 0  # who uses the cursor without the writer's lock
        self.stuck: tuple[int, float] = (0, 0.0)  # the frame that a stream waits for, and since when

    def sequence_of(self, number: int) -> int:
        """Return the sequence of a frame that it was given."""
        if number and self.queue.policy == c.LATEST:  # which is given every frame, and has its entries by their slots
            return self.first + number - 1
        return self.words.load(self.shape.entry(number) + c.SEQUENCE) if number else 0

    def entry(self, number: int, slot: int) -> int:
        """Return where the entry of a frame in a slot begins."""
        return self.shape.entry_at(slot) if self.queue.policy == c.LATEST else self.shape.entry(number)

    def entry_of(self, number: int, slot: int, sequence: int, meta: Meta) -> list[tuple[int, int]]:
        """Return the words that make the entry of a frame, but for its stamp, and the offset of each."""
        at = self.entry(number, slot)
        head = [(at + c.SEQUENCE, sequence), (at + c.SLOT, slot), (at + c.TIME, meta.time), (at + c.BYTES, meta.size), (at + c.LENGTH, len(meta.user))]
        own = words_of(meta.user) + words_of(pack(meta.fields, sequence))
        return head + [(at + c.USER + 8 * i, word) for i, word in enumerate(own)]

    def publish(self, slot: int, sequence: int, meta: Meta) -> None:
        """Give it the frame, whose entry is not whole while it is written."""
        n = self.queue.give(slot)
        stamp = self.entry(n, slot) + c.STAMP
        self.words.store(stamp, 2 * n - 1)
        for at, word in self.entry_of(n, slot, sequence, meta):
            self.words.store(at, word)
        self.words.store(stamp, 2 * n)
        if self.queue.policy == c.LATEST:
            self.words.store(c.NEWEST, slot)
        self.words.store(c.PUBLISHED, n)
        self.words.ring(c.READER_BELL)

    def describe_on(self, tracker: Tracker, slot: int, sequence: int, meta: Meta) -> None:
        """Add to a stream's batch what writes the entry of the reader's next frame."""
        n = self.queue.published + 1
        for at, word in [*self.entry_of(n, slot, sequence, meta), (self.entry(n, slot) + c.STAMP, 2 * n)]:
            tracker.write(self.cursor.device + at, word)

    def has_left(self) -> bool:
        """Return whether the reader has left. It may keep its lease longer, until its memory can be closed."""
        return self.words.load(c.READER_STATE) == c.LEFT

    def look(self) -> None:
        """Look at what the reader has given back. Raises ChannelError ("cursor") if it has written nonsense."""
        self.queue.see(self.words.load(c.RELEASED))
        if self.queue.policy == c.LATEST:
            self.queue.see_claim(self.words.load(c.CLAIM))

    def claims(self, slot: int, sequence: int) -> bool:
        """Return whether a reader of LATEST takes or holds its frame in the slot, which the writer has chosen for the
        frame of that sequence. It marks the frame first: a reader that claims the slot later sees the mark,
        and takes a newer frame. Raises ChannelError ("cursor") if that claim cannot be."""
        n, stamp = self.queue.in_slot[slot], self.shape.entry_at(slot) + c.STAMP
        if self.queue.policy != c.LATEST or not n:
            return False
        self.words.store(stamp, 2 * n + 1)
        self.words.fence()  # as the reader's, between its claim and its look at the stamp
        if self.words.load(c.CLAIM) != slot + 1:
            return False
        self.queue.deny(slot, sequence)
        self.words.store(stamp, 2 * n)
        return True

    def kept(self) -> tuple[int, int] | None:
        """Return the word by which a reader that keeps nobody waiting gives a slot back, and what it was; None
        if it has nothing to give back, or blocks."""
        q = self.queue
        if q.policy == c.LATEST and q.claimed:
            return c.CLAIM, q.claimed
        if q.policy == c.DROP_NEWEST and q.released < q.published:
            return c.RELEASED, q.released
        return None

    def gone_for(self) -> Gone:
        """Return what on_gone is told of it."""
        q = self.queue
        return Gone(self.lease.number, self.sequence_of(q.released) if q.released <= q.published else 0, self.why)
