"""gpufd.broadcast by NCCL, between two GPUs of one machine.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_broadcast.py -v

It needs two GPUs, PyTorch and gpufd's programs (GPUFD_BIN, or Go to build them). Two ranks have a
keeper each, and the second one's memory is on the second GPU. Ranks are forked, as those of
test_broadcast.py are, so this process may not use CUDA.
"""

import json
import os
import subprocess
import sys
import unittest
import unittest.mock

from keepers import wait_for  # first: it says where the package is

import common
import gpufd
from test_broadcast import Keepers, die, fail, stop, torch

HOW = ("--device", "1", "--backend", "nccl", "--piece", "4MiB")
BACKEND = HOW[3]
SIZE = 64 << 20
SEEN = []


def devices():
    """How many devices PyTorch sees, asked in a process of its own."""
    count = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True).stdout)


# The ranks are of one machine, whose name may stand for no address.
@unittest.mock.patch.dict(os.environ, {"NCCL_NVLS_ENABLE": "0", "GLOO_SOCKET_IFNAME": "lo"})
class TwoGPUs(Keepers):
    count, driver = 2, "cuda"

    @classmethod
    def setUpClass(cls):
        if torch is None or devices() < 2:
            common.missing("two", "there are no two GPUs here that PyTorch sees")
        super().setUpClass()

    def setUp(self):
        super().setUp()
        path = os.path.join(self.directory, "model.bin")
        with open(path, "wb") as f:
            f.write(os.urandom(1 << 20) * (SIZE >> 20))
        self.gpufd("put", "model", path, "--label", "revision=main", "--socket", self.keepers[0].socket)

    def ranks(self, *args, **options):
        return super().ranks(*HOW, *args, ranks=range(2), world=2, **options)

    def arrives(self):
        r = self.ranks("--json", "--min-rate", "1e6")
        self.assertEqual(r.wait(), {0: 0, 1: 0}, r.all_said())
        said = [json.loads(r.said(rank).splitlines()[-1]) for rank in range(2)]
        self.assertEqual([(s["received"], s["backend"]) for s in said], [(0, BACKEND), (SIZE, BACKEND)])
        self.assertRegex(said[1]["warnings"][0], "slower than")
        first, second = self.infos()
        self.assertEqual((second.digest, second.labels, second.state), (first.digest, first.labels, "ok"))
        self.assertIn("as its writer said", self.gpufd("get", "model", "--verify", "--socket", self.keepers[1].socket))
        again = self.ranks("--json")
        self.assertEqual(again.wait(), {0: 0, 1: 0}, again.all_said())
        self.assertTrue(json.loads(again.said(1).splitlines()[-1])["skipped"])
        SEEN.append(f"{SIZE >> 20} MiB in pieces of 4 MiB{self.way}: {said[1]['rate']:.1f} GB/s, {r.took:.1f} s in all")

    def test_by_nvlink(self):
        self.way = ""
        self.arrives()

    @unittest.mock.patch.dict(os.environ, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
    def test_by_sockets(self):
        self.way = " by sockets"
        self.arrives()

    def test_a_rank_that_fails_or_is_killed(self):
        """At each step: the other one ends, names it, and its keeper has nothing."""
        timeout = 45.0  # a third of it is what a rank may be silent, as when many initialise CUDA at once
        cases = {
            "start": (1, "start", die),
            "joined": (1, "joined", die),
            "met": (1, "met", die),
            "known": (1, "known", die),
            "booked": (1, "booked", die),
            "piece": (1, "piece", die),
            "the source": (0, "piece", die),
            "received": (1, "received", die),
            "stopped": (1, "piece", stop),
            "failed": (1, "piece", fail),
        }
        before = self.used()
        running = {case: self.ranks("--timeout", f"{timeout:g}s", stop=at) for case, at in cases.items()}
        self.check_ends(running, cases, timeout)
        SEEN.append("killed, stopped or failed: " + ", ".join(f"{case} {r.took:.1f} s" for case, r in running.items()))
        wait_for(lambda: all(now <= then for now, then in zip(self.used(), before)), "the memory of ranks that have ended")

    def used(self):
        """MiB in use of each GPU."""
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]

    def test_a_rank_lost_between_commits(self):
        """Rank 1 is killed when it has all bytes: its keeper has none of them, and the next broadcast gives them to it."""
        r = self.ranks("--timeout", "45s", stop=(1, "commit", die))
        r.wait()
        self.assertEqual(r.status[0], 4, r.all_said())
        self.assertRegex(r.said(0), r"rank 1\b.*was lost")
        with gpufd.Client(self.keepers[1].socket) as client:
            wait_for(lambda: client.find("model") is None, "the keeper to give up what was booked")
        again = self.ranks("--json")
        self.assertEqual(again.wait(), {0: 0, 1: 0}, again.all_said())
        self.assertIn("as its writer said", self.gpufd("get", "model", "--verify", "--socket", self.keepers[1].socket))


if __name__ == "__main__":
    program = unittest.main(exit=False)
    print("\n".join(SEEN))
    raise SystemExit(not program.result.wasSuccessful())
