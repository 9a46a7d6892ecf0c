"""A process of gpu_serve.py that has models and adapters of random weights, and has a keeper keep them. It takes and prints lines of JSON.

    python3 serve_writer.py GIB TOKENS PROMPT…          # a prompt is numbers with commas between

    {"make": SEED, "adapters": [SEED, …]}               the tokens that a model generates, alone and with each adapter
    {"put": SEED}                                       as the next version of llama; it can be put again
    {"adapter": SEED}                                   as the next version of llama/adapters/formal
"""

import gc
import json
import pathlib
import sys
import time
import types

import common  # noqa: F401  # says where the package is
import torch
import transformers_peer as peer
from transformers import AutoModelForCausalLM, GenerationConfig

import gpufd.transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "examples" / "serve"))

import serve  # noqa: E402  # for its layers with adapters, and its steps

RANK = 8


class Writer:
    def __init__(self, gib, tokens, *prompts):
        self.config, self.tokens = peer.config(float(gib)), int(tokens)
        self.prompts = [[int(t) for t in p.split(",")] for p in prompts]
        self.models = {}

    def make(self, seed, adapters):
        torch.manual_seed(seed)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16)
        model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None)
        self.models[seed] = model.eval().requires_grad_(False)
        wanted = {str(a): [self.generate(model, p, a and self.layers(model, a)) for p in self.prompts] for a in (None, *adapters)}
        return {"tokens": wanted, "bytes": sum(p.numel() * p.element_size() for p in model.parameters())}

    def layers(self, model, seed):
        """Return the layers of an adapter, by name."""
        g, layers = torch.Generator("cuda").manual_seed(seed), {}
        for i in range(self.config.num_hidden_layers):
            for name in ("self_attn.q_proj", "mlp.down_proj"):
                path = f"model.layers.{i}.{name}"
                rows, columns = model.get_submodule(path).weight.shape
                a, b = (torch.randn(shape, generator=g, device="cuda") for shape in ((RANK, columns), (rows, RANK)))
                layers[path] = (a / columns**0.5).bfloat16(), (b / 4).bfloat16()
        return layers

    def generate(self, model, prompt, layers):
        """Generate by the steps that the server makes, without its threads."""
        adapter = types.SimpleNamespace(layers=layers, scale=2 / RANK) if layers else None
        r = serve.Request(list(prompt), self.tokens, adapter)
        r.version = types.SimpleNamespace(module=model, device="cuda")
        engine = serve.Engine("llama", None, 1)
        while not r.end:
            engine.step(r)
        return [r.events.get() for _ in range(self.tokens)]

    def put(self, seed):
        began = time.monotonic()
        done = gpufd.transformers.put("llama", self.models[seed])
        return {"version": done.version, "began": began, "committed": time.monotonic()}

    def adapter(self, seed):
        layers = self.layers(next(iter(self.models.values())), seed)
        tensors = {f"{path}.{name}": t for path, pair in layers.items() for name, t in zip("AB", pair)}
        done = gpufd.torch.put("llama/adapters/formal", tensors, labels={"rank": str(RANK), "alpha": "2"})
        return {"version": done.version, "committed": time.monotonic()}

    def run(self):
        for line in sys.stdin:
            asked = json.loads(line)
            if "make" in asked:
                said = self.make(asked["make"], asked["adapters"])
            else:
                said = self.put(asked["put"]) if "put" in asked else self.adapter(asked["adapter"])
            gc.collect()
            torch.cuda.empty_cache()
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    Writer(*sys.argv[1:]).run()
