"""Hot swap of models, and the guard against writes, on a GPU.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_swap.py -v

It needs a GPU, PyTorch, and gpufd's programs (GPUFD_BIN, or Go to build them). In the end it prints
what was seen.
"""

import gc
import queue
import signal
import sys
import threading
import time

import gpu  # first: it says where the package is
from keepers import Keeper, wait_for

import gpufd

SIZE = 4096  # of a square weight
LAYERS = 16


class Swap(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.socket = keeper.socket
        self.addCleanup(self.clear)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def model(self, value=0.0):
        torch = self.torch
        m = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)))
        with torch.no_grad():
            for p in m.parameters():
                p.fill_(value)
        return m.eval()

    def put(self, value):
        m = self.model(value)
        gpufd.torch.put("m", m, socket=self.socket)
        del m
        self.clear()

    def test_a_server_swaps_under_load(self):
        """No batch is of two versions, old memory is free again, and the death of another follower disturbs nobody."""
        torch, newer, end, answers, swaps = self.torch, queue.SimpleQueue(), threading.Event(), [], []
        self.put(1.0)
        other = self.python(
            f"import gpufd.torch\nfor version in gpufd.torch.follow('m', socket={self.socket!r}):\n    print('has', version.version, float(version['0.bias'][0]), flush=True)\n",
            waits_for="has 1",
        )
        m = self.model()
        gpufd.torch.load("m", socket=self.socket).apply(m)

        def serve():
            while not end.is_set():
                while not newer.empty():
                    version, began = newer.get(), time.monotonic()
                    version.swap(m)
                    swaps.append((version.version, time.monotonic() - began))
                    del version
                with torch.inference_mode():
                    answers.append({float(p.flatten()[0]) for p in m.parameters()})
                    m(torch.zeros(1, SIZE, device="cuda", dtype=torch.bfloat16))
                    torch.cuda.synchronize()

        def follow():
            for version in gpufd.torch.follow("m", socket=self.socket):
                newer.put(version)
                if version.version == 4:
                    return
                del version

        threads = [threading.Thread(target=f, daemon=True) for f in (serve, follow)]
        for t in threads:
            t.start()
        free = None
        self.addCleanup(end.set)
        for value in (2.0, 3.0, 4.0):
            self.put(value)
            wait_for(lambda value=value: answers[-1] == {value}, f"version {value}")
            free = free or gpu.vitals()[2]
            if value == 3.0:
                other.send_signal(signal.SIGKILL)
        threads[1].join()
        end.set()
        threads[0].join()
        self.assertTrue(all(len(a) == 1 for a in answers))
        size = LAYERS * SIZE * SIZE * 2
        wait_for(lambda: gpu.vitals()[2] > free - size, "the memory of old versions")
        print(f"{len(answers)} batches; swaps took " + ", ".join(f"{1e3 * s:.1f} ms" for _, s in swaps))

    def test_the_guard_saves_the_context(self):
        torch = self.torch
        self.put(1.0)
        state = gpufd.torch.load("m", socket=self.socket)
        with gpufd.torch.WriteGuard():
            for write in (lambda: state["0.bias"].add_(1), lambda: torch._foreach_mul_([state["0.weight"]], 2), lambda: torch.add(state["0.bias"], 1, out=state["0.bias"])):
                with self.assertRaisesRegex(gpufd.ReadOnlyError, r"would write 0\.(bias|weight), which is kept memory"):
                    write()
        torch.cuda.synchronize()
        self.assertEqual(float(state["0.bias"].sum()), float(SIZE))
        norm = torch.nn.BatchNorm1d(8, device="cuda")
        gpufd.torch.put("norm", norm, socket=self.socket)
        x = torch.ones(4, 8, device="cuda")
        with gpufd.torch.WriteGuard():
            norm.eval()(x)
            with self.assertRaises(gpufd.ReadOnlyError):
                norm.train()(x)
            with self.assertRaisesRegex(gpufd.ReadOnlyError, "running_mean"):
                torch.nn.functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)
            with self.assertRaises(gpufd.ReadOnlyError):
                p = norm.weight
                p.grad = torch.ones_like(p)
                torch.optim.AdamW([p], fused=True).step()
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(gpu.main())
