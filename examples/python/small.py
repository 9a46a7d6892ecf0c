#!/usr/bin/env python3
"""A small language model of random weights, for the scripts that need no more. Its tokens are numbers.

    gpufd keeper &
    python3 small.py                  # has the keeper keep it, under the name small

lora.py and compile_export.py use it from there.
"""

import argparse

import torch
from torch import nn

import demo  # noqa: F401  # finds gpufd in this repository
import gpufd.torch

NAME = "small"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / x.shape[-1] ** 0.5
        later = torch.full(scores.shape[-2:], float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        x = x + self.out(torch.softmax(scores + later, -1) @ v)
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, vocabulary=1000, width=128, blocks=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks, self.norm = nn.ModuleList(Block(width) for _ in range(blocks)), nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def random_model(seed):
    """Return a model of random weights, on the CPU."""
    torch.manual_seed(seed)
    return Model().eval()


def empty_model(labels=()):
    """Return a model without weights: of another size, or type, than usual if the labels of a version say so."""
    sizes = {key: int(labels[key]) for key in ("vocabulary", "width", "blocks") if key in labels}
    with torch.device("meta") if hasattr(torch.device, "__enter__") else demo.on(None):  # PyTorch 2
        return Model(**sizes).to(getattr(torch, labels["dtype"]) if "dtype" in labels else torch.float32).eval()


def kept_model(name=NAME, socket=None):
    """Return a model whose parameters are kept memory, and the tensors that it was made of."""
    model = empty_model()
    state = gpufd.torch.load(name, socket=socket)
    state.apply(model)
    return model, state


def generate(forward, prompt, n):
    """Return the n tokens that follow a prompt, each the most likely one."""
    tokens = prompt
    with torch.no_grad():
        for _ in range(n):
            tokens = torch.cat([tokens, forward(tokens)[:, -1:].argmax(-1)], 1)
    return tokens[0, prompt.shape[1] :].tolist()


def flags(about):
    """Return a parser with the flags that the scripts have in common."""
    p = argparse.ArgumentParser(description=about.splitlines()[0])
    p.add_argument("--socket", help="the keeper's (GPUFD_SOCKET, or the default one)")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, or cpu with the software driver (%(default)s)")
    return p


def main():
    p = flags(__doc__)
    p.add_argument("--name", default=NAME, help="(%(default)s)")
    p.add_argument("--seed", type=int, default=1, help="another number makes other weights (1)")
    args = p.parse_args()
    done = gpufd.torch.put(args.name, random_model(args.seed).to(args.device), socket=args.socket, labels={"seed": str(args.seed)})
    print(f"{args.name}, version {done.version}: {demo.many(done.bytes, 'byte')}")


if __name__ == "__main__":
    main()
