"""The planes and colours of pictures: what GStreamer's descriptions mean for a frame of a channel, and the other way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..channel.format import Colour, Format, Plane
from ..memory.array import DTYPES
from .libraries import GstVideo

_FULL = 1  # GST_VIDEO_COLOR_RANGE_0_255
_NO_ROWS = GstVideo.VideoFormatFlags.TILED | GstVideo.VideoFormatFlags.PALETTE
_ARRAYS = {("U8", 1): "GRAY8", ("U8", 3): "RGB", ("U8", 4): "RGBA", ("U16", 1): "GRAY16_LE"}  # by type and samples of a column


class Layout(NamedTuple):
    """The offsets and strides of a picture's planes."""

    offsets: tuple[int, ...]
    strides: tuple[int, ...]


def planes_of(info: Any) -> tuple[str, tuple[Plane, ...]]:
    """Return the type of the samples and the planes of a picture, as they lie by default.

    They are rows of bytes where the samples are no numbers of one type, and none where there are no rows.
    """
    f = info.finfo
    if f.flags & _NO_ROWS:
        return "U8", ()
    item = _itemsize(f)
    typed = [_typed(info, p, item) for p in range(f.n_planes)] if item else [None]
    if all(typed):
        return f"U{8 * item}", tuple(p for p in typed if p)
    return "U8", tuple(Plane(info.offset[p], info.stride[p], _rows(info, p), info.stride[p]) for p in range(f.n_planes))


def _components(f: Any, plane: int) -> list[int]:
    return [c for c in range(f.n_components) if f.plane[c] == plane]


def _rows(info: Any, plane: int) -> int:
    return max(-(-int(info.height) // (1 << int(info.finfo.h_sub[c]))) for c in _components(info.finfo, plane))


def _itemsize(f: Any) -> int:
    """Return the bytes of a sample, or 0 if samples are neither bytes nor words."""
    depths = [f.depth[c] for c in range(f.n_components)]
    if f.flags & GstVideo.VideoFormatFlags.COMPLEX:
        return 0
    if all(d == 8 for d in depths):
        return 1
    return 2 if f.flags & GstVideo.VideoFormatFlags.LE and all(8 < d <= 16 for d in depths) else 0


def _typed(info: Any, plane: int, item: int) -> Plane | None:
    """Return a plane whose columns have as many samples each, or None."""
    f, mine = info.finfo, _components(info.finfo, plane)
    step, sub = f.pixel_stride[mine[0]], f.w_sub[mine[0]]
    if step % item or step < len(mine) * item or any((f.pixel_stride[c], f.w_sub[c]) != (step, sub) for c in mine):
        return None
    return Plane(info.offset[plane], info.stride[plane], _rows(info, plane), -(-info.width // (1 << sub)), step // item)


def row_bytes(plane: Plane, dtype: str) -> int:
    """Return the bytes of a row, without what lies between it and the next."""
    return plane.columns * plane.samples * DTYPES[dtype].itemsize


def colour_of(info: Any) -> Colour:
    """Return the colours of a picture."""
    c = info.colorimetry
    primaries, transfer, matrix = (int(type(n).to_iso(n)) for n in (c.primaries, c.transfer, c.matrix))
    return Colour(primaries, transfer, matrix, full_range=int(c.range) == _FULL)


def layout_of(format: Format) -> Layout | None:
    """Return where the planes of a frame are, or None if its format does not say."""
    if format.planes:
        return Layout(tuple(p.offset for p in format.planes), tuple(p.pitch for p in format.planes))
    if format.dtype is None or len(format.shape or ()) not in (2, 3):
        return None
    _, columns, *samples = format.shape or ()
    step = format.strides[0] if format.strides else columns * (samples[0] if samples else 1)
    return Layout((0,), (step * DTYPES[format.dtype].itemsize,))


def caps_of(format: Format) -> str:
    """Return the caps of a frame that was not written by GStreamer, or "" if it is no picture: NV12, P010, or an
    array of rows, columns and samples."""
    shape, strides = format.shape or (), format.strides
    if format.planes:
        name = {"NV12": "NV12", "P010": "P010_10LE"}.get(format.pixels, "")
    else:
        samples = shape[2] if len(shape) == 3 else 1
        dense = strides is None or strides[1:] == (samples, 1)[: len(shape) - 1] or len(shape) == 2 and strides[1] == 1
        name = _ARRAYS.get((format.dtype or "", samples), "") if len(shape) in (2, 3) and dense else ""
    if not name or not shape[0] or not shape[1]:
        return ""
    return f"video/x-raw, format={name}, width={shape[1]}, height={shape[0]}, framerate=0/1" + "".join(_colorimetry(format.colour))


def _colorimetry(colour: Colour | None) -> Iterator[str]:
    if colour:
        kinds = GstVideo.VideoColorPrimaries, GstVideo.VideoTransferFunction, GstVideo.VideoColorMatrix
        primaries, transfer, matrix = (int(k.from_iso(n)) for k, n in zip(kinds, (colour.primaries, colour.transfer, colour.matrix)))
        yield f", colorimetry={1 if colour.full_range else 2}:{matrix}:{transfer}:{primaries}"
