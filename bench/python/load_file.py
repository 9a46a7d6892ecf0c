"""A rival of loading: safetensors' own load_file, into the GPU.

To each line "load PATH" on standard input it loads the file on device 0, waits for
the device, and answers with one JSON object a line, as the rivals of bench/README.md
do. Letting the tensors go is not timed.
"""

import json
import sys
import time


def answer(**what):
    print(json.dumps(what), flush=True)


def measure(torch, load):
    start = time.monotonic_ns()
    tensors = load()
    torch.cuda.synchronize()
    ns = time.monotonic_ns() - start
    del tensors
    torch.cuda.empty_cache()
    return ns


def main():
    try:
        import safetensors
        import torch
        from safetensors.torch import load_file

        torch.zeros(1, device="cuda")
    except Exception as e:  # whatever it is, the benchmark says it
        answer(error=f"{type(e).__name__}: {e}")
        return 1
    answer(ready=True, name="load_file", info=f"safetensors {safetensors.__version__}, torch {torch.__version__}")
    for line in sys.stdin:
        word, _, path = line.rstrip("\n").partition(" ")
        try:
            if word != "load":
                raise ValueError(f"{word!r}: want load PATH")
            answer(ns=measure(torch, lambda: load_file(path, device="cuda:0")))
        except Exception as e:
            answer(error=f"{type(e).__name__}: {e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
