"""Properties and errors that the elements share."""

from __future__ import annotations

from typing import Any

from ..errors import Error, UsageError
from .libraries import GLib, GObject, Gst
from .picture import SYSTEM

LOOK = 0.05  # seconds after which a wait looks whether the pipeline stops
_FLAGS = GObject.ParamFlags.READWRITE | Gst.PARAM_MUTABLE_READY


def pad(name: str, direction: Any) -> Any:
    """Return the template of a pad for pictures in system memory."""
    return Gst.PadTemplate.new(name, direction, Gst.PadPresence.ALWAYS, SYSTEM)


def text(blurb: str, default: str = "") -> Any:
    """Return a property of text."""
    return GObject.Property(type=str, default=default, blurb=blurb, flags=_FLAGS)


def number(blurb: str, default: int, least: int, most: int) -> Any:
    """Return a property that is a whole number."""
    return GObject.Property(type=int, default=default, minimum=least, maximum=most, blurb=blurb, flags=_FLAGS)


def seconds(blurb: str) -> Any:
    """Return a property of seconds, by default 0."""
    return GObject.Property(type=float, default=0.0, minimum=0.0, maximum=1e9, blurb=blurb, flags=_FLAGS)


def named(channel: str | None) -> str:
    """Return the name of a channel. Raises UsageError if there is none."""
    if not channel:
        raise UsageError("no channel is named: set the property channel, such as channel=cam")
    return channel


def post(element: Any, error: Exception) -> None:
    """Post an error as the element's."""
    said = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    domain, code = (Gst.ResourceError.quark(), Gst.ResourceError.FAILED) if isinstance(error, Error) else (Gst.CoreError.quark(), Gst.CoreError.FAILED)
    reason = error.reason if isinstance(error, Error) else type(error).__name__
    element.post_message(Gst.Message.new_error(element, GLib.Error.new_literal(domain, said, code), reason))
