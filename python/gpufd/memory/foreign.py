"""Arrays of other libraries: of the host, or of a GPU.

Of NumPy, PyTorch, CuPy and whatever has ``__array_interface__``, ``__cuda_array_interface__``, ``__dlpack__`` or a buffer.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UsageError
from .array import DTYPES
from .base import Memory
from .dlpack import KDL_CPU, KDL_CUDA, Imported

# Types of elements, as arrays name them, and as safetensors does.
_TYPESTRS = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32", "<u8": "U64", "<i8": "I64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
}  # fmt: skip


# Formats of elements, as memoryview names them, with their bytes: "l" has 4 or 8.
_FORMATS = {
    (format, size): name
    for size, formats, name in (
        (1, "?", "BOOL"), (1, "bc", "I8"), (1, "B", "U8"), (2, "h", "I16"), (2, "H", "U16"), (4, "il", "I32"), (4, "IL", "U32"),
        (8, "lqn", "I64"), (8, "LQN", "U64"), (2, "e", "F16"), (4, "f", "F32"), (8, "d", "F64"),
    )
    for format in formats
}  # fmt: skip


@dataclass(frozen=True)
class Foreign:
    """An array of the host's or of a GPU's: host is its bytes, or ptr its address there."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str | None
    host: memoryview | None = None
    ptr: int = 0
    keep: Any = None

    @classmethod
    def of(cls, value: Any, what: str = "", wanted: str = "bytes or array", hint: str = "") -> Foreign:
        """Return the array that value is. Errors begin with what; hint helps who has a tensor that is more."""
        if _is_masked(value):
            raise UsageError(f"{what}a masked array, whose mask would be lost: take its filled(), or its data and its mask")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            if not is_plain(value):
                raise UsageError(f"{what}a tensor that is more than its elements{hint}")
            if value.dtype is torch.bool:  # which older ones cannot export, or export as U8
                return replace(cls._by_dlpack(value.view(torch.uint8), what, hint), dtype="BOOL")
            return cls._by_dlpack(value, what, hint)
        there = getattr(value, "__cuda_array_interface__", None)
        here = getattr(value, "__array_interface__", None)
        for interface in (there, here):
            if isinstance(interface, Mapping) and (interface["typestr"] in _TYPESTRS or interface is here or not hasattr(value, "__dlpack__")):
                return cls._described(value, interface, interface is there, what)
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return cls._by_dlpack(value, what, "")
        try:
            view = memoryview(value)
        except TypeError:
            ours = type(value).__module__.startswith("torch.") or hasattr(value, "state_dict")
            raise UsageError(f"{what}{type(value).__name__} is no {wanted}{hint if ours else ''}") from None
        if not view.c_contiguous:
            raise UsageError(f"{what}the bytes of an array have to be contiguous")
        raw = view.cast("B") if view.nbytes else memoryview(b"")
        if view.ndim == 1 and view.format in ("B", "b", "c"):
            return cls(view.nbytes, (view.nbytes,), None, raw)
        kind = _FORMATS.get((view.format.lstrip("@<="), view.itemsize))
        if kind is None:
            raise UsageError(f"{what}elements of format {view.format!r}, for which safetensors has no name; memoryview(…).cast('B') has the bytes alone")
        return cls(view.nbytes, tuple(view.shape or ()), kind, raw)

    @classmethod
    def _described(cls, value: Any, interface: Mapping[str, Any], on_device: bool, what: str) -> Foreign:
        dtype, shape = _TYPESTRS.get(interface["typestr"]), tuple(int(n) for n in interface["shape"])
        if dtype is None:
            raise UsageError(f"{what}an array of type {interface['typestr']}, for which safetensors has no name")
        if interface.get("mask") is not None:
            raise UsageError(f"{what}an array with a mask, which would be lost")
        item = int(interface["typestr"][2:])
        strides = interface.get("strides")
        size = _size_of(shape, item, None if strides is None else tuple(strides), what)
        if on_device:
            return cls(size, shape, dtype, ptr=int(interface["data"][0]), keep=value)
        return cls(size, shape, dtype, _host_bytes(value, interface, size), keep=value)

    @classmethod
    def _by_dlpack(cls, value: Any, what: str, hint: str) -> Foreign:
        try:
            got = Imported(value)
        except Exception as e:  # what a library raises for an array that it cannot export
            raise UsageError(f"{what}{type(value).__name__} cannot be exported by DLPack: {e}{hint}") from e
        dtype = next((d for d in DTYPES.values() if (d.code, d.bits) == got.kind), None)
        if dtype is None:
            raise UsageError(f"{what}{type(value).__name__} of a type for which safetensors has no name (DLPack's {got.kind}){hint}")
        if got.device_type not in (KDL_CPU, KDL_CUDA):
            raise UsageError(f"{what}{type(value).__name__} on a device of DLPack's type {got.device_type}: a GPU or the CPU are taken")
        strides = None if got.strides is None else tuple(n * dtype.itemsize for n in got.strides)
        size = _size_of(got.shape, dtype.itemsize, strides, what)
        if got.device_type == KDL_CUDA:
            return cls(size, got.shape, dtype.name, ptr=got.ptr, keep=(value, got))
        return cls(size, got.shape, dtype.name, _bytes_at(got.ptr, size), keep=(value, got))


def _size_of(shape: Sequence[int], item: int, strides: tuple[int, ...] | None, what: str) -> int:
    """The bytes of an array whose elements lie one behind the other."""
    dense: list[int] = []
    size = item
    for n in reversed(shape):
        dense.insert(0, size)
        size *= n
    if size and strides is not None and any(n > 1 and a != b for n, a, b in zip(shape, strides, dense)):
        raise UsageError(f"{what}an array has to be contiguous")
    return size


def _bytes_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B") if size else memoryview(b"")


def _host_bytes(value: Any, interface: Mapping[str, Any], size: int) -> memoryview:
    """The bytes that an __array_interface__ describes: at an address, in a buffer, or value itself."""
    data = interface.get("data")
    if isinstance(data, tuple):
        return _bytes_at(int(data[0]), size)
    raw, at = memoryview(value if data is None else data), int(interface.get("offset") or 0)
    return raw.cast("B")[at : at + size] if size else memoryview(b"")


def is_plain(t: Any) -> bool:
    """Return whether a tensor of PyTorch's is no more than its elements."""
    return not (t.is_conj() or t.is_neg() or getattr(t, "is_quantized", False) or hasattr(t, "__tensor_flatten__"))


def _is_masked(value: Any) -> bool:
    """Return whether it is a masked array of NumPy's, which need not be there."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def copy_device(memory: Memory, at: int, ptr: int, size: int, stream: int | None = None) -> None:
    """Copy what another allocation of a GPU has: by a stream, or at once, behind all that the device was given before."""
    from .cuda import CudaMemory

    if not size or not isinstance(memory, CudaMemory):
        return
    if stream is None:
        memory.finish()
    with memory.current() as lib:
        lib.call("cuMemcpyDtoDAsync_v2", memory.ptr + at, ptr, size, stream)
        if stream is None:
            lib.call("cuStreamSynchronize", None)
