"""The head and the table of a bucket: docs/wire.md, "Weights". Nothing here does IO."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import FormatError, WeightsError
from ..keeper.tables import compact, quote
from .meta import Meta, meta_of_json, number_of, parse

FIRST, LAST, GIVEN_UP = 1, 2, 4  # flags
MAX_TABLE = 8 << 20  # bytes of a table
MAX_TENSORS = 1 << 20
ALIGN = 256  # bytes that places of tensors are multiples of
TABLE_ALIGN = 8
_MARK = b"GFWU"
_HEAD = struct.Struct("<4sIQqIIQQ32s")
HEAD_SIZE = _HEAD.size
FAILED = 1 << 63  # bit of the word noted: the reader is done with the update, and has not loaded it whole
_BEGIN, _END = b'{"tensors":[', b"]}"


def malformed(why: str, what: str = "a frame") -> WeightsError:
    """Return the error for what a publisher must not write."""
    return WeightsError(f"{what} of weights makes no sense: {why}", reason="malformed")


class Head(NamedTuple):
    """The publisher's description of a bucket, in the frame's own bytes."""

    flags: int
    number: int  # of the update, from 1
    step: int  # the trainer's own number
    bucket: int  # in the update, from 0
    tensors: int = 0  # entries of the table
    table_at: int = 0  # byte of the slot
    table_bytes: int = 0
    digest: bytes = hashlib.sha256().digest()  # of the table

    def encode(self) -> bytes:
        return _HEAD.pack(_MARK, *self)

    @classmethod
    def decode(cls, user: bytes, size: int) -> Head:
        """Read the own bytes of a frame of so many bytes. Raises WeightsError ("malformed")."""
        if len(user) != HEAD_SIZE or user[:4] != _MARK:
            raise malformed(f"its own bytes are {len(user)}, and begin with {user[:4]!r}; want {HEAD_SIZE} and {_MARK!r}")
        head = cls(*_HEAD.unpack(user)[1:])
        head._check(size)
        return head

    def _check(self, size: int) -> None:
        contradicts = self.flags & LAST and self.flags & GIVEN_UP or (self.bucket == 0) != bool(self.flags & FIRST)
        if self.flags & ~(FIRST | LAST | GIVEN_UP) or self.number == 0 or contradicts:
            raise malformed(f"bucket {self.bucket} of update {self.number} with flags {self.flags:#x}")
        if self.tensors > MAX_TENSORS or self.table_bytes > MAX_TABLE or (self.tensors == 0) != (self.table_bytes == 0):
            raise malformed(f"{self.tensors} tensors in a table of {self.table_bytes} bytes; at most {MAX_TENSORS} in {MAX_TABLE} are allowed")
        if self.tensors and self.flags & GIVEN_UP:
            raise malformed(f"{self.tensors} tensors in a frame that gives an update up")
        if self.tensors and (self.table_at % TABLE_ALIGN or self.table_at + self.table_bytes > size):
            raise malformed(f"a table of {self.table_bytes} bytes at byte {self.table_at}, in a frame of {size}")


class Entry(NamedTuple):
    """A tensor in a bucket, or a piece of one."""

    name: str
    meta: Meta
    at: int  # byte of the slot
    size: int  # bytes of this piece
    begin: int = 0  # byte of the tensor at which the piece begins

    @property
    def is_whole(self) -> bool:
        """Whether all of the tensor is here."""
        return self.begin == 0 and self.size == self.meta.size

    @property
    def ends(self) -> bool:
        """Whether the tensor is complete with this piece."""
        return self.begin + self.size == self.meta.size

    def encode(self) -> bytes:
        """Return the entry as JSON."""
        there: dict[str, Any] = {"name": self.name, **self.meta.to_json(), "at": self.at, "bytes": self.size}
        return compact(there | {"from": self.begin} if self.begin else there)


def table_size(entries: int, text: int) -> int:
    """Return the bytes of a table of so many entries, whose JSON has so many bytes."""
    return len(_BEGIN) + text + max(0, entries - 1) + len(_END) if entries else 0


def encode_table(entries: Sequence[bytes]) -> bytes:
    """Return the table of entries in JSON; it is empty if there are none."""
    return _BEGIN + b",".join(entries) + _END if entries else b""


class Table(NamedTuple):
    """The entries of a bucket, and the byte of the slot behind the last of them."""

    entries: tuple[Entry, ...] = ()
    end: int = 0

    @classmethod
    def decode(cls, table: bytes, head: Head) -> Table:
        """Read the table that a head describes. Raises WeightsError ("malformed")."""
        if hashlib.sha256(table).digest() != head.digest:
            raise malformed("its table has another digest than its head says")
        try:
            listed = parse(table)["tensors"]
            if type(listed) is not list:
                raise FormatError("tensors is no list")
            entries = tuple([_entry_of(t) for t in listed])
        except (FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise malformed(f"its table: {type(e).__name__ if isinstance(e, RecursionError) else e}") from None
        made = cls(entries, max((e.at + e.size for e in entries), default=0))
        made.check(head)
        return made

    def check(self, head: Head) -> None:
        """Raise WeightsError ("malformed") unless the table is that of a head, as far as its digest does not say so."""
        if len(self.entries) != head.tensors:
            raise malformed(f"its table lists {len(self.entries)} tensors, and its head says {head.tensors}")
        if self.end > head.table_at:
            raise malformed(f"its tensors end at byte {self.end}, and the table begins at {head.table_at}")


def _entry_of(t: Any) -> Entry:
    name, meta = meta_of_json(t)
    at, size, begin = (number_of(n, what) for what, n in (("at", t["at"]), ("bytes", t["bytes"]), ("from", t.get("from", 0))))
    if at % ALIGN:
        raise FormatError(f"tensor {quote(name)} at byte {at}, which is no multiple of {ALIGN}")
    if begin + size > meta.size or not size and (meta.size or begin):
        raise FormatError(f"{size} bytes from byte {begin} of tensor {quote(name)}, which has {meta.size}")
    return Entry(name, meta, at, size, begin)


class Assembly:
    """The updates of a channel, as its frames come: which one is under way, and what has come of it.

    under_way   the first head of the update, or None
    torn        the update that the last frame, or the end, has torn, or None
    """

    def __init__(self, metadata: Mapping[str, Meta] | None = None, in_place: bool = False) -> None:
        """Take what the publisher's offer says of each update."""
        self.under_way: Head | None = None
        self.torn: Head | None = None
        self._metadata, self._in_place = metadata, in_place
        self._number = self._bucket = 0
        self._names: set[str] = set()
        self._open: Entry | None = None  # the last piece of a tensor that is not whole

    def wants(self, head: Head) -> bool:
        """Return whether the next frame begins an update, or goes on with that under way. Otherwise it is skipped, and tears what was under way.

        Raises WeightsError ("malformed") for a frame in place that is not a whole update.
        """
        self.torn, there = None, self.under_way
        if self._in_place and not (head.flags & FIRST and head.flags & (LAST | GIVEN_UP)):
            raise malformed(f"bucket {head.bucket} of update {head.number} in place has flags {head.flags:#x}, and is to be all of its update")
        if head.flags & FIRST or there and (head.number, head.bucket) == (there.number, self._bucket):
            return True
        self.end()
        return False

    def take(self, head: Head, entries: Sequence[Entry]) -> None:
        """Note a frame that is wanted, and what its table has. Raises WeightsError ("malformed"): then the frame has begun no update."""
        if head.flags & FIRST:
            self.end()
            if head.number <= self._number:
                raise malformed(f"update {head.number} behind update {self._number}")
            self._bucket, self._names, self._open = 0, set(), None
        for e in entries:
            self._add(e)
        if head.flags & LAST:
            self._check_end(head)
        if head.flags & FIRST:
            self.under_way, self._number = head, head.number
        self._bucket += 1

    def _add(self, e: Entry) -> None:
        before = self._open
        if before and (e.name != before.name or e.meta != before.meta or e.begin != before.begin + before.size):
            raise malformed(f"tensor {quote(before.name)} goes on with byte {before.begin + before.size} of {before.meta.size}, and {quote(e.name)} came")
        if not before and (e.begin or e.name in self._names):
            raise malformed(f"tensor {quote(e.name)} comes twice, or begins with byte {e.begin}")
        if len(self._names) == MAX_TENSORS and not before:
            raise malformed(f"more than {MAX_TENSORS} tensors")
        if not before and self._metadata is not None and self._metadata.get(e.name) != e.meta:
            raise malformed(f"tensor {quote(e.name)} of {e.meta.dtype} {list(e.meta.shape[:8])} is not one that the metadata names")
        self._names.add(e.name)
        self._open = None if e.ends else e

    def _check_end(self, head: Head) -> None:
        """Raise WeightsError ("malformed") unless the update is whole."""
        if self._open:
            raise malformed(f"tensor {quote(self._open.name)} has {self._open.begin + self._open.size} of {self._open.meta.size} bytes at the end")
        missing = next((name for name in self._metadata or () if name not in self._names), None)
        if missing is not None:
            raise malformed(f"update {head.number} ends without tensor {quote(missing)}, which the metadata names")

    def is_over(self, head: Head) -> bool:
        """Return whether the frame that was taken ends the update: whole, or torn."""
        if head.flags & GIVEN_UP:
            self.end()
        elif head.flags & LAST:
            self.under_way = None
        return not self.under_way

    def end(self) -> None:
        """Note that the update under way, if there is one, gets no further: it is torn."""
        self.torn, self.under_way = self.under_way or self.torn, None


class Packer:
    """Places tensors in one bucket of so many bytes, whose table lies behind them.

    It begins again for each update, and encodes only what differs from the one before.

    count   tensors that are placed
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: list[Entry] = []  # from count on those of the update before
        self._encoded: list[bytes] = []
        self._table = b""  # of all entries, or empty if they have changed
        self.begin()

    def begin(self) -> None:
        """Begin again, without tensors."""
        self.count = self._end = self._text = 0

    def whole(self, name: str, meta: Meta) -> Entry | None:
        """Place a tensor. Return None if it has no room."""
        return self._place(Entry(name, meta, self._next, meta.size))

    def piece(self, name: str, meta: Meta, begin: int) -> Entry | None:
        """Place as much as there is room for of what is left of a tensor. Return None if that is nothing."""
        left = meta.size - begin
        most = max(0, self._size - self._next)
        text = self._text + len(Entry(name, meta, self._next, most, begin).encode())
        room = most - TABLE_ALIGN - table_size(self.count + 1, text)
        n = left if left <= room else room - room % ALIGN
        return self._place(Entry(name, meta, self._next, n, begin)) if n > 0 else None

    def table(self) -> tuple[int, bytes]:
        """Return where the table begins, and its bytes."""
        if self.count < len(self._entries):
            self._forget()
        self._table = self._table or encode_table(self._encoded)
        return _up(self._end, TABLE_ALIGN), self._table

    @property
    def _next(self) -> int:
        return _up(self._end, ALIGN)

    def _place(self, entry: Entry) -> Entry | None:
        n = self.count
        known = n < len(self._entries) and self._entries[n] == entry
        encoded = self._encoded[n] if known else entry.encode()
        table = table_size(n + 1, self._text + len(encoded))
        if n == MAX_TENSORS or table > MAX_TABLE or _up(entry.at + entry.size, TABLE_ALIGN) + table > self._size:
            return None
        if not known:
            self._forget()
            self._entries.append(entry)
            self._encoded.append(encoded)
        self.count, self._end, self._text = n + 1, entry.at + entry.size, self._text + len(encoded)
        return entry

    def _forget(self) -> None:
        """Forget what the update before had from here on."""
        del self._entries[self.count :], self._encoded[self.count :]
        self._table = b""


def _up(n: int, to: int) -> int:
    return -(-n // to) * to
