"""gpufd.put: files, bytes or arrays into memory that a keeper keeps."""

from __future__ import annotations

import array
import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from .. import arguments
from ..errors import MismatchError, UsageError, enough_files
from ..memory.base import Memory
from ..memory.device import Device
from ..wire.records import CUDA
from .client import Client
from .control import TIMEOUT
from .deposit import PIECE, Deposit, Delivered
from .safetensors import Segment, Stamp, plan_files
from .tables import ALIGN, Table, Tensor, check_tensors

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

SMALL = 1 << 20  # bytes of what is copied together with others
ALONE = "array"  # the name of a tensor that was put alone


@dataclass(frozen=True)
class _Source:
    """What a part is made of: its table, and a function that writes the memory."""

    table: Table
    write: Callable[[Memory], None]


@enough_files()
def put(
    name: str, data: Any, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None,
    device: Device = 0, driver: str | int | None = None, part: int = 0, parts: int = 1, transaction: str = "",
    expect_version: int | None = None, chunk: int = 0, timeout: float | None = TIMEOUT,
) -> Delivered:  # fmt: skip
    """Have a keeper keep data as the next version of a name. Nothing of it stays in this process.

    data is one of
      - a path or several: of safetensors files, or directories or indexes of such files, whose
        tensors get a table; or else of files of other kinds, which are put one behind the other
      - bytes
      - a contiguous array, which is kept as a tensor named "array": with __array_interface__,
        __dlpack__ or a buffer of typed elements, or, on a GPU, __cuda_array_interface__ or __dlpack__
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
    timeout     seconds to wait for the keeper, and for room; None for no bound

    Raises KeeperError, at once with the code too-large if the device is smaller than the data; it names
    who holds the device's memory if the code is no-room. Raises FormatError.
    """
    lifetime = arguments.step(timeout) if transaction else 0.0
    arguments.booking(name, part, parts, transaction, labels, expect_version, lifetime)
    arguments.number("chunk", chunk)
    source = _source(data)
    table = source.table.encode()  # before anything is loaded: it may be too large
    client = socket if isinstance(socket, Client) else Client(socket, timeout=timeout)
    try:
        deposit = Deposit(
            client, name, source.table.size, device=device, driver=driver, chunk=chunk or source.table.size, labels=labels,
            part=part, parts=parts, transaction=transaction, expect=expect_version, lifetime=lifetime,
        )  # fmt: skip
        with closing(deposit):
            source.write(deposit.grow(source.table.size))
            return deposit.deliver(table)
    finally:
        if client is not socket:
            client.close()


def _source(data: Any) -> _Source:
    if isinstance(data, (str, os.PathLike)):
        return _files([os.fspath(data)])
    if isinstance(data, Mapping):
        return _arrays(data)
    several = isinstance(data, Sequence) and not isinstance(data, (bytes, bytearray, memoryview, array.array))
    if several and data and all(isinstance(d, (str, os.PathLike)) for d in data):
        return _files([os.fspath(d) for d in data])
    alone = _Array.of(data)
    if alone.dtype is not None:
        return _arrays({ALONE: alone})
    return _Source(Table(alone.bytes), lambda memory: alone.write(memory, 0))


def _files(paths: list[str]) -> _Source:
    table, segments = plan_files(paths)

    def write(memory: Memory) -> None:
        for file, some in itertools.groupby(segments, key=lambda s: s.file):
            _load(memory, file, some)

    return _Source(table, write)


def _load(memory: Memory, file: Stamp, segments: Iterable[Segment]) -> None:
    """Copy what segments of a file say to the memory, where new bytes are zeros."""
    with open(file.path, "rb") as f:
        file.check(f)
        with closing(_read(f, segments)) as pieces:  # a thread may read ahead, no longer than the file is open
            _write_all(memory, pieces)
        file.check(f)


def _read(f: BinaryIO, segments: Iterable[Segment]) -> Generator[tuple[int, memoryview], None, None]:
    """The bytes of segments in pieces, with the place of each in the part."""
    for s in segments:
        at = s.offset
        for piece in _pieces(f, s.at, s.bytes):
            yield at, piece
            at += len(piece)
        if at != s.offset + s.bytes:
            raise MismatchError(f"{f.name} is shorter than it was", reason="cut-off")


def _pieces(f: BinaryIO, at: int, size: int) -> Iterator[memoryview]:
    """The bytes of a file in pieces. The next one is read while the caller has one. The file is not
    mapped: Python would die by SIGBUS if somebody made it shorter."""
    buffers = [memoryview(bytearray(min(PIECE, size))) for _ in range(min(2, -(-size // PIECE)))]

    def read(i: int) -> memoryview:
        begin = i * PIECE
        want = buffers[i % 2][: max(0, min(PIECE, size - begin))]
        done = 0
        while done < len(want) and (n := os.preadv(f.fileno(), [want[done:]], at + begin + done)):
            done += n
        return want[:done]

    if size <= PIECE:
        yield read(0)
        return
    with ThreadPoolExecutor(1) as ahead:
        piece = ahead.submit(read, 0)
        for i in range(-(-size // PIECE)):
            there = piece.result()
            piece = ahead.submit(read, i + 1)
            yield there


def _write_all(memory: Memory, bytes_at: Iterable[tuple[int, memoryview]]) -> None:
    with closing(_together(bytes_at)) as pieces:
        for at, piece in pieces:
            with piece:
                memory.write(at, piece)


def _together(bytes_at: Iterable[tuple[int, memoryview]]) -> Generator[tuple[int, memoryview], None, None]:
    """Pieces of bytes for places in the part: what is small has one together with what
    follows it, with zeros where that leaves a hole. A model may have 100,000 tensors."""
    begin, piece = 0, bytearray()
    for at, raw in bytes_at:
        hole = at - begin - len(piece)
        if piece and (len(raw) > SMALL or len(piece) > PIECE - SMALL or not 0 <= hole <= ALIGN):
            yield begin, memoryview(piece)
            begin, piece = 0, bytearray()
        if len(raw) > SMALL:
            for done in range(0, len(raw), PIECE):
                yield at + done, raw[done : done + PIECE]
            continue
        if piece:
            piece += bytes(hole)
        else:
            begin = at
        piece += raw
    if piece:
        yield begin, memoryview(piece)


def _arrays(data: Mapping[str, Any]) -> _Source:
    table, arrays = Table(), []
    for name, value in data.items():
        one = value if isinstance(value, _Array) else _Array.of(value, arguments.text("the name of an array", name) + ": ")
        if one.dtype is None:
            raise UsageError(f"{name}: bytes have no type of elements; put arrays by name, or bytes alone")
        at = table.place(one.bytes)
        table.tensors.append(Tensor(name, one.dtype, one.shape, at, one.bytes))
        arrays.append((at, one))
    check_tensors(table.tensors, table.size)

    def write(memory: Memory) -> None:
        _write_all(memory, ((at, one.host) for at, one in arrays if one.host is not None))
        for at, one in arrays:
            if one.host is None:
                one.write(memory, at)

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
    def of(cls, value: Any, what: str = "") -> _Array:
        """The array that value is. what is said before an error."""
        if _is_masked(value):
            raise UsageError(f"{what}a masked array, whose mask would be lost: put its filled(), or its data and its mask by name")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
            hint = " (gpufd.torch.put keeps PyTorch's tensors and modules)"
            if not _is_plain(value):
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
            hint = ": gpufd.torch.put keeps PyTorch's modules" if type(value).__module__.startswith("torch.") or hasattr(value, "state_dict") else ""
            raise UsageError(f"{what}{type(value).__name__} is no path, bytes or array that a keeper could keep{hint}") from None
        if not view.c_contiguous:
            raise UsageError(f"{what}the bytes of an array to be kept have to be contiguous")
        raw = view.cast("B") if view.nbytes else memoryview(b"")
        if view.ndim == 1 and view.format in ("B", "b", "c"):
            return cls(view.nbytes, (view.nbytes,), None, raw)
        kind = _FORMATS.get((view.format.lstrip("@<="), view.itemsize))
        if kind is None:
            raise UsageError(f"{what}elements of format {view.format!r}, for which safetensors has no name; memoryview(…).cast('B') has the bytes alone")
        return cls(view.nbytes, tuple(view.shape or ()), kind, raw)

    @classmethod
    def _described(cls, value: Any, interface: Mapping[str, Any], on_device: bool, what: str) -> _Array:
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
    def _by_dlpack(cls, value: Any, what: str, hint: str) -> _Array:
        from ..memory.array import DTYPES
        from ..memory.dlpack import KDL_CPU, KDL_CUDA, Imported

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

    def write(self, memory: Memory, at: int) -> None:
        if self.host is not None:
            return _write_all(memory, [(at, self.host)])
        if memory.driver != CUDA:
            raise UsageError("an array of a GPU cannot be kept in memory of the software driver")
        copy_device(memory, at, self.ptr, self.bytes)


def _size_of(shape: Sequence[int], item: int, strides: tuple[int, ...] | None, what: str) -> int:
    """The bytes of an array whose elements lie one behind the other."""
    dense: list[int] = []
    size = item
    for n in reversed(shape):
        dense.insert(0, size)
        size *= n
    if size and strides is not None and any(n > 1 and a != b for n, a, b in zip(shape, strides, dense)):
        raise UsageError(f"{what}an array to be kept has to be contiguous")
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


def _is_plain(t: Any) -> bool:
    """Whether a tensor of PyTorch's is no more than its elements."""
    return not (t.is_conj() or t.is_neg() or getattr(t, "is_quantized", False) or hasattr(t, "__tensor_flatten__"))


def _is_masked(value: Any) -> bool:
    """Whether it is a masked array of NumPy's, which need not be there."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def copy_device(memory: Memory, at: int, ptr: int, size: int) -> None:
    """Copy what another allocation of a GPU has, behind all that the device was given before."""
    from ..memory.cuda import CudaMemory

    if size and isinstance(memory, CudaMemory):
        memory.finish()
        with memory.current() as lib:
            lib.call("cuMemcpyDtoDAsync_v2", memory.ptr + at, ptr, size, None)
            lib.call("cuStreamSynchronize", None)
