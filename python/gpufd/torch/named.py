"""Names of tensors in shared memory, for messages."""

from __future__ import annotations

import weakref

from ..keeper.tables import Table
from ..memory.base import Memory

_tables: weakref.WeakKeyDictionary[Memory, Table] = weakref.WeakKeyDictionary()


def note(memory: Memory, table: Table) -> None:
    """Remember the table of what lies in memory, until the memory is gone."""
    _tables[memory] = table


def name_in(memory: Memory, at: int) -> str:
    """Return the name of the tensor that has byte at of the memory, or "" if none is known. Of several it is the one that begins last."""
    table = _tables.get(memory)
    there = [t for t in table.all() if t.offset <= at < t.offset + t.bytes] if table else []
    return max(there, key=lambda t: t.offset).name if there else ""
