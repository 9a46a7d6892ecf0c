"""The values of device=: an ordinal, "cuda:0" or "cuda", a torch.device, or a UUID as nvidia-smi -L prints it.

PyTorch is not needed, nor imported, for any of them.
"""

from __future__ import annotations

from typing import Protocol, SupportsIndex


class TorchDevice(Protocol):
    """A torch.device."""

    @property
    def type(self) -> str: ...

    @property
    def index(self) -> int | None: ...


Device = SupportsIndex | str | TorchDevice


def device_name(device: bytes) -> str:
    """A UUID as a keeper writes it, and nvidia-smi."""
    h = device.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
