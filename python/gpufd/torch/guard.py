"""A Python error before a PyTorch operation writes memory that is mapped read-only, or uses detached memory: :class:`WriteGuard`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import ClosedError, Error, ReadOnlyError, UsageError
from ..memory.base import Memory
from ..memory.base import _all as _memories
from ..objects import living
from ..wire.records import READ_ONLY
from .named import name_in


# Operations whose schema says that they write, and that leave the elements as they are.
_REBINDS = frozenset({"set_", "resize_", "resize_as_", "detach_", "requires_grad_", "record_stream"})


class WriteGuard(TorchDispatchMode):  # type: ignore[misc]
    """Raise ReadOnlyError before an operation of this thread writes memory that is mapped read-only, and ClosedError
    (detached) before one uses memory that was detached.

        with gpufd.torch.WriteGuard():
            model(x)

    ``debug=True`` of load and follow has the same effect in
    the thread that calls them, from then on. Each operation costs some microseconds more, so it is for
    tests and for finding out what writes. It sees PyTorch's operations, custom ones too if they say what
    they write; it does not see kernels that are started beside PyTorch (Triton, ctypes), NumPy views, or
    what torch.compile has compiled.
    """

    supports_higher_order_operators = True  # they come here and go on, and their own operations come here again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        detached = [memory for memory in living(_memories) if memory.is_unmapped]
        if detached and not _makes_view(func):
            for t in _tensors_in((*args, *kwargs.values())):
                _check_mapped(func, t, detached)
        for t in _tensors_in(_written(func, args, kwargs)):
            _check(func, t)
        return func(*args, **kwargs)


def watch(debug: bool) -> None:
    """Enter a guard in this thread, until its end, if debug says so.

    Inside another mode, such as a SharedPool's, it would be left with that: UsageError.
    """
    if not debug or getattr(_here, "guard", None):
        return
    if _inside_a_mode():
        raise UsageError("debug=True inside another dispatch mode, such as SharedPool: enter gpufd.torch.WriteGuard() around that")
    _here.guard = WriteGuard()
    _here.guard.__enter__()


def _inside_a_mode() -> bool:
    """Return whether this thread is inside a TorchDispatchMode."""
    depth = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if depth is not None:
        return bool(depth())
    return torch._C._get_torch_dispatch_mode() is not None  # before PyTorch 2.0


_here = threading.local()


def _tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among arguments, and those in lists."""
    for value in values:
        for t in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(t, torch.Tensor):
                yield t


# Arguments that are written.


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the arguments that an operation writes."""
    writes, sometimes, flag = _writes_of(func)
    for at, name in writes:
        yield args[at] if at < len(args) else kwargs.get(name)
    if sometimes and (args[flag[0]] if flag[0] < len(args) else kwargs.get(flag[1])):
        for at, name in sometimes:
            yield args[at] if at < len(args) else kwargs.get(name)


_Place = tuple[int, str]  # of an argument


@functools.lru_cache(maxsize=None)
def _writes_of(func: Any) -> tuple[list[_Place], list[_Place], _Place]:
    """Return the places of the arguments that an operation writes: always, or if the argument at the last place is true."""
    schema = getattr(func, "_schema", None)  # an operator of higher order has none
    tag: Any = getattr(torch, "Tag", None)
    if schema is None or schema.name.partition("::")[2] in _REBINDS or tag is not None and tag.inplace_view in getattr(func, "tags", ()):
        return [], [], (0, "")
    places = list(enumerate(schema.arguments))
    writes = [(i, a.name) for i, a in places if a.alias_info is not None and a.alias_info.is_write]
    if "backward" in schema.name:
        return writes, [], (0, "")
    # Batch normalisation writes its statistics, in training mode alone if there is a flag for it. Schemas say that never, or always.
    flags = [(i, a.name) for i, a in places if a.name in ("training", "use_input_stats")]
    statistics = [(i, a.name) for i, a in places if a.name in ("running_mean", "running_var")]
    others = [w for w in writes if w not in statistics]
    return (others, statistics, flags[0]) if flags else (others + statistics, [], (0, ""))


# Memory that is detached, and memory that is mapped read-only.


@functools.lru_cache(maxsize=None)
def _makes_view(func: Any) -> bool:
    """Return whether an operation only makes another tensor over the same elements."""
    schema = getattr(func, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _check_mapped(func: Any, t: Any, detached: list[Memory]) -> None:
    """Raise if a tensor lies where the memory is not mapped now."""
    address = _address(t)
    for memory in detached:
        at = memory.reservation
        if at and at.ptr <= address < at.ptr + memory.chunks * memory.chunk:
            name = name_in(memory, address - at.ptr)
            raise ClosedError(f"{func} would use {name or 'memory'}, which is detached: wake or reattach first", reason="detached")


def _check(func: Any, t: Any) -> None:
    """Raise if a tensor lies in memory that is mapped read-only."""
    address = _address(t)
    memory = _read_only_at(address) if address else None
    if memory is None:
        return
    name = name_in(memory, address - memory.ptr)
    what = f"{name}, which is kept memory, mapped read-only" if name else "memory that is mapped read-only"
    raise ReadOnlyError(f"{func} would write {what}: clone() gives a private copy")


def _address(t: Any) -> int:
    """Return where a tensor's elements are, or 0 if it has none, or no memory of its own."""
    if t.device.type not in ("cpu", "cuda") or not t.numel():
        return 0
    try:
        return int(t.data_ptr())
    except RuntimeError:  # of a tensor that only stands for one: of torch.compile, vmap
        return 0


def _read_only_at(address: int) -> Memory | None:
    """Return the memory there, if it is mapped read-only."""
    for memory in living(_memories):
        if memory.access == READ_ONLY and not memory.closed:
            try:
                if memory.ptr <= address < memory.ptr + memory.size:
                    return memory
            except Error:  # it was closed just now, or is another process's
                continue
    return None
