"""Memory that is born shared: :class:`SharedPool`, whose tensors a keeper takes without a copy.

    with gpufd.torch.SharedPool() as pool:
        model = Model(device="cuda")                    # or model.to("cuda"), or a loader that makes tensors there
        model.load_state_dict(...)
    gpufd.torch.put("llama", model)                     # copies nothing

Inside ``with``, tensors that this thread makes on the pool's device lie in the pool: what factories
such as torch.empty return, copies to the device, and clones. Results of other operations do not.
PyTorch's allocator has no part in it, so nothing is called under its locks, and a CUDA graph can use
the tensors. Inside a capture nothing is placed here.
"""

from __future__ import annotations

import bisect
import functools
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import arguments
from ..errors import ClosedError
from ..memory.base import Memory
from ..memory.device import Device
from ..memory.drivers import allocate, device_size, driver_kind, ordinal_of
from ..memory.tensor import bytes_over
from ..objects import human
from ..wire.records import CUDA, READ_WRITE, SOFT
from .storages import span_of, storage_of, with_room

__all__ = ["SharedPool"]

ALIGN = 512  # of a tensor's beginning, as PyTorch's allocator aligns
CHUNK = {CUDA: 256 << 20, SOFT: 8 << 20}  # bytes by which a pool grows, by driver
_EMPTY = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
_ON_META = _EMPTY | {"_to_copy"}
_MAKERS = _EMPTY | {
    "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor", "arange", "linspace", "eye",
    "rand", "rand_like", "randn", "randn_like", "randint", "randperm", "normal", "bernoulli", "clone", "_to_copy", "lift_fresh", "lift_fresh_copy",
    "cat", "stack",
}  # fmt: skip  # operations whose results are new memory that lives on, in a module or a state


class _Range:
    """Bytes of a pool that a storage has. They come back with it. The pool lives as long as it has tensors: put looks for it."""

    def __init__(self, pool: SharedPool, begin: int, size: int) -> None:
        self._pool, self._range = pool, (begin, size)

    def __del__(self) -> None:
        self._pool._back.append(self._range)  # without a lock: it may run anywhere


class SharedPool:
    """Memory of one device that others can attach to, for tensors that are to be kept. See the module.

    capacity    bytes of address space; by default all that the device has
    device      where: as of gpufd.allocate; by default PyTorch's current one
    chunk       bytes by which it grows: each chunk costs who attaches some time
    driver      as of gpufd.allocate

    ``memory`` is the Memory behind it, or None before the first tensor. It ends with the last tensor.
    """

    def __init__(self, capacity: int = 0, *, device: Device | None = None, chunk: int = 0, driver: str | int | None = None) -> None:
        arguments.number("capacity", capacity)
        arguments.number("chunk", chunk)
        self.driver = driver_kind(driver)
        ordinal = ordinal_of(device, self.driver)
        if ordinal is None:
            ordinal = torch.cuda.current_device() if self.driver == CUDA else 0
        self.device = torch.device("cuda", ordinal) if self.driver == CUDA else torch.device("cpu")
        self.memory: Memory | None = None
        self.sealed = False  #: a keeper has the memory, and no tensor is placed here any more
        self.ordinal, self._capacity = ordinal, capacity or device_size(self.driver, ordinal)
        self._chunk = chunk or min(CHUNK[self.driver], self._capacity)
        self._lock = threading.RLock()
        self._back: deque[tuple[int, int]] = deque()  # ranges whose storages are gone; work on them may be under way
        self._free: list[tuple[int, int]] = []  # ranges without work, as begin and size
        self._live: dict[int, int] = {}  # sizes of ranges that storages have, by their beginning
        self._end = 0  # of what was ever given out
        self._modes: list[_Placing] = []
        _pools.add(self)

    def __repr__(self) -> str:
        there = self.memory.size if self.memory is not None and not self.memory.closed else 0
        state = "sealed" if self.sealed else "open"
        return f"<gpufd.torch.SharedPool {human(sum(self._live.values()))} in use of {human(there)} on {self.device}, {state}>"

    def __enter__(self) -> SharedPool:
        self._check()
        mode = _Placing(self)
        mode.__enter__()
        self._modes.append(mode)
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.pop().__exit__(*error)

    def _check(self) -> None:
        if self.sealed:
            raise ClosedError("the pool's memory is a keeper's by now, and takes no more tensors: make another SharedPool")

    # Tensors.

    def empty(self, shape: Sequence[int], dtype: Any = None, stride: Sequence[int] | None = None) -> Any:
        """Return a new tensor in the pool, whose bytes are anything."""
        return self.like(torch.empty_strided(shape, stride, dtype=dtype, device="meta") if stride else torch.empty(shape, dtype=dtype, device="meta"))

    def like(self, t: Any) -> Any:
        """Return a new tensor in the pool, of the type, shape and strides of another one."""
        size = span_of(t)
        if size == 0:
            return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=self.device)
        memory, begin, size = self._take(size)
        storage = storage_of(bytes_over(memory, begin, size, "a tensor of a pool (PyTorch)", _Range(self, begin, size)))
        return torch.empty(0, dtype=t.dtype, device=self.device).set_(storage, 0, t.shape, t.stride())

    def _take(self, size: int) -> tuple[Memory, int, int]:
        """Find room for bytes, and return where."""
        size = -(-size // ALIGN) * ALIGN
        with self._lock:
            self._check()
            begin = self._fit(size)
            if begin is None and self._end + size > (self.memory.size if self.memory else 0):
                self._settle()
                begin = self._fit(size)
            if begin is None:
                begin = self._end
                self._grow(begin + size)
                self._end += size
            self._live[begin] = size
            assert self.memory is not None
            return self.memory, begin, size

    def _fit(self, size: int) -> int | None:
        for i, (begin, there) in enumerate(self._free):
            if there >= size:
                self._free[i : i + 1] = [(begin + size, there - size)] if there > size else []
                return begin
        return None

    def _settle(self) -> None:
        """Take back ranges whose storages are gone, once no work on them is under way."""
        if not self._back:
            return
        gone = [self._back.popleft() for _ in range(len(self._back))]
        if self.driver == CUDA:
            torch.cuda.synchronize(self.ordinal)
        for begin, size in gone:
            self._live.pop(begin, None)
            if self.memory is not None and size:  # readers of what is put must not see it
                bytes_over(self.memory, begin, size, "room of a pool").zero_()
        if self.driver == CUDA:
            torch.cuda.synchronize(self.ordinal)
        self._free = joined([*self._free, *gone])

    def _grow(self, size: int) -> None:
        size = -(-size // self._chunk) * self._chunk
        if self.memory is None:
            capacity = -(-max(self._capacity, size) // self._chunk) * self._chunk
            make = functools.partial(allocate, size, chunk=self._chunk, device=self.ordinal, driver=self.driver, capacity=capacity)
            self.memory = with_room(make)
        while self.memory.size < size:  # a chunk without room leaves the others
            with_room(functools.partial(self.memory.grow, self.memory.size + self._chunk))

    # For put.

    def place_of(self, address: int, size: int) -> int | None:
        """Return where an address is in the pool's memory, or None if it is elsewhere."""
        memory = self.memory
        inside = memory is not None and memory.ptr <= address and address + size <= memory.ptr + memory.size
        return address - memory.ptr if memory is not None and inside else None

    def reserve(self, size: int) -> int:
        """Return where so many bytes are to lie, which stay until the memory ends."""
        return self._take(size)[1]

    def give_back(self, begin: int) -> None:
        """Take back what was reserved and not used."""
        with self._lock:
            self._back.append((begin, self._live[begin]))

    def others(self, places: Iterable[int]) -> int:
        """Return the bytes that other tensors have than those at these places."""
        with self._lock:
            self._settle()
            begins = sorted(self._live)
            known = {begins[bisect.bisect(begins, at) - 1] for at in places}
            return sum(size for begin, size in self._live.items() if begin not in known)

    def seal(self) -> None:
        """Clear what no tensor has, and place nothing here any more."""
        with self._lock:
            self._check()
            self._settle()
            self.sealed = True
            memory = self.memory
            if memory is not None:
                for begin, size in [*self._free, (self._end, memory.size - self._end)]:
                    bytes_over(memory, begin, size, "a hole of a pool").zero_()


    def unseal(self) -> None:
        """Place tensors here again if the memory can be written still."""
        self.sealed = self.memory is not None and self.memory.access != READ_WRITE


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, as begin and size, in their order, with those that touch joined."""
    found: list[tuple[int, int]] = []
    for begin, size in sorted(ranges):
        if found and sum(found[-1]) == begin:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((begin, size))
    return found


_pools: weakref.WeakSet[SharedPool] = weakref.WeakSet()


def pool_of(ranges: Iterable[tuple[int, int]]) -> SharedPool | None:
    """Return the pool that any of these ranges, as address and size, lies in."""
    pools = [pool for pool in list(_pools) if pool.memory is not None and not pool.sealed]
    return next((pool for at, size in ranges for pool in pools if size and pool.place_of(at, size) is not None), None) if pools else None


# Operations.


class _Placing(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Watches the operations of this thread, and places the tensors that some of them make in a pool."""

    def __init__(self, pool: SharedPool) -> None:
        super().__init__()
        self.pool = pool

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).split(".")[1]
        if name not in _MAKERS or self.pool.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return func(*args, **kwargs)
        with torch.no_grad():
            if name in _ON_META and self._is_here(_device(args, kwargs)) and _is_simple(name, args, kwargs):
                return self._as_on_meta(func, name, args, kwargs)
            made = func(*args, **kwargs)
            if not self._takes(made) or self.pool.place_of(made.data_ptr(), span_of(made)) is not None:
                return made
            return self.pool.like(made).copy_(made)

    def _as_on_meta(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make the tensor of an operation in the pool at once, without a temporary one."""
        like = func(*args, **{**kwargs, "device": torch.device("meta")})
        if not plain(like):
            return func(*args, **kwargs)
        made = self.pool.like(like)
        if name == "_to_copy":
            made.copy_(args[0], non_blocking=bool(kwargs.get("non_blocking")))
        return made

    def _takes(self, made: Any) -> bool:
        here = isinstance(made, torch.Tensor) and plain(made) and self._is_here(made.device) and made.numel() > 0
        return here and not (made.device.type == "cpu" and made.is_pinned())

    def _is_here(self, device: Any) -> bool:
        here = self.pool.device
        if device.type != here.type:
            return False
        return here.type == "cpu" or bool((torch.cuda.current_device() if device.index is None else device.index) == here.index)


def plain(t: Any) -> bool:
    """Return whether a tensor is no more than its elements."""
    return type(t) in (torch.Tensor, torch.nn.Parameter) and bool(t.layout == torch.strided and not (t.is_quantized or t.is_conj() or t.is_neg()))


def _is_simple(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether an operation without its device makes a tensor of the same shape and strides."""
    return not kwargs.get("pin_memory") and (name != "_to_copy" or plain(args[0]))


def _device(args: Any, kwargs: Any) -> Any:
    """Return the device that an operation makes a tensor on."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
