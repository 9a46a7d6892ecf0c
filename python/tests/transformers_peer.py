"""A process of gpu_transformers.py, with a Llama-like model of transformers on a GPU. Each line that it prints is JSON.

    python3 transformers_peer.py make DIR GIB          # writes the files of a model of random weights
    python3 transformers_peer.py put DIR NAME          # loads them, negates the weights, and has a keeper keep the model
    python3 transformers_peer.py cold DIR              # serves from the files: says what its start took, and takes words from its input,
                                                       # answer, and put NAME
    python3 transformers_peer.py kept NAME             # the same from a keeper: gpufd.transformers.load
    python3 transformers_peer.py model NAME            # the same: gpufd.transformers.Model, which takes sleep, wake and swap, too
    python3 transformers_peer.py spread NAME         # loads a model over several GPUs from a keeper, answers, and ends

PYTHONPATH says where the package is.
"""

import json
import math
import os
import sys
import time

TOKENS = [[1, 7, 300, 42, 5, 99]]
GIB = 1 << 30


def since_exec():
    """Return the seconds since this process was started."""
    with open("/proc/self/stat") as f:
        started = int(f.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


class Start:
    """The parts of a start, in seconds, one after the other."""

    def __init__(self):
        self.parts, self.last = {}, 0.0

    def done(self, part):
        now = since_exec()
        self.parts[part], self.last = now - self.last, now


def say(**what):
    print(json.dumps(what), flush=True)


def config(gib):
    """A Llama whose weights, in BF16, have at least so many GiB: layers as of a model of 8 billion parameters, or smaller ones."""
    import transformers

    hidden, inner, words = (4096, 14336, 128256) if gib >= 4 else (2048, 5632, 32000)
    layer = 2 * (hidden * (2 * hidden + hidden // 2) + 3 * hidden * inner)
    layers = math.ceil((gib * GIB - 4 * words * hidden) / layer)
    return transformers.LlamaConfig(
        vocab_size=words, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
        max_position_embeddings=2048, tie_word_embeddings=False, dtype="bfloat16", bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip


def make(directory, gib):
    import torch
    import transformers

    torch.manual_seed(1)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config(float(gib)), dtype=torch.bfloat16)
    model.save_pretrained(directory)
    transformers.GenerationConfig(do_sample=False, eos_token_id=[2], pad_token_id=0, max_new_tokens=16).save_pretrained(directory)
    say(bytes=sum(p.numel() * p.element_size() for p in model.parameters()))


def from_files(directory):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(directory, dtype="auto", device_map="cuda")


def put_other(directory, name):
    import torch

    model = from_files(directory)
    with torch.no_grad():
        for p in model.parameters():
            p.neg_()
    put(name, model)


def put(name, model):
    import gpufd.transformers

    before = answer(model)
    began = time.monotonic()
    done = gpufd.transformers.put(name, model)
    say(version=done.version, bytes=done.bytes, seconds=time.monotonic() - began, before=before, after=answer(model))


def answer(model):
    """Return a digest of the logits of a few tokens, and the tokens that follow them."""
    import torch

    from gpufd.transformers.description import digest

    tokens = torch.tensor(TOKENS, device="cuda")
    with torch.inference_mode():
        return {"logits": digest(model(tokens).logits), "tokens": model.generate(tokens)[0, len(TOKENS[0]) :].tolist()}


def free():
    """Return the bytes of each GPU that nobody has."""
    import torch

    torch.cuda.empty_cache()
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def places(model):
    """Return where a model's modules are, by the UUIDs of their devices, and these in their order here."""
    import torch

    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    return {"places": {path: uuids[at if isinstance(at, int) else torch.device(str(at)).index] for path, at in model.hf_device_map.items()}, "uuids": uuids}


def spread(name):
    import torch
    from transformers import LlamaForCausalLM  # noqa: F401  # which imports the code of the model

    import gpufd.transformers

    for i in range(torch.cuda.device_count()):
        torch.ones(1, device=i)  # each has a context
    before = free()
    model = gpufd.transformers.load(name)
    after = free()
    say(before=before, after=after, **places(model), **answer(model))


def serve(how, name):
    start = Start()
    import torch
    from transformers import LlamaForCausalLM  # noqa: F401  # which imports the code of the model

    ways = {"cold": from_files}
    if how != "cold":
        import gpufd.transformers

        ways |= {"kept": gpufd.transformers.load, "model": gpufd.transformers.Model}
        gpufd.torch.Model  # whose module is imported when it is first used
    start.done("import")
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    start.done("cuda")
    held = ways[how](name)
    torch.cuda.synchronize()
    start.done("weights")
    model = held.module if how == "model" else held
    with torch.inference_mode():
        model.generate(torch.tensor(TOKENS, device="cuda"), max_new_tokens=1)
    torch.cuda.synchronize()
    start.done("compute")
    say(how=how, start=start.parts, total=start.last, own=torch.cuda.memory_allocated(), **answer(model))
    for line in sys.stdin:
        word, *name = line.split()
        if word == "answer":
            say(**answer(model))
        elif word == "put":
            put(*name, model)
        else:
            began = time.monotonic()
            said = getattr(held, word)()
            torch.cuda.synchronize()
            say(**{"took": time.monotonic() - began, word: said})


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "make":
        make(*rest)
    elif mode == "put":
        put_other(*rest)
    elif mode == "spread":
        spread(*rest)
    else:
        serve(mode, *rest)
