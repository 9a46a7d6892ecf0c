"""Work that waits until somebody imports a module: :func:`when_imported`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .logger import logger

Then = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """Finds modules as the others do, and calls back when they have been executed."""

    def __init__(self) -> None:
        self.waiting: dict[str, Then] = {}
        self.done: set[str] = set()
        self._looking: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.waiting or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)  # which asks the others
        finally:
            self._looking.discard(fullname)
        if spec and spec.loader:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.call(fullname, self.waiting.pop(fullname, None), module)

            try:
                loader.exec_module = exec_module
            except Exception as e:
                _missed(fullname, e)
        return spec

    def call(self, name: str, then: Then | None, module: ModuleType) -> None:
        """Call back, once for each module. Whoever imports the module does not hear of an exception."""
        if then is None or name in self.done:
            return
        self.done.add(name)
        try:
            then(module)
        except Exception as e:
            _missed(name, e)


def _missed(name: str, e: Exception) -> None:
    logger.warning("gpufd cannot register with %s, and vLLM goes on without that: %s: %s", name, type(e).__name__, e)


_finder = _Finder()


def when_imported(name: str, then: Then) -> None:
    """Call a function with a module: now, if the module is there, or else behind its import. A second call for the module does nothing."""
    module = sys.modules.get(name)
    if module is not None:
        _finder.call(name, then, module)
    elif name not in _finder.done:
        _finder.waiting.setdefault(name, then)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
