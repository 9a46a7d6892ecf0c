#!/usr/bin/env python3
"""Serve a language model from kept weights, and take each newer version between two generations.

    gpufd keeper & gpufd put llama DIR
    python3 engine.py DIR                    # as many as you like: they share the weights
    gpufd put llama NEWER                    # at any time; DIR and NEWER differ in their weights alone

It serves until SIGTERM or SIGINT. Each generation is a line of JSON: which version it is of, its tokens,
and the bytes that this process has on the GPU besides the kept weights. A version that does not fit is refused,
and the old one serves on. It needs transformers and accelerate.
"""

import json
import queue
import signal
import threading

import torch

from restart import flags, generate, without_weights

import demo  # noqa: F401  # finds gpufd in this repository
import gpufd.torch


def follow(name, socket, newer):
    """Map each version beside the one before, and pass it on: in a thread, while the other one generates."""
    for version in gpufd.torch.follow(name, socket=socket):
        newer.put(version)


def swap(model, version):
    """Make a version the model's. Returns whether it fits."""
    try:
        version.swap(model)
    except gpufd.Error as e:
        version.refuse(e)
        print(json.dumps({"refused": version.version, "why": str(e)}), flush=True)
        return False
    model.to(next(model.parameters()).device)  # moves the buffers, once
    return True


def main():
    p = flags(__doc__)
    p.add_argument("--count", type=int, default=0, help="end after so many generations")
    args = p.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    model, prompt, newer = without_weights(args.model), [int(n) for n in args.prompt.split()], queue.SimpleQueue()
    threading.Thread(target=follow, args=(args.name, args.socket, newer), daemon=True).start()
    serving, n = 0, 0
    while not stop.is_set() and (n < args.count or not args.count):
        try:
            version = newer.get(block=not serving, timeout=0.2)  # waits for the first one only
            serving = version.version if swap(model, version) else serving
            del version  # the model has its tensors, and nothing else needs it
        except queue.Empty:
            pass
        if serving:
            n += 1
            tokens = generate(model, prompt, args.tokens)
            private = torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0
            print(json.dumps({"n": n, "version": serving, "tokens": tokens, "private_bytes": private}), flush=True)


if __name__ == "__main__":
    main()
