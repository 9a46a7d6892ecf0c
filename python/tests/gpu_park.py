"""Parking kept memory in memory of the host, on a GPU.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_park.py [GIB] [LINK] -v

GIB of random numbers, 16 by default, are parked and brought back under two engines. It needs a GPU, PyTorch, and gpufd's programs
(GPUFD_BIN, or Go to build them). LINK is the program of bench/c/link.c, which says what the link gives in the same run. Times are
printed, and not judged.
"""

import gc
import json
import os
import subprocess
import sys
import time

import gpu  # first: it says where the package is
from keepers import Keeper, program, wait_for

import gpufd

GIB = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 16
LINK = sys.argv.pop(1) if sys.argv[1:] and os.path.exists(sys.argv[1]) else ""

# An engine that has the part, sleeps, and comes back.
ENGINE = """
import gpufd, time
version = gpufd.get("large", socket=sys.argv[1])
att = version.parts[0].attachment
address = att.ptr
print("attached", flush=True)
for line in sys.stdin:
    word, began = line.strip(), time.monotonic()
    if word == "sleep":
        print("kept", version.detach(), flush=True)
    elif word == "wake":
        same = version.reattach()
        took = time.monotonic() - began
        assert att.ptr == address and same
        print("woke", took, flush=True)
    else:
        version.verify()
        print("verified", flush=True)
"""


class Park(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        began = time.monotonic()
        keeper = Keeper(self.dir, "keeper", "--park-pool", f"{GIB + 1}GiB")
        self.addCleanup(keeper.close)
        self.socket = keeper.socket
        wait_for(self.pool_is_whole, "the pool", 120)
        print(f"\n  a pool of {GIB + 1} GiB was made in {time.monotonic() - began:.2f} s")

    def pool_is_whole(self):
        with gpufd.Client(self.socket) as client:
            return client.status().pool.bytes >= (GIB + 1) << 30

    def put(self):
        torch = self.torch
        torch.manual_seed(1)
        tensors = {f"w{i}": torch.randint(-1 << 30, 1 << 30, (1 << 28,), dtype=torch.int32, device="cuda") for i in range(GIB)}
        gpufd.torch.put("large", tensors, socket=self.socket)
        del tensors
        gc.collect()
        torch.cuda.empty_cache()

    def move(self, word):
        """Run a command. Returns its bytes a second: of the copy, of the mover, and of the command."""
        began = time.monotonic()
        done = subprocess.run([program(), word, "large", "--socket", self.socket, "--json"], capture_output=True, text=True, timeout=100, check=False)
        took = time.monotonic() - began
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        said = json.loads(done.stdout)
        rates = [said["bytes"] / s / 1e9 for s in (said["copy_seconds"], said["seconds"], took)]
        print(f"  {word} {GIB} GiB: {rates[0]:.1f} GB/s, with the mover's start {rates[1]:.1f}, with the command's {rates[2]:.1f} ({took:.2f} s)")
        return rates[0]

    def tell(self, p, word):
        p.stdin.write(word + "\n")
        p.stdin.flush()
        return p.stdout.readline().split()

    def test_two_engines_one_park(self):
        self.put()
        engines = [self.python(ENGINE, self.socket, waits_for="attached") for _ in range(2)]
        self.assertEqual([self.tell(p, "sleep") for p in engines], [["kept", "True"]] * 2)
        full = gpu.vitals()[2]
        for round in range(3):
            self.move("park")
            wait_for(lambda: gpu.vitals()[2] - full >= GIB << 30, "the device's memory")
            freed = gpu.vitals()[2] - full
            if round == 0:
                print("  " + subprocess.run([program(), "ls", "--socket", self.socket], capture_output=True, text=True, check=True).stdout.replace("\n", "\n  "))
            if round == 2:
                self.move("unpark")
            woke = [float(self.tell(p, "wake")[1]) for p in engines]
            print(f"  freed {freed / 2**30:.1f} GiB; reattached in {woke[0]:.3f} s and {woke[1]:.4f} s")
            if round == 0:
                self.assertEqual([self.tell(p, "verify") for p in engines], [["verified"]] * 2)
            self.assertEqual([self.tell(p, "sleep") for p in engines], [["kept", "True"]] * 2)
        if LINK:
            print("  link: " + subprocess.run([LINK, "8"], capture_output=True, text=True, check=True).stdout.strip())


if __name__ == "__main__":
    sys.exit(gpu.main())
