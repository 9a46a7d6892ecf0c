"""One address for the weights of version after version: tensors and captured graphs stay as they are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from .. import arguments
from ..errors import UsageError
from ..keeper.tables import Table, check_layout, layout_difference
from ..keeper.version import Attached
from ..memory.base import Memory
from ..memory.drivers import reserve
from ..memory.reservation import Reservation
from ..share.attachment import Attachment
from ..wire.records import Offer


class Address:
    """A reservation, and the part of a version that is mapped there.

    at          the Reservation
    there       the part, or None before the first one
    difference  says how the table of a newer part differs from that of the part that is there, or ""
    """

    def __init__(self, at: Reservation, difference: Callable[[Table, Table], str] = layout_difference) -> None:
        self.at, self.difference = at, difference
        self.there: Attached | None = None

    def check(self, offer: Offer) -> None:
        """Raise MismatchError (layout) unless tensors of the part that is there are those of a keeper's offer, too."""
        old = self.there
        if old and not old.memory.closed:
            check_layout(old.data, old.table, offer, self.difference)

    def take(self, new: Attached) -> None:
        """Wait for the work on the device, and map a part, which is mapped elsewhere, instead of the one that is there.

        Nothing may use it yet: InUseError. The lease of the old part ends. After an error
        the old part is there; after an interrupt it may be the new one: has.
        """
        if new.memory.views():
            gc.collect()  # a module is a cycle
        if busy := new.memory.in_use():
            raise busy
        old = self.there
        if old is None or old.memory.closed:
            new.memory.move(self.at)
            self.there = new
        else:
            self._exchange(old, new)

    def has(self, part: Attached) -> bool:
        """Return whether a part is mapped at the address."""
        return part.memory.reservation is self.at

    def _exchange(self, old: Attached, new: Attached) -> None:
        if mapped := not old.memory.detached:
            if busy := old.memory.in_use(pins=True):
                raise busy
            aside = reserve(old.memory.chunks * old.memory.chunk, device=old.memory.ordinal, driver=old.memory.driver)
        try:
            if mapped:
                old.memory.move(aside, force=True)
            new.memory.move(self.at)
        finally:
            if self.has(new):
                self.there = new
                try:
                    _keep_for_views(old.memory, new)
                finally:
                    old.close(force=True)
            elif mapped:
                old.memory.move(self.at, force=True)


def _keep_for_views(old: Memory, new: Attached) -> None:
    """Keep a part as long as views of old memory are alive: they have its address now."""
    token = new.memory.hold(f"views of the version that was there before version {new.data.version} of {new.data.name}")
    weakref.finalize(old, _let_go, new.attachment, token).atexit = False


def _let_go(attachment: Attachment, token: int) -> None:
    attachment.memory.let_go(token)


def address_of(at: Reservation | None) -> Address | None:
    """Return the address that at= stands for."""
    if not isinstance(at, (Reservation, type(None))):
        raise UsageError(f"at is a gpufd.Reservation, not {arguments.short(at)}")
    return Address(at) if at else None
