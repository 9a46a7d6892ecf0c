"""gpufd.broadcast with Gloo: four ranks, each with a keeper of its own, on the software driver.

Ranks are forked from this process, which has PyTorch already: each is a process that can be
killed, and starts at once. A rank is stopped where broadcast says at_step, or at_piece.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from keepers import DEADLINE, Keeper, KeeperTest, program, wait_for  # first: it says where the package is

import common

try:
    import torch
except ImportError:
    torch = None

import gpufd

if torch is not None:
    from gpufd import broadcast
    from gpufd.memory import devicedigest as _devicedigest
    from gpufd.broadcast import ranks as _ranks
    from gpufd.broadcast import transport as _transport
    from gpufd.broadcast import watch as _watch

RANKS = 4


def setUpModule():
    if torch is None or not torch.distributed.is_available():
        common.missing("python", f"{sys.executable} has no PyTorch with torch.distributed")


class Ranks:
    """The ranks of one broadcast, each forked. stop says at which step, or piece, which rank
    does what."""

    def __init__(self, test, args, *, stop=None, ranks=range(RANKS), sockets="keeper{rank}", world=RANKS):
        self.test, self.world, self.pids, self.status = test, world, {}, {}
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.begun = time.monotonic()
        for rank in ranks:
            self.pids[rank] = os.fork()
            if self.pids[rank] == 0:
                self.be(rank, world, [*args, "--socket", os.path.join(test.shared, sockets)], stop)

    def log(self, rank):
        return os.path.join(self.test.directory, f"rank{rank}.{self.port}")

    def be(self, rank, world, args, stop):
        """Be a rank, and never return."""
        try:
            out = os.open(self.log(rank), os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout = open(1, "w", closefd=False)
            sys.stderr = open(2, "w", closefd=False)
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))
            if stop and stop[0] == rank:
                _ranks.Watch = watch_by_whole_messages
                _ranks.at_step = lambda step: stop[2]() if step == stop[1] else None
                _transport.at_piece = lambda: stop[2]() if stop[1] == "piece" else None
            code = broadcast.main(args)
            sys.stdout.flush()
        except BaseException as e:
            os.write(2, f"{type(e).__name__}: {e}\n".encode())
            code = getattr(e, "code", 70)
        os._exit(code if isinstance(code, int) else 70)

    last_state = ""  # of a rank that was to stop

    def wait(self):
        """The exit codes, by rank; of who was killed, the signal below 0."""
        for rank, pid in list(self.pids.items()):
            self.status[rank] = os.waitstatus_to_exitcode(wait_for(lambda: ended(pid), f"the end of rank {rank}", 2 * DEADLINE)[1])
            del self.pids[rank]
        self.took = time.monotonic() - self.begun
        return self.status

    def said(self, rank):
        with open(self.log(rank)) as f:
            return f.read()

    def all_said(self):
        return "\n".join(f"rank {r}: {self.said(r)}" for r in self.status)

    def close(self):
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ended(pid):
    done, status = os.waitpid(pid, os.WNOHANG)
    return (done, status) if done else None


class Nothing:
    """What a keeper says of a name that it does not have."""

    version = 0


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    raise gpufd.Error("something was in the way")


class WholeMessages:
    """A store in whose messages no rank is stopped: PyTorch's old store would then answer nobody."""

    sending = threading.Lock()

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        def call(*args):
            with self.sending:
                return getattr(self.store, name)(*args)

        return call


def watch_by_whole_messages(store, *args):
    return _watch.Watch(WholeMessages(store), *args)


def stop():
    with WholeMessages.sending:
        os.kill(os.getpid(), signal.SIGSTOP)


class Keepers(KeeperTest):
    """All tests share the keepers, which have nothing under "model" when one begins."""

    count, driver = RANKS, "soft"

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="gpufd-")
        cls.addClassCleanup(directory.cleanup)
        cls.shared = directory.name
        with unittest.mock.patch.dict(os.environ, GPUFD_SOFT_DIR=os.path.join(cls.shared, "soft"), GPUFD_DRIVER=cls.driver):
            cls.all_keepers = []
            for i in range(cls.count):
                cls.all_keepers.append(Keeper(cls.shared, f"keeper{i}"))
                cls.addClassCleanup(cls.all_keepers[-1].close)

    def setUp(self):
        super().setUp()
        self.environ(GPUFD_SOFT_DIR=os.path.join(self.shared, "soft"), GPUFD_DRIVER=self.driver)
        self.keepers = self.all_keepers
        self.addCleanup(self.forget)

    def forget(self):
        for k in self.all_keepers:
            with gpufd.Client(k.socket) as client:
                if client.find("model"):
                    client.remove("model")

    def ranks(self, *args, **options):
        r = Ranks(self, ["model", *args], **options)
        self.addCleanup(r.close)
        return r

    def infos(self):
        found = []
        for k in self.keepers:
            with gpufd.Client(k.socket) as client:
                found.append(client.find("model"))
        return found

    def check_ends(self, running, cases, timeout):
        waiting = [threading.Thread(target=self.wait_for_end, args=(r, cases[case])) for case, r in running.items()]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        for case, r in running.items():
            lost = cases[case][0]
            self.assertEqual({rank: code for rank, code in r.status.items() if rank != lost}, dict.fromkeys(set(range(r.world)) - {lost}, 4), f"{case}: {r.all_said()}; rank {lost}, {r.last_state or 'ended'}: {r.said(lost)}")
            for rank in r.status:
                if rank != lost:
                    self.assertRegex(r.said(rank), rf"rank {lost}\b.*(was lost|has not come|failed)", case)
                    self.assertEqual(r.said(rank).count(f"broadcast: rank {rank} on "), 1, r.said(rank))
            self.assertLess(r.took, 3 * timeout, case)  # on a loaded machine; alone it is little more than one
        for i, k in enumerate(self.keepers[1:], 1):
            with gpufd.Client(k.socket) as client:
                wait_for(lambda: client.find("model") is None, f"keeper {i} to give up what was booked")

    @staticmethod
    def wait_for_end(r, case):
        """Wait for all ranks, but not for one that is stopped and never ends by itself."""
        if case[2] is not stop:
            r.wait()
            return
        stopped = r.pids.pop(case[0])
        try:
            wait_for(lambda: "T" == state_of(stopped), "the stopped rank")
        finally:
            try:
                r.wait()
            finally:
                r.last_state = state_of(stopped)
                os.kill(stopped, signal.SIGKILL)
                os.waitpid(stopped, 0)


class Broadcasts(Keepers):
    def put(self, data=bytes(range(250)) * 4000, **options):
        return gpufd.put("model", data, socket=self.keepers[0].socket, labels={"revision": "main"}, **options)

    def assert_served(self):
        first, *others = self.infos()
        for info in others:
            self.assertEqual((info.digest, info.labels, info.state, info.reserved_bytes), (first.digest, first.labels, "ok", 0))
        for k in self.keepers:
            with gpufd.get("model", socket=k.socket) as version:
                version.verify()

    def test_all_keepers_serve_it_then_and_again(self):
        self.put({"x": (memory := torch.arange(100_000, dtype=torch.int32).numpy()), "y": memory[:10]})
        r = self.ranks("--piece", "64KiB", "--min-rate", "1000", "--label", "revision=main")
        self.assertEqual(r.wait(), dict.fromkeys(range(RANKS), 0), r.all_said())
        self.assert_served()
        self.assertRegex(r.said(0), r"model: 3 keepers have received it, by gloo at [0-9.]+ GB/s")
        self.assertRegex(r.said(2), r"warning: rank 2 at [0-9.]+ GB/s by gloo, slower than 1000 GB/s")
        tables = []
        for k in self.keepers:
            with gpufd.get("model", socket=k.socket) as version:
                tables.append(version[0].data.table)
        self.assertEqual(tables, [tables[0]] * RANKS)

        again = self.ranks("--json")  # nobody needs anything
        self.assertEqual(again.wait(), dict.fromkeys(range(RANKS), 0), again.all_said())
        before = [i.version for i in self.infos()]
        for rank in range(RANKS):
            said = json.loads(again.said(rank))
            self.assertEqual((said["ok"], said["received"], said["skipped"], said["version"]), (True, 0, True, before[rank]))

        with gpufd.Client(self.keepers[2].socket) as client:
            client.remove("model")
        last = self.ranks("--json")  # one needs it
        self.assertEqual(last.wait(), dict.fromkeys(range(RANKS), 0), last.all_said())
        received = [json.loads(last.said(rank))["received"] for rank in range(RANKS)]
        self.assertEqual([n > 0 for n in received], [False, False, True, False])
        self.assert_served()
        before[2] += 1  # the others have put nothing
        self.assertEqual([i.version for i in self.infos()], before)

    @unittest.mock.patch.dict(os.environ, {"GPUFD_SOFT_DEVICES": "3"})
    def test_parts_and_ranks_that_share_a_keeper(self):
        for part, data in enumerate((b"zero" * 1000, b"one" * 5000, b"two")):
            self.put(data, part=part, parts=3, transaction="t", device=part)
        # Ranks 0 and 1 have the first keeper, and 2 and 3 the second.
        for rank, name in {0: "keeper0", 1: "keeper0", 2: "keeper1", 3: "keeper1"}.items():
            for suffix in ("", ".ctl"):
                os.symlink(os.path.join(self.shared, name + suffix), os.path.join(self.directory, f"of{rank}{suffix}"))
        r = self.ranks("--json", sockets=os.path.join(self.directory, "of{rank}"))
        self.assertEqual(r.wait(), dict.fromkeys(range(RANKS), 0), r.all_said())
        received = [json.loads(r.said(rank))["received"] for rank in range(RANKS)]
        self.assertEqual(received, [0, 0, 4003, 15000])
        self.keepers = self.keepers[:2]
        self.assert_served()
        with gpufd.get("model", socket=self.keepers[1].socket) as version:
            self.assertEqual([p.memory.ordinal for p in version], [0, 1, 2])

    def test_what_rank_0_does_not_have_ends_all(self):
        self.put()
        wrong = self.ranks("--label", "revision=old", "--timeout", "20")
        missing = Ranks(self, ["none", "--timeout", "20"])
        self.addCleanup(missing.close)
        self.assertNotIn(0, wrong.wait().values())
        self.assertNotIn(0, missing.wait().values())
        for rank in range(RANKS):
            self.assertRegex(wrong.said(rank), "rank 0.*model has revision='main', and revision='old' was asked for")
            self.assertRegex(missing.said(rank), 'rank 0.*"none"')
        self.assertEqual(self.infos()[1:], [None] * 3)

    def test_a_rank_that_fails_or_is_killed(self):
        """At each step: all others end, name it, and leave nothing."""
        timeout = 40.0  # 33 processes begin at once, beside compilers
        self.put()
        cases = {
            "start": (2, "start", die),
            "joined": (2, "joined", die),
            "stopped early": (1, "joined", stop),
            "failed early": (2, "joined", fail),
            "known": (2, "known", die),
            "booked": (1, "booked", die),
            "piece": (2, "piece", die),
            "the source": (0, "piece", die),
            "received": (2, "received", die),
            "stopped": (1, "piece", stop),
            "failed": (2, "piece", fail),
        }
        sooner = {"start": 15.0, "stopped early": 15.0, "the source": 15.0}  # these wait so long, or Gloo is busy for a third of it
        running = {case: self.ranks("--timeout", f"{sooner.get(case, timeout):g}s", "--piece", "64KiB", stop=at, ranks=range(3), world=3)
                   for case, at in cases.items()}  # fmt: skip
        self.check_ends(running, cases, timeout)

    def test_a_rank_lost_between_commits(self):
        """The one moment of which nothing can be promised: those that have committed have it,
        and the next broadcast gives it to the others alone."""
        self.put()
        r = self.ranks("--timeout", "12s", stop=(2, "commit", self.die_when_others_have_it), ranks=range(3), world=3)
        r.wait()
        self.assertEqual(r.status, {0: 4, 1: 4, 2: -signal.SIGKILL}, r.all_said())
        for rank in (0, 1):
            self.assertRegex(r.said(rank), r"rank 2\b.*was lost")
        with gpufd.Client(self.keepers[2].socket) as client:
            wait_for(lambda: client.find("model") is None, "the keeper to give up what was booked")
        first, second = self.infos()[:2]
        self.assertEqual((second.digest, second.state), (first.digest, "ok"), "this keeper had committed")
        again = self.ranks("--json", ranks=range(3), world=3)
        self.assertEqual(again.wait(), dict.fromkeys(range(3), 0), again.all_said())
        self.assertEqual([json.loads(again.said(rank))["received"] > 0 for rank in range(3)], [False, False, True])
        self.keepers = self.keepers[:3]
        self.assert_served()

    def die_when_others_have_it(self):
        """In rank 2, which has all bytes and has not committed."""
        with gpufd.Client(self.keepers[1].socket) as client:
            wait_for(lambda: (client.find("model") or Nothing).version, "the commit of the other keeper")
        die()

    def test_torchrun(self):
        self.put()
        # PyTorch 1.13 under Python 3.11 cannot be without redirects.
        command = [sys.executable, "-m", "torch.distributed.run", "-r", "1", "-t", "1", "--log_dir", self.directory, "--nproc_per_node", "2",
                   "--master_port", str(free_port()), "-m", "gpufd.broadcast", "model", "--json", "--socket", os.path.join(self.shared, "keeper{local_rank}")]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * DEADLINE, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.keepers = self.keepers[:2]
        self.assert_served()

    def test_a_store_that_answers_nobody(self):
        """As PyTorch's is, before libuv's, while a rank is stopped in the middle of a message."""
        over, told = threading.Event(), threading.Event()
        self.addCleanup(over.set)
        store = unittest.mock.Mock(add=lambda *args: over.wait(DEADLINE))
        watch = _watch.Watch(store, 1, 3, 3.0, lambda text: told.set())
        watch.start()
        self.assertTrue(told.wait(DEADLINE))
        self.assertRegex(watch.failure, "a rank was lost: the store .* has not answered for 2")

    def test_no_digest_holds_up_a_piece(self):
        """NCCL begins a piece behind the work of the stream that asks for it: that has no digests.
        A device is not needed to see which streams are asked."""
        now, asked, digested = ["default"], [], []

        @contextlib.contextmanager
        def current(stream):
            now.append(stream.name)
            yield
            now.pop()

        def broadcast_of(*args, **options):
            asked.append(now[-1])
            return unittest.mock.Mock(wait=lambda: digested.append(now[-1]))

        streams = iter([unittest.mock.Mock(cuda_stream=7), unittest.mock.Mock(cuda_stream=8)])
        digester = unittest.mock.Mock()
        digester.return_value.add = lambda ptr, at, n, stream: digested.append((at, n, stream))
        event = unittest.mock.Mock()
        event.return_value.query = lambda: True
        whole = torch.zeros(40, dtype=torch.uint8)
        with contextlib.ExitStack() as patches:
            for where, name, what in (
                (torch.cuda, "Stream", lambda: next(streams)), (torch.cuda, "stream", current), (torch.cuda, "Event", event),
                (torch.cuda, "synchronize", lambda: None), (torch.cuda, "device", lambda d: contextlib.nullcontext()),
                (torch.distributed, "broadcast", broadcast_of), (torch.distributed, "all_reduce", lambda *a, **o: None),
                (_transport._driver, "load", lambda: None), (_devicedigest, "DeviceDigester", digester),
            ):  # fmt: skip
                patches.enter_context(unittest.mock.patch.object(where, name, what))
            _transport._by_gpu(unittest.mock.Mock(ptr=0, ordinal=0), whole, [(0, 16), (16, 16), (32, 8)], 0, None, 1.0)
        self.assertEqual(len(asked), 3)
        waits, adds = digested[::2], digested[1::2]
        self.assertEqual(adds, [(0, 16, 8), (16, 16, 8), (32, 8, 8)])
        self.assertEqual((len(set(asked)), len(set(waits))), (1, 1))
        self.assertTrue({*asked, *waits}.isdisjoint({"default"}))
        self.assertNotEqual(asked, waits, "a piece would wait for the digest before it")

    def test_usage(self):
        text = broadcast.parser().format_help()
        self.assertRegex(text, "encrypted")
        for args in (["model", "--label", "x"], ["model"]):
            with self.assertRaises(gpufd.UsageError):
                broadcast.options(args)
        self.assertEqual((broadcast.duration("2m"), broadcast.size("64MiB")), (120.0, 64 << 20))
        self.assertTrue(re.search("gpufd", program()))


def state_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rpartition(")")[2].split()[0]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    unittest.main()
