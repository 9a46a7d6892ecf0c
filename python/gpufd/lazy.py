"""Names of a package whose modules are imported when the first of their names is used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], dict[str, str]]:
    """Return __getattr__ and __dir__ of a package, and the module of each name.

    places maps a module, relative to the package, to the names that it defines, between blanks. An
    empty list means the module itself.
    """
    module_of = {name: module for module, names in places.items() for name in (names.split() or [module])}

    def __getattr__(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module("." + module_of[name], package)
        value = module if name == module_of[name] else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        there = set(vars(sys.modules[package]))
        return sorted(there - module_of.keys() if _asked_by_help() else there | module_of.keys())

    return __getattr__, __dir__, module_of


def _asked_by_help() -> bool:
    """Return whether pydoc asks: help(gpufd) shows the package's own text, and not the pages of all names."""
    frame = sys._getframe(2)  # of the code that called dir
    return any(f is not None and f.f_globals.get("__name__") == "pydoc" for f in (frame, frame.f_back, frame.f_back and frame.f_back.f_back))
