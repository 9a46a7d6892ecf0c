"""What a frame is: the fields of its format, by the vectors of docs/wire.md and by hand."""

import json
import random
import time
import unittest
from fractions import Fraction

import common
import gpufd
from gpufd.channel import format as wire
from gpufd.channel.format import Colour, Format, Plane

VECTORS = json.loads((common.ROOT / "channel/testdata/formats.json").read_text())


def read(v):
    """The format in a vector's bytes, or None."""
    raw = wire.unpack(bytes.fromhex(v["bytes"]), v["sequence"])
    return wire.decode(raw) if raw else None


def of(fields):
    """The format that a vector's fields name."""
    kinds = {"planes": lambda all: [Plane(*p) for p in all], "colour": lambda c: Colour(*c), "time_base": tuple}
    return Format(**{name: kinds.get(name, lambda v: v)(value) for name, value in fields.items() if name != "nbytes"})


class Vectors(unittest.TestCase):
    def test_what_is_written(self):
        for v in VECTORS["vectors"]:
            with self.subTest(v["name"]):
                fields = wire.encode(of(v["format"]))
                self.assertEqual(wire.pack(fields, v["sequence"]).hex(), v["bytes"])
                self.assertEqual(wire.packed_size(fields), -(-len(v["bytes"]) // 16) * 8)

    def test_what_is_read(self):
        for v in VECTORS["vectors"] + VECTORS["read"]:
            with self.subTest(v["name"]):
                got = read(v)
                self.assertEqual(got, None if v["format"] is None else of(v["format"]))
                self.assertEqual(got and got.nbytes, v["format"] and v["format"].get("nbytes"))

    def test_what_is_malformed(self):
        for v in VECTORS["malformed"]:
            with self.subTest(v["name"]):
                with common.raises(self, gpufd.ChannelError, "cursor") as e:
                    read(v)
                self.assertIn(v["says"], str(e.exception))

    def test_any_bytes_are_read_or_refused(self):
        """Invariant 2: no input from a peer makes a process crash."""
        pick = random.Random(5)
        some = [bytes.fromhex(v["bytes"]) for v in VECTORS["vectors"]]
        refused = 0
        for _ in range(3000):
            raw = bytearray(pick.choice(some))
            for _ in range(pick.randrange(1, 4)):
                raw[pick.randrange(8, len(raw))] = pick.randrange(256)
            try:
                wire.decode(bytes(raw[8:]))
            except gpufd.ChannelError as e:
                common.is_error(self, e, gpufd.ChannelError, "cursor")
                refused += 1
        self.assertGreater(refused, 300)


class Formats(unittest.TestCase):
    def test_a_picture(self):
        nv12 = Format.picture("NV12", 1920, 1080)
        self.assertEqual(nv12.planes, (Plane(0, 1920, 1080, 1920), Plane(1920 * 1080, 1920, 540, 960, 2)))
        self.assertEqual((nv12.dtype, nv12.shape, nv12.nbytes), ("U8", (1080, 1920), 1920 * 1080 * 3 // 2))
        p010 = Format.picture("P010", 64, 4, pitch=256, chroma=2048, colour=Colour(9, 16, 9))
        self.assertEqual((p010.dtype, p010.nbytes, p010.colour.full_range), ("U16", 2048 + 256 + 128, False))
        for pixels, width, height in (("NV21", 4, 4), ("NV12", 3, 4), ("NV12", 4, 0)):
            with self.assertRaises(gpufd.UsageError):
                Format.picture(pixels, width, height)
        with self.assertRaises(gpufd.UsageError):
            Format.picture("NV12", 64, 4, pitch=63)

    def test_times(self):
        self.assertEqual(Format(pts=3000, time_base=(1, 90_000)).seconds, Fraction(1, 30))
        self.assertEqual(Format(pts=3000, time_base=Fraction(2, 180_000)), Format(pts=3000, time_base=(1, 90_000)))
        self.assertEqual(Format(pts=1_000_000).seconds, Fraction(1, 1000))
        self.assertEqual((Format().seconds, Format().clock), (None, time.CLOCK_MONOTONIC))

    def test_what_contradicts_itself(self):
        for parts in ({"dtype": "float32"}, {"shape": (-1,)}, {"shape": (1.5,)}, {"shape": 4}, {"strides": (1,)}, {"time_base": 0}, {"time_base": (1, 0)},
                      {"time_base": (1, 1 << 32)}, {"pixels": "NV1"}, {"pts": 1 << 63}, {"pts": 0.5}, {"clock": -1}, {"colour": Colour(256)},
                      {"planes": (1,)}, {"dtype": "F4", "shape": ()}, {"shape": (2, 2), "strides": (1, 1)}, {"dtype": "U8", "shape": (1 << 31, 1 << 31)}, {"time_base": "soon"}):  # fmt: skip
            with self.subTest(parts), self.assertRaises(gpufd.UsageError):
                Format(**parts)

    def test_what_it_says_of_bytes(self):
        self.assertEqual(Format("F4", (3, 4)).nbytes, 6)
        self.assertEqual(Format("F32", (0, 4), strides=(9, 9)).nbytes, 0)
        self.assertIsNone(Format(shape=(4,)).nbytes)


if __name__ == "__main__":
    unittest.main()
