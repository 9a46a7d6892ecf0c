"""The description of a frame: its type, shape, planes, colour and times, as fields that other readers skip.

Nothing here reads or writes memory. docs/wire.md, "What a frame is", has the numbers.
"""

from __future__ import annotations

import math
import operator
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..errors import ChannelError, UsageError
from ..memory.array import DTYPES
from ..wire.records import FIELD_REQUIRED

MARK = 0x4647  # "GF", in the header of fields
HEADER = struct.Struct("<HHI")  # bytes of the fields, MARK, the lowest 32 bits of the frame's sequence
MAX_DIMENSIONS, MAX_PLANES = 8, 4
_MOST = 1 << 62  # bytes: more than any frame has
_PLANE = struct.Struct("<QIIII")


@dataclass(frozen=True)
class Plane:
    """One plane of a picture."""

    offset: int  #: bytes from the frame's beginning
    pitch: int  #: bytes from one row to the next
    rows: int  #: of the plane
    columns: int  #: in each row
    samples: int = 1  #: in each column: 2 where U and V lie side by side

    def end(self, itemsize: int) -> int:
        """Return the bytes from the frame's beginning to the plane's end."""
        return self.offset + self.pitch * (self.rows - 1) + self.columns * self.samples * itemsize


@dataclass(frozen=True)
class Colour:
    """Colours, as numbers of ITU-T H.273: Colour(1, 1, 1) is BT.709, 2 is "unspecified"."""

    primaries: int = 2
    transfer: int = 2
    matrix: int = 2
    full_range: bool = False  #: False: luma is 16 to 235


@dataclass(frozen=True)
class Format:
    """The description of a frame, as far as the writer gives one. Every part is optional.

    dtype       of the elements, as safetensors names it ("U8", "F32"); of planes, of the samples
    shape       of the array at the frame's beginning; with planes, of the picture: (height, width)
    strides     in elements; without them the array lies in C order
    planes      of a picture, each of its own pitch
    pixels      the picture's format, four characters as DRM and V4L2 have them: "NV12", "P010"
    colour      primaries, transfer, matrix and range
    pts         time to present the frame, in units of time_base; in nanoseconds if there is none
    time_base   seconds of a unit, as a Fraction or a pair
    captured    nanoseconds at which the frame was captured, by clock
    clock       the number of a clock of Linux, such as time.CLOCK_MONOTONIC

    Raises UsageError where the parts contradict each other.
    """

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    planes: tuple[Plane, ...] = ()
    pixels: str = ""
    colour: Colour | None = None
    pts: int | None = None
    time_base: Fraction | None = None
    captured: int | None = None
    clock: int = time.CLOCK_MONOTONIC

    def __post_init__(self) -> None:
        try:
            for name in ("shape", "strides"):
                value = getattr(self, name)
                if value is not None:
                    object.__setattr__(self, name, tuple(operator.index(n) for n in value))
            object.__setattr__(self, "planes", tuple(self.planes))
            object.__setattr__(self, "time_base", _time_base(self.time_base))
            self._check()
        except (TypeError, AttributeError) as e:
            raise UsageError(f"a format of other types than documented: {e}") from None

    @classmethod
    def picture(cls, pixels: str, width: int, height: int, *, pitch: int = 0, chroma: int = 0, **more: Any) -> Format:
        """Return the format of a picture of "NV12" or "P010": luma, and half as many rows of chroma behind it.

        pitch       bytes from one row to the next, by default of a row
        chroma      byte at which the chroma begins, by default pitch * height
        more        other parts of a Format
        """
        if pixels not in _PICTURES:
            raise UsageError(f"a picture of {pixels!r}: {' and '.join(_PICTURES)} are known; a Format with planes describes others")
        if not width > 0 < height or width % 2 or height % 2:
            raise UsageError(f"{pixels} of {width} x {height}: width and height are even")
        dtype = _PICTURES[pixels]
        pitch = pitch or width * _itemsize(dtype)
        planes = (Plane(0, pitch, height, width), Plane(chroma or pitch * height, pitch, height // 2, width // 2, 2))
        return cls(dtype, (height, width), planes=planes, pixels=pixels, **more)

    @property
    def nbytes(self) -> int | None:
        """The bytes that the frame has to have, or None if the format does not say."""
        if self.dtype is None:
            return None
        if self.planes:
            return max(p.end(_itemsize(self.dtype)) for p in self.planes)
        if self.shape is None:
            return None
        return -(-self._elements() * DTYPES[self.dtype].bits // 8)

    @property
    def seconds(self) -> Fraction | None:
        """pts in seconds, or None."""
        return None if self.pts is None else self.pts * (self.time_base or Fraction(1, 10**9))

    def _elements(self) -> int:
        """Return how many elements lie from the first to the last."""
        shape = self.shape or ()
        if 0 in shape or self.strides is None:
            return math.prod(shape)
        return 1 + sum((n - 1) * step for n, step in zip(shape, self.strides))

    def _check(self) -> None:
        _need(self.dtype is None or self.dtype in DTYPES, f"there is no type {self.dtype!r} here: {', '.join(DTYPES)}")
        self._check_shape()
        _need(len(self.planes) <= MAX_PLANES, f"{len(self.planes)} planes, and {MAX_PLANES} are allowed")
        _need(not self.planes or self.dtype is not None and self.strides is None, "planes want a dtype, and no strides")
        for p in self.planes:
            _check_plane(p, _itemsize(self.dtype or "U8"))
        _need(isinstance(self.pixels, str) and (not self.pixels or len(self.pixels) == 4 and _is_printable(self.pixels)),
              f"pixels {self.pixels!r}: want four characters, such as 'NV12'")  # fmt: skip
        if self.colour is not None:
            _check_numbers(255, primaries=self.colour.primaries, transfer=self.colour.transfer, matrix=self.colour.matrix)
        for name, n in (("pts", self.pts), ("captured", self.captured)):
            _need(n is None or -(1 << 63) <= operator.index(n) < 1 << 63, f"{name} {n} has no 64 bits")
        _check_numbers((1 << 32) - 1, clock=self.clock)
        _need((self.nbytes or 0) < _MOST, f"a frame of {self.nbytes} bytes, which is more than there are")

    def _check_shape(self) -> None:
        shape, strides = self.shape, self.strides
        _need(strides is None or shape is not None and len(strides) == len(shape), f"strides {strides} of shape {shape}")
        _need(len(shape or ()) <= MAX_DIMENSIONS, f"{len(shape or ())} dimensions, and {MAX_DIMENSIONS} are allowed")
        for n in (*(shape or ()), *(strides or ())):
            _need(0 <= n < _MOST, f"shape {shape}, strides {strides}: want whole numbers from 0 on")
        item = _itemsize(self.dtype or "U8")
        _need(math.prod(max(n, 1) for n in shape or ()) * item < _MOST, f"shape {shape} has more bytes than there are")
        extent = 1  # elements that the dimensions of smaller strides span
        for step, n in sorted(zip(strides or (), shape or ())):
            _need(n < 2 or step >= extent, f"strides {strides} of shape {shape}: elements overlap")
            extent += step * (n - 1) if n else 0
        if self.dtype is not None and DTYPES[self.dtype].lanes > 1:
            whole = not self.planes and strides is None and (shape is None or shape and shape[-1] % DTYPES[self.dtype].lanes == 0)
            _need(bool(whole), f"{self.dtype} of shape {shape}: want whole bytes in the last dimension, and neither strides nor planes")


def _time_base(value: Any) -> Fraction | None:
    """Return a time base as a fraction, whose two numbers have 32 bits each."""
    if value is None:
        return None
    try:
        base = Fraction(*value) if isinstance(value, tuple) else Fraction(value)
    except (OverflowError, TypeError, ValueError, ZeroDivisionError):
        base = Fraction(0)
    _need(0 < base.numerator < 1 << 32 > base.denominator, f"a time base of {value}: want a fraction above 0, of two numbers below 2^32")
    return base


def _check_plane(p: Plane, itemsize: int) -> None:
    _check_numbers(_MOST, offset=p.offset)
    _check_numbers((1 << 32) - 1, pitch=p.pitch, rows=p.rows, columns=p.columns, samples=p.samples)
    _need(p.rows > 0 < p.columns and p.samples > 0, f"{p} is empty")
    _need(p.pitch >= p.columns * p.samples * itemsize, f"{p}: its pitch is less than a row")
    _need(not p.offset % itemsize and not p.pitch % itemsize, f"{p}: offset and pitch are multiples of {itemsize}")


def _check_numbers(most: int, **values: int) -> None:
    for name, n in values.items():
        _need(0 <= operator.index(n) <= most, f"{name} {n}: want 0 to {most}")


def _need(true: bool, otherwise: str) -> None:
    if not true:
        raise UsageError(otherwise)


def _is_printable(text: str) -> bool:
    return all(" " <= char <= "~" for char in text)


def _itemsize(dtype: str) -> int:
    return DTYPES[dtype].itemsize


_PICTURES = {"NV12": "U8", "P010": "U16"}


# The fields, by number.


def _dtype_bytes(f: Format) -> bytes | None:
    return None if f.dtype is None else struct.pack("<BBH", DTYPES[f.dtype].code, DTYPES[f.dtype].bits, 1)


def _read_dtype(raw: bytes) -> dict[str, Any]:
    code, bits, lanes = struct.unpack_from("<BBH", raw)
    name = next((d.name for d in DTYPES.values() if (d.code, d.bits, 1) == (code, bits, lanes)), None)
    if name is None:
        raise ChannelError(f"elements of type {code} with {bits} bits and {lanes} lanes, which are not known here", reason="cursor")
    return {"dtype": name}


def _words(values: Iterable[int] | None) -> bytes | None:
    return None if values is None else b"".join(struct.pack("<Q", n) for n in values)


def _read_words(raw: bytes) -> tuple[int, ...]:
    return tuple(n for (n,) in struct.iter_unpack("<Q", raw))


def _plane_bytes(f: Format) -> bytes | None:
    return b"".join(_PLANE.pack(p.offset, p.pitch, p.rows, p.columns, p.samples) for p in f.planes) or None


def _colour_bytes(f: Format) -> bytes | None:
    c = f.colour
    return None if c is None else struct.pack("<4B", c.primaries, c.transfer, c.matrix, bool(c.full_range))


def _read_colour(raw: bytes) -> dict[str, Any]:
    primaries, transfer, matrix, full = struct.unpack_from("<4B", raw)
    return {"colour": Colour(primaries, transfer, matrix, bool(full))}


@dataclass(frozen=True)
class _Field:
    """How a part of a format is written and read."""

    write: Callable[[Format], bytes | None]  # None: there is nothing to say
    read: Callable[[bytes], Mapping[str, Any]]


_FIELDS = {
    1: _Field(_dtype_bytes, _read_dtype),
    2: _Field(lambda f: _words(f.shape), lambda raw: {"shape": _read_words(raw)}),
    3: _Field(lambda f: _words(f.strides), lambda raw: {"strides": _read_words(raw)}),
    4: _Field(_plane_bytes, lambda raw: {"planes": tuple(Plane(*p) for p in _PLANE.iter_unpack(raw))}),
    5: _Field(lambda f: f.pixels.encode() or None, lambda raw: {"pixels": raw[:4].decode("latin-1")}),
    6: _Field(_colour_bytes, _read_colour),
    7: _Field(lambda f: None if f.pts is None else struct.pack("<q", f.pts), lambda raw: {"pts": struct.unpack_from("<q", raw)[0]}),
    8: _Field(
        lambda f: None if f.time_base is None else struct.pack("<II", f.time_base.numerator, f.time_base.denominator),
        lambda raw: {"time_base": struct.unpack_from("<II", raw)},
    ),
    9: _Field(
        lambda f: None if f.captured is None else struct.pack("<qI", f.captured, f.clock),
        lambda raw: dict(zip(("captured", "clock"), struct.unpack_from("<qI", raw))),
    ),
}


def encode(format: Format) -> bytes:
    """Return the fields of a format, in the order of their numbers."""
    written = ((number, field.write(format)) for number, field in _FIELDS.items())
    return b"".join(struct.pack("<HH", number, len(value)) + value for number, value in written if value is not None)


def decode(raw: bytes) -> Format:
    """Return the format that fields describe. Raises ChannelError ("cursor") if they are malformed."""
    parts: dict[str, Any] = {}
    last, at = -1, 0
    while at < len(raw):
        if len(raw) - at < 4:
            raise ChannelError(f"{len(raw) - at} bytes behind the last field of a frame", reason="cursor")
        number, length = struct.unpack_from("<HH", raw, at)
        value, at = raw[at + 4 : at + 4 + length], at + 4 + length
        if number <= last or len(value) < length:
            raise ChannelError(f"field {number} of a frame, of {length} bytes, behind field {last}; {len(value)} bytes are there", reason="cursor")
        last = number
        parts.update(_read(number, value))
    try:
        return Format(**parts)
    except UsageError as e:
        raise ChannelError(f"the fields of a frame contradict each other: {e}", reason="cursor") from None


def _read(number: int, value: bytes) -> Mapping[str, Any]:
    """Return what a field says; nothing if it is not known and may be skipped."""
    if number in _FIELDS:
        try:
            return _FIELDS[number].read(value)
        except struct.error:
            raise ChannelError(f"field {number} of a frame, of {len(value)} bytes", reason="cursor") from None
    if number >= FIELD_REQUIRED:
        raise ChannelError(f"field {number} of a frame, which a reader has to know, is not known here", reason="cursor")
    return {}


# In an entry, behind the application's own bytes.


def pack(fields: bytes, sequence: int) -> bytes:
    """Return the header and the fields as they lie in the entry of a frame."""
    return HEADER.pack(len(fields), MARK, sequence & 0xFFFFFFFF) + fields if fields else b""


def packed_size(fields: bytes) -> int:
    """Return the bytes of an entry that fields take, with their header."""
    return HEADER.size + -(-len(fields) // 8) * 8 if fields else 0


def size_at(header: int, sequence: int) -> int:
    """Return the bytes of the fields behind a header, given as a word; 0 if it is none of this frame: a writer
    leaves there what it wrote last."""
    size, mark, low = HEADER.unpack(struct.pack("<Q", header))
    return int(size) if mark == MARK and low == sequence & 0xFFFFFFFF else 0


def unpack(raw: bytes, sequence: int) -> bytes:
    """Return the fields of the frame of that sequence in the rest of an entry; b"" if there are none. Raises
    ChannelError ("cursor") if they would go beyond its end."""
    size = size_at(int.from_bytes(raw[: HEADER.size], "little"), sequence) if len(raw) >= HEADER.size else 0
    if size > len(raw) - HEADER.size and size:
        raise ChannelError(f"fields of {size} bytes in an entry that has room for {len(raw) - HEADER.size}", reason="cursor")
    return raw[HEADER.size : HEADER.size + size]


def merged(format: Format | None, **parts: Any) -> Format:
    """Return a format with further parts; those that are None stay as they are."""
    return replace(format or Format(), **{name: value for name, value in parts.items() if value is not None})
