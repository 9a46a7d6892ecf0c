#!/usr/bin/env python3
"""Send tensors to another process by a queue, with expandable segments and without ptrace rights.

    python3 handles_queue.py                 # by gpufd's handles
    python3 handles_queue.py --own           # by PyTorch's own: the receiver fails, on a GPU

Existing code needs one line more: register_reducer(). PyTorch's own handle of memory in expandable segments
is a descriptor that the receiver takes out of the sender by pidfd_getfd, which asks for the right to ptrace
the sender. Containers, and sandboxes, do not give that right. This script gives it up itself.
"""

import argparse
import ctypes
import os
import statistics
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # before PyTorch is imported

import torch
import torch.multiprocessing

import demo  # noqa: F401  # finds gpufd in this repository
import gpufd.torch

PR_SET_DUMPABLE, SYS_PTRACE = 4, 19


def forbid_ptrace():
    """Let no other process ptrace this one, nor this one another."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        for i in range(3):  # effective, permitted, inheritable
            data[i] &= ~(1 << SYS_PTRACE) & 0xFFFFFFFF
        libc.capset(header, data)


def receive(tensors, answers):
    """Answer with the least and the largest element of each tensor that comes."""
    forbid_ptrace()
    try:
        answers.put("ready")
        while (t := tensors.get()) is not None:
            answers.put(tuple(float(x) for x in t.aminmax()))
            del t  # its memory ends with it
    except Exception as e:
        answers.put(f"{type(e).__name__}: {' '.join(str(e).split())[:120]}")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, or cpu with the software driver (%(default)s)")
    p.add_argument("--count", type=int, default=100, help="tensors to send (100)")
    p.add_argument("--elements", type=int, default=1 << 20, help="of each (%(default)s)")
    p.add_argument("--own", action="store_true", help="by PyTorch's own handles")
    args = p.parse_args()
    forbid_ptrace()
    if not args.own:
        gpufd.torch.register_reducer(**({} if args.device == "cuda" else {"driver": "soft"}))
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    receiver = context.Process(target=receive, args=(tensors, answers), daemon=True)
    receiver.start()
    took, said = [], answers.get(timeout=120)
    for n in range(args.count):
        begin = time.monotonic()
        sent = torch.full((args.elements,), float(n), device=args.device)
        tensors.put(sent)
        said = answers.get(timeout=30)
        took.append(time.monotonic() - begin)
        if said != (n, n):
            raise SystemExit(f"tensor {n}: {said}")  # the receiver ends with this process
    tensors.put(None)
    receiver.join()
    print(f"{args.count} tensors of {demo.many(4 * args.elements, 'byte')}, all right: p50 {statistics.median(took) * 1e3:.2f} ms there and back")


if __name__ == "__main__":
    main()
