"""The side that sends weights, with PyTorch's tensors on the CPU."""

import unittest
from unittest import mock

import common
import gpufd
from common import PATIENCE
from gpufd.weights import Meta
from test_weights import WeightsTest
from test_weightstorch import model, send_all, setUpModule, torch  # noqa: F401

ELSEWHERE = torch and type("Elsewhere", (torch.Tensor,), {"is_cuda": True})  # as if it was on a GPU


class Sends(WeightsTest):
    by_torch = True

    def test_the_host_waits_for_what_is_not_by_streams(self):
        """A copy from a GPU to the host's memory is there before the bucket is published."""
        pub, sub = self.publisher(), self.subscriber()
        waits = []

        class Watched(ELSEWHERE):
            @classmethod
            def __torch_function__(cls, f, types, args=(), kwargs=None):
                if f is torch.Tensor.copy_:
                    waits.append(not kwargs["non_blocking"])
                return super().__torch_function__(f, types, args, kwargs)

        send_all(pub, 1, {"w": torch.ones(3).as_subclass(Watched), "large": torch.ones(3000).as_subclass(Watched)})
        self.assertEqual((len(waits) > 3, set(waits)), (True, {True}))
        self.assertEqual(dict(sub.next(PATIENCE).tensors())["w"].tolist(), [1, 1, 1])

    def test_a_tensor_whose_shards_are_on_several_gpus(self):
        class DTensor(torch.Tensor):
            def __tensor_flatten__(self):
                raise NotImplementedError

            def full_tensor(self):
                return self.as_subclass(torch.Tensor)

        t = torch.ones(3).as_subclass(DTensor)
        pub, sub = self.publisher({"w": t}), self.subscriber()
        with common.raises(self, gpufd.UsageError, "usage", r"'w' is a DTensor.*full_tensor\(\)"), pub.update(1) as send:
            send("w", t)
        with pub.update(2) as send:
            send("w", t.full_tensor())
        self.assertEqual([t.tolist() for _, t in sub.next(PATIENCE).tensors()], [[1, 1, 1]])

    def test_types_that_tensors_are_not_converted_to(self):
        for dtype in {"F4"} | ({"U32"} if not hasattr(torch, "uint32") else set()):
            with self.subTest(dtype), gpufd.weights.Publisher("other", {"w": Meta(dtype, (2, 4))}) as pub:
                with common.raises(self, gpufd.UsageError, "usage", f"does not convert to {dtype}"), pub.update(1) as send:
                    send("w", torch.ones(2, 4))

    def test_what_is_no_plain_tensor(self):
        """Errors name the tensor, and say what to do."""
        complex64 = torch.ones(2, 2, dtype=torch.complex64)
        pub, plain = self.publisher({"w": Meta(torch.float32, (2, 2))}), torch.ones(2, 2)
        for t, why in (
            (plain.to_sparse(), r"is sparse .*call to_dense\(\)"), (plain.to("meta"), "is on the device meta"), (complex64, "is complex, and F32"),
            (plain.to(torch.complex128), r"is of torch.complex128.*view\(torch.uint8\)"),
        ):  # fmt: skip
            with self.subTest(why), common.raises(self, gpufd.UsageError, "usage", f"tensor 'w' {why}"), pub.update(1) as send:
                send("w", t)
        with common.raises(self, gpufd.UsageError, "usage", "tensor 'w': type 'torch.complex128' is unknown"):
            gpufd.weights.Publisher("other", {"w": plain.to(torch.complex128)})
        with common.raises(self, gpufd.UsageError, "usage", r"tensor 'w' is sparse .*call to_dense\(\)"):
            gpufd.weights.Publisher("other", {"w": plain.to_sparse()})

    def test_what_has_fractions_is_no_integer(self):
        pub = self.publisher({"w": Meta("I8", (2,))})
        with common.raises(self, gpufd.UsageError, "usage", "'w' is of torch.bfloat16, and I8, which the metadata says, has no fractions"), pub.update(1) as send:
            send("w", torch.ones(2, dtype=torch.bfloat16))
        with pub.update(torch.tensor(3)) as send:
            send("w", torch.ones(2, dtype=torch.int64))
        self.assertEqual(pub.step, 3)

    def test_inference_mode(self):
        """Some updates may be sent in it, and others not."""
        pub, sub = self.publisher(buckets=3), self.subscriber(copy=True)
        for step in range(1, 9):
            with torch.inference_mode(step % 2 == 1):
                send_all(pub, step, {"w": torch.full((3,), step), "half": torch.ones(3).half()})
            for name, t in sub.next(PATIENCE).tensors():
                self.assertEqual(t.tolist(), [step if name == "w" else 1] * 3)

    def test_from_step_to_step_tensors_differ(self):
        """In names, types, shapes, number and order: what a bucket had before is not taken for what it has."""
        pub, sub = self.publisher(bucket=1024, buckets=16), self.subscriber(copy=True)
        for step, tensors in enumerate((
            {"a": torch.ones(9), "b": torch.ones(5)}, {"b": torch.ones(5), "a": torch.ones(9)}, {"b": torch.ones(5)}, {"b": torch.ones(5).int(), "a": torch.ones(3, 3)},
            {"b": torch.ones(5).int(), "c": torch.ones(3, 3), "d": torch.ones(300)}, {"b": torch.ones(5).int(), "c": torch.ones(3, 3), "d": torch.ones(301)},
            {"a": torch.ones(9), "b": torch.ones(5)},
        )):  # fmt: skip
            send_all(pub, step, tensors)
            got = dict(sub.next(PATIENCE).tensors())
            self.assertEqual(list(got), list(tensors))
            for name, t in tensors.items():
                self.assertEqual((got[name].dtype, got[name].tolist()), (t.dtype, t.tolist()), (step, name))


class Bind(WeightsTest):
    by_torch = True

    def test_an_exception_in_the_middle(self):
        """The model is what it was, and can be bound again."""
        trained = model(1)
        self.addCleanup(trained.to, "meta")
        state = {name: t.clone() for name, t in trained.state_dict().items()}
        places = {name: t.data_ptr() for name, t in trained.state_dict().items()}
        pub = self.publisher(state, in_place=True)
        for n in range(len(state)):
            with mock.patch.object(gpufd.weights.trained, "bytes_over", self.fails_at(n)), self.assertRaises(KeyboardInterrupt):
                pub.bind(trained)
            self.assertEqual({name: t.data_ptr() for name, t in trained.state_dict().items()}, places)
        with common.raises(self, gpufd.MismatchError, "tensors", "lacks"), pub.update(1):
            pass
        pub.bind(trained)
        with pub.update(2):
            trained[0].weight.data.zero_()
        got = dict(self.subscriber().next(PATIENCE).tensors())
        self.assertEqual((got["0.weight"].sum().item(), got["2.bias"].tolist()), (0, state["2.bias"].tolist()))

    def test_tensors_that_stay(self):
        """The error names those that the trainer still has over the memory."""
        trained = model(1)
        pub = self.publisher(trained.state_dict(), in_place=True)
        pub.bind(trained)
        kept = trained[0].weight.data
        with common.raises(self, gpufd.InUseError, "in-use", "tensors over it are alive: '0.weight': del them, then close again") as caught:
            pub.close()
        self.assertEqual(caught.exception.views, ("'0.weight'",))
        del kept
        caught.exception.__traceback__ = None
        pub.close()

    @staticmethod
    def fails_at(n):
        calls, real = iter(range(n)), gpufd.weights.trained.bytes_over

        def bytes_over(*args):
            if next(calls, None) is None:
                raise KeyboardInterrupt
            return real(*args)

        return bytes_over


if __name__ == "__main__":
    unittest.main()
