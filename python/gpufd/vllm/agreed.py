"""Name and labels, on which the engine that puts weights and the one that takes them agree: :func:`agreed`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from ..memory.device import device_name
from ..memory.drivers import device_uuid, driver_kind, place_of

LAYOUT = "1"  # of what put writes beside the tensors: weights of another one do not match
_LONGEST_NAME, _LONGEST_LABEL = 200, 256  # bytes, which a keeper takes
_HEAD = 1 << 20  # bytes of a file's beginning that count: of safetensors the names, types and shapes
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_BLOB = re.compile(r"/blobs/[0-9a-f]{64}$")
_KERNELS = re.compile(r"VLLM_\w*(KERNEL|MOE|GEMM|MARLIN|FP8|FP4|INT8|QUANT|FLASHINFER|CUTLASS|TRITON|ROCM|AITER|LINEAR|EMULATION)")


@dataclass(frozen=True)
class Agreed:
    """The name under which a keeper has the weights of one rank on one GPU, and the labels that they must have."""

    name: str
    labels: Mapping[str, str]

    def differences(self, there: Mapping[str, str]) -> str:
        """Return which labels of a version differ, for a message, or ""."""
        unlike = [key for key, value in self.labels.items() if there.get(key) != value]
        return "; ".join(f"{key} is {there.get(key, 'missing')!r} there, and {self.labels[key]!r} here" for key in unlike)


def agreed(vllm_config: Any, model_config: Any, name: str | None = None) -> Agreed:
    """Return what engines with this configuration agree on. Call it before the weights are loaded, which may change the configuration.

    Raises UsageError if nothing says which files the weights are from.
    """
    from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
    from vllm.version import __version__

    tensor = f"{get_tensor_model_parallel_rank()} of {get_tensor_model_parallel_world_size()}"
    pipeline = f"{get_pp_group().rank_in_group} of {get_pp_group().world_size}"
    hf = model_config.hf_config
    labels = {
        "engine": "vllm",
        "vllm": str(__version__),
        "torch": str(torch.__version__),
        "layout": LAYOUT,
        "model": str(model_config.model),
        "revision": str(model_config.revision or "none"),
        "files": files_of(model_config),
        "config": _digest_of([_plain(hf), _plain(getattr(model_config, "quantization_config", None))]),
        "architecture": ",".join(getattr(hf, "architectures", None) or ()) or "none",
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization or "none"),
        "kv-cache": str(vllm_config.cache_config.cache_dtype),
        "kernels": _kernels(vllm_config),
        "tensor-parallel": tensor,
        "pipeline-parallel": pipeline,
        "experts": _experts(vllm_config.parallel_config),
    }
    rank = f"{labels['architecture'][:40]}-tp{tensor}-pp{pipeline}".replace(" ", "")
    return Agreed(_name(name or f"vllm/{model_config.model}", rank), {key: _label(value) for key, value in labels.items()})


def _kernels(vllm_config: Any) -> str:
    """Return a digest of what chooses kernels, and with them how weights are processed, and where they are."""
    chosen = {key: value for key, value in os.environ.items() if _KERNELS.match(key)}
    more = {"kernel_config": vllm_config, "offload_config": vllm_config, "cpu_offload_gb": vllm_config.cache_config, "all2all_backend": vllm_config.parallel_config}
    for key, owner in more.items():
        chosen[key] = str(getattr(owner, key, None))
    return _digest_of(chosen)


def _experts(parallel: Any) -> str:
    """Return which experts of a mixture, or which parts of them, are this rank's, as far as tensor and pipeline parallelism do not say.

    Without expert parallelism, too: vLLM cuts experts into a part for each rank of data and context parallelism.
    """
    said = f"data-parallel {parallel.data_parallel_rank} of {parallel.data_parallel_size}"
    if (contexts := getattr(parallel, "prefill_context_parallel_size", 1)) > 1:
        said += f", rank {parallel.rank} with {contexts} contexts"
    if parallel.enable_expert_parallel:
        said += f", expert-parallel, {getattr(parallel, 'expert_placement_strategy', 'linear')}"
    if parallel.enable_eplb:
        said += f", {getattr(getattr(parallel, 'eplb_config', None), 'num_redundant_experts', 0)} redundant"
    return said


def _name(base: str, rank: str) -> str:
    """Return the name for a rank: weights lie on one GPU, so that is part of it."""
    kind = driver_kind(None)
    end = f"/{rank}/{device_name(device_uuid(kind, place_of('cuda', kind)))}"
    base = base.replace("@", "-").replace("//", "/")
    room = _LONGEST_NAME - len(end.encode())
    if len(base.encode()) > room:
        base = base.encode()[: room - 17].decode(errors="ignore") + "-" + hashlib.sha256(base.encode()).hexdigest()[:16]
    return base + end


def _label(value: str) -> str:
    return value if len(value.encode()) <= _LONGEST_LABEL else "sha256:" + hashlib.sha256(value.encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value


def _digest_of(value: Any) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def files_of(model_config: Any) -> str:
    """Return what the files of a model are known by: of a repository its commit, of a directory a digest.

    The digest is of the names, also in directories inside, of what ends in .json, and of each file of weights: its content's hash where the
    Hugging Face cache has it, and otherwise its size, its time and its beginning.
    """
    model, elsewhere = str(model_config.model), getattr(model_config, "hf_config_path", None)
    if os.path.isdir(model):
        return "sha256:" + _directory(model)
    if not elsewhere and (commit := getattr(model_config.hf_config, "_commit_hash", None)):  # a configuration from elsewhere has another commit
        return f"commit:{commit}"
    raise UsageError(f"nothing says which files {model} is: it is no directory, and its configuration has no commit of it")


def _directory(path: str) -> str:
    digest = hashlib.sha256()
    names = sorted(os.path.relpath(os.path.join(at, name), path) for at, _, inside in os.walk(path) for name in inside)
    for name in names:
        there = os.path.join(path, name)
        if os.path.isfile(there) and name.endswith((".json", *_WEIGHTS)):
            digest.update(json.dumps([name, _json(there) if name.endswith(".json") else _weights(there)]).encode())
    return digest.hexdigest()


def _json(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _weights(path: str) -> list[Any]:
    """Return what a file of weights is known by."""
    real = os.path.realpath(path)
    if _BLOB.search(real):  # the cache names a file by its content
        return [os.path.basename(real)]
    with open(real, "rb") as f:
        there = os.fstat(f.fileno())
        return [there.st_size, there.st_mtime_ns, hashlib.sha256(f.read(_HEAD)).hexdigest()]
