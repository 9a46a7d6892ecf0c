"""The contents of a part: tensors in the words of safetensors, or files one behind the other.

A part's table is JSON that readers are told beside its memory (docs/keeper.md). Its member
"safetensors" lists tensors that lie dense and do not overlap, as the Go programs take them.
"views" lists those that safetensors has no words for: tied ones, and ones with strides of
their own. "order" has the places of all of them, views behind, in the order in which their
writer named them, where that is another one. Only this package reads those two.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import FormatError, MismatchError, UsageError
from ..share.kept import Kept, kept_of
from ..wire.records import MAX_LARGE_DATA, Offer


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Name the file, or the table of what is kept, in a FormatError."""
    try:
        yield
    except FormatError as e:
        if str(e).startswith(what):
            raise
        raise FormatError(f"{what}: {e}") from None


ALIGN = 256  # bytes that offsets of tensors are multiples of
HEADER_MOST = 100_000_000  # bytes of a file's header, which the format sets
TABLE_MOST = MAX_LARGE_DATA - (64 << 10)  # bytes of a table that a keeper takes

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""The dtypes of safetensors, with the bits of an element."""


U64 = 1 << 64  # numbers of bytes and elements are below it


class Tensor(NamedTuple):
    """A tensor in a part: where it lies, and what it is. stride is in elements, and None
    where the tensor lies dense, its last dimension together. There may be 100,000 of them: a
    tuple is made in a quarter of the time that other objects take."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    stride: tuple[int, ...] | None = None

    def check(self, size: int) -> None:
        """Raise FormatError unless the tensor lies in a buffer of size bytes."""
        if self.dtype not in BITS:
            raise FormatError(f"tensor {quote(self.name)} is of type {quote(self.dtype)}, which is unknown")
        if self.offset < 0 or self.bytes < 0 or min(self.shape, default=0) < 0 or self.stride and min(self.stride) < 0:
            raise FormatError(f"tensor {quote(self.name)} has a negative size or place")
        span = self.span()
        if span != self.bytes:
            raise FormatError(f"tensor {quote(self.name)} of {self.dtype} {_short(self.shape)} has {self.bytes} bytes instead of {span}")
        if self.offset + self.bytes > size:
            raise FormatError(f"tensor {quote(self.name)} has {self.bytes} bytes at {self.offset}, in a buffer of {size}")

    def span(self) -> int:
        """The bytes from its first element to its last."""
        if self.stride is None:
            n = 1
            for dimension in (*self.shape, BITS[self.dtype]):
                n *= dimension
                if n >= U64:  # also, as in a file, before a 0; what follows may be a million numbers more
                    break
            if n >= U64 or n % 8:
                raise FormatError(f"tensor {quote(self.name)} of {self.dtype} {_short(self.shape)} does not have a number of bytes")
            return n // 8
        if len(self.stride) != len(self.shape):
            raise FormatError(f"tensor {quote(self.name)} has {len(self.shape)} dimensions and {len(self.stride)} strides")
        if 0 in self.shape:
            return 0
        last = sum((d - 1) * step for d, step in zip(self.shape, self.stride))
        return (last + 1) * BITS[self.dtype] // 8

    def to_json(self) -> dict[str, Any]:
        """The tensor as a table lists it."""
        if self.stride is None:
            return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "offset": self.offset, "bytes": self.bytes}
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "stride": self.stride, "offset": self.offset, "bytes": self.bytes}


def _short(shape: Sequence[int]) -> str:
    """A shape that fits into an error."""
    return f"{list(shape)}" if len(shape) <= 8 else f"{list(shape[:8])} and {len(shape) - 8} more"


def quote(text: Any) -> str:
    """A stranger's text that fits into an error."""
    if isinstance(text, (list, dict, int)) and not isinstance(text, bool):
        return f"a {type(text).__name__}"
    return repr(text if len(str(text)) <= 100 else str(text)[:100] + "…")


@dataclass
class Table:
    """The tensors of a part, or the files in it, as (name, offset, bytes)."""

    size: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)  # of safetensors, and beside bytes
    files: list[tuple[str, int, int]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)  # places in all(), or empty

    @property
    def format(self) -> str:
        """safetensors or bytes."""
        return "bytes" if self.files or not (self.tensors or self.views) else "safetensors"

    def all(self) -> list[Tensor]:
        """All tensors, those that are views of others behind them."""
        return self.tensors + self.views

    def in_order(self) -> list[Tensor]:
        """All tensors as their writer named them, one after the other."""
        listed = self.all()
        return [listed[i] for i in self.order] if self.order else listed

    def order_as(self, names: Iterable[str]) -> None:
        """Set the order of in_order to these names, which are those of all tensors."""
        places = {t.name: i for i, t in enumerate(self.all())}
        order = [places[name] for name in names]
        self.order = order if order != sorted(order) else []

    def layout(self) -> str:
        """Return the digest of where which tensors lie: docs/wire.md, "Keeper". It is "" where there are none.

        Two versions of one layout can be mapped at the same address under tensors and graphs that are there.
        """
        listed = _by_name(self)
        digest = hashlib.sha256()
        for name in sorted(listed):
            t = listed[name]
            numbers = [",".join(map(str, several)) for several in (t.shape, t.stride or ())]
            digest.update(b"\0".join([name, *(text.encode() for text in (t.dtype, *numbers, str(t.offset)))]) + b"\n")
        return f"gpufd-l1:{digest.hexdigest()[:32]}" if listed else ""

    def place(self, size: int) -> int:
        """Make room for size bytes behind what is there, and return where that begins."""
        at = -(-self.size // ALIGN) * ALIGN
        self.size = at + size
        return at

    def add_metadata(self, metadata: Mapping[str, str]) -> None:
        """Add a caller's metadata to that of the files. Raises UsageError for a key that has another value there."""
        for key, value in metadata.items():
            if self.metadata.setdefault(key, value) != value:
                raise UsageError(f"metadata {quote(key)} is {quote(value)}, and the files say {quote(self.metadata[key])}")

    def encode(self) -> bytes:
        """The table as JSON. Raises FormatError if no keeper would take it."""
        try:
            text = self._encode()
        except UnicodeEncodeError as e:
            raise FormatError(f"a name in the table has no UTF-8: {quote(e.object[max(0, e.start - 20) : e.end])}") from None
        if len(text) > TABLE_MOST:
            raise FormatError(f"the table has {len(text)} bytes; {TABLE_MOST} are allowed: it has too many names, or too much metadata")
        return text

    def _encode(self) -> bytes:
        if self.format == "bytes":
            files = [{"name": n, "offset": at, "bytes": size} for n, at, size in self.files]
            beside = {"files": files, "metadata": self.metadata}
            return compact({"format": "bytes"} | {key: value for key, value in beside.items() if value})
        table: dict[str, Any] = {"tensors": [t.to_json() for t in self.tensors]}
        if self.metadata:
            table["metadata"] = self.metadata
        whole: dict[str, Any] = {"format": "safetensors", "safetensors": {**table, "size": self.size}}
        if self.views:
            whole["views"] = [t.to_json() for t in self.views]
        if self.order:
            whole["order"] = self.order
        return compact(whole)


def _by_name(table: Table) -> dict[bytes, Tensor]:
    """Return the tensors by their names in UTF-8."""
    return {t.name.encode(): t for t in table.all()}


def check_layout(there: Kept, table: Table, offer: Offer, difference: Callable[[Table, Table], str] | None = None) -> None:
    """Raise MismatchError (layout) unless the tensors of an offer lie as those of a part that is mapped, and has this table.

    difference, which is layout_difference by default, says what is against it.

    Nothing else than the offer's own table says that: its digest is only a writer's word. Raises FormatError if a tensor lies
    outside of the offer's memory, or the table makes no sense.
    """
    new = kept_of(offer)
    if how := (difference or layout_difference)(table, table_of(new, offer.size)):
        text = f"version {new.version} of {new.name} has another layout than version {there.version}, whose address it is to get"
        raise MismatchError(f"{text}: {how}", reason="layout")


def layout_difference(old: Table, new: Table) -> str:
    """Return in which tensor, the first by its name, two tables have another layout, and how; "" if they have the same."""
    there, here = _by_name(old), _by_name(new)
    for name in sorted({*there, *here}):
        before, after = there.get(name), here.get(name)
        if before is None or after is None:
            return f"tensor {quote(name.decode())} is only in the {'old' if after is None else 'new'} one"
        if how := _other_place(before, after):
            return f"tensor {quote(before.name)} {how}"
    return ""


def _other_place(a: Tensor, b: Tensor) -> str:
    """Return how the second of two tensors lies in another way than the first, or ""."""
    if a.dtype != b.dtype:
        return f"is of {b.dtype}, and was of {a.dtype}"
    for what, before, after in (("shape", a.shape, b.shape), ("strides", a.stride or (), b.stride or ())):
        if before != after:
            return f"has the {what} {_short(after)}, and had {_short(before)}"
    return f"is at byte {b.offset}, and was at {a.offset}" if a.offset != b.offset else ""


def compact(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def table_of(kept: Kept, size: int) -> Table:
    """Return the table of a part of that size. Raises FormatError if it makes no sense."""
    with naming(f"{kept.name}, version {kept.version}, part {kept.part}"):
        return parse_table(kept.table, size)


def parse_table(value: Any, size: int) -> Table:
    """A table from the JSON that came with memory of size bytes. Memory without one has bytes."""
    table = Table(size)
    if value is None:
        return table
    try:
        for f in value.get("files") or ():
            table.files.append((_text(f.get("name", "")), _number(f.get("offset", 0)), _number(f.get("bytes", 0))))
        table.metadata = _metadata(value)
        if value.get("format") == "safetensors":
            inner = value["safetensors"]
            table.metadata = _metadata(inner)
            limit = _number(inner.get("size", 0))
            if limit > size:
                raise FormatError(f"the table is for a buffer of {limit} bytes, and this one has {size}")
            table.tensors = [_parse_tensor(t, None) for t in inner["tensors"]]
            table.views = [_parse_tensor(t, t.get("stride")) for t in value.get("views") or ()]
            table.order = [_number(n) for n in value.get("order") or ()]
            if table.order and sorted(table.order) != list(range(len(table.all()))):
                raise FormatError("the table's order does not name each tensor once")
            check_tensors(table.all(), limit)
            _check_apart(table.tensors)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FormatError(f"the table of what is kept makes no sense: {e!r}") from None
    return table


def _metadata(value: Any) -> dict[str, str]:
    return {_text(k): _text(v) for k, v in (value.get("metadata") or {}).items()}


def check_tensors(tensors: Iterable[Tensor], size: int) -> None:
    """Raise FormatError unless all tensors lie in a buffer of size bytes, under names of their own."""
    seen = set()
    for t in tensors:
        t.check(size)
        if t.name in seen:
            raise FormatError(f"tensor {quote(t.name)} is there twice")
        seen.add(t.name)
    if "__metadata__" in seen:
        raise FormatError("a tensor named '__metadata__', which is another thing in a file")


def _check_apart(tensors: list[Tensor]) -> None:
    """Raise FormatError where tensors share bytes: those that do are views."""
    end, before = 0, ""
    for at, size, name in sorted((t.offset, t.bytes, t.name) for t in tensors if t.bytes):
        if at < end:
            raise FormatError(f"tensors {quote(before)} and {quote(name)} overlap")
        end, before = at + size, name


def _parse_tensor(t: dict[str, Any], stride: Any) -> Tensor:
    name = _text(t.get("name", ""))
    dtype, shape = _text(t.get("dtype", "")), tuple([_number(n) for n in _list(t.get("shape", []))])
    strides = None if stride is None else tuple([_number(n) for n in _list(stride)])
    return Tensor(name, dtype, shape, _number(t.get("offset", 0)), _number(t.get("bytes", 0)), strides)


def _number(n: Any) -> int:
    """A number of 64 bits. JSON may have 1.5, 1e999, true, and one of 4,000 digits."""
    if type(n) is not int or not 0 <= n < U64:
        raise FormatError(f"{quote(n) if type(n) is not int else 'a number that is negative or has too many digits'} instead of a number of bytes or elements")
    return n


def _text(value: Any) -> str:
    """Text. JSON may have half of a surrogate pair, which has no UTF-8."""
    if type(value) is not str:
        raise FormatError(f"{quote(value)} instead of text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FormatError(f"text with half of a surrogate pair: {value[:100]!r}") from None
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise FormatError(f"{quote(value)} instead of a list")
    return value


def header_of(tensors: Sequence[Tensor], metadata: dict[str, str]) -> tuple[bytes, list[Tensor]]:
    """The beginning of a safetensors file of these tensors, and these as its data has them:
    larger elements first, so that all are aligned."""
    ordered = sorted(tensors, key=lambda t: (-BITS[t.dtype], t.offset, t.bytes))
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, dtype, shape, _, size, _ in ordered:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (at, at + size)}
        at += size
    text = compact(entries)
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_MOST:
        raise FormatError(f"a header of {len(text)} bytes")
    return len(text).to_bytes(8, "little") + text, ordered
