"""CuPy: the legacy IPC handle of a fresh cudaMalloc over a multiprocessing pipe.

CuPy's memory pool is off, so every buffer is new to the driver.
"""

import ctypes
import sys

import rival

cupy = rival.need("cupy", "cupy")


class CuPy(rival.Side):
    name = "cupy"

    def __init__(self):
        cupy.cuda.set_allocator(None)
        cupy.cuda.Device(0).use()
        cupy.cuda.runtime.free(0)  # makes the primary context
        self.memory = None  # the producer's
        self.mapped, self.size = 0, 0  # the consumer's

    def info(self):
        return f"CuPy {cupy.__version__}"

    def make(self, size, salt):
        runtime = cupy.cuda.runtime
        self.memory = cupy.cuda.alloc(size)
        host = ctypes.create_string_buffer(salt, 8)
        for at in (self.memory.ptr, self.memory.ptr + size - 8):
            runtime.memcpy(at, ctypes.addressof(host), 8, runtime.memcpyHostToDevice)
        runtime.deviceSynchronize()
        self.size = size

    def give(self, conn):
        conn.send((cupy.cuda.runtime.ipcGetMemHandle(self.memory.ptr), self.size))

    def free(self):
        self.memory = None

    def take(self, conn, data):
        handle, self.size = rival.loads(data)
        self.mapped = cupy.cuda.runtime.ipcOpenMemHandle(handle)

    def read(self):
        runtime = cupy.cuda.runtime
        salts = []
        for at in (self.mapped, self.mapped + self.size - 8):
            host = ctypes.create_string_buffer(8)
            runtime.memcpy(ctypes.addressof(host), at, 8, runtime.memcpyDeviceToHost)
            salts.append(host.raw)
        return salts

    def drop(self):
        mapped, self.mapped = self.mapped, 0
        if mapped:
            cupy.cuda.runtime.ipcCloseMemHandle(mapped)


if __name__ == "__main__":
    sys.exit(rival.run(CuPy))
