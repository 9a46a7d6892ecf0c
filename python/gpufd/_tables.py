"""The contents of a part: tensors in the words of safetensors, or files one behind the other.

A part's table is JSON that readers are told beside its memory (docs/keeper.md). Its member
"safetensors" lists tensors that lie dense and do not overlap, as the Go programs take them.
"views" lists those that safetensors has no words for: tied ones, and ones with strides of
their own. "order" has the places of all of them, views behind, in the order in which their
writer named them, where that is another one. Only this package reads those two.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._errors import Error


class FormatError(Error):
    """A file, or a table of what a part holds, is not what it has to be."""


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Have a FormatError say whose fault it is: a file's, or the table's of what is kept."""
    try:
        yield
    except FormatError as e:
        if str(e).startswith(what):
            raise
        raise FormatError(f"{what}: {e}") from None


ALIGN = 256  # bytes that offsets of tensors are multiples of
HEADER_MOST = 100_000_000  # bytes of a file's header, which the format sets

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
        n = BITS[self.dtype]
        if self.stride is None:
            for dimension in self.shape:
                n *= dimension
                if n >= U64:  # what follows may be a million numbers more
                    n = 0 if 0 in self.shape else 1
                    break
            if n % 8:
                raise FormatError(f"tensor {quote(self.name)} of {self.dtype} {_short(self.shape)} does not have a number of bytes")
            return n // 8
        if len(self.stride) != len(self.shape):
            raise FormatError(f"tensor {quote(self.name)} has {len(self.shape)} dimensions and {len(self.stride)} strides")
        if 0 in self.shape:
            return 0
        last = sum((d - 1) * step for d, step in zip(self.shape, self.stride))
        return (last + 1) * n // 8

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
    metadata: dict[str, str] = field(default_factory=dict)
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
        """Have in_order go by these names, which are those of all tensors."""
        places = {t.name: i for i, t in enumerate(self.all())}
        order = [places[name] for name in names]
        self.order = order if order != sorted(order) else []

    def place(self, size: int) -> int:
        """Make room for size bytes behind what is there, and return where that begins."""
        at = -(-self.size // ALIGN) * ALIGN
        self.size = at + size
        return at

    def encode(self) -> bytes:
        """The table as JSON."""
        if self.format == "bytes":
            files = [{"name": n, "offset": at, "bytes": size} for n, at, size in self.files]
            return compact({"format": "bytes", "files": files} if files else {"format": "bytes"})
        table: dict[str, Any] = {"tensors": [t.to_json() for t in self.tensors]}
        if self.metadata:
            table["metadata"] = self.metadata
        whole: dict[str, Any] = {"format": "safetensors", "safetensors": {**table, "size": self.size}}
        if self.views:
            whole["views"] = [t.to_json() for t in self.views]
        if self.order:
            whole["order"] = self.order
        return compact(whole)


def compact(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def parse_table(value: Any, size: int) -> Table:
    """A table from the JSON that came with memory of size bytes. Memory without one has bytes."""
    table = Table(size)
    if value is None:
        return table
    try:
        for f in value.get("files") or ():
            table.files.append((_text(f.get("name", "")), _number(f.get("offset", 0)), _number(f.get("bytes", 0))))
        if value.get("format") == "safetensors":
            inner = value["safetensors"]
            table.metadata = {_text(k): _text(v) for k, v in (inner.get("metadata") or {}).items()}
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


# Files.


@dataclass(frozen=True)
class Segment:
    """bytes bytes at at of a file, which go to offset in the part."""

    path: str
    at: int
    offset: int
    bytes: int


def plan_files(paths: Sequence[str]) -> tuple[Table, list[Segment]]:
    """What a part of files holds, and where its bytes come from: tensors if all files are
    safetensors, indexes of them or directories, and else bytes one behind the other."""
    if all(os.path.isdir(p) or p.endswith((".safetensors", ".safetensors.index.json")) for p in paths):
        return _plan_tensors([file for p in paths for file in _model_files(p)])
    table, segments = Table(), []
    for path in paths:
        size = _regular_size(path)
        if size:
            segments.append(Segment(path, 0, table.size, size))
            table.files.append((os.path.basename(path), table.size, size))
            table.size += size
    return table, segments


def _regular_size(path: str) -> int:
    st = os.stat(path)
    if not stat.S_ISREG(st.st_mode):
        raise FormatError(f"{path} is no regular file")
    return st.st_size


def _model_files(path: str) -> list[str]:
    """The safetensors files that a path stands for."""
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
        indexes = [n for n in names if n.endswith(".safetensors.index.json")]
        files = [os.path.join(path, n) for n in names if n.endswith(".safetensors")]
        if len(indexes) > 1:
            raise FormatError(f"{path} has {len(indexes)} indexes; name one of them")
        if not indexes and not files:
            raise FormatError(f"there are no *.safetensors in {path}")
        return _model_files(os.path.join(path, indexes[0])) if indexes else files
    if not path.endswith(".json"):
        return [path]
    if _regular_size(path) > HEADER_MOST:
        raise FormatError(f"{path}: an index of {_regular_size(path)} bytes")
    with open(path, "rb") as f:
        index = _json(f.read(), path)
    names = sorted(set(_member(index, "weight_map", dict, path).values()), key=str)
    if any(not isinstance(n, str) or os.path.basename(n) != n or n in ("", ".", "..") or "\0" in n for n in names):
        raise FormatError(f"{path}: the index names what is no file beside it")
    return [os.path.join(os.path.dirname(path), n) for n in names]


def _plan_tensors(paths: list[str]) -> tuple[Table, list[Segment]]:
    table, segments = Table(), []
    disputed = set()
    for path in paths:
        tensors, metadata, data_at = read_header(path)
        for t in tensors:
            at = table.place(t.bytes)
            table.tensors.append(Tensor(t.name, t.dtype, t.shape, at, t.bytes))
            if t.bytes:
                segments.append(Segment(path, data_at + t.offset, at, t.bytes))
        disputed |= {k for k, v in metadata.items() if table.metadata.get(k, v) != v}
        table.metadata.update(metadata)
    for key in disputed:
        del table.metadata[key]
    check_tensors(table.tensors, table.size)
    return table, _joined(segments)


def _joined(segments: list[Segment]) -> list[Segment]:
    """Segments, of which those that follow each other in file and part are one."""
    joined: list[Segment] = []
    for s in segments:
        before = joined[-1] if joined else None
        if before and before.path == s.path and before.at + before.bytes == s.at and before.offset + before.bytes == s.offset:
            joined[-1] = Segment(s.path, before.at, before.offset, before.bytes + s.bytes)
        else:
            joined.append(s)
    return joined


def read_header(path: str) -> tuple[list[Tensor], dict[str, str], int]:
    """The tensors of a safetensors file in the order of their bytes, its metadata, and
    where its data begins, from which offsets count. Every byte of it is one tensor's."""
    size = _regular_size(path)
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if size < 8 or not 0 < length <= min(HEADER_MOST, size - 8):
            raise FormatError(f"{path}: a header of {length} bytes in a file of {size}")
        header = _json(f.read(length), path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"{path}: its metadata are not texts")
    tensors = [_header_tensor(name, entry, path) for name, entry in header.items()]
    tensors.sort(key=lambda t: (t.offset, t.bytes))
    at = 0
    for t in tensors:
        try:
            t.check(size)
        except FormatError as e:
            raise FormatError(f"{path}: {e}") from None
        if t.offset != at:
            raise FormatError(f"{path}: tensor {quote(t.name)} begins at {t.offset} and should at {at}: tensors overlap or leave a hole")
        at += t.bytes
    if at != size - 8 - length:
        raise FormatError(f"{path}: the tensors have {at} bytes, and the file has {size - 8 - length} behind its header")
    return tensors, metadata, 8 + length


def _header_tensor(name: str, entry: Any, path: str) -> Tensor:
    if type(entry) is not dict or entry.keys() != _FIELDS:
        raise FormatError(f"{path}: tensor {quote(name)} wants dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    try:
        begin, end = [_number(n) for n in _list(offsets)]
        return Tensor(_text(name), _text(dtype), tuple([_number(n) for n in _list(shape)]), begin, end - begin)
    except (FormatError, ValueError) as e:
        raise FormatError(f"{path}: tensor {quote(name)} has a shape or data_offsets that make no sense: {e}") from None


_FIELDS = {"dtype", "shape", "data_offsets"}


def _member(value: dict[str, Any], name: str, kind: type, path: str) -> Any:
    if not isinstance(value.get(name), kind):
        raise FormatError(f"{path}: {name} is missing, or of another type than it should be")
    return value[name]


def _json(text: bytes, path: str) -> dict[str, Any]:
    """A JSON object, in which no name comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a name is there twice")
        return value

    try:
        value = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{path}: {e}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: no JSON object")
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
