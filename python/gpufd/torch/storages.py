"""PyTorch's storages, which a tensor's bytes lie in, and memory beside those that its allocator has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..errors import DriverError


_T = TypeVar("_T")
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def span_of(t: Any) -> int:
    """Return the bytes from a tensor's first element to its last."""
    if t.numel() == 0:
        return 0
    return int((sum((n - 1) * step for n, step in zip(t.shape, t.stride())) + 1) * t.element_size())


def storage_of(t: Any) -> Any:
    """Return a tensor's storage, untyped."""
    return t.untyped_storage() if hasattr(t, "untyped_storage") else t._storage()


def with_room(make: Callable[[], _T]) -> _T:
    """Call a function that allocates. If the device is full, PyTorch's cache first gives back what it does not use."""
    try:
        return make()
    except DriverError as e:
        cuda: Any = torch.cuda
        if e.number != _OUT_OF_MEMORY or not cuda.is_initialized():
            raise
        cuda.empty_cache()
    return make()
