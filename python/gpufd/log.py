"""The package's log: lines of the logger "gpufd", of level DEBUG if not said otherwise.

    logging.basicConfig(); logging.getLogger("gpufd").setLevel(logging.DEBUG)

Attaching, put, commits, retries and waits are logged, frames of channels are not. A publisher of weights that has waited
for long logs a warning, and so does a subscriber within an update. Between updates a subscriber logs a line of level INFO. The module
logging is imported by those who want the lines: nobody else pays for it.
"""

from __future__ import annotations

import sys


def debug(text: str, *args: object) -> None:
    """Log a line, if this process uses logging."""
    _log("DEBUG", text, args)


def info(text: str, *args: object) -> None:
    """Log a line of level INFO, if this process uses logging."""
    _log("INFO", text, args)


def warning(text: str, *args: object) -> None:
    """Log a warning, if this process uses logging."""
    _log("WARNING", text, args)


def _log(level: str, text: str, args: tuple[object, ...]) -> None:
    if "logging" not in sys.modules:
        return  # so there is no handler either
    import logging

    logger = logging.getLogger("gpufd")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.log(getattr(logging, level), text, *args, stacklevel=3)
