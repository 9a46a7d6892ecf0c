"""What a version holds by name, metadata, the part of a device, progress, the log, reprs."""

import ctypes
import errno
import json
import logging
import os
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

from keepers import KeeperTest, program  # first: it says where the package is

import common
import gpufd
from gpufd import progress as _progress
from gpufd.keeper import deposit as _deposit
from gpufd.keeper import get as _get
from gpufd.keeper import put as _put
from gpufd.keeper import tables as _tables
from gpufd.keeper.types import info_of
from gpufd.objects import called, human


def floats(*values):
    return (ctypes.c_float * len(values))(*values)


class Kept(KeeperTest):
    """A keeper, and what puts there and gets."""

    def setUp(self):
        super().setUp()
        self.socket = self.keeper().socket

    def get(self, name="model", **options):
        version = gpufd.get(name, socket=self.socket, **options)
        self.addCleanup(version.close)
        return version

    def put_parts(self, *states, name="model", devices=(), metadata=()):
        for i, state in enumerate(states):
            gpufd.put(name, state, socket=self.socket, part=i, parts=len(states), transaction="t", device=devices[i] if devices else 0,
                      metadata=metadata[i] if metadata else None)  # fmt: skip

    def put_table(self, *tensors, size=64, **views):
        """Keep size bytes, 0, 1, 2…, with a table that is written here."""
        table = _tables.Table(size, [_tables.Tensor(*t) for t in tensors], **views)
        with gpufd.Client(self.socket) as client:
            deposit = _deposit.Deposit(client, "model", size)
            try:
                deposit.grow(size).write(0, bytes(range(size)))
                deposit.deliver(table.encode())
            finally:
                deposit.close()


class ByName(Kept):
    def test_one_part(self):
        gpufd.put("model", {"w": floats(1, 2, 3), "none": (ctypes.c_int * 0)(), "b": (ctypes.c_uint8 * 2)(7, 8)}, socket=self.socket)
        version = self.get()
        w = version["w"]
        self.assertEqual((w.dtype.name, w.shape, w.tobytes()), ("F32", (3,), bytes(floats(1, 2, 3))))
        self.assertEqual(list(version.arrays()), ["w", "none", "b"])
        self.assertEqual([a.nbytes for a in version.arrays().values()], [12, 0, 2])
        self.assertTrue("w" in version and "x" not in version and version[0] in version)
        self.assertEqual((list(version[0]), "b" in version[0], version[0]["b"].tobytes()), (["w", "none", "b"], True, b"\x07\x08"))
        for where in (version, version[0]):
            with self.assertRaisesRegex(KeyError, "no tensor 'x' in model, version 1"):
                where["x"]
        self.assertIs(version[0], version[-1])
        self.assertRaises(IndexError, lambda: version[1])

    def test_arrays_are_merged_over_parts(self):
        self.put_parts({"a": floats(1), "b": floats(2)}, {"c": floats(3)})
        version = self.get()
        self.assertEqual({name: a.tobytes() for name, a in version.arrays().items()}, {n: bytes(floats(i)) for i, n in enumerate("abc", 1)})
        self.assertEqual((version["c"].memory, len(version), [p.data.part for p in version]), (version[1].memory, 2, [0, 1]))
        self.assertEqual(list(self.get(part=1).arrays()), ["c"])

    def test_a_name_in_two_parts(self):
        """As shards of one tensor have it: the part says which."""
        self.put_parts({"w": floats(1), "a": floats(0)}, {"b": floats(0)}, {"w": floats(2)})
        version = self.get()
        for use in (lambda: version["w"], version.arrays, version.tensors if "torch" in sys.modules else version.arrays):
            with common.raises(self, gpufd.FormatError, "format", r"'w' is in parts 0 and 2: ask one of them, such as version\[0\]\['w'\]"):
                use()
        self.assertIn("w", version)
        self.assertEqual((version["a"].shape, version[2]["w"].tobytes(), list(version[2].arrays())), ((1,), bytes(floats(2)), ["w"]))

    def test_what_cannot_be_an_array_raises_alone(self):
        self.put_table(("w", "F32", (2,), 0, 8), ("six", "F6_E2M3", (4,), 8, 3), ("odd", "F32", (1,), 13, 4), ("half", "F4", (2, 1), 17, 1),
                       views=[_tables.Tensor("t", "U8", (2, 2), 20, 4, (1, 2)), _tables.Tensor("tied", "F32", (1,), 4, 4), _tables.Tensor("pairs", "F4", (2, 2), 24, 2, (1, 2))])  # fmt: skip
        version = self.get()
        arrays = version.arrays()
        self.assertEqual(list(arrays), ["w", "t", "tied"])
        self.assertEqual((arrays["t"].strides, arrays["t"].tobytes()), ((1, 2), bytes([20, 22, 21, 23])))
        self.assertEqual(arrays["tied"].tobytes(), bytes([4, 5, 6, 7]))
        self.assertEqual(sorted(arrays.lacking), ["half", "odd", "pairs", "six"])
        for name, says in (("six", "no type 'F6_E2M3'"), ("odd", "multiple of 4"), ("half", "multiple of 2"), ("pairs", "strides")):
            for where in (version, version[0], arrays):
                with common.raises(self, gpufd.UnavailableError, "unavailable", f"'{name}'.*{says}"):
                    where[name]
            with self.assertRaises(gpufd.UnavailableError):
                arrays.get(name)
            self.assertIn(name, version)
        self.assertIsNone(arrays.get("x"))
        self.assertRaises(KeyError, lambda: arrays["x"])

    def test_a_closed_version_is_not_verified(self):
        gpufd.put("b", b"x" * 100, socket=self.socket)
        version = gpufd.get("b", socket=self.socket)
        version.close()
        for call in (version.verify, lambda: version.save(self.dir + "/out")):
            with self.assertRaises(gpufd.ClosedError):
                call()

    def test_bytes_have_no_names(self):
        gpufd.put("model", b"hello", socket=self.socket)
        version = self.get()
        self.assertNotIn("hello", version)
        for use in (version.arrays, version[0].arrays):
            with common.raises(self, gpufd.FormatError, "format", "holds no tensors but bytes"):
                use()

    def test_arrays_keep_the_lease(self):
        gpufd.put("model", {"w": floats(5)}, socket=self.socket)
        with gpufd.get("model", socket=self.socket) as version, gpufd.Client(self.socket) as client:
            array = version["w"]
            version.take()
            common.wait_for(lambda: len(client.stat("model").holders) == 1, "the lease, which goes on")
            self.assertEqual(array.tobytes(), bytes(floats(5)))
            for use in (lambda: version["w"], lambda: "w" in version, version.arrays, version.tensors, lambda: version.metadata):
                common.error_of(self, gpufd.ClosedError, "closed", use)
            del array
            common.wait_for(lambda: not client.stat("model").holders, "the end of the lease")

    def test_a_newer_version(self):
        gpufd.put("model", {"w": floats(5)}, socket=self.socket)
        version = self.get()
        self.assertEqual((version.superseded, version.wait_superseded(0.01)), (False, False))
        timer = threading.Timer(0.05, gpufd.put, ("model", {"w": floats(6)}), {"socket": self.socket})
        timer.start()
        self.assertTrue(version.wait_superseded(common.PATIENCE))
        timer.join()
        self.assertEqual((version.superseded, version["w"].tobytes(), self.get()["w"].tobytes()), (True, bytes(floats(5)), bytes(floats(6))))

    def test_tensors_without_pytorch(self):
        gpufd.put("model", {"w": floats(5)}, socket=self.socket)
        version = self.get()
        with mock.patch.dict(sys.modules, {"torch": None}):
            for m in [m for m in sys.modules if m.startswith("gpufd.torch")]:
                del sys.modules[m]
            for use in (version.tensors, version[0].tensors):
                with common.raises(self, gpufd.UnavailableError, "unavailable", "wants PyTorch"):
                    use()


class Metadata(Kept):
    def test_metadata(self):
        path = os.path.join(self.dir, "a.safetensors")
        header, _ = _tables.header_of([_tables.Tensor("x", "U8", (3,), 0, 3)], {"format": "pt"})
        with open(path, "wb") as f:
            f.write(header + b"abc")
        for name, data, there in (("arrays", {"w": floats(1)}, {}), ("bytes", b"hello", {}), ("file", __file__, {}), ("tensors", path, {"format": "pt"})):
            with self.subTest(name):
                gpufd.put(name, data, socket=self.socket, metadata={"step": "100", "ü": ""} | there)
                version = self.get(name)
                self.assertEqual((version.metadata, version[0].metadata), ({"step": "100", "ü": ""} | there,) * 2)
                out = os.path.join(self.dir, "out")
                self.gpufd("get", name, "-o", out, "--socket", self.socket)  # the Go program reads it still
                version[0].save(out + "2")
                with open(out, "rb") as go, open(out + "2", "rb") as ours:
                    self.assertEqual(go.read(), ours.read())
        gpufd.put("plain", {"w": floats(1)}, socket=self.socket)
        self.assertEqual(self.get("plain").metadata, {})
        with common.raises(self, gpufd.UsageError, "usage", "'format' is 'tf', and the files say 'pt'"):
            gpufd.put("tensors", path, socket=self.socket, metadata={"format": "tf"})
        for wrong in ({"step": 3}, {3: "x"}, "step", {"x": "\ud800"}):
            common.error_of(self, gpufd.UsageError, "usage", gpufd.put, "x", b"x", socket=self.socket, metadata=wrong)

    def test_metadata_of_parts(self):
        self.put_parts({"a": floats(1)}, {"b": floats(2)}, metadata=[{"k": "v", "a": "1"}, {"k": "v", "b": "2"}])
        self.assertEqual(self.get().metadata, {"k": "v", "a": "1", "b": "2"})
        self.put_parts({"a": floats(1)}, {"b": floats(2)}, name="other", metadata=[{"rank": "0"}, {"rank": "1"}])
        version = self.get("other")
        with common.raises(self, gpufd.FormatError, "format", "two values for the metadata 'rank'"):
            version.metadata
        self.assertEqual([part.metadata["rank"] for part in version], ["0", "1"])

    def test_metadata_of_strangers(self):
        for bad in ({"a": 1}, {"a": None}, ["a"], "a"):
            with self.assertRaises(gpufd.FormatError, msg=bad):
                _tables.parse_table({"format": "bytes", "metadata": bad}, 4)


class Here(KeeperTest):
    """The part of a device, by its UUID."""

    def setUp(self):
        super().setUp()
        self.environ(GPUFD_SOFT_DEVICES="3", CUDA_VISIBLE_DEVICES="0,1,2")
        self.socket = self.keeper().socket

    def put(self, *devices):
        for i, device in enumerate(devices):
            gpufd.put("model", {"w": floats(i)}, socket=self.socket, part=i, parts=len(devices), transaction="t", device=device)

    def part(self, **options):
        with gpufd.get("model", socket=self.socket, part="here", **options) as version:
            return len(version), version[0].data.part, version[0].memory.ordinal, version["w"].tobytes()

    def test_which(self):
        self.put(1, 0)
        self.assertEqual(self.part(), (1, 1, 0, bytes(floats(1))))
        self.assertEqual(self.part(device="cuda:1"), (1, 0, 1, bytes(floats(0))))
        with gpufd.Client(self.socket) as client:
            uuid = client.stat("model").parts[0].device
        self.assertEqual(self.part(device=uuid)[1], 0)
        self.environ(CUDA_VISIBLE_DEVICES="1,0")  # the same devices by other numbers
        self.assertEqual(self.part(), (1, 0, 0, bytes(floats(0))))
        self.assertEqual(self.part(device=1)[1], 1)

    def test_one_part(self):
        gpufd.put("model", {"w": floats(4)}, socket=self.socket, device=2)
        self.assertEqual(self.part(device=2), (1, 0, 2, bytes(floats(4))))

    def test_none_or_several(self):
        common.error_of(self, gpufd.NotFoundError, "not-found", self.part)
        self.put(1, 0, 1)
        with common.raises(self, gpufd.MismatchError, "device", "no part of model, version 1, is on device 2, GPU-.*: part 0 is on GPU-.*, part 1 .*, part 2"):
            self.part(device=2)
        with common.raises(self, gpufd.UsageError, "usage", "2 parts of model, version 1, are on device 1, GPU-.*: say which of 0, 2"):
            self.part(device=1)
        self.assertEqual(self.part(device=0)[1], 1)
        with gpufd.Client(self.socket) as client:
            client.drain("model")
        common.error_of(self, gpufd.KeeperError, "draining", self.part)
        with common.raises(self, gpufd.UsageError, "usage", 'a number, or "here", not \'there\''):
            gpufd.get("model", socket=self.socket, part="there")

    def test_a_version_that_comes_meanwhile(self):
        """The list is of the old version, in which another part is here."""
        self.put(0, 1)
        ask, asked = _get.attach, []

        def late(*args, **options):
            if not asked:
                self.put(1, 0)  # the list is out of date
            asked.append(options["part"])
            return ask(*args, **options)

        with mock.patch.object(_get, "attach", late):
            self.assertEqual(self.part(), (1, 1, 0, bytes(floats(1))))
        self.assertEqual(asked, [0, 1])

    def test_another_part_that_comes_here_meanwhile(self):
        """The part that was listed is served still, and is not the only one here any more."""
        self.put(0)
        ask, asked = _get.attach, []

        def late(*args, **options):
            if not asked:
                self.put(0, 0)
            asked.append(options["part"])
            return ask(*args, **options)

        with mock.patch.object(_get, "attach", late), common.raises(self, gpufd.UsageError, "usage", "2 parts of model, version 2, are on device 0"):
            self.part()
        self.assertEqual(asked, [0])


class Progress(KeeperTest):
    def setUp(self):
        super().setUp()
        self.socket = self.keeper().socket
        self.seen = []

    def note(self, done, total):
        self.seen.append((done, total))

    def calls(self, total, least):
        """The calls that came: sums that grow up to the total."""
        seen, self.seen = self.seen, []
        self.assertGreaterEqual(len(seen), least)
        self.assertEqual(seen[-1], (total, total))
        dones = [done for done, _ in seen]
        self.assertEqual((dones, {t for _, t in seen}), (sorted(set(dones)), {total}))

    def test_each_call(self):
        large = bytes(40 << 20)  # three pieces
        gpufd.put("bytes", large, socket=self.socket, progress=self.note)
        self.calls(len(large), 3)
        path = os.path.join(self.dir, "file")
        with open(path, "wb") as f:
            f.write(large)
        gpufd.put("file", [path, path], socket=self.socket, progress=self.note)
        self.calls(2 * len(large), 6)
        gpufd.put("arrays", {"a": floats(1), "b": floats(2)}, socket=self.socket, progress=self.note)
        self.calls(260, 1)  # a hole between them counts
        with gpufd.get("file", socket=self.socket) as version:
            version.verify(progress=self.note)
            self.calls(2 * len(large), 5)
            version.save(os.path.join(self.dir, "out"), progress=self.note)
            self.calls(2 * len(large), 5)
            version[0].save(os.path.join(self.dir, "one"), progress=self.note)
            self.calls(2 * len(large), 5)
            self.assertEqual(version[0].digest(progress=self.note), version[0].data.digest)
            self.calls(2 * len(large), 5)
        with gpufd.get("arrays", socket=self.socket) as version:
            version.save(os.path.join(self.dir, "tensors"), progress=self.note)
            self.calls(8, 1)

    def test_an_exception_ends_the_work(self):
        def stop(done, total):
            raise KeyboardInterrupt

        self.assertRaises(KeyboardInterrupt, gpufd.put, "x", bytes(1000), socket=self.socket, progress=stop)
        with gpufd.Client(self.socket) as client:
            self.assertIsNone(client.find("x"))
        for wrong in (1, "yes", 0.5):
            common.error_of(self, gpufd.UsageError, "usage", gpufd.put, "x", b"x", socket=self.socket, progress=wrong)

    def test_tqdm(self):
        made = []

        class Bar:
            def __init__(self, **options):
                self.options, self.n, self.open = options, 0, True
                made.append(self)

            def update(self, n):
                self.n += n

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.open = False

        with mock.patch.dict(sys.modules, {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": types.SimpleNamespace(tqdm=Bar)}):
            gpufd.put("x", bytes(5000), socket=self.socket, progress=True)
        (bar,) = made
        self.assertEqual((bar.n, bar.options["total"], bar.options["desc"], bar.options["unit"], bar.open), (5000, 5000, "put x", "B", False))

    def test_a_line_on_a_terminal(self):
        for tty, wanted in ((True, "\rput x: 0 B of 3 B\x1b[K\n"), (False, "")):
            err = mock.Mock(isatty=lambda: tty)
            with mock.patch.object(_progress, "_tqdm", lambda total, what: None), mock.patch.object(sys, "stderr", err):
                with _progress.reporting(True, 3, "put x") as add:
                    add(0)
                    add(1)
                    add(2)
            said = "".join(call.args[0] for call in err.write.call_args_list)
            self.assertEqual(said, wanted.replace("0 B of 3 B", "1 B of 3 B\x1b[K\rput x: 3 B of 3 B") if tty else "")
        with mock.patch.object(_progress, "_tqdm", lambda total, what: None), mock.patch.object(sys, "stderr", None):
            with _progress.reporting(True, 3, "put x") as add:
                add(3)


class PyTorch(Kept):
    """The same of gpufd.torch."""

    def setUp(self):
        super().setUp()
        try:
            import torch

            import gpufd.torch
        except ImportError:
            common.missing("python", f"{sys.executable} has no PyTorch")
        self.torch = torch

    def test_tensors_of_parts(self):
        tied = self.torch.ones(2, 3)
        for i, state in enumerate(({"b": tied, "a": tied, "t": self.torch.arange(6).reshape(2, 3).t()}, {"c": self.torch.zeros(2), "none": self.torch.zeros(0)})):
            gpufd.torch.put("model", state, socket=self.socket, part=i, parts=2, transaction="t", metadata={"step": "7"})
        version = self.get()
        loaded = version.tensors()
        self.assertIsInstance(loaded, gpufd.torch.Loaded)
        self.assertEqual((list(loaded), list(version[1].tensors()), list(gpufd.torch.tensors(version[0]))), (["b", "a", "t", "c", "none"], ["c", "none"], ["b", "a", "t"]))
        self.assertEqual((loaded["a"].data_ptr(), loaded["t"].tolist()), (loaded["b"].data_ptr(), [[0, 3], [1, 4], [2, 5]]))
        self.assertEqual((loaded.metadata, version.metadata, loaded.data.part), ({"step": "7"}, {"step": "7"}, 0))
        self.assertEqual(version["a"].tobytes(), bytes(floats(*[1] * 6)))
        self.assertEqual(repr(loaded), "<gpufd.torch.Loaded 'model' version 1: 5 tensors, 104 B>")
        del loaded

    def test_types_that_it_lacks(self):
        self.put_table(("w", "F32", (2,), 0, 8), ("six", "F6_E2M3", (4,), 8, 3))
        loaded = self.get().tensors()
        self.assertEqual((list(loaded), list(loaded.lacking)), (["w"], ["six"]))
        common.error_of(self, gpufd.UnavailableError, "unavailable", lambda: loaded["six"])

    def test_the_part_that_is_here(self):
        for i, device in enumerate((1, 0)):
            gpufd.torch.put("model", {"w": self.torch.full((3,), i)}, socket=self.socket, part=i, parts=2, transaction="t", device=device)
        self.assertEqual(gpufd.torch.load("model", socket=self.socket, part="here")["w"].tolist(), [1, 1, 1])
        self.assertEqual(gpufd.torch.load("model", socket=self.socket, part="here", device="cuda:1")["w"].tolist(), [0, 0, 0])

    def test_progress(self):
        seen = []
        state = {f"t{i}": self.torch.ones(100) for i in range(3)}
        gpufd.torch.put("model", state, socket=self.socket, progress=lambda *n: seen.append(n))
        self.assertEqual(seen, [(400, 1200), (800, 1200), (1200, 1200)])
        seen.clear()
        loaded = gpufd.torch.load("model", socket=self.socket, progress=lambda *n: seen.append(n))
        self.assertEqual((seen, len(loaded)), ([(1424, 1424)], 3))

    def test_an_exception_leaves_the_model_to_be_written(self):
        def stop(done, total):
            raise ValueError("stop")

        state = {"a": self.torch.ones(3), "b": self.torch.ones(3)}
        self.assertRaisesRegex(ValueError, "stop", gpufd.torch.put, "model", state, socket=self.socket, progress=stop)
        state["a"].add_(1)
        with gpufd.Client(self.socket) as client:
            self.assertIsNone(client.find("model"))


class Log(KeeperTest):
    def test_lines(self):
        socket = self.keeper().socket
        with self.assertLogs("gpufd", "DEBUG") as logged:
            gpufd.put("model", b"hello", socket=socket)
            with gpufd.get("model", socket=socket):
                pass
        said = "\n".join(r.getMessage() for r in logged.records)
        for text in ("connected to the keeper at " + socket, "booked 5 bytes of soft device 0 for part 0 of model", "copied 5 bytes",
                     "delivered part 0 of model: version 1 is committed", f"attached to model at {socket}: 5 bytes in 1 chunks", "got model, version 1"):  # fmt: skip
            self.assertIn(text, said)
        self.assertEqual({r.levelname for r in logged.records}, {"DEBUG"})
        self.assertNotIn("log.py", {r.filename for r in logged.records}, "a line names the place that it is of")
        self.assertTrue(any(isinstance(h, logging.NullHandler) for h in logging.getLogger("gpufd").handlers))

    def test_waits_and_retries(self):
        k = self.keeper()
        full = mock.patch.object(_deposit, "allocate", side_effect=OSError(errno.ENOSPC, "full"))
        with full, self.assertLogs("gpufd", "DEBUG") as logged, self.assertRaises(gpufd.KeeperError):
            gpufd.put("two", bytes(3 << 20), socket=k.socket, timeout=0.5)
        self.assertEqual(sum("part 0 of two waits for room on device 0" in r.getMessage() for r in logged.records), 1)
        with gpufd.Client(k.socket, timeout=0.5) as client, self.assertLogs("gpufd", "DEBUG") as logged:
            client.status()
            k.kill()
            self.assertRaises((gpufd.LostError, gpufd.TimedOutError), client.status)  # the fd store has the socket
        self.assertTrue(any("the keeper was lost" in r.getMessage() and "status again" in r.getMessage() for r in logged.records))

    def test_nobody_pays_who_does_not_log(self):
        text = "import sys, gpufd.log as l; l.debug('x %d', 1); print('logging' in sys.modules); import logging; l.debug('x %d', 1); print('out')"
        done = subprocess.run([sys.executable, "-B", "-c", text], cwd=common.PACKAGE, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("False\nout\n", ""))


class NoArrays(KeeperTest):
    def test_numpy_makes_none_of_them(self):
        """Each public class that holds memory, or a connection: NumPy would make an object of it, or copy what it lists."""
        numpy = common.need_numpy()
        from gpufd import channel, keeper

        classes = [gpufd.Attached, gpufd.Version, gpufd.Parts, gpufd.Memory, gpufd.Client, gpufd.Lease, gpufd.Server, gpufd.Offering, gpufd.Counter,
                   gpufd.IPCEvent, keeper.Booking, _deposit.Deposit, channel.Reader, channel.Writer, channel.Frame, channel.Slot]  # fmt: skip
        for cls in classes:
            with self.subTest(cls.__name__):
                for what in (one := cls.__new__(cls), [one]):
                    with self.assertRaisesRegex(TypeError, f"{cls.__name__} is no array"):
                        numpy.asarray(what)

    def test_a_version_whose_parts_are_arrays(self):
        """A sequence of two parts of one size would be an array of two rows."""
        numpy = common.need_numpy()
        socket = self.keeper().socket
        for i in range(2):
            gpufd.put("model", {f"w{i}": floats(1, 2)}, socket=socket, part=i, parts=2, transaction="t")
        with gpufd.get("model", socket=socket) as version:
            self.assertRaisesRegex(TypeError, r"Version is no array: version\[name\]", numpy.asarray, version)
            self.assertRaisesRegex(TypeError, r"Attached is no array: part\[name\]", numpy.asarray, version[0])
            self.assertEqual(numpy.asarray(version["w1"]).tolist(), [1, 2])
        with gpufd.attach_parts("model", socket=socket) as parts:
            self.assertRaisesRegex(TypeError, "Parts is no array", numpy.asarray, parts)

    def test_nothing_is_copied(self):
        import copy
        import pickle

        for cls in (gpufd.Client, gpufd.keeper.Booking, _deposit.Deposit):
            for way in (copy.copy, pickle.dumps):
                self.assertRaisesRegex(TypeError, f"{cls.__name__} is of this process alone", way, cls.__new__(cls))


class Reprs(KeeperTest):
    def test_sizes_and_names(self):
        sizes = ((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1024 KiB"), (140 << 30, "140 GiB"),
                 (3 << 40, "3 TiB"), (1 << 50, "1024 TiB"), ((1 << 30) + 1, "1.0 GiB"))  # fmt: skip
        for size, text in sizes:
            self.assertEqual(human(size), text)
        self.assertEqual((called("a\nb"), len(called("x" * 500))), (r"'a\nb'", 34))

    def test_one_short_line_with_name_size_and_state(self):
        socket = self.keeper().socket
        name = "m" * 200
        client = gpufd.Client(socket)
        self.addCleanup(client.close)
        done = gpufd.put(name, {"w": (ctypes.c_float * 1024)(), "x": bytes_2d()}, socket=client, metadata={"k": "v" * 1000})
        version = gpufd.get(name, socket=socket)
        part = version[0]
        a = part.attachment
        info = client.stat(name)
        memory = gpufd.allocate(3 << 20)
        self.addCleanup(memory.close)
        texts = [(repr(what), says) for what, says in (
            (done, "version 1, 4.5 KiB, gpufd-d1:"),
            (version, "version 1: 1 part, 4.5 KiB"),
            (part, "version 1, part 0 of 1, 4.5 KiB, read-only"),
            (part.data, "version 1, part 0 of 1"),
            (a, "4.5 KiB, read-only"),
            (a.offer, "4.5 KiB, soft, read-"),
            (gpufd.list(socket)[0], "4.5 KiB, soft, read-"),
            (info, "version 1: 1 part, 4.5 KiB, ok"),
            (info.parts[0], "PartInfo 0, 4.5 KiB on GPU-"),
            (client, "connected"),
            (client.status(), "1 name"),
            (part.memory, "4.5 KiB in 1 chunk on device 0, read-only"),
            (memory, "3 MiB in 1 chunk on device 0, read-write"),
            (version["w"], "F32[1024], 4 KiB, read-only"),
            (memory.view("U8", (1, 1, 1, 1, 1)), "U8[5 dimensions], 1 B, read-write"),
            (version.arrays(), "2 of 2 tensors, 4.5 KiB"),
            (gpufd.Parts([a]), "1 part, 4.5 KiB"),
            (gpufd.Parts(), "0 parts"),
            (info_of({"holders": [{"pid": 7, "uid": 1000, "access": "x" * 99}]}).holders[0], "process 7 of user 1000, part 0, xxx"),
        )]  # fmt: skip
        array = version["w"]
        array.release()
        version.close()
        client.close()
        texts += [(repr(version), "closed"), (repr(part), "closed"), (repr(a), "closed"), (repr(client), "closed"), (repr(array), "released")]
        for line, says in texts:
            with self.subTest(line):
                self.assertIn(says, line)
                self.assertRegex(line, r"^<gpufd\.[^\n]{1,92}>$")


    def test_who_offers(self):
        name, path = "m" * 200, os.path.join(self.dir, "s" * 30)
        events, lines = [], []
        with gpufd.allocate(3 << 20) as memory, gpufd.Server(path, on_event=events.append) as server:
            offering = server.offer(name, memory, gpufd.READ_WRITE)
            lines += [(repr(offering), "3 MiB, 0 leases, open"), (repr(server), "sss', 1 offer")]
            with gpufd.attach(name, socket=path, access=gpufd.READ_WRITE) as att, gpufd.counter(att.memory, 3) as counter:
                common.wait_for(lambda: offering.leases, "the lease")
                lines += [(repr(offering), "1 lease, open"), (repr(offering.leases[0]), f"Lease 1 of pid {os.getpid()} uid {os.geteuid()} gid {os.getegid()}, read-write, open"),
                          (repr(counter), "Counter 3 in 3 MiB on device 0, open")]  # fmt: skip
            common.wait_for(lambda: events and events[-1].kind == "ended", "the end of the lease")
            lines += [(repr(counter), "closed"), *((repr(e), e.kind) for e in events), (repr(events[-1].lease), "over")]
            offering.close()
            lines += [(repr(offering), "over"), (repr(server), "0 offers")]
        lines += [(repr(server), "closed"), (repr(memory), "closed")]
        with gpufd.channel.Writer(name, slots=2, slot_size=4096, socket=path) as w, gpufd.channel.Reader(name, socket=path) as r:
            w.send(b"x" * 2048)
            with r.next() as frame:
                lines += [(repr(w), "2 slots of 4 KiB"), (repr(r), "mmm…'"), (repr(frame), "Frame 1, 2 KiB in slot "), (repr(w.acquire()), " for frame 2, 4 KiB")]
        for line, says in lines:
            with self.subTest(line):
                self.assertIn(says, line)
                self.assertRegex(line, r"^<gpufd\.[^\n]{1,97}>$")


def bytes_2d():
    return (ctypes.c_uint8 * 32 * 16)()


class Command(KeeperTest):
    def test_the_go_programs_metadata(self):
        """What gpufd put keeps of a file's metadata is there by name, too."""
        socket, path = self.keeper().socket, os.path.join(self.dir, "a.safetensors")
        header, _ = _tables.header_of([_tables.Tensor("x", "U8", (3,), 0, 3)], {"format": "pt"})
        with open(path, "wb") as f:
            f.write(header + b"abc")
        subprocess.run([program(), "put", "go", path, "--socket", socket], check=True, capture_output=True)
        with gpufd.get("go", socket=socket) as version:
            self.assertEqual((version.metadata, version["x"].tobytes()), ({"format": "pt"}, b"abc"))
        table = _put._source(path).table
        self.assertEqual(json.loads(table.encode())["safetensors"]["metadata"], {"format": "pt"})


if __name__ == "__main__":
    unittest.main()
