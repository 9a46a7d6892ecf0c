"""Arrays over shared memory, without a copy: DLPack, and the interfaces of CUDA and NumPy.

A library that took an array by DLPack keeps it, and so the memory and the attachment, alive: _dlpack.py.
"""

from __future__ import annotations

import ctypes
import math
import operator
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ClosedError, ExportError, ReadOnlyError, UsageError
from ..objects import NotCopied, human
from ..wire.records import CUDA, READ_ONLY, access_name
from .dlpack import DLPACK_VERSION, KDL_CPU, KDL_CUDA, export

@dataclass(frozen=True)
class DType:
    """A type of elements."""

    name: str  #: as safetensors has it
    code: int  #: DLPack's
    bits: int
    typestr: str | None  #: NumPy's, if it has one

    @property
    def lanes(self) -> int:
        """How many elements DLPack and PyTorch take as one: the two of F4 that fill a byte."""
        return max(1, 8 // self.bits)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; of F4, of two."""
        return self.bits * self.lanes // 8


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_F8_E4M3FN, _F8_E4M3FNUZ, _F8_E5M2, _F8_E5M2FNUZ, _F8_E8M0, _F4_E2M1FN = 10, 11, 12, 13, 14, 17

DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("BOOL", _BOOL, 8, "|b1"),
        DType("U8", _UINT, 8, "|u1"),
        DType("I8", _INT, 8, "|i1"),
        DType("F8_E4M3", _F8_E4M3FN, 8, None),
        DType("F8_E5M2", _F8_E5M2, 8, None),
        DType("F8_E8M0", _F8_E8M0, 8, None),
        DType("F8_E4M3FNUZ", _F8_E4M3FNUZ, 8, None),
        DType("F8_E5M2FNUZ", _F8_E5M2FNUZ, 8, None),
        DType("F4", _F4_E2M1FN, 4, None),
        DType("U16", _UINT, 16, "<u2"),
        DType("I16", _INT, 16, "<i2"),
        DType("F16", _FLOAT, 16, "<f2"),
        DType("BF16", _BFLOAT, 16, None),
        DType("U32", _UINT, 32, "<u4"),
        DType("I32", _INT, 32, "<i4"),
        DType("F32", _FLOAT, 32, "<f4"),
        DType("U64", _UINT, 64, "<u8"),
        DType("I64", _INT, 64, "<i8"),
        DType("F64", _FLOAT, 64, "<f8"),
        DType("C64", _COMPLEX, 64, "<c8"),
    )
}


def dtype_of(name: str | DType) -> DType:
    """The type of that name, as safetensors has it."""
    if isinstance(name, DType):
        return name
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise UsageError(f"there is no type {name!r} here: {', '.join(DTYPES)}") from None


class Viewed(Protocol):
    """The memory under an array: gpufd.Memory."""

    driver: int
    ordinal: int
    size: int
    access: int

    @property
    def ptr(self) -> int: ...
    def check(self) -> None: ...
    def hold(self, what: str) -> int: ...
    def let_go(self, token: int) -> None: ...
    def read(self, at: int = 0, n: int | None = None) -> bytes: ...
    def private(self, size: int) -> Any: ...
    def wait_on(self, stream: int) -> None: ...


class Array(NotCopied):
    """A view of shared memory: elements of one type, in C order unless it has strides.

    Frameworks take it without a copy, by ``from_dlpack``, ``__cuda_array_interface__`` or, with
    the software driver, ``__array_interface__``. It keeps the memory and its attachment alive.
    """

    def __init__(
        self,
        memory: Viewed,
        dtype: str | DType = "U8",
        shape: Sequence[int] | int | None = None,
        offset: int = 0,
        *,
        owner: object = None,
        copied: bool = False,
        strides: Sequence[int] | None = None,
    ) -> None:
        memory.check()
        self.memory, self.dtype, self.offset, self.copied = memory, dtype_of(dtype), offset, copied
        self._owner = owner
        if not isinstance(offset, int):
            raise UsageError(f"an offset is a whole number of bytes, not {offset!r}")
        self.shape = self._shape_of(shape)
        if self.dtype.lanes > 1 and (not self.shape or self.shape[-1] % self.dtype.lanes):
            raise UsageError(f"{self.dtype.name}{list(self.shape)}: the last dimension is a multiple of {self.dtype.lanes}, which fill a byte")
        self.strides = self._strides_of(strides)  #: in elements, or None in C order
        if offset < 0 or offset % self.dtype.itemsize:
            raise UsageError(f"{self.dtype.name} at byte {offset}: an offset is a multiple of {self.dtype.itemsize}")
        self._end = offset + self.span
        if self._end > memory.size:
            raise UsageError(f"{self} ends at byte {self._end} of memory of {memory.size} bytes")
        self._token = 0  # of the memory, once the address was given out
        self._released = False

    def _shape_of(self, shape: Sequence[int] | int | None) -> tuple[int, ...]:
        if shape is None:
            return (max(0, self.memory.size - self.offset) // self.dtype.itemsize * self.dtype.lanes,)
        numbers: Any = (shape,) if hasattr(shape, "__index__") else shape  # isinstance of SupportsIndex takes 10 times as long
        try:
            wanted = tuple(operator.index(n) for n in numbers)
        except TypeError:
            raise UsageError(f"a shape is of whole numbers from 0 on, not {shape!r}") from None
        if any(n < 0 for n in wanted):
            raise UsageError(f"a shape is of whole numbers from 0 on, not {wanted}")
        return wanted

    def _strides_of(self, strides: Sequence[int] | None) -> tuple[int, ...] | None:
        """Return strides that C order does not have."""
        if strides is None:
            return None
        wanted = tuple(operator.index(n) for n in strides)
        if len(wanted) != len(self.shape) or any(n < 0 for n in wanted) or self.dtype.lanes > 1:
            raise UsageError(f"{self.dtype.name}{list(self.shape)} with strides {list(wanted)}: want one for each dimension, from 0 on, of elements of whole bytes")
        return None if all(n == 1 or a == b for n, a, b in zip(self.shape, wanted, dense(self.shape))) else wanted

    def __str__(self) -> str:
        strides = f" of strides {list(self.strides)}" if self.strides else ""
        return f"{self.dtype.name}{list(self.shape)}{strides} at byte {self.offset}"

    def __repr__(self) -> str:
        shape = list(self.shape) if len(self.shape) <= 4 else f"[{len(self.shape)} dimensions]"
        state = "released" if self._released else _state(self.memory)
        return f"<gpufd.Array {self.dtype.name}{shape}, {human(self.nbytes)}, {state}>"

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.bits // 8

    @property
    def span(self) -> int:
        """Bytes from the first element to the last: more than nbytes where strides leave some out."""
        if self.strides is None or not self.size:
            return self.nbytes
        return (1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides))) * self.dtype.itemsize

    @property
    def readonly(self) -> bool:
        """Whether the memory is mapped read-only."""
        return self.memory.access == READ_ONLY

    @property
    def ptr(self) -> int:
        """Address on the device, or on the host with the software driver. Keep the array, too."""
        self._check()
        return self.memory.ptr + self.offset

    def _check(self) -> None:
        if self._released:
            raise ClosedError("the array was released")
        self.memory.check()
        if self._end > self.memory.size:
            raise ClosedError(f"{self} ends at byte {self._end}, and the memory that was attached since has {self.memory.size}")

    def view(self, dtype: str | DType = "U8", shape: Sequence[int] | int | None = None, offset: int = 0) -> Array:
        """Return another array over the same bytes.

        offset counts from this array's beginning. By default the shape is one dimension, up to
        this array's end.
        """
        self._check()
        if self.strides:
            raise UsageError(f"{self} is not contiguous: view the memory that it is of")
        kind = dtype_of(dtype)
        if shape is None:
            shape = (max(0, self.nbytes - offset) // kind.itemsize * kind.lanes,)
        other = Array(self.memory, kind, shape, self.offset + offset, owner=self._owner, copied=self.copied)
        if offset < 0 or offset + other.nbytes > self.nbytes:
            raise UsageError(f"{other} goes beyond {self}")
        return other

    def copy(self) -> Array:
        """Return a private copy on the same device. It can be written, and outlives the attachment."""
        self._check()
        memory = self.memory.private(max(1, self.span))
        if self.nbytes:
            memory.copy_from(self.memory, self.offset, self.span)
        return Array(memory, self.dtype, self.shape, copied=True, strides=self.strides)

    def tobytes(self) -> bytes:
        """Copy the bytes of the elements to the host, in C order."""
        self._check()
        raw = self.memory.read(self.offset, self.span)
        return _gathered(memoryview(raw), self.shape, self.strides, self.dtype.itemsize) if self.strides else raw

    def release(self) -> None:
        """Say that nobody uses the array any more who took it by an array interface.

        This package cannot see that. It knows who took the array by DLPack.
        """
        if self._token:
            self.memory.let_go(self._token)
        self._token, self._released = 0, True

    def __del__(self) -> None:
        if getattr(self, "_token", 0):
            self.memory.let_go(self._token)

    def _given_out(self) -> None:
        """Note that somebody has the address and keeps this object."""
        self._check()
        if not self._token:
            self._token = self.memory.hold(f"{self} (array interface)")

    # DLPack.

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.memory.driver == CUDA:
            return KDL_CUDA, self.memory.ordinal
        return KDL_CPU, 0

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule, for a framework's from_dlpack.

        The framework passes the stream on which it will use the memory. That stream waits for a
        copy which this package has begun.
        """
        self._check()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise ExportError(f"the array is on device {self.__dlpack_device__()}, and cannot be exported to {tuple(dl_device)}")
        if copy:
            return self.copy().__dlpack__(stream=stream, max_version=max_version)
        versioned = max_version is not None and max_version[0] >= 1
        if self.readonly and not versioned:
            raise ReadOnlyError(
                "the memory was attached read-only, which a DLPack capsule before version 1.0 cannot say: copy() gives a private copy"
            )
        self._order(stream)
        return export(self, min(DLPACK_VERSION, tuple(max_version)) if versioned and max_version else None)

    def _order(self, stream: int | None) -> None:
        if self.memory.driver != CUDA:
            if stream not in (None, -1):
                raise ExportError(f"stream {stream!r} for memory of the host, which has none")
            return
        if stream is None:
            stream = 1  # the legacy default stream, as the protocol says
        if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < -1:
            raise ExportError(f"stream {stream!r}: -1 for none, 1 or 2 for the default streams, or the number of one")
        if stream != -1:
            self.memory.wait_on(stream)

    # The interfaces of CUDA and NumPy.

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.memory.driver != CUDA:
            raise AttributeError("memory of the software driver is not a GPU's: it has __array_interface__ and __dlpack__")
        self._given_out()
        described = self._described()
        event = getattr(self.memory, "event", 0)
        return {**described, "data": (self.ptr, self.readonly), "version": 3, "stream": 1 if event else None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.memory.driver == CUDA:
            raise AttributeError("memory of a GPU: it has __cuda_array_interface__ and __dlpack__")
        return {**self._described(), "data": self._bytes(), "version": 3}

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """Return a NumPy array, where NumPy finds no __array_interface__: without this it would make
        an object of the array, and say nothing."""
        if self.memory.driver == CUDA:
            raise ExportError("memory of a GPU is no NumPy array: tobytes() copies it to the host; CuPy and PyTorch take it as it is")
        if self.dtype.typestr is None:
            raise ExportError(f"NumPy has no {self.dtype.name}: view it as {'U8' if self.dtype.bits == 8 else 'U16'}, or take it by DLPack")
        import numpy

        whole: Any = numpy.ndarray(self.shape, self.dtype.typestr, self._bytes(), strides=self._described()["strides"])
        return numpy.array(whole, dtype, copy=bool(copy) or dtype is not None)

    def _described(self) -> dict[str, Any]:
        if self.dtype.typestr is None:
            raise AttributeError(f"{self.dtype.name} has no typestr: take DLPack, or view it as U8 or U16")
        strides = tuple(n * self.dtype.itemsize for n in self.strides) if self.strides else None
        return {"shape": self.shape, "typestr": self.dtype.typestr, "strides": strides}

    def memoryview(self) -> memoryview:
        """Return a memoryview of the bytes. Only the software driver has it.

        The attachment cannot be closed while the memoryview, or what was made of it, is alive.
        """
        if self.strides:
            raise ExportError(f"{self} is not contiguous: tobytes() copies its elements, and numpy.asarray takes it as it is")
        whole: memoryview = self._bytes()
        return whole

    def _bytes(self) -> Any:
        """Return a memoryview from the first element to the last."""
        self._check()
        if self.memory.driver == CUDA:
            raise ExportError("memory of a GPU has no address on the host: tobytes() copies it")
        raw = _Bytes[self.span].from_address(self.ptr) if self.nbytes else (ctypes.c_ubyte * 0)()
        if self.nbytes:
            token = self.memory.hold(f"{self} (memoryview)")
            raw.keeps = self
            weakref.finalize(raw, self.memory.let_go, token).atexit = False
        whole = memoryview(raw).cast("B")
        return whole.toreadonly() if self.readonly else whole


def _state(memory: Viewed) -> str:
    closed, detached = (getattr(memory, name, False) for name in ("closed", "detached"))
    return "closed" if closed else "detached" if detached else access_name(memory.access)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of C order, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _gathered(raw: memoryview, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bytes:
    """Return the elements in C order that lie strided in raw."""
    if tuple(strides) == dense(shape) or 0 in shape:
        return bytes(raw[: math.prod(shape) * itemsize])
    step = strides[0] * itemsize
    return b"".join(_gathered(raw[i * step :], shape[1:], strides[1:], itemsize) for i in range(shape[0]))


class _BytesTypes(dict[int, Any]):
    """Types of arrays of bytes in which an attribute can be set, by length: few are kept."""

    def __missing__(self, n: int) -> Any:
        return type("Bytes", (ctypes.c_ubyte * n,), {})


_Bytes = _BytesTypes()
