"""gpufd.torch.SharedPool on a GPU: models that a keeper takes without a copy.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_pool.py -v

It needs a GPU, PyTorch, and gpufd's programs (GPUFD_BIN, or Go to build them). In the end it prints
a table of what was seen.
"""

import gc
import pickle
import sys
import threading
import time

import gpu  # first: it says where the package is
from keepers import Keeper

import gpufd

SIZE = 4096  # of a square weight


class Pools(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        self.environ(GPUFD_HANDLE_DIR=self.dir)
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.socket = keeper.socket
        self.addCleanup(self.clear)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def model(self, layers=16):
        torch = self.torch
        torch.manual_seed(1)
        m = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(layers)))
        m.register_buffer("temporary", torch.ones(3, device="cuda"), persistent=False)
        return m.eval()

    def put(self, m, name="model"):
        return gpufd.torch.put(name, m, socket=self.socket)

    def test_put_copies_nothing(self):
        torch = self.torch
        x = torch.randn(8, SIZE, device="cuda", dtype=torch.bfloat16)
        took = {}
        for kind in ("pool", "no pool"):
            pool = gpufd.torch.SharedPool()
            if kind == "pool":
                with pool:
                    m = self.model()
            else:
                m = self.model()
            with torch.inference_mode():
                want = m(x)
            addresses = [p.data_ptr() for p in m.parameters()]
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, free, began = torch.cuda.memory_allocated(), gpu.vitals()[2], time.monotonic()
            done = self.put(m, kind.replace(" ", ""))
            took[kind] = time.monotonic() - began
            if kind == "pool":
                self.assertEqual([p.data_ptr() for p in m.parameters()], addresses)
                self.assertLess(free - gpu.vitals()[2], 64 << 20)
                self.assertLess(torch.cuda.max_memory_allocated() - before, 16 << 20)
            with torch.inference_mode():
                self.assertTrue(torch.equal(m(x), want))
            loaded = gpufd.torch.load(kind.replace(" ", ""), socket=self.socket)
            for name, t in m.state_dict().items():
                self.assertTrue(torch.equal(loaded[name], t), name)
            m.temporary.add_(1)  # which is not kept
            torch.cuda.synchronize()
            del loaded, m, pool
            self.clear()
        gpu.seen("SharedPool", f"put of {done.bytes >> 20} MiB", f"{took['pool'] * 1e3:.0f} ms; without a pool {took['no pool'] * 1e3:.0f} ms")

    def test_loaders(self):
        """Models that come from the CPU, from meta and by load_state_dict."""
        torch = self.torch
        ways = {
            "to": lambda: torch.nn.Linear(64, 64).to("cuda"),
            "cuda": lambda: torch.nn.Linear(64, 64).cuda().half(),
            "to_empty": lambda: torch.nn.Linear(64, 64, device="meta").to_empty(device="cuda"),
            "assign": lambda: self.assigned(),
            "default device": lambda: self.with_device(),
        }
        for name, make in ways.items():
            pool = gpufd.torch.SharedPool()
            with self.subTest(name):
                with pool:
                    m = make()
                for p in m.parameters():
                    self.assertIsNotNone(pool.place_of(p.data_ptr(), p.numel() * p.element_size()), name)
                addresses = [p.data_ptr() for p in m.parameters()]
                self.put(m, "way")
                self.assertEqual([p.data_ptr() for p in m.parameters()], addresses)

    def assigned(self):
        m = self.torch.nn.Linear(64, 64, device="meta")
        state = {name: self.torch.ones(t.shape).to("cuda") for name, t in m.state_dict().items()}
        m.load_state_dict(state, assign=True)
        return m

    def with_device(self):
        with self.torch.device("cuda"):
            return self.torch.nn.Linear(64, 64)

    def test_safetensors(self):
        torch = self.torch
        try:
            from safetensors.torch import load_file, save_file
        except ImportError:
            self.skipTest("there is no safetensors")
        path = self.dir + "/w.safetensors"
        save_file({"w": torch.arange(1000.0)}, path)
        with gpufd.torch.SharedPool() as pool:
            state = load_file(path, device="cuda")
        inside = pool.place_of(state["w"].data_ptr(), 4000) is not None
        gpu.seen("SharedPool", "safetensors.torch.load_file(device=cuda)", "lies in the pool" if inside else "lies elsewhere: put moves it")
        self.put(state)
        self.assertEqual(gpufd.torch.load("model", socket=self.socket)["w"].sum().item(), 499500.0)

    def test_a_training_step(self):
        """Optimiser and gradients are as ever."""
        torch = self.torch
        with gpufd.torch.SharedPool():
            m = torch.nn.Linear(64, 64, device="cuda")
        o = torch.optim.AdamW(m.parameters())
        before = m.weight.detach().clone()
        m(torch.ones(4, 64, device="cuda")).sum().backward()
        o.step()
        self.assertFalse(torch.equal(m.weight, before))
        self.put(m)

    def test_room_is_used_again_only_when_work_has_ended(self):
        torch = self.torch
        pool = gpufd.torch.SharedPool(chunk=64 << 20)
        big = torch.randn(4096, 4096, device="cuda")
        side = torch.cuda.Stream()
        for _ in range(5):
            with pool:
                t = torch.zeros(15 << 20, dtype=torch.float32, device="cuda")
            torch.cuda.synchronize()
            out = torch.empty(15 << 20, device="cuda")
            with torch.cuda.stream(side):
                for _ in range(20):
                    big = big @ big * 1e-3
                out.copy_(t)  # long after
            del t
            with pool:
                other = torch.ones(15 << 20, dtype=torch.float32, device="cuda")
            torch.cuda.synchronize()
            self.assertEqual(out.max().item(), 0.0)
            del other
        self.assertLessEqual(pool.memory.size, 128 << 20)

    def test_room_that_pytorch_caches(self):
        torch = self.torch
        free = gpu.vitals()[2]
        t = torch.empty(free * 8 // 10, dtype=torch.uint8, device="cuda")
        del t  # it is PyTorch's still
        with gpufd.torch.SharedPool(chunk=1 << 30) as pool:
            large = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
        self.assertEqual(pool.place_of(large.data_ptr(), large.numel()), 0)
        del large, pool

    def test_graphs(self):
        torch = self.torch
        with gpufd.torch.SharedPool() as pool:
            w = torch.randn(512, 512, device="cuda")
            x = torch.randn(512, 512, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            x @ w
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g), pool:
            y = torch.empty(512, 512, device="cuda")
            torch.mm(x, w, out=y)
        self.assertIsNone(pool.place_of(y.data_ptr(), 4))
        want = x @ w
        self.put({"w": w, "x": x})
        g.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.allclose(y, want, rtol=1e-2, atol=1e-2))

    def test_threads(self):
        """Two threads make and free in the pool, and two without it."""
        torch = self.torch
        pool, wrong, counts = gpufd.torch.SharedPool(chunk=64 << 20), [], [0] * 4
        until = time.monotonic() + 10

        def work(i):
            while time.monotonic() < until:
                if i < 2:
                    with pool:
                        some = [torch.full((n << 16,), float(i), device="cuda") for n in range(1, 8)]
                else:
                    some = [torch.full((n << 16,), float(i), device="cuda") for n in range(1, 8)]
                sum(k * k for k in range(5000))
                if not all(bool((t == i).all()) for t in some):
                    wrong.append(i)
                counts[i] += 1

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self.addCleanup(sys.setswitchinterval, before)
        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertFalse(any(t.is_alive() for t in threads), "a deadlock")
        self.assertEqual(wrong, [])
        gpu.seen("SharedPool", "rounds of four threads in 10 s, two in the pool", f"{counts}; {pool.memory.size >> 20} MiB")

    def test_a_handle_copies_nothing(self):
        torch = self.torch
        with gpufd.torch.SharedPool():
            w = torch.zeros(4, device="cuda")
        func, args = pickle.loads(pickle.dumps(gpufd.torch.reduce_tensor(w)))
        there = func(*args)
        w.add_(1)
        torch.cuda.synchronize()
        self.assertEqual(there.tolist(), [1.0] * 4)
        del there
        gc.collect()
        gpufd.torch.release()


if __name__ == "__main__":
    sys.exit(gpu.main())
