"""Tables of strangers: what they cannot mean is FormatError at once, as in Go (internal/safetensors, TestTablesOfStrangers)."""

import json
import os
import tempfile
import time
import unittest
from unittest import mock

import common
import gpufd
from gpufd.share import kept as _kept
from gpufd.keeper import put as _put
from gpufd.keeper import tables as _tables
from gpufd.keeper.version import Attached
from gpufd.wire.records import Offer

VECTORS = common.ROOT / "internal" / "safetensors" / "testdata" / "tables.json"


def offer(data):
    return Offer(2, 1, 1, bytes(16), 4096, 4096, 4096, 1, 0, 1, "x", data=data)


class Tables(unittest.TestCase):
    def parse(self, text):
        """As what a keeper offers beside memory of 16 bytes."""
        data = b'{"name":"x","version":1,"table":{"format":"safetensors","safetensors":' + text.encode() + b"}}"
        return _tables.parse_table(_kept.kept_of(offer(data)).table, 16)

    def test_vectors(self):
        if not VECTORS.exists():
            self.skipTest("there are no sources of gpufd here")
        for v in json.loads(VECTORS.read_text()):
            text = v["table"].replace("SHAPE", ",".join([v.get("number", "")] * v.get("times", 0)))
            begin = time.process_time()
            with self.subTest(v["name"]):
                if v["good"]:
                    self.assertEqual(len(self.parse(text).tensors), text.count('"name"'))
                else:
                    with self.assertRaises(gpufd.FormatError) as caught:
                        self.parse(text)
                    self.assertLess(len(str(caught.exception)), 1000)
                    str(caught.exception).encode()
            self.assertLess(time.process_time() - begin, 20)  # and not hours: a million numbers multiplied

    def test_files(self):
        for bad in ("1e999", "-1", '"1"', "9" * 4000, "1.5", "true", "[]"):
            for member in ("offset", "bytes"):
                entry = json.loads(f'{{"name":"a","offset":0,"bytes":1,"{member}":{bad}}}')
                with self.subTest(f"{member} {bad[:10]}"), self.assertRaises(gpufd.FormatError):
                    _tables.parse_table({"format": "bytes", "files": [entry]}, 10)
        for name in (5, "\ud800", None, ["x"]):
            with self.subTest(name), self.assertRaises(gpufd.FormatError):
                _tables.parse_table({"files": [{"name": name, "offset": 0, "bytes": 1}]}, 10)

    def test_headers_of_files(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "a.safetensors")
            one = '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
            many = one.replace("[4]", "[" + ",".join(["18446744073709551615"] * 300_000) + "]")
            for text in (one.replace("4]}", "5]}"), one.replace("[0,", "[0.0,"), one.replace("[4]", "[1e999]"), one.replace("[4]", f"[{'9' * 4000}]"),
                         one.replace("[4]", f"[{'9' * 5000}]"), one.replace('"a"', '"\\ud800"'), one.replace("U8", "\\udfff"), one.replace("[4]", "[5]"), many):  # fmt: skip
                with open(path, "wb") as f:
                    f.write(len(text).to_bytes(8, "little") + text.encode() + bytes(4))
                with self.subTest(text[:80]), self.assertRaises(gpufd.FormatError) as caught:
                    _put._source(path)
                self.assertTrue(str(caught.exception).startswith(path), caught.exception)

    def test_who_is_named(self):
        """An error says whose table it is."""
        data = json.dumps({"name": "llama", "version": 3, "part": 1, "parts": 2, "table": {"format": "safetensors"}}).encode()
        part = Attached.__new__(Attached)
        part.attachment, part.data = mock.Mock(size=16), _kept.kept_of(offer(data))
        with self.assertRaisesRegex(gpufd.FormatError, "^llama, version 3, part 1: the table of what is kept makes no sense"):
            part.table  # noqa: B018

    def test_offers(self):
        for data in (b'{"name":"\\ud800","version":1}', b'{"name":"x","version":1,"labels":{"a":"\\ud800"}}', b'{"name":"x","version":1e999}',
                     b'{"name":"x","version":' + b"9" * 5000 + b"}", b"[" * 100_000, b"[1]", b"\xff"):  # fmt: skip
            with self.subTest(data[:40]), self.assertRaisesRegex(gpufd.Error, "is not a keeper's"):
                _kept.kept_of(offer(data))

    def test_together(self):
        """Small bytes go together, over holes, and large ones piece by piece: the memory is the same."""
        large = os.urandom(_put.SMALL + 1)
        parts = [(0, b"a" * 10), (256, b"b" * 256), (512, b""), (512, b"c"), (5000, b"d" * 9), (8192, large), (4096, b"e" * 100), (4300, b"f")]
        want, got = bytearray(8192 + len(large)), bytearray(8192 + len(large))
        pieces = list(_put._together((at, memoryview(raw)) for at, raw in parts))
        for at, raw in parts:
            want[at : at + len(raw)] = raw
        for at, raw in pieces:
            got[at : at + len(raw)] = raw
        self.assertEqual(got, want)
        self.assertEqual(len(pieces), 4)


if __name__ == "__main__":
    unittest.main()
