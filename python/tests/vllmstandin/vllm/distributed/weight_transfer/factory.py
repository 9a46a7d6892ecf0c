import importlib


class _Factory:
    @classmethod
    def register_engine(cls, name, module_path_or_cls, class_name=None):
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path_or_cls), class_name)


class WeightTransferEngineFactory(_Factory):
    _registry = {}

    @classmethod
    def create_engine(cls, config, vllm_config, device, model):
        return cls._registry[config.backend]()(config, vllm_config, device, model)


class WeightTransferTrainerFactory(_Factory):
    _registry = {}

    @classmethod
    def trainer_init(cls, backend, config, init_info, *, client, source):
        return cls._registry[backend]().trainer_init(config=config, init_info=init_info, client=client, source=source)
