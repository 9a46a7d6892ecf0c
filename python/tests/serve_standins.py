"""Run examples/serve/serve.py with a stand-in for transformers: a small model with a cache, and a tokenizer.

    python3 serve_standins.py [--timeout SECONDS] FLAG…

--timeout is for a keeper's answer, which has 30 s else.
A step takes as long as the model's configuration says, as if the model were large.
"""

import functools
import pathlib
import runpy
import sys
import time
import types

import common  # noqa: F401  # says where the package is
import torch
import transformersstandin as standin
from torch import nn

import gpufd.transformers

SERVE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "serve" / "serve.py"


class Config(standin.PreTrainedConfig):
    model_type = "remembers"
    defaults = {"vocab_size": 101, "hidden_size": 16, "max_position_embeddings": 4096, "step": 0.0, "tie_word_embeddings": True}


class Model(standin.PreTrainedModel):
    """A language model that remembers a mean of what it has seen. Its head is tied, and a buffer is in no file."""

    config_class = Config
    _tied_weights_keys = {"head.weight": "embed.weight"}

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.embed, self.mix, self.head = nn.Embedding(config.vocab_size, width), nn.Linear(width, width), nn.Linear(width, config.vocab_size, bias=False)
        self.register_buffer("scale", torch.tensor(-1.0), persistent=False)  # with a tied head 1 would repeat the last token
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, past_key_values=None, use_cache=True):
        time.sleep(self.config.step)
        seen = torch.zeros(self.config.hidden_size) if past_key_values is None else past_key_values
        for token in input_ids[0]:
            seen = 0.7 * seen + self.embed(token)
        logits = self.head(torch.tanh(self.mix(seen))) * self.scale
        return types.SimpleNamespace(logits=logits[None, None], past_key_values=seen)


def random_model(seed, stop=None, **config):
    torch.manual_seed(seed)
    model = Model._from_config(Config(**config)).eval().requires_grad_(False)
    model.generation_config = standin.GenerationConfig(eos_token_id=stop)
    return model


def generate(model, prompt, n, layers=None):
    """Return the n tokens that follow a prompt. layers are A, B and a scale, by the name of the layer that they change."""
    model, tokens = copy_of(model), []
    model.config.step = 0.0
    for name, (a, b, scale) in (layers or {}).items():
        model.get_submodule(name).weight += scale * (b @ a)
    out = model(torch.tensor([prompt]))
    for _ in range(n):
        tokens.append(int(out.logits[0, -1].argmax()))
        out = model(torch.tensor([tokens[-1:]]), out.past_key_values)
    return tokens


def copy_of(model):
    """Return a model with weights of its own, which nobody keeps."""
    own = Model._from_config(Config.from_dict(model.config.to_dict())).eval().requires_grad_(False)
    own.load_state_dict({name: t.clone() for name, t in model.state_dict().items()})
    return own


class Tokenizer:
    """Tokens are the bytes of UTF-8."""

    @classmethod
    def from_pretrained(cls, directory):
        return cls()

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


sys.modules["transformers"].AutoTokenizer = Tokenizer

if __name__ == "__main__":
    import serve_standins  # noqa: F401  # whose classes have the names by which they were put

    torch.set_num_threads(1)
    if sys.argv[1] == "--timeout":
        gpufd.transformers.follow = functools.partial(gpufd.transformers.follow, timeout=float(sys.argv[2]))
        del sys.argv[1:3]
    sys.argv[0] = str(SERVE)
    runpy.run_path(sys.argv[0], run_name="__main__")
