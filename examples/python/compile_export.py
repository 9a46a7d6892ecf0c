#!/usr/bin/env python3
"""Run torch.compile, CUDA graphs and torch.export on kept weights, and compare with private ones.

    gpufd keeper & python3 small.py
    python3 compile_export.py

All of them only read the weights. A line for each says whether the results are equal, bit by bit.
It needs PyTorch 2.
"""

import sys

import torch

import small  # first: it finds gpufd in this repository


def compiled(model, x):
    return torch.compile(model)


def graphs(model, x):
    """CUDA graphs, on a GPU. A result is overwritten by the next replay."""
    replay = torch.compile(model, mode="reduce-overhead")
    return lambda x: replay(x).clone()


def exported(model, x):
    return torch.export.export(model, (x,)).module()


WAYS = {"eager": lambda model, x: model, "torch.compile": compiled, 'mode="reduce-overhead"': graphs, "torch.export": exported}


def results(way, model, inputs):
    """Return a model's outputs in one of the ways. A graph is captured in one of the first calls, and replayed then."""
    run = way(model, inputs[0])
    return [run(x) for x in inputs]


def main():
    args = small.flags(__doc__).parse_args()
    kept, state = small.kept_model(socket=args.socket)
    private = small.Model().to(args.device).eval()
    private.load_state_dict(state)  # copies
    torch.manual_seed(2)
    inputs = [torch.randint(0, 1000, (4, 16), device=args.device) for _ in range(6)]
    failed = False
    for name, way in WAYS.items():
        with torch.no_grad():
            want, got = (results(way, model, inputs) for model in (private, kept))
        equal = all(torch.equal(a, b) for a, b in zip(want, got))
        failed |= not equal
        print(f"{name}: {'equal' if equal else 'NOT EQUAL'}, {len(inputs)} inputs", flush=True)
    state.check(kept)  # the model still has the kept tensors
    sys.exit(failed)


if __name__ == "__main__":
    main()
