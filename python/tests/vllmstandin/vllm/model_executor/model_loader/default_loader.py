import os

import torch

from .base_loader import BaseModelLoader


class DefaultModelLoader(BaseModelLoader):
    loads = 0  # of the stand-in: how often weights were read from disk

    def __init__(self, load_config):
        super().__init__(load_config)
        if load_config.load_format != "auto" or load_config.model_loader_extra_config:
            raise ValueError(f"Unexpected extra config keys for load format {load_config.load_format}")

    def download_model(self, model_config): ...

    def load_weights(self, model, model_config):
        DefaultModelLoader.loads += 1
        model.load_weights(torch.load(os.path.join(model_config.model, "weights.bin")).items())
