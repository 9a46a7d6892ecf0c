"""What the tests have in common: where the package and the Go programs are."""

import contextlib
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import forks

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python"
sys.path.insert(0, str(PACKAGE))

PATIENCE = 60.0  # seconds that anything may take that is no matter of the test


def missing(what, text):
    """Skip a test, or fail it if GPUFD_REQUIRE lists what it needs: gpu, two, python, cc, namespaces, gstreamer."""
    if what in os.environ.get("GPUFD_REQUIRE", "").split(","):
        raise AssertionError(f"GPUFD_REQUIRE lists {what}, but {text}")
    raise unittest.SkipTest(text)


def need_numpy():
    try:
        import numpy
    except ImportError:
        missing("python", f"{sys.executable} has no NumPy")
    return numpy


@functools.lru_cache(maxsize=None)
def programs():
    """The directory of the Go programs: GPUFD_BIN, or they are built, once."""
    if os.environ.get("GPUFD_BIN"):
        return pathlib.Path(os.environ["GPUFD_BIN"]).resolve()
    go = shutil.which("go")
    if not go:
        missing("python", "there is no go here, and GPUFD_BIN does not say where the programs are")
    directory = tempfile.TemporaryDirectory(prefix="gpufd-bin-")
    programs.keep = directory  # until the process ends
    subprocess.run([go, "build", "-o", directory.name + "/", "./cmd/producer", "./cmd/consumer", "./cmd/gpufd"], cwd=ROOT, check=True,
                   env={**os.environ, "CGO_ENABLED": "0"})  # fmt: skip
    return pathlib.Path(directory.name)


@contextlib.contextmanager
def raises(case, kind, reason, text=""):
    """The block raises an error of that class and that reason, whose text has text in it."""
    with case.assertRaisesRegex(kind, text) as caught:
        yield caught
    is_error(case, caught.exception, kind, reason)


def is_error(case, error, kind, reason):
    """The error is of that class and that reason."""
    case.assertIsInstance(error, kind)
    case.assertEqual(error.reason, reason, error)


def error_of(case, kind, reason, f, *args, **options):
    """Call f, which raises that. Returns the error."""
    with raises(case, kind, reason) as caught:
        f(*args, **options)
    return caught.exception


def wait_for(true, what):
    """Wait until true says so."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} does not come")
        time.sleep(0.002)


def settled_fds():
    """The descriptors of this process, when none is being closed in the background."""
    for thread in threading.enumerate():
        if thread.name == "gpufd-close":
            thread.join(PATIENCE)
    return set(os.listdir("/proc/self/fd"))


class Scene(unittest.TestCase):
    """A directory with a socket's path, a software driver of its own, and a check that no
    descriptor is left."""

    def setUp(self):
        from gpufd.memory import mapped

        mapped.note()()  # its descriptor stays
        self.before = settled_fds()
        directory = tempfile.TemporaryDirectory(prefix="gpufd-")
        self.addCleanup(self.nothing_left)
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        self.path = os.path.join(self.dir, "s")
        self.environ(GPUFD_SOFT_DIR=os.path.join(self.dir, "soft"), GPUFD_DRIVER="soft")

    def environ(self, **values):
        before = {k: os.environ.get(k) for k in values}
        os.environ.update(values)

        def restore():
            for k, v in before.items():
                if v is None:
                    os.environ.pop(k, None)
                else:
                    os.environ[k] = v

        self.addCleanup(restore)

    def nothing_left(self):
        self.assertLessEqual(settled_fds(), self.before, "descriptors are left")

    def start(self, name, *flags, waits_for=None):
        """A Go program, which ends before the test does."""
        return self.run_program([str(programs() / name), *flags], waits_for)

    def python(self, text, *flags, waits_for=None):
        """A program in Python, which has the package."""
        head = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import common, gpufd\n"
        return self.run_program([sys.executable, "-B", "-u", "-c", head + text, *flags], waits_for)

    def run_program(self, command, waits_for=None):
        p = forks.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, p)
        if waits_for:
            said, watch = [], threading.Timer(PATIENCE, p.kill)  # reading its lines would wait for ever
            watch.start()
            try:
                for line in p.stdout:
                    said.append(line)
                    if waits_for in line:
                        break
            finally:
                watch.cancel()
                watch.join()
            if not said or waits_for not in said[-1]:
                self.fail(f"{command} did not say {waits_for!r} within {PATIENCE:g} s, or before it ended: {''.join(said)}")
        return p

    @staticmethod
    def end(p):
        p.kill()
        p.wait()
        p.stdin.close()
        p.stdout.close()

    def ends(self, p, code, *says):
        out, _ = p.communicate(timeout=PATIENCE)
        self.assertEqual(p.returncode, code, out)
        for text in says:
            self.assertIn(text, out)
        return out

    def producer(self, *flags):
        """gpufd's producer, which serves."""
        return self.start("producer", "--socket", self.path, *flags, waits_for="Waiting for consumer")


@contextlib.contextmanager
def quiet_excepthook():
    """Collect what threads fail with."""
    seen = []
    before, threading.excepthook = threading.excepthook, lambda args: seen.append(args.exc_value)
    try:
        yield seen
    finally:
        threading.excepthook = before
