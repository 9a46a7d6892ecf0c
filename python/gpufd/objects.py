"""What cannot be copied: objects that own memory, connections or descriptors."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex


class NotCopied:
    """Its objects are neither copied nor pickled: two would end the same memory or lease."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is of this process alone, and is not copied or pickled: share the object, or attach anew")


class NoArray:
    """Its objects are no arrays, though they have memory. NumPy would make an object of them,
    and say nothing."""

    _array_of = "view(dtype, shape)"  # what makes arrays

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is no array: {self._array_of} makes one of its bytes")
