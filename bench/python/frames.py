"""How long a frame takes from one process to another by what Python offers:

    python3 frames.py torch|cupy

It is a rival of the command channel, asked for frames alone: to each line
"frames SIZE SLOTS 0|1 COUNT" on standard input it answers {"ns": of one frame} on standard
output. The writer fills each frame on its stream. The reader, a process of its own, has a
kernel read it (0), or copies it to pinned memory of the host (1). Both have one buffer of
SLOTS frames in common, or as many tensors, which are sent before the clock begins.

torch: every frame is an event of torch.multiprocessing's, made new and sent through a pipe,
and one back, which is how PyTorch orders streams of two processes. cupy: two IPC events for
each slot, opened once and recorded again for each frame; a byte through a pipe says that one
was recorded.
"""

import ctypes
import importlib
import json
import multiprocessing
import os
import sys
import time

import rival

WARM = 4  # one of so many frames is not counted


class Torch:
    """Frames are tensors, and an event goes with each."""

    def __init__(self):
        self.torch = rival.need("torch", "torch")
        rival.need("torch.multiprocessing", "torch")
        self.torch.cuda.set_device(0)
        self.stream = self.torch.cuda.Stream()
        self.frames, self.host, self.kept, self.sum = [], None, [], None

    def info(self):
        return f"PyTorch {self.torch.__version__}, an event a frame"

    def make(self, size, slots, conn):
        self.frames = [self.torch.empty(size // 4, dtype=self.torch.int32, device="cuda") for _ in range(slots)]
        self.torch.cuda.synchronize()
        conn.send_bytes(rival.dumps(self.frames))

    def take(self, size, slots, conn):
        self.frames = rival.loads(conn.recv_bytes())
        self.host = self.torch.empty(size // 4, dtype=self.torch.int32, pin_memory=True)

    def fill(self, slot, value):
        with self.torch.cuda.stream(self.stream):
            self.frames[slot].fill_(value)

    def use(self, slot, copies):
        with self.torch.cuda.stream(self.stream):
            if copies:
                self.host.copy_(self.frames[slot], non_blocking=True)
            else:
                self.sum = self.frames[slot].max()

    def seen(self, slot, copies):
        """What the last frame was."""
        return int(self.host[-1]) if copies else int(self.sum)

    def record(self, slot):
        event = self.torch.cuda.Event(interprocess=True)
        event.record(self.stream)
        self.kept = [*self.kept[-64:], event]  # until the other side has it
        return rival.dumps(event)

    def wait(self, slot, data):
        event = rival.loads(data)
        event.wait(self.stream)
        self.kept = [*self.kept[-64:], event]

    def synchronize(self):
        self.stream.synchronize()

    def free(self):
        self.frames, self.host, self.kept, self.sum = [], None, [], None
        self.torch.cuda.ipc_collect()
        self.torch.cuda.empty_cache()


class CuPy:
    """Frames are in one buffer of cudaMalloc; events are IPC events, two for each slot."""

    def __init__(self):
        self.cupy = rival.need("cupy", "cupy")
        self.cupy.cuda.set_allocator(None)
        self.cupy.cuda.Device(0).use()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.frames, self.host, self.sum, self.size = [], None, None, 0
        self.mapped, self.own, self.others = 0, [], []

    def info(self):
        return f"CuPy {self.cupy.__version__}, IPC events"

    def events(self, slots, conn):
        """Both sides make an event for each slot and open those of the other."""
        runtime = self.cupy.cuda.runtime
        flags = runtime.eventDisableTiming | runtime.eventInterprocess
        self.own = [runtime.eventCreateWithFlags(flags) for _ in range(slots)]
        conn.send([bytes(runtime.ipcGetEventHandle(e)) for e in self.own])
        self.others = [runtime.ipcOpenEventHandle(h) for h in conn.recv()]

    def views(self, size, slots, at, owner):
        cupy = self.cupy
        memory = cupy.cuda.UnownedMemory(at, size * slots, owner)
        return [cupy.ndarray(size // 4, cupy.int32, cupy.cuda.MemoryPointer(memory, i * size)) for i in range(slots)]

    def make(self, size, slots, conn):
        memory = self.cupy.cuda.alloc(size * slots)
        conn.send(bytes(self.cupy.cuda.runtime.ipcGetMemHandle(memory.ptr)))
        self.frames = self.views(size, slots, memory.ptr, memory)
        self.events(slots, conn)

    def take(self, size, slots, conn):
        self.mapped = self.cupy.cuda.runtime.ipcOpenMemHandle(conn.recv())
        self.frames = self.views(size, slots, self.mapped, self)
        self.host = self.cupy.cuda.alloc_pinned_memory(size)
        self.size = size
        self.events(slots, conn)

    def fill(self, slot, value):
        with self.stream:
            self.frames[slot].fill(value)

    def use(self, slot, copies):
        with self.stream:
            if copies:
                self.frames[slot].data.copy_to_host_async(ctypes.c_void_p(self.host.ptr), self.size, self.stream)
            else:
                self.sum = self.frames[slot].max()

    def seen(self, slot, copies):
        if copies:
            numpy = importlib.import_module("numpy")
            return int(numpy.frombuffer(self.host, dtype=numpy.int32, count=self.size // 4)[-1])
        return int(self.sum)

    def record(self, slot):
        self.cupy.cuda.runtime.eventRecord(self.own[slot], self.stream.ptr)
        return b"."

    def wait(self, slot, data):
        self.cupy.cuda.runtime.streamWaitEvent(self.stream.ptr, self.others[slot])

    def synchronize(self):
        self.stream.synchronize()

    def free(self):
        runtime = self.cupy.cuda.runtime
        self.frames, self.host, self.sum = [], None, None
        for event in self.own + self.others:
            runtime.eventDestroy(event)
        self.own, self.others = [], []
        if self.mapped:
            runtime.ipcCloseMemHandle(self.mapped)
        self.mapped = 0


def write(side, conn, slots, count):
    """Fill frames; one slot is used again when the reader's event for it has come."""
    for n in range(count):
        slot = n % slots
        if n >= slots:
            side.wait(slot, conn.recv_bytes())
        side.fill(slot, n + 1)
        conn.send_bytes(side.record(slot))
    for n in range(min(slots, count)):
        side.wait((count + n) % slots, conn.recv_bytes())
    side.synchronize()


def read(side, conn, slots, count, copies):
    """Use frames, and say how long one took."""
    begin = 0
    for n in range(count):
        slot = n % slots
        side.wait(slot, conn.recv_bytes())
        side.use(slot, copies)
        conn.send_bytes(side.record(slot))
        if n == count // WARM - 1:
            side.synchronize()
            begin = time.monotonic_ns()
    side.synchronize()
    took = time.monotonic_ns() - begin
    seen = side.seen((count - 1) % slots, copies)
    if seen != count:
        raise RuntimeError(f"the last frame was {seen}, not {count}")
    return took // (count - count // WARM)


def reader(kind, conn):
    """The reader's process: it takes questions until the writer goes away."""
    try:
        side = kind()
    except Exception as e:
        conn.send(rival.explain(e))
        return
    conn.send("")
    while True:
        try:
            size, slots, copies, count = conn.recv()
        except EOFError:
            return
        side.take(size, slots, conn)
        try:
            answer = {"ns": read(side, conn, slots, count, copies)}
        except Exception as e:
            answer = {"error": rival.explain(e)}
        side.free()
        conn.send(answer)


def parse(line):
    """The numbers of "frames SIZE SLOTS 0|1 COUNT"."""
    words = line.split()
    if len(words) != 5 or words[0] != "frames" or not "".join(words[1:]).isdecimal():
        raise rival.Refused("want: frames SIZE SLOTS 0|1 COUNT")
    size, slots, copies, count = (int(w) for w in words[1:])
    if not size or size % 4 or not slots or copies > 1 or count < WARM:
        raise rival.Refused("want a size by 4, a slot at least, and 0 or 1")
    return size, slots, copies, count


def answer(side, conn, line):
    """One question."""
    size, slots, copies, count = parse(line)
    conn.send((size, slots, copies, count))
    side.make(size, slots, conn)
    try:
        write(side, conn, slots, count)
        return conn.recv()
    finally:
        side.free()


def serve(side, conn, lines, out):
    """Answer every line; the exit status is 1 if the reader was lost."""
    for line in lines:
        gone = False
        try:
            told = answer(side, conn, line)
        except rival.Refused as e:
            told = {"error": str(e)}
        except Exception as e:  # the two are not in step any more
            told, gone = {"error": rival.explain(e)}, True
        print(json.dumps(told), file=out, flush=True)
        if gone:
            return 1
    return 0


def run(kind):
    """Be the rival. Standard output is for answers only."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    multiprocessing.set_start_method("spawn")
    conn, other = multiprocessing.Pipe()
    process = multiprocessing.Process(target=reader, args=(kind, other), daemon=True)
    process.start()
    other.close()
    try:
        side = kind()
        trouble = conn.recv()
    except Exception as e:
        trouble = rival.explain(e)
    if trouble:
        print(json.dumps({"error": trouble}), file=out, flush=True)
        return 1
    print(json.dumps({"ready": True, "name": kind.__name__.lower(), "info": side.info()}), file=out, flush=True)
    code = serve(side, conn, sys.stdin, out)
    conn.close()
    process.join(0 if code else 10)
    if process.is_alive():
        process.kill()
    rival.sweep(os.getpid(), process.pid)
    return code


KINDS = {"torch": Torch, "cupy": CuPy}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in KINDS:
        sys.exit("usage: frames.py torch|cupy")
    rival.need(sys.argv[1], sys.argv[1])  # before standard output is for answers only
    sys.exit(run(KINDS[sys.argv[1]]))
