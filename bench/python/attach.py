"""Attaching alone, for several sizes: gpufd from a keeper, torch.multiprocessing and CuPy IPC.

    python3 attach.py [--gib 1,16,64] [--rounds 20] [--rivals gpufd,torch,cupy]
    ATTACH_VARIANT=threads:4 ATTACH_CHUNK=1073741824 python3 attach.py --rivals gpufd

Of each rival one process has the memory and another takes it, reads its first and last bytes and
lets go; the time is that until the memory is in hand, in the process that takes it. The driver is
up there. torch.multiprocessing and CuPy open a handle that their producer still has to hold. Only
one rival's memory is there at a time, so 64 GiB take a GPU of 80.

Behind the times of gpufd comes where they go, from rounds of their own in which each step and each
call of the driver is timed: the milliseconds of a round, and how often it is done there, while it
attaches ("attach") and while it lets go ("let go"). driver_ms are those of the driver's calls while it
attaches, which a C program with as many chunks needs as well, and over_driver is how many times that
the whole is.

ATTACH_CHUNK is the size of gpufd's chunks, by default the package's. ATTACH_VARIANT has gpufd attach in
another way than the package does, to see whether that pays:

    threads:N         N threads import and map; then one call sets the access of all
    access-threads:N  N threads set the access of their share, too
    access-each       a call for each chunk sets its access
    unmap-all         one call unmaps all chunks
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import time
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler

import keeping

GIB = 1 << 30
PATIENCE = 120.0
DEVICE = os.environ.get("ATTACH_DEVICE", "cuda")  # cpu tries this program on the software driver, with --rivals gpufd
CHUNK = int(os.environ.get("ATTACH_CHUNK", "0"))
VARIANT = os.environ.get("ATTACH_VARIANT", "")


# Who has the memory: "make SIZE" and "free" come by a pipe, and "give" asks for a token of it.


class Keeper:
    """Has a keeper keep tensors of 1 GiB, as gpufd.torch.put does with a model's."""

    def __init__(self, socket):
        import gpufd.torch
        import torch

        self.gpufd, self.torch, self.client = gpufd, torch, gpufd.Client(socket)

    def make(self, size):
        self.most = self.in_use() + size // 16
        sizes = [min(GIB, size - at) for at in range(0, size, GIB)]
        state = {f"t{i}": self.torch.full((n,), 7, dtype=self.torch.uint8, device=DEVICE) for i, n in enumerate(sizes)}
        self.gpufd.torch.put("model", state, socket=self.client, chunk=CHUNK)

    def free(self):
        """The keeper gives back in its own time what nobody holds any more."""
        self.client.remove("model")
        end = time.monotonic() + PATIENCE
        while self.in_use() > self.most and time.monotonic() < end:
            time.sleep(0.01)

    def in_use(self):
        """Bytes of the device, also those of other processes."""
        if DEVICE == "cpu":
            return 0
        free, total = self.torch.cuda.mem_get_info()
        return total - free


class Torch:
    def __init__(self, socket):
        import torch

        self.torch, self.t = torch, None

    def make(self, size):
        self.t = self.torch.full((size,), 7, dtype=self.torch.uint8, device="cuda")
        self.torch.cuda.synchronize()

    def give(self):
        return bytes(ForkingPickler.dumps(self.t))

    def free(self):
        self.t = None
        self.torch.cuda.ipc_collect()
        self.torch.cuda.empty_cache()


class CuPy:
    def __init__(self, socket):
        import cupy

        self.cupy, self.t = cupy, None
        cupy.cuda.set_allocator(None)

    def make(self, size):
        self.t = self.cupy.full(size, 7, dtype=self.cupy.uint8)
        self.cupy.cuda.Device().synchronize()

    def give(self):
        return bytes(self.cupy.cuda.runtime.ipcGetMemHandle(self.t.data.ptr))

    def free(self):
        self.t = None


# Who takes it: take returns two arrays, of which the first begins and the second ends the memory.


class FromKeeper:
    def __init__(self, socket):
        import gpufd.torch
        import torch

        torch.zeros(1, device=DEVICE)
        self.gpufd, self.socket = gpufd, socket
        use_variant(VARIANT)

    def take(self, size, ask):
        held = self.gpufd.torch.load("model", socket=self.socket)
        return held["t0"], held[f"t{(size - 1) // GIB}"]

    def drop(self):
        pass


def use_variant(variant):
    """Have the package's memory attach in another way, in this process."""
    from gpufd.memory.cuda import CudaMemory

    name, _, n = variant.partition(":")
    if name in ("threads", "access-threads"):
        CudaMemory._import_all, CudaMemory._map_all = by_threads(int(n), name == "access-threads")
    elif name == "access-each":
        CudaMemory._map_all = one_by_one
    elif name == "unmap-all":
        CudaMemory._map_all = unmapped_at_once
    elif name:
        raise SystemExit(f"ATTACH_VARIANT={variant}: threads:N, access-threads:N, access-each or unmap-all")


def by_threads(n, access):
    """_import_all and _map_all by n threads, which live as long as the process."""
    pool = concurrent.futures.ThreadPoolExecutor(n)

    def shares(self, count, work):
        each = -(-count // n)

        def share(first):
            with self.cu.current(self.context):
                return work(first, min(first + each, count))

        return list(pool.map(share, range(0, count, each)))

    def import_all(self, fds):
        return sum(shares(self, len(fds), lambda first, end: [self._imported(fd) for fd in fds[first:end]]), [])

    def map_all(self, mapping, ptr):
        def work(first, end):
            for i in range(first, end):
                self._map_chunk(mapping, ptr, i)
            if access:
                self._set_access(ptr, first, end)

        shares(self, self.chunks, work)
        if not access:
            self._set_access(ptr, 0, self.chunks)

    return import_all, map_all


def one_by_one(self, mapping, ptr):
    for i in range(self.chunks):
        self._map_chunk(mapping, ptr, i)
        self._set_access(ptr, i, i + 1)


def unmapped_at_once(self, mapping, ptr):
    for i in range(self.chunks):
        self.cu.call("cuMemMap", ptr + i * self.chunk, self.chunk, 0, self._handles[i], 0)
    mapping.callback(self.cu.call, "cuMemUnmap", ptr, self.chunks * self.chunk)
    self._set_access(ptr, 0, self.chunks)


class FromTorch:
    def __init__(self, socket):
        import torch

        torch.zeros(1, device="cuda")
        self.collect = torch.cuda.ipc_collect

    def take(self, size, ask):
        t = ForkingPickler.loads(ask())
        return t, t

    def drop(self):
        self.collect()


class FromCuPy:
    def __init__(self, socket):
        import cupy

        cupy.zeros(1)
        self.cupy = cupy

    def take(self, size, ask):
        cuda = self.cupy.cuda
        self.at = cuda.runtime.ipcOpenMemHandle(ask())
        t = self.cupy.ndarray((size,), self.cupy.uint8, cuda.MemoryPointer(cuda.UnownedMemory(self.at, size, None), 0))
        return t, t

    def drop(self):
        self.cupy.cuda.runtime.ipcCloseMemHandle(self.at)


RIVALS = {"gpufd": (Keeper, FromKeeper), "torch": (Torch, FromTorch), "cupy": (CuPy, FromCuPy)}


def produce(how, socket, conn, asked):
    """Do what this program says, and give the consumer what it asks for, until they are gone."""
    side = RIVALS[how][0](socket)
    conn.send("ready")
    while True:
        try:
            for ready in connection.wait([conn, asked]):
                what, *args = ready.recv()
                ready.send(getattr(side, what)(*args))
        except EOFError:
            return


def consume(how, socket, producer, conn):
    side = RIVALS[how][1](socket)

    def ask():
        producer.send(("give",))
        return producer.recv()

    conn.send("ready")
    while True:
        try:
            size, rounds = conn.recv()
        except EOFError:
            return
        once(side, size, ask)  # the first imports what is imported on first use
        times = [once(side, size, ask) for _ in range(rounds)]
        conn.send((times, steps(lambda phase: once(side, size, ask, phase), rounds) if how == "gpufd" else {}))


def once(side, size, ask, phase=lambda name: None):
    phase("attach")
    begin = time.perf_counter()
    first, last = side.take(size, ask)
    took = time.perf_counter() - begin
    phase("let go")
    if (int(first[0]), int(last[-1])) != (7, 7):
        raise SystemExit("the bytes are others")
    del first, last
    side.drop()
    return took


def steps(once, rounds):
    """What of a round goes where: the steps of attaching, and within them the calls of the driver. Of
    each phase the milliseconds and calls of a round by name."""
    import gpufd.torch
    from gpufd.memory import base as _memory
    from gpufd.memory import libcuda as _driver
    from gpufd.share import attaching as _attaching
    from gpufd.torch import weights as _weights
    from gpufd.wire import conn as _conn

    spent, counts = {"attach": {}, "let go": {}}, {"attach": {}, "let go": {}}
    now = []

    def timed(name, f):
        def call(*args, **kwargs):
            label = name or args[1]
            begin = time.perf_counter()
            try:
                return f(*args, **kwargs)
            finally:
                of, calls = spent[now[-1]], counts[now[-1]]
                of[label] = of.get(label, 0.0) + time.perf_counter() - begin
                calls[label] = calls.get(label, 0) + 1

        return call

    places = [
        (gpufd.torch, "load", "all"),
        (_attaching.Attaching, "__init__", "connect"),
        (_attaching.Attaching, "take", "ask and receive"),
        (_conn.Conn, "wait", "wait for the keeper"),
        (_attaching.Attaching, "map", "map"),
        (_attaching.Attaching, "say", "say"),
        (_weights, "tensors", "tensors"),
        (_memory.Memory, "close", "let go"),
        (_driver.Libcuda, "code", ""),
    ]
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in places]
    for where, attribute, label in places:
        setattr(where, attribute, timed(label, getattr(where, attribute)))
    try:
        for _ in range(rounds):
            once(now.append)
    finally:
        for where, attribute, was in before:
            setattr(where, attribute, was)
    return {
        phase: {name: [round(1e3 * s / rounds, 4), counts[phase][name] / rounds] for name, s in sorted(of.items(), key=lambda kv: -kv[1])}
        for phase, of in spent.items()
    }


def answer(how, process, conn):
    """What comes of a process, or the end of this program if it has ended."""
    if not conn.poll(PATIENCE):
        raise SystemExit(f"{how}: no answer")
    try:
        return conn.recv()
    except EOFError:
        process.join()
        raise SystemExit(f"{how}: a process ended with {process.exitcode}") from None


def start(how, socket):
    """The two processes of a rival, each with the pipe by which it is told what to do."""
    spawn = multiprocessing.get_context("spawn")
    (makes, made), (takes, taken), (asks, asked) = spawn.Pipe(), spawn.Pipe(), spawn.Pipe()
    producer = spawn.Process(target=produce, args=(how, socket, made, asked), daemon=True)
    consumer = spawn.Process(target=consume, args=(how, socket, asks, taken), daemon=True)
    for process in (producer, consumer):
        process.start()
    for end in (made, taken, asks, asked):
        end.close()  # so that the end of a process shows
    return (producer, makes), (consumer, takes)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gib", default="1,16,64")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--rivals", default="gpufd,torch,cupy")
    o = p.parse_args()
    with keeping.keeper() as socket:
        sides = {how: start(how, socket) for how in o.rivals.split(",")}  # all at once: starting is what takes long
        for how, both in sides.items():
            for process, conn in both:
                answer(how, process, conn)
        for gib in o.gib.split(","):
            size = int(float(gib) * GIB)
            for how, ((producer, makes), (consumer, takes)) in sides.items():
                makes.send(("make", size))
                answer(how, producer, makes)
                takes.send((size, o.rounds))
                times, spent = answer(how, consumer, takes)
                makes.send(("free",))
                answer(how, producer, makes)
                keeping.say(how=how, gib=float(gib), median_ms=1e3 * keeping.median(times), first_ms=1e3 * times[0], least_ms=1e3 * min(times), rounds=len(times))
                if spent:
                    driver = sum(ms for name, (ms, _) in spent["attach"].items() if name.startswith("cu"))
                    chunks = spent["attach"].get("cuMemMap", [0, 0])[1]
                    keeping.say(how=how, gib=float(gib), variant=VARIANT, chunks=chunks, driver_ms=round(driver, 3),
                                over_driver=round(1e3 * keeping.median(times) / driver, 2) if driver else None, steps_ms_and_calls=spent)  # fmt: skip


if __name__ == "__main__":
    main()
