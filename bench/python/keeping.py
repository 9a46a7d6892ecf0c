"""What the scripts of the keeper share: the package, a keeper of their own, JSON lines.

GPUFD says where the command gpufd is (or else PATH), GPUFD_PYTHON where the package is, if it
is not installed.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.environ.get("GPUFD_PYTHON") or os.path.join(ROOT, "python"))
GPUFD = os.environ.get("GPUFD") or shutil.which("gpufd") or "gpufd"


def say(**fields):
    """One line of JSON."""
    sys.stdout.write(json.dumps(fields) + "\n")  # in one go: ranks share their output
    sys.stdout.flush()


@contextlib.contextmanager
def keeper(name="keeper"):
    """A keeper, for its socket's path; keeper and fd store end with it."""
    directory = tempfile.mkdtemp(prefix="gpufd-")
    socket = os.path.join(directory, name)
    with open(socket + ".log", "w") as log:
        process = subprocess.Popen([GPUFD, "keeper", "--socket", socket, "--json"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    store = 0
    try:
        deadline = time.monotonic() + 30
        while not store:
            if process.poll() is not None or time.monotonic() > deadline:
                with open(socket + ".log") as log:
                    raise SystemExit(f"the keeper did not start: {log.read()}")
            time.sleep(0.02)
            with open(socket + ".log") as log:
                for line in log:
                    if '"store_pid"' in line:
                        store = json.loads(line)["store_pid"]
        yield socket
    finally:
        process.terminate()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(store, 15) if store else None
        shutil.rmtree(directory, ignore_errors=True)


def median(values):
    return sorted(values)[len(values) // 2]
