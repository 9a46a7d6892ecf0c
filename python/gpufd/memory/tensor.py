"""PyTorch tensors over shared memory, without a copy. PyTorch is imported when the first one is made."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from ..errors import UnavailableError, UsageError
from ..wire.records import CUDA
from .array import Array, Viewed, dense

NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip


@functools.lru_cache(maxsize=1)
def dtypes() -> dict[str, Any]:
    """Return PyTorch's types by their names in safetensors: those that this PyTorch has."""
    torch = _torch()
    return {name: getattr(torch, there) for name, there in NAMES.items() if hasattr(torch, there)}


@functools.lru_cache(maxsize=1)
def names() -> dict[Any, str]:
    """Return the names in safetensors of PyTorch's types."""
    return {dtype: name for name, dtype in dtypes().items()}


def _torch() -> Any:
    try:
        import torch
    except ImportError as e:
        raise UnavailableError(f"a tensor wants PyTorch, which cannot be imported here: {e}") from e
    return torch


class _Span:
    """Bytes of memory that PyTorch has a tensor over. It keeps them, and owner, until the tensor is gone."""

    def __init__(self, memory: Viewed, offset: int, size: int, what: str, owner: object) -> None:
        self._keeps = (memory, owner)
        weakref.finalize(self, memory.let_go, memory.hold(what)).atexit = False
        if memory.driver == CUDA:
            # PyTorch refuses what is marked as read-only; the driver refuses the write nevertheless.
            self.__cuda_array_interface__ = {
                "shape": (size,), "typestr": "|u1", "data": (memory.ptr + offset, False), "strides": None, "version": 3,
            }  # fmt: skip


def bytes_over(memory: Viewed, offset: int, size: int, what: str, owner: object = None) -> Any:
    """Return a tensor of bytes over a range of memory: a storage of its own. what names it where the memory is in use."""
    torch = _torch()
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=device_of(memory))
    span = _Span(memory, offset, size, what, owner)
    if memory.driver == CUDA:
        return torch.as_tensor(span, device=device_of(memory))
    raw: Any = _bytes_type(size).from_address(memory.ptr + offset)
    raw.keeps = span
    return torch.frombuffer(raw, dtype=torch.uint8)


def tensor_over(array: Array) -> Any:
    """Return a tensor over the array's memory. It keeps the memory until it is gone.

    Nothing refuses a write to memory that is mapped read-only: on a GPU it fails the process's context, with the
    software driver it kills the process. Raises UsageError if this PyTorch has no such type.
    """
    torch = _torch()
    dtype = dtypes().get(array.dtype.name)
    if dtype is None:
        raise UsageError(f"PyTorch {torch.__version__} has no type {array.dtype.name}: tobytes() copies the bytes")
    lanes = array.dtype.lanes
    shape = (*array.shape[:-1], array.shape[-1] // lanes) if lanes > 1 else array.shape
    if not array.span:
        return torch.empty(shape, dtype=dtype, device=device_of(array.memory))
    raw = bytes_over(array.memory, array.offset, array.span, f"{array} (tensor)", array)
    return raw.view(dtype).as_strided(shape, array.strides or dense(shape))


@functools.lru_cache(maxsize=64)
def _bytes_type(size: int) -> Any:
    """Return a type of so many bytes in which an attribute can be set."""
    return type("Bytes", (ctypes.c_ubyte * size,), {})


def device_of(memory: Viewed) -> Any:
    """Return PyTorch's device of the memory."""
    torch = _torch()
    return torch.device("cuda", memory.ordinal) if memory.driver == CUDA else torch.device("cpu")


def name_of(dtype: Any) -> str | None:
    """Return the name in safetensors of a type of PyTorch's, or None."""
    return names().get(dtype)
