"""The contents of a part: tensors in the words of safetensors, or files one behind the other.

A part's table is JSON that readers are told beside its memory (docs/keeper.md). Its member
"safetensors" lists tensors that lie dense and do not overlap, as the Go programs take them.
"views" lists those that safetensors has no words for: tied ones, and ones with strides of
their own. Only this package reads those.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._errors import Error
from ._wire import MAX_LARGE_DATA


class FormatError(Error):
    """A file, or a table of what a part holds, is not what it has to be."""


ALIGN = 256  # bytes that offsets of tensors are multiples of
TABLE_MOST = MAX_LARGE_DATA - (64 << 10)  # bytes of a table that a keeper takes

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""The dtypes of safetensors, with the bits of an element."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in a part: where it lies, and what it is. stride is in elements, and None
    where the tensor lies dense, its last dimension together."""

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
        if any(n < 0 for n in (*self.shape, self.offset, self.bytes, *(self.stride or ()))):
            raise FormatError(f"tensor {quote(self.name)} has a negative size or place")
        if self.span() != self.bytes:
            raise FormatError(
                f"tensor {quote(self.name)} of {self.dtype} {list(self.shape[:8])} has {self.bytes} bytes instead of {self.span()}"
            )
        if self.offset + self.bytes > size:
            raise FormatError(f"tensor {quote(self.name)} has {self.bytes} bytes at {self.offset}, in a buffer of {size}")

    def span(self) -> int:
        """The bytes from its first element to its last."""
        if self.stride is None:
            return -(-math.prod(self.shape) * BITS[self.dtype] // 8)
        if len(self.stride) != len(self.shape):
            raise FormatError(f"tensor {quote(self.name)} has {len(self.shape)} dimensions and {len(self.stride)} strides")
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * step for n, step in zip(self.shape, self.stride))
        return (last + 1) * BITS[self.dtype] // 8

    def to_json(self) -> dict[str, Any]:
        """The tensor as a table lists it."""
        entry: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        if self.stride is not None:
            entry["stride"] = list(self.stride)
        return {**entry, "offset": self.offset, "bytes": self.bytes}


def quote(text: Any) -> str:
    """A stranger's text that fits into an error."""
    return repr(text if len(str(text)) <= 100 else str(text)[:100] + "…")


@dataclass
class Table:
    """The tensors of a part, or the files in it, as (name, offset, bytes)."""

    size: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def format(self) -> str:
        """safetensors or bytes."""
        return "bytes" if self.files or not (self.tensors or self.views) else "safetensors"

    def all(self) -> list[Tensor]:
        """All tensors, those that are views of others behind them."""
        return self.tensors + self.views

    def place(self, size: int) -> int:
        """Make room for size bytes behind what is there, and return where that begins."""
        at = -(-self.size // ALIGN) * ALIGN
        self.size = at + size
        return at

    def encode(self) -> bytes:
        """The table as JSON. Raises FormatError if no keeper would take it."""
        text = self._encode()
        if len(text) > TABLE_MOST:
            raise FormatError(f"the table has {len(text)} bytes; {TABLE_MOST} are allowed: it has too many names, or too much metadata")
        return text

    def _encode(self) -> bytes:
        if self.format == "bytes":
            files = [{"name": n, "offset": at, "bytes": size} for n, at, size in self.files]
            return compact({"format": "bytes", "files": files} if files else {"format": "bytes"})
        table: dict[str, Any] = {"tensors": [t.to_json() for t in self.tensors]}
        if self.metadata:
            table["metadata"] = self.metadata
        whole: dict[str, Any] = {"format": "safetensors", "safetensors": {**table, "size": self.size}}
        if self.views:
            whole["views"] = [t.to_json() for t in self.views]
        return compact(whole)


def compact(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def parse_table(value: Any, size: int) -> Table:
    """A table from the JSON that came with memory of size bytes. Memory without one has bytes."""
    if value is None:
        return Table(size)
    try:
        table = Table(size)
        for f in value.get("files") or ():
            table.files.append((str(f["name"]), int(f["offset"]), int(f["bytes"])))
        if value.get("format") == "safetensors":
            inner = value["safetensors"]
            table.metadata = {str(k): str(v) for k, v in (inner.get("metadata") or {}).items()}
            table.tensors = [_parse_tensor(t) for t in inner["tensors"]]
            table.views = [_parse_tensor(t) for t in value.get("views") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise FormatError(f"the table of what is kept makes no sense: {e!r}") from None
    check_tensors(table.all(), size)
    return table


def check_tensors(tensors: Iterable[Tensor], size: int) -> None:
    """Raise FormatError unless all tensors lie in a buffer of size bytes, under names of their own."""
    seen = set()
    for t in tensors:
        t.check(size)
        if t.name in seen:
            raise FormatError(f"tensor {quote(t.name)} is there twice")
        seen.add(t.name)


def _parse_tensor(entry: dict[str, Any]) -> Tensor:
    stride = entry.get("stride")
    return Tensor(
        str(entry["name"]), str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), int(entry["offset"]), int(entry["bytes"]),
        None if stride is None else tuple(int(n) for n in stride),
    )  # fmt: skip


def header_of(tensors: Sequence[Tensor], metadata: dict[str, str]) -> tuple[bytes, list[Tensor]]:
    """The beginning of a safetensors file of these tensors, and these as its data has them:
    larger elements first, so that all are aligned."""
    ordered = sorted(tensors, key=lambda t: (-BITS[t.dtype], t.offset))
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for t in ordered:
        entries[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + t.bytes]}
        at += t.bytes
    text = compact(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered
