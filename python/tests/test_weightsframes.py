"""Weights: heads, tables and rows of frames, by the vectors of docs/wire.md, and how tensors are placed in buckets."""

import contextlib
import hashlib
import itertools
import json
import random
import threading
import time
import unittest
from unittest import mock

import common
import gpufd
from gpufd.memory.drivers import device_uuid
from gpufd.weights import Subscriber
from gpufd.weights.frames import ALIGN, FIRST, LAST, Assembly, Entry, Head, Packer, Table
from gpufd.weights.meta import Meta, decode_metadata, encode_metadata
from gpufd.weights.publisher import publisher_name

VECTORS = json.loads((common.ROOT / "channel/testdata/weights.json").read_text())


def table_of(frame):
    """The bytes of a frame's table, or None."""
    return bytes.fromhex(frame["table_hex"]) if "table_hex" in frame else frame["table"].encode() if "table" in frame else None


def decoded(frame):
    """The head and the entries of a frame by itself."""
    head = Head.decode(bytes.fromhex(frame["user"]), frame["size"])
    return head, Table.decode(table_of(frame), head).entries if head.tensors else ()


def said(name, meta):
    """A tensor as the vectors say it."""
    of = {"of": {"shape": list(meta.of), "begin": list(meta.begin)}} if meta.of is not None else {}
    return {"name": name, "dtype": meta.dtype, "shape": list(meta.shape), **of}


class Vectors(unittest.TestCase):
    def test_frames(self):
        for v in VECTORS["frames"]:
            with self.subTest(v["name"]):
                head, entries = decoded(v)
                want = v["frame"]
                flags = want["first"] * 1 + want["last"] * 2 + want["given_up"] * 4
                self.assertEqual((head.flags, head.number, head.step, head.bucket), (flags, want["number"], want["step"], want["bucket"]))
                listed = [said(e.name, e.meta) | {"at": e.at, "bytes": e.size} | ({"from": e.begin} if e.begin else {}) for e in entries]
                self.assertEqual(listed, want["tensors"])
                if head.tensors:
                    self.assertEqual(head.table_at, want["at"])
                self.assertEqual(head.encode().hex(), v["user"])

    def test_refused(self):
        for v in VECTORS["refused"]:
            with self.subTest(v["name"]), common.raises(self, gpufd.WeightsError, "malformed"):
                head, entries = decoded(v)
                Assembly().take(head, entries)

    def test_sequences(self):
        for v in VECTORS["sequences"] + VECTORS["described_sequences"]:
            with self.subTest(v["name"]):
                self.assertEqual(outcome(v.get("data", ""), v["frames"]), v["outcome"])

    def test_metadata(self):
        for v in VECTORS["metadata"]:
            with self.subTest(v["name"]):
                tensors, in_place = decode_metadata(v["text"].encode())
                self.assertEqual(tensors and [said(*t) for t in tensors.items()], v.get("tensors") or tensors)
                self.assertEqual((tensors is None, in_place), ("tensors" not in v, v.get("in_place", False)))
                if tensors:
                    self.assertEqual(decode_metadata(encode_metadata(tensors, in_place)), (tensors, in_place))
        for v in VECTORS["refused_metadata"]:
            with self.subTest(v["name"]), common.raises(self, gpufd.WeightsError, "malformed"):
                decode_metadata(v["text"].encode() or b" ")
        self.assertEqual(decode_metadata(encode_metadata(None, False)), (None, False))


def outcome(data, frames):
    """Return what a reader makes of a row of frames, and of the end behind it, in a channel whose offer has that data."""
    assembly, known, found, pieces = Assembly(*decode_metadata(data.encode())), {}, [], {}
    for i, frame in enumerate(frames):
        try:
            head = Head.decode(bytes.fromhex(frame["user"]), frame["size"])
            if not assembly.wants(head):
                tell_torn(assembly, found)
                found.append({"event": "skipped", "frame": i})
                continue
            entries = read(known, frame, head)
            assembly.take(head, entries)
            tell_torn(assembly, found)
            begun = assembly.under_way
            pieces = pieces if head.bucket else {}
            for e in entries:
                pieces.setdefault(e.name, []).append([i, e.at, e.size])
            if assembly.is_over(head):
                tell_torn(assembly, found)
                if head.flags & 2:
                    tensors = [{"name": name, "pieces": there} for name, there in pieces.items()]
                    found.append({"event": "whole", "number": begun.number, "step": begun.step} | ({"tensors": tensors} if tensors else {}))
        except gpufd.WeightsError:
            assembly.end()
            tell_torn(assembly, found)
            return [*found, {"event": "refused", "frame": i}]
    assembly.end()
    tell_torn(assembly, found)
    return found


def read(known, frame, head):
    """The entries of a frame, whose table may be known."""
    if not head.tensors:
        return ()
    table = known.get(head.digest)
    if table:
        table.check(head)
    else:
        table = known[head.digest] = Table.decode(table_of(frame), head)
    return table.entries


def tell_torn(assembly, found):
    if assembly.torn:
        found.append({"event": "torn", "number": assembly.torn.number, "step": assembly.torn.step})
        assembly.torn = None


class Strangers(common.Scene):
    """Publishers that are not this package's, before a Subscriber."""

    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir)
        with gpufd.allocate(1, driver="soft") as memory:
            self.name = publisher_name("policy", device_uuid(memory.driver, memory.ordinal))

    def writer(self, data, **options):
        w = gpufd.channel.Writer(self.name, data=data.encode(), driver="soft", **{"slots": 2, "slot_size": 4096, "any_order": True, **options})
        self.addCleanup(w.close)
        return w

    def refused(self, text):
        return common.raises(self, gpufd.WeightsError, "malformed", text)

    def test_channels(self):
        """A subscriber refuses them, leaves them, and takes the one behind them."""
        one, in_place = '{"tensors":[]}', '{"tensors":[],"in_place":true}'
        for data, options, text in ((one, {"any_order": False}, "any order"), (in_place, {}, "2 slots"), ("{", {}, "metadata")):
            with self.subTest(text):
                w = self.writer(data, **options)
                with self.refused(text):
                    Subscriber("policy")
                common.wait_for(lambda: not w.readers, "the end of the reader")
                w.close()
        with contextlib.closing(self.writer(in_place, slots=1)), Subscriber("policy") as sub:
            self.assertEqual(sub.metadata, {})

    def test_frames(self):
        """Frames that the offer does not describe are refused."""
        for v in VECTORS["described_sequences"]:
            with self.subTest(v["name"]):
                in_place = "in_place" in v["data"]
                w = self.writer(v["data"], slots=1 if in_place else 2)
                with contextlib.closing(w), Subscriber("policy") as sub:
                    w.await_readers(1, common.PATIENCE)
                    self.assertEqual(self.events(w, sub, v["frames"]), [e["event"] for e in v["outcome"] if e["event"] != "torn"])

    def test_many_quotes_in_a_string(self):
        """Nesting is counted in linear time."""
        data = '{"x":"' + '\\"' * (1 << 19) + '","tensors":[]}'
        begin = time.process_time()
        self.assertEqual(decode_metadata(data.encode()), ({}, False))
        with self.refused("more than 64 lists and objects"):
            decode_metadata(data.replace("[]", "[" * 65 + "]" * 65).encode())
        with self.refused("metadata"):
            decode_metadata(data[:-20].encode())
        self.assertLess(time.process_time() - begin, common.PATIENCE / 6)

    def test_a_type_without_arrays(self):
        """It is refused before anything was given out."""
        meta, packer = Meta("F6_E2M3", (4,)), Packer(4096)
        packer.begin()
        packer.whole("w", meta)
        at, table = packer.table()
        w = self.writer("")
        with contextlib.closing(w), Subscriber("policy") as sub:
            slot = w.acquire(common.PATIENCE)
            slot.write(table, at)
            slot.publish(size=at + len(table), user=Head(FIRST | LAST, 1, 1, 0, 1, at, len(table), hashlib.sha256(table).digest()).encode())
            with common.raises(self, gpufd.WeightsError, "torn", "tensor 'w' has the type F6_E2M3, for which there are no arrays"):
                sub.next(common.PATIENCE).load(list)
            self.assertIsNone(sub.torn)

    def events(self, w, sub, frames):
        """Return which updates are whole when the frames are loaded, and whether loading refuses one."""
        found, sent = [], threading.Thread(target=self.send, args=(w, frames))
        sent.start()
        self.addCleanup(sent.join)
        try:
            for update in sub:
                try:
                    update.load(list)
                    found.append("whole")
                except gpufd.WeightsError as e:  # torn, for whatever reason
                    if isinstance(e.__cause__, gpufd.WeightsError):
                        raise e.__cause__
        except gpufd.WeightsError as e:
            common.is_error(self, e, gpufd.WeightsError, "malformed")
            found.append("refused")
        return found

    @staticmethod
    def send(w, frames):
        """Write frames, and end, unless the reader leaves."""
        for frame in frames:
            slot = w.acquire(common.PATIENCE)
            if table := table_of(frame):
                slot.write(table, frame["size"] - len(table))
            slot.publish(size=frame["size"], user=bytes.fromhex(frame["user"]))
        w.close()


class Metas(unittest.TestCase):
    def test_what_a_tensor_is(self):
        m = Meta("BF16", (2, 8), of=(8, 8), begin=(6, 0))
        self.assertEqual((m.size, m), (32, Meta("BF16", [2, 8], [8, 8], [6, 0])))
        self.assertNotEqual(m, Meta("BF16", (2, 8)))
        self.assertEqual(Meta("F4", (3, 2)).size, 3)
        for what in (("F31", (1,)), ("U8", (-1,)), ("U8", ("x",)), ("U8", 3), ("F4", (3,)), ("U8", (1 << 62, 1 << 62)), ("U8", (2,), (4,)),
                     ("U8", (2,), (4,), (3,)), ("U8", (2,), (4, 4), (0, 0)), (None, (1,))):  # fmt: skip
            with self.subTest(what), common.raises(self, gpufd.UsageError, "usage"):
                Meta(*what)


class Packing(unittest.TestCase):
    """A publisher's buckets: what is placed there is read as that, whatever the sizes."""

    def test_random_tensors_in_random_buckets(self):
        for seed in range(300):
            r = random.Random(seed)
            size = r.choice((600, 1024, 4096, 65536))
            tensors = [(f"t{i}" + "x" * r.randrange(40), Meta("U8", (r.choice((0, 1, 255, 256, 257, r.randrange(3 * size))),))) for i in range(r.randrange(1, 12))]
            with self.subTest(seed):
                self.assertEqual(unpacked(packed(size, tensors), size), {name: meta.size for name, meta in tensors})

    def test_what_a_packer_had_before(self):
        """It packs what a new one packs, whatever has changed."""
        r, packers = random.Random(1), [Packer(1500) for _ in range(100)]
        tensors = [(f"w{i}", Meta("U8", (r.randrange(2000),))) for i in range(30)]
        for round in range(200):
            self.assertEqual(packed(1500, tensors, packers), packed(1500, tensors))
            i, j = sorted(r.sample(range(30), 2))
            tensors[i], tensors[j] = tensors[j], tensors[i]
            if round % 2:
                tensors[j] = (f"v{round}", Meta(r.choice(("U8", "I8")), tensors[j][1].shape))
            if round % 20 == 0:
                packed(1500, tensors[:i], packers)  # an update that was given up

    def test_what_is_as_it_was_is_not_encoded(self):
        p, tensors = Packer(4096), [(f"w{i}", Meta("U8", (i,))) for i in range(9)]
        entries, (at, table) = [p.whole(*t) for t in tensors], p.table()
        p.begin()
        with mock.patch.object(Entry, "encode", side_effect=AssertionError):
            self.assertEqual([p.whole(*t) for t in tensors], entries)
            self.assertIs(p.table()[1], table)

    def test_a_bucket_without_room(self):
        self.assertIsNone(Packer(256).piece("w" * 300, Meta("U8", (1000,)), 0))
        self.assertIsNone(Packer(256).whole("w", Meta("U8", (250,))))


def packed(size, tensors, packers=()):
    """The buckets, as publishers fill them: with the packers of the update before, if they are given."""
    for p in packers:
        p.begin()
    more = itertools.chain(packers, iter(lambda: Packer(size), None))
    buckets = [next(more)]
    for name, meta in tensors:
        begin = 0
        while True:
            p = buckets[-1]
            e = p.whole(name, meta) if not begin else None
            if not e and (begin or not Packer(size).whole(name, meta)):
                e = p.piece(name, meta, begin)
            if not e:
                assert p.count, "an empty bucket has room"
                buckets.append(next(more))
                continue
            begin = e.begin + e.size
            if e.ends:
                break
    return [p.table() for p in buckets]


def unpacked(buckets, size):
    """The bytes of each tensor, as readers find them."""
    assembly, found = Assembly(), {}
    for i, (at, table) in enumerate(buckets):
        assert at + len(table) <= size, (at, len(table), size)
        flags = (i == 0) * 1 + (i == len(buckets) - 1) * 2
        count = len(json.loads(table)["tensors"]) if table else 0
        head = Head.decode(Head(flags, 1, 0, i, count, at, len(table), hashlib.sha256(table).digest()).encode(), at + len(table))
        assert assembly.wants(head)
        entries = Table.decode(table, head).entries if table else ()
        assembly.take(head, entries)
        for e in entries:
            assert e.at % ALIGN == 0
            found[e.name] = found.get(e.name, 0) + e.size
        assert assembly.is_over(head) == (i == len(buckets) - 1)
    return found


if __name__ == "__main__":
    unittest.main()
