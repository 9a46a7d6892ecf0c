"""Handles of tensors that existing code pickles: :func:`reduce_tensor`, :func:`register_reducer`.

    gpufd.torch.register_reducer()                # in the sender: torch.multiprocessing's queues use it
    queue.put(tensor)

    func, args = gpufd.torch.reduce_tensor(t)     # as torch.multiprocessing.reductions.reduce_tensor gives it
    args = list(args)
    args[6] = 0                                   # the receiver's device index, where code patches it
    tensor = func(*args)                          # in another process

The arguments have torch's order, and are tuples, numbers, strings and bytes alone. An unpickler that
allows a list of names has to allow one: ``gpufd.torch.rebuild_tensor``.

Memory that a keeper keeps, and memory of this package, is not copied. Any other tensor of a GPU is
copied once, to memory that a receiver can attach to. Sockets lie in ``GPUFD_HANDLE_DIR``, or else in
a directory of this user's, so sender and receiver may be in containers that share that directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from .. import arguments
from ..errors import Error, LostError, MismatchError, NotFoundError, UsageError, WireError
from ..keeper.tables import quote
from ..memory.base import Memory
from ..memory.device import device_name
from ..memory.drivers import driver_kind, ordinal_of
from ..memory.tensor import bytes_over
from ..share.attach import attach
from ..share.attachment import Attachment
from ..wire.records import CUDA, READ_ONLY, READ_WRITE, SOFT
from .lending import Place, lender, memory_of, tickets_said
from .storages import storage_of

__all__ = ["rebuild_tensor", "reduce_tensor", "register_reducer", "release"]

_PAUSE = 0.01  # seconds between two reports: who says more than 1,000 records a second is turned away
TIMEOUT = 300.0  # seconds that a handle waits for its receiver
DEVICE, HANDLE, TICKET = 6, 7, 12  # places in the arguments

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


# The sender.


def reduce_tensor(tensor: Any, *, receivers: int = 1, timeout: float | None = TIMEOUT, driver: str | int | None = None) -> Reduced:
    """Return (func, args) of a tensor, for another process of this machine: func(*args) rebuilds it there.

    The memory is kept until so many receivers have rebuilt the tensor and let go of it, until
    release, or until nobody has come within the timeout. Views that share a storage still do.
    A handle stands for the bytes that the tensor has now. It waits for the current stream.

    receivers   how many processes rebuild this handle, one after the other or at once
    timeout     seconds to wait for the next receiver; None for no bound
    driver      "soft" copies a tensor of the CPU to memory of the software driver, for tests

    A tensor of the CPU, and one that is more than its bytes, is given to torch's own reducer.
    """
    arguments.number("receivers", receivers, 1)
    limit = arguments.seconds("timeout", timeout, zero=False)
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"a tensor of PyTorch's is wanted, not {arguments.short(tensor)}")
    if tensor.requires_grad and not tensor.is_leaf:
        raise UsageError("a tensor that requires grad and is no leaf cannot be sent, because autograd ends at a process: detach() it first")
    kind = _kind_of(tensor, driver)
    if kind is None:
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return]
    if tensor.numel() == 0:
        return rebuild_tensor, _arguments(tensor, None, b"")
    place = lender().place(tensor, kind, receivers, limit)
    return rebuild_tensor, _arguments(tensor, place, _described(place))


def _kind_of(t: Any, driver: str | int | None) -> int | None:
    """Return the driver whose memory a tensor can go by, or None for torch's own way."""
    plain = t.layout == torch.strided and not (t.is_quantized or t.is_conj() or t.is_neg() or t.is_nested)
    if not plain or hasattr(t, "__tensor_flatten__") or type(t) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if t.device.type == "cuda":
        return CUDA
    if t.device.type == "cpu" and (driver is not None and driver_kind(driver) == SOFT or memory_of(t, SOFT) is not None):
        return SOFT
    return None


def _described(place: Place) -> bytes:
    memory = place.memory
    about = {
        **place.about, "driver": memory.driver, "access": memory.access, "ordinal": memory.ordinal, "device": device_name(memory.uuid),
    }
    return json.dumps(about).encode()


def _arguments(t: Any, place: Place | None, handle: bytes) -> tuple[Any, ...]:
    """Return what torch's reduce_tensor gives for a CUDA tensor, in its order."""
    cls = "Parameter" if isinstance(t, torch.nn.Parameter) else "Tensor"
    ordinal = place.ordinal if place else t.device.index if t.device.index is not None else -1
    offset, size, begin = (place.offset, place.size, place.begin) if place else (0, 0, 0)
    ticket = place.ticket if place else 0
    return (
        cls, tuple(t.shape), tuple(t.stride()), offset, "UntypedStorage", str(t.dtype).partition(".")[2], ordinal, handle,
        size, begin, bool(t.requires_grad), b"", ticket, b"", False,
    )  # fmt: skip


def release(handle: Any = None) -> int:
    """End the offer of a handle's memory, or all of them, and return how many ended.

    handle is what reduce_tensor has returned. Of tensors that were copied, those that were rebuilt already stay
    good. Other memory is the sender's tensor itself: receivers see what it has next.
    """
    if handle is None:
        return lender().release()
    args = handle[1] if callable(handle[0]) else handle
    if callable(handle[0]) and handle[0] is not rebuild_tensor:
        return 0  # PyTorch's own
    return lender().release(json.loads(args[HANDLE])["generation"]) if args[HANDLE] else 0


def register_reducer(*, receivers: int = 1, timeout: float | None = TIMEOUT, driver: str | int | None = None) -> Callable[[], None]:
    """Register reduce_tensor with multiprocessing, and so with torch.multiprocessing's queues.

    The options are those of reduce_tensor. Return a function that puts back what was before.
    """
    arguments.number("receivers", receivers, 1)
    arguments.seconds("timeout", timeout, zero=False)
    registry: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    kinds = {*torch._tensor_classes, torch.Tensor, torch.nn.Parameter}
    before = {kind: registry.get(kind) for kind in kinds}

    def reduce(tensor: Any) -> Reduced:
        return reduce_tensor(tensor, receivers=receivers, timeout=timeout, driver=driver)

    for kind in kinds:
        ForkingPickler.register(kind, reduce)

    def undo() -> None:
        for kind, reducer in before.items():
            if reducer is None:
                registry.pop(kind, None)
            else:
                registry[kind] = reducer

    return undo


# The receiver.


class _Received:
    """An attachment that tensors share, and the storages over it."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.memory: Memory = attachment.memory
        self.reports = _Reports(attachment)
        weakref.finalize(self, self.reports.last).atexit = False  # no __del__: _taken may find an object again whose __del__ runs
        self.storages: dict[tuple[int, int], Any] = {}  # weak references, by begin and size

    def storage(self, begin: int, size: int) -> Any:
        ref = self.storages.get((begin, size))
        found = None if ref is None else torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
        if found is None:
            found = storage_of(bytes_over(self.memory, begin, size, "a tensor that another process sent (PyTorch)", self))
            self.storages[begin, size] = reductions.StorageWeakRef(found)
        return found


class _Reports:
    """The reports of a receiver to the sender of an attachment: the tickets that were rebuilt, some times a second."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment, self._tickets = attachment, set[int]()
        self._unsaid, self._next = False, 0.0

    def add(self, ticket: int) -> None:
        if ticket:
            self._tickets.add(ticket)
            self._unsaid = True
            if time.monotonic() >= self._next:
                self._say()

    def last(self) -> None:
        """Say the rest, before the lease ends."""
        if self._unsaid:
            self._say()

    def _say(self) -> None:
        self._unsaid, self._next = False, time.monotonic() + _PAUSE
        with contextlib.suppress(Error):  # the lease has ended: nobody asks
            self._attachment.notify(tickets_said(self._tickets))


_received: dict[int, weakref.ref[_Received]] = {}  # by generation
_lock = threading.RLock()


def _after_fork() -> None:
    """In a child: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _received.clear()


os.register_at_fork(after_in_child=_after_fork)


def rebuild_tensor(
    tensor_cls: str, tensor_size: tuple[int, ...], tensor_stride: tuple[int, ...], tensor_offset: int, storage_cls: str, dtype: str,
    storage_device: Any, storage_handle: bytes, storage_size_bytes: int, storage_offset_bytes: int, requires_grad: bool,
    ref_counter_handle: bytes = b"", ref_counter_offset: int = 0, event_handle: bytes = b"", event_sync_required: bool = False,
) -> Any:  # fmt: skip
    """Rebuild a tensor that another process has reduced. Its memory stays until the last tensor over it is gone.

    storage_device may be patched: an index, or the UUID of a device. The tensor is on the device
    where its memory is; if another one is asked for, MismatchError has the reason "device".

    Raises LostError (nobody-listens) if the sender has ended, NotFoundError if the memory was released or its
    time is over, and MismatchError (stale) if a keeper has another version by now.
    """
    kind = getattr(torch, str(dtype), None)
    if not isinstance(kind, torch.dtype):
        raise UsageError(f"a tensor of {dtype} was sent, which PyTorch {torch.__version__} does not have")
    if not storage_handle:
        where = torch.device("cpu") if storage_device in (None, -1) else torch.device("cuda", _index(storage_device))
        made = torch.empty_strided(tensor_size, tensor_stride, dtype=kind, device=where)
        return _finished(made, tensor_cls, requires_grad)
    about = _read(storage_handle)
    with _lock:
        received = _taken(about, storage_device)
        memory = received.memory
        begin, size = int(storage_offset_bytes), int(storage_size_bytes)
        if not (0 <= begin and 0 < size and begin + size <= memory.size):
            raise WireError(f"a handle of bytes {begin} to {begin + size} of memory of {memory.size}")
        _check_range(tensor_size, tensor_stride, int(tensor_offset), torch.empty(0, dtype=kind).element_size(), size)
        storage = received.storage(begin, size)
        made = torch.empty(0, dtype=kind, device=storage.device).set_(storage, int(tensor_offset), tuple(tensor_size), tuple(tensor_stride))
        received.reports.add(int(ref_counter_offset))
    return _finished(made, tensor_cls, requires_grad)


def _check_range(shape: Sequence[int], stride: Sequence[int], offset: int, item: int, size: int) -> None:
    """Raise unless a tensor lies in its storage, which a handle may not make larger."""
    sane = len(shape) == len(stride) and offset >= 0 and all(n > 0 for n in shape) and all(n >= 0 for n in stride)
    if not sane or (offset + sum((n - 1) * step for n, step in zip(shape, stride)) + 1) * item > size:
        raise WireError(f"a handle of a tensor {tuple(shape)} with strides {tuple(stride)} from element {offset} on, in {size} bytes")


rebuild_tensor.__module__ = __package__  # the name that pickles have


def _finished(t: Any, cls: str, requires_grad: bool) -> Any:
    if cls == "Parameter":
        return torch.nn.Parameter(t, requires_grad=requires_grad)
    return t.requires_grad_(requires_grad)


def _index(device: Any) -> int:
    """Return the index of a device that is named by its index or its UUID."""
    return ordinal_of(device, CUDA) or 0


def _read(handle: bytes) -> dict[str, Any]:
    try:
        about = json.loads(handle)
        return {
            "socket": str(about["socket"]), "name": str(about["name"]), "generation": int(about["generation"]), "driver": int(about["driver"]),
            "access": int(about["access"]), "ordinal": int(about["ordinal"]), "device": str(about["device"]), "part": about.get("part"),
            "version": about.get("version"),
        }  # fmt: skip
    except (ValueError, KeyError, TypeError):
        raise WireError("a handle that makes no sense: gpufd.torch.reduce_tensor makes them") from None


def _taken(about: dict[str, Any], device: Any) -> _Received:
    """Return the attachment to a handle's memory: the one that is there already, or a new one."""
    for generation, ref in list(_received.items()):
        if ref() is None:
            del _received[generation]
    known = _received.get(about["generation"])
    found = known() if known is not None else None
    if found is not None and about["version"] is None and found.attachment.done:
        found = None  # the sender knows of it no more: only a new lease keeps the bytes
    if found is None:
        found = _Received(_attached(about, device))
        _received[about["generation"]] = weakref.ref(found)
    elif _is_patched(about, device):
        _check_device(found.memory, device)
    return found


def _is_patched(about: dict[str, Any], device: Any) -> bool:
    """Return whether a receiver says which device it wants: the sender's index counts in its own process."""
    return device is not None and device != about["ordinal"]


def _check_device(memory: Memory, device: Any) -> None:
    if ordinal_of(device, memory.driver) != memory.ordinal:
        raise MismatchError(
            f"the tensor is on device {memory.ordinal}, {device_name(memory.uuid)}, and device {device} was asked for", reason="device"
        )


def _attached(about: dict[str, Any], device: Any) -> Attachment:
    kept = about["version"] is not None
    wanted = device if _is_patched(about, device) else None
    access = READ_ONLY if kept or about["access"] == READ_ONLY else READ_WRITE
    try:
        att = attach(about["name"], socket=about["socket"], part=about["part"], access=access, device=wanted, driver=about["driver"])
    except LostError as e:
        if e.reason != "nobody-listens":
            raise
        raise LostError(f"{_whose(about)} has ended, and this tensor's memory went with it: {e}", reason=e.reason) from e
    except NotFoundError as e:
        raise NotFoundError(f"the memory of this handle is not offered any more: {_gone(kept)} ({e.text})") from e
    if att.generation != about["generation"]:
        att.close()
        if about["version"] is None:
            raise NotFoundError(f"the memory of this handle is not offered any more: {_gone(kept)}")
        raise MismatchError(f"{quote(about['name'])} is another version by now: this handle is of version {about['version']}", reason="stale")
    return att


def _whose(about: dict[str, Any]) -> str:
    return f"the keeper at {about['socket']}" if about["version"] is not None else f"the sender at {about['socket']}"


def _gone(kept: bool) -> str:
    return "the name was removed" if kept else "all receivers have let go, the sender has released it, or nobody came in time"
