"""Models of transformers that a keeper keeps: weights, configuration, and all else that a second process needs.

    gpufd.transformers.put("llama", model)                  # a PreTrainedModel, however it was loaded

    model = gpufd.transformers.load("llama")                # in any other process, without a copy of a weight
    model.generate(tokens)

    for version in gpufd.transformers.follow("llama"):      # each newer one; version.model is a model of its own
        newer.put(version.model)

    model = gpufd.transformers.Model("llama")               # keeps its addresses, sleeps, wakes and swaps: gpufd.torch.Model
    model.module.generate(tokens)

Beside the weights stand the texts of config.json and generation_config.json, and the names of the model's classes. A class of
transformers is imported when it is needed. Any other one has to be imported before: what a keeper says imports no code. Buffers
that are in no file, such as inv_freq, are kept, too, and each process gets copies of its own. Weights are read-only: see gpufd.torch.
A model on several GPUs, by device_map, is kept as a part for each, beside its hf_device_map; Model and follow are for one GPU.
"""

from .load import Model, follow, load
from .put import put

__all__ = ["Model", "follow", "load", "put"]
