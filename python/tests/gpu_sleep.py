"""A model that sleeps and wakes on a GPU: captured graphs replay over each next version, and nothing grows.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_sleep.py [GIB] -v

GIB of weights, 16 by default, are unmapped and mapped for the times, which are printed, and not judged. It needs a GPU, PyTorch 2,
and gpufd's programs (GPUFD_BIN, or Go to build them).
"""

import gc
import statistics
import sys
import time

import gpu  # first: it says where the package is
from keepers import Keeper, wait_for

import gpufd

GIB = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 16
WIDTH = 4096  # a layer has 32 MiB
ROUNDS = 1000


class Sleep(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        self.addCleanup(self.clear)
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.socket = keeper.socket
        self.x = self.torch.ones(1, WIDTH, device="cuda", dtype=self.torch.bfloat16)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def module(self, layers):
        torch = self.torch
        with torch.device("meta"):
            return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(layers))).eval()

    def put(self, seed, layers=8):
        """Keep a version of random weights, and return what a module of them answers."""
        torch = self.torch
        m = self.module(layers).to_empty(device="cuda")
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in m.parameters():
                p.copy_(torch.randn(p.shape, device="cuda", dtype=p.dtype) / WIDTH**0.5)
            want = m(self.x).clone()
        gpufd.torch.put("m", m, socket=self.socket)
        del m, p
        self.clear()
        return want

    def capture(self, model):
        """Capture the module in a graph, and return a function that replays it."""
        torch = self.torch
        with torch.no_grad():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                model(self.x)
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(self.x)

        def replay():
            graph.replay()
            return y.clone()

        return replay

    def test_graphs_replay_over_the_next_version(self):
        torch, want = self.torch, self.put(1)
        with gpufd.torch.Model(self.module(8), "m", socket=self.socket) as model:
            replay, addresses = self.capture(model), [p.data_ptr() for p in model.module.parameters()]
            self.assertTrue(torch.equal(replay(), want))
            for seed, asleep in ((2, True), (3, False), (4, True), (5, False)):
                if asleep:
                    model.sleep()
                want = self.put(seed)
                wait_for(lambda: model.superseded, "the news")
                self.assertEqual(model.wake() if asleep else model.swap(), seed)
                self.assertTrue(torch.equal(replay(), want), f"version {seed}")
                self.assertEqual([p.data_ptr() for p in model.module.parameters()], addresses)
            del replay
        gpu.seen("Model", "a graph of PyTorch's over five versions, taken asleep and awake", "each version's result, bit by bit, at the same addresses")

    def test_nothing_grows(self):
        torch, want = self.torch, self.put(1)
        with gpufd.torch.Model(self.module(8), "m", socket=self.socket) as model:
            replay = self.capture(model)

            def once():
                model.sleep()
                model.wake()

            for _ in range(20):
                once()
            before = gpu.vitals()
            for _ in range(ROUNDS):
                once()
            after = gpu.vitals()
            self.assertTrue(torch.equal(replay(), want))
            del replay
        gpu.seen("Model", f"{ROUNDS} times asleep and awake", f"descriptors, maps, device bytes before {before}, after {after}")
        self.assertLessEqual(after[0], before[0] + 2)
        self.assertLessEqual(after[1], before[1] + 32)
        self.assertLessEqual(before[2] - after[2], 8 << 20)

    def test_times(self):
        layers = GIB * 32
        self.put(1, layers)
        with gpufd.torch.Model(self.module(layers), "m", socket=self.socket) as model:
            times = {"sleep": [], "wake": []}
            for _ in range(20):
                for name, taken in times.items():
                    began = time.monotonic()
                    getattr(model, name)()
                    taken.append(1e3 * (time.monotonic() - began))
        told = ", ".join(f"{name} {statistics.median(taken):.1f} ms ({min(taken):.1f} to {max(taken):.1f})" for name, taken in times.items())
        gpu.seen("Model", f"{GIB} GiB of weights, 20 times", told)


if __name__ == "__main__":
    sys.exit(gpu.main())
