"""A reader, as the writer of a channel knows it."""

from __future__ import annotations

from dataclasses import dataclass

from .. import arguments
from ..errors import Error, UsageError
from ..share.lease import Lease
from ..wire.peer import Peer
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
    released: int  #: sequence of the last frame that it gave back, or 0; always 0 where slots come back in any order
    err: Error | None  #: why it is gone; None if it left in order
    noted: int = 0  #: the number that it noted last


@dataclass(frozen=True)
class MemberStats:
    """A reader that is there, when it was looked at."""

    lease: int  #: number of its lease
    peer: Peer  #: its process
    noted: int  #: the number of its own that it noted last, or 0
    kept: int  #: frames that it was given and has not given back; those of a reader that blocks keep slots


class Member:
    """A reader that has joined, or is to."""

    def __init__(self, cursor: Cursor, shape: Shape, lease: Lease) -> None:
        self.cursor, self.words, self.shape, self.lease = cursor, cursor.words, shape, lease
        self.queue = Queue(0, shape.slots)
        self.joined = False  # or turned away: it is not waited for
        self.since = 0.0  # when it was seen to wait for the newest frame
        self.first = 0  # sequence of the frame with number 1, where readers block
        self.gone = False  # it is given nothing any more
        self.why: Error | None = None
        self.until: int | None = None  # what the tracker says when no stream waits for it any more; once it is gone and unpinned
        self.revoke = False  # its lease is to be taken back
        self.wanted = 0  # number of the frame for which the writer waits for it to give a slot back, or 0
        self.pins = 0  # who uses the cursor without the writer's lock
        self.stuck: tuple[int, float] = (0, 0.0)  # the frame that a stream waits for, and since when

    def sequence_of(self, number: int) -> int:
        """Return the sequence of a frame that it was given."""
        if number and (self.shape.any_order or self.queue.policy == c.LATEST):  # which is given every frame; its entry may be of a later one
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

    def describe(self, slot: int, sequence: int, meta: Meta) -> list[tuple[int, int]]:
        """Write the entry of the reader's next frame, but for its stamp. Return what a stream has to write then, in
        this order, and where: the stamp, and that the frame is there."""
        n = self.queue.published + 1
        for at, word in self.entry_of(n, slot, sequence, meta):
            self.words.store(at, word)
        return [(self.cursor.device + self.entry(n, slot) + c.STAMP, 2 * n), (self.cursor.device + c.PUBLISHED, n)]

    def has_left(self) -> bool:
        """Return whether the reader has left. It may keep its lease longer, until its memory can be closed."""
        return self.words.load(c.READER_STATE) == c.LEFT

    def look(self) -> None:
        """Look at what the reader has given back. Raises ChannelError ("cursor") if it has written nonsense."""
        if self.shape.any_order:
            for slot in range(self.shape.slots):
                self.queue.see_back(slot, self.words.load(self.shape.release_word(slot)))
            return
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

    def kept(self) -> list[tuple[int, int]]:
        """Return the words by which the reader gives slots back that it has, and what they were. A reader that blocks
        where slots come back in order has none: the writer waits for a certain one of its frames."""
        q = self.queue
        if self.shape.any_order:
            return [(self.shape.release_word(slot), q.back[slot]) for slot in q.kept()]
        if q.policy == c.LATEST:
            return [(c.CLAIM, q.claimed)] if q.claimed else []
        return [(c.RELEASED, q.released)] if q.policy == c.DROP_NEWEST and q.released < q.published else []

    def kept_frames(self) -> int:
        """Return how many frames the reader was given and has not given back. What it says is not checked."""
        if self.shape.any_order:
            return sum(self.words.load(self.shape.release_word(slot)) < number for slot, number in enumerate(self.queue.in_slot))
        return max(0, self.queue.published - self.words.load(c.RELEASED))

    def want(self, number: int) -> None:
        """Tell the reader, under the lock, for which of its frames the writer waits for it to give a slot back; or
        with 0 that it does not."""
        if number == self.wanted:
            return
        self.wanted = number
        self.words.store(c.WANTED, number)
        if number:
            self.words.ring(c.READER_BELL)

    def gone_for(self) -> Gone:
        """Return what on_gone is told of it."""
        q = self.queue
        return Gone(self.lease.number, self.sequence_of(q.released) if q.released <= q.published else 0, self.why, self.words.load(c.NOTED))

    def stats(self) -> MemberStats:
        """Return what the writer knows of it now, under the lock."""
        return MemberStats(self.lease.number, self.lease.peer, self.words.load(c.NOTED), self.kept_frames())
