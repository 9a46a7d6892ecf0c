"""A plug-in for vLLM: weights that a keeper keeps, updates from a trainer, and sleep.

    vllm serve MODEL --load-format gpufd

vLLM finds it by the entry point ``vllm.general_plugins`` and calls register. Then vLLM has

- a loader of format ``gpufd``: weights after vLLM's own processing, loaded once for all engines on a GPU
- a weight transfer backend ``gpufd``, on gpufd.weights
- a sleep backend ``gpufd``: kept weights are unmapped and parked, all else goes vLLM's own way

docs/howto-vllm.md in gpufd's sources says more, and which versions of vLLM this was written against. It was not run inside vLLM.
"""

from __future__ import annotations

from types import ModuleType

__all__ = ["register"]

FORMAT = "gpufd"  # the name in each of vLLM's registries


def register() -> None:
    """Register with the vLLM of this process. It may be called again, imports nothing of vLLM, and does not raise.

    Each part is registered when vLLM itself imports the module that has the registry. If that fails, the logger "vllm.gpufd" has a
    warning, and vLLM goes on without the part.
    """
    from .hooks import when_imported

    when_imported("vllm.model_executor.model_loader", _loader)
    when_imported("vllm.v1.worker.gpu_worker", _resident)
    when_imported("vllm.device_allocator.sleep_mode_backend", _sleep)
    when_imported("vllm.distributed.weight_transfer.factory", _transfer)


def _loader(there: ModuleType) -> None:
    from .loader import GpufdModelLoader

    there.register_model_loader(FORMAT)(GpufdModelLoader)


def _resident(there: ModuleType) -> None:
    from .resident import counting

    there.request_memory = counting(there.request_memory, FORMAT)  # type: ignore[attr-defined]


def _sleep(there: ModuleType) -> None:
    there.SleepModeBackendFactory.register_backend(FORMAT, f"{__name__}.sleep", "GpufdSleepBackend")


def _transfer(there: ModuleType) -> None:
    there.WeightTransferEngineFactory.register_engine(FORMAT, f"{__name__}.transfer", "GpufdWeightTransferEngine")
    there.WeightTransferTrainerFactory.register_engine(FORMAT, f"{__name__}.transfer", "GpufdTrainerWeightTransferEngine")
