"""Run a script with stand-ins for the parts of transformers, accelerate and PyTorch 2 that it uses.

    python3 standins.py SCRIPT ARGUMENT…

For test_scripts.py: the model is small.Model, and a directory has its config.json and model.safetensors.
python/tests/gpu_scripts.py runs the scripts with the real ones.
"""

import contextlib
import json
import os
import runpy
import sys
import types

import torch

import small

CONFIG = {"vocabulary": 101, "width": 16, "blocks": 2}


class Model(small.Model):
    """small.Model, as transformers would have it: with a tied head, and a buffer that is in no file."""

    empty = False  # whether parameters are made on meta

    def __init__(self, config):
        super().__init__(**CONFIG)
        self.register_buffer("scale", -torch.ones(()), persistent=False)  # with a tied head 1 would repeat the last token
        self.generation_config = None
        if Model.empty:
            for module in self.modules():
                for name, t in module._parameters.items():
                    module._parameters[name] = torch.nn.Parameter(t.to("meta")) if t is not None else None

    def forward(self, tokens):
        return super().forward(tokens) * self.scale

    def tie_weights(self):
        self.head.weight = self.embed.weight

    def generate(self, tokens, max_new_tokens, do_sample):
        return torch.cat([tokens, torch.tensor([small.generate(self, tokens, max_new_tokens)], device=tokens.device)], 1)


class Auto:
    """AutoConfig, GenerationConfig and AutoModelForCausalLM."""

    @staticmethod
    def from_pretrained(directory, dtype=None):
        with open(os.path.join(directory, "config.json")) as f:
            config = types.SimpleNamespace(**json.load(f), dtype=torch.float32)
        if dtype is None:
            return config
        model = Auto.from_config(config, dtype)
        model.tie_weights()
        model.load_state_dict(read(os.path.join(directory, "model.safetensors")), strict=False)
        return model.eval()

    @staticmethod
    def from_config(config, dtype):
        return Model(config)


@contextlib.contextmanager
def init_empty_weights(include_buffers):
    Model.empty = True
    yield
    Model.empty = False


def save(directory, seed):
    """Write a directory of a model of random weights, without the tied head. Returns the model."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    torch.manual_seed(seed)
    model = Model(None).eval()
    model.tie_weights()
    entries, data = {}, b""
    for name, t in model.state_dict().items():
        if name != "head.weight":
            entries[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [len(data), len(data) + 4 * t.numel()]}
            data += t.numpy().tobytes()
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header + data)
    return model


def read(path):
    """Return the tensors of a file that save has written."""
    with open(path, "rb") as f:
        entries = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    return {name: torch.frombuffer(data, dtype=torch.float32)[slice(*(n // 4 for n in e["data_offsets"]))].view(e["shape"]) for name, e in entries.items()}


def install():
    """Make the stand-ins modules."""
    for name, has in {
        "transformers": {"AutoConfig": Auto, "AutoModelForCausalLM": Auto, "GenerationConfig": Auto},
        "accelerate": {"init_empty_weights": init_empty_weights},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(has)
    torch.cuda.is_available = lambda: False  # tensors of the CPU go with the software driver
    torch.compile = lambda model, mode=None: lambda x: model(x)  # the real one takes long, and a C++ compiler
    torch.export = types.SimpleNamespace(export=lambda model, args: types.SimpleNamespace(module=lambda: model))


if __name__ == "__main__":
    install()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
