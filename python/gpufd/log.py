"""The package's log: lines of level DEBUG of the logger "gpufd".

    logging.basicConfig(); logging.getLogger("gpufd").setLevel(logging.DEBUG)

Attaching, put, commits, retries and waits are logged, frames of channels are not. The module logging
is imported by those who want the lines: nobody else pays for it.
"""

from __future__ import annotations

import sys


def debug(text: str, *args: object) -> None:
    """Log a line, if this process uses logging."""
    if "logging" not in sys.modules:
        return  # so there is no handler either
    import logging

    logger = logging.getLogger("gpufd")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.debug(text, *args, stacklevel=2)
