"""An update that a keeper keeps, too: :class:`KeeperCopy`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from .. import arguments
from ..channel.frame import Slot
from ..keeper.client import Client
from ..keeper.control import TIMEOUT
from ..keeper.deposit import Delivered, Deposit
from ..keeper.tables import Table, Tensor, check_tensors
from ..memory.array import Array
from ..memory.base import Memory
from ..memory.tensor import tensor_over
from .copying import copy_bytes
from .frames import Entry
from .meta import Meta
from .source import SlotTensors


class KeeperCopy:
    """A part of a version that is filled with what an update sends: Publisher.keep."""

    def __init__(
        self, name: str, tensors: Mapping[str, Meta], beside: Memory, *, socket: str | os.PathLike[str] | Client | None = None,
        labels: Mapping[str, str] | None = None, part: int = 0, parts: int = 1, transaction: str = "", expect_version: int | None = None,
        chunk: int = 0, metadata: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT,
    ) -> None:  # fmt: skip
        self._metadata = arguments.labels(metadata, "metadata text")
        self._table, self._at = Table(), dict[str, int]()
        for each, meta in tensors.items():
            at = self._at[each] = self._table.place(meta.size)
            self._table.tensors.append(Tensor(each, meta.dtype, meta.shape, at, meta.size))
        check_tensors(self._table.tensors, self._table.size)
        self._closing = contextlib.ExitStack()
        client = socket if isinstance(socket, Client) else Client(socket, timeout=timeout)
        try:
            if client is not socket:
                self._closing.callback(client.close)
            self._deposit = Deposit(
                client, name, self._table.size, device=beside.ordinal, driver=beside.driver, chunk=chunk, labels=labels, part=part, parts=parts,
                transaction=transaction, expect=expect_version, lifetime=arguments.step(timeout) if transaction else 0.0,
            )  # fmt: skip
            self._closing.callback(self._deposit.close)
            self._memory = self._deposit.grow(self._table.size)
        except BaseException:
            self.close()
            raise

    def take(self, slot: Slot, e: Entry, stream: Any, tensors: SlotTensors) -> None:
        """Copy what was put into a slot: by PyTorch's current stream, if that has put it there."""
        at = self._at[e.name] + e.begin
        if stream is None or not e.size:
            copy_bytes(self._memory, at, slot.memory, slot.offset + e.at, e.size)
            return
        tensor_over(Array(self._memory, "U8", e.size, at)).copy_(tensors.slice(slot, "U8", (e.size,), e.at))

    def deliver(self, step: int) -> Delivered:
        """Have the keeper take it."""
        try:
            self._table.add_metadata({"step": str(step), **self._metadata})
            return self._deposit.deliver(self._table.encode(), layout=self._table.layout())
        finally:
            self.close()

    def close(self) -> None:
        """Give the room up that was booked."""
        self._closing.close()
