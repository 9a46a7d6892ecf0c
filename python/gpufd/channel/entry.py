"""The writer's entry for a frame, as kernels find it at :attr:`Frame.meta`, and the clock of frames."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from .. import arguments
from ..errors import ChannelError
from . import cursor as c
from .format import Format, decode, unpack


@dataclass(frozen=True)
class Entry:
    """A frame as the writer describes it."""

    sequence: int  #: the frame's
    index: int  #: of the slot
    size: int  #: bytes of the frame
    time: int  #: nanoseconds of CLOCK_MONOTONIC at which it was published: see now
    user: bytes  #: the application's own
    format: Format | None = None  #: what the frame is, if the writer says so, and what it says is not malformed


def decode_entry(data: bytes | bytearray | memoryview) -> Entry:
    """Read the bytes of a copy of what is at Frame.meta, ENTRY_SIZE of them or more.

    The writer's stream describes a frame only if publish_on is given a size, user or time_ns. Else there is
    what was written last, of a frame with another sequence, or nothing, which is an error. Raises ChannelError
    ("cursor") if the data is too short, is of no frame, or of one that the writer was writing, or has values that no
    frame has.
    """
    raw = bytes(arguments.buffer("an entry", data))
    if len(raw) < c.ENTRY_SIZE:
        raise ChannelError(f"an entry of {len(raw)} bytes; want {c.ENTRY_SIZE}, those at Frame.meta", reason="cursor")
    stamp, sequence, slot, at, size, length = struct.unpack_from("<6Q", raw)
    if stamp == 0:
        raise ChannelError("the entry is of no frame: the writer has said nothing of one there", reason="cursor")
    if stamp % 2:
        raise ChannelError(f"the entry is being written, or its frame is not whole any more (stamp {stamp})", reason="cursor")
    if slot >= c.MAX_SLOTS or length > c.MAX_USER:
        raise ChannelError(f"an entry of slot {slot} with {length} user bytes; want less than {c.MAX_SLOTS} slots, and {c.MAX_USER} bytes at most", reason="cursor")
    try:
        fields = unpack(raw[c.USER + -(-length // 8) * 8 : c.ENTRY_SIZE], sequence)
        format = decode(fields) if fields else None
    except ChannelError:
        format = None
    return Entry(sequence, slot, size, at, raw[c.USER : c.USER + length], format)


def now() -> int:
    """Return the time in nanoseconds of CLOCK_MONOTONIC, the clock of Frame.time: their difference is the frame's
    age, in any process of the machine."""
    return time.monotonic_ns()
