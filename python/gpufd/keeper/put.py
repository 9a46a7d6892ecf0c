"""gpufd.put: files, bytes or arrays into memory that a keeper keeps."""

from __future__ import annotations

import array
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO

from .. import arguments, log
from ..errors import MismatchError, UsageError, enough_files
from ..memory.base import Memory
from ..memory.device import Device
from ..memory.foreign import Foreign, copy_device
from ..progress import Progress, check_progress, reporting
from ..wire.records import CUDA
from .client import Client
from .control import TIMEOUT
from .deposit import PIECE, Deposit, Delivered
from .safetensors import Segment, Stamp, plan_files
from .tables import ALIGN, Table, Tensor, check_tensors

SMALL = 1 << 20  # bytes of what is copied together with others
ALONE = "array"  # the name of a tensor that was put alone


Add = Callable[[int], object]  # called with the bytes of each step


def _unseen(n: int) -> None:
    """Nobody wants to know of progress."""


@dataclass(frozen=True)
class _Source:
    """The contents of a part: its table, and a function that writes the memory."""

    table: Table
    copy: Callable[[Memory, Add], None]

    def write(self, memory: Memory, add: Add = _unseen) -> None:
        self.copy(memory, add)


@enough_files()
def put(
    name: str, data: Any, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None,
    device: Device = 0, driver: str | int | None = None, part: int = 0, parts: int = 1, transaction: str = "",
    expect_version: int | None = None, chunk: int = 0, metadata: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT,
    progress: Progress = None,
) -> Delivered:  # fmt: skip
    """Put data into a keeper as the next version of a name. Nothing of it stays in this process.

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
    metadata    texts by name that are kept beside the data, and with what safetensors files have: see
                Version.metadata
    timeout     seconds to wait for the keeper, and for room; None for no bound
    progress    is called with the bytes that are copied and those there are; with True tqdm shows them, or
                a line on a terminal

    Raises KeeperError, at once with the reason too-large if the device is smaller than the data; it names
    who holds the device's memory if the reason is no-room. Raises FormatError.
    """
    lifetime = arguments.step(timeout) if transaction else 0.0
    arguments.booking(name, part, parts, transaction, labels, expect_version, lifetime)
    arguments.number("chunk", chunk)
    check_progress(progress)
    beside = arguments.labels(metadata, "metadata text")
    source = _source(data)
    source.table.add_metadata(beside)
    table = source.table.encode()  # before anything is loaded: it may be too large
    client = socket if isinstance(socket, Client) else Client(socket, timeout=timeout)
    try:
        deposit = Deposit(
            client, name, source.table.size, device=device, driver=driver, chunk=chunk or source.table.size, labels=labels,
            part=part, parts=parts, transaction=transaction, expect=expect_version, lifetime=lifetime,
        )  # fmt: skip
        with closing(deposit):
            with reporting(progress, source.table.size, f"put {name}") as add:
                source.write(deposit.grow(source.table.size), add)
            log.debug("copied %d bytes of part %d of %s", source.table.size, part, name)
            return deposit.deliver(table, layout=source.table.layout())
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
    alone = _foreign(data)
    if alone.dtype is not None:
        return _arrays({ALONE: alone})
    return _Source(Table(alone.bytes), lambda memory, add: _write_foreign(memory, 0, alone, add))


def _files(paths: list[str]) -> _Source:
    table, segments = plan_files(paths)

    def write(memory: Memory, add: Add) -> None:
        for file, some in itertools.groupby(segments, key=lambda s: s.file):
            _load(memory, file, some, add)

    return _Source(table, write)


def _load(memory: Memory, file: Stamp, segments: Iterable[Segment], add: Add) -> None:
    """Copy what segments of a file say to the memory, where new bytes are zeros."""
    with open(file.path, "rb") as f:
        file.check(f)
        with closing(_read(f, segments)) as pieces:  # a thread may read ahead, no longer than the file is open
            _write_all(memory, pieces, add)
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


def _write_all(memory: Memory, bytes_at: Iterable[tuple[int, memoryview]], add: Add) -> None:
    with closing(_together(bytes_at)) as pieces:
        for at, piece in pieces:
            with piece:
                memory.write(at, piece)
                add(len(piece))


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
        one = value if isinstance(value, Foreign) else _foreign(value, arguments.text("the name of an array", name) + ": ")
        if one.dtype is None:
            raise UsageError(f"{name}: bytes have no type of elements; put arrays by name, or bytes alone")
        at = table.place(one.bytes)
        table.tensors.append(Tensor(name, one.dtype, one.shape, at, one.bytes))
        arrays.append((at, one))
    check_tensors(table.tensors, table.size)

    def write(memory: Memory, add: Add) -> None:
        _write_all(memory, ((at, one.host) for at, one in arrays if one.host is not None), add)
        for at, one in arrays:
            if one.host is None:
                _write_foreign(memory, at, one, add)

    return _Source(table, write)


def _foreign(value: Any, what: str = "") -> Foreign:
    return Foreign.of(value, what, "path, bytes or array that a keeper could keep", " (gpufd.torch.put keeps PyTorch's tensors and modules)")


def _write_foreign(memory: Memory, at: int, array: Foreign, add: Add = _unseen) -> None:
    if array.host is not None:
        return _write_all(memory, [(at, array.host)], add)
    if memory.driver != CUDA:
        raise UsageError("an array of a GPU cannot be kept in memory of the software driver")
    copy_device(memory, at, array.ptr, array.bytes)
    add(array.bytes)
    return None
