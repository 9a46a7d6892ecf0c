"""A model's weights: load and put."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from .. import arguments
from ..errors import FormatError, InUseError, UnavailableError, UsageError
from ..keeper.control import TIMEOUT
from ..keeper.get import get
from ..keeper.tables import BITS, Table, Tensor, check_tensors, quote
from ..keeper.version import Attached, Version, need_apart
from ..memory.array import dense
from ..memory.base import Memory
from ..memory.device import Device
from ..memory.drivers import driver_kind, ordinal_of
from ..memory.tensor import bytes_over, dtypes
from ..objects import called, human
from ..progress import Progress, check_progress, reporting
from ..share.kept import Kept
from ..wire.records import CUDA, READ_ONLY
from .assign import Fitted, fitted, replace, some
from .named import note
from .storages import span_of, storage_of

if TYPE_CHECKING:
    from ..keeper.deposit import Delivered, Deposit
    from .pool import SharedPool
    from ..keeper.client import Client

DTYPES: dict[str, Any] = dtypes()
"""PyTorch's types, by their names in safetensors: those that this PyTorch has. An element of
PyTorch's F4 is two of safetensors', so PyTorch's shapes have half as many along one dimension."""

_OF_TYPE = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 16  # of a storage's beginning in a part: no element is larger
_FREED = 64 << 20  # bytes that are freed before PyTorch's cache gives them to the driver


# Tensors over memory.


def _lacking(t: Tensor) -> str | None:
    """Why this PyTorch cannot have a tensor, or None if it can."""
    if t.dtype not in DTYPES:
        return f"tensor {quote(t.name)} is of type {t.dtype}, which PyTorch {torch.__version__} does not have: gpufd.get gives its bytes"
    if t.dtype == "F4" and _halved(t) is None:
        return f"tensor {quote(t.name)} of F4 {list(t.shape[:8])} has no pairs along a dimension, of which PyTorch's elements are: gpufd.get gives its bytes"
    return None


def _as(span: Any, t: Tensor, at: int) -> Any:
    """The tensor that a table describes, in a span that begins at byte at of the part."""
    shape, stride = t.shape, t.stride if t.stride is not None else dense(t.shape)
    if t.dtype == "F4":
        shape, stride = _halved(t) or (shape, stride)
    return _over(span, DTYPES[t.dtype], t.offset - at, t.bytes, shape, stride)


def _over(span: Any, dtype: Any, begin: int, size: int, shape: Sequence[int], stride: Sequence[int]) -> Any:
    """A tensor over size bytes from byte begin of a span on. Shape and strides are PyTorch's."""
    if size == 0:
        return torch.empty(shape, dtype=dtype, device=span.device)
    return span[begin : begin + size].view(dtype).as_strided(shape, stride)


# An element of float4_e2m1fn_x2 is a pair of F4, which follow each other in the dimension of stride 1.


def _pairs(stride: Sequence[int]) -> int:
    """The dimension along which F4 is packed; -1 if there is none."""
    return next((i for i in reversed(range(len(stride))) if stride[i] == 1), -1)


def _halved(t: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides of a tensor of F4 in pairs, or None if there is no such tensor."""
    strides = t.stride if t.stride is not None else dense(t.shape)
    at = _pairs(strides)
    if at < 0 or t.shape[at] % 2 or any(n % 2 for i, n in enumerate(strides) if i != at and t.shape[i] > 1):
        return None
    shape = tuple(n // 2 if i == at else n for i, n in enumerate(t.shape))
    return shape, tuple(n if i == at else n // 2 for i, n in enumerate(strides))


def _doubled(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """_halved's inverse: shape and strides in F4 of a tensor of pairs."""
    at = _pairs(stride)
    return tuple(n * 2 if i == at else n for i, n in enumerate(shape)), tuple(n if i == at else n * 2 for i, n in enumerate(stride))


def _clusters(table: list[Tensor]) -> list[tuple[int, int, list[Tensor]]]:
    """Begin, end and tensors of each range of bytes that shares none with another."""
    found: list[tuple[int, int, list[Tensor]]] = []
    for t in sorted(table, key=lambda t: (t.offset, t.bytes)):
        if found and t.bytes and t.offset < found[-1][1]:
            begin, end, members = found[-1]
            members.append(t)  # of which there may be 100,000
            found[-1] = (begin, max(end, t.offset + t.bytes), members)
        else:
            found.append((t.offset, t.offset + t.bytes, [t]))
    return found


class Loaded(dict[str, Any]):
    """Tensors by name, in the order in which they were put.

    data        what the keeper says of their part, or of the first: a gpufd.Kept
    metadata    the texts by name that were put beside them
    lacking     by name, why this PyTorch cannot have a tensor: one of a type that it lacks. Such a
                tensor is not among the others, and raises UnavailableError when it is asked for.
    """

    def __init__(
        self, made: Mapping[str, Any], data: Kept, lacking: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(made)
        self.data, self.lacking, self.metadata = data, dict(lacking or {}), dict(metadata or {})

    def __repr__(self) -> str:
        size = human(sum(t.numel() * t.element_size() for t in self.values()))
        return f"<gpufd.torch.Loaded {called(self.data.name)} version {self.data.version}: {len(self)} tensors, {size}>"

    def __missing__(self, name: str) -> Any:
        if name in self.lacking:
            raise UnavailableError(self.lacking[name])
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the tensor of that name, or the default if there is none."""
        return self[name] if name in self.lacking else super().get(name, default)

    def apply(self, model: Any, *, strict: bool = True) -> None:
        """Make these tensors the model's parameters and persistent buffers, without a copy.

        As load_state_dict(…, assign=True) does, and in old versions of PyTorch, too. Besides: all or none are
        assigned; tied weights stay tied, also where these have one name of them; and no parameter requires a
        gradient, which load_state_dict leaves as the model has it. Raises MismatchError ("tensors"), before
        anything is changed, if a name, shape, type or device does not fit. With strict=False there may be
        tensors that the model has no place for; the model's must all be there.
        """
        replace(self._fitted(model, strict))

    def _fitted(self, model: Any, strict: bool) -> Fitted:
        """Return what apply assigns, or raise its error."""
        lacking = [why for place, why in self.lacking.items() if place in model.state_dict()]
        if lacking:
            raise UnavailableError(lacking[0])
        return fitted(model, self, f"version {self.data.version} of {self.data.name}", strict)

    def check(self, model: Any) -> None:
        """Raise UsageError, which names them, unless all tensors of the module's state_dict are
        these, and none of its other buffers is still without memory (device meta).

        So it finds what load_state_dict(…, strict=False) leaves without a word.
        """
        mine = {t.data_ptr() for t in self.values() if t.numel()}
        state = model.state_dict(keep_vars=True)
        others = [name for name, t in state.items() if isinstance(t, torch.Tensor) and t.numel() and (t.is_meta or t.data_ptr() not in mine)]
        empty = [name for name, t in model.named_buffers() if t.is_meta and name not in state]
        if others or empty:
            raise UsageError("; ".join([*self._why(others), *([f"buffers without memory (device meta): {some(empty)}"] if empty else [])]))

    def _why(self, others: list[str]) -> list[str]:
        """Return the faults of a model's tensors that are not these."""
        absent = [name for name in others if name not in self and name not in self.lacking]
        copied = [name for name in others if name in self]
        said = [self.lacking[name] for name in others if name in self.lacking][:1]
        if absent:
            said.append(f"tensors of the model that {quote(self.data.name)} does not have: {some(absent)} (tied weights? call tie_weights)")
        if copied:
            said.append(f"tensors of the model that are copies, or were not assigned (of another type or device?): {some(copied)}")
        return said


def tensors(source: Attached | Version) -> Loaded:
    """Return the tensors that gpufd.get has attached to, of a part or of all of them, without a copy.

    Tensors that share bytes, such as tied weights, share a storage. Raises FormatError if a name is in
    two parts.
    """
    if isinstance(source, Attached):
        return _tensors(source)
    need_apart(source.parts)
    parts = [_tensors(part) for part in source.parts]
    made = {name: t for loaded in parts for name, t in loaded.items()}
    lacking = {name: why for loaded in parts for name, why in loaded.lacking.items()}
    return Loaded(made, parts[0].data, lacking, source.metadata)


def _tensors(part: Attached) -> Loaded:
    table, made = part.table, {}
    lacking = {t.name: why for t in table.all() if (why := _lacking(t)) is not None}
    for begin, end, members in _clusters([t for t in table.all() if t.name not in lacking]):
        for t in members:
            if t.bytes and t.offset * 8 % BITS[t.dtype]:
                raise FormatError(f"tensor {quote(t.name)} of {t.dtype} lies at byte {t.offset}")
        begin -= begin % _ALIGN
        span = bytes_over(part.memory, begin, end - begin, f"tensor {quote(members[0].name)} (PyTorch)", part)
        for t in members:
            try:
                made[t.name] = _as(span, t, begin)
            except (RuntimeError, TypeError) as e:  # too large a number, in a stranger's table
                raise FormatError(f"tensor {quote(t.name)} of {t.dtype} {list(t.shape[:8])} cannot be one of PyTorch's: {e}") from None
    note(part.memory, table)
    return Loaded({t.name: made[t.name] for t in table.in_order() if t.name in made}, part.data, lacking, table.metadata)


def tensors_of(part: Attached) -> Loaded:
    """Return the tensors of a part, or raise FormatError if it holds something else."""
    if part.table.format != "safetensors":
        raise FormatError(f"{part.data.name} holds no tensors but {part.table.format}: gpufd.get attaches to them")
    return tensors(part)


def load(
    name: str, *, socket: str | os.PathLike[str] | Client | None = None, part: int | Literal["here"] | None = None,
    labels: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT, driver: str | int | None = None, device: Device | None = None,
    progress: Progress = None, debug: bool = False,
) -> Loaded:  # fmt: skip
    """Return the tensors that a keeper keeps under a name, as views without a copy.

    They keep the lease until the last of them is gone. They are read-only: see the module. None requires a
    gradient. Loaded.apply makes them a model's.

    socket      the keeper's socket, or a gpufd.Client; None for the default one
    part        of a version of several parts: which; "here" means the only one on the device
    labels      labels that the version must have, or MismatchError
    progress    as of put; nothing is copied, so it is called once
    debug       raise ReadOnlyError before this thread writes kept memory: WriteGuard

    Raises NotFoundError, KeeperError, MismatchError, and FormatError if the name holds no tensors.
    """
    check_progress(progress)
    _watch(arguments.flag("debug", debug))
    with get(name, socket=socket, part=part, labels=labels, timeout=timeout, driver=driver, device=device, access=READ_ONLY) as version:
        if len(version.parts) != 1:
            raise UsageError(f"{name} has {len(version.parts)} parts: say which (all of a model's: gpufd.transformers.load)")
        return taken(version, progress)


def taken(version: Version, progress: Progress) -> Loaded:
    """Return the tensors of a version, which own its parts from here on. Raises FormatError if it holds something else."""
    try:
        with reporting(progress, sum(part.memory.size for part in version.parts), f"load {version.name}"):
            made = tensors_of(version.parts[0]) if len(version.parts) == 1 else tensors(version)
        version.take()
        return made
    except BaseException:
        for part in version.take():
            with contextlib.suppress(InUseError):  # by tensors of the traceback: the lease ends with them
                part.close()
        raise


def _watch(debug: bool) -> None:
    """Guard this thread's writes, if that is asked for."""
    if debug:
        from .guard import watch

        watch(debug)


# The tensors of a model.


@dataclass
class _Block:
    """A range of one storage that goes into the part together, with the tensors in it."""

    device: Any
    begin: int  # in the storage, in bytes
    end: int
    members: list[tuple[str, Any]]
    address: int
    at: int = 0  # in the part
    moves: bool = True  # it is not in the part's memory yet

    @property
    def size(self) -> int:
        return self.end - self.begin

    def add(self, name: str, t: Any) -> None:
        begin = t.storage_offset() * t.element_size()
        begin -= begin % _ALIGN
        end = t.storage_offset() * t.element_size() + span_of(t)
        self.begin, self.end = (min(self.begin, begin), max(self.end, end)) if self.members else (begin, end)
        self.members.append((name, t))


def _strides_of(t: Any) -> tuple[int, ...]:
    """A tensor's strides; PyTorch's are anything in dimensions of one element."""
    return dense(t.shape) if t.is_contiguous() else tuple(t.stride())


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
    if _OF_TYPE[t.dtype] == "F4" and _pairs(_strides_of(t)) < 0:
        raise UsageError(f"tensor {quote(name)} is of {t.dtype}, and no dimension has its pairs one behind the other (a stride of 1)")


def _blocks(state: Mapping[str, Any]) -> list[_Block]:
    """Blocks in the order in which the state first names them: the same model has the same
    offsets each time, wherever its storages lie."""
    blocks: dict[Any, _Block] = {}
    for name, t in state.items():
        _check(name, t)
        address = storage_of(t).data_ptr()
        key = (t.device, address) if address else (t.device, name)
        blocks.setdefault(key, _Block(t.device, 0, 0, [], address)).add(name, t)
    return list(blocks.values())


def _plan(state: Mapping[str, Any], blocks: list[_Block], metadata: Mapping[str, str] | None, pool: SharedPool | None) -> Table:
    """Place the blocks, and list their tensors."""
    table = Table(metadata=arguments.labels(metadata, "metadata text"))
    if pool is not None:
        table.size = _place_in(pool, blocks)
    for b in blocks:
        b.at = b.at if pool is not None else table.place(b.size)
        taken: list[tuple[int, int]] = []
        for name, t in b.members:
            entry = _entry(name, t, b)
            at, end = entry.offset, entry.offset + entry.bytes
            overlaps = any(at < e and begin < end for begin, e in taken)
            (table.tensors if entry.stride is None and not overlaps else table.views).append(entry)
            taken.append((at, end))
    table.order_as(state)
    check_tensors(table.all(), table.size)
    return table


def _pool_for(source: Any, state: Mapping[str, Any], blocks: list[_Block], kind: int, ordinal: int) -> SharedPool | None:
    """Return the pool whose memory can become the part: one that has tensors of the state, and no others."""
    from .pool import pool_of

    pool = pool_of((b.address + b.begin, b.size) for b in blocks)
    if pool is None or pool.driver != kind or pool.ordinal != ordinal or pool.memory is not None and pool.memory.offered_to_write:
        return None  # with a handle, others may write it for good
    if isinstance(source, torch.nn.Module):  # buffers that are not kept stay writable, elsewhere
        for name, t in source.named_buffers():
            if name not in state and pool.place_of(t.data_ptr(), span_of(t)) is not None:
                t.data = t.clone()
    places = [at for b in blocks if b.size and (at := pool.place_of(b.address + b.begin, b.size)) is not None]
    if pool.others(places):
        gc.collect()
    return None if pool.others(places) else pool


def _place_in(pool: SharedPool, blocks: list[_Block]) -> int:
    """Note where the blocks are in a pool, or will be, and return its size."""
    for b in blocks:
        at = pool.place_of(b.address + b.begin, b.size) if b.size else None
        b.moves = at is None and b.size > 0
        b.at = at if at is not None else pool.reserve(b.size) if b.size else 0
    assert pool.memory is not None
    return pool.memory.size


def _entry(name: str, t: Any, b: _Block) -> Tensor:
    """A tensor of a block as a table lists it."""
    dtype, shape, stride = _OF_TYPE[t.dtype], tuple(t.shape), _strides_of(t)
    if dtype == "F4":
        shape, stride = _doubled(shape, stride)
    at = b.at + t.storage_offset() * t.element_size() - b.begin
    return Tensor(name, dtype, shape, at, span_of(t), None if t.is_contiguous() else stride)


def _where(blocks: list[_Block], driver: str | int | None, device: Device | None) -> tuple[int, int]:
    """The kind of driver and the device for a state."""
    there: dict[Any, str] = {}  # the devices, with the first tensor on each
    for b in blocks:
        if b.device.type == "cuda":
            there.setdefault(b.device, b.members[0][0])
    if len(there) > 1:
        which = ", ".join(f"{quote(name)} on {at}" for at, name in there.items())
        raise UsageError(f"the tensors are on {len(there)} devices ({which}), and a part is on one: put a part for each")
    kind = driver_kind(CUDA if there and driver is None else driver)
    if kind != CUDA and there:
        at, first = next(iter(there.items()))
        raise UsageError(f"tensor {quote(first)} is on {at}, and the driver is the software driver's")
    ordinal = ordinal_of(device, kind)
    if ordinal is None and kind == CUDA:
        ordinal = next(iter(there)).index if there else torch.cuda.current_device()
    return kind, ordinal or 0


def put(
    name: str, module_or_tensors: Any, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None,
    part: int = 0, parts: int = 1, transaction: str = "", expect_version: int | None = None, device: Device | None = None,
    driver: str | int | None = None, chunk: int = 0, metadata: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT,
    progress: Progress = None,
) -> Delivered:  # fmt: skip
    """Put the tensors of a module, or of a mapping, into a keeper, as they are now.

    Of a module it keeps the tensors of its state_dict: parameters and persistent buffers. One
    storage after the other moves into memory that the keeper gets, and its tensors become views
    of that memory. So the device needs room for the weights, the largest storage and at most
    1 GiB. What lies in a SharedPool stays where it is: the pool's memory becomes the part, unless tensors
    that are not put lie there, too. Tensors that share a storage still do, and strides stay. An old storage is freed unless
    somebody else refers to it.

    When the version is committed, the tensors are read-only: see the module. If the put fails,
    they can be written still, and only lie elsewhere. If the keeper's answer did not come, the
    version may be committed: the tensors are read-only then, unless the keeper has said since
    that it does not take them.

    Storages lie in the order in which the state_dict first names them, so the same model put
    again has the same offsets and digest, and load returns that order.

    Put the module rather than its state_dict(): that has tensors of its own, which move while
    the module keeps the old memory.

    The other arguments are those of gpufd.put.
    """
    check_progress(progress)
    with client_of(socket, timeout) as client, filled(
        client, name, module_or_tensors, device, driver, metadata, progress, chunk=chunk, labels=labels, part=part, parts=parts,
        transaction=transaction, expect=expect_version, lifetime=arguments.step(timeout) if transaction else 0.0,
    ) as deliver:  # fmt: skip
        return deliver()


def client_of(socket: str | os.PathLike[str] | Client | None, timeout: float | None) -> AbstractContextManager[Client]:
    """Return the context of a keeper's client, which closes one that is made here."""
    from ..keeper.client import Client

    return contextlib.nullcontext(socket) if isinstance(socket, Client) else contextlib.closing(Client(socket, timeout=timeout))


@contextlib.contextmanager
def filled(
    client: Client, name: str, source: Any, device: Device | None, driver: str | int | None, metadata: Mapping[str, str] | None, progress: Progress,
    **booking: Any,
) -> Iterator[Callable[[], Delivered]]:  # fmt: skip
    """Book a part, move tensors into it, and yield what delivers it. After an error they can be written, unless they were delivered."""
    from ..keeper.deposit import Deposit

    state = _state(source)
    blocks = _blocks(state)
    kind, ordinal = _where(blocks, driver, device)
    pool = _pool_for(source, state, blocks, kind, ordinal)
    table = _plan(state, blocks, metadata, pool)
    try:
        encoded = table.encode()  # before anything moves: it may be too large
        deposit = Deposit(client, name, table.size, device=ordinal, driver=kind, memory=pool.memory if pool else None, **booking)
        try:
            _fill(deposit, blocks, pool, progress)
            deposit.prepare(encoded, layout=table.layout())
            yield functools.partial(_deliver, deposit, table)
        except BaseException:
            delivered = deposit.booking is None
            deposit.abandon()
            if pool and not delivered:
                pool.unseal()
            raise
    except BaseException:
        for b in blocks:
            if pool and b.moves and b.members:  # its room was reserved, and it has not moved
                pool.give_back(b.at)
        raise


def _fill(deposit: Deposit, blocks: list[_Block], pool: SharedPool | None, progress: Progress) -> None:
    """Move the blocks into the deposit."""
    if deposit.kind == CUDA:  # what other streams still write comes along, too
        for i in {deposit.device, *(b.device.index for b in blocks if b.device.type == "cuda")}:
            torch.cuda.synchronize(i)
    _move([b for b in blocks if b.moves], deposit, progress)
    if pool:
        pool.seal()


def _deliver(deposit: Deposit, table: Table) -> Delivered:
    """Have the keeper take the deposit, and remember what lies in memory that is read-only from here on."""
    delivered = deposit.deliver()
    if deposit.memory:
        note(deposit.memory, table)
    return delivered


def _move(blocks: list[_Block], deposit: Deposit, progress: Progress = None) -> None:
    """Move the blocks, and have their tensors be views of where they are then."""
    freed = 0
    with reporting(progress, sum(b.size for b in blocks), f"put {deposit.name}") as add:
        for b in blocks:
            size, first = b.size, quote(b.members[0][0])
            if freed + size > _FREED:
                freed = _give_back()
            try:
                _move_block(b, deposit.grow(b.at + size), f"tensor {first} (PyTorch)")
            except Exception as e:
                e.add_note(f"gpufd.torch.put had come to tensor {first}")
                raise
            freed += size
            add(size)
    _give_back()


def _move_block(b: _Block, memory: Memory, what: str) -> None:
    size = b.size
    span = bytes_over(memory, b.at, size, what)
    with torch.no_grad():
        if size:
            span.copy_(_bytes_of(b))
        for _, t in b.members:
            begin = t.storage_offset() * t.element_size() - b.begin
            t.data = _over(span, t.dtype, begin, span_of(t), tuple(t.shape), tuple(t.stride()))
    b.members.clear()


def _bytes_of(b: _Block) -> Any:
    """The bytes of a block where they still are."""
    storage = storage_of(b.members[0][1])
    empty = torch.empty(0, dtype=torch.uint8, device=b.device)
    return empty.set_(storage, b.begin, (b.end - b.begin,), (1,))


def _give_back() -> int:
    """Give memory that was freed back to the driver, out of PyTorch's cache."""
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.empty_cache()
    return 0
