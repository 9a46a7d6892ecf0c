"""gpufd.torch.SharedPool: tensors that a keeper takes without a copy, on the software driver."""

import gc
import pickle
import sys
import threading
import unittest
import weakref
from unittest import mock

from keepers import KeeperTest  # first: it says where the package is

import common

try:
    import torch
except ImportError:
    torch = None

import gpufd

if torch is not None:
    import gpufd.torch
    from gpufd.torch import lending, storages
    from gpufd.torch import pool as pools


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")


def model(seed=1):
    """A model with tied weights, a view and a buffer that is not kept."""
    torch.manual_seed(seed)
    m = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64), torch.nn.Linear(8, 4).half(), torch.nn.BatchNorm1d(4))
    m[1].weight = m[0].weight
    fused = torch.randn(6, 5)
    m.register_buffer("fused", fused)
    m.register_buffer("q", fused[:2])
    m.register_buffer("empty", torch.zeros(0, 3))
    m.register_buffer("temporary", torch.ones(3), persistent=False)
    return m


class Pools(KeeperTest):
    def setUp(self):
        super().setUp()
        self.environ(GPUFD_HANDLE_DIR=self.dir)
        self.addCleanup(self.end)
        self.pool = gpufd.torch.SharedPool()

    def end(self):
        self.pool = None
        gc.collect()

    def placed(self, t):
        return self.pool.place_of(t.data_ptr(), t.numel() * t.element_size()) is not None

    def put(self, m, name="model", **options):
        return gpufd.torch.put(name, m, **options, socket=self.socket)

    def load(self, name="model"):
        return gpufd.torch.load(name, socket=self.socket)

    @property
    def socket(self):
        if not hasattr(self, "_keeper"):
            self._keeper = self.keeper()
        return self._keeper.socket

    # Placing.

    def test_what_is_made_inside_lies_in_the_pool(self):
        outside = torch.ones(3)
        with self.pool:
            inside = {
                "empty": torch.empty(2, 3), "strided": torch.empty_strided((2, 3), (1, 2)), "zeros": torch.zeros(4), "ones": torch.ones(4),
                "full": torch.full((2,), 7.0), "tensor": torch.tensor([1, 2]), "arange": torch.arange(5), "randn": torch.randn(3),
                "like": torch.empty_like(outside), "clone": outside.clone(), "half": outside.half(), "cat": torch.cat([outside, outside]),
                "contiguous": torch.ones(2, 3).t().contiguous(), "parameter": torch.nn.Linear(3, 3).weight,
            }  # fmt: skip
            computed = outside + 1
        with self.pool:
            sparse = torch.eye(3).to_sparse()
            self.assertEqual(sparse.clone().to(torch.float64).to_dense().tolist(), torch.eye(3).tolist())
        for name, t in inside.items():
            self.assertTrue(self.placed(t), name)
            self.assertFalse(t.is_leaf and t.requires_grad and name != "parameter", name)
        for t in (outside, computed, torch.ones(3)):
            self.assertFalse(self.placed(t))
        self.assertEqual(inside["strided"].stride(), (1, 2))
        self.assertEqual(inside["zeros"].tolist(), [0.0] * 4)
        self.assertEqual((inside["tensor"].tolist(), inside["tensor"].dtype), ([1, 2], torch.int64))
        self.assertEqual(inside["half"].dtype, torch.float16)
        self.assertEqual(inside["cat"].tolist(), [1.0] * 6)
        self.assertEqual(self.pool.empty((2, 2), torch.int8).shape, (2, 2))

    def test_autograd_goes_on(self):
        with self.pool:
            m = torch.nn.Linear(4, 2)
            m(torch.ones(3, 4)).sum().backward()
        self.assertEqual(m.weight.grad.shape, (2, 4))
        x = torch.ones(2, requires_grad=True)
        with self.pool:
            y = x.clone()
        (y * 3).sum().backward()
        self.assertEqual(x.grad.tolist(), [3.0, 3.0])

    def test_other_threads_are_left_alone(self):
        made = []
        with self.pool:
            t = threading.Thread(target=lambda: made.append(torch.ones(3)))
            t.start()
            t.join()
        self.assertFalse(self.placed(made[0]))

    def test_threads_that_make_and_free(self):
        """Ranges are given to one tensor at a time."""
        wrong = []

        def work(value):
            for i in range(200):
                with self.pool:
                    some = [torch.full((n,), value) for n in (1, 1000, 70_000)]
                if not all(bool((t == value).all()) for t in some):
                    wrong.append(value)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertLess(self.pool.memory.size, 64 << 20)

    def test_room_comes_back(self):
        with self.pool:
            for _ in range(100):
                torch.zeros(1 << 20, dtype=torch.uint8)
        self.assertLessEqual(self.pool.memory.size, 8 << 20)
        with self.pool:
            large = torch.zeros(20 << 20, dtype=torch.uint8)
        self.assertTrue(self.placed(large))

    def test_a_full_device(self):
        """PyTorch's cache gives back what it does not use, once."""
        full = gpufd.DriverError("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        other = gpufd.DriverError("cuMemCreate", 999, "CUDA_ERROR_UNKNOWN", "unknown")
        for errors, calls in (([full], 2), ([full, full], 2), ([other], 1)):
            made = mock.Mock(side_effect=[*errors, "memory"])
            with mock.patch.object(torch.cuda, "is_initialized", return_value=True), mock.patch.object(torch.cuda, "empty_cache") as emptied:
                if len(errors) < calls:
                    self.assertEqual(storages.with_room(made), "memory")
                else:
                    self.assertRaises(gpufd.DriverError, storages.with_room, made)
            self.assertEqual((made.call_count, emptied.call_count), (calls, calls - 1))

    def test_joined(self):
        self.assertEqual(pools.joined([(4, 2), (0, 4), (8, 1), (6, 1)]), [(0, 7), (8, 1)])

    # Keeping.

    def test_put_copies_nothing(self):
        with self.pool:
            m = model()
        before = {name: (t.data_ptr(), t.clone()) for name, t in m.state_dict().items() if t.numel()}
        with mock.patch.object(gpufd.torch.weights, "_move_block", side_effect=AssertionError("a copy")):
            self.put(m)
        loaded = self.load()
        self.assertEqual(set(loaded), set(m.state_dict()))
        for name, (address, was) in before.items():
            now = m.state_dict()[name]
            self.assertEqual(now.data_ptr(), address, name)
            self.assertTrue(torch.equal(loaded[name], was), name)
        self.assertEqual(loaded["0.weight"].data_ptr(), loaded["1.weight"].data_ptr())
        self.assertEqual(loaded["fused"].data_ptr(), loaded["q"].data_ptr())
        self.assertTrue(self.pool.sealed)
        self.assertEqual(self.pool.memory.access, gpufd.READ_ONLY)
        self.assertIn("as its writer said", self.gpufd("get", "model", "--verify", "--socket", self.socket))

    def test_a_pool_without_a_name(self):
        """put finds it as long as it has tensors. It ends with them."""
        with gpufd.torch.SharedPool():
            m = torch.nn.Linear(4, 4)
        before, pool = m.weight.data_ptr(), weakref.ref(pools.pool_of([(m.weight.data_ptr(), 4)]))
        self.put(m)
        self.assertEqual((m.weight.data_ptr(), pool().sealed), (before, True))
        del m
        gc.collect()
        self.assertIsNone(pool())

    def test_what_is_not_kept_can_be_written_still(self):
        with self.pool:
            m = model()
        self.put(m)
        self.assertFalse(self.placed(m.temporary))
        m.temporary.add_(1)
        self.assertEqual(m.temporary.tolist(), [2.0] * 3)

    def test_the_same_model_has_the_same_digest(self):
        done = []
        for _ in range(2):
            self.pool = gpufd.torch.SharedPool()
            with self.pool:
                torch.full((999,), 1.0 + len(done))  # garbage that differs
                m = model()
            done.append(self.put(m))
        self.assertEqual(done[0].digest, done[1].digest)

    def test_holes_are_zeros(self):
        with self.pool:
            secret = torch.full((4096,), 0x5A, dtype=torch.uint8)
            w = torch.ones(4)
            del secret
        self.put({"w": w})
        with gpufd.get("model", socket=self.socket) as version:
            self.assertNotIn(b"\x5a", version[0].memory.read())

    def test_tensors_from_elsewhere_move_in(self):
        elsewhere = torch.full((3,), 2.0)
        with self.pool:
            w = torch.ones(4)
        state = {"w": w, "elsewhere": elsewhere}
        self.put(state)
        self.assertTrue(self.placed(elsewhere))
        self.assertEqual(self.load()["elsewhere"].tolist(), [2.0] * 3)
        self.assertEqual(self.load()["w"].tolist(), [1.0] * 4)

    def test_a_pool_with_other_tensors_is_left_alone(self):
        with self.pool:
            w, cache = torch.ones(4), torch.zeros(4)
        self.put({"w": w})
        self.assertFalse(self.placed(w))  # it moved, as without a pool
        cache.add_(1)
        self.assertTrue(self.placed(cache))
        self.assertFalse(self.pool.sealed)
        self.assertEqual(self.load()["w"].tolist(), [1.0] * 4)

    def test_what_others_may_write_is_copied(self):
        """Memory of which somebody has a handle that can be written is not what a keeper keeps."""
        lending._lender = lending.Lender()
        with self.pool:
            t = torch.ones(1000)
        handle = gpufd.torch.reduce_tensor(t)
        self.put({"t": t})
        self.assertFalse(self.pool.sealed)
        self.assertFalse(self.placed(t))
        self.assertEqual(gpufd.torch.release(handle), 1)
        lending._lender._server.close(timeout=5)

    def test_room_of_a_put_that_is_refused_comes_back(self):
        with self.pool:
            w = torch.ones(1000)
        x, at = torch.full((1000,), 2.0), w.data_ptr()
        for _ in range(2):
            with self.assertRaises(gpufd.KeeperError):
                self.put({"w": w, "x": x}, expect_version=7)
        self.put({"w": w, "x": x})
        self.assertEqual((self.pool.sealed, w.data_ptr()), (True, at))

    def test_room_that_is_used_again_is_clear(self):
        """Readers see nothing of the tensors that were there before, also between those that are there now."""
        with self.pool:
            old = torch.full((128,), 7, dtype=torch.uint8)
        del old
        gc.collect()
        with self.pool:
            new = [torch.ones(1, dtype=torch.uint8) for _ in range(4)]
        self.put({str(i): t for i, t in enumerate(new)})
        with gpufd.get("model", socket=self.socket) as version:
            self.assertNotIn(7, version[0].memory.read())

    def test_debug_inside_a_pool(self):
        """A guard that is entered inside another mode would be left with that."""
        self.put({"t": torch.ones(4)})
        with self.pool, self.assertRaisesRegex(gpufd.UsageError, "WriteGuard"):
            gpufd.torch.load("model", socket=self.socket, debug=True)
        self.assertFalse(self.placed(torch.ones(4)))

    def test_a_sealed_pool_takes_no_more(self):
        with self.pool:
            w = torch.ones(4)
        self.put({"w": w})
        with self.assertRaisesRegex(gpufd.ClosedError, "another SharedPool"), self.pool:
            pass
        self.put({"w": w}, "again")  # which copies
        self.assertEqual(self.load("again")["w"].tolist(), [1.0] * 4)

    def test_a_put_that_fails_leaves_the_pool(self):
        with self.pool:
            w = torch.ones(4)
        with self.assertRaises(gpufd.KeeperError):
            self.put({"w": w}, expect_version=7)
        with mock.patch.object(gpufd.keeper.deposit.Deposit, "deliver", side_effect=RuntimeError("no")), self.assertRaises(RuntimeError):
            self.put({"w": w})
        self.assertFalse(self.pool.sealed)
        w.add_(1)
        with self.pool:
            self.assertTrue(self.placed(torch.ones(1)))
        self.put({"w": w})
        self.assertTrue(self.pool.sealed)
        self.assertEqual(self.load()["w"].tolist(), [2.0] * 4)

    def test_a_handle_of_a_tensor_in_a_pool_copies_nothing(self):
        lending._lender = lending.Lender()
        with self.pool:
            w = torch.arange(4.0)
        func, args = pickle.loads(pickle.dumps(gpufd.torch.reduce_tensor(w)))
        there = func(*args)
        w.add_(1)
        self.assertEqual(there.tolist(), [1.0, 2.0, 3.0, 4.0])
        del w
        with self.pool:
            others = [torch.zeros(4) for _ in range(20)]  # of which none gets the room that a receiver sees
            others.append(torch.zeros(9 << 20, dtype=torch.uint8))
        self.assertEqual(there.tolist(), [1.0, 2.0, 3.0, 4.0])
        again = gpufd.torch.reduce_tensor(others[-1])  # the memory has grown
        self.assertEqual(again[0](*again[1]).sum().item(), 0)
        del there
        gc.collect()
        gpufd.torch.release()
        lending._lender._server.close(timeout=5)


if __name__ == "__main__":
    unittest.main()
