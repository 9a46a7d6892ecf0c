"""Frames of any shape on a GPU: PyTorch's tensors and CuPy's arrays through a channel.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_frames.py -v

It needs a GPU, PyTorch and CuPy.
"""

import gc
import os
import unittest

import common
import gpufd
from common import PATIENCE
from gpu_channel import library
from gpufd import channel
from gpufd.channel import Colour, Format
from gpufd.memory import libcuda as _driver

SIZE = 1 << 20


class Frames(common.Scene):
    def setUp(self):
        super().setUp()
        if not _driver.has_device():
            common.missing("gpu", "there is no GPU here")
        os.environ["GPUFD_DRIVER"] = "cuda"
        self.torch = library("torch")

    def nothing_left(self):
        """A GPU's driver keeps descriptors from its first use on."""

    def pair(self, **options):
        """A writer and a reader, which end in this order."""
        w = channel.Writer("cam", socket=self.path, slots=4, slot_size=SIZE, **options)
        r = channel.Reader("cam", socket=self.path)
        self.addCleanup(lambda: (gc.collect(), w.close(), r.close()))
        return w, r

    def test_tensors(self):
        torch, (w, r) = self.torch, self.pair()
        picture = torch.arange(3 * 64 * 64, dtype=torch.uint8, device="cuda").reshape(3, 64, 64)
        for sent in (picture, picture.permute(1, 2, 0), picture[:, ::2], picture.to(torch.bfloat16), picture.to(torch.float8_e4m3fn), picture.bool(),
                     torch.tensor(2.5, device="cuda"), torch.ones(0, 3, device="cuda"), picture.cpu(), torch.nn.Parameter(picture.float())):  # fmt: skip
            with self.subTest(dtype=sent.dtype, shape=sent.shape, device=sent.device):
                w.send(sent, pts=7, time_base=(1, 90_000), timeout=PATIENCE)
                with r.next(PATIENCE) as frame:
                    got = frame.tensor
                    self.assertEqual((got.dtype, got.shape, got.is_contiguous(), got.is_cuda, frame.pts), (sent.dtype, sent.shape, True, True, 7))
                    self.assertEqual(got.data_ptr(), frame.ptr if got.numel() else got.data_ptr())
                    self.assertTrue(torch.equal(got.float().cpu(), sent.float().cpu()))
                    del got
        with self.assertRaisesRegex(gpufd.UsageError, "slot_size"):
            w.send(torch.zeros(SIZE + 1, dtype=torch.uint8, device="cuda"))

    def test_a_picture(self):
        torch, (w, r) = self.torch, self.pair()
        f = Format.picture("NV12", 300, 200, pitch=512, colour=Colour(1, 1, 1))
        raw = torch.randint(0, 256, (300, 512), dtype=torch.uint8, device="cuda")
        w.send(raw, format=f, timeout=PATIENCE)
        with r.next(PATIENCE) as frame:
            y, uv = frame.tensors
            self.assertTrue(torch.equal(y, raw[:200, :300]))
            self.assertTrue(torch.equal(uv, raw[200:, :300].reshape(100, 150, 2)))
            self.assertTrue(torch.equal(torch.from_dlpack(frame.planes[0]), y))
            del y, uv

    def test_arrays_of_cupy(self):
        cupy, (w, r) = library("cupy"), self.pair()
        for sent in (cupy.arange(12, dtype="f4").reshape(3, 4), cupy.arange(12, dtype="u2").reshape(3, 4).T):
            w.send(sent, timeout=PATIENCE)
            with r.next(PATIENCE) as frame:
                got = cupy.asarray(frame.array())
                self.assertTrue(bool((got == sent).all()) and got.dtype == sent.dtype)
                self.assertTrue(self.torch.equal(frame.tensor.cpu().float(), self.torch.as_tensor(cupy.asnumpy(sent).astype("f4"))))
                del got

    def test_by_streams(self):
        """All is queued before the streams may go on; nothing of a tensor is used again too early."""
        torch, (w, r) = self.torch, self.pair(streams=True)
        ours, theirs = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(ours):
            model = torch.ones(256, 256, device="cuda") * 2  # loads the kernels
        with torch.cuda.stream(theirs):
            copies = [torch.zeros(256, 256, device="cuda").clone() for _ in range(12)]
        torch.cuda.synchronize()
        frames = []
        for n in range(1, 13):
            with torch.cuda.stream(ours):
                sent = model * n
            w.send(sent, pts=n, stream=ours)
            del sent
            f = r.next_on(theirs)
            with torch.cuda.stream(theirs):
                copies[n - 1].copy_(torch.from_dlpack(f.view("F32", (256, 256))))
            r.release_on(theirs, f)
            frames.append(f)
        theirs.synchronize()
        for n, (f, copy) in enumerate(zip(frames, copies), 1):
            r.check(f)
            self.assertTrue(bool((copy == 2 * n).all()), n)
        self.assertEqual([f.format for f in frames[-4:]], [Format("F32", (256, 256), pts=n) for n in range(9, 13)])

    def test_by_a_stream_to_a_host(self):
        torch, (w, r) = self.torch, self.pair(streams=True)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            sent = torch.full((8, 8), 5, dtype=torch.int16, device="cuda")
        w.send(sent, pts=1, stream=stream)
        with r.next(PATIENCE) as frame:
            self.assertEqual((frame.format, int(frame.tensor.sum())), (Format("I16", (8, 8), pts=1), 320))


if __name__ == "__main__":
    unittest.main()
