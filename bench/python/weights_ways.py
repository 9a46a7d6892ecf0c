"""The ways that weights.py measures. Each has the trainer's half (offer, meet, prepare, update) and the engine's (join, take, wrong)."""

import functools
import gc
import time

import keeping  # noqa: F401  # first: it says where the package is
import torch

import gpufd

CUDA = torch.cuda.is_available()
ALIGNMENT, PARTS, PATIENCE = 256, 32, 30.0


def use(device):
    if CUDA:
        torch.cuda.set_device(device)


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def clear():
    """Give memory that nobody uses back to the device."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def empty(*shape, dtype=torch.bfloat16, device="cuda" if CUDA else "cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


def uuid(device):
    """The name of a GPU for Subscriber, or None without CUDA."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if CUDA else None


def bytes_of(t):
    return t.numel() * t.element_size()


# Values that are written: each tensor has its own values for each update.


@functools.cache
def noise(device, count):
    """Random 16-bit words, the same in each process."""
    return torch.randint(-(1 << 15), 1 << 15, (count,), dtype=torch.int16, generator=torch.Generator().manual_seed(1)).to(device)


def expected(tensors, value):
    """All bits of each tensor of an update: the tensor as 16-bit words, the noise, and what is added to that."""
    count = max(t.numel() for t in tensors)
    for i, t in enumerate(tensors):
        yield t.detach().view(torch.int16).view(-1), noise(t.device, count)[: t.numel()], (641 * value + 257 * i) % 65536 - 32768


def write(tensors, value):
    for words, base, added in expected(tensors, value):
        torch.add(base, added, out=words)


def differing(tensors, value):
    """How many tensors have a byte that the update has not written."""
    return int(torch.stack([(words != base + added).any() for words, base, added in expected(tensors, value)]).sum())


def shapes(size):
    """Tensors of the layers of a transformer, as many as size has room for: name, shape."""
    w = 4096 if size >= 1 << 30 else 128
    layer = {"q": (w, w), "k": (w // 4, w), "v": (w // 4, w), "o": (w, w), "gate": (7 * w // 2, w), "up": (7 * w // 2, w), "down": (w, 7 * w // 2), "norm": (w,)}
    for i in range(max(1, size // (26 * w * w))):
        yield from ((f"{i}.{name}", shape) for name, shape in layer.items())


class Memory:
    """The memory that the ways of a process have in common: the trainer's weights, or the engine's storage."""

    def __init__(self, o, there=None):
        """there is the device that weights are copied to without an engine, if it is another one."""
        self.o, self.there = o, there

    @functools.cached_property
    def weights(self):
        return {name: empty(*shape) for name, shape in shapes(self.o.size)}

    @functools.cached_property
    def copies(self):
        return {name: torch.zeros_like(t, device=self.there or t.device) for name, t in self.weights.items()}

    @functools.cached_property
    def module(self):
        """Weights for the ways in place, in PARTS tensors."""
        m = torch.nn.Module()
        for i in range(PARTS):
            m.register_parameter(f"p{i}", torch.nn.Parameter(empty(self.o.in_place // 2 // PARTS), requires_grad=False))
        return m


def packed(weights, room):
    """Yield the tensors of each bucket, with their places."""
    batch, at = [], 0
    for name, t in weights.items():
        if batch and at + bytes_of(t) > room:
            yield batch
            batch, at = [], 0
        batch.append((name, at))
        at += -(-bytes_of(t) // ALIGNMENT) * ALIGNMENT
    yield batch


def inside(bucket, at, like):
    """The place of a tensor in a bucket."""
    return bucket[at : at + bytes_of(like)].view(like.dtype).view(like.shape)


class Way:
    """The trainer writes its tensors, and hands them over. Then those of the engine have to be the same."""

    needs_cuda, alone = False, False  # alone: there is no engine
    ours = None  # this process's publisher or subscriber
    writing = 0  # nanoseconds of the last update in which the trainer wrote its weights

    def __init__(self, memory, link, queues=None):
        self.memory, self.link, self.o = memory, link, memory.o
        self.todo, self.done = queues or (None, None)

    def source(self):
        """The trainer's tensors."""
        return list(self.memory.weights.values())

    def target(self):
        """The engine's."""
        return self.source()

    def size(self):
        return sum(map(bytes_of, self.source()))

    def prepare(self, value):
        write(self.source(), value)

    def wrong(self, value):
        """How many of the engine's tensors are not what the trainer wrote."""
        return differing(self.target(), value)

    def offer(self):
        """Have the trainer ready for updates, before the engine joins."""

    def join(self):
        """Have the engine ready for updates."""

    def meet(self):
        """Do the trainer's part while the engine joins."""

    def leave(self):
        """End this process's half."""
        if self.ours:
            self.ours.close()


class Alone(Way):
    """Copies in one process: what there is without gpufd."""

    alone = True

    def target(self):
        return list(self.memory.copies.values())


class TwoCopies(Alone):
    """To a bucket and from there to storage."""

    def offer(self):
        self.bucket = empty(self.o.bucket, dtype=torch.uint8)

    def update(self, value):
        for batch in packed(self.memory.weights, self.o.bucket):
            for name, at in batch:
                inside(self.bucket, at, self.memory.weights[name]).copy_(self.memory.weights[name])
            for name, at in batch:
                self.memory.copies[name].copy_(inside(self.bucket, at, self.memory.weights[name]))


class OneCopy(Alone):
    """The write that a trainer cannot do without; to another GPU if the engine's is another one."""

    def update(self, value):
        for name, t in self.memory.weights.items():
            self.memory.copies[name].copy_(t, non_blocking=True)


class Gpufd(Way):
    def offer(self):
        self.ours = gpufd.weights.Publisher("policy", self.memory.weights, bucket=self.o.bucket)

    def meet(self):
        self.ours.await_subscribers(1, PATIENCE)

    def update(self, value):
        with self.ours.update(value) as send:
            for name, t in self.memory.weights.items():
                send(name, t)

    def join(self):
        self.ours = gpufd.weights.Subscriber("policy", publisher=self.link.get("publisher"))

    def take(self):
        self.ours.next(PATIENCE).load(self.load)

    def load(self, tensors):
        for name, t in tensors:
            self.memory.weights[name].copy_(t)


class Bucket(Way):
    """A bucket that both processes have for good."""

    needs_cuda = True

    def offer(self):
        self.bucket = empty(self.o.bucket, dtype=torch.uint8)
        self.todo.put(self.bucket)

    def update(self, value):
        for batch in packed(self.memory.weights, self.o.bucket):
            for name, at in batch:
                inside(self.bucket, at, self.memory.weights[name]).copy_(self.memory.weights[name])
            synchronize()
            self.todo.put(batch)
            self.done.get(timeout=PATIENCE)
        self.todo.put(None)

    def join(self):
        self.bucket = self.todo.get(timeout=PATIENCE)

    def take(self):
        while (batch := self.todo.get(timeout=PATIENCE)) is not None:
            for name, at in batch:
                self.memory.weights[name].copy_(inside(self.bucket, at, self.memory.weights[name]))
            synchronize()
            self.done.put(True)

    def leave(self):
        self.bucket = None


class Queue(Way):
    """Tensors that are pickled anew for each update, as torch.multiprocessing's reduce_tensor does."""

    needs_cuda = True

    def update(self, value):
        synchronize()
        self.todo.put(self.memory.weights)
        self.done.get(timeout=PATIENCE)

    def take(self):
        for name, t in self.todo.get(timeout=PATIENCE).items():
            self.memory.weights[name].copy_(t)
        synchronize()
        self.done.put(True)


class GpufdInPlace(Way):
    """The engine computes on what the trainer writes. The trainer may only write within the update, so that time is not counted."""

    def source(self):
        return list(self.memory.module.parameters())

    def prepare(self, value):
        pass

    def offer(self):
        self.ours = gpufd.weights.Publisher("in-place", self.memory.module.named_parameters(), in_place=True)
        self.ours.bind(self.memory.module)

    def meet(self):
        self.ours.await_subscribers(1, PATIENCE)
        self.update(0)

    def update(self, value):
        with self.ours.update(value):
            begin = time.monotonic_ns()
            write(self.source(), value)
            synchronize()
            self.writing = time.monotonic_ns() - begin

    def join(self):
        self.ours = gpufd.weights.Subscriber("in-place")
        self.ours.bind(self.memory.module)

    def take(self):
        self.ours.next(PATIENCE).load()


class QueueInPlace(Way):
    """As Queue, and the engine uses what it is sent. PyTorch cannot send gpufd's memory, so the tensors are others."""

    needs_cuda = True
    tensors = ()

    def source(self):
        return self.tensors

    def offer(self):
        self.tensors = [torch.zeros_like(p) for p in self.memory.module.parameters()]

    def update(self, value):
        synchronize()
        self.todo.put(self.tensors)

    def take(self):
        self.tensors = self.todo.get(timeout=PATIENCE)

    def leave(self):
        self.tensors = ()


WAYS = {
    "two copies": TwoCopies,
    "one copy": OneCopy,
    "gpufd": Gpufd,
    "bucket": Bucket,
    "queue": Queue,
    "gpufd in place": GpufdInPlace,
    "queue in place": QueueInPlace,
}
