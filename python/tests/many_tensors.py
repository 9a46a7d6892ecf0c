"""How long a model of many small tensors takes to put and to get, by Python and by Go.

    GPUFD_BIN=../build python3 tests/many_tensors.py [100000]

It prints seconds of CPU of the whole process, and of the clock. It is no test: it measures.
"""

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time

import common
from keepers import Keeper, program

PUT = "import sys, gpufd; gpufd.put('python', sys.argv[2], socket=sys.argv[1], timeout=300)"
GET = "import sys, gpufd; gpufd.get('python', socket=sys.argv[1], timeout=300).save(sys.argv[2])"


def write(path, n):
    header, size = {}, 16
    for i in range(n):
        header[f"model.layers.{i // 10}.experts.{i % 10}.weight"] = {"dtype": "BF16", "shape": [2, 4], "data_offsets": [i * size, (i + 1) * size]}
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + os.urandom(n * size))


def run(what, *command):
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, cwd=common.PACKAGE, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what:12} {cpu:6.2f} s of CPU, {time.monotonic() - begin:6.2f} s", flush=True)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory(prefix="gpufd-") as directory:
        os.environ.update(GPUFD_SOFT_DIR=os.path.join(directory, "soft"), GPUFD_DRIVER="soft")
        path, out = os.path.join(directory, "model.safetensors"), os.path.join(directory, "out")
        write(path, n)
        keeper = Keeper(directory)
        try:
            run("Go put", program(), "--socket", keeper.socket, "put", "go", path)
            run("Python put", sys.executable, "-B", "-c", PUT, keeper.socket, path)
            run("Go get", program(), "--socket", keeper.socket, "get", "go", "-o", out)
            run("Python get", sys.executable, "-B", "-c", GET, keeper.socket, out + "-python")
        finally:
            keeper.close()


if __name__ == "__main__":
    main()
