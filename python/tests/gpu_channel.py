"""Channels on a GPU: PyTorch's and CuPy's streams against gpufd's programs, and each other.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_channel.py -v

It needs a GPU, gpufd's programs (GPUFD_BIN, or Go to build them), PyTorch or CuPy, and a C
compiler for the reader in C. In the end it prints how long frames took.
"""

import contextlib
import faulthandler
import functools
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from keepers import wait_for  # first: it says where the package is

import common
import gpufd
from common import PATIENCE, programs
from gpufd import channel
from gpufd.channel import cursor as _cursor
from gpufd.memory import libcuda as _driver

SIZE, SLOTS, BATCH = 1 << 20, 8, 40
SEEN = []


def library(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        common.missing("gpu", f"{sys.executable} has no {name}: {e}")


class Torch:
    """A stream of PyTorch, and what the tests do there."""

    def __init__(self):
        self.lib = library("torch")
        self.stream = self.lib.cuda.Stream()
        self.warm_up(device="cuda")

    def warm_up(self, **where):
        """Have kernels loaded and memory at hand before a stream waits for a value: what is
        loaded meanwhile hangs (docs/driver-facts.md), and an allocation may."""
        with self.current():
            a = self.lib.zeros(SIZE // 4, dtype=self.lib.int32, **where)
            self.set(a, 1)
            copies = [self.copy_of(a) for _ in range(2 * BATCH)]
        self.synchronize()
        assert all(bool((copy == 1).all()) for copy in copies)

    def current(self):
        return self.lib.cuda.stream(self.stream)

    def set(self, a, value):
        a.fill_(value)

    def copy_of(self, a):
        return a.clone()

    def fill(self, slot, n):
        with self.current():
            self.set(self.lib.from_dlpack(slot.view("I32")), n * 12345)

    def copy(self, frame):
        with self.current():
            return self.copy_of(self.lib.from_dlpack(frame.view("I32")))

    def is_all(self, copy, n):
        return bool((copy == n * 12345).all())

    def bytes_of(self, copy):
        return copy.cpu().numpy().tobytes()

    def synchronize(self):
        self.stream.synchronize()


class CuPy(Torch):
    def __init__(self):
        self.lib = library("cupy")
        self.stream = self.lib.cuda.Stream(non_blocking=True)
        self.warm_up()

    def copy_of(self, a):
        return a.copy()

    def current(self):
        return self.stream

    def set(self, a, value):
        a.fill(value)

    def fill(self, slot, n):
        with self.current():
            self.set(self.lib.asarray(slot.view("I32")), n * 12345)

    def copy(self, frame):
        with self.current():
            return self.copy_of(self.lib.asarray(frame.view("I32")))

    def bytes_of(self, copy):
        return self.lib.asnumpy(copy).tobytes()


KINDS = {"torch": Torch, "cupy": CuPy}


def write(kind, path, frames, stays=""):
    """A process that writes by a stream of a library."""
    faulthandler.enable()  # also of SIGABRT: which thread it was, and whether the interpreter was ending
    k = KINDS[kind]()
    w = channel.Writer("cam", socket=path, slots=SLOTS, slot_size=SIZE, streams=True)
    print("ready", flush=True)
    w.await_readers(1, PATIENCE)
    for n in range(1, frames + 1):
        slot = w.acquire_on(k.stream)
        k.fill(slot, n)
        w.publish_on(k.stream, slot)
        if n % 64 == 0:
            k.synchronize()  # how far to queue ahead is ours to bound
    k.synchronize()
    print("synchronized", flush=True)
    time.sleep(99 if stays else 0)
    w.close()
    print("done; threads at the end:", ", ".join(threads()), flush=True)


def write_in_any_order(kind, path, frames, stays=""):
    """A process that writes by two streams of a library, in turn, to slots that come back in any order."""
    faulthandler.enable()
    both = [KINDS[kind]() for _ in range(2)]
    with channel.Writer("cam", socket=path, slots=4, slot_size=SIZE, any_order=True) as w:
        print("ready", flush=True)
        w.await_readers(1, PATIENCE)
        for n in range(1, frames + 1):
            slot, k = w.acquire(PATIENCE), both[n % 2]
            k.fill(slot, n)
            slot.publish(stream=k.stream)
        for k in both:
            k.synchronize()
        time.sleep(99 if stays else 0)
    print("done", flush=True)


def threads():
    """What runs in this process still: the system's threads, and then those of Python."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as f:
            yield f.read().strip()
    yield from (f"{t.name} of Python" for t in threading.enumerate())


# A process that fills memory as a writer does, of another type, and has nothing of gpufd. CuPy
# compiles a kernel the first time that a user needs it, and finds it on disk later.
ALONE = {
    "torch": "import torch; a = torch.zeros(9, device='cuda'); a.fill_(5); torch.cuda.synchronize()",
    "cupy": "import cupy; a = cupy.zeros(9); a.fill(5); cupy.cuda.Device().synchronize()",
}


@functools.lru_cache(maxsize=None)
def alone(kind):
    """How such a process ends: where a writer dies at its end, this tells whose fault it is."""
    p = subprocess.run([sys.executable, "-X", "faulthandler", "-c", ALONE[kind]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    SEEN.append((f"a process of {kind} without gpufd", f"exit {p.returncode} {' '.join(p.stdout.split())[-500:]}"))
    return SEEN[-1]


class Channels(common.Scene):
    def setUp(self):
        super().setUp()
        if not _driver.has_device():
            common.missing("gpu", "there is no GPU here")
        os.environ["GPUFD_DRIVER"] = "cuda"

    def nothing_left(self):
        """A GPU's driver keeps descriptors from its first use on."""

    def peer(self, kind, frames, stays="", does="write"):
        return self.python(f"import gpu_channel as g; g.{does}(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])", kind, self.path, str(frames), stays,
                           waits_for="ready")  # fmt: skip

    @contextlib.contextmanager
    def writes(self, kind, frames, stays="", does="write"):
        """A process that writes. What it said goes with whatever fails here."""
        library(kind)
        besides, p = alone(kind), self.peer(kind, frames, stays, does)
        try:
            yield p
            if not stays:
                self.ends(p, 0, "done")
        except BaseException as e:
            if p.poll() is None:
                p.kill()
            said = "" if p.stdout.closed else p.stdout.read()
            e.add_note(f"the writer: exit {p.wait()}, said {said!r} behind ready; {': '.join(besides)}")
            raise

    def by_stream(self, writer, reader, frames=10 * BATCH):
        k = KINDS[reader]()
        with self.writes(writer, frames):
            self.read(k, writer, reader, frames)

    def read(self, k, writer, reader, frames):
        with channel.Reader(socket=self.path, timeout=PATIENCE) as r:
            begin, bad = time.monotonic(), 0
            for first in range(1, frames + 1, BATCH):
                batch = []
                for n in range(first, first + BATCH):
                    f = r.next_on(k.stream)
                    batch.append((n, f, k.copy(f)))
                    r.release_on(k.stream, f)
                k.synchronize()
                for n, f, copy in batch:
                    r.check(f)
                    self.assertEqual(f.sequence, n)
                    bad += not k.is_all(copy, n)
                del f, copy, batch
            SEEN.append((f"{writer} to {reader}, by streams", f"{(time.monotonic() - begin) / frames * 1e6:.1f} us a frame of {SIZE} bytes"))
            self.assertEqual(bad, 0)

    def test_torch_to_torch(self):
        self.by_stream("torch", "torch")

    def test_cupy_to_torch(self):
        self.by_stream("cupy", "torch")

    def test_torch_to_cupy(self):
        self.by_stream("torch", "cupy")

    def test_any_order(self):
        """Two streams write in turn; two streams copy each frame, and give it back while others are kept."""
        for kind in KINDS:
            with self.subTest(kind):
                both, pick, frames = [KINDS[kind]() for _ in range(2)], random.Random(3), 200
                with self.writes(kind, frames, does="write_in_any_order"), channel.Reader(socket=self.path, wait=PATIENCE) as r:
                    begin, held, copies = time.monotonic(), [], []
                    for n in range(1, frames + 1):
                        f, k = r.next(PATIENCE), both[n % 2]
                        self.assertEqual(f.sequence, n)
                        copies.append(k.copy(f))
                        held.append((f, k))
                        while len(held) == 3 or n == frames and held:
                            one, k = held.pop(pick.randrange(len(held)))
                            one.release(k.stream)
                    for k in both:
                        k.synchronize()
                    SEEN.append((f"{kind}, in any order, by two streams each", f"{(time.monotonic() - begin) / frames * 1e6:.1f} us a frame of {SIZE} bytes"))
                    self.assertEqual([n for n, copy in enumerate(copies, 1) if not both[0].is_all(copy, n)], [])

    def go(self, *args, stdin=subprocess.DEVNULL):
        p = subprocess.Popen([str(programs() / "gpufd"), "channel", *args, "--socket", self.path, "--timeout", "60s"], stdin=stdin,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        self.addCleanup(lambda: (p.kill(), p.wait(), p.stdout.close(), p.stderr.close()))
        return p

    def test_go_reads_what_streams_write(self):
        """gpufd's reader, by the host, has every byte that streams of each library wrote."""
        for kind in KINDS:
            with self.subTest(kind):
                out = os.path.join(self.dir, "out")
                with self.writes(kind, 100):
                    r = self.go("read", "cam", "-o", out, "--json")
                    self.assertEqual(r.wait(PATIENCE), 0)
                with open(out, "rb") as f:
                    for n in range(1, 101):
                        self.assertEqual(f.read(SIZE), (n * 12345).to_bytes(4, "little") * (SIZE // 4), n)

    def test_libraries_read_what_go_writes(self):
        """By the host, as views of each library."""
        data = random.Random(5).randbytes(50 * SIZE)
        path = os.path.join(self.dir, "in")
        with open(path, "wb") as f:
            f.write(data)
        for kind in KINDS:
            with self.subTest(kind), open(path, "rb") as f:
                k = KINDS[kind]()
                p = self.go("write", "cam", "--slots", "4", "--slot-size", str(SIZE), stdin=f)
                with channel.Reader(socket=self.path, wait=PATIENCE) as r:
                    for frame in r.frames(PATIENCE):
                        copy = k.copy(frame)
                        k.synchronize()
                        self.assertEqual(k.bytes_of(copy), data[(frame.sequence - 1) * SIZE : frame.sequence * SIZE])
                        del copy
                    self.assertEqual((r.stats.received, r.stats.lost), (50, 0))
                    del frame
                self.assertEqual(p.wait(PATIENCE), 0)

    def test_writer_killed(self):
        """A stream that waits for a dead writer is freed, and nothing hangs."""
        for kind in KINDS:
            with self.subTest(kind):
                k = KINDS[kind]()
                with self.writes(kind, 3, "it does") as p, channel.Reader(socket=self.path) as r:
                    frames = [r.next_on(k.stream) for _ in range(5)]
                    wait_for(lambda: r._joined.words.load(_cursor.PUBLISHED) >= 3, "three frames")
                    p.kill()
                    begin = time.monotonic()
                    k.synchronize()
                    SEEN.append((f"{kind}: its stream goes on after the writer's death", f"{(time.monotonic() - begin) * 1e3:.1f} ms"))
                    self.assertLess(time.monotonic() - begin, 5)
                    wait_for(lambda: r.done, "the end of the writer")
                    r.check(frames[2])
                    for f in frames[3:]:
                        with common.raises(self, gpufd.LostError, "lost"):
                            r.check(f)
                    r.await_fence(PATIENCE)

    def test_reader_killed(self):
        """A stream of the writer's that waits for a dead reader is freed."""
        k = KINDS["torch"]()
        with channel.Writer("cam", socket=self.path, slots=2, slot_size=SIZE, streams=True) as w:
            p = self.python("import gpufd.channel, time\nr = gpufd.channel.Reader(socket=sys.argv[1]); print('ready'); time.sleep(99)", self.path, waits_for="ready")
            w.await_readers(1, PATIENCE)
            for n in range(1, 9):
                slot = w.acquire_on(k.stream)
                k.fill(slot, n)
                w.publish_on(k.stream, slot)
            time.sleep(0.1)
            self.assertFalse(w._tracker.idle())
            p.kill()
            begin = time.monotonic()
            k.synchronize()
            SEEN.append(("torch: its stream goes on after the reader's death", f"{(time.monotonic() - begin) * 1e3:.1f} ms"))
            del slot

    def test_the_reader_in_c(self):
        if not shutil.which("cc"):
            common.missing("cc", "there is no C compiler here")
        with tempfile.TemporaryDirectory() as directory:
            file = directory + "/channel"
            subprocess.run(["cc", "-O2", "-o", file, common.ROOT / "examples/c/channel.c", "-ldl"], check=True)
            for order in ("host", "stream"):
                with self.subTest(order):
                    with self.writes("torch", 100):
                        done = subprocess.run([file, "-socket", self.path, "-order", order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE)
                        self.assertEqual((done.returncode, done.stderr), (0, b""))
                        self.assertEqual(done.stdout, b"".join((n * 12345).to_bytes(4, "little") * (SIZE // 4) for n in range(1, 101)))


def tearDownModule():
    for what, found in SEEN:
        print(f"| {what} | {found} |")


if __name__ == "__main__":
    unittest.main()
