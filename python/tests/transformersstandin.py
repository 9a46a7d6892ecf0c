"""A stand-in for transformers, and for accelerate: what gpufd.transformers asks of it, and small models like its own.

``import transformersstandin`` makes it the modules transformers and accelerate. The real one builds its models in the same way: from a
configuration, on meta, tied in the end. python/tests/gpu_transformers.py runs with the real one.
"""

import json
import sys
import types

import torch
from torch import nn

HUB = "transformers_modules.someone.model"  # where code of the hub is


class PreTrainedConfig:
    """A configuration: its attributes, and parts that are configurations."""

    model_type, sub_configs, defaults = "", {}, {}
    _attn_implementation_internal, _experts_implementation_internal = "sdpa", "eager"

    def __init__(self, **values):
        self.dtype, self._name_or_path = None, ""
        for key, value in {**self.defaults, **values}.items():
            setattr(self, key, self.sub_configs[key](**value) if isinstance(value, dict) and key in self.sub_configs else value)

    @classmethod
    def from_dict(cls, values):
        return cls(**{k: v for k, v in values.items() if k != "model_type"})

    def to_dict(self):
        def plain(value):
            return value.to_dict() if isinstance(value, PreTrainedConfig) else str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value

        return {k: plain(v) for k, v in vars(self).items() if not k.endswith("_internal")} | {"model_type": self.model_type}

    def to_json_string(self):
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def parts(self):
        return {key: part for key in self.sub_configs if (part := getattr(self, key, None)) is not None}

    def set_all(self, attribute, value):
        """Set an implementation, and that of the parts: a dictionary names each, and what it does not name stays."""
        setattr(self, attribute + "_internal", value.get("", getattr(self, attribute)) if isinstance(value, dict) else value)
        for key, part in self.parts().items():
            part.set_all(attribute, value.get(key, getattr(part, attribute)) if isinstance(value, dict) else value)

    _attn_implementation = property(lambda self: self._attn_implementation_internal, lambda self, value: self.set_all("_attn_implementation", value))
    _experts_implementation = property(lambda self: self._experts_implementation_internal, lambda self, value: self.set_all("_experts_implementation", value))


class GenerationConfig:
    def __init__(self, **values):
        self.max_new_tokens = 20
        vars(self).update(values)

    @classmethod
    def from_dict(cls, values):
        return cls(**values)

    def to_json_string(self):
        return json.dumps(vars(self))


class PreTrainedModel(nn.Module):
    _tied_weights_keys = {}
    generates = True
    generation_config_class = GenerationConfig
    _skip_keys_device_placement = ["past_key_values"]

    def __init__(self, config):
        super().__init__()
        self.config = config
        if self.generates:  # any other lacks the attribute
            self.generation_config = self.generation_config_class()

    @classmethod
    def _from_config(cls, config, dtype=None, attn_implementation=None, experts_implementation=None):
        if attn_implementation:
            config._attn_implementation = attn_implementation
        if experts_implementation:
            config._experts_implementation = experts_implementation
        before = torch.get_default_dtype()
        dtype = dtype or config.dtype or before
        for part in (config, *config.parts().values()):
            part.dtype = dtype
        torch.set_default_dtype(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        try:
            return cls(config)
        finally:
            torch.set_default_dtype(before)

    def post_init(self):
        if self.config.tie_word_embeddings:
            for target, source in self._tied_weights_keys.items():
                path, _, key = target.rpartition(".")
                setattr(self.get_submodule(path), key, self.get_parameter(source))


class SmallConfig(PreTrainedConfig):
    model_type = "small"
    defaults = {"vocab_size": 32, "hidden_size": 8, "layers": 2, "theta": 100.0, "tie_word_embeddings": True}


class Rotary(nn.Module):
    """As transformers' rotary embeddings: buffers in no file, one of which is a plain attribute in older versions."""

    def __init__(self, config):
        super().__init__()
        steps = torch.arange(0, config.hidden_size, 2).float() / config.hidden_size
        self.register_buffer("inv_freq", 1.0 / config.theta**steps, persistent=False)
        self.original_inv_freq = self.inv_freq

    def forward(self, n):
        angles = torch.outer(torch.arange(n).float(), self.inv_freq)
        return torch.cat([angles.cos(), self.original_inv_freq.repeat(n, 1) * angles.sin()], -1)


class SmallModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(config.layers))
        self.rotary_emb = Rotary(config)


class SmallForCausalLM(PreTrainedModel):
    config_class = SmallConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = SmallModel(config), nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.register_buffer("steps", torch.zeros(1))  # which is in files
        self.post_init()

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = torch.tanh(layer(x + self.model.rotary_emb(tokens.shape[-1]).to(x.dtype)))
        return self.lm_head(x)


class Embeddings(nn.Module):
    """As BERT's and CLIP's: buffers of integers in no file, one of them expanded."""

    def __init__(self, config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.register_buffer("position_ids", torch.arange(config.vocab_size).expand((1, -1)), persistent=False)
        self.register_buffer("token_type_ids", torch.zeros(self.position_ids.size(), dtype=torch.long), persistent=False)

    def forward(self, tokens):
        n = tokens.shape[-1]
        return self.word_embeddings(tokens) + self.word_embeddings(self.position_ids[:, :n]) + self.word_embeddings(self.token_type_ids[:, :n])


class Predictions(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.scale = nn.Parameter(torch.tensor(2.5))


class SmallForMaskedLM(PreTrainedModel):
    """As BERT's: it does not generate, and has two tensors of two names each."""

    config_class, generates = SmallConfig, False
    _tied_weights_keys = {"cls.decoder.weight": "bert.word_embeddings.weight", "cls.decoder.bias": "cls.bias"}

    def __init__(self, config):
        super().__init__(config)
        self.bert, self.cls = Embeddings(config), Predictions(config)
        self.post_init()

    def forward(self, tokens):
        return self.cls.decoder(self.bert(tokens)) * self.cls.scale.exp()


class PairConfig(PreTrainedConfig):
    """A configuration with parts, as of a model of pictures and text."""

    model_type, sub_configs, defaults = "pair", {"first": SmallConfig, "second": SmallConfig}, {"tie_word_embeddings": False}


class PairModel(PreTrainedModel):
    """As CLIP's: its parts are models, made of parts of the configuration."""

    config_class, generates = PairConfig, False

    def __init__(self, config):
        super().__init__(config)
        self.first, self.second = SmallForCausalLM._from_config(config.first), SmallForCausalLM._from_config(config.second)


class OuterConfig(PreTrainedConfig):
    model_type, sub_configs, defaults = "outer", {"inner": PairConfig}, {"tie_word_embeddings": False}


class OuterModel(PreTrainedModel):
    """Parts of parts, as of a model that hears and speaks. It generates in a way of its own."""

    class generation_config_class(GenerationConfig):  # noqa: N801  # the name of transformers
        pass

    config_class = OuterConfig

    def __init__(self, config):
        super().__init__(config)
        self.inner = PairModel._from_config(config.inner)


class Hub(SmallForCausalLM):
    """A model whose code comes from the hub."""


def made(theta=100.0, seed=1, kind=SmallForCausalLM, dtype=None, **config):
    """A model of random weights, as from_pretrained returns one."""
    torch.manual_seed(seed)
    model = kind._from_config(kind.config_class(theta=theta, dtype=dtype, **config))
    with torch.no_grad():
        for t in {id(p): p for p in model.parameters()}.values():
            t.copy_(torch.randn(t.shape))
    if model.generates:
        model.generation_config = model.generation_config_class(max_new_tokens=seed)
    return model.eval()


class _OnMeta(torch.overrides.TorchFunctionMode):
    """torch.device("meta") of PyTorch 2, as far as these models need it."""

    MAKERS = {getattr(torch, name) for name in ("arange", "empty", "tensor", "zeros")}

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return function(*args, **(kwargs or {}) | ({"device": "meta"} if function in self.MAKERS else {}))


def _module(name, *classes, **more):
    m = sys.modules[name] = types.ModuleType(name)
    for c in classes:
        c.__module__ = name
        setattr(m, c.__name__, c)
    vars(m).update(more)


_module("transformers.models.small.modeling_small", Rotary, SmallModel, SmallForCausalLM, SmallConfig, Embeddings,
        Predictions, SmallForMaskedLM, PairModel, PairConfig, OuterModel, OuterConfig)  # fmt: skip
_module("transformers", PreTrainedModel, PreTrainedConfig, GenerationConfig, PretrainedConfig=PreTrainedConfig, __version__="5.0")


def dispatch_model(model, device_map, skip_keys=None):
    """accelerate's, as far as it can be seen without devices: it notes what it is told, and moves nothing."""
    assert isinstance(model, PreTrainedModel) and all(not t.is_meta for t in model.state_dict().values())
    for path, at in device_map.items():  # it would move what is in another module with that, and copy it back
        assert all(device_map[outer] == at for outer in device_map if outer == "" or path.startswith(outer + ".")), device_map
    model.hf_device_map, model.skip_keys = device_map, skip_keys
    return model


_module("accelerate", dispatch_model=dispatch_model)


def hub():
    """Import the code from the hub, as transformers does for trust_remote_code."""
    _module(HUB, Hub)


if not hasattr(torch.device, "__enter__"):
    import gpufd.transformers.build

    gpufd.transformers.build.on_meta = _OnMeta
