"""Base classes of objects that own memory, connections or descriptors, and how objects show sizes and names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NoReturn, SupportsIndex, TypeVar

_T = TypeVar("_T")


class NoArray:
    """Its objects are no arrays, though they have memory. NumPy would make an object of them,
    and say nothing."""

    _array_of = "view(dtype, shape)"  # the call that makes arrays, or nothing

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        hint = f": {self._array_of} makes one of its bytes" if self._array_of else ""
        raise TypeError(f"{type(self).__name__} is no array{hint}")


class NotCopied(NoArray):
    """Its objects are neither copied nor pickled: two would end the same memory or lease."""

    _array_of = ""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is of this process alone, and is not copied or pickled: share the object, or attach anew")


def human(size: int) -> str:
    """Return a number of bytes in the largest unit of which it has one: 1.5 GiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value /= 1024
    else:
        unit = "TiB"
    return f"{value:.0f} {unit}" if value == int(value) or value >= 100 else f"{value:.1f} {unit}"


def living(objects: Iterable[_T]) -> list[_T]:
    """Return what is in a set of weak references, to which other threads may add meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):
            return list(objects)


def shortened(path: str) -> str:
    """Return the end of a path that fits into a repr of one line."""
    return path if len(path) <= 60 else "…" + path[-59:]


def called(name: str) -> str:
    """Return a name, quoted, that fits into a repr of one line."""
    return repr(name) if len(name) <= 32 else repr(name[:31] + "…")
