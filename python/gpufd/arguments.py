"""The arguments of callers, checked before anything is sent, opened or waited for: UsageError."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from typing import Any

from .errors import UsageError


FOR_EVER = math.inf  # seconds of a timeout that is None


def text(what: str, value: Any, most: int = 0) -> str:
    """Text that has UTF-8, of so many bytes at most."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is text, not {short(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} {value[:100]!r} is no UTF-8") from None
    if most and size > most:
        raise UsageError(f"{what} of {size} bytes, and {most} are allowed")
    return value


def number(what: str, value: Any, least: int = 0, most: int = (1 << 64) - 1) -> int:
    """A whole number. True and False are none, nor is the text of one."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{what} is a whole number, not {short(value)}")
    if not least <= value <= most:
        raise UsageError(f"{what} {short(value)}: {least} to {most}")
    return value


def seconds(what: str, value: Any, zero: bool = True) -> float:
    """The seconds that something may take; None for no bound."""
    if value is None:
        return FOR_EVER
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value >= 0 if zero else value > 0):
        raise UsageError(f"{what} of {short(value)}: a number of seconds{'' if zero else ' above 0'}, or None for no bound")
    return float(value) if value < 1e15 else FOR_EVER


def step(value: Any) -> float:
    """The timeout of a step, which takes some time."""
    return seconds("a timeout", value, zero=False)


def bounded(left: float | None) -> float | None:
    """A time that Python's locks can wait for."""
    return None if left is None else min(left, threading.TIMEOUT_MAX)


def flag(what: str, value: Any) -> bool:
    if not isinstance(value, int) or value not in (0, 1):
        raise UsageError(f"{what} is True or False, not {short(value)}")
    return bool(value)


def one_of(what: str, value: Any, those: Collection[int], names: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in those:
        raise UsageError(f"{what} {short(value)}: {names}")


def called(what: str, value: Any, optional: bool = True) -> None:
    """A function of the application's, or None."""
    if not (callable(value) or optional and value is None):
        raise UsageError(f"{what} is a function, not {short(value)}")


def labels(value: Any, what: str = "label") -> dict[str, str]:
    """Labels of a version, or metadata: text by text."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}s are a mapping from text to text, not {short(value)}")
    for k, v in value.items():
        text(f"the name of a {what}", k)
        text(f"{what} {k!r}", v)
    return dict(value)


def name(value: Any, what: str = "the name of what is kept") -> str:
    """A name that a keeper is asked for."""
    if text(what, value) == "":
        raise UsageError(f"{what} is missing: it is ''")
    return value  # type: ignore[no-any-return]


def buffer(what: str, value: Any) -> memoryview:
    """Bytes, or what has them."""
    try:
        return memoryview(value).cast("B")
    except TypeError:
        raise UsageError(f"{what} is bytes, not {short(value)}") from None


def booking(called: Any, part: Any, parts: Any, transaction: Any, wanted: Any, expect: Any, lifetime: float) -> dict[str, str]:
    """Check the arguments of a put, and return its labels."""
    name(called)
    number("parts", parts, 1)
    number("part", part)
    if part >= parts:
        raise UsageError(f"part {part} of {parts}: they count from 0")
    text("a transaction", transaction, 64)
    if parts > 1 and not transaction:
        raise UsageError(f"part {part} of {parts} wants a transaction, by which whoever writes the others finds it")
    if expect is not None:
        number("expect_version", expect)
    seconds("a lifetime", lifetime)
    return labels(wanted)


def short(value: Any) -> str:
    """Return a value as an error shows it."""
    if isinstance(value, int) and not -(1 << 70) < value < 1 << 70:
        return "a number of more than 20 digits"
    if not isinstance(value, (str, bytes, int, float, type(None))):
        return type(value).__name__
    return repr(value if not isinstance(value, (str, bytes)) or len(value) <= 100 else value[:100])
