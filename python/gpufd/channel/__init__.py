"""Channels: frames from one process to others through GPU memory, in order.

    with gpufd.channel.Writer("cam", slots=8, slot_size=3 * 1080 * 1920) as w:
        w.send(image, pts=n, time_base=(1, 60))    # a tensor or an array, or bytes

        slot = w.acquire(timeout=1.0)              # or in place: no reader that blocks holds the slot
        render(slot.tensor("U8", (3, 1080, 1920)))
        torch.cuda.synchronize()                   # or acquire_on and publish_on, by a stream
        w.publish(slot, format=gpufd.channel.Format("U8", (3, 1080, 1920)), user=b"left camera")

    with gpufd.channel.Reader("cam", policy="drop-oldest", wait=30) as r:
        for frame in r:                            # until the writer ends
            show(frame.tensor.clone())             # frame.array() and frame.planes need no PyTorch

The other side may be a gpufd program in any language: those that do not know what a frame is have its
bytes. On a GPU a reader uses the device that the frames are on. docs/channels.md in gpufd's sources says
more, and docs/wire.md says what is in the memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator

from .. import arguments
from ..errors import ChannelError, Error, TimedOutError, suppress
from ..memory.device import Device
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer
from ..wire.records import MAX_CHUNKS, MAX_LARGE_DATA, READ_ONLY
from .cursor import ENTRY_SIZE, MAX_READERS, MAX_SLOTS, MAX_USER, MIN_SLOTS
from .entry import Entry, decode_entry, now
from .format import Colour, Format, Plane
from .frame import Frame, Slot
from .member import Gone, MemberStats
from .reader import Reader, ReaderStats
from .writer import Writer, WriterStats

_AGAIN = 0.02  # seconds


def follow(
    name: str = "",
    *,
    socket: str | os.PathLike[str] | None = None,
    within: float | None = None,
    policy: str = "block",
    join: str = "next",
    timeout: float | None = DEFAULT_TIMEOUT,
    access: int = READ_ONLY,
    device: Device | None = None,
    driver: str | int | None = None,
    max_chunks: int = MAX_CHUNKS,
    max_size: int | None = None,
    max_data: int = MAX_LARGE_DATA,
    reoffer: bool = False,
    connected: Callable[[Peer], None] = lambda peer: None,
) -> Iterator[Reader]:
    """Open a reader, and another one for each writer that comes after.

        for reader in gpufd.channel.follow("cam"):
            with contextlib.suppress(gpufd.LostError):  # the writer was killed: the next one may come
                for frame in reader:
                    ...

    When a writer has ended or died, follow closes the reader after the loop's body, and waits for
    the next writer at the socket. Raises TimedOutError if none comes within that many seconds. The
    other arguments are those of Reader.
    """
    one = functools.partial(
        Reader, name, socket=socket, policy=policy, join=join, timeout=timeout, access=access, device=device, driver=driver,
        max_chunks=max_chunks, max_size=max_size, max_data=max_data, reoffer=reoffer, connected=connected,
    )  # fmt: skip
    return _follow(one, name, arguments.seconds("within", within))


def _follow(one: Callable[..., Reader], name: str, within: float) -> Iterator[Reader]:
    known = 0
    while True:
        reader = _next_of(one, name, known, within)
        known = reader.attachment.generation
        try:
            yield reader
        finally:
            reader.close()


def _next_of(one: Callable[..., Reader], name: str, known: int, within: float) -> Reader:
    """Return a reader of a channel that is newer than what is known."""
    end = time.monotonic() + within
    while (left := end - time.monotonic()) > 0:
        with suppress(Error, *_PASSING):
            return one(wait=min(60.0, left), newer_than=known)
        time.sleep(min(_AGAIN, left))
    raise TimedOutError(f"no other writer of {name!r} came within {within:g} s")


_PASSING = ("stale", "ended", "lost", "nobody-listens", "not-found")  # another writer may admit the reader

__all__ = [
    "ENTRY_SIZE",
    "MAX_READERS",
    "MAX_SLOTS",
    "MAX_USER",
    "MIN_SLOTS",
    "ChannelError",
    "Colour",
    "Entry",
    "Format",
    "Frame",
    "Gone",
    "MemberStats",
    "Plane",
    "Reader",
    "ReaderStats",
    "Slot",
    "Writer",
    "WriterStats",
    "decode_entry",
    "follow",
    "now",
]
