"""Weights that change every step, with PyTorch on the CPU: tensors of all kinds, conversion, and models in place."""

import gc
import sys
import unittest

import common
import gpufd
from common import PATIENCE, wait_for
from gpufd.errors import suppress
from gpufd.weights import Meta, Publisher, Subscriber
from test_weights import WeightsTest

try:
    import torch
except ImportError:
    torch = None


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")


def send_all(pub, step, tensors):
    with pub.update(step) as send:
        for name, tensor in tensors.items():
            send(name, tensor)


def model(seed):
    torch.manual_seed(seed)
    m = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    m.register_buffer("scale", torch.tensor(float(seed)), persistent=False)
    return m


class Tensors(WeightsTest):
    by_torch = True

    def test_tensors_of_all_kinds(self):
        base = torch.arange(60, dtype=torch.float32)
        tensors = {
            "bf16": torch.randn(5, 7).bfloat16(), "t": base.reshape(6, 10).t(), "strided": base[3::4], "scalar": torch.tensor(7), "bool": base > 30,
            "empty": torch.zeros(0, 3), "expanded": torch.ones(3, 1).expand(3, 4), "parameter": torch.nn.Parameter(torch.randn(3)), "large": torch.randn(40, 60).t(),
        }  # fmt: skip
        pub, sub = self.publisher(buckets=16), self.subscriber()
        send_all(pub, 1, tensors)
        got = {name: t.clone() for name, t in sub.next(PATIENCE).tensors()}
        self.assertEqual(list(got), list(tensors))
        for name, t in tensors.items():
            self.assertEqual((got[name].dtype, got[name].requires_grad), (t.dtype, False), name)
            self.assertTrue(torch.equal(got[name], t.detach()), name)

    def test_conversion(self):
        pub = self.publisher({"w": Meta(torch.bfloat16, (500, 20)), "b": torch.zeros(3, dtype=torch.float16), "n": Meta("F32", (2,))}, buckets=8)
        sub = self.subscriber()
        w, b = torch.randn(20, 500).t(), torch.tensor([1, 2, 3])
        send_all(pub, 1, {"w": w, "b": b, "n": torch.ones(2).numpy().astype("float64")})
        got = {name: t.clone() for name, t in sub.next(PATIENCE).tensors()}
        self.assertTrue(torch.equal(got["w"], w.bfloat16()))
        self.assertTrue(torch.equal(got["b"], b.half()))
        self.assertEqual(got["n"].tolist(), [1, 1])

    def test_what_is_more_than_elements_is_refused(self):
        pub = self.publisher(buckets=8)
        for t in (torch.ones(2, 2).to_sparse(), torch.randn(2, dtype=torch.complex64).conj(), torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)):
            with self.subTest(t.dtype), common.raises(self, gpufd.UsageError, "usage", "more than its elements"), pub.update(1) as send:
                send("w", t)

    def test_tensors_keep_their_buckets(self):
        """Also when a view of a tensor is all that is left."""
        pub, sub = self.publisher(buckets=2), self.subscriber()
        send_all(pub, 1, {"w": torch.full((20,), 1)})
        ((_, w),) = sub.next(PATIENCE).tensors()
        part = w[3:5].view(1, 2)
        del w
        for step in range(2, 6):
            send_all(pub, step, {"w": torch.full((20,), step)})
            for _, w in sub.next(PATIENCE).tensors():
                self.assertEqual(w.tolist(), [step] * 20)
            del w
        self.assertEqual(part.tolist(), [[1, 1]])
        del part
        wait_for(lambda: sub._state.claims.of(sub._state.updates.reader) == 0, "the last bucket")

    def test_a_module_is_loaded(self):
        trained, engine = model(1), model(2)
        pub, sub = self.publisher(trained.state_dict()), self.subscriber(copy=True)
        send_all(pub, 1, trained.state_dict())
        sub.next(PATIENCE).load(lambda pairs: engine.load_state_dict(dict(pairs)))
        x = torch.randn(5, 8)
        self.assertTrue(torch.equal(trained.eval()(x), engine.eval()(x)))

    def test_what_this_torch_lacks_are_arrays(self):
        if hasattr(torch, "uint32"):
            self.skipTest("it has all types of NumPy")
        np = common.need_numpy()
        pub, sub = self.publisher(), self.subscriber()
        send_all(pub, 1, {"w": np.arange(5, dtype=np.uint32), "large": np.arange(2000, dtype=np.uint32)})
        got = {name: a.copy() for name, a in sub.next(PATIENCE).tensors()}
        self.assertEqual({name: a.tobytes() for name, a in got.items()}, {"w": np.arange(5, dtype=np.uint32).tobytes(), "large": np.arange(2000, dtype=np.uint32).tobytes()})


class InPlace(WeightsTest):
    by_torch = True

    def setUp(self):
        super().setUp()
        self.trained, self.engine = model(1), model(2).eval()
        for m in (self.trained, self.engine):  # views of the memory, which is closed before them
            self.addCleanup(m.to, "meta")
        self.x = torch.randn(5, 8)

    def pair(self):
        """Both sides, bound, after update 1."""
        pub = self.publisher(self.trained.state_dict(), in_place=True)
        pub.bind(self.trained)
        with pub.update(1):
            pass
        sub = self.subscriber()
        sub.bind(self.engine, PATIENCE)
        return pub, sub

    @torch.no_grad() if torch else lambda f: f
    def same(self):
        self.assertTrue(torch.equal(self.trained.eval()(self.x), self.engine(self.x)))

    def step(self, pub, step, optimizer):
        self.trained.train()
        optimizer.zero_grad()
        self.trained(self.x).square().sum().backward()
        with pub.update(step):
            optimizer.step()

    def test_a_model_is_trained_where_it_is_used(self):
        parameter = self.trained[0].weight
        optimizer = torch.optim.AdamW(self.trained.parameters(), lr=0.1)
        pub, sub = self.pair()
        self.assertIs(self.trained[0].weight, parameter)
        self.assertEqual((sub.step, pub.subscribers[0].loaded), (1, 1))
        self.same()
        address = self.engine[0].weight.data_ptr()
        for step in range(2, 12):
            before = self.engine[0].weight.clone()
            trains = self.in_thread(self.step, pub, step, optimizer)
            turn = sub.next(PATIENCE)
            self.assertEqual((turn.step, sub.step, repr(turn)), (None, step - 1, f"<gpufd.weights.InPlaceUpdate after step {step - 1}, not loaded>"))
            self.assertTrue(torch.equal(self.engine[0].weight, before), "the trainer wrote while the engine computed")
            turn.load()
            trains()
            pub.await_loaded(PATIENCE)
            self.assertEqual((turn.step, turn.number, sub.step, self.engine[0].weight.data_ptr()), (step, step, step, address))
            self.assertFalse(torch.equal(self.engine[0].weight, before))
            self.same()
            with common.raises(self, gpufd.WeightsError, "over"):
                turn.load()

    def test_buffers_that_are_not_sent_stay(self):
        pub = self.publisher(self.trained.named_parameters(), in_place=True)
        pub.bind(self.trained)
        with pub.update(1):
            pass
        sub, mean = self.subscriber(), self.engine[1].running_mean
        sub.bind(self.engine, PATIENCE)
        self.assertIs(self.engine[1].running_mean, mean)
        self.assertTrue(torch.equal(self.engine[2].weight, self.trained[2].weight))
        self.engine.train()(self.x)  # which writes them

    def test_a_loop_ends_with_the_publisher(self):
        pub, sub = self.pair()
        loop = self.in_thread(lambda: [turn.load() or turn.step for turn in sub])
        optimizer = torch.optim.SGD(self.trained.parameters(), lr=0.1)
        for step in (2, 3, 4):
            self.step(pub, step, optimizer)
            pub.await_loaded(PATIENCE)
        before = self.trained[0].weight.tolist()
        pub.close()
        self.assertEqual(loop(), [2, 3, 4])
        self.assertEqual(self.trained[0].weight.tolist(), before, "the trainer's model has its tensors")
        self.same()  # and the engine's is what it was

    def test_send_instead_of_bind(self):
        pub = self.publisher({"w": Meta("BF16", (3,)), "v": Meta("F32", ())}, in_place=True)
        send_all(pub, 5, {"v": torch.tensor(2.0), "w": torch.arange(3)})
        sub = self.subscriber()
        self.assertEqual({name: t.tolist() for name, t in sub.next(PATIENCE).tensors()}, {"w": [0, 1, 2], "v": 2})
        with common.raises(self, gpufd.MismatchError, "tensors", "lacks.*'w'"), pub.update(6) as send:
            send("v", torch.tensor(3.0))
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            sub.next(0.02)
        self.assertEqual((sub.torn, sub.step), (None, 5))

    def test_the_trainer_raises(self):
        pub, sub = self.pair()

        def fails():
            with self.assertRaises(ZeroDivisionError), pub.update(2):
                self.trained[0].weight.data.zero_()
                1 / 0
            with pub.update(3):
                self.trained[0].weight.data.fill_(1.0)

        fail = self.in_thread(fails)
        with common.raises(self, gpufd.WeightsError, "torn", "step 1 is torn.*given up step 2, which came next") as caught:
            sub.next(PATIENCE).load()
        self.assertEqual((caught.exception.step, sub.torn), (1, 1))
        with common.raises(self, gpufd.WeightsError, "torn", "step 1 is torn.*given up step 2, which came next"):
            sub.step
        sub.next(PATIENCE).load()
        fail()
        self.assertEqual((sub.step, sub.torn), (3, None))
        self.same()

    def test_another_trainer_has_its_memory_at_the_same_address(self):
        pub, sub = self.pair()
        address, parameter = self.engine[0].weight.data_ptr(), self.engine[0].weight
        pub.close()
        with common.raises(self, gpufd.WeightsError, "ended"):
            sub.next(PATIENCE)
        self.same()
        self.trained = model(3)
        pub = self.publisher(self.trained.state_dict(), in_place=True)
        pub.bind(self.trained)
        with pub.update(1):
            pass
        turn = sub.next(PATIENCE)
        self.assertEqual((turn.step, repr(turn)), (None, "<gpufd.weights.InPlaceUpdate of step 1, not loaded>"))
        turn.load()
        self.assertEqual((self.engine[0].weight.data_ptr(), sub.step), (address, 1))
        self.assertIs(self.engine[0].weight, parameter)
        self.same()
        pub.close()
        other = self.publisher({"0.weight": Meta("F32", (16, 8))}, in_place=True)
        send_all(other, 1, {"0.weight": torch.zeros(16, 8)})
        with common.raises(self, gpufd.WeightsError, "layout", "tensor '0.bias' is not there, and was F32 \\[16\\] at byte 512"):
            while True:
                with suppress(gpufd.WeightsError, "ended"):
                    sub.next(PATIENCE).load()
        self.same()

    def test_a_trainer_that_is_killed_while_it_writes(self):
        program = """
import torch
from gpufd.weights import Publisher
from test_weightstorch import model
m = model(1)
pub = Publisher("policy", m.state_dict(), in_place=True)
pub.bind(m)
with pub.update(1): pass
print("there", flush=True)
pub.await_subscribers(1)
with pub.update(2):
    m[0].weight.data.zero_()
    print("writes", flush=True)
    __import__("time").sleep(600)
"""
        trainer = self.python(program, waits_for="there")
        sub = self.subscriber()
        sub.bind(self.engine, PATIENCE)
        self.same()
        load = self.in_thread(sub.next(PATIENCE).load)
        self.assertIn("writes", trainer.stdout.readline())
        trainer.kill()
        trainer.wait()
        with common.raises(self, gpufd.WeightsError, "torn", "step 1"):
            load()
        self.assertEqual(sub.torn, 1)
        pub = self.publisher(self.trained.state_dict(), in_place=True)
        pub.bind(self.trained)
        with pub.update(7):
            pass
        sub.next(PATIENCE).load()
        self.assertEqual((sub.step, sub.torn), (7, None))
        self.same()

    def test_models_that_do_not_fit(self):
        state = self.trained.state_dict()
        for why, metadata in (
            ("is not in the metadata", {k: v for k, v in state.items() if k != "2.bias"}), ("the metadata says F32 \\[1\\]", {**state, "2.bias": torch.zeros(1)}),
            ("the metadata says F16", {**state, "2.bias": torch.zeros(4).half()}),
        ):  # fmt: skip
            with self.subTest(why), Publisher("other", metadata, in_place=True) as pub, common.raises(self, gpufd.MismatchError, "tensors", why):
                pub.bind(self.trained)
        tied = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        tied[1].weight = tied[0].weight
        with Publisher("other", tied.state_dict(), in_place=True) as pub, common.raises(self, gpufd.MismatchError, "tensors", "are one tensor"):
            pub.bind(tied)
        pub = self.publisher({"w": Meta("F32", (3,))}, in_place=True)
        send_all(pub, 1, {"w": torch.zeros(3)})
        sub = self.subscriber()
        with common.raises(self, gpufd.MismatchError, "tensors", "the model has '0.weight', where the trainer has 'w'"):
            sub.bind(self.engine, PATIENCE)
        gc.collect()

    def test_bind_wants_in_place(self):
        with self.publisher() as pub, self.subscriber() as sub:
            for f, kind, reason in ((lambda: pub.bind(self.trained), gpufd.UsageError, "usage"), (lambda: sub.bind(self.engine), gpufd.WeightsError, "in-place")):
                with common.raises(self, kind, reason):
                    f()
        with common.raises(self, gpufd.TimedOutError, "timed-out"):
            Subscriber("nobody", wait=0.01).bind(self.engine)


if __name__ == "__main__":
    unittest.main()
