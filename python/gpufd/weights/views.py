"""Tensors of buckets: views of them, copies, and large ones that are assembled from pieces."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ..channel.frame import Frame
from ..memory.array import Array, dense, dtype_of
from ..memory.base import Memory
from ..memory.tensor import bytes_over, device_of, dtypes
from .copying import copy_bytes
from .frames import TABLE_ALIGN, Entry
from .meta import Meta

_dense = functools.lru_cache(maxsize=1024)(dense)


def _torch_has(dtype: str) -> Any:
    """Return PyTorch, if it is loaded and has the type."""
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and dtype in dtypes() else None


def _shape_of(meta: Meta) -> tuple[int, ...]:
    """Return the shape that PyTorch has for a tensor."""
    lanes = dtype_of(meta.dtype).lanes
    return (*meta.shape[:-1], meta.shape[-1] // lanes) if lanes > 1 else meta.shape


class Views:
    """Makes the tensors of a frame: PyTorch's, or Arrays where that is not loaded, or has no such type.

    PyTorch's are all of one storage, which keeps the claim; so does each Array.

    claim   what keeps the frame
    device  that copies are to be on, or None for that of the frame
    """

    def __init__(self, memory: Memory, frame: Frame, claim: object, device: int | None) -> None:
        self._memory, self._frame, self._claim, self._device = memory, frame, claim, device
        self._begin = frame.ptr - memory.ptr
        self._bytes: Any = None  # of the frame, as a tensor
        self._flat: dict[str, Any] = {}  # the frame as elements of a type, or None for one that PyTorch lacks

    def view(self, e: Entry) -> Any:
        """Return a tensor over the frame."""
        dtype = e.meta.dtype
        flat = self._flat[dtype] if dtype in self._flat else self._of(dtype)
        if flat is None:
            return Array(self._memory, dtype, e.meta.shape, self._begin + e.at, owner=self._claim)
        shape = _shape_of(e.meta)
        return flat.as_strided(shape, _dense(shape), e.at // flat.element_size()) if e.size else flat.new_empty(shape)

    def _of(self, dtype: str) -> Any:
        """Return the frame as elements of a type."""
        self._flat[dtype] = self._whole().view(dtypes()[dtype]) if _torch_has(dtype) else None
        return self._flat[dtype]

    def _whole(self) -> Any:
        """Return the frame as a tensor of bytes."""
        if self._bytes is None:
            size = self._frame.size // TABLE_ALIGN * TABLE_ALIGN  # tensors end before
            self._bytes = bytes_over(self._memory, self._begin, size, f"tensors in bucket {self._frame.index}", self._claim)
        return self._bytes

    def copy(self, e: Entry) -> Any:
        """Return a tensor in memory of its own. PyTorch's is copied by the current stream; an Array's copy has only begun."""
        there = self.view(e)
        if isinstance(there, Array):
            return there.copy()
        if self._device is None or not there.is_cuda:
            return there.clone()
        return there.to(f"cuda:{self._device}", copy=True)

    def piece(self, e: Entry, into: AssembledTensor) -> None:
        """Copy a piece to where it is assembled."""
        if isinstance(into.memory, Memory):
            copy_bytes(into.memory, e.begin, self._memory, self._begin + e.at, e.size)
        else:
            into.memory[e.begin : e.begin + e.size].copy_(self._whole()[e.at : e.at + e.size])

    def assembled(self, meta: Meta) -> AssembledTensor:
        """Return memory for a tensor that comes in pieces."""
        torch = _torch_has(meta.dtype)
        if not torch:
            return AssembledTensor(self._memory.private(max(1, meta.size)), meta)
        device = device_of(self._memory)
        if self._device is not None and device.type == "cuda":
            device = torch.device("cuda", self._device)
        return AssembledTensor(torch.empty(meta.size, dtype=torch.uint8, device=device), meta)


class AssembledTensor:
    """A tensor that comes in pieces, in memory of its own: of this package's, or a tensor of bytes."""

    def __init__(self, memory: Any, meta: Meta) -> None:
        self.memory, self._meta = memory, meta

    def tensor(self) -> Any:
        """Return it, when all pieces are there."""
        meta = self._meta
        if isinstance(self.memory, Memory):
            return Array(self.memory, meta.dtype, meta.shape, copied=True)
        return self.memory.view(dtypes()[meta.dtype]).reshape(_shape_of(meta))
