#!/usr/bin/env python3
"""CUDA's legacy IPC by CuPy alone, as programs use it that know nothing of gpufd.

	legacy_raw.py own SIZE SALT            makes the demo's data and prints HANDLE, OFFSET
	                                       and SIZE; frees when its input ends
	legacy_raw.py open HANDLE OFFSET SIZE SALT
	                                       opens memory by its handle and compares the data

Who makes memory and who opens it agree by other means on when it may be freed; here the
one that owns it waits until its input ends. Exit codes as of consumer.py.
"""

import sys

import demo
import gpufd
from demo import module, runtime_call


class Raw:
    """Device memory at an address, as demo.py wants it."""

    ordinal = 0

    def __init__(self, ptr, size):
        self.ptr, self.size = ptr, size

    def view(self, dtype):
        return self

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size // 4,), "typestr": "<i4", "data": (self.ptr, False), "strides": None, "version": 3}

    def bytes_at(self, at, n):
        cupy = module("cupy", "CuPy")
        owner = cupy.cuda.UnownedMemory(self.ptr, self.size, self)
        return cupy.ndarray((n,), dtype=cupy.uint8, memptr=cupy.cuda.MemoryPointer(owner, at))

    def read(self, at, n):
        return self.bytes_at(at, n).tobytes()

    def write(self, at, data):
        cupy = module("cupy", "CuPy")
        self.bytes_at(at, len(data))[:] = cupy.frombuffer(data, dtype=cupy.uint8)


def own(size, salt):
    ptr = runtime_call("malloc", size)  # not of CuPy's pool, so that it begins an allocation
    memory = Raw(ptr, size)
    demo.gpu_fill(demo.CuPy(memory), memory, salt)
    module("cupy", "CuPy").cuda.Device(0).synchronize()
    print(runtime_call("ipcGetMemHandle", ptr).hex(), 0, size)
    sys.stdin.read()
    runtime_call("free", ptr)


def open_(handle, offset, size, salt):
    module("cupy", "CuPy").cuda.Device(0).use()
    base = runtime_call("ipcOpenMemHandle", handle)
    memory = Raw(base + offset, size)
    library = demo.CuPy(memory)
    wrong = demo.gpu_compare(library, memory, salt, lambda done: None)
    del library
    runtime_call("ipcCloseMemHandle", base)
    if wrong:
        raise gpufd.Error(wrong)
    print(f"Data verification PASSED ({demo.count(size)} integers)")


def main():
    what, *args = sys.argv[1:] or [""]
    if what == "own" and len(args) == 2:
        own(int(args[0]), int(args[1], 0))
    elif what == "open" and len(args) == 4:
        open_(bytes.fromhex(args[0]), int(args[1]), int(args[2]), int(args[3], 0))
    else:
        raise gpufd.UsageError("legacy_raw.py own SIZE SALT, or open HANDLE OFFSET SIZE SALT")


if __name__ == "__main__":
    sys.exit(demo.run("legacy_raw.py", main))
