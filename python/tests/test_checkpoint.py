"""gpufd.torch.checkpoint: what it refuses, and its steps on a driver that is written here."""

import contextlib
import importlib.util
import mmap
import os
import signal
import subprocess
import sys
import unittest
from unittest import mock

import common
import gpufd
from gpufd.memory import libcuda, mapped

if importlib.util.find_spec("torch"):
    import gpufd.torch


def setUpModule():
    if not importlib.util.find_spec("torch"):
        common.missing("python", f"{sys.executable} has no PyTorch")


class Driver:
    """The driver's functions, for a process whose state is here. fails has results by step."""

    STATES = {"Lock": ("running", "locked"), "Checkpoint": ("locked", "checkpointed"), "Restore": ("checkpointed", "locked"), "Unlock": ("locked", "running")}

    def __init__(self, *lacks, devices=2, **fails):
        self.state, self.steps, self.fails, self.devices = "running", [], fails, devices
        self.pairs, self.milliseconds, self.after = [], None, lambda step: None
        for step in self.STATES:
            if step not in lacks:
                setattr(self, f"cuCheckpointProcess{step}", self.function(step))

        def get_state(pid, out):
            out._obj.value = libcuda.PROCESS_STATES.index(self.state)
            return fails.get("GetState", 0)

        def count(out):
            out._obj.value = self.devices
            return 0

        def get(out, ordinal):
            out._obj.value = ordinal
            return 0

        def uuid(out, device):
            out._obj.bytes[0] = device + 1
            return 0

        def nothing(code, out):
            return 1

        self.cuCheckpointProcessGetState, self.cuGetErrorName, self.cuGetErrorString = get_state, nothing, lambda code, out: 1
        self.cuDeviceGetCount, self.cuDeviceGet, self.cuDeviceGetUuid_v2 = count, get, uuid

    def function(self, step):
        def call(pid, args):
            self.steps.append(step)
            if step in self.fails:
                return self.fails[step]
            before, after = self.STATES[step]
            if self.state != before:
                return 401
            self.state = after
            if step == "Lock":
                self.milliseconds = args._obj.timeoutMs
            elif step == "Restore" and args is not None:
                given = args._obj
                self.pairs = [(given.gpuPairs[i].oldUuid.bytes[0] - 1, given.gpuPairs[i].newUuid.bytes[0] - 1) for i in range(given.gpuPairsCount)]
            self.after(step)
            return 0

        return call


# A process that looks as if it used CUDA: it has mapped a file of libcuda's name. It marks imports when it is told to.
CHILD = """
import mmap, os
from gpufd.memory import mapped
fd = os.open(sys.argv[1], os.O_RDONLY)
there = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print("ready", flush=True)
ends = []
for line in sys.stdin:
    if line == "import\\n":
        ends.append(mapped.note())
    else:
        ends.pop()()
    print("done", flush=True)
"""


class Checkpoints(common.Scene):
    def setUp(self):
        super().setUp()
        library = os.path.join(self.dir, "libcuda.so.1")
        with open(library, "wb") as f:
            f.write(bytes(mmap.PAGESIZE))
        self.child = self.python(CHILD, library, waits_for="ready")

    def tell(self, word):
        self.child.stdin.write(word + "\n")
        self.child.stdin.flush()
        self.assertEqual(self.child.stdout.readline(), "done\n")

    @contextlib.contextmanager
    def on(self, driver):
        with mock.patch.object(libcuda, "load", lambda: libcuda.Libcuda(driver)):
            yield driver

    def refused(self, kind, reason, text, driver, pid=None):
        """Nothing was done to the process."""
        with self.on(driver), common.raises(self, kind, reason, text):
            gpufd.torch.checkpoint(pid or self.child.pid)
        self.assertEqual(driver.state, "running")
        return driver.steps

    def test_there_and_back(self):
        with self.on(Driver()) as driver:
            with gpufd.torch.checkpoint(self.child.pid, timeout=1.5) as made:
                self.assertEqual((made.pid, made.state, driver.milliseconds), (self.child.pid, "checkpointed", 1500))
            self.assertEqual((made.state, driver.steps), ("running", ["Lock", "Checkpoint", "Restore", "Unlock"]))
            made.restore()
            self.assertEqual(len(driver.steps), 4)
            gpufd.torch.checkpoint(self.child.pid, timeout=None).restore()
            self.assertEqual(driver.milliseconds, 0)

    def test_an_error_of_the_body_restores(self):
        with self.on(Driver()) as driver, self.assertRaises(ZeroDivisionError), gpufd.torch.checkpoint(self.child.pid):
            1 / 0  # noqa: B018
        self.assertEqual(driver.state, "running")

    def test_memory_of_others_is_mapped(self):
        self.tell("import")
        self.tell("import")
        text = r"process \d+ has memory of other processes mapped \(2 imports\), .*: have it detach"
        self.assertEqual(self.refused(gpufd.InUseError, "in-use", text, Driver()), [])
        self.tell("end")
        self.refused(gpufd.InUseError, "in-use", r"\(1 import\)", Driver())
        self.tell("end")
        with self.on(Driver()) as driver:
            gpufd.torch.checkpoint(self.child.pid)
        self.assertEqual(driver.state, "checkpointed")

    def test_memory_that_is_mapped_while_the_process_is_being_locked(self):
        driver = Driver()
        driver.after = lambda step: step == "Lock" and self.tell("import")
        self.assertEqual(self.refused(gpufd.InUseError, "in-use", "1 import", driver), ["Lock", "Unlock"])

    def test_what_cannot_be_checkpointed(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.refused(gpufd.LostError, "lost", f"there is no process {gone.pid}", Driver(), gone.pid)
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as plain:
            self.refused(gpufd.UnavailableError, "unavailable", f"process {plain.pid} does not use CUDA", Driver(), plain.pid)
        for name in ("Lock", "Restore"):
            text = f"came with driver 570 .CUDA 12.8.: the driver has no cuCheckpointProcess{name}"
            self.refused(gpufd.UnavailableError, "unavailable", text, Driver(name))
        for pid in (0, -1, True, "1", 1 << 40, None):
            with self.subTest(pid), self.assertRaises(gpufd.UsageError):
                gpufd.torch.checkpoint(pid)
        for timeout in (0, -1, "1"):
            with self.subTest(timeout), self.assertRaises(gpufd.UsageError):
                gpufd.torch.checkpoint(self.child.pid, timeout=timeout)

    def test_a_process_that_is_checkpointed_already(self):
        """The supervisor that did it was killed: its successor restores."""
        with self.on(Driver()) as driver:
            gpufd.torch.checkpoint(self.child.pid)
            made = gpufd.torch.checkpoint(self.child.pid)
            self.assertEqual((made.state, driver.steps), ("checkpointed", ["Lock", "Checkpoint"]))
            made.restore()
            self.assertEqual(driver.state, "running")

    def test_a_process_that_is_locked(self):
        driver = Driver()
        driver.state = "locked"
        with self.on(driver), common.raises(self, gpufd.UsageError, "usage", r"is locked, and only a running one .*--action unlock --pid \d+"):
            gpufd.torch.checkpoint(self.child.pid)
        self.assertEqual((driver.state, driver.steps), ("locked", []))

    def test_an_interrupt(self):
        """It is undone, wherever it comes: a signal's handler runs when the driver's function has returned."""
        for at in ("Lock", "Checkpoint"):
            with self.subTest(at), self.on(Driver()) as driver:
                driver.after = lambda step: step == at and signal.raise_signal(signal.SIGINT)  # noqa: B023
                self.assertRaises(KeyboardInterrupt, gpufd.torch.checkpoint, self.child.pid)
                self.assertEqual(driver.state, "running")

    def test_this_process(self):
        with open(os.path.join(self.dir, "libcuda.so.1"), "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ), self.on(Driver()) as driver:
            with gpufd.torch.checkpoint(os.getpid()) as made:
                self.assertEqual(driver.state, "checkpointed")
                with common.raises(self, gpufd.UsageError, "usage", "cannot restore itself to another device"):
                    made.restore({0: 1})
            self.assertEqual(driver.state, "running")
            end = mapped.note()
            with common.raises(self, gpufd.InUseError, "in-use", "memory of other processes mapped"):
                gpufd.torch.checkpoint(os.getpid())
            end()

    def test_a_step_that_fails_is_named_and_undone(self):
        self.assertEqual(self.refused(gpufd.DriverError, "driver", r"cuCheckpointProcessLock: .*\(801\).*was not checkpointed, and goes on", Driver(Lock=801)), ["Lock"])
        self.assertEqual(self.refused(gpufd.TimedOutError, "timed-out", "not locked within 60 s", Driver(Lock=600)), ["Lock"])
        text = r"cuCheckpointProcessCheckpoint: .*\(2\).*was unlocked, and goes on"
        self.assertEqual(self.refused(gpufd.DriverError, "driver", text, Driver(Checkpoint=2)), ["Lock", "Checkpoint", "Unlock"])

    def test_a_restore_that_fails(self):
        with self.on(Driver(Restore=2)) as driver:
            made = gpufd.torch.checkpoint(self.child.pid)
            with common.raises(self, gpufd.DriverError, "driver", r"cuCheckpointProcessRestore: .*\(2\).*checkpointed still: call restore again"):
                made.restore()
            driver.fails.clear()
            made.restore()
            self.assertEqual(driver.state, "running")
            driver.fails["Unlock"] = 999
            made = gpufd.torch.checkpoint(self.child.pid)
            with common.raises(self, gpufd.DriverError, "driver", r"cuCheckpointProcessUnlock: .*\(999\).*it is restored"):
                made.restore()
            self.assertEqual(driver.state, "locked")
            driver.fails.clear()
            made.restore()
            self.assertEqual(driver.state, "running")

    def test_a_process_that_dies(self):
        with self.on(Driver(Restore=999)):
            made = gpufd.torch.checkpoint(self.child.pid)
            self.child.kill()
            self.child.wait()
            with common.raises(self, gpufd.LostError, "lost", f"process {self.child.pid} has ended: cuCheckpointProcessRestore"):
                made.restore()

    def test_another_device(self):
        """The driver is told all devices, each once."""
        with self.on(Driver(devices=3)) as driver:
            for device, pairs in (
                ({0: 1}, [(0, 1), (1, 0), (2, 2)]),
                ({2: 0, 0: 2}, [(0, 2), (1, 1), (2, 0)]),
                ({"GPU-01000000-0000-0000-0000-000000000000": "cuda:2"}, [(0, 2), (1, 1), (2, 0)]),
                ({0: 0}, [(0, 0), (1, 1), (2, 2)]),
            ):
                with self.subTest(device), mock.patch("gpufd.memory.cuda._devices", lambda: [bytes([i + 1]) + bytes(15) for i in range(3)]):
                    gpufd.torch.checkpoint(self.child.pid).restore(device)
                    self.assertEqual(driver.pairs, pairs)
            made = gpufd.torch.checkpoint(self.child.pid)
            with self.assertRaises(gpufd.UsageError):
                made.restore({0: 1, 2: 1})
            with common.raises(self, gpufd.MismatchError, "device"):
                made.restore({0: 3})
            self.assertEqual(driver.state, "checkpointed")
            made.restore()

    def test_the_mark_of_this_process_is_not_asked(self):
        with gpufd.allocate(4096) as memory, gpufd.offer("x", memory, socket=self.path), gpufd.attach(socket=self.path):
            self.assertGreater(mapped.imports_of(os.getpid()), 0)
            with self.on(Driver()) as driver:
                gpufd.torch.checkpoint(self.child.pid).restore()
            self.assertEqual(driver.state, "running")


if __name__ == "__main__":
    unittest.main()
