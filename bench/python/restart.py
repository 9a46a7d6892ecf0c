"""A restart, told with figures: a PyTorch program with 16 GiB of parameters, from exec to the
first token, cold by safetensors' load_file from the page cache, and from a keeper, turn about.

    python3 restart.py [--gib 16] [--rounds 5] [--device cuda]

A line for each start with the seconds of its steps, and one with medians and ratios. "output"
is a digest of what the first token is made of: it has to be the same for all.
"""

import argparse
import compileall
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import keeping

HIDDEN = 8192


def layers(gib, hidden):
    """As few blocks as have that much."""
    return math.ceil(gib * (1 << 30) / (12 * hidden * hidden * 2))


def names(gib, hidden):
    """Parameters of a stack of blocks as a transformer has them, without biases: name, shape."""
    for i in range(layers(gib, hidden)):
        yield f"{i}.qkv.weight", (3 * hidden, hidden)
        yield f"{i}.out.weight", (hidden, hidden)
        yield f"{i}.up.weight", (4 * hidden, hidden)
        yield f"{i}.down.weight", (hidden, 4 * hidden)


def build(torch, gib, hidden):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            linear = lambda a, b: torch.nn.Linear(a, b, bias=False, dtype=torch.bfloat16)  # noqa: E731
            self.qkv, self.out, self.up, self.down = linear(hidden, 3 * hidden), linear(hidden, hidden), linear(hidden, 4 * hidden), linear(4 * hidden, hidden)

        def forward(self, x):
            norm = lambda y: torch.nn.functional.layer_norm(y, (hidden,))  # noqa: E731
            q, k, v = self.qkv(norm(x)).view(*x.shape[:2], 3, hidden // 128, 128).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.down(torch.nn.functional.gelu(self.up(norm(x))))

    with torch.device("meta"):
        return torch.nn.Sequential(*(Block() for _ in range(layers(gib, hidden))))


def child(o):
    """One start: its steps in seconds, since exec."""
    steps, last = {}, int(os.environ["STARTED"])

    def step(name):
        nonlocal last
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        steps[name], last = (now - last) / 1e9, now

    step("interpreter")
    import torch

    step("torch")
    torch.zeros(1, device=o.device)
    if o.device == "cuda":
        torch.cuda.synchronize()
    step("cuda")
    model = build(torch, o.gib, o.hidden)
    step("module")
    if o.child == "keeper":
        import gpufd.torch

        step("import")
        state = gpufd.torch.load("model", socket=o.socket)
    else:
        from safetensors.torch import load_file

        step("import")
        state = load_file(o.file, device=o.device)
    if o.device == "cuda":
        torch.cuda.synchronize()
    model.load_state_dict(state, assign=True)
    step("weights")
    torch.manual_seed(1)
    x = torch.randn(1, 16, o.hidden).to(torch.bfloat16).to(o.device)
    with torch.inference_mode():
        y = model(x)[:, -1].float().cpu()
    step("compute")
    total = sum(steps.values())
    keeping.say(how=o.child, seconds=steps, total=total, output=hashlib.sha256(y.numpy().tobytes()).hexdigest()[:16], torch=torch.__version__)


def make(o):
    """The model's file, of random numbers, written layer by layer, and read once."""
    import torch

    path = o.file
    entries, at = {}, 0
    for name, shape in names(o.gib, o.hidden):
        size = 2 * shape[0] * shape[1]
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(0)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, shape in names(o.gib, o.hidden):
            t = (torch.randn(shape, device=o.device) / shape[1] ** 0.5).to(torch.bfloat16).cpu()
            f.write(memoryview(t.view(torch.int16).numpy()).cast("B"))
    return at


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gib", type=float, default=16)
    p.add_argument("--hidden", type=int, default=HIDDEN)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--device", default="cuda")
    p.add_argument("--directory", help="for the file, of which there is to be room in the page cache")
    p.add_argument("--child", choices=["cold", "keeper"], help=argparse.SUPPRESS)
    p.add_argument("--socket", help=argparse.SUPPRESS)
    p.add_argument("--file", help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.child:
        return child(o)
    with tempfile.TemporaryDirectory(dir=o.directory) as directory, keeping.keeper() as socket:
        o.file = os.path.join(directory, "model.safetensors")
        made = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import restart, argparse; print(restart.make(argparse.Namespace(**{vars(o)!r})))"],
                              check=True, capture_output=True, text=True)  # fmt: skip
        begin = time.monotonic()
        subprocess.run([keeping.GPUFD, "put", "model", o.file, "--socket", socket, "--timeout", "300s"], check=True, stdout=subprocess.DEVNULL)
        keeping.say(bytes=int(made.stdout), put_seconds=time.monotonic() - begin)
        compileall.compile_dir(os.path.join(sys.path[0], "gpufd"), quiet=2)  # as pip does when it installs the package
        starts = {"cold": [], "keeper": []}
        for _ in range(o.rounds):
            for how, seen in starts.items():
                seen.append(start(o, how, socket))
        report(starts)


def start(o, how, socket):
    args = ["--child", how, "--gib", str(o.gib), "--hidden", str(o.hidden), "--device", o.device, "--socket", socket, "--file", o.file]
    started = str(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
    done = subprocess.run([sys.executable, os.path.abspath(__file__), *args], capture_output=True, text=True, env={**os.environ, "STARTED": started})
    if done.returncode:
        raise SystemExit(f"{how}: {done.stderr}")
    line = json.loads(done.stdout.splitlines()[-1])
    keeping.say(**line)
    return line


def report(starts):
    medians = {how: {k: keeping.median([s["seconds"][k] for s in seen]) for k in seen[0]["seconds"]} for how, seen in starts.items()}
    totals = {how: keeping.median([s["total"] for s in seen]) for how, seen in starts.items()}
    outputs = {s["output"] for seen in starts.values() for s in seen}
    weights = medians["keeper"]["weights"] + medians["keeper"]["import"]
    keeping.say(medians=medians, totals=totals, ratio=totals["cold"] / totals["keeper"], bit_equal=len(outputs) == 1,
                keeper_weights_seconds=weights, ok=len(outputs) == 1 and weights <= 0.1)  # fmt: skip
    sys.exit(0 if len(outputs) == 1 and weights <= 0.1 else 1)


if __name__ == "__main__":
    main()
