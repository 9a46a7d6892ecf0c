"""Tests of weights.py: the ways alone, and a run on the software driver.

	python3 -m unittest discover -s bench/python
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch

    import weights
    import weights_ways as ways


@unittest.skipUnless(HAS_TORCH, "there is no PyTorch here")
class WeightsTest(unittest.TestCase):
    @unittest.skipIf(HAS_TORCH and torch.cuda.is_available(), "there is CUDA here")
    def test_on_the_software_driver(self):
        """Each way without CUDA is measured, each other one is named, and there is a table with ratios."""
        with tempfile.TemporaryDirectory() as directory:
            env = {**os.environ, "GPUFD_DRIVER": "soft", "GPUFD_SOFT_DIR": directory, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-B", str(HERE / "weights.py"), "--size", "4MiB", "--in-place", "1MiB", "--bucket", "1MiB", "--rounds", "2"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for way in ("two copies", "one copy", "gpufd", "gpufd in place"):
            self.assertRegex(done.stdout, rf"(?m)^{way}( +[\d.]+){{6}}$")
        for way in ("bucket", "queue", "queue in place"):
            self.assertIn(f"\n{way}: left out: needs CUDA\n", done.stdout)
        self.assertRegex(done.stdout, r"\ngpufd / two copies: p50 [\d.]+, p90 [\d.]+ \(wanted: p50 1.25 at most\)\n")
        self.assertIn("fewer than two GPUs: nothing was measured between two", done.stdout)

    @unittest.skipIf(HAS_TORCH and torch.cuda.is_available(), "there is CUDA here")
    def test_the_rivals(self):
        """PyTorch's ways hand tensors of the CPU over as those of a GPU, beside ours in the same two processes."""
        options = types.SimpleNamespace(size=1 << 20, in_place=1 << 20, bucket=1 << 19, rounds=2)
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as patches:
            env = {"GPUFD_DRIVER": "soft", "GPUFD_SOFT_DIR": directory, "XDG_RUNTIME_DIR": directory}
            patches.enter_context(unittest.mock.patch.dict(os.environ, env))
            for way in (ways.Bucket, ways.Queue, ways.QueueInPlace):
                patches.enter_context(unittest.mock.patch.object(way, "needs_cuda", False))
            times, _, lacking = weights.measure(options, tuple(ways.WAYS))
        self.assertEqual((lacking, {name: len(taken) for name, taken in times.items()}), ({}, dict.fromkeys(ways.WAYS, 2)))

    def test_buckets(self):
        """Each tensor is in one bucket, aligned, and none goes beyond it."""
        tensors = {str(n): torch.zeros(n, dtype=torch.uint8) for n in (100, 300, 400, 1000, 24)}
        self.assertEqual(list(ways.packed(tensors, 1024)), [[("100", 0), ("300", 256)], [("400", 0)], [("1000", 0)], [("24", 0)]])
        bucket = torch.zeros(1024, dtype=torch.uint8)
        ways.inside(bucket, 256, tensors["300"]).fill_(7)
        self.assertEqual((int(bucket.sum()), int(bucket[256]), int(bucket[555])), (2100, 7, 7))

    def test_ratios(self):
        taken = {name: [(n * 1_000_000, 0, 0)] for name, n in {"two copies": 10, "one copy": 5, "bucket": 20, "queue": 30}.items()}
        taken |= {"gpufd": [(12_000_000, 10, 11)], "gpufd in place": [(1, 0, 0)], "queue in place": [(20, 0, 0)]}
        slow = {"bucket": [(14_000_000, 0, 0)]}, {"two copies": [(9_000_000, 0, 0)]}, {"gpufd in place": [(3, 0, 0)]}
        for change, good in (({}, True), *((change, False) for change in slow)):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                self.assertEqual(weights.ratios("one pair", {**taken, **change}), good)
            self.assertIn("gpufd / bucket: ", out.getvalue())
        del taken["bucket"]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertFalse(weights.ratios("one pair", taken), "a way is lacking")

    def test_quantile(self):
        self.assertEqual([weights.quantile(range(1, 21), percent) for percent in (50, 90, 100)], [10, 18, 20])
        self.assertEqual([weights.quantile([7], percent) for percent in (50, 90)], [7, 7])

    def test_wrong_bytes_are_seen(self):
        """A byte that is not written, a tensor of the update before, and two that are exchanged."""
        for way in (ways.Gpufd, ways.TwoCopies, ways.GpufdInPlace):
            side = way(ways.Memory(types.SimpleNamespace(size=1 << 20, in_place=1 << 20)), {})
            tensors = side.target()
            ways.write(tensors, 7)
            self.assertEqual((side.wrong(7), side.wrong(8)), (0, len(tensors)))
            words = tensors[0].detach().view(torch.int16).view(-1)
            words[5] ^= 1
            self.assertEqual(side.wrong(7), 1)
            ways.write(tensors, 7)
            a, b = tensors[1:3]  # of one shape
            kept = a.clone()
            a.copy_(b)
            b.copy_(kept)
            self.assertEqual(side.wrong(7), 2)


if __name__ == "__main__":
    unittest.main()
