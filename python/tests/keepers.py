"""What tests of keepers share: keepers, of the Go program, on software devices of their own."""

import gc
import json
import os
import signal
import subprocess
import time

from common import PATIENCE, ROOT, Scene, programs

DEADLINE = PATIENCE
__all__ = ["DEADLINE", "ROOT", "Keeper", "KeeperTest", "program", "stop_store", "wait_for"]


def program():
    """The command gpufd."""
    return str(programs() / "gpufd")


class Keeper:
    """A keeper with its fd store; close ends both."""

    def __init__(self, directory, name="keeper", *flags):
        self.socket = os.path.join(directory, name)
        self.log = open(self.socket + ".log", "w+")
        command = [program(), "keeper", "--socket", self.socket, "--json", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        self.store = 0
        wait_for(self._started, f"the keeper at {self.socket}")

    def _started(self):
        with open(self.socket + ".log") as f:
            for line in f:
                if '"store_pid"' in line:
                    self.store = json.loads(line)["store_pid"]
        return self.store and os.path.exists(self.socket + ".ctl")

    def kill(self):
        """As kill -9 does, for another keeper to follow: the fd store lives."""
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.terminate()
        self.process.wait()
        stop_store(self.store)
        self.log.close()


def stop_store(pid):
    """End an fd store, and wait for its end."""
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    wait_for(lambda: _has_ended(pid), "the end of the fd store")


def _has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(done, what, within=DEADLINE):
    """Wait until done says so, and return what it says."""
    deadline = time.monotonic() + within
    while True:
        value = done()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {within:g} s")
        time.sleep(0.01)


class KeeperTest(Scene):
    """Tests with a directory of their own, software devices in it, and keepers."""

    def setUp(self):
        super().setUp()
        self.addCleanup(gc.collect)  # tensors of a module, which is a cycle
        self.directory = self.dir

    def keeper(self, name="keeper", *flags):
        k = Keeper(self.directory, name, *flags)
        self.addCleanup(k.close)
        return k

    def gpufd(self, *args):
        """What the command gpufd prints."""
        done = subprocess.run([program(), *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout
