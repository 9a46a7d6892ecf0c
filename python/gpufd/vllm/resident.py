"""Kept weights that are on the GPU before the engine starts, in the engine's own check of free memory: :func:`counting`."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from ..keeper.client import Client
from ..objects import human
from .agreed import agreed
from .logger import logger

Request = Callable[..., int]


def counting(request_memory: Request, load_format: str) -> Request:
    """Return vLLM's request_memory, for engines of that load format, whose weights may be on the GPU already.

    gpu_memory_utilization is then what it is for other engines: the share of the GPU that this engine and its weights have. Without
    this, the memory of kept weights would be taken for another process', and the engine would not start with the flags that it put them with.
    """

    @functools.wraps(request_memory)
    def counted(init_snapshot: Any, *others: Any, **named: Any) -> int:
        kept = _bytes_kept(load_format)
        if not kept:
            return request_memory(init_snapshot, *others, **named)
        logger.info("%s of the weights are on the GPU already, and count as this engine's", human(kept))
        with_kept = copy.copy(init_snapshot)
        with_kept.free_memory += kept
        return request_memory(with_kept, *others, **named) - kept

    return counted


def _bytes_kept(load_format: str) -> int:
    """Return the bytes on the GPU of the version that this engine is about to take, or 0."""
    try:
        from vllm.config import get_current_vllm_config

        vllm_config = get_current_vllm_config()
        if vllm_config.load_config.load_format != load_format:
            return 0
        from .loader import check_kept, options_of

        options = options_of(vllm_config.load_config)
        if options.copies(vllm_config):
            return 0  # the engine gets as much again
        with Client(options.socket) as client:
            info = check_kept(client, agreed(vllm_config, vllm_config.model_config, options.name))
        return sum(part.bytes for part in info.parts if not part.parked)
    except Exception as e:
        logger.info("no kept weights count as this engine's: %s: %s", type(e).__name__, e)
        return 0
