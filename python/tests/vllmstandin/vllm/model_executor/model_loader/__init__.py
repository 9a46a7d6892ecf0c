from .base_loader import BaseModelLoader
from .default_loader import DefaultModelLoader

_LOAD_FORMAT_TO_MODEL_LOADER = {"auto": DefaultModelLoader}


def register_model_loader(load_format):
    def _wrapper(model_loader_cls):
        if not issubclass(model_loader_cls, BaseModelLoader):
            raise ValueError("The model loader must be a subclass of `BaseModelLoader`.")
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = model_loader_cls
        return model_loader_cls

    return _wrapper


def get_model_loader(load_config):
    if load_config.load_format not in _LOAD_FORMAT_TO_MODEL_LOADER:
        raise ValueError(f"Load format `{load_config.load_format}` is not supported")
    return _LOAD_FORMAT_TO_MODEL_LOADER[load_config.load_format](load_config)


def get_model(*, vllm_config, model_config=None, prefix="", load_config=None):
    loader = get_model_loader(load_config or vllm_config.load_config)
    return loader.load_model(vllm_config=vllm_config, model_config=model_config or vllm_config.model_config, prefix=prefix)
