import importlib
from abc import ABC, abstractmethod


class SleepModeBackend(ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abstractmethod
    def suspend(self, level=1): ...

    @abstractmethod
    def resume(self, tags=None): ...

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError("does not support selective discard")

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return False

    @classmethod
    def preserves_compiled_artifacts(cls):
        return False


class CuMemBackend(SleepModeBackend):
    def suspend(self, level=1):
        from vllm.device_allocator import get_mem_allocator_instance

        get_mem_allocator_instance().sleep(offload_tags=("weights",) if level == 1 else ())
        self._state = "SUSPENDED"

    def resume(self, tags=None):
        from vllm.device_allocator import get_mem_allocator_instance

        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"

    def discard(self, tags):
        from vllm.device_allocator import get_mem_allocator_instance

        get_mem_allocator_instance().discard(tags)
        self._state = "SUSPENDED"


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config):
        backend = cls._registry[model_config.sleep_mode_backend]()
        assert backend.is_supported()
        return backend()
