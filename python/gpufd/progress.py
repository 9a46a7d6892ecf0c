"""The argument ``progress`` of calls that copy or read many bytes."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .errors import UsageError
from .objects import human

Progress = Callable[[int, int], object] | bool | None
"""A function of the bytes done and those there are; True for a bar of tqdm's, or else a line on stderr."""

_PAUSE = 0.2  # seconds between two lines


def check_progress(progress: Any) -> None:
    """Raise UsageError unless it is a function, True, False or None."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise UsageError(f"progress is a function of two numbers, or True, not {type(progress).__name__}")


@contextlib.contextmanager
def reporting(progress: Progress, total: int, what: str) -> Iterator[Callable[[int], object]]:
    """Yield a function that is called with the bytes of each step.

    Holes between tensors count as done at the end. Nothing more is reported after an exception, also
    of the caller's function, which ends the work.
    """
    check_progress(progress)
    if not progress:
        yield lambda n: None
    elif progress is not True:
        yield from _counted(progress, total)
    elif (bar := _tqdm(total, what)) is not None:
        with bar:
            yield from _counted(lambda done, total: bar.update(done - bar.n), total)
    elif sys.stderr is not None and sys.stderr.isatty():
        with contextlib.closing(_Line(what)) as line:
            yield from _counted(line, total)
    else:
        yield lambda n: None


def _counted(progress: Callable[[int, int], object], total: int) -> Iterator[Callable[[int], object]]:
    """reporting, with a function that takes the sum."""
    done = 0

    def add(n: int) -> None:
        nonlocal done
        if n and done < total:
            done = min(total, done + n)
            progress(done, total)

    yield add
    add(total - done)


def _tqdm(total: int, what: str) -> Any:
    """A bar of tqdm's, or None if there is no tqdm."""
    try:
        tqdm = importlib.import_module("tqdm.auto")
    except ImportError:
        return None
    return tqdm.tqdm(total=total, desc=what, unit="B", unit_scale=True, unit_divisor=1024)


class _Line:
    """A line on stderr that is written anew."""

    def __init__(self, what: str) -> None:
        self._what, self._next = what, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next or done == total:
            self._next = now + _PAUSE
            self._write(f"\r{self._what}: {human(done)} of {human(total)}\x1b[K")

    def close(self) -> None:
        self._write("\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # of a terminal that is gone
            sys.stderr.write(text)
            sys.stderr.flush()
