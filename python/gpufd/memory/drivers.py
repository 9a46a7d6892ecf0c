"""Allocation, and the meaning of ``driver=`` and ``device=``.

The modules of both drivers are imported when they are needed: attaching is to be quick.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
from typing import TYPE_CHECKING

from .. import arguments
from ..errors import Error, MismatchError, UsageError, enough_files
from ..wire.records import CUDA, SOFT, driver_name
from .base import Memory
from .device import Device

if TYPE_CHECKING:
    from .cuda import CudaMemory
    from .reservation import Reservation
    from .soft import SoftMemory

_UUID = re.compile(r"(?:(?:GPU|MIG)-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_CUDA = re.compile(r"cuda(?::([0-9]{1,4}))?")


def driver_kind(driver: str | int | None = None) -> int:
    """The kind of driver that ``auto``, ``cuda`` or ``soft`` stands for: without one,
    ``GPUFD_DRIVER``, or else auto, which takes the software driver only where there is no GPU."""
    if isinstance(driver, int):
        if driver not in (CUDA, SOFT):
            raise UsageError(f"no such driver: {driver_name(driver)}")
        return driver
    name = driver or os.environ.get("GPUFD_DRIVER") or "auto"
    if name not in ("auto", "cuda", "soft"):
        raise UsageError(f"{'driver' if driver else 'GPUFD_DRIVER'} is auto, cuda or soft, not {arguments.short(name)}")
    if name == "auto":
        from . import libcuda

        return CUDA if libcuda.has_device() else SOFT
    return CUDA if name == "cuda" else SOFT


def memory_class(kind: int) -> type[CudaMemory] | type[SoftMemory]:
    """Return the class of that driver's memory."""
    if kind == SOFT:
        from .soft import SoftMemory

        return SoftMemory
    from .cuda import CudaMemory

    return CudaMemory


@enough_files()
def allocate(
    size: int, *, chunk: int = 0, device: Device = 0, driver: str | int | None = None, capacity: int = 0, handle: str = "fd"
) -> Memory:
    """Allocate memory of a device, and map it read-write. The caller closes it.

    size        bytes
    chunk       bytes of a chunk; by default all is one chunk
    device      an ordinal, "cuda:0", a torch.device, or a UUID ("GPU-…")
    driver      "cuda", "soft" or "auto"; by default that of GPUFD_DRIVER, else "auto"
    capacity    bytes of address space to reserve, for Memory.grow
    handle      "fd", or "legacy" for memory that is shared by a handle of legacy IPC
    """
    for what, value in (("size", size), ("chunk", chunk), ("capacity", capacity)):
        arguments.number(what, value)
    kind = driver_kind(driver)
    cls, ordinal = memory_class(kind), place_of(device, kind)
    if handle not in ("fd", "legacy"):
        raise UsageError(f"handle is fd or legacy, not {handle!r}")
    if handle == "legacy":
        if chunk or capacity:
            raise UsageError("legacy memory is one allocation")
        memory = cls.make_legacy(size, ordinal)
    else:
        memory = cls.make(size, chunk, ordinal, capacity)
    if not isinstance(memory, Memory):
        raise Error("no memory was made")
    return memory


def reserve(size: int, *, device: Device | None = None, driver: str | int | None = None) -> Reservation:
    """Reserve address space for memory of other processes: attach(at=). The caller closes it.

    Whatever is mapped there has the same address, so captured CUDA graphs go on with it.

    size        bytes, which are rounded up to the granularity of the device
    device      as of allocate; by default the first one
    driver      as of allocate
    """
    arguments.number("size", size, 1)
    kind = driver_kind(driver)
    return memory_class(kind).reserve(size, place_of(0 if device is None else device, kind))


def ordinal_of(device: Device | None, kind: int) -> int | None:
    """The ordinal that device= stands for with that kind of driver; None stays None.

    Raises UsageError for what is no device, and MismatchError (device) for a UUID that is not visible here.
    """
    if device is None:
        return None
    with contextlib.suppress(TypeError):  # where it is no number
        ordinal = operator.index(device)  # type: ignore[arg-type]
        if 0 <= ordinal < 1 << 31 and not isinstance(device, bool):
            return ordinal
    text = device if isinstance(device, str) else ""
    if not text and isinstance(getattr(device, "type", None), str):
        text = str(device)  # of a torch.device: "cuda:0", without an index "cuda"
    if named := _CUDA.fullmatch(text):
        return int(named[1]) if named[1] else _current(kind)
    if named := _UUID.fullmatch(text):
        return _find(text, bytes.fromhex(named[1].replace("-", "")), kind)
    if text == "cpu" and kind == SOFT:
        return None  # what the software driver has is the host's memory, of whichever device
    raise _no_device(device)


def place_of(device: Device, kind: int) -> int:
    """ordinal_of for memory of our own, which has to be on some device."""
    if device is None:
        raise _no_device(device)
    return ordinal_of(device, kind) or 0


def _no_device(device: object) -> UsageError:
    shown = "a number of more digits" if isinstance(device, int) and abs(device) >> 64 else repr(device)[:100]
    return UsageError(f'device is an ordinal, "cuda:0", a torch.device or a UUID such as GPU-…, not {shown}')


def _current(kind: int) -> int:
    """Return the device that PyTorch takes "cuda" for, where it is in use; otherwise the first device."""
    torch = sys.modules.get("torch")
    if kind == CUDA and torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0


def _find(text: str, uuid: bytes, kind: int) -> int:
    here = _visible(kind)
    if uuid not in here:
        raise MismatchError(f"device {text} is not visible to this process, which sees {len(here)} ({_HIDES[kind]}?)", reason="device")
    return here.index(uuid)


_HIDES = {CUDA: "CUDA_VISIBLE_DEVICES", SOFT: "CUDA_VISIBLE_DEVICES, GPUFD_SOFT_DIR, GPUFD_SOFT_DEVICES"}


def _visible(kind: int) -> list[bytes]:
    """The UUIDs of the devices of this process, by ordinal."""
    if kind == SOFT:
        from .soft import soft_uuid, soft_visible

        return [soft_uuid(i) for i in range(len(soft_visible()))]
    from .cuda import _devices

    return _devices()


def device_size(kind: int, ordinal: int) -> int:
    """Return the bytes of a device's memory, in use or not."""
    if kind == SOFT:
        from .soft import soft_memory

        return soft_memory()
    from . import libcuda

    return libcuda.load().total_memory(libcuda.load().device(ordinal))


def device_uuid(kind: int, ordinal: int) -> bytes:
    """The UUID of a device, by its ordinal."""
    if kind == SOFT:
        from .soft import soft_uuid

        return soft_uuid(ordinal)
    from . import libcuda

    cu = libcuda.load()
    return cu.uuid(cu.device(ordinal))
