from abc import ABC, abstractmethod

import torch

from vllm.utils.torch_utils import set_default_torch_dtype

from .utils import initialize_model, process_weights_after_loading


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config): ...

    @abstractmethod
    def load_weights(self, model, model_config): ...

    def load_model(self, vllm_config, model_config, prefix=""):
        with set_default_torch_dtype(model_config.dtype):
            model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            self.load_weights(model, model_config)
            process_weights_after_loading(model, model_config, torch.device(vllm_config.device_config.device))
        return model.eval()
