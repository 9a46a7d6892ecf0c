"""What device= may be: an ordinal, "cuda:0" or "cuda", a torch.device, or a UUID as nvidia-smi -L prints it.

PyTorch is not needed, nor imported, for any of them.
"""

from __future__ import annotations

import contextlib
import operator
import re
import sys
from typing import Protocol, SupportsIndex

from ._errors import DeviceError, UsageError
from ._wire import CUDA, SOFT

_UUID = re.compile(r"(?:(?:GPU|MIG)-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_CUDA = re.compile(r"cuda(?::([0-9]{1,4}))?")


class TorchDevice(Protocol):
    """A torch.device."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int | None: ...


Device = SupportsIndex | str | TorchDevice


def ordinal_of(device: Device | None, kind: int) -> int | None:
    """The ordinal that device= stands for with that kind of driver; None stays None.

    Raises UsageError for what is no device, and DeviceError for a UUID that is not visible here.
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


def device_name(device: bytes) -> str:
    """A UUID as a keeper writes it, and nvidia-smi."""
    h = device.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def _no_device(device: object) -> UsageError:
    shown = "a number of more digits" if isinstance(device, int) and abs(device) >> 64 else repr(device)[:100]
    return UsageError(f'device is an ordinal, "cuda:0", a torch.device or a UUID such as GPU-…, not {shown}')


def _current(kind: int) -> int:
    """What PyTorch takes "cuda" for, where it is in use; otherwise the first device."""
    torch = sys.modules.get("torch")
    if kind == CUDA and torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    return 0


def _find(text: str, uuid: bytes, kind: int) -> int:
    here = _visible(kind)
    if uuid not in here:
        raise DeviceError(f"device {text} is not visible to this process, which sees {len(here)} ({_HIDES[kind]}?)")
    return here.index(uuid)


_HIDES = {CUDA: "CUDA_VISIBLE_DEVICES", SOFT: "CUDA_VISIBLE_DEVICES, GPUFD_SOFT_DIR, GPUFD_SOFT_DEVICES"}


def _visible(kind: int) -> list[bytes]:
    """The UUIDs of the devices of this process, by ordinal."""
    if kind == SOFT:
        from ._soft import soft_uuid, soft_visible

        return [soft_uuid(i) for i in range(len(soft_visible()))]
    from ._cuda import _devices

    return _devices()
