"""Frames of any shape: arrays, tensors and pictures through a channel, on the software driver."""

import gc
import json
import os
import threading
import time
import unittest
from fractions import Fraction

import common
import gpufd
from common import PATIENCE
from gpufd import channel
from gpufd.channel import Colour, Format
from gpufd.channel import cursor as c


def need_torch():
    try:
        import torch
    except ImportError:
        common.missing("python", "there is no PyTorch here")
    return torch


class Frames(common.Scene):
    """A writer and a reader of this package."""

    def setUp(self):
        super().setUp()
        self.addCleanup(gc.collect)
        self.w = channel.Writer("cam", socket=self.path, slots=3, slot_size=4096)
        self.addCleanup(self.w.close)
        self.r = channel.Reader("cam", socket=self.path)
        self.addCleanup(lambda: (gc.collect(), self.r.close()))

    def arrives(self, data, **how):
        """Send data, and return the frame, which the test releases."""
        sequence = self.w.send(data, timeout=PATIENCE, **how)
        frame = self.r.next(PATIENCE)
        self.assertEqual(frame.sequence, sequence)
        return frame


class Arrays(Frames):
    def test_bytes_say_nothing(self):
        with self.arrives(b"as today", user=b"own") as frame:
            self.assertEqual((frame.tobytes(), frame.user, frame.size), (b"as today", b"own", 8))
            self.assertEqual((frame.format, frame.format_error, frame.pts), (None, None, None))
            for what in ("array", "planes", "tensor", "tensors"):
                with self.assertRaisesRegex(gpufd.UsageError, r"does not say what frame 1 is; view\(dtype, shape\)"):
                    got = getattr(frame, what)
                    got()

    def test_arrays_of_numpy(self):
        numpy = common.need_numpy()
        for sent in (numpy.arange(12, dtype="f4").reshape(3, 4), numpy.ones((2, 0, 3), "i8"), numpy.float16(2.5), numpy.array([True, False]),
                     numpy.arange(24, dtype="u2").reshape(4, 6)[:, ::2], numpy.arange(6, dtype="c8").reshape(2, 3).T):  # fmt: skip
            with self.subTest(sent=sent), self.arrives(sent) as frame:
                got = numpy.asarray(frame.array())
                self.assertEqual((got.dtype, got.shape, frame.size), (sent.dtype, sent.shape, sent.nbytes))
                self.assertTrue(numpy.array_equal(got, sent))
                self.assertFalse(got.flags.writeable)
                del got

    def test_times_and_the_applications_own(self):
        with self.arrives(memoryview(bytes(8)).cast("d"), pts=3003, time_base=(1, 90_000), user=b"left") as frame:
            self.assertEqual((frame.format.dtype, frame.format.shape, frame.user), ("F64", (1,), b"left"))
            self.assertEqual((frame.pts, frame.format.time_base, frame.format.seconds), (3003, Fraction(1, 90_000), Fraction(3003, 90_000)))
        with self.arrives(b"bytes", pts=-5) as frame:
            self.assertEqual(frame.format, Format(pts=-5))
            with self.assertRaises(gpufd.UsageError):
                frame.array()
        at = time.clock_gettime_ns(time.CLOCK_TAI)
        with self.arrives(b"bytes", format=Format(captured=at, clock=time.CLOCK_TAI), time_base=Fraction(1, 30), pts=1) as frame:
            self.assertEqual((frame.format.captured, frame.format.clock, frame.format.seconds), (at, time.CLOCK_TAI, Fraction(1, 30)))

    def test_bytes_of_a_known_shape(self):
        numpy = common.need_numpy()
        with self.arrives(bytes(range(12)), format=Format("U16", (2, 3))) as frame:
            self.assertEqual(numpy.asarray(frame.array()).tolist(), numpy.frombuffer(bytes(range(12)), "u2").reshape(2, 3).tolist())
            self.assertEqual(frame.array().tobytes(), bytes(range(12)))
        with self.arrives(bytes(range(20)), format=Format("U16", (3, 2), strides=(4, 1))) as frame:  # rows of 8 bytes
            want = bytes([0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19])
            self.assertEqual((frame.array().tobytes(), frame.array().strides), (want, (4, 1)))
            self.assertEqual(numpy.asarray(frame.array()).tobytes(), want)
            self.assertEqual(numpy.array(frame.array().__array_interface__["data"]).nbytes, 20)

    def test_in_place(self):
        numpy = common.need_numpy()
        slot = self.w.acquire(PATIENCE)
        numpy.asarray(slot.view("F32", (2, 2)))[:] = 7
        self.w.publish(slot, format=Format("F32", (2, 2)))
        gc.collect()
        with self.r.next(PATIENCE) as frame:
            self.assertEqual((frame.size, numpy.asarray(frame.array()).tolist()), (16, [[7, 7], [7, 7]]))

    def test_a_frame_is_passed_on(self):
        """What a frame has is an array that send takes, of another channel, too."""
        path = self.path + "2"
        with channel.Writer("next", socket=path, slots=2, slot_size=4096) as w, channel.Reader("next", socket=path) as r:
            with self.arrives(memoryview(bytes(range(12))).cast("B", (3, 4)), pts=2) as frame:
                w.send(frame.array(), pts=frame.pts)
                with r.next(PATIENCE) as passed_on:
                    self.assertEqual((passed_on.format, passed_on.tobytes()), (frame.format, bytes(range(12))))

    def test_what_does_not_fit(self):
        """Nothing is written, and the slot is not taken."""
        numpy = common.need_numpy()
        with self.assertRaisesRegex(gpufd.UsageError, "a slot of 4096 bytes is too small: this frame wants 4100; make the channel with slot_size=4100 or more"):
            self.w.send(numpy.ones(1025, "f4"))
        with self.assertRaisesRegex(gpufd.UsageError, "slot_size=4100 or more"):
            self.w.send(bytes(4100))
        with self.assertRaisesRegex(gpufd.UsageError, "format takes 144 bytes, and 136 of 208 are left beside 72 of the application's own"):
            self.w.send(bytes(4096), user=bytes(72), format=Format.picture("NV12", 16, 16, colour=Colour(1, 1, 1), pts=1, time_base=(1, 2), captured=3))
        self.assertEqual((self.w.last, self.w._acquired), (0, None))
        slot = self.w.acquire(PATIENCE)
        for wrong, says in (({"format": Format("U8", (4097,))}, "slot_size=4097"), ({"size": 3, "format": Format("U8", (4,))}, "a frame of 3 bytes, and the format says 4"),
                            ({"user": bytes(209)}, "209 bytes"), ({"format": "U8"}, "is a gpufd.channel.Format")):  # fmt: skip
            with self.subTest(wrong), self.assertRaisesRegex(gpufd.UsageError, says):
                self.w.publish(slot, **wrong)
        self.w.publish(slot, size=0)
        self.r.next(PATIENCE).release()

    def test_what_is_no_frame(self):
        numpy = common.need_numpy()
        for data, how, says in (
            (object(), {}, "a frame: object is no bytes or array"), ("text", {}, "str"), (numpy.ones(2, ">f4"), {}, ">f4"),
            (numpy.ones(2, "f4"), {"format": Format("F64", (2,))}, r"F32\[2\], and the format says F64\[2\]"), (b"abc", {"format": Format("U8", (4,))}, "says 4"),
            (numpy.ones(2, "f4"), {"format": Format(strides=(2,), shape=(2,))}, "strides"), (b"a", {"time_base": 0}, "time base"), (b"a", {"format": 1}, "Format"),
            (numpy.ma.masked_array([1], [0]), {}, "mask"), (b"a", {"stream": 1}, "software driver"),
        ):  # fmt: skip
            with self.subTest(says), self.assertRaisesRegex(gpufd.UsageError if "stream" not in how else gpufd.UnavailableError, says):
                self.w.send(data, **how)
        self.assertEqual(self.w.last, 0)


class Strided(common.Scene):
    """Arrays with strides, which frameworks take as they are."""

    def test_frameworks_take_them(self):
        numpy = common.need_numpy()
        with gpufd.allocate(4096) as memory:
            memory.write(0, bytes(range(64)))
            array = gpufd.Array(memory, "U16", (3, 2), 2, strides=(4, 1))
            want = numpy.frombuffer(bytes(range(2, 26)), "u2").reshape(3, 4)[:, :2]
            self.assertEqual((array.nbytes, array.span, str(array)), (12, 20, "U16[3, 2] of strides [4, 1] at byte 2"))
            for got in (numpy.asarray(array), numpy.from_dlpack(array), numpy.array(array.copy()), numpy.frombuffer(array.tobytes(), "u2").reshape(3, 2)):
                self.assertEqual(got.tolist(), want.tolist())
            self.assertEqual(numpy.from_dlpack(array).strides, (8, 2))
            self.assertEqual(numpy.asarray(gpufd.Array(memory, "U8", (2, 3), strides=(1, 4))).tolist(), [[0, 4, 8], [1, 5, 9]])
            self.assertEqual(gpufd.Array(memory, "U8", (2, 3), strides=(1, 4)).tobytes(), bytes([0, 4, 8, 1, 5, 9]))
            self.assertIsNone(gpufd.Array(memory, "U8", (2, 1), strides=(1, 99)).strides, "C order, whatever a dimension of one says")
            for shape, strides in (((3, 2), (4,)), ((3,), (-1,)), ((4096,), (2,))):
                self.assertRaises(gpufd.UsageError, gpufd.Array, memory, "U8", shape, strides=strides)
            del got, array
            gc.collect()


class Pictures(Frames):
    def test_planes_with_a_pitch(self):
        numpy = common.need_numpy()
        f = Format.picture("NV12", 6, 4, pitch=8, chroma=40, colour=Colour(1, 1, 1), pts=40, time_base=(1, 25))
        raw = bytes(range(56))
        with self.arrives(raw, format=f) as frame:
            self.assertEqual(frame.format, f)
            y, uv = frame.planes
            whole = numpy.frombuffer(raw, "u1")
            self.assertEqual((y.shape, y.strides, uv.shape, uv.strides), ((4, 6), (8, 1), (2, 3, 2), (8, 2, 1)))
            self.assertEqual(numpy.asarray(y).tolist(), whole[:32].reshape(4, 8)[:, :6].tolist())
            self.assertEqual(numpy.asarray(uv).tolist(), whole[40:56].reshape(2, 8)[:, :6].reshape(2, 3, 2).tolist())
            self.assertEqual(uv.tobytes(), bytes([*range(40, 46), *range(48, 54)]))
            self.assertEqual(y.copy().tobytes(), y.tobytes())
            with self.assertRaisesRegex(gpufd.UsageError, "2 planes"):
                frame.array()
            with self.assertRaisesRegex(gpufd.UsageError, "not contiguous"):
                y.view("U16")
            with self.assertRaisesRegex(gpufd.ExportError, "not contiguous"):
                y.memoryview()
            del y, uv

    def test_p010(self):
        numpy = common.need_numpy()
        f = Format.picture("P010", 4, 2)
        sent = numpy.arange(12, dtype="u2") << 6
        with self.arrives(sent, format=f) as frame:
            y, uv = (numpy.array(p, copy=True) for p in frame.planes)
            self.assertEqual((y.tolist(), uv.tolist()), (sent[:8].reshape(2, 4).tolist(), sent[8:].reshape(1, 2, 2).tolist()))
            self.assertIsNone(frame.planes[0].strides)
        with self.assertRaisesRegex(gpufd.UsageError, "its planes want 24"):
            self.w.send(sent[:11], format=f)

    def test_no_planes(self):
        with self.arrives(b"abcd", format=Format("U8", (4,))) as frame, self.assertRaisesRegex(gpufd.UsageError, "no planes"):
            frame.planes


class Tensors(Frames):
    def test_tensors(self):
        torch = need_torch()
        for sent in (torch.arange(12.0).reshape(3, 4), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor(5), torch.ones(0, 3), torch.ones(3, dtype=torch.bool),
                     torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4).permute(2, 0, 1), torch.nn.Parameter(torch.ones(3))):  # fmt: skip
            with self.subTest(sent=sent), self.arrives(sent, pts=9) as frame:
                got = frame.tensor
                self.assertEqual((got.dtype, got.shape, got.is_contiguous(), frame.pts), (sent.dtype, sent.shape, True, 9))
                self.assertTrue(torch.equal(got, sent))
                self.assertFalse(got.requires_grad)
                del got

    def test_it_is_the_memory(self):
        torch = need_torch()
        slot = self.w.acquire(PATIENCE)
        there = slot.tensor(torch.int32, (2, 3))
        there.copy_(torch.arange(6).reshape(2, 3))
        self.assertEqual(there.data_ptr(), slot.ptr)
        self.assertEqual(slot.tensor().shape, (4096,))
        with self.assertRaisesRegex(gpufd.UsageError, "slot_size=4100"):
            slot.tensor("F32", (5, 205))
        with self.assertRaisesRegex(gpufd.UsageError, "no type"):
            slot.tensor(torch.quint8, 1)
        self.w.publish(slot, format=Format("I32", (2, 3)))
        frame = self.r.next(PATIENCE)
        got = frame.tensor
        self.assertEqual((got.data_ptr(), got.tolist()), (frame.ptr, [[0, 1, 2], [3, 4, 5]]))
        frame.release()
        with self.assertRaisesRegex(gpufd.InUseError, "tensor"):
            self.r.close()
        del got, there
        gc.collect()
        self.r.close()

    def test_strides_are_asked_for(self):
        torch = need_torch()
        sent = torch.arange(6, dtype=torch.int16).reshape(3, 2)
        with self.arrives(sent, format=Format(shape=(3, 2), strides=(4, 1))) as frame:
            got = frame.tensor
            self.assertEqual((frame.size, got.stride(), got.tolist()), (20, (4, 1), sent.tolist()))
            del got

    def test_planes(self):
        torch = need_torch()
        picture = torch.arange(36, dtype=torch.uint8).reshape(6, 6)
        with self.arrives(picture, format=Format.picture("NV12", 6, 4)) as frame:
            y, uv = frame.tensors
            self.assertEqual((y.tolist(), uv.tolist()), (picture[:4].tolist(), picture[4:].reshape(2, 3, 2).tolist()))
            del y, uv

    def test_what_is_more_than_its_elements(self):
        torch = need_torch()
        for sent in (torch.ones(2, 2).to_sparse(), torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2, dtype=torch.complex128)):
            with self.subTest(sent=sent), self.assertRaisesRegex(gpufd.UsageError, "more than its elements"):
                self.w.send(sent)


class Entries(Frames):
    """What lies in an entry, by writers of all kinds."""

    def test_what_an_earlier_frame_left(self):
        """Frames 4 and 5 have the entries of frames 1 and 2, whose fields and own bytes still lie there."""
        old = self.arrives(bytes(8), format=Format("U8", (8,)))
        old.release()
        entry = self.r.shape.entry(1)
        left = self.r._joined.words.load(entry + c.USER)
        self.assertNotEqual(left, 0)
        self.arrives(b"2", user=left.to_bytes(8, "little") * 26).release()
        self.arrives(b"3").release()
        for sequence in (4, 5):
            with self.arrives(b"x") as frame:
                self.assertEqual((frame.sequence, frame.format, frame.format_error), (sequence, None, None))
        self.assertEqual(self.r._joined.words.load(entry + c.USER), left, "it is there still")

    def test_malformed(self):
        """Invariant 2: the frame is there, and its format says why it is none."""
        for v in json.loads((common.ROOT / "channel/testdata/formats.json").read_text())["malformed"]:
            with self.subTest(v["name"]):
                slot = self.w.acquire(PATIENCE)
                slot.write(b"good")
                self.w.publish(slot, size=4)
                frame = self.r.next(PATIENCE)
                raw = bytearray(bytes.fromhex(v["bytes"]))
                raw[4:8] = frame.sequence.to_bytes(4, "little")
                at = self.r.shape.entry(frame._number)
                for i, word in enumerate(c.words_of(bytes(raw[: c.MAX_USER]))):
                    self.r._joined.words.store(at + c.USER + 8 * i, word)
                frame._fields = c.read_fields(self.r._joined.words, at, 0, frame.sequence)
                self.assertIsNone(frame.format)
                common.is_error(self, frame.format_error, gpufd.ChannelError, "cursor")
                for what in (frame.array, lambda: frame.planes, lambda: frame.tensor):
                    common.error_of(self, gpufd.ChannelError, "cursor", what)
                self.assertEqual(frame.tobytes(), b"good")
                frame.release()

    def test_more_than_the_frame_has(self):
        slot = self.w.acquire(PATIENCE)
        self.w.publish(slot, size=4)
        frame = self.r.next(PATIENCE)
        frame._fields = channel.format.pack(channel.format.encode(Format("U8", (5,))), frame.sequence)
        with common.raises(self, gpufd.ChannelError, "cursor", "4 bytes, and the writer says that it is of 5"):
            frame.array()
        frame.release()

    def test_a_copy_of_an_entry(self):
        f = Format.picture("NV12", 16, 16)
        self.arrives(bytes(f.nbytes), format=f, user=b"own").release()
        at = self.r.shape.entry(1)
        raw = b"".join(self.r._joined.words.load(at + i).to_bytes(8, "little") for i in range(0, c.ENTRY_SIZE, 8))
        entry = channel.decode_entry(raw)
        self.assertEqual((entry.format, entry.user, entry.size), (f, b"own", f.nbytes))

    def test_readers_of_other_policies(self):
        for policy, join in (("drop-oldest", "next"), ("latest", "next"), ("drop-newest", "newest")):
            with self.subTest(policy), channel.Reader("cam", socket=self.path, policy=policy, join=join) as other:
                self.arrives(memoryview(b"abcd").cast("i"), pts=4).release()
                with other.next(PATIENCE) as frame:
                    self.assertEqual((frame.format, frame.array().tobytes()), (Format("I32", (1,), pts=4), b"abcd"))

    def test_the_newest_frame_is_given_with_its_format(self):
        self.arrives(memoryview(b"abcd").cast("i")).release()
        with channel.Reader("cam", socket=self.path, join="newest") as other, other.next(PATIENCE) as frame:
            self.assertEqual(frame.format, Format("I32", (1,)))


class WithPrograms(common.Scene):
    def test_a_reader_in_go_skips_them(self):
        """gpufd channel read gets the bytes of frames that say what they are."""
        import subprocess

        with channel.Writer("cam", socket=self.path, slots=3, slot_size=64) as w:
            p = subprocess.Popen([str(common.programs() / "gpufd"), "channel", "read", "cam", "--socket", self.path, "--timeout", "60s"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
            self.addCleanup(lambda: (p.kill(), p.wait(), p.stdout.close(), p.stderr.close()))
            w.await_readers(1, PATIENCE)
            want = b""
            for i in range(9):
                raw = os.urandom(16)
                w.send(raw, format=Format("F32", (2, 2)) if i % 2 else None, pts=i, user=b"u" * i, timeout=PATIENCE)
                want += raw
            closing = threading.Thread(target=w.close)
            closing.start()
            out, err = p.communicate(timeout=PATIENCE)
            closing.join(PATIENCE)
        self.assertEqual((p.returncode, out), (0, want), err.decode())


if __name__ == "__main__":
    unittest.main()
