"""put, get and Client against the Go program, and what needs no keeper: messages, digests, tables."""

import ctypes
import json
import os
import socket
import struct
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from keepers import ROOT, KeeperTest, wait_for  # first: it says where the package is

import common
import gpufd
from gpufd.share import attach as _attach
from gpufd.keeper import control as _control
from gpufd.memory import digest as _digest
from gpufd.keeper import safetensors as _safetensors
from gpufd.memory import soft as _soft
from gpufd.keeper import tables as _tables
from gpufd.errors import LostError, WireError
from gpufd.keeper import deposit as _deposit
from gpufd.keeper import client as keeper
from gpufd.keeper import Client, KeeperError



class Digests(unittest.TestCase):
    def vectors(self):
        for v in json.loads((ROOT / "kernels/digest/testdata/digests.json").read_text())["vectors"]:
            seed, data = v["seed"], bytearray()
            for _ in range(v["bytes"]):
                seed = (seed * 1664525 + 1013904223) % 2**32
                data.append(seed >> 24)
            yield bytes(data), "gpufd-d1:" + v["digest"]

    def test_vectors_with_and_without_numpy(self):
        for without in (False, True):
            with mock.patch.object(_digest, "_numpy", None) if without else mock.patch.object(_digest, "_numpy", ()):
                for data, want in self.vectors():
                    self.assertEqual(_digest.digest_of(data), want, len(data))
                    parts = _digest.Digester()
                    cut = len(data) // 3 // 8 * 8
                    parts.add(cut, data[cut:])
                    parts.add(0, data[:cut])
                    self.assertEqual(parts.digest(), want, len(data))

    def test_long_data_at_any_word(self):
        data = bytes(range(256)) * 3000 + b"end"
        with mock.patch.object(_digest, "_numpy", None):
            plain = _digest.digest_of(data)
        for cut in (8, 16, 300_000 // 8 * 8):
            d = _digest.Digester()
            d.add(0, data[:cut])
            d.add(cut, memoryview(data)[cut:])
            self.assertEqual(d.digest(), plain)
        self.assertNotEqual(_digest.digest_of(data[:-1] + b"D"), plain)
        self.assertRaises(ValueError, _digest.Digester().add, 4, data)

    def test_the_kernel_is_that_of_the_go_module(self):
        here = (ROOT / "python/gpufd/memory/digest.ptx").read_bytes()
        self.assertEqual(here, (ROOT / "kernels/digest/digest.ptx").read_bytes())


class Messages(unittest.TestCase):
    def setUp(self):
        self.vectors = json.loads((ROOT / "keeper/testdata/vectors.json").read_text())

    def decode(self, records):
        d = _control.Decoder()
        for r in records[:-1]:
            self.assertIsNone(d.add(r.encode()))
        return d.add(records[-1].encode())

    def test_vectors(self):
        for v in self.vectors["vectors"]:
            (record,) = _control.encode(v["message"])
            self.assertEqual(record, v["records"][0].encode(), v["name"])
            self.assertEqual(self.decode(v["records"]), v["message"], v["name"])

    def test_foreign(self):
        for v in self.vectors["foreign"]:
            self.assertEqual({k: x for k, x in self.decode(v["records"]).items() if k in v["message"]}, v["message"], v["name"])

    def test_invalid(self):
        of_members = ("an operation that is a number", "fewer bytes than none")  # which replies do not have
        for v in self.vectors["invalid"]:
            if v["name"] not in of_members:
                with self.assertRaises(WireError, msg=v["name"]):
                    self.decode(v["records"])

    def test_long_messages(self):
        message = {"op": "stat", "name": "ä" * 100_000}
        records = _control.encode(message)
        self.assertEqual([r[0] for r in records], [0, 0, 0, 1])
        d = _control.Decoder()
        self.assertEqual([d.add(r) for r in records], [None, None, None, message])
        with self.assertRaises(gpufd.UsageError):
            _control.encode({"op": "x" * (4 << 20)})
        with self.assertRaises(WireError):
            short = _control.Decoder(10)
            short.add(b"\x00" + b" " * 6)
            short.add(b"\x00" + b" " * 6)

    def test_requests_are_those_of_the_vectors(self):
        """What Client sends, as the vectors have it."""
        want = {v["name"]: v["message"] for v in self.vectors["vectors"] if v["kind"] == "request"}
        sent = []
        with Client("nowhere") as c, mock.patch.object(Client, "_ask", lambda self, m, deadline, fds=(): sent.append(m) or {"ticket": "t7", "names": [{}], "status": {}, "moved": {"version": 3, "bytes": 1}}):
            device = "GPU-3dd3b600-af7c-175b-2eda-f76bb8e67a83"
            c.status()
            c.list()
            c.stat("llama")
            c.book("llama", 100000, device, "cuda", labels={"revision": "main"}, expect=1, lifetime=30)
            c.book("llama", 100000, device, "cuda", part=1, parts=2, transaction="t7")
            b = c.book("llama", 1, device, "soft", transaction="put-1", expect=0)
            b.lifetime = 30
            b.renew()
            b.cancel()
            c.remove("llama")
            c.remove("llama", 3)
            c.drain("llama")
            c.drain_device(device)
            c.report("llama", 3, 1, "damaged", "its digest is another")
            c.park("llama")
            self.assertEqual(c.unpark("llama", 3), gpufd.keeper.Moved(3, 1, 0.0, 0.0))
        names = ["status", "list", "stat", "book", "book part 1 of 2", "book, if there is no version", "renew", "cancel", "remove", "remove a version", "drain", "drain a device", "report", "park", "unpark a version"]
        self.assertEqual(sent, [want[n] for n in names])


class Tables(unittest.TestCase):
    def setUp(self):
        self.path = f"/tmp/gpufd-{os.getpid()}.safetensors"
        self.addCleanup(lambda: os.path.exists(self.path) and os.remove(self.path))

    def header(self, text, data=b"\0" * 4):
        with open(self.path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text.encode() + data)
        return _safetensors.read_header(self.path)

    def test_hostile_headers(self):
        one = '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
        self.assertEqual(self.header(one)[0][0].shape, (4,))
        for text in ("", "[]", "{", one[:-1], one + "{}", one.replace("U8", "u8"), one.replace("[4]", "[-4]"), one.replace("[4]", "[4.0]"),
                     one.replace("[4]", "4"), one.replace("[0,4]", "[0]"), one.replace("[0,4]", "[4,0]"), one.replace("[0,4]", "[1,5]"),
                     one.replace("[0,4]", "[0,3]").replace("[4]", "[3]"), one.replace("U8", "U16"), one.replace("U8", "F4").replace("[4]", "[7]"), one.replace('"dtype":"U8",', ""),
                     '{"a":1}', '{"__metadata__":{"a":1}}', one[:-1] + "," + one[1:], '{"a":' * 5000, one.replace("[4]", "[true]")):  # fmt: skip
            with self.assertRaises(gpufd.FormatError, msg=text[:60]):
                self.header(text)

    def test_tables_of_strangers(self):
        good = {"name": "a", "dtype": "F32", "shape": [2, 2], "offset": 0, "bytes": 16}
        whole = lambda *t, **views: {"format": "safetensors", "safetensors": {"tensors": list(t), "size": 16}, **views}  # noqa: E731
        self.assertEqual(_tables.parse_table(whole(good), 16).tensors[0].shape, (2, 2))
        view = {**good, "name": "b", "stride": [1, 2]}
        self.assertEqual(_tables.parse_table(whole(good, views=[view]), 16).views[0].stride, (1, 2))
        self.assertEqual([t.name for t in _tables.parse_table(whole(good, views=[view], order=[1, 0]), 16).in_order()], ["b", "a"])
        for bad in (whole({**good, "bytes": 12}), whole({**good, "offset": 4}), whole({**good, "dtype": "X"}), whole(good, good),
                    whole(good, views=[{**view, "stride": [4, 2]}]), whole(good, views=[{**view, "stride": [-1, 2]}]),
                    whole(good, order=[1]), whole(good, views=[view], order=[0, 0]), whole(good, order=["x"]), whole(good, order=1),
                    whole({**good, "dtype": "F4", "shape": [7], "bytes": 4}),
                    whole({**good, "shape": None}), whole(1), {"format": "safetensors"}, [1], "x", {"files": [1]}):  # fmt: skip
            with self.assertRaises(gpufd.FormatError, msg=bad):
                _tables.parse_table(bad, 16)


class Keeping(KeeperTest):
    def client(self, k):
        c = Client(k.socket)
        self.addCleanup(c.close)
        return c

    def test_bytes_files_and_arrays(self):
        k = self.keeper()
        done = gpufd.put("bytes", b"hello" * 1000, socket=k.socket, labels={"revision": "main"})
        self.assertEqual((done.version, done.missing, done.bytes), (1, 0, 5000))
        out = os.path.join(self.directory, "out")
        self.gpufd("get", "bytes", "--verify", "--label", "revision=main", "-o", out, "--socket", k.socket)
        self.assertEqual(Path(out).read_bytes(), b"hello" * 1000)

        array = (ctypes.c_float * 6)(*range(6))
        with Client(k.socket) as client:
            self.assertEqual(gpufd.put("bytes", array, socket=client, expect_version=1).version, 2)
            with self.assertRaisesRegex(KeeperError, "expected version 1") as raised:
                gpufd.put("bytes", b"x", socket=client, expect_version=1)
            self.assertEqual(raised.exception.reason, "conflict")
            self.assertEqual([n.name for n in client.list()], ["bytes"])
            self.assertEqual(client.stat("bytes").reserved_bytes, 0)
        with gpufd.get("bytes", socket=k.socket) as version:
            version.verify()
            self.assertEqual(bytes(version[0].memory.read()), bytes(array))
            self.assertEqual(version[0].table.tensors, [_tables.Tensor("array", "F32", (6,), 0, 24)])

    @unittest.skipIf(os.environ.get("GPUFD_SOFT_VERSION"), "an old driver is wanted, and memory of NUMA nodes came with CUDA 12.2")
    def test_park_and_unpark(self):
        k = self.keeper("keeper", "--park-pool", "4MiB")
        c = self.client(k)
        gpufd.put("bytes", b"hello" * 1000, socket=k.socket)

        def parked():
            try:
                return c.park("bytes")
            except KeeperError as e:  # the pool is being made, or a reader has not been heard
                self.assertIn(e.reason, ("no-room", "conflict"))
                return None

        done = wait_for(parked, "the pool")
        self.assertEqual((done.version, done.bytes), (1, 5000))
        self.assertIn("version 1, 4.9 KiB in", repr(done))
        (info,), pool = c.list(), c.status().pool
        self.assertEqual((info.parts[0].parked, info.parked_bytes, pool), (True, 5000, gpufd.keeper.Pool(4 << 20, 4 << 20, 2 << 20, "")))
        self.assertEqual((repr(pool), repr(info.parts[0])[-9:]), ("<gpufd.keeper.Pool 2 MiB of 4 MiB free>", ", parked>"))
        self.assertEqual(c.park("bytes", 1).bytes, 0)
        with gpufd.get("bytes", socket=k.socket) as version:
            version.verify()
            with self.assertRaisesRegex(KeeperError, "in use by 1 process") as raised:
                c.park("bytes")
            self.assertEqual(raised.exception.reason, "conflict")
            self.assertEqual([h.detached for h in c.stat("bytes").holders], [False])
            version.detach()
            self.assertEqual(wait_for(parked, "the word of its reader").bytes, 5000)
            (holder,) = c.stat("bytes").holders
            self.assertTrue(holder.detached)
            self.assertIn(", detached>", repr(holder))
            version.reattach()
        self.assertEqual(wait_for(parked, "the end of its reader").bytes, 5000)
        self.assertEqual(c.unpark("bytes", 1).bytes, 5000)
        with self.assertRaisesRegex(KeeperError, "version 2 was asked for"):
            c.unpark("bytes", 2)

    def test_safetensors_both_ways(self):
        k = self.keeper()
        source, there, back = (os.path.join(self.directory, n) for n in ("a.safetensors", "b.safetensors", "c"))
        tensors = [_tables.Tensor("x", "F16", (3,), 0, 6), _tables.Tensor("y", "F32", (2, 1), 6, 8), _tables.Tensor("none", "U8", (0,), 14, 0)]
        header, order = _tables.header_of(tensors, {"format": "pt"})
        with open(source, "wb") as f:
            f.write(header + b"".join(bytes([i + 1]) * t.bytes for i, t in enumerate(order)))
        self.gpufd("put", "go", source, "--socket", k.socket)
        by_go = self.client(k).stat("go").parts[0]
        by_python = gpufd.put("python", source, socket=k.socket)
        self.assertEqual((by_python.digest, by_python.bytes), (by_go.digest, by_go.bytes))
        self.gpufd("get", "python", "--verify", "-o", there, "--socket", k.socket)
        with gpufd.get("go", socket=k.socket) as version:
            version.verify()
            paths = version.save(back)
        self.assertEqual([os.path.basename(p) for p in paths], ["part-0.safetensors"])
        self.assertEqual(Path(there).read_bytes(), Path(paths[0]).read_bytes())
        self.assertEqual(_safetensors.read_header(there)[1], {"format": "pt"})

    def test_parts_and_transactions(self):
        k = self.keeper()
        first = gpufd.put("model", b"zero", socket=k.socket, part=0, parts=2, transaction="boot")
        self.assertEqual((first.version, first.missing), (0, 1))
        with common.raises(self, gpufd.NotFoundError, "not-found"):
            gpufd.get("model", socket=k.socket)
        second = gpufd.put("model", b"one", socket=k.socket, part=1, parts=2, transaction="boot", device=1)
        self.assertEqual((second.version, second.missing), (1, 0))
        with gpufd.get("model", socket=k.socket) as version:
            self.assertEqual([p.memory.read() for p in version], [b"zero", b"one"])
            self.assertEqual([p.memory.ordinal for p in version], [0, 1])
        with gpufd.get("model", socket=k.socket, part=1) as version:
            self.assertEqual(len(version), 1)
        self.assertRaises(gpufd.UsageError, gpufd.put, "model", b"x", socket=k.socket, parts=2)
        self.assertRaises(gpufd.UsageError, gpufd.put, "model", b"", socket=k.socket)

    def test_labels_are_demanded(self):
        k = self.keeper()
        gpufd.put("model", b"x", socket=k.socket, labels={"revision": "main"})
        gpufd.get("model", socket=k.socket, labels={"revision": "main"}).close()
        common.error_of(self, gpufd.MismatchError, "labels", gpufd.get, "model", socket=k.socket, labels={"revision": "old"})

    def test_damage_is_found_and_reported(self):
        k = self.keeper()
        gpufd.put("model", bytes(100), socket=k.socket)
        with gpufd.get("model", socket=k.socket, access=gpufd.READ_WRITE) as version:
            version[0].memory.write(50, b"!")
            with self.assertRaisesRegex(KeeperError, "serves it no more") as raised:
                version.verify()
            self.assertEqual(raised.exception.reason, "damaged")
        with self.assertRaises(KeeperError) as raised:
            gpufd.get("model", socket=k.socket)
        self.assertEqual(raised.exception.reason, "damaged")

    def put_parts(self, k, *parts):
        """A version of so many parts."""
        transaction = f"of {parts}" if len(parts) > 1 else ""
        for i, data in enumerate(parts):
            gpufd.put("model", data, socket=k.socket, part=i, parts=len(parts), transaction=transaction)

    def test_a_name_with_parts_is_not_waited_for(self):
        k = self.keeper()
        self.put_parts(k, b"a", b"b")
        for call in (lambda: gpufd.attach("model", socket=k.socket), lambda: next(gpufd.follow("model", socket=k.socket, within=60.0))):
            with common.raises(self, gpufd.NotFoundError, "parts", "model has parts model/0, model/1"):
                call()
        for att in gpufd.follow("model", socket=k.socket, part=1, within=60.0):
            self.assertEqual(att.memory.read(), b"b")
            break
        self.assertRaises(gpufd.TimedOutError, next, gpufd.follow("model/2", socket=k.socket, within=0.05))

    def test_get_while_a_version_of_other_parts_is_committed(self):
        """It is of the next version, whose parts have other names, and not refused."""
        k, attach = self.keeper(), _attach._attach
        for before, now, after in (((b"a", b"b"), "model/1", (b"c",)), ((b"a", b"b", b"c"), "model/2", (b"d", b"e")), ((b"a", b"b"), "model/0", (b"c",)),
                                   ((b"a",), "model", (b"b", b"c"))):  # fmt: skip
            self.put_parts(k, *before)
            due = [after]

            def late(options):
                if due and options.name == now:
                    self.put_parts(k, *due.pop())
                return attach(options)

            with self.subTest(now, parts=len(after)), mock.patch.object(_attach, "_attach", late), gpufd.get("model", socket=k.socket) as version:
                self.assertEqual([p.memory.read() for p in version], list(after))
                self.assertFalse(due)

    def test_a_part_that_is_refused(self):
        """One that stays refused is an error, with its reason."""
        k = self.keeper()
        self.put_parts(k, b"a", b"b")
        with Client(k.socket) as client:
            client.report("model", 1, 1, "damaged", "the test says so")
        with self.assertRaisesRegex(KeeperError, "part 1 of version 1 of model is damaged") as raised:
            gpufd.get("model", socket=k.socket)
        self.assertEqual(raised.exception.reason, "damaged")

    def test_the_part_that_cannot_be_mapped_is_reported(self):
        """By its number and version, also when another version is current by then."""
        k, after = self.keeper(), []
        take = _soft.SoftMemory.take

        def liar(offer, *args):
            if b'"part":1' in offer.data:
                for data in after:
                    self.put_parts(k, *data)
                raise gpufd.MismatchError("no such memory", reason="descriptor")
            return take(offer, *args)

        self.put_parts(k, b"a", b"b")
        with mock.patch.object(_soft.SoftMemory, "take", liar), Client(k.socket) as client:
            self.assertRaisesRegex(gpufd.MismatchError, "no such memory", gpufd.get, "model", socket=k.socket)
            parts = client.stat("model").parts
            self.assertEqual([(p.state, p.reason) for p in parts], [("ok", ""), ("quarantined", "no such memory")])
            self.put_parts(k, b"a", b"b")
            after.append((b"c", b"d"))
            common.error_of(self, gpufd.MismatchError, "descriptor", gpufd.get, "model", socket=k.socket)
            self.assertEqual([p.state for p in client.stat("model").parts], ["ok", "ok"])

    def test_devices(self):
        """A device by its ordinal, as PyTorch says it, or by the UUID that the keeper says."""
        k = self.keeper()
        gpufd.put("model", b"x", socket=k.socket, device="cuda:1")
        with Client(k.socket) as client:
            uuid = client.stat("model").parts[0].device
            gpufd.put("model", b"y", socket=k.socket, device=uuid)
            self.assertEqual(client.stat("model").parts[0].device, uuid)
            for device in (1, "cuda:1", uuid):
                with gpufd.get("model", socket=k.socket, device=device) as version:
                    self.assertEqual(version[0].attachment.device, 1)
                client.drain_device(device)
                self.assertEqual(client.stat("model").state, "draining")
                client.drain_device(device, on=False)
            common.error_of(self, gpufd.MismatchError, "device", gpufd.get, "model", socket=k.socket, device="cuda:0")
            for device in (None, "gpu1"):
                self.assertRaises(gpufd.UsageError, client.drain_device, device)

    def test_drained_and_removed(self):
        k = self.keeper()
        gpufd.put("model", b"x", socket=k.socket)
        with Client(k.socket) as client:
            client.drain("model")
            with self.assertRaises(KeeperError) as raised:
                gpufd.get("model", socket=k.socket)
            self.assertEqual(raised.exception.reason, "draining")
            client.drain("model", on=False)
            gpufd.get("model", socket=k.socket).close()
            client.remove("model")
            # It is listed as removed until the keeper has noticed that the reader left.
            wait_for(lambda: client.find("model") is None, "the removed model to be gone")

    def test_watch(self):
        k = self.keeper()
        with Client(k.socket) as client:
            events = client.watch("model")
            first = []
            reader = threading.Thread(target=lambda: first.append(next(events)))
            reader.start()
            while not first:  # whichever put the watch has heard of
                gpufd.put("model", b"x", socket=client)
                time.sleep(0.01)
            reader.join()
            self.assertEqual((first[0].name, first[0].event), ("model", "committed"))

    def test_a_put_goes_on_with_the_next_keeper(self):
        k = self.keeper()
        original, killed = keeper.Booking.prepare, []

        def prepare(booking, *args):
            original(booking, *args)
            if not killed:
                killed.append(k.kill())
                self.keeper()

        with mock.patch.object(keeper.Booking, "prepare", prepare):
            self.assertEqual(gpufd.put("model", b"still here", socket=k.socket).version, 1)
        self.assertTrue(killed)
        with gpufd.get("model", socket=k.socket) as version:
            self.assertEqual(version[0].memory.read(), b"still here")

    def test_a_delivery_whose_answer_is_lost(self):
        """The version is committed: put says so, with the next keeper, and nothing can write it."""
        k = self.keeper()
        ask, deliveries = Client.ask, []

        def deaf(client, message, fds=()):
            reply = ask(client, message, fds)
            if message["op"] == "deliver":
                deliveries.append(reply)
                client._lose()
                if killing:
                    k.kill()
                    self.keeper()
                raise gpufd.LostError("killed") if killing else gpufd.TimedOutError("late")
            return reply

        for killing in (True, False):
            with self.subTest(killing=killing), self.client(k) as client, mock.patch.object(Client, "ask", deaf):
                deposit = _deposit.Deposit(client, "model", 10)
                deposit.grow(10)
                if killing:
                    self.assertEqual(deposit.deliver().version, 1)
                else:
                    with self.assertRaises(gpufd.TimedOutError):
                        deposit.deliver()
                    self.assertEqual(client.stat("model").version, 2)
                deposit.abandon()
                self.assertEqual(deposit.memory.access, gpufd.READ_ONLY)
                deposit.close()
        self.assertEqual(len(deliveries), 2)

    def test_a_delivery_that_is_refused(self):
        """The memory is the writer's again, also where it has to ask over another connection."""
        k = self.keeper()
        with self.client(k) as client:
            deposit = _deposit.Deposit(client, "model", 10)
            deposit.prepare(b"")
            self.assertEqual(deposit.memory.access, gpufd.READ_ONLY)
            client._lose()
            deposit.abandon()
            self.assertEqual(deposit.memory.access, gpufd.READ_WRITE)
            deposit.close()
            self.assertIsNone(client.find("model"))

    def test_no_room_names_who_has_it(self):
        with mock.patch.dict(os.environ, {"GPUFD_SOFT_MEMORY": "64MiB"}):
            k = self.keeper()
            gpufd.put("large", bytes(1000), socket=k.socket)
            full = OSError(28, "No space left on device")
            with mock.patch.object(_deposit, "allocate", side_effect=full), self.assertRaisesRegex(KeeperError, "large has 1000 bytes there") as raised:
                gpufd.put("more", bytes(1000), socket=k.socket, timeout=0.5)
            self.assertEqual(raised.exception.reason, "no-room")
            self.assertIsNone(self.client(k).find("more"))

    def test_no_room_names_three(self):
        k = self.keeper()
        for i in range(5):
            gpufd.put(f"n{i}", bytes(1000 + i), socket=k.socket)
        full = OSError(28, "No space left on device")
        with mock.patch.object(_deposit, "allocate", side_effect=full), self.assertRaises(KeeperError) as raised:
            gpufd.put("more", bytes(1000), socket=k.socket, timeout=0.5)
        text = raised.exception.message
        self.assertRegex(text, "n4 has 1004 .*n3 has 1003 .*n2 has 1002 .*; and 2 more, with 2001 bytes")
        self.assertIn("in use by 0 processes", text)

    def test_what_never_fits_fails_at_once(self):
        with mock.patch.dict(os.environ, {"GPUFD_SOFT_MEMORY": "4MiB"}):
            k = self.keeper()
            never = "wants 5242880 bytes of device 0, which has 4194304: it can never fit"
            with mock.patch.object(_deposit, "allocate", side_effect=AssertionError), self.assertRaisesRegex(KeeperError, never) as raised:
                gpufd.put("large", bytes(5 << 20), socket=k.socket, timeout=3600)
            self.assertEqual(raised.exception.reason, "too-large")
            self.assertIsNone(self.client(k).find("large"))
            gpufd.put("small", bytes(1000), socket=k.socket)

    def test_a_failed_put_leaves_nothing(self):
        k = self.keeper()
        with mock.patch.object(_deposit, "memory_digest", side_effect=RuntimeError("no digest")), self.assertRaises(RuntimeError):
            gpufd.put("model", b"x", socket=k.socket)
        self.assertIsNone(self.client(k).find("model"))

    def test_nobody_there(self):
        path = os.path.join(self.directory, "nobody")
        with common.raises(self, gpufd.LostError, "nobody-listens", "no keeper at"):
            gpufd.put("model", b"x", socket=path)

    def test_a_keeper_that_talks_nonsense(self):
        path = os.path.join(self.directory, "liar")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path + ".ctl")
            listener.listen()
            for answer in (b"\x05", b"\x01[]", b'\x01{"status":1}', b'\x01{"status":{"pid":"x"}}', b'\x01{"names":[1]}'):
                with Client(path, timeout=10) as client:
                    asking = threading.Thread(target=self._answer, args=(listener, answer))
                    asking.start()
                    with self.assertRaises(WireError, msg=answer):
                        client.stat("x") if b"names" in answer else client.status()
                    asking.join()
            with Client(path, timeout=0.2) as client, self.assertRaises(gpufd.TimedOutError):
                client.status()

    def _answer(self, listener, answer):
        conn, _ = listener.accept()
        conn.recv(1 << 16)
        conn.send(answer)
        conn.close()

    def test_a_client_after_close_and_fork(self):
        k = self.keeper()
        client = Client(k.socket)
        client.status()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if client.status().pid == k.process.pid else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(client.status().pid, k.process.pid)
        client.close()
        client.close()
        self.assertRaises(gpufd.ClosedError, client.status)


class Lost(unittest.TestCase):
    def test_errors_survive_pickling(self):
        import pickle

        e = pickle.loads(pickle.dumps(KeeperError("quota", "too much", [{"pid": 1}])))
        self.assertEqual((e.reason, e.message, e.holders), ("quota", "too much", ({"pid": 1},)))
        self.assertIsInstance(e, gpufd.Error)
        self.assertTrue(issubclass(LostError, gpufd.Error))
        self.assertIs(wait_for(lambda: e, "it"), e)

    def test_strangers_words_are_escaped(self):
        """A keeper of another user, or a file's name, does not steer the terminal that shows an error."""
        evil = "\x1b]0;pwned\x07\u009b31m\u202e\r\nfake: all is well \U000e0041\udc9b \u00fcbung \u65e5\u00a0\U0001f642"
        want = r"\x1b]0;pwned\x07\u009b31m\u202e\x0d\x0afake: all is well \U000e0041\udc9b " + "\u00fcbung \u65e5\u00a0\U0001f642"
        for e in (KeeperError("quota", evil), gpufd.FormatError(evil), LostError(evil), gpufd.RefusedError(evil)):
            self.assertIn(want, str(e))
            self.assertEqual([c for c in str(e) if not c.isprintable()], ["\u00a0"])


if __name__ == "__main__":
    unittest.main()
