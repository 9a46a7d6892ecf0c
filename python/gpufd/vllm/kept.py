"""Weights of this process' models that a keeper keeps: :class:`KeptWeights`, which sleep and wake."""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from ..errors import Error, KeeperError, RefusedError
from ..keeper.client import Client
from ..keeper.types import Moved
from ..objects import NotCopied, called, human
from ..share.follow import close_or_leave
from .logger import logger

if TYPE_CHECKING:
    from ..keeper.version import Version

_NOTED, _AGAIN = 1.0, 0.01  # seconds for the keeper to note that the weights are detached, and between two looks

_of_model: weakref.WeakKeyDictionary[Any, KeptWeights] = weakref.WeakKeyDictionary()


class KeptWeights(NotCopied):
    """The version that a model's parameters are views of. It ends with the model."""

    def __init__(self, version: Version, socket: str) -> None:
        self.version, self.socket = version, socket

    def __repr__(self) -> str:
        return f"<gpufd.vllm.KeptWeights {called(self.version.name)} version {self.version.version}, {human(self.bytes)}>"

    @property
    def bytes(self) -> int:
        return sum(part.attachment.size for part in self.version)

    @property
    def asleep(self) -> bool:
        """Whether the weights are unmapped."""
        return any(part.attachment.detached for part in self.version)

    def sleep(self) -> None:
        """Wait for the work on the device, and unmap the weights. The keeper parks them if no other engine has them mapped."""
        if self.asleep:
            return
        self.version.detach()
        name, version = self.version.name, self.version.version
        try:
            with Client(self.socket) as client:
                moved = self._parked(client)
        except Error as e:
            logger.info("%s, version %d, stays on the GPU: %s", name, version, e)
        else:
            logger.info("parked %s, version %d: %s in %.2f s", name, version, human(moved.bytes), moved.seconds)

    def _parked(self, client: Client) -> Moved:
        """Park the version. The keeper hears of the detachment by another connection, so it may think for a moment that it is mapped here."""
        name, deadline = self.version.name, time.monotonic() + _NOTED
        while True:
            try:
                return client.park(name, self.version.version)
            except KeeperError as e:
                others = [h for h in client.stat(name).holders if h.pid not in (0, os.getpid()) and not h.detached]
                if e.reason != "conflict" or others or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN)

    def wake(self) -> None:
        """Map the weights where they were: the same, or the newest if the keeper does not have those any more."""
        if not self.asleep:
            return
        try:
            self.version.reattach()
        except (RefusedError, KeeperError) as e:
            if e.reason != "other-memory":
                raise
            self.version.reattach(newest=True)
            logger.info("version %d of %s is in use now", self.version.version, self.version.name)

    def close(self) -> None:
        """End the lease when the last tensor is gone."""
        leave(self.version)


def leave(version: Version) -> None:
    """End the lease of a version when the last tensor of it is gone."""
    for part in version.take():
        close_or_leave(part.attachment)


def hold(model: Any, version: Version, socket: str) -> KeptWeights:
    """Note that a model's parameters are views of a version, which is kept until the model is gone."""
    kept = _of_model[model] = KeptWeights(version, socket)
    weakref.finalize(model, kept.close).atexit = False
    return kept


def kept_of(model: Any) -> KeptWeights | None:
    """Return the weights of a model, if they are kept memory."""
    return _of_model.get(model)


def all_kept() -> list[KeptWeights]:
    """Return the kept weights of all models of this process."""
    return list(_of_model.values())
