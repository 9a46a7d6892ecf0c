import contextlib
from dataclasses import dataclass, field
from typing import Any

from .load import LoadConfig
from .weight_transfer import WeightTransferConfig


@dataclass
class ModelConfig:
    model: str
    model_class: Any = None  # of the stand-in
    revision: str | None = None
    dtype: Any = None
    quantization: str | None = None
    hf_config: Any = None
    sleep_mode_backend: str = "cumem"
    hf_config_path: str | None = None
    model_arch_config: Any = None
    quantization_config: Any = None


@dataclass
class DeviceConfig:
    device: str = "cpu"


@dataclass
class CacheConfig:
    cache_dtype: str = "auto"
    cpu_offload_gb: float = 0
    gpu_memory_utilization: float = 0.9


@dataclass
class ParallelConfig:
    enable_expert_parallel: bool = False
    enable_eplb: bool = False
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    expert_placement_strategy: str = "linear"


@dataclass
class CompilationConfig:
    static_forward_context: dict = field(default_factory=dict)
    static_all_moe_layers: list = field(default_factory=list)


@dataclass
class VllmConfig:
    model_config: ModelConfig
    load_config: LoadConfig = field(default_factory=LoadConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    weight_transfer_config: WeightTransferConfig | None = None
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)
    speculative_config: Any = None


_current = []


@contextlib.contextmanager
def set_current_vllm_config(vllm_config):
    _current.append(vllm_config)
    try:
        yield
    finally:
        _current.pop()


def get_current_vllm_config():
    assert _current, "Current vLLM config is not set."
    return _current[-1]
