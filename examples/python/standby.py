#!/usr/bin/env python3
"""Serve a model from kept weights, with a standby that sleeps until the first engine dies.

    gpufd keeper & python3 small.py          # the weights
    python3 standby.py                       # the first engine; a request is a line: the tokens of a prompt
    python3 standby.py --after PID           # the standby of process PID

The standby imports all, builds its model over the kept weights and captures a graph on a GPU. Then it unmaps the
weights, and has no device memory but its context and its graph's. When process PID has died, it maps the newest version
at the same addresses, and answers. An engine prints lines of JSON.
"""

import json
import os
import select
import sys
import time

import torch

import small  # first: it finds gpufd in this repository
import gpufd.torch

WINDOW = 32  # tokens that the model looks at


class Engine:
    """A model, and the tokens that it looks at. On a GPU a graph computes what follows them."""

    def __init__(self, model, device):
        self.model = model
        self.window = torch.zeros(1, WINDOW, dtype=torch.int64, device=device)
        self.run = self.capture() if device.startswith("cuda") else self.forward

    def forward(self):
        with torch.no_grad():
            return self.model(self.window)

    def capture(self):
        """Capture forward, and return a function that replays it."""
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self.forward()  # what is made at the first call is not for the graph
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.forward()

        def run():
            graph.replay()
            return out

        return run

    def generate(self, prompt, n):
        """Return the n tokens that follow a prompt, each the most likely one."""
        tokens = prompt[-WINDOW:]
        for _ in range(n):
            seen = tokens[-WINDOW:]
            self.window[0, : len(seen)] = torch.tensor(seen)
            tokens = [*tokens, int(self.run()[0, len(seen) - 1].argmax())]  # those behind are not looked at
        return tokens[-n:]


def say(**line):
    print(json.dumps(line), flush=True)


def await_death(pid, model):
    """Wait until a process has died."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(process, select.POLLIN)
    while not poll.poll(1000):
        model.superseded  # noqa: B018  # hears of a keeper that restarts, and gets the lease again
    os.close(process)


def main():
    p = small.flags(__doc__)
    p.add_argument("--name", default=small.NAME, help="of the kept weights (%(default)s)")
    p.add_argument("--after", type=int, metavar="PID", help="sleep until this process has died")
    p.add_argument("--tokens", type=int, default=8, help="how many to generate (8)")
    args = p.parse_args()
    with gpufd.Client(args.socket) as client:
        labels = client.stat(args.name).labels
    with gpufd.torch.Model(small.empty_model(labels), args.name, socket=args.socket) as model:
        engine = Engine(model, args.device)
        engine.generate([1], 1)
        if args.after:
            say(asleep=model.version, lease_kept=model.sleep())
            await_death(args.after, model)
            begin = time.monotonic()
            say(awake=model.wake(), took=f"{time.monotonic() - begin:.3f} s")
        else:
            say(serving=model.version)
        for line in sys.stdin:
            tokens = engine.generate([int(t) for t in line.split()], args.tokens)
            say(version=model.version, tokens=tokens)
            try:
                model.swap()  # a newer version, if there is one
            except gpufd.Error as e:  # it does not fit, or nobody serves it: this one is good
                say(serving=model.version, error=str(e))


if __name__ == "__main__":
    main()
