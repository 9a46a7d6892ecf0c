"""The driver's checkpoint of a PyTorch process with a CUDA graph over kept weights, and over weights of its own.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_checkpoint.py [GIB] -v

GIB of weights are random numbers, 16 by default. It needs a GPU with driver 570 or newer, PyTorch 2, and gpufd's programs
(GPUFD_BIN, or Go to build them); two GPUs for what restores to another one, and for ranks of NCCL. Sizes and times are
printed, and not judged.
"""

import gc
import json
import os
import sys
import threading
import time

import gpu  # first: it says where the package is
from keepers import Keeper

import common
import gpufd

GIB = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 16
WIDTH = 8192
LAYERS = GIB * 8  # of 128 MiB
LONGEST = 240  # seconds that a process may take

MODULE = f"""
import torch
def module(device):
    with torch.device("meta"):
        m = torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}, bias=False, dtype=torch.bfloat16) for _ in range({LAYERS}))).eval()
    if device == "meta":
        return m
    m.to_empty(device=device)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, device=device, dtype=p.dtype) / {WIDTH}**0.5)
    return m
"""

# A process that captures a graph over a module, of a keeper's weights if there is a socket, and does what it is told to.
CHILD = MODULE + """
import json, os, time, gpufd.torch
kept = gpufd.torch.Model(module("meta"), "large", socket=sys.argv[1]) if sys.argv[1] else None
m, x, graph = kept.module if kept else module("cuda"), torch.ones(1, WIDTH, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
with torch.no_grad():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        m(x)
    side.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.graph(graph):
        y = m(x)
def run():
    graph.replay()
    return y.float().sum().item()
print("ready", flush=True)
def wake():
    try:
        return kept.wake()
    except gpufd.MismatchError as e:
        return f"MismatchError ({e.reason})"
def oneself():
    with gpufd.torch.checkpoint(os.getpid()) as made:
        return made.state
for line in sys.stdin:
    began = time.monotonic()
    said = {"run": run, "sleep": lambda: kept.sleep(), "wake": wake, "oneself": oneself, "device": lambda: str(torch.cuda.get_device_properties(0).uuid)}[line.strip()]()
    print("said", json.dumps([said, time.monotonic() - began]), flush=True)
""".replace("WIDTH", str(WIDTH))

# A rank of two: it reduces once, and once more after each line.
RANK = """
import os, torch, torch.distributed as dist
rank = int(sys.argv[1])
torch.cuda.set_device(rank)
def reduce(round):
    dist.init_process_group("nccl", store=dist.FileStore(f"{sys.argv[2]}.{round}", 2), rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    t = torch.full((1 << 20,), float(rank + round), device="cuda")
    dist.all_reduce(t)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print("reduced", t[0].item(), t[-1].item(), flush=True)
reduce(1)
for line in sys.stdin:
    reduce(2)
"""


def image(pid):
    """The bytes of a process in the machine's memory and swap."""
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f if ":" in line)
    return sum(int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmSwap") if name in fields)


def available():
    """The bytes of the machine's memory that a process could have."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable"))


class Checkpoints(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        self.addCleanup(self.clear)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def child(self, socket=""):
        return self.bounded(self.python(CHILD, socket, waits_for="ready"))

    def bounded(self, p):
        """Kill a process if it takes too long: one that is lost never answers."""
        timer = threading.Timer(LONGEST, p.kill)
        timer.start()
        self.addCleanup(timer.cancel)
        return p

    def tell(self, p, word):
        """Tell a process to do something. Returns what it says, and the seconds that it took."""
        p.stdin.write(word + "\n")
        p.stdin.flush()
        return json.loads(self.hears(p, "said").removeprefix("said"))

    def hears(self, p, want):
        """Return the next line that begins so. PyTorch may have said something before."""
        said = []
        for line in p.stdout:
            said.append(line)
            if line.startswith(want):
                return line
        self.fail(f"it ended: {''.join(said)}")

    def checkpoint(self, p, what, device=None):
        """Checkpoint a process, restore it, and return the seconds of both. It says what the sizes were."""
        before = image(p.pid), available(), gpu.vitals()[2]
        began = time.monotonic()
        with gpufd.torch.checkpoint(p.pid) as made:
            took = time.monotonic() - began
            during = image(p.pid), available(), gpu.vitals()[2]
            self.assertEqual(made.state, "checkpointed")
            began = time.monotonic()
            made.restore(device)
            back = time.monotonic() - began
        self.assertEqual(made.state, "running")
        freed = during[2] - before[2]
        self.assertGreater(freed, 100 << 20, "the device has no more room than before")
        told = f"{took:.2f} s, and {back:.2f} s to restore; the device had {freed >> 20} MiB more meanwhile"
        sizes = f"the process {during[0] >> 20} MiB in memory, before {before[0] >> 20}; the machine {(before[1] - during[1]) >> 20} MiB less"
        gpu.seen("checkpoint", f"{what}, {GIB} GiB of weights", f"{told}; {sizes}")
        return took, back, freed

    def kept(self):
        """A process whose weights a keeper keeps."""
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        there = {}
        exec(MODULE, there)
        gpufd.torch.put("large", there["module"]("cuda"), socket=keeper.socket)
        self.clear()
        return self.child(keeper.socket)

    def test_weights_outside(self):
        p = self.kept()
        want, _ = self.tell(p, "run")
        with common.raises(self, gpufd.InUseError, "in-use", "memory of other processes mapped"):
            gpufd.torch.checkpoint(p.pid)
        self.assertEqual(self.tell(p, "run")[0], want, "a refusal changes nothing")
        kept, slept = self.tell(p, "sleep")
        self.assertIs(kept, True)
        for how in (None, {0: 0}):  # the second says which device it is to have
            _, back, freed = self.checkpoint(p, "kept", how)
            self.assertLess(freed, max(8 << 30, GIB << 29), "the weights were in the process")
            version, woke = self.tell(p, "wake")
            got, ran = self.tell(p, "run")
            self.assertEqual((version, got), (1, want))
            gpu.seen("checkpoint", "kept: from the restore to the first result", f"{back + woke + ran:.3f} s: restore {back:.3f}, wake {woke:.3f}, replay {ran:.3f}; sleep took {slept:.3f}")
            slept = self.tell(p, "sleep")[1]
        self.torch.cuda.synchronize()

    def test_weights_outside_on_another_device(self):
        """The driver takes what the process imports there for memory of its first device (docs/howto-sleep.md)."""
        if self.torch.cuda.device_count() < 2:
            common.missing("two", "there is one GPU")
        p = self.kept()
        self.tell(p, "sleep")
        self.checkpoint(p, "kept, to another device", {0: 1})
        said, _ = self.tell(p, "wake")
        self.assertRegex(str(said), r"^MismatchError \(")
        gpu.seen("checkpoint", "kept, to another device: wake says", said)

    def test_weights_inside(self):
        p = self.child()
        want, _ = self.tell(p, "run")
        self.assertEqual(self.tell(p, "oneself")[0], "checkpointed")
        self.assertEqual(self.tell(p, "run")[0], want, "it has checkpointed itself, and is restored")
        _, back, freed = self.checkpoint(p, "own")
        self.assertGreater(freed, GIB << 29)
        got, ran = self.tell(p, "run")
        self.assertEqual(got, want)
        gpu.seen("checkpoint", "own: from the restore to the first result", f"{back + ran:.3f} s: restore {back:.3f}, replay {ran:.3f}")

    def test_another_device(self):
        if self.torch.cuda.device_count() < 2:
            common.missing("two", "there is one GPU")
        p = self.child()
        want, _ = self.tell(p, "run")
        self.checkpoint(p, "own, to another device", {0: 1})
        self.assertEqual(self.tell(p, "run")[0], want)
        gpu.seen("checkpoint", "to another device: the process says that it is on", self.tell(p, "device")[0])

    def test_ranks_whose_communicators_are_gone(self):
        if self.torch.cuda.device_count() < 2:
            common.missing("two", "there is one GPU")
        ranks = [self.bounded(self.python(RANK, str(rank), os.path.join(self.dir, "store"))) for rank in range(2)]
        for p in ranks:
            self.hears(p, "reduced 3.0 3.0")
        made = [gpufd.torch.checkpoint(p.pid) for p in ranks]
        for checkpoint in made:
            checkpoint.restore()
        for p in ranks:
            p.stdin.write("\n")
            p.stdin.flush()
        for p in ranks:
            self.hears(p, "reduced 5.0 5.0")
        gpu.seen("checkpoint", "two ranks of NCCL without their communicator", "restored, and a new communicator reduces")


if __name__ == "__main__":
    sys.exit(gpu.main())
