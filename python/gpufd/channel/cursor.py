"""The cursors of one reader, which it and the writer map: docs/wire.md, "Channels"."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from ..errors import ChannelError, UsageError
from ..memory import libcuda as cu
from ..memory.base import Memory
from .format import HEADER, size_at
from .words import Words, map_words

# The offsets of the words.
MAGIC, VERSION, SLOTS, SLOT_SIZE, STRIDE, FLAGS, GENERATION = range(0x000, 0x038, 8)
PUBLISHED, NEWEST = 0x080, 0x088
WRITER_STATE, LAST, WRITER_POLLS, START, WANTED = range(0x100, 0x128, 8)
RELEASED = 0x180
READER_STATE, POLICY, JOIN, READER_POLLS, CLAIM, NOTED = range(0x200, 0x230, 8)
READER_BELL, WRITER_BELL = 0x280, 0x300
RETURNED = 0x400  # a word for each slot, where slots come back in any order
ENTRIES = 0x1000
ENTRY_SIZE = 256
STAMP, SEQUENCE, SLOT, TIME, BYTES, LENGTH, USER = range(0x00, 0x38, 8)  # in an entry

MAGIC_NUMBER = int.from_bytes(b"GPFDCHN1", "little")
LAYOUT_VERSION = 1
STREAMS = 1  # a flag: all readers block, and slots follow each other
ANY_ORDER = 2  # a flag: all readers block, and each slot comes back by itself
MIN_SLOTS, MAX_SLOTS, MAX_READERS = 1, 4096, 64
MAX_ANY_ORDER = (ENTRIES - RETURNED) // 8  # slots
MAX_USER = ENTRY_SIZE - USER
MAX_CURSOR = ENTRIES + MAX_SLOTS * ENTRY_SIZE
SLOT_ALIGN = 256
GIVEN = (1 << 63) - 1  # what a side writes to free its own streams
OPEN, ENDED, DROPPED, REFUSED = range(4)  # states of the writer
NOT_YET, JOINED, LEFT = range(3)  # of the reader
BLOCK, DROP_OLDEST, DROP_NEWEST, LATEST = 1, 2, 3, 4
POLICIES = {"block": BLOCK, "drop-oldest": DROP_OLDEST, "drop-newest": DROP_NEWEST, "latest": LATEST}
JOINS = {"next": 1, "newest": 2}


def policy_name(policy: int) -> str:
    return next((name for name, number in POLICIES.items() if number == policy), f"policy {policy}")


def number_of(kinds: dict[str, int], name: str, what: str) -> int:
    """Return the number of a policy, or of a join, by its name."""
    if not isinstance(name, str) or name not in kinds:
        raise UsageError(f"{what} {name!r}: want {', '.join(kinds)}")
    return kinds[name]


@dataclass(frozen=True)
class Shape:
    """The shape of a channel, which both sides know."""

    slots: int
    slot_size: int
    stride: int
    streams: bool
    generation: int = 0
    any_order: bool = False

    @classmethod
    def new(cls, slots: int, slot_size: int, streams: bool, any_order: bool = False) -> Shape:
        if streams and any_order:
            raise UsageError("streams and any_order exclude each other: in a channel for streams frames are given back in their order")
        most = MAX_ANY_ORDER if any_order else MAX_SLOTS
        if not MIN_SLOTS <= slots <= most:
            raise UsageError(f"{slots} slots; want {MIN_SLOTS} to {most}")
        stride = -(-slot_size // SLOT_ALIGN) * SLOT_ALIGN
        if slot_size < 1 or stride * slots > 1 << 62:
            raise UsageError(f"slots of {slot_size} bytes; want 1 or more, and {slots} of them below 2^62")
        return cls(slots, slot_size, stride, streams, any_order=any_order)

    @classmethod
    def read(cls, w: Words, size: int, generation: int) -> Shape:
        """Read and check the head that a writer has filled, against the offer of so many bytes. Raises ChannelError ("cursor")."""
        if w.load(MAGIC) != MAGIC_NUMBER:
            raise ChannelError("the cursors do not begin with GPFDCHN1", reason="cursor")
        if w.load(VERSION) != LAYOUT_VERSION:
            raise ChannelError(f"cursors of version {w.load(VERSION)}; this program knows {LAYOUT_VERSION}", reason="cursor")
        flags = w.load(FLAGS)
        s = cls(w.load(SLOTS), w.load(SLOT_SIZE), w.load(STRIDE), flags & STREAMS != 0, w.load(GENERATION), flags & ANY_ORDER != 0)
        if flags & ~(STREAMS | ANY_ORDER) or s.streams and s.any_order:
            raise ChannelError(f"flags {flags:#x} of the cursors are not known here", reason="cursor")
        if not MIN_SLOTS <= s.slots <= (MAX_ANY_ORDER if s.any_order else MAX_SLOTS) or s.cursor_size != w.size:
            raise ChannelError(f"{s.slots} slots in cursors of {w.size} bytes", reason="cursor")
        if not 0 < s.slot_size <= s.stride or s.stride > size // s.slots:
            raise ChannelError(f"{s.slots} slots of {s.slot_size} bytes, {s.stride} apart, in a buffer of {size}", reason="cursor")
        if s.generation != generation:
            raise ChannelError(f"the cursors are of generation {s.generation}, the buffer is of {generation}", reason="cursor")
        return s

    def write(self, w: Words) -> None:
        """Fill the head of cursors."""
        for at, value in ((MAGIC, MAGIC_NUMBER), (VERSION, LAYOUT_VERSION), (SLOTS, self.slots), (SLOT_SIZE, self.slot_size),
                          (STRIDE, self.stride), (GENERATION, self.generation), (FLAGS, STREAMS * self.streams | ANY_ORDER * self.any_order)):  # fmt: skip
            w.store(at, value)

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self.slots * self.stride

    @property
    def cursor_size(self) -> int:
        return (ENTRIES + self.slots * ENTRY_SIZE + 4095) & ~4095

    def entry(self, number: int) -> int:
        """Return where the entry of a frame begins, but with LATEST."""
        return self.entry_at((number - 1) % self.slots)

    def entry_at(self, index: int) -> int:
        """Return where the entry of that index begins: with LATEST, of the frame in that slot."""
        return ENTRIES + index * ENTRY_SIZE

    def find(self, w: Words, number: int) -> int | None:
        """Return the slot of the frame of that number, with LATEST, if its entry is whole."""
        return next((slot for slot in range(self.slots) if w.load(self.entry_at(slot) + STAMP) == 2 * number), None)

    def release_word(self, slot: int) -> int:
        """Return the word that says what the reader gave back: one of the slot, or one for all slots."""
        return RETURNED + 8 * slot if self.any_order else RELEASED

    def slot_of(self, sequence: int) -> int:
        """Return the slot of a frame where slots follow each other."""
        return (sequence - 1) % self.slots


def check_room(slot_size: int, size: int) -> None:
    """Raise UsageError if a slot is too small for a frame of so many bytes."""
    if size > slot_size:
        raise UsageError(f"a slot of {slot_size} bytes is too small: this frame wants {size}; make the channel with slot_size={size} or more")


def acting(shape: Shape, policy: int) -> int:
    """Return the policy by which a reader that asks for one orders frames with the writer. Raises ChannelError ("policy")."""
    if shape.streams and policy == LATEST:  # it gives back what it skips
        return BLOCK
    check_policy(shape, policy)
    return policy


def check_policy(shape: Shape, policy: int) -> None:
    """Raise ChannelError ("policy") if the channel does not admit that policy of a reader."""
    if policy == BLOCK:
        return
    if shape.slots == 1:
        raise ChannelError(f"a channel of 1 slot admits readers of block, not of {policy_name(policy)}: the writer needs another slot beside theirs", reason="policy")
    if shape.any_order:
        raise ChannelError(f"slots come back in any order in this channel, which admits readers of block, not of {policy_name(policy)}", reason="policy")
    if shape.streams:
        raise ChannelError(
            "the channel is for streams, where readers block: streams are given frames and slots before anybody knows whether this reader "
            f"would be too slow for {policy_name(policy)}; block and latest are admitted",
            reason="policy",
        )


@dataclass(frozen=True)
class EntryWords:
    """The words of the writer's entry for a frame, but for the application's own."""

    stamp: int
    sequence: int
    slot: int
    time: int
    bytes: int
    length: int

    @classmethod
    def read(cls, w: Words, at: int) -> EntryWords:
        return cls(*(w.load(at + off) for off in (STAMP, SEQUENCE, SLOT, TIME, BYTES, LENGTH)))


def words_of(user: bytes) -> list[int]:
    """Return the application's own as words, zeros behind the end."""
    padded = user + bytes(-len(user) % 8)
    return [int(n) for (n,) in struct.iter_unpack("<Q", padded)]


def read_user(w: Words, at: int, length: int) -> bytes:
    """Return the application's own of the entry there."""
    words = [w.load(at + USER + i) for i in range(0, length, 8)]
    return struct.pack(f"<{len(words)}Q", *words)[:length]


def read_fields(w: Words, at: int, length: int, sequence: int) -> bytes:
    """Return what lies behind the application's own of the entry there, if it says what the frame of that sequence
    is: the header and the fields, no further than the entry goes."""
    begin = USER + -(-length // 8) * 8
    size = size_at(header := w.load(at + begin), sequence) if begin < ENTRY_SIZE else 0
    if not size:
        return b""
    behind = range(begin + HEADER.size, min(begin + HEADER.size + size, ENTRY_SIZE), 8)
    words = [header, *(w.load(at + i) for i in behind)]
    return struct.pack(f"<{len(words)}Q", *words)


class Cursor:
    """The cursors of one reader, mapped here, and known to the device where streams use them."""

    def __init__(self, fd: int, size: int) -> None:
        self.words = map_words(fd, size)
        self.device = 0  # address of the first word for streams, or 0
        self._registered: tuple[cu.Libcuda, int] | None = None

    def register(self, memory: Memory) -> None:
        """Register the words, so that streams of the memory's device can wait for them and write them."""
        from ..memory.cuda import CudaMemory

        if not isinstance(memory, CudaMemory):
            return
        portable, mapped = 1, 2
        with memory.current() as lib:
            lib.call("cuMemHostRegister_v2", self.words.address, self.words.size, portable | mapped)
            self._registered = lib, memory.context
            self.device = lib.made("cuMemHostGetDevicePointer_v2", ctypes.c_void_p(self.words.address), 0, of=cu.PTR)

    def close(self) -> None:
        """Unregister and unmap the words. No stream may wait there any more: one that does
        keeps the driver here for ever."""
        if self._registered:
            lib, context = self._registered
            with lib.current(context):
                lib.call("cuMemHostUnregister", self.words.address)
            self._registered = None
        self.words.close()
