"""The data of a frame, as Writer.send takes it: bytes, an array, or a PyTorch tensor."""

from __future__ import annotations

import math
import sys
from typing import Any

from ..errors import UsageError
from ..memory.foreign import Foreign, copy_device, is_plain
from ..memory.tensor import name_of
from ..wire.records import CUDA
from .format import Format, merged
from .frame import Slot


class Source:
    """The data of a frame to be sent."""

    format: Format | None  # what the frame is
    nbytes: int  # that it takes of a slot

    def copy_to(self, slot: Slot) -> None:
        """Copy the data to a slot. It is there on return."""
        raise NotImplementedError

    def copy_on(self, slot: Slot, stream: Any, handle: int) -> None:
        """Give the copy to a stream, whose number is handle."""
        raise UsageError("a stream takes frames from memory of a GPU, and from PyTorch's tensors: send these bytes without it")


def source_of(data: Any, format: Format | None) -> Source:
    """Return the source that data is. Raises UsageError if it is none, or is not as the format says."""
    if format is not None and not isinstance(format, Format):
        raise UsageError(f"a format is a gpufd.channel.Format, not {type(format).__name__}")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, getattr(torch, "Tensor", ())):
        return _Tensor(data, format)
    return _Bytes(Foreign.of(_contiguous(data), "a frame: "), format)


def _contiguous(data: Any) -> Any:
    """Return an array of NumPy's or CuPy's as one in C order."""
    for name in ("numpy", "cupy"):
        kind = getattr(sys.modules.get(name), "ndarray", None)
        if kind and isinstance(data, kind) and not data.flags.c_contiguous:
            return data.copy(order="C")
    return data


def _agreed(dtype: str, shape: tuple[int, ...], nbytes: int, format: Format | None) -> Format:
    """Return the format of an array; UsageError if what the caller says is another."""
    if format is None:
        return Format(dtype, shape)
    if format.planes:
        if nbytes < (format.nbytes or 0):
            raise UsageError(f"a frame of {nbytes} bytes, and its planes want {format.nbytes}")
        return format
    if format.dtype not in (None, dtype) or format.shape not in (None, shape):
        raise UsageError(f"an array of {dtype}{list(shape)}, and the format says {format.dtype}{list(format.shape or ())}")
    return merged(format, dtype=dtype, shape=shape)


class _Bytes(Source):
    """Bytes or an array in C order, of the host or of a GPU."""

    def __init__(self, array: Foreign, format: Format | None) -> None:
        self._array, self.format, self.nbytes = array, format, array.bytes
        if array.dtype is not None:
            self.format = _agreed(array.dtype, array.shape, array.bytes, format)
            if self.format.strides:
                raise UsageError("strides are for bytes that lie so, and for PyTorch's tensors")
        elif format and (format.nbytes or 0) > array.bytes:
            raise UsageError(f"a frame of {array.bytes} bytes, and the format says {format.nbytes}")

    def copy_to(self, slot: Slot) -> None:
        if self._array.host is not None:
            return slot.write(self._array.host)
        self._need_device(slot)
        copy_device(slot.memory, slot.offset, self._array.ptr, self.nbytes)

    def copy_on(self, slot: Slot, stream: Any, handle: int) -> None:
        if self._array.host is not None:
            return super().copy_on(slot, stream, handle)
        self._need_device(slot)
        copy_device(slot.memory, slot.offset, self._array.ptr, self.nbytes, handle)

    def _need_device(self, slot: Slot) -> None:
        if slot.memory.driver != CUDA:
            raise UsageError("an array of a GPU in a channel of the software driver: copy it to the host first")


class _Tensor(Source):
    """A tensor of PyTorch's, of whatever strides and device."""

    def __init__(self, tensor: Any, format: Format | None) -> None:
        dtype = name_of(tensor.dtype)
        if not is_plain(tensor) or dtype is None or dtype == "F4" or str(tensor.layout) != "torch.strided":
            raise UsageError(f"a frame: a tensor of {tensor.dtype} that is more than its elements: send its bytes, or what it is made of")
        self._tensor, self._dtype = tensor.detach(), dtype
        bytes = tensor.numel() * tensor.element_size()
        self.format = _agreed(dtype, tuple(tensor.shape), bytes, format)
        self.nbytes = bytes if self.format.planes else self.format.nbytes or 0

    def copy_to(self, slot: Slot) -> None:
        there = self._put(slot, False)
        if there.is_cuda:
            sys.modules["torch"].cuda.current_stream(there.device).synchronize()

    def copy_on(self, slot: Slot, stream: Any, handle: int) -> None:
        torch: Any = sys.modules["torch"]
        if not isinstance(stream, torch.cuda.Stream):
            stream = torch.cuda.ExternalStream(handle, device=slot.memory.ordinal)
        with torch.cuda.stream(stream):
            self._put(slot, True)
        if self._tensor.is_cuda:
            self._tensor.record_stream(stream)  # or PyTorch gives its memory to another tensor too early

    def _put(self, slot: Slot, later: bool) -> Any:
        """Copy the tensor to a tensor over the slot, and return that."""
        f = self.format or Format()
        if f.planes:
            there, data = slot.tensor(self._dtype, math.prod(self._tensor.shape)), self._tensor.reshape(-1)
        else:
            there, data = slot.tensor(self._dtype, f.shape, f.strides), self._tensor
        return there.copy_(data, non_blocking=later)
