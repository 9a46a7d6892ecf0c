"""Copies between memory of one device."""

from __future__ import annotations

from ..memory.base import Memory
from ..memory.foreign import copy_device
from ..wire.records import CUDA

_PIECE = 16 << 20  # bytes that are copied by way of the host at a time


def copy_bytes(to: Memory, at: int, source: Memory, begin: int, size: int) -> None:
    """Copy bytes of memory to other memory of the device. They are there on return."""
    if to.driver == CUDA:
        return copy_device(to, at, source.ptr + begin, size)
    for done in range(0, size, _PIECE):
        to.write(at + done, source.read(begin + done, min(_PIECE, size - done)))
    return None
