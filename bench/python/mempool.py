"""What PyTorch's allocator allows beside gpufd's memory: docs/driver-facts.md, "PyTorch as a neighbour".

    python3 mempool.py

Each line is a probe in a process of its own: a torch.cuda.MemPool over gpufd's memory, by ctypes callbacks, in one
thread and in two; the same where PyTorch gives its lock back; and whether PyTorch's expandable segments are exported.
A process that hangs is ended after 30 s, and that is its result.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
import time

import keeping  # first: it says where the package is
import gpufd

SECONDS, PATIENCE = 10.0, 30.0
RELEASED = {"PYTORCH_CUDA_ALLOC_CONF": "release_lock_on_cudamalloc:True"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
PROBES = {
    "one thread": ({}, "one"),
    "two threads": ({}, "two"),
    "two threads, the lock given back": (RELEASED, "two"),
    "expandable segments": (EXPANDABLE, "export"),
    "expandable segments, TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0": ({**EXPANDABLE, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0"}, "export"),
    "no expandable segments": ({}, "export"),
}
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def main():
    if len(sys.argv) > 1:
        {"one": lambda: pools(1), "two": lambda: pools(2), "export": export}[sys.argv[1]]()
        return
    for name, (environment, probe) in PROBES.items():
        child = subprocess.Popen([sys.executable, __file__, probe], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said, error = child.communicate(timeout=PATIENCE)
            result = said.strip() or next((line.strip() for line in error.splitlines() if "ASSERT" in line or "Error" in line), f"exit {child.returncode}")
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            result = f"hangs: no end after {PATIENCE:g} s"
        print(f"{name}: {result[:200]}", flush=True)


def pools(threads):
    """Make tensors in pools over gpufd's memory, each thread in pools of its own."""
    import torch

    torch.zeros(1, device="cuda")
    made, gone = {}, []

    def allocate(size, device, stream):
        memory = gpufd.allocate(size, device=device, driver="cuda")
        made[memory.ptr] = memory
        return memory.ptr

    def free(ptr, size, device, stream):
        gone.append(made.pop(ptr))  # closing waits for the device, which is not for here

    calls = ALLOCATE(allocate), FREE(free)
    allocator = torch._C._cuda_customAllocator(*(ctypes.cast(call, ctypes.c_void_p).value for call in calls))
    end, rounds = time.monotonic() + SECONDS, [0] * threads

    def inside(i):
        while time.monotonic() < end:
            pool = torch.cuda.MemPool(allocator)
            with torch.cuda.use_mem_pool(pool):
                some = [torch.UntypedStorage(n << 20, device="cuda") for n in (1, 24, 48)]
            assert all(any(p <= s.data_ptr() < p + m.size for p, m in list(made.items())) for s in some)
            del some, pool
            torch.cuda.synchronize()
            with contextlib.suppress(IndexError):
                while True:
                    gone.pop().close(force=True)
            rounds[i] += 1

    others = [threading.Thread(target=inside, args=(i,)) for i in range(1, threads)]
    for thread in others:
        thread.start()
    inside(0)
    for thread in others:
        thread.join()
    print(json.dumps({"rounds": rounds}), flush=True)
    os._exit(0)  # PyTorch may still free what callbacks have made


def export():
    """Export memory of PyTorch's as a descriptor."""
    import torch

    small, large = torch.ones(10, device="cuda"), torch.ones(100 << 20, dtype=torch.uint8, device="cuda")
    cu, found = ctypes.CDLL("libcuda.so.1"), {}
    for name, tensor in (("small", small), ("large", large)):
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        codes = [cu.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(tensor.data_ptr()))]
        if codes == [0]:
            codes.append(cu.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_uint64(0)))
        found[name] = {"retain, export": codes}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
