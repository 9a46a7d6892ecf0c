#!/usr/bin/env python3
"""Serve one base model with LoRA adapters, each kept under a name of its own, with labels.

    gpufd keeper & python3 small.py                        # the base, which is kept, too
    python3 lora.py add formal --rank 8 --seed 1           # by any process, at any time
    printf 'formal 1 7 300\\n- 1 7 300\\n' | python3 lora.py serve
    python3 lora.py list
    python3 lora.py remove formal

An adapter says by its labels which version of the base it is for. A request is a line: the name of an
adapter, or - for none, and the tokens of the prompt. The weights of a request are W + B·A, made for it
alone: the kept ones are read-only, and others use them.
"""

import json
import sys

import torch

import small  # first: it finds gpufd in this repository
import gpufd.torch

try:
    from torch.func import functional_call
except ImportError:  # before PyTorch 2
    from torch.nn.utils.stateless import functional_call

PREFIX = "small/adapters/"
LINEAR = ("qkv", "out")  # the weights that an adapter changes, in each block


def add(args, base):
    """Put an adapter of random numbers, as training would have made them."""
    g = torch.Generator().manual_seed(args.seed)
    tensors = {}
    for i, block in enumerate(small.Model().blocks):
        for name in LINEAR:
            rows, columns = getattr(block, name).weight.shape
            tensors[f"blocks.{i}.{name}.A"] = torch.randn(args.rank, columns, generator=g).to(args.device)
            tensors[f"blocks.{i}.{name}.B"] = torch.randn(rows, args.rank, generator=g).to(args.device) / rows**0.5
    labels = {"base": str(base), "rank": str(args.rank), "alpha": "2"}
    done = gpufd.torch.put(PREFIX + args.adapter, tensors, socket=args.socket, labels=labels)
    print(f"{PREFIX}{args.adapter}, version {done.version}: rank {args.rank}, for version {base} of {small.NAME}")


class Adapters:
    """The adapters that this process has mapped, by name."""

    def __init__(self, base, socket):
        self.labels, self.socket, self.held = {"base": str(base)}, socket, {}

    def get(self, name):
        """Return an adapter as it is kept now. Raises NotFoundError, or MismatchError if it is for another base."""
        held = self.held.get(name)
        if held is None or held[0].attachment.superseded or held[0].attachment.done:
            held = self.held.pop(name, None)
            del held  # the old one is unmapped, also if the next line fails
            (part,) = gpufd.get(PREFIX + name, socket=self.socket, labels=self.labels).take()
            self.held[name] = part, gpufd.torch.tensors(part)
        return self.held[name]


def merged(model, part, tensors):
    """Return W + B·A of each weight that an adapter changes."""
    scale = float(part.data.labels["alpha"]) / int(part.data.labels["rank"])
    paths = [name.removesuffix(".A") for name in tensors if name.endswith(".A")]
    return {f"{p}.weight": model.get_parameter(f"{p}.weight") + scale * (tensors[f"{p}.B"] @ tensors[f"{p}.A"]) for p in paths}


def serve(args, base):
    model, state = small.kept_model(socket=args.socket)
    adapters = Adapters(state.data.version, args.socket)
    for line in sys.stdin:
        name, *prompt = line.split()
        answer, weights = {"adapter": name}, {}
        try:
            if name != "-":
                part, tensors = adapters.get(name)
                weights, answer["version"] = merged(model, part, tensors), part.data.version
                del part, tensors
            tokens = torch.tensor([[int(t) for t in prompt]], device=args.device)
            answer["tokens"] = small.generate(lambda x: functional_call(model, weights, (x,)), tokens, args.tokens)  # noqa: B023
        except (gpufd.NotFoundError, gpufd.MismatchError) as e:
            answer["error"] = e.reason
        print(json.dumps(answer), flush=True)


def main():
    p = small.flags(__doc__)
    what = p.add_subparsers(dest="what", required=True)
    a, r, s = what.add_parser("add"), what.add_parser("remove"), what.add_parser("serve")
    what.add_parser("list")
    a.add_argument("adapter")
    a.add_argument("--rank", type=int, default=8)
    a.add_argument("--seed", type=int, default=1, help="another number makes another adapter")
    r.add_argument("adapter")
    s.add_argument("--tokens", type=int, default=8, help="how many to generate (8)")
    args = p.parse_args()
    with gpufd.Client(args.socket) as client:
        base = client.stat(small.NAME).version
        if args.what == "remove":
            client.remove(PREFIX + args.adapter)
        elif args.what == "list":
            for info in client.list():
                if info.name.startswith(PREFIX):
                    print(info.name.removeprefix(PREFIX), f"version {info.version}", *(f"{k}={v}" for k, v in sorted(info.labels.items())))
    if args.what in ("add", "serve"):
        (add if args.what == "add" else serve)(args, base)


if __name__ == "__main__":
    main()
