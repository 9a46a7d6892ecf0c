"""A stand-in for PyTorch over the stand-in for libcuda: tensors of bytes, whose copies are work of the current stream.

It has what gpufd.weights asks of PyTorch on a GPU, where nothing but the names of types is PyTorch's.
"""

import contextlib
import ctypes
import math
import threading
import types

from gpufd.memory import libcuda as cu
from gpufd.memory.cuda import context_of
from test_channelstreams import Stream


class CurrentStream(Stream):
    """A stream that waits for another one by an event, as PyTorch's does: the host does not."""

    def wait_stream(self, other):
        with self.lib.current(self.context):
            event = self.lib.made("cuEventCreate", 2)
            self.lib.call("cuEventRecord", event, other.handle)
            self.lib.call("cuStreamWaitEvent", self.handle, event, 0)
            self.lib.call("cuEventDestroy_v2", event)


class Tensor:
    """Bytes at an address: of the device, or of the host."""

    layout = "strided"
    is_meta = False
    torch = None  # whose current stream copies

    def __init__(self, at, shape, dtype, keeps, is_cuda=True):
        self.at, self.shape, self.dtype, self.keeps, self.is_cuda = at, tuple(shape), dtype, keeps, is_cuda
        self.device = "cuda:0" if is_cuda else "cpu"

    def _part(self, begin, shape):
        return Tensor(self.at + begin, shape, self.dtype, self.keeps, self.is_cuda)

    def __getitem__(self, part):
        return self._part(part.start, (part.stop - part.start,))

    def as_strided(self, shape, strides, begin=0):
        return self._part(begin, shape)

    def view(self, dtype):
        return self

    def reshape(self, *shape):
        return self

    def detach(self):
        return self

    def numel(self):
        return math.prod(self.shape)

    def is_conj(self):
        return False

    is_neg = is_conj

    def element_size(self):
        return 1

    def data_ptr(self):
        return self.at

    def clone(self):
        made = self.torch.empty(self.shape[0])
        made.copy_(self)
        return made

    def copy_(self, data, non_blocking=False):
        stream = self.torch.cuda.current_stream(0)
        with stream.lib.current(stream.context):
            stream.lib.call("cuMemcpyDtoDAsync_v2", self.at, data.at, self.shape[0], stream.handle)
        if not non_blocking:
            stream.synchronize()

    def pin_memory(self):
        return self

    def tobytes(self):
        """The bytes that are there now, whatever streams have still to do."""
        return ctypes.string_at(self.at, self.shape[0])


class Module:
    """A module that has tensors as buffers."""

    def __init__(self, **tensors):
        self._parameters, self._buffers = {}, tensors

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_buffers", ()):
            self._buffers[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name):
        try:
            return self.__dict__["_buffers"][name]
        except KeyError:
            raise AttributeError(name) from None

    def named_modules(self, remove_duplicate):
        return [("", self)]

    def named_buffers(self):
        return self._buffers.items()


class Torch(types.ModuleType):
    """PyTorch, whose current stream is that of on, in each thread."""

    Tensor, strided, uint8, bool = Tensor, Tensor.layout, "torch.uint8", "torch.bool"

    def __init__(self):
        super().__init__("torch")
        Tensor.torch = self
        self._current, self._kept = threading.local(), []  # memory that streams may use as long as this is there
        self.initialized = True
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: self.initialized, is_available=lambda: True, current_device=lambda: 0, current_stream=lambda ordinal: self._current.stream
        )
        self.nn = types.SimpleNamespace(Parameter=(), parameter=types.SimpleNamespace(is_lazy=lambda t: False))

    @contextlib.contextmanager
    def on(self, stream):
        before, self._current.stream = getattr(self._current, "stream", None), stream
        try:
            yield
        finally:
            self._current.stream = before

    def inference_mode(self, on):
        return contextlib.nullcontext()

    def device(self, kind, ordinal=0):
        return f"{kind}:{ordinal}"

    def as_tensor(self, data, device):
        there = data.__cuda_array_interface__
        return Tensor(there["data"][0], there["shape"], self.uint8, data)

    def frombuffer(self, data, dtype):
        raw = (ctypes.c_ubyte * len(data)).from_buffer(data)
        self._kept.append(raw)
        return Tensor(ctypes.addressof(raw), (len(data),), dtype, raw, is_cuda=False)

    def empty(self, size, dtype=None, device=None):
        return self.tensor(bytes(size))

    def empty_like(self, t, device):
        made = Tensor(0, t.shape, t.dtype, None)
        made.is_meta, made.device = True, device
        return made

    def tensor(self, data):
        """A tensor of the GPU that has these bytes."""
        made = self.frombuffer(bytearray(data), self.uint8)
        made.is_cuda, made.device = True, "cuda:0"
        return made
