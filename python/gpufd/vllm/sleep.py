"""The sleep backend ``gpufd``: :class:`GpufdSleepBackend`."""

from __future__ import annotations

import contextlib
from typing import Any

from vllm.device_allocator.sleep_mode_backend import CuMemBackend, SleepModeBackend

from .kept import all_kept


class GpufdSleepBackend(SleepModeBackend):  # type: ignore[misc]
    """Unmaps kept weights, at addresses that stay, and has the keeper park them. All else goes the way of vLLM's backend cumem.

    The keeper has kept weights at both levels of sleep, so nothing is to be loaded again. What the engine has beside them, such as tensors
    that vLLM made of them, it cannot load again: cumem copies that to the host at level 2, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cumem = CuMemBackend()

    def suspend(self, level: int = 1) -> None:
        """Unmap the kept weights, and have cumem free the rest. After an error the weights are mapped."""
        weights = all_kept()
        with contextlib.ExitStack() as undo:
            for kept in weights:
                undo.callback(kept.wake)
                kept.sleep()
            self._cumem.suspend(1 if weights else level)
            undo.pop_all()
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Map the kept weights where they were, unless tags leave out "weights"; then have cumem restore the rest."""
        self._state = "RESUMING"
        if tags is None or "weights" in tags:
            for kept in all_kept():
                kept.wake()
        self._cumem.resume(tags)
        self._state = "SUSPENDED" if any(kept.asleep for kept in all_kept()) else "RUNNING"

    def discard(self, tags: tuple[str, ...]) -> None:
        """Discard memory of cumem's. Kept weights are not the engine's to discard."""
        self._cumem.discard(tags)
        self._state = "SUSPENDED"

    def state(self) -> Any:
        """Return whether the engine runs: RUNNING, SUSPENDED or RESUMING."""
        return self._state

    @classmethod
    def is_supported(cls) -> bool:
        """Return whether cumem can run here."""
        return bool(CuMemBackend.is_supported())

    @classmethod
    def preserves_communicators(cls) -> bool:
        """Return True: communicators are not touched."""
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """Return True: all addresses stay."""
        return True
