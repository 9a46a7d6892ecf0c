"""What cannot be copied: objects that own memory, connections or descriptors."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class NotCopied:
    """Its objects are neither copied nor pickled: two would end the same memory or lease."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is of this process alone, and is not copied or pickled: share the object, or attach anew")
