"""Models in memory that a keeper keeps: PyTorch tensors over it, without a copy.

    state = gpufd.torch.load(None, "llama")          # a dictionary of tensors
    model.load_state_dict(state, assign=True)         # PyTorch 2.1 and newer

    gpufd.torch.put(None, "llama", model, labels={"revision": "main"})

Tensors of ``load`` lie in memory that is mapped read-only. A write through one is not refused
by PyTorch: on a GPU it fails the process's CUDA context for good, with the software driver it
kills the process. So what is loaded is for inference; ``clone()`` gives a private copy. The same
holds of a model's tensors after ``put``.

A tensor keeps the memory, and the lease of it, until the last one that shares its storage is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import _arguments as arguments
from ._control import TIMEOUT
from ._errors import InUseError, UnavailableError, UsageError
from ._get import Attached, get
from ._kept import Kept
from ._memory import Memory, driver_kind
from ._tables import BITS, FormatError, Table, Tensor, check_tensors, quote
from ._wire import CUDA, READ_ONLY

if TYPE_CHECKING:
    from ._deposit import Delivered, Deposit
    from .keeper import Client

__all__ = ["DTYPES", "Loaded", "load", "put", "tensors"]

_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip

DTYPES: dict[str, Any] = {name: getattr(torch, there) for name, there in _NAMES.items() if hasattr(torch, there)}
"""PyTorch's types, by their names in safetensors: those that this PyTorch has."""

_OF_TYPE = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 16  # of a storage's beginning in a part: no element is larger
_FREED = 256 << 20  # bytes that are freed before PyTorch's cache gives them to the driver


# Tensors over memory.


class _Span:
    """Bytes of memory that PyTorch has a tensor over, which keeps this."""

    def __init__(self, memory: Memory, offset: int, size: int, what: str, owner: object) -> None:
        self._keeps = (memory, owner)
        weakref.finalize(self, memory.let_go, memory.hold(what)).atexit = False
        if memory.driver == CUDA:
            # PyTorch refuses what is marked as read-only; the driver refuses the write nevertheless.
            self.__cuda_array_interface__ = {
                "shape": (size,), "typestr": "|u1", "data": (memory.ptr + offset, False), "strides": None, "version": 3,
            }  # fmt: skip


def _bytes_over(memory: Memory, offset: int, size: int, what: str, owner: object = None) -> Any:
    """A tensor of bytes over a range of memory: a storage of its own."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=_device_of(memory))
    span = _Span(memory, offset, size, what, owner)
    if memory.driver == CUDA:
        return torch.as_tensor(span, device=_device_of(memory))
    raw: Any = type("Bytes", (ctypes.c_ubyte * size,), {})
    raw = raw.from_address(memory.ptr + offset)
    raw.keeps = span
    return torch.frombuffer(raw, dtype=torch.uint8)


def _device_of(memory: Memory) -> Any:
    return torch.device("cuda", memory.ordinal) if memory.driver == CUDA else torch.device("cpu")


def _as(span: Any, t: Tensor, at: int) -> Any:
    """The tensor that a table describes, in a span that begins at byte at of the part."""
    if t.dtype not in DTYPES:
        raise UnavailableError(f"tensor {quote(t.name)} is of type {t.dtype}, which PyTorch {torch.__version__} does not have")
    dtype, begin = DTYPES[t.dtype], t.offset - at
    if t.bytes == 0:
        return torch.empty(t.shape, dtype=dtype, device=span.device)
    if t.offset * 8 % BITS[t.dtype]:
        raise FormatError(f"tensor {quote(t.name)} of {t.dtype} lies at byte {t.offset}")
    flat = span[begin : begin + t.bytes].view(dtype)
    return flat.as_strided(t.shape, t.stride if t.stride is not None else _dense(t.shape))


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor that lies dense, in elements."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return tuple(strides)


def _clusters(table: list[Tensor]) -> list[tuple[int, int, list[Tensor]]]:
    """Begin, end and tensors of each range of bytes that shares none with another."""
    found: list[tuple[int, int, list[Tensor]]] = []
    for t in sorted(table, key=lambda t: (t.offset, t.bytes)):
        if found and t.bytes and t.offset < found[-1][1]:
            begin, end, members = found[-1]
            found[-1] = (begin, max(end, t.offset + t.bytes), [*members, t])
        else:
            found.append((t.offset, t.offset + t.bytes, [t]))
    return found


def tensors(part: Attached) -> dict[str, Any]:
    """Return the tensors of a part that gpufd.get has attached to, without a copy.

    Tensors that share bytes, such as tied weights, share a storage.
    """
    table, made = part.table, {}
    for begin, end, members in _clusters(table.all()):
        begin -= begin % _ALIGN
        span = _bytes_over(part.memory, begin, end - begin, f"tensor {quote(members[0].name)} (PyTorch)", part)
        for t in members:
            made[t.name] = _as(span, t, begin)
    return {t.name: made[t.name] for t in table.all()}


class Loaded(dict[str, Any]):
    """Tensors by name. ``data`` is what the keeper says of their part: a gpufd.Kept."""

    def __init__(self, made: Mapping[str, Any], data: Kept) -> None:
        super().__init__(made)
        self.data = data


def load(
    socket: str | os.PathLike[str] | Client | None, name: str, part: int | None = None, labels: Mapping[str, str] | None = None,
    *, timeout: float | None = TIMEOUT, driver: str | int | None = None, device: int | None = None,
) -> Loaded:  # fmt: skip
    """Return the tensors that a keeper keeps under a name, as views without a copy.

    They keep the lease until the last of them is gone. They are read-only: see the module.

    socket      the keeper's socket, or a gpufd.Client; None for the default one
    part        of a version of several parts: which
    labels      labels that the version must have, or LabelError

    Raises KeeperError, LabelError, DeviceError, and FormatError if the name holds no tensors.
    """
    with get(socket, name, part=part, labels=labels, timeout=timeout, driver=driver, device=device, access=READ_ONLY) as version:
        if len(version.parts) != 1:
            raise UsageError(f"{name} has {len(version.parts)} parts: say which")
        (attached,) = version.detach()
    try:
        if attached.table.format != "safetensors":
            raise FormatError(f"{name} holds no tensors: its table is of {attached.table.format}")
        return Loaded(tensors(attached), attached.data)
    except BaseException:
        with contextlib.suppress(InUseError):  # by tensors of the traceback: the lease ends with them
            attached.close()
        raise


# What a model is made of.


@dataclass
class _Block:
    """A range of one storage that goes into the part together, with the tensors in it."""

    device: Any
    begin: int  # in the storage, in bytes
    end: int
    members: list[tuple[str, Any]]
    address: int
    at: int = 0  # in the part

    def add(self, name: str, t: Any) -> None:
        begin = t.storage_offset() * t.element_size()
        begin -= begin % _ALIGN
        end = t.storage_offset() * t.element_size() + _span_of(t)
        self.begin, self.end = (min(self.begin, begin), max(self.end, end)) if self.members else (begin, end)
        self.members.append((name, t))


def _span_of(t: Any) -> int:
    """The bytes from a tensor's first element to its last."""
    if t.numel() == 0:
        return 0
    return int((sum((n - 1) * step for n, step in zip(t.shape, t.stride())) + 1) * t.element_size())


def _storage_of(t: Any) -> Any:
    return t.untyped_storage() if hasattr(t, "untyped_storage") else t._storage()


def _state(source: Any) -> dict[str, Any]:
    """The tensors of a module, those of its state_dict, or of a mapping."""
    if isinstance(source, torch.nn.Module):
        return dict(source.state_dict(keep_vars=True))
    if isinstance(source, Mapping):
        return {str(name): t for name, t in source.items()}
    raise UsageError(f"{type(source).__name__} is no module, and no mapping from names to tensors")


def _check(name: str, t: Any) -> None:
    if not isinstance(t, torch.Tensor):
        raise UsageError(f"{quote(name)} is no tensor but {type(t).__name__}: put a mapping of the tensors alone")
    if t.device.type not in ("cpu", "cuda"):
        raise UsageError(f"tensor {quote(name)} is on {t.device}: it has to be on a GPU or the CPU")
    if t.layout != torch.strided or t.is_quantized or hasattr(t, "__tensor_flatten__") or t.is_conj() or t.is_neg():
        raise UsageError(f"tensor {quote(name)} is of a kind that is more than its bytes ({type(t).__name__}, {t.layout})")
    if t.dtype not in _OF_TYPE:
        raise UsageError(f"tensor {quote(name)} is of {t.dtype}, for which safetensors has no name")


def _blocks(state: Mapping[str, Any]) -> list[_Block]:
    """Blocks in the order of their addresses: what PyTorch's allocator has in one segment it
    gets back together."""
    blocks: dict[Any, _Block] = {}
    for name, t in state.items():
        _check(name, t)
        address = _storage_of(t).data_ptr()
        key = (t.device, address) if address else (t.device, name)
        blocks.setdefault(key, _Block(t.device, 0, 0, [], address)).add(name, t)
    return sorted(blocks.values(), key=lambda b: (b.device.type, b.address))


def _plan(blocks: list[_Block], metadata: Mapping[str, str] | None) -> Table:
    """Place the blocks, and list their tensors."""
    table = Table(metadata=arguments.labels(metadata, "metadata text"))
    for b in blocks:
        b.at = table.place(b.end - b.begin)
        taken: list[tuple[int, int]] = []
        for name, t in b.members:
            at = b.at + t.storage_offset() * t.element_size() - b.begin
            size = _span_of(t)
            dense = t.is_contiguous()
            entry = Tensor(name, _OF_TYPE[t.dtype], tuple(t.shape), at, size, None if dense else tuple(t.stride()))
            overlaps = any(at < end and begin < at + size for begin, end in taken)
            (table.tensors if dense and not overlaps else table.views).append(entry)
            taken.append((at, at + size))
    check_tensors(table.all(), table.size)
    return table


def _where(blocks: list[_Block], driver: str | int | None, device: int | None) -> tuple[int, int]:
    """The kind of driver and the device for a state."""
    there = {b.device for b in blocks if b.device.type == "cuda"}
    if len(there) > 1:
        raise UsageError(f"the tensors are on {len(there)} devices, and a part is on one: put a part for each")
    kind = driver_kind(CUDA if there and driver is None else driver)
    if kind != CUDA and there:
        raise UsageError("the tensors are on a GPU, and the driver is the software driver's")
    if device is None and kind == CUDA:
        device = next(iter(there)).index if there else torch.cuda.current_device()
    return kind, device or 0


def put(
    socket: str | os.PathLike[str] | Client | None, name: str, module_or_tensors: Any, *, labels: Mapping[str, str] | None = None,
    part: int = 0, parts: int = 1, transaction: str = "", expect_version: int | None = None, device: int | None = None,
    driver: str | int | None = None, chunk: int = 0, metadata: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT,
) -> Delivered:  # fmt: skip
    """Have a keeper keep the tensors of a module, or of a mapping, as they are now.

    Of a module it keeps the tensors of its state_dict: parameters and persistent buffers. One
    storage after the other moves into memory that the keeper gets, and its tensors become views
    of that memory. So the device needs room for the weights, the largest storage and at most
    1 GiB. Tensors that share a storage still do, and strides stay. An old storage is freed unless
    somebody else refers to it.

    When the version is committed, the tensors are read-only: see the module. If the put fails,
    they can be written still, and only lie elsewhere. If the keeper's answer did not come, the
    version may be committed: the tensors are read-only then, unless the keeper has said since
    that it does not take them.

    The other arguments are those of gpufd.put.
    """
    from ._deposit import Deposit
    from .keeper import Client

    blocks = _blocks(_state(module_or_tensors))
    table = _plan(blocks, metadata)
    kind, ordinal = _where(blocks, driver, device)
    client = socket if isinstance(socket, Client) else Client(socket, timeout=timeout)
    try:
        deposit = Deposit(
            client, name, table.size, device=ordinal, driver=kind, chunk=chunk, labels=labels, part=part, parts=parts,
            transaction=transaction, expect=expect_version, lifetime=(timeout or 0.0) if transaction else 0.0,
        )  # fmt: skip
        try:
            if kind == CUDA:  # what other streams still write comes along, too
                for i in {ordinal, *(b.device.index for b in blocks if b.device.type == "cuda")}:
                    torch.cuda.synchronize(i)
            _move(blocks, deposit)
            return deposit.deliver(table.encode())
        except BaseException:
            deposit.abandon()
            raise
    finally:
        if client is not socket:
            client.close()


def _move(blocks: list[_Block], deposit: Deposit) -> None:
    """Move the blocks, and have their tensors be views of where they are then."""
    freed = 0
    for b in blocks:
        size = b.end - b.begin
        if freed + size > _FREED:
            freed = _give_back()
        memory = deposit.grow(b.at + size)
        span = _bytes_over(memory, b.at, size, f"tensor {quote(b.members[0][0])} (PyTorch)")
        with torch.no_grad():
            if size:
                span.copy_(_bytes_of(b))
            for _, t in b.members:
                entry = Tensor("", _OF_TYPE[t.dtype], tuple(t.shape), t.storage_offset() * t.element_size() - b.begin, _span_of(t), tuple(t.stride()))
                t.data = _as(span, entry, 0)
        b.members.clear()
        freed += size
    _give_back()


def _bytes_of(b: _Block) -> Any:
    """The bytes of a block where they still are."""
    storage = _storage_of(b.members[0][1])
    empty = torch.empty(0, dtype=torch.uint8, device=b.device)
    return empty.set_(storage, b.begin, (b.end - b.begin,), (1,))


def _give_back() -> int:
    """Have PyTorch's cache give the driver what was freed."""
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.empty_cache()
    return 0
