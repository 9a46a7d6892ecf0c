"""The peak of gpufd.torch.put on a GPU, and its types: JSON lines, and exit status 1 if one is wrong.

    python3 putpeak.py [--gib 8] [--largest 1]

A thread samples cuMemGetInfo of the whole device (torch.cuda.mem_get_info): the peak is to be
at most the weights, the largest tensor and 1 GiB above what there was before the weights.
"""

import argparse
import sys
import threading
import time

import keeping
import torch

GIB = 1 << 30


class Sampler(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.least, self.over = torch.cuda.mem_get_info()[0], threading.Event()
        self.samples = 0

    def run(self):
        while not self.over.is_set():
            self.least = min(self.least, torch.cuda.mem_get_info()[0])
            self.samples += 1
            time.sleep(0.0005)

    def stop(self):
        self.over.set()
        self.join()


def model(gib, largest):
    """Weights of several sizes, among them small ones, and one that is the largest."""
    m = torch.nn.Module()
    sizes, left = [largest], gib * GIB - largest
    for step in (512 << 20, 96 << 20, 8 << 20, 1 << 20, 64 << 10):
        n = int(left * 0.4) // step if step > 64 << 10 else min(64, left // step)
        sizes += [step] * n
        left -= n * step
    for i, size in enumerate(sizes):
        m.register_parameter(f"p{i}", torch.nn.Parameter(torch.randn(size // 2, device="cuda", dtype=torch.bfloat16), requires_grad=False))
    return m, sum(sizes)


def peak(o, socket):
    import gpufd.torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    largest = int(o.largest * GIB)
    m, weights = model(o.gib, largest)
    torch.cuda.empty_cache()
    sums = {n: p.float().sum().item() for n, p in m.named_parameters() if p.numel() < 64 << 20}
    torch.cuda.empty_cache()
    loaded = before - torch.cuda.mem_get_info()[0]
    sampler = Sampler()
    sampler.start()
    begin = time.monotonic()
    done = gpufd.torch.put("peak", m, socket=socket)
    took = time.monotonic() - begin
    sampler.stop()
    above = before - sampler.least
    limit = weights + largest + GIB
    same = all(p.float().sum().item() == sums[n] for n, p in m.named_parameters() if n in sums)
    keeping.say(what="peak", weights=weights, largest=largest, loaded=loaded, peak=above, limit=limit, overhead=above - weights, seconds=took,
                samples=sampler.samples, version=done.version, same=same, ok=above <= limit and same)  # fmt: skip
    return above <= limit and same


def types(socket):
    import gpufd.torch

    m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).to("cuda", torch.bfloat16)
    m[1].weight = m[0].weight
    m.register_buffer("fp8", torch.randn(32, 16, device="cuda").to(torch.float8_e4m3fn).t())
    m.register_buffer("fp8e5", torch.randn(7, device="cuda").to(torch.float8_e5m2))
    m.register_buffer("u16", torch.arange(5, device="cuda").to(torch.uint16))
    x = torch.randn(3, 64, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        before = m[1](m[0](x)).clone()
    gpufd.torch.put("types", m, socket=socket, labels={"a": "b"})
    state = gpufd.torch.load("types", socket=socket, labels={"a": "b"})
    bits = lambda t: t.contiguous().flatten().view(torch.uint8).tolist()  # noqa: E731
    same = all(bits(state[n]) == bits(t) and state[n].dtype == t.dtype and state[n].stride() == t.stride() for n, t in m.state_dict().items())
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(64, 64, dtype=torch.bfloat16), torch.nn.Linear(64, 64, dtype=torch.bfloat16))
    other.load_state_dict({n: state[n] for n in other.state_dict()}, assign=True)
    with torch.inference_mode():
        equal = torch.equal(other[1](other[0](x)), before) and torch.equal(m[1](m[0](x)), before)
    views = other[0].weight.data_ptr() == state["0.weight"].data_ptr() == state["1.weight"].data_ptr()
    with gpufd.get("types", socket=socket) as version:
        version.verify()
    keeping.say(what="types", same=same, assign_equal=equal, views=views, ok=same and equal and views)
    return same and equal and views


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gib", type=int, default=8)
    p.add_argument("--largest", type=float, default=1.0)
    o = p.parse_args()
    with keeping.keeper() as socket:
        ok = peak(o, socket)
        ok = types(socket) and ok
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
