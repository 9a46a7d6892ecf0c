"""Tensors and arrays of any library, which are converted on their way into a slot."""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

from ..channel.frame import Slot
from ..errors import MismatchError, UsageError
from ..keeper.tables import quote
from ..memory.array import DTYPES, dense
from ..memory.base import Memory
from ..memory.foreign import Foreign, copy_device, is_plain
from ..memory.tensor import bytes_over, dtypes, name_of
from ..wire.records import CUDA
from .frames import Entry
from .meta import Meta


def source_of(name: str, data: Any, wanted: Meta | None) -> TensorSource | ArraySource:
    """Return the source that data is. wanted is what the metadata says of it, if there is any.

    Raises UsageError if it is no array, and MismatchError if it is not as it is wanted, and cannot be converted.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return TensorSource(name, data, wanted)
    return ArraySource(name, data, wanted)


class SlotTensors:
    """The slots of a publisher as tensors of PyTorch's: one of each type for each slot, of which what is to be filled is a slice."""

    def __init__(self) -> None:
        self._there: dict[tuple[int, str], Any] = {}

    def slice(self, slot: Slot, dtype: str, shape: tuple[int, ...], at: int) -> Any:
        """Return a tensor at a byte of a slot, where a bucket has room for it."""
        flat = self._there.get((slot.index, dtype))
        if flat is None:
            with sys.modules["torch"].inference_mode(False):  # or nobody could write to it outside of that
                flat = self._there[slot.index, dtype] = self._whole(slot) if dtype == "U8" else self._of(slot, dtype)
        return flat.as_strided(shape, _strides(shape), at // DTYPES[dtype].itemsize)

    def _whole(self, slot: Slot) -> Any:
        return bytes_over(slot.memory, slot.offset, slot.size, f"bucket {slot.index}")

    def _of(self, slot: Slot, dtype: str) -> Any:
        """Return the slot as elements of a type, but for what is left of an element at its end."""
        size = slot.size - slot.size % DTYPES[dtype].itemsize
        return self.slice(slot, "U8", (size,), 0).view(dtypes()[dtype])

    def close(self) -> None:
        """Let go of the slots."""
        self._there.clear()


_strides = functools.lru_cache(maxsize=1024)(dense)
_meta = functools.lru_cache(maxsize=1 << 14)(Meta)


def _check_shape(name: str, shape: tuple[int, ...], wanted: Meta | None) -> None:
    if wanted and shape != wanted.shape:
        raise MismatchError(f"tensor {quote(name)} has the shape {list(shape)}, and the metadata says {list(wanted.shape)}", reason="tensors")


class TensorSource:
    """A tensor of PyTorch's, of whatever strides and device. Its copies are work of the current stream."""

    def __init__(self, name: str, tensor: Any, wanted: Meta | None) -> None:
        dtype, shape = name_of(tensor.dtype), tuple(tensor.shape)
        if why := _unfit(tensor, dtype):
            raise UsageError(f"tensor {quote(name)} {why}")
        _check_shape(name, shape, wanted)
        if wanted and (wanted.dtype == "F4" or wanted.dtype not in dtypes()):
            raise UsageError(f"tensor {quote(name)}: PyTorch here does not convert to {wanted.dtype}, which the metadata says; send an array of another library")
        _check_kind(name, str(tensor.dtype), _kind(dtype or ""), wanted)
        self.meta = wanted or _meta(dtype, shape)
        self._tensor = tensor.detach()
        self._flat: Any = None

    def copy(self, slot: Slot, e: Entry, tensors: SlotTensors) -> None:
        """Copy the piece of an entry to its place in the slot."""
        if not e.size:
            return
        data = self._tensor if e.is_whole else self._piece(e)
        there = tensors.slice(slot, e.meta.dtype, tuple(data.shape), e.at)
        there.copy_(data, non_blocking=there.is_cuda and data.is_cuda)  # else the host might read, or publish, what is not there yet

    def _piece(self, e: Entry) -> Any:
        """Return the elements of a piece."""
        if self._flat is None:
            self._flat = self._tensor.reshape(-1)  # a copy, if its strides are not those of C order
        item = DTYPES[e.meta.dtype].itemsize
        return self._flat[e.begin // item : (e.begin + e.size) // item]


def _kind(dtype: str) -> int:
    """Return 0 for integers and truths, 1 for what has a fraction, 2 for what is complex."""
    return 2 if dtype == "C64" else int(dtype.startswith(("F", "BF")))


def _check_kind(name: str, dtype: Any, kind: int, wanted: Meta | None) -> None:
    """Raise UsageError if a conversion would lose parts of numbers."""
    if not wanted or kind <= _kind(wanted.dtype):
        return
    if kind == 2:
        raise UsageError(f"tensor {quote(name)} is complex, and {wanted.dtype}, which the metadata says, is not: send its real part, or both parts as another dimension")
    raise UsageError(f"tensor {quote(name)} is of {dtype}, and {wanted.dtype}, which the metadata says, has no fractions: round and convert it, then send it")


def _unfit(tensor: Any, dtype: str | None) -> str:
    """Return why the elements of a tensor cannot be sent as they are, and what to do, or ""."""
    if hasattr(tensor, "full_tensor"):
        return "is a DTensor, whose shards are on several GPUs: send its full_tensor()"
    if tensor.is_meta:
        return "is on the device meta, so it has no data: send one that has"
    if tensor.layout is not sys.modules["torch"].strided:
        return f"is sparse ({tensor.layout}), and so more than its elements: call to_dense()"
    if not is_plain(tensor):
        return f"of {tensor.dtype} is more than its elements: send what it is made of"
    return f"is of {tensor.dtype}, which is not sent as such: send its view(torch.uint8)" if dtype in (None, "F4") else ""


class ArraySource:
    """Bytes, or an array of NumPy's, CuPy's or another library's. A copy of it is there on return."""

    def __init__(self, name: str, data: Any, wanted: Meta | None) -> None:
        self._array = Foreign.of(_dense(name, data, wanted), f"tensor {quote(name)}: ")
        _check_shape(name, self._array.shape, wanted)
        self.meta = Meta(self._array.dtype or "U8", self._array.shape)
        if wanted:
            if self.meta.dtype != wanted.dtype:
                raise MismatchError(
                    f"tensor {quote(name)} is of {self.meta.dtype}, and the metadata says {wanted.dtype}: what is no tensor of PyTorch's is not converted to that",
                    reason="tensors",
                )
            self.meta = wanted

    def copy(self, slot: Slot, e: Entry, _: SlotTensors) -> None:
        """Copy the piece of an entry to its place in the slot."""
        array = self._array
        if array.host is not None:
            slot.write(array.host[e.begin : e.begin + e.size], e.at)
        elif slot.memory.driver != CUDA:
            raise UsageError(f"tensor {quote(e.name)} is on a GPU, and the buckets are on the host (software driver): copy it to the host first")
        else:
            copy_device(slot.memory, slot.offset + e.at, array.ptr + e.begin, e.size)


def _dense(name: str, data: Any, wanted: Meta | None) -> Any:
    """Return an array of NumPy's or CuPy's in C order, and of the wanted type if NumPy has that. Raises UsageError if it does not convert."""
    for library in ("numpy", "cupy"):
        kind = getattr(sys.modules.get(library), "ndarray", None)
        if kind and isinstance(data, kind) and not hasattr(data, "mask"):
            typestr = DTYPES[wanted.dtype].typestr if wanted and wanted.dtype in DTYPES else None
            _check_kind(name, data.dtype, {"b": 0, "i": 0, "u": 0, "c": 2}.get(data.dtype.kind, 1), wanted)  # objects and strings may have fractions
            try:
                return data.astype(typestr or data.dtype, order="C", copy=False)
            except (TypeError, ValueError) as e:
                raise UsageError(f"tensor {quote(name)}: {library} does not convert {data.dtype} to {typestr}: {e}") from None
    return data


# The stream that orders the work on a slot, and tables.


def stream_of(memory: Memory) -> Any:
    """Return PyTorch's current stream of the memory's device, or None where the host orders."""
    torch: Any = sys.modules.get("torch")
    if memory.driver != CUDA or torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda.current_stream(memory.ordinal)


class TableWriter:
    """Writes tables into slots. On a GPU they come from pinned memory, so the host does not wait for the stream."""

    def __init__(self, tensors: SlotTensors) -> None:
        self._tensors = tensors
        self._known: dict[bytes, _Known] = {}  # step after step the tables are the same
        self._before: dict[bytes, _Known] = {}

    def write(self, slot: Slot, at: int, table: bytes, stream: Any) -> bytes:
        """Write a table at a byte of the slot. Return its digest."""
        known = self._known[table] = self._known.get(table) or self._before.get(table) or _Known(hashlib.sha256(table).digest())
        if stream is None or not table:
            slot.write(table, at)
        else:
            self._tensors.slice(slot, "U8", (len(table),), at).copy_(known.pin(table), non_blocking=True)
        return known.digest

    def turn(self) -> None:
        """Forget the tables that the last update did not have."""
        self._before, self._known = self._known, {}


class _Known:
    """A table that was written before."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self._pinned: Any = None

    def pin(self, table: bytes) -> Any:
        """Return the table in pinned memory."""
        if self._pinned is None:
            torch: Any = sys.modules["torch"]
            self._pinned = torch.frombuffer(bytearray(table), dtype=torch.uint8).pin_memory()
        return self._pinned
