"""The models that can be kept: :func:`check_supported` refuses those that are not known to work, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UsageError

# Quantisation, and of which configurations of it vLLM can rebuild its Python state over weights that were processed before. These
# are the kinds that the first versions of vLLM's own weight cache took (IPC_QUANT_ALLOWLIST), since the same steps of vLLM run here.
KINDS: dict[str | None, Callable[[Any], bool]] = {
    None: lambda config: True,
    "fp8": lambda config: _field(config, "weight_block_size") is not None,  # other kinds of it transpose weights
    "modelopt_fp4": lambda config: True,
}


def check_supported(vllm_config: Any, model_config: Any) -> None:
    """Raise UsageError if weights of this configuration are not known to be the same when they are taken."""
    kind = model_config.quantization
    if kind not in KINDS:
        raise _refused(f"quantisation {kind!r}")
    if not KINDS[kind](quantization_of(model_config)):
        raise _refused(f"quantisation {kind!r} without weight_block_size")
    cache = str(vllm_config.cache_config.cache_dtype)
    if cache != "auto" and not cache.startswith("fp8"):
        raise _refused(f"a KV cache of type {cache!r}")


def quantization_of(model_config: Any) -> Any:
    """Return how the files are quantised, or None. Models of several modes have that in a configuration inside theirs, which vLLM has read."""
    read = getattr(getattr(model_config, "model_arch_config", None), "quantization_config", None)
    return getattr(model_config.hf_config, "quantization_config", None) if read is None else read


def _refused(what: str) -> UsageError:
    known = ", ".join("unquantised" if kind is None else kind for kind in KINDS)
    return UsageError(
        f"weights with {what} are not known to be the same when another engine takes them; known are {known} (fp8 in blocks): leave out --load-format gpufd"
    )


def _field(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, dict) else getattr(config, key, None)
