"""Tables of strangers: what they cannot mean is FormatError at once, as in Go (internal/safetensors, TestTablesOfStrangers)."""

import ctypes
import hashlib
import json
import os
import tempfile
import time
import unittest
from unittest import mock

from keepers import KeeperTest  # first: it says where the package is

import common
import gpufd
from gpufd.share import kept as _kept
from gpufd.keeper import put as _put
from gpufd.keeper import tables as _tables
from gpufd.keeper.version import Attached
from gpufd.wire.records import Offer

VECTORS = common.ROOT / "internal" / "safetensors" / "testdata" / "tables.json"


def offer(data, size=4096):
    return Offer(2, 1, 1, bytes(16), size, 4096, 4096, 1, 0, 1, "x", data=data)


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
        part = Attached(mock.Mock(size=16, generation=1, kept=_kept.kept_of(offer(data))))
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


def table(*tensors, views=()):
    return _tables.Table(4096, [_tables.Tensor(*t) for t in tensors], [_tables.Tensor(*t) for t in views])


class Layouts(unittest.TestCase):
    """The digest of docs/wire.md, "Keeper", and what an error says where two differ."""

    A, B = ("a", "F32", (2, 3), 0, 24), ("é", "BF16", (), 256, 2)
    VIEW = ("Z", "F32", (3, 2), 0, 24, (1, 3))

    def test_vectors(self):
        path = common.ROOT / "keeper" / "testdata" / "layouts.json"
        if not path.exists():
            self.skipTest("there are no sources of gpufd here")
        for v in json.loads(path.read_text())["layouts"]:
            with self.subTest(v["name"]):
                self.assertEqual(_tables.parse_table(v["table"], 1 << 63).layout(), v["layout"])

    def test_the_bytes_of_the_digest(self):
        want = hashlib.sha256(b"Z\0F32\0003,2\0001,3\0000\na\0F32\0002,3\0\0000\n" + "é".encode() + b"\0BF16\0\0\000256\n").hexdigest()[:32]
        for t in (table(self.A, self.B, views=[self.VIEW]), table(self.B, self.A, views=[self.VIEW])):
            self.assertEqual(t.layout(), "gpufd-l1:" + want)
        self.assertEqual(_tables.Table(16).layout(), "")

    def test_the_first_that_differs(self):
        old = table(self.A, self.B, views=[self.VIEW])
        self.assertEqual(_tables.layout_difference(old, table(self.B, self.A, views=[self.VIEW])), "")
        for new, text in (
            (table(self.B, views=[self.VIEW]), "tensor 'a' is only in the old one"),
            (table(self.A, self.B, ("A", "U8", (1,), 512, 1), views=[self.VIEW]), "tensor 'A' is only in the new one"),
            (table(("a", "I32", *self.A[2:]), self.B, views=[self.VIEW]), "tensor 'a' is of I32, and was of F32"),
            (table(("a", "F32", (6,), 0, 24), self.B, views=[self.VIEW]), "tensor 'a' has the shape [6], and had [2, 3]"),
            (table(self.A, self.B, views=[(*self.VIEW[:5], (2, 1))]), "tensor 'Z' has the strides [2, 1], and had [1, 3]"),
            (table(("a", "F32", (2, 3), 512, 24), (*self.B[:3], 0, 2), views=[self.VIEW]), "tensor 'a' is at byte 512, and was at 0"),
            (table(self.A, (*self.B[:3], 0, 2), views=[self.VIEW]), "tensor 'é' is at byte 0, and was at 256"),
        ):
            with self.subTest(text):
                self.assertEqual(_tables.layout_difference(old, new), text)
                self.assertNotEqual(new.layout(), old.layout())

    def test_an_offer_for_an_address(self):
        """Its table decides, and the digest that its writer gives does not."""
        there = table(self.A, self.B)
        there.size = 258

        def check(new, size=4096, layout=there.layout()):
            said = {"name": "x", "version": 2, "layout": layout, "table": json.loads(new.encode())}
            _tables.check_layout(_kept.kept_of(offer(b'{"name": "x", "version": 1}')), there, offer(json.dumps(said).encode(), size=size))

        check(there, layout="gpufd-l1:0")
        check(there, 258)
        for new, size, error, text in (
            (table(self.A, (*self.B[:3], 512, 2)), 4096, gpufd.MismatchError, "version 2 of x has another layout than version 1, .*: tensor 'é' is at byte 512, and was at 256"),
            (there, 257, gpufd.FormatError, "x, version 2, part 0: .*the table is for a buffer of 258 bytes, and this one has 257"),
            (_tables.Table(), 4096, gpufd.MismatchError, "tensor 'a' is only in the old one"),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                check(new, size)

    def test_offers(self):
        for said, want in (({"layout": "gpufd-l1:0"}, "gpufd-l1:0"), ({}, ""), ({"layout": None}, ""), ({"layout": 5}, "")):
            data = json.dumps({"name": "x", "version": 1, **said}).encode()
            self.assertEqual(_kept.kept_of(offer(data)).layout, want)


class Delivered(KeeperTest):
    def test_put_sends_the_layout(self):
        socket, sent = self.keeper().socket, []
        ask = gpufd.Client.ask
        with mock.patch.object(gpufd.Client, "ask", lambda self, m, fds=(): sent.append(m) or ask(self, m, fds)):
            gpufd.put("model", {"w": (ctypes.c_float * 4)(1)}, socket=socket)
            gpufd.put("bytes", b"x", socket=socket)
        layouts = [m.get("layout") for m in sent if m["op"] == "deliver"]
        with gpufd.get("model", socket=socket) as version:
            self.assertEqual(layouts, [version[0].table.layout(), None])


if __name__ == "__main__":
    unittest.main()
