"""How the package is used: wrongly, by several threads at once, again and again."""

import ast
import gc
import importlib.util
import inspect
import json
import operator
import os
import re
import threading
import unittest
import unittest.mock
from uuid import UUID

import common
import gpufd
import gpufd.channel
from gpufd.wire import conn as _conn
from gpufd.memory import soft as _soft
from gpufd.keeper.deposit import chunk_for
from gpufd.memory.device import device_name
from gpufd.share.kept import kept_of
from gpufd.wire.records import Offer


class Offered(common.Scene):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4 << 20, chunk=2 << 20)
        self.addCleanup(self.memory.close)

    def served(self):
        server = gpufd.Server(self.path, timeout=common.PATIENCE)
        self.addCleanup(server.close)
        return server


class Threads(Offered):
    def test_close_while_another_thread_reads_or_writes(self):
        """It is refused: a descriptor that is closed under a read may be another file's then."""
        self.served().offer("x", self.memory, gpufd.READ_WRITE)
        for part, use, what in (("_read_part", lambda att: att.read(), "a read"), ("_write_part", lambda att: att.write(0, b"x"), "a write")):
            there, go_on = threading.Event(), threading.Event()
            original = getattr(_soft.SoftMemory, part)

            def held(*args, original=original, there=there, go_on=go_on):
                there.set()
                go_on.wait(common.PATIENCE)
                return original(*args)

            with self.subTest(what), gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att:
                with unittest.mock.patch.object(_soft.SoftMemory, part, held):
                    thread = threading.Thread(target=use, args=(att,))
                    thread.start()
                    there.wait(common.PATIENCE)
                    with self.assertRaisesRegex(gpufd.InUseError, what):
                        att.close()
                    go_on.set()
                    thread.join()
                self.assertFalse(att.done)

    def test_wait_while_the_connection_is_being_closed(self):
        """A wait that comes just behind a close ends, and does not fail for a socket that is gone."""
        self.served().offer("x", self.memory)
        att = gpufd.attach(socket=self.path)
        pump, closed = att._lease.pump, []

        def late():
            pump()
            if not closed:
                closed.append(True)
                att.close()
                common.settled_fds()

        with unittest.mock.patch.object(att._lease, "pump", late):
            self.assertTrue(att.wait(common.PATIENCE))


class Follow(Offered):
    def test_the_same_memory_again(self):
        """A body that kept arrays gets the same attachment again, with a new lease, where the
        producer has come back with the memory that is mapped already."""
        numpy = common.need_numpy()
        self.memory.write(0, b"ab")
        first = self.served()
        first.offer("x", self.memory)
        seen, kept, leases = [], [], []
        for att in gpufd.follow("x", socket=self.path, within=common.PATIENCE, timeout=common.PATIENCE):
            seen.append((id(att), att.done))
            if len(seen) == 1:
                kept.append(numpy.asarray(att.view("U8", 2)))
                first.close()
                self.assertTrue(att.wait(common.PATIENCE))
                second = self.served()
                second.offer("x", self.memory, on_lease=leases.append)
            else:
                break
        self.assertEqual(seen, [seen[0], seen[0]], "the same attachment, whose lease has not ended")
        self.assertEqual(bytes(kept[0]), b"ab")
        self.assertEqual(len(second.leases("x")), 1)
        kept.clear()
        att.close()
        gc.collect()


class Claims(Offered):
    def test_parts_that_are_others(self):
        """A producer that gives one part for another is found out, and one whose version never stands still."""
        server = self.served()

        def say(part, version=1, parts=2, of=None):
            data = {"name": "m", "version": version, "part": part if of is None else of, "parts": parts}
            server.replace(f"m/{part}", self.memory, data=json.dumps(data).encode())

        say(0)
        say(1, of=0)
        with self.assertRaisesRegex(gpufd.Error, "part 1 of 2 of m was asked for, and the offer says part 0 of 2"):
            gpufd.attach_parts("m", socket=self.path)
        say(1, version=2)
        with self.assertRaisesRegex(gpufd.TimedOutError, "a new version whenever"):
            gpufd.attach_parts("m", socket=self.path, within=0.5)
        say(1)
        with gpufd.attach_parts("m", socket=self.path) as parts:
            self.assertEqual([p.kept.part for p in parts], [0, 1])

    def test_one_connection_for_the_only_part(self):
        """A version of one part is offered by its name alone, and takes one conversation."""
        server = self.served()
        for name, parts in (("m", 1), ("n/0", 2), ("n/1", 2)):
            server.offer(name, self.memory, data=json.dumps({"name": name[0], "version": 1, "part": int("1" in name), "parts": parts}).encode())
        for name, connections in (("m", 1), ("n", 3)):
            with self.subTest(name), unittest.mock.patch("gpufd.share.attaching.dial", side_effect=_conn.dial) as dial:
                with gpufd.attach_parts(name, socket=self.path) as parts:
                    self.assertEqual([p.kept.part for p in parts], list(range(len(parts))))
                self.assertEqual(dial.call_count, connections)
        with self.assertRaisesRegex(gpufd.NotFoundError, 'no offer "nobody" here'):
            gpufd.attach("nobody", socket=self.path, part=0)

    def test_nonsense_of_a_keeper(self):
        offer = self.memory.offer("x")
        for data in (b"", b"[]", b"{}", b'{"name":"x","version":Infinity}', b'{"name":"x","version":0}', b'{"name":"x","version":1,"part":2,"parts":2}',
                     b'{"name":"x","version":1,"part":-1}', b'{"name":"x","version":1,"parts":99999999}', b"[" * 30_000, b'{"name":"x","version":1,"labels":3}'):  # fmt: skip
            with self.subTest(data[:40]), self.assertRaises(gpufd.Error):
                kept_of(Offer(**{**vars(offer), "data": data}))


class DefaultSockets(Offered):
    """A name alone: what offer and Writer listen at, and attach and Reader look for."""

    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir, GPUFD_SOCKET="", NVIDIA_DRA_LOCAL_IPC_DIR="")

    def test_an_offer_is_found_by_its_name(self):
        for name in ("weights", "a/b", "../up", "é"):
            with self.subTest(name), gpufd.offer(name, self.memory):
                with gpufd.attach(name) as att:
                    self.assertEqual(att.name, name)
        self.assertEqual(os.stat(os.path.join(self.dir, "gpufd", "offers")).st_mode & 0o777, 0o700)

    def test_nobody_there(self):
        for call in (lambda: gpufd.attach("nobody"), lambda: gpufd.channel.Reader("nobody"), lambda: gpufd.attach("n" * 200)):
            with common.raises(self, gpufd.LostError, "nobody-listens", "no keeper listens at"):
                call()
        with self.assertRaisesRegex(gpufd.UsageError, "pass socket="):
            gpufd.offer("n" * 200, self.memory)

    def test_a_directory_that_others_may_write_is_refused(self):
        os.mkdir(os.path.join(self.dir, "gpufd"))
        os.chmod(os.path.join(self.dir, "gpufd"), 0o777)
        with self.assertRaisesRegex(gpufd.Error, "others may write"):
            gpufd.offer("x", self.memory)

    def test_a_socket_that_was_left_is_passed_over(self):
        """A producer was killed; the name is the keeper's now."""
        with gpufd.offer("x", self.memory):
            path = os.path.join(self.dir, "gpufd", "offers", "x.sock")
            os.rename(path, path + ".moved")  # as if nobody had removed it
        os.rename(path + ".moved", path)
        with gpufd.Server(os.path.join(self.dir, "gpufd", "keeper.sock")) as keeper:
            keeper.offer("x", self.memory)
            gpufd.attach("x").close()

    def test_an_offer_without_with(self):
        offered = gpufd.offer("x", self.memory)
        self.assertIn("gpufd.offer", repr(offered))
        offered.close()
        with self.assertRaises(gpufd.LostError):
            gpufd.attach("x")

    def test_follow_waits_for_labels(self):
        def of(rev):
            return json.dumps({"name": "m", "version": 1, "part": 0, "parts": 1, "labels": {"rev": rev}}).encode()

        reasons = []
        with gpufd.allocate(1) as newer, gpufd.Server(self.path) as server:
            server.offer("m", self.memory, data=of("dev"))

            def on_wait(error):
                reasons.append(error.reason)
                server.replace("m", newer, data=of("main"))

            for att in gpufd.follow("m", socket=self.path, labels={"rev": "main"}, within=60, on_wait=on_wait):
                self.assertEqual(att.labels["rev"], "main")
                break
        self.assertEqual(reasons, ["labels"])


class Page(unittest.TestCase):
    def test_names_of_the_page_are_there(self):
        """Each block of docs/python.md is Python, and what it calls by gpufd. is there, with these options."""
        page = common.ROOT / "docs" / "python.md"
        if not page.exists():
            self.skipTest(f"there is no {page}")
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
        self.assertGreater(len(blocks), 6)
        called = set()
        for block in blocks:
            for node in ast.walk(compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
                if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("gpufd."):
                    if name.startswith("gpufd.torch.") and importlib.util.find_spec("torch") is None:
                        continue
                    what = operator.attrgetter(name.removeprefix("gpufd."))(gpufd)
                    there = inspect.signature(what).parameters
                    for keyword in node.keywords:
                        self.assertIn(keyword.arg, there, f"{name} of {page.name}")
                    called.add(name)
        self.assertTrue({"gpufd.put", "gpufd.aio.wait", "gpufd.attach"} <= called, called)


class TorchDevice:
    """What a torch.device has: this package does not need PyTorch for one."""

    def __init__(self, text):
        self.text, (self.type, _, index) = text, text.partition(":")
        self.index = int(index) if index else None

    def __str__(self):
        return self.text


class Devices(Offered):
    """What device= takes, wherever there is one."""

    def test_what_names_a_device(self):
        uuid = f"GPU-{UUID(bytes=_soft.soft_uuid(1))}"
        for device in (1, "cuda:1", TorchDevice("cuda:1"), uuid, uuid.upper(), uuid[4:], type("Index", (), {"__index__": lambda self: 1})()):
            with self.subTest(str(device)), gpufd.allocate(1, device=device) as memory, gpufd.offer("x", memory, socket=self.path):
                self.assertEqual(memory.ordinal, 1)
                with gpufd.attach(socket=self.path, device=device) as att:
                    self.assertEqual(att.device, 1)
                for att in gpufd.follow("x", socket=self.path, device=device):
                    self.assertEqual(att.device, 1)
                    break
                for other in (0, "cuda:0", "cuda", TorchDevice("cuda"), f"GPU-{UUID(bytes=_soft.soft_uuid(0))}"):
                    with common.raises(self, gpufd.MismatchError, "device"):
                        gpufd.attach(socket=self.path, device=other)
        with gpufd.allocate(1, device="cuda") as memory:
            self.assertEqual(memory.ordinal, 0)

    def test_what_names_none(self):
        unknown = f"GPU-{UUID(int=1)}"
        with common.raises(self, gpufd.MismatchError, "device", f"device {unknown} is not visible to this process, which sees 2"):
            gpufd.allocate(1, device=unknown)
        with common.raises(self, gpufd.MismatchError, "device", "no device 7"):
            gpufd.allocate(1, device="cuda:7")
        for device in (None, 10**5000):
            self.assertRaises(gpufd.UsageError, gpufd.allocate, 1, device=device)
        for device in (-1, True, 1.5, "", "1", "gpu0", "cuda:-1", "cuda:x", "GPU-1", TorchDevice("meta"), [1], int):
            for call in (lambda d: gpufd.allocate(1, device=d), lambda d: gpufd.attach(socket=self.path, device=d), lambda d: gpufd.get("x", socket=self.path, device=d)):
                with self.subTest(str(device)), self.assertRaisesRegex(gpufd.UsageError, "an ordinal, .*a UUID"):
                    call(device)
            with self.subTest(str(device)), self.assertRaises(gpufd.UsageError):
                gpufd.channel.Writer("x", socket=self.path, slots=1, slot_size=1, device=device)


class Arguments(Offered):
    def test_refused(self):
        for wrong in ({"size": "1"}, {"size": 1.5}, {"size": -1}, {"size": 0}, {"size": 1, "chunk": "x"}, {"size": 1, "device": -1}, {"size": 1, "driver": "gpu"}):
            with self.subTest(str(wrong)), self.assertRaises(gpufd.UsageError):
                gpufd.allocate(**wrong)
        with self.assertRaisesRegex(gpufd.UnavailableError, "this machine has"):
            gpufd.allocate(1 << 62)  # and not: all memory is taken first
        for wrong in ({"name": 5}, {"name": "x", "timeout": "3"}, {"name": "x", "timeout": 0}, {"name": "x", "within": -1}, {"name": "x", "part": "1"},
                      {"name": "x", "part": -1}, {"name": "n" * 300}, {"name": "x", "access": 9}):  # fmt: skip
            with self.subTest(str(wrong)), self.assertRaises(gpufd.UsageError):
                gpufd.attach(socket=self.path, **wrong)
        for path in ("", "a\0b", "/" + "x" * 200):
            with self.subTest(path), self.assertRaises(gpufd.UsageError):
                gpufd.attach(socket=path)
        for shape, offset in ((1.5, 0), ((2.0,), 0), ("ab", 0), (3, 1.5), (3, "x"), ((2, -1), 0)):
            with self.subTest(f"{shape} {offset}"), self.assertRaises(gpufd.UsageError):
                self.memory.view("F32", shape, offset)

    def test_places_of_a_socket(self):
        """A server listens only where nobody else may put a socket, and leaves alone what is there."""
        def place(name, mode=0o700):
            os.mkdir(os.path.join(self.dir, name))
            os.chmod(os.path.join(self.dir, name), mode)
            return os.path.join(self.dir, name, "s")

        file, link, locked = place("file"), place("link"), place("locked")
        with open(file, "w") as f:
            f.write("somebody's")
        os.symlink(file, link)
        os.symlink("nowhere", locked + ".lock")
        for path, says in ((os.path.join(self.dir, "none", "s"), f"no such directory; make it first: mkdir -p -m 700 {self.dir}/none"),
                           (place("all", 0o777), "others may write to it"), (place("sticky", 0o1777), "others may write to it"), (place("group", 0o770), "others may write to it"),
                           (file, "no socket"), (link, "no socket"), (locked, "symbolic links")):  # fmt: skip
            before = sorted(os.walk(self.dir))
            with self.subTest(path):
                with self.assertRaisesRegex(gpufd.Error, says):
                    gpufd.Server(path)
                self.assertEqual(sorted(os.walk(self.dir)), before)
        with open(file) as f:
            self.assertEqual(f.read(), "somebody's")
        with gpufd.Server(self.path), self.assertRaisesRegex(gpufd.Error, "a producer has this socket already"):
            gpufd.Server(self.path)

    def test_chunks_of_a_deposit(self):
        """As few as there can be: whoever attaches pays for each."""
        for size, chunks in ((1, 1), (512 << 20, 1), (1 << 30, 2), (2 << 30, 3), (16 << 30, 19), (1 << 44, 4096)):
            chunk = chunk_for(size)
            with self.subTest(size):
                self.assertEqual(-(-size // chunk), chunks)
                self.assertLess(chunks * chunk - size, chunks, "they are equal")
        self.assertEqual(chunk_for(1 << 30, 2 << 20), 2 << 20)

    def test_numbers_of_numpy(self):
        numpy = common.need_numpy()
        self.assertEqual(self.memory.view("F32", (numpy.int64(2), 3)).shape, (2, 3))
        self.assertEqual(self.memory.view("F32", numpy.int32(2)).shape, (2,))

    def test_default_socket(self):
        values = {"GPUFD_SOCKET": "", "NVIDIA_DRA_LOCAL_IPC_DIR": "/claim", "XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/t"}
        wanted = (
            ({"GPUFD_SOCKET": "/s"}, "/s"),
            ({}, "/claim/gpufd/keeper.sock"),
            ({"NVIDIA_DRA_LOCAL_IPC_DIR": "not/absolute"}, "/run/user/7/gpufd/keeper.sock"),
            ({"NVIDIA_DRA_LOCAL_IPC_DIR": "", "XDG_RUNTIME_DIR": ""}, f"/t/gpufd-{os.getuid()}/keeper.sock"),
        )
        for given, socket in wanted:
            with self.subTest(socket), unittest.mock.patch.dict(os.environ, {**values, **given}):
                self.assertEqual(gpufd.Client().socket, socket)


class Visible(common.Scene):
    """CUDA_VISIBLE_DEVICES chooses and orders the software driver's devices, as in Go:
    cu/soft, TestVisibleDevices has the same table."""

    def test_which(self):
        self.environ(GPUFD_SOFT_DEVICES="3")
        self.environ(CUDA_VISIBLE_DEVICES="")  # and what it was, afterwards
        del os.environ["CUDA_VISIBLE_DEVICES"]
        self.assertEqual(_soft.soft_visible(), [0, 1, 2])
        name = [device_name(_soft.soft_uuid(i)) for i in range(3)]
        for text, want in (
            ("", []), ("-1", []), ("0", [0]), ("2,0", [2, 0]), (" 1 , 2", [1, 2]), ("1,7,2", [1]), ("1,x,2", [1]), ("0,0", []),
            (name[1], [1]), (name[2][:12] + ",0", [2, 0]), (f"{name[1]},{name[0]}", [1, 0]), ("GPU-", []), ("GPU-zz", []),
            ("GPU-" + name[0][4:].upper(), [0]), ("1_0", []), ("0x1", []), ("٣", []), ("+1", [1]),
        ):  # fmt: skip
            with self.subTest(text):
                self.environ(CUDA_VISIBLE_DEVICES=text)
                self.assertEqual(_soft.soft_visible(), want)

    def test_memory(self):
        self.environ(GPUFD_SOFT_DEVICES="2", CUDA_VISIBLE_DEVICES="0,1")
        first, second = (device_name(_soft.soft_uuid(i)) for i in range(2))
        self.environ(CUDA_VISIBLE_DEVICES="1")
        with gpufd.allocate(1 << 20, device=second) as memory:
            self.assertEqual((memory.ordinal, device_name(memory.uuid)), (0, second))
        self.assertRaisesRegex(gpufd.MismatchError, "is not visible to this process, which sees 1", gpufd.allocate, 1, device=first)
        self.environ(CUDA_VISIBLE_DEVICES="1,0")
        with gpufd.allocate(1 << 20) as memory:
            self.assertEqual((memory.ordinal, device_name(memory.uuid)), (0, second))
            with gpufd.offer("x", memory, socket=self.path):
                self.environ(CUDA_VISIBLE_DEVICES="0,1")
                with gpufd.attach(socket=self.path) as att, att.memory.private(1) as private:
                    self.assertEqual((att.device, private.ordinal, private.uuid), (1, 1, memory.uuid))
                self.environ(CUDA_VISIBLE_DEVICES="0")
                with common.raises(self, gpufd.MismatchError, "device", f"{second}, which is not visible .*CUDA_VISIBLE_DEVICES.*devices: {first}"):
                    gpufd.attach(socket=self.path)
                self.assertRaisesRegex(gpufd.MismatchError, "no device 1: .* has 1", gpufd.allocate, 1, device=1)
                self.environ(CUDA_VISIBLE_DEVICES="")
                with self.assertRaisesRegex(gpufd.UnavailableError, "CUDA_VISIBLE_DEVICES"):
                    gpufd.attach(socket=self.path)
                self.assertRaisesRegex(gpufd.UnavailableError, "CUDA_VISIBLE_DEVICES", gpufd.allocate, 1)


if __name__ == "__main__":
    unittest.main()
