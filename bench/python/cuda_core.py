"""cuda.core: a buffer of an IPC-enabled memory pool.

	cuda_core.py before|inside|object

inside is the shortest way that is documented: the buffer's descriptor in the
message, and the pool's file descriptor beside it. before is the same with the
buffer exported before the clock starts. object sends the Buffer and leaves the rest
to multiprocessing, as cuda.core's introduction does.

The driver keeps what is freed into an IPC-enabled pool, so a fresh buffer needs a
pool of its own. cuda.core exports a pool when it makes it, before the clock starts.

With cuda.core 1.2.0 and driver 580 the import of 8 GiB ends the consumer with a
segmentation fault.
"""

import ctypes
import importlib.metadata
import os
import sys
from multiprocessing import reduction

import rival

core = rival.need("cuda.core", "cuda.core")
driver = rival.need("cuda.bindings.driver", "cuda.bindings")


def check(result):
    """Raise if a driver call failed."""
    code = result[0]
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(driver.cuGetErrorString(code)[1].decode())


class CudaCore(rival.Side):
    def __init__(self, way):
        self.way = way
        self.name = f"cuda-core-{way}"
        self.device = core.Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.pool = self.buffer = self.fd = None

    def info(self):
        return f"cuda.core {importlib.metadata.version('cuda-core')}"

    def make(self, size, salt):
        options = core.DeviceMemoryResourceOptions(ipc_enabled=True)
        self.pool = core.DeviceMemoryResource(self.device, options)
        self.buffer = self.pool.allocate(size, stream=self.stream)
        self.stream.sync()
        host = ctypes.create_string_buffer(salt, 8)
        first = int(self.buffer.handle)
        for at in (first, first + size - 8):
            check(driver.cuMemcpyHtoD(at, ctypes.addressof(host), 8))
        check(driver.cuCtxSynchronize())
        if self.way == "before":
            _ = self.buffer.ipc_descriptor  # exports, and remembers it

    def give(self, conn, steps):
        start = rival.now()
        whole = self.way == "object"
        data = rival.dumps(self.buffer if whole else self.buffer.ipc_descriptor)
        steps.took("export", start)
        start = rival.now()
        conn.send_bytes(data)
        if not whole:
            reduction.send_handle(conn, int(self.pool.allocation_handle), None)
        steps.took("send", start)

    def take(self, conn, data, steps):
        start = rival.now()
        if self.way == "object":
            self.buffer = rival.loads(data)
            self.pool = self.buffer.memory_resource
        else:
            descriptor = rival.loads(data)
            self.fd = reduction.recv_handle(conn)
            steps.took("receive-fd", start)
            start = rival.now()
            self.pool = core.DeviceMemoryResource.from_allocation_handle(self.device, self.fd)
            self.buffer = core.Buffer.from_ipc_descriptor(self.pool, descriptor, stream=self.stream)
        steps.took("import", start)

    def read(self):
        first = int(self.buffer.handle)
        salts = []
        for at in (first, first + self.buffer.size - 8):
            host = ctypes.create_string_buffer(8)
            check(driver.cuMemcpyDtoH(ctypes.addressof(host), at, 8))
            salts.append(host.raw)
        return salts

    def free(self):
        buffer, pool, fd = self.buffer, self.pool, self.fd
        self.buffer = self.pool = self.fd = None
        if buffer is not None:
            buffer.close(self.stream)
        self.stream.sync()
        if pool is not None:
            pool.close()
        if fd is not None:
            os.close(fd)

    drop = free


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("before", "inside", "object"):
        sys.exit("usage: cuda_core.py before|inside|object")
    sys.exit(rival.run(CudaCore, sys.argv[1]))
