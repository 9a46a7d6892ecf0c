"""The digest gpufd-d1 on a GPU, by the kernel that the Go module has in kernels/digest/digest.ptx."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

from . import libcuda as _driver
from .cuda import context_of
from .digest import Digester
from .libcuda import Libcuda

_THREADS = 256  # of a block
_BLOCKS = 8  # for each multiprocessor: as many as run at once
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def digest_ptx() -> bytes:
    """The kernel's PTX, as it is beside this file."""
    with open(os.path.join(os.path.dirname(__file__), "digest.ptx"), "rb") as f:
        return f.read()


class DeviceDigester:
    """Makes digests on a GPU, in its primary context. Parts are queued on a stream, and added
    to one pair of sums. Not for two threads at a time. close gives everything back."""

    def __init__(self, cu: Libcuda, ordinal: int) -> None:
        self.cu = cu
        self._undo: list[Callable[[], None]] = []
        self._most = _BLOCKS * cu.attribute(cu.device(ordinal), _MULTIPROCESSORS)
        self._end = 0
        try:
            self.context = context_of(ordinal)
            with cu.current(self.context):
                module = cu.made("cuModuleLoadData", digest_ptx() + b"\0")
                self._undo.append(lambda: self._in_context("cuModuleUnload", module))
                self._kernel = cu.made("cuModuleGetFunction", module, b"digest")
                self._sums = cu.made("cuMemAlloc_v2", 16, of=_driver.PTR)
                self._undo.append(lambda: self._in_context("cuMemFree_v2", self._sums))
            self.reset()
        except BaseException:
            self.close()
            raise

    def _in_context(self, name: str, *args: Any) -> None:
        with self.cu.current(self.context):
            self.cu.call(name, *args)

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def reset(self) -> None:
        """Begin anew."""
        self._end = 0
        self._in_context("cuMemsetD8Async", self._sums, 0, 16, None)
        self._in_context("cuStreamSynchronize", None)

    def add(self, ptr: int, offset: int, size: int, stream: int = 0) -> None:
        """Queue a part on a stream: size bytes at ptr, which begin at offset of the data.
        ptr is a multiple of 16, offset of 8, and size unless the data ends there."""
        self._end = max(self._end, offset + size)
        if not size:
            return
        values = (ctypes.c_uint64(ptr), ctypes.c_uint64(size), ctypes.c_uint64(offset // 8), ctypes.c_uint64(self._sums))
        args = (c_void_p * 4)(*(ctypes.addressof(v) for v in values))
        quads = -(-size // 16)
        blocks = max(1, min(-(-quads // _THREADS), self._most))
        self._in_context("cuLaunchKernel", self._kernel, blocks, 1, 1, _THREADS, 1, 1, 0, c_void_p(stream), args, None)

    def digest(self) -> str:
        """The digest of all that was added, when the device is done with it."""
        words = (ctypes.c_uint64 * 2)()
        self._in_context("cuCtxSynchronize")
        self._in_context("cuMemcpyDtoHAsync_v2", ctypes.addressof(words), self._sums, 16, None)
        self._in_context("cuStreamSynchronize", None)
        d = Digester()
        d.add_sums(words[0], words[1], self._end)
        return d.digest()

