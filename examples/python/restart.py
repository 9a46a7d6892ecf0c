#!/usr/bin/env python3
"""Start a language model of transformers from kept weights, and say how long the first token took.

    gpufd keeper &
    gpufd put llama DIR                      # keeps the weights of DIR's files; or
    python3 restart.py DIR --cold --put      # starts from the files, and keeps the module as it is then
    python3 restart.py DIR                   # every other start: no weights are read or copied

DIR is a model's directory. Of a start from kept weights only its config.json and generation_config.json
are read. It prints a line of JSON. A prompt is numbers of tokens: no tokenizer is used. It needs
transformers and accelerate.
"""

import argparse
import json
import os
import time

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import demo  # noqa: F401  # finds gpufd in this repository
import gpufd.torch


def since_exec():
    """Return the seconds since this process was started."""
    with open("/proc/self/stat") as f:
        started = int(f.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def without_weights(directory):
    """Return a directory's model without memory for its parameters: they are on meta. Its buffers are whole."""
    config = AutoConfig.from_pretrained(directory)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    model.tie_weights()
    model.generation_config = GenerationConfig.from_pretrained(directory)
    return model.eval()


def with_kept_weights(directory, name, socket):
    """Return a directory's model whose parameters are what the keeper keeps."""
    model = without_weights(directory)
    state = gpufd.torch.load(name, socket=socket)
    state.apply(model)
    return model.to(next(iter(state.values())).device)  # moves the buffers; the weights are there


def generate(model, prompt, n):
    """Return the n tokens that follow a prompt, each the most likely one."""
    tokens = torch.tensor([prompt], device=next(model.parameters()).device)
    with torch.inference_mode():
        out = model.generate(tokens, max_new_tokens=n, do_sample=False)
    return out[0, len(prompt) :].tolist()


def flags(about):
    p = argparse.ArgumentParser(description=about.splitlines()[0])
    p.add_argument("model", metavar="DIR", help="the model's directory")
    p.add_argument("--name", default="llama", help="of the kept weights (llama)")
    p.add_argument("--socket", help="the keeper's (GPUFD_SOCKET, or the default one)")
    p.add_argument("--prompt", default="1 7 300 42 5 99", help="tokens (%(default)s)")
    p.add_argument("--tokens", type=int, default=16, help="how many to generate (16)")
    return p


def main():
    p = flags(__doc__)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of a cold start (%(default)s)")
    p.add_argument("--cold", action="store_true", help="start from the files")
    p.add_argument("--put", action="store_true", help="have the keeper keep the module, and generate again")
    args = p.parse_args()
    prompt, imported, begin = [int(n) for n in args.prompt.split()], since_exec(), time.monotonic()
    if args.cold:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto").to(args.device).eval()
    else:
        model = with_kept_weights(args.model, args.name, args.socket)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    weights = time.monotonic() - begin
    generate(model, prompt, 1)
    times = {"imports": imported, "model_and_weights": weights, "exec_to_first_token": since_exec()}
    print(json.dumps({"how": "cold" if args.cold else "kept", **times, "tokens": generate(model, prompt, args.tokens)}), flush=True)
    if args.put:
        done = gpufd.torch.put(args.name, model, socket=args.socket)
        print(json.dumps({"how": "put", "version": done.version, "tokens": generate(model, prompt, args.tokens)}), flush=True)


if __name__ == "__main__":
    main()
