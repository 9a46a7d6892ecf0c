"""gpufd.put: files, bytes or arrays into memory that a keeper keeps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ._control import TIMEOUT
from ._deposit import PIECE, Deposit, Delivered
from ._errors import CutOffError, UsageError
from ._memory import Memory
from ._tables import Table, Tensor, check_tensors, plan_files
from ._wire import CUDA
from .keeper import Client

# Types of elements, as arrays name them, and as safetensors does.
_TYPESTRS = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32", "<u8": "U64", "<i8": "I64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64",
}  # fmt: skip


@dataclass(frozen=True)
class _Source:
    """What a part is made of: its table, and a function that writes the memory."""

    table: Table
    write: Callable[[Memory], None]


def put(
    socket: str | os.PathLike[str] | Client | None, name: str, data: Any, *, labels: Mapping[str, str] | None = None,
    device: int = 0, driver: str | int | None = None, part: int = 0, parts: int = 1, transaction: str = "",
    expect_version: int | None = None, chunk: int = 0, timeout: float = TIMEOUT,
) -> Delivered:  # fmt: skip
    """Have a keeper keep data as the next version of a name. Nothing of it stays in this process.

    data is one of
      - a path or several: of safetensors files, or directories or indexes of such files, whose
        tensors get a table; files of another kind are put one behind the other
      - bytes
      - a contiguous array, with __array_interface__ or, on a GPU, __cuda_array_interface__
      - a mapping from names to such arrays, which get a table of tensors

    socket      the keeper's socket, or a Client; None for the default one
    labels      of the version
    device, driver, chunk
                where to allocate: as of allocate
    part, parts, transaction
                of a version of several parts: make one call for each, with the same transaction,
                a text of the caller's; the last part to come commits the version
    expect_version
                the version that has to be current, 0 for none
    timeout     seconds to wait for the keeper, and for room

    Raises KeeperError, at once with the code too-large if the device is smaller than the data; it names
    who holds the device's memory if the code is no-room. Raises FormatError.
    """
    source = _source(data)
    client = socket if isinstance(socket, Client) else Client(socket, timeout=timeout)
    try:
        deposit = Deposit(
            client, name, source.table.size, device=device, driver=driver, chunk=chunk or source.table.size, labels=labels,
            part=part, parts=parts, transaction=transaction, expect=expect_version, lifetime=timeout if transaction else 0.0,
        )  # fmt: skip
        with closing(deposit):
            source.write(deposit.grow(source.table.size))
            return deposit.deliver(source.table.encode())
    finally:
        if client is not socket:
            client.close()


def _source(data: Any) -> _Source:
    if isinstance(data, (str, os.PathLike)):
        return _files([os.fspath(data)])
    if isinstance(data, Mapping):
        return _arrays(data)
    if isinstance(data, Sequence) and data and all(isinstance(d, (str, os.PathLike)) for d in data):
        return _files([os.fspath(d) for d in data])
    array = _Array.of(data)
    return _Source(Table(array.bytes), lambda memory: array.write(memory, 0))


def _files(paths: list[str]) -> _Source:
    table, segments = plan_files(paths)

    def write(memory: Memory) -> None:
        for s in segments:
            load(memory, s.offset, s.path, s.at, s.bytes)

    return _Source(table, write)


def load(memory: Memory, offset: int, path: str, at: int, size: int) -> None:
    """Copy size bytes at at of a file to offset of the memory."""
    page = at % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_size < at + size:
            raise CutOffError(f"{path} has become shorter while it was read")
        with mmap.mmap(f.fileno(), size + page, prot=mmap.PROT_READ, offset=at - page) as m, memoryview(m) as view:
            for done in range(0, size, PIECE):
                n = min(PIECE, size - done)
                with view[page + done : page + done + n] as piece:
                    memory.write(offset + done, piece)


def _arrays(data: Mapping[str, Any]) -> _Source:
    table, arrays = Table(), []
    for name, value in data.items():
        array = _Array.of(value)
        if array.dtype is None:
            raise UsageError(f"{name}: bytes have no type of elements; put arrays by name, or bytes alone")
        at = table.place(array.bytes)
        table.tensors.append(Tensor(str(name), array.dtype, array.shape, at, array.bytes))
        arrays.append((at, array))
    check_tensors(table.tensors, table.size)

    def write(memory: Memory) -> None:
        for at, array in arrays:
            array.write(memory, at)

    return _Source(table, write)


@dataclass(frozen=True)
class _Array:
    """An array of the host's or of a GPU's: host is its bytes, or ptr its address there."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str | None
    host: memoryview | None = None
    ptr: int = 0
    keep: Any = None

    @classmethod
    def of(cls, value: Any) -> _Array:
        there = getattr(value, "__cuda_array_interface__", None)
        here = getattr(value, "__array_interface__", None)
        for interface in (there, here):
            if isinstance(interface, Mapping):
                return cls._described(value, interface, interface is there)
        try:
            view = memoryview(value)
        except TypeError:
            raise UsageError(f"{type(value).__name__} is no path, bytes or array that a keeper could keep") from None
        if not view.c_contiguous:
            raise UsageError("the bytes of an array to be kept have to be contiguous")
        return cls(view.nbytes, (view.nbytes,), None, view.cast("B") if view.nbytes else memoryview(b""))

    @classmethod
    def _described(cls, value: Any, interface: Mapping[str, Any], on_device: bool) -> _Array:
        dtype, shape = _TYPESTRS.get(interface["typestr"]), tuple(int(n) for n in interface["shape"])
        if dtype is None:
            raise UsageError(f"an array of type {interface['typestr']}, for which safetensors has no name")
        item = int(interface["typestr"][2:])
        dense: list[int] = []
        size = item
        for n in reversed(shape):
            dense.insert(0, size)
            size *= n
        strides = interface.get("strides")
        if strides is not None and tuple(strides) != tuple(dense) and size:
            raise UsageError("an array to be kept has to be contiguous")
        if on_device:
            return cls(size, shape, dtype, ptr=int(interface["data"][0]), keep=value)
        return cls(size, shape, dtype, memoryview(value).cast("B") if size else memoryview(b""), keep=value)

    def write(self, memory: Memory, at: int) -> None:
        if self.host is not None:
            for done in range(0, self.bytes, PIECE):
                memory.write(at + done, self.host[done : done + PIECE])
            return
        if memory.driver != CUDA:
            raise UsageError("an array of a GPU cannot be kept in memory of the software driver")
        copy_device(memory, at, self.ptr, self.bytes)


def copy_device(memory: Memory, at: int, ptr: int, size: int) -> None:
    """Copy what another allocation of a GPU has, behind all that the device was given before."""
    from ._cuda import CudaMemory

    if size and isinstance(memory, CudaMemory):
        memory.finish()
        with memory.current() as lib:
            lib.call("cuMemcpyDtoDAsync_v2", memory.ptr + at, ptr, size, None)
            lib.call("cuStreamSynchronize", None)
