"""A model as the stand-in for vLLM has them: tied weights, buffers of both kinds, processed weights, and tensors that no module lists."""

import json
import os
import types

import torch
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.utils import is_weights_pre_processed

WIDTH, WORDS, LAYERS = 8, 16, 2
ANGLES, LIMITS = 4, 2


class Kernel:
    """A plain object that a quantisation has beside its layer, with tensors of its own."""

    def __init__(self, weight):
        self.factor = torch.full((3,), 2.0)
        self.scratch = weight + 1


class Turned:
    """A quantisation method that turns the weight around, and takes a parameter away."""

    supports_pre_processed_weights = True

    def process_weights_after_loading(self, layer):
        if not is_weights_pre_processed():
            layer.weight = torch.nn.Parameter(layer.weight.data.t().contiguous() * layer.weight_scale.data, requires_grad=False)
            del layer.weight_scale
            layer.zero_point = None
        layer.kernel = Kernel(layer.weight.data)

    def apply(self, layer, x):
        return x @ layer.weight * layer.kernel.factor[0]


class Layer(torch.nn.Module):
    def __init__(self, compilation, name):
        super().__init__()
        if name in compilation.static_forward_context:
            raise ValueError(f"Duplicate layer name: {name}")
        compilation.static_forward_context[name] = self
        compilation.static_all_moe_layers.append(name)
        self.weight = torch.nn.Parameter(torch.empty(WIDTH, WIDTH), requires_grad=False)
        self.weight.loads_by = "rows"
        self.weight_scale = torch.nn.Parameter(torch.empty(1), requires_grad=False)
        self.zero_point = torch.nn.Parameter(torch.empty(1), requires_grad=False)
        self.register_parameter("bias", None)
        self.register_buffer("k_scale", torch.ones(1))
        self.register_buffer("angles", torch.arange(ANGLES, dtype=torch.float32) / 2, persistent=False)
        self.limits = torch.full((LIMITS,), 5.0)
        self.gate_bias = torch.nn.Parameter(torch.empty(WIDTH), requires_grad=False)
        self.runner = types.SimpleNamespace(routers=[types.SimpleNamespace(bias=self.gate_bias)])  # as a mixture's router has it
        self.rotary = get_rope(WIDTH)
        self.kv_cache = torch.empty(0)
        self.quant_method = Turned()

    def forward(self, x):
        return self.quant_method.apply(self, x) * self.k_scale + self.angles.sum() + self.limits[0] + self.runner.routers[0].bias + self.rotary.cos_sin_cache


class Tiny(torch.nn.Module):
    """Answers with numbers that depend on every tensor."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.layers = torch.nn.ModuleList(Layer(vllm_config.compilation_config, f"{prefix}layers.{i}") for i in range(LAYERS))
        self.lm_head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.embed.weight
        self.requires_grad_(False)

    def load_weights(self, weights):
        mine = dict(self.named_parameters())
        loaded = set()
        for name, t in weights:
            mine[name].data.copy_(t)
            loaded.add(name)
        return loaded

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x) / 100
        return self.lm_head(x)


def files(directory, seed=0):
    """Write a model's files, and return its directory."""
    made = torch.Generator().manual_seed(seed)
    state = {"embed.weight": torch.rand(WORDS, WIDTH, generator=made)}
    for i in range(LAYERS):
        state[f"layers.{i}.weight"] = torch.rand(WIDTH, WIDTH, generator=made)
        state[f"layers.{i}.weight_scale"] = torch.full((1,), 0.5 + i)
        state[f"layers.{i}.gate_bias"] = torch.rand(WIDTH, generator=made)
    os.makedirs(directory, exist_ok=True)
    torch.save(state, os.path.join(directory, "weights.bin"))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump({"architectures": ["Tiny"]}, f)
    return directory


def config(directory, extra, **others):
    """Return a configuration for such a model. others are of the model, or by the name of the configuration that they are of."""
    from vllm.config import CacheConfig, LoadConfig, ModelConfig, ParallelConfig, VllmConfig

    hf = types.SimpleNamespace(architectures=["Tiny"])
    for key in ("quantization_config", "_commit_hash", "rope_theta"):
        if key in others:
            setattr(hf, key, others.pop(key))
    of = {name: kind(**others.pop(name, {})) for name, kind in (("cache_config", CacheConfig), ("parallel_config", ParallelConfig))}
    transfer = others.pop("weight_transfer_config", None)
    load_format = others.pop("load_format", "gpufd")
    model = ModelConfig(directory, Tiny, dtype=others.pop("dtype", torch.float32), hf_config=hf, **others)
    return VllmConfig(model, LoadConfig(load_format, extra), weight_transfer_config=transfer, **of)


def answer(model):
    """Return what a model says of all words."""
    return model(torch.arange(WORDS)).flatten().tolist()
