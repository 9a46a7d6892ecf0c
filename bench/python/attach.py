"""Attaching alone, for several sizes: gpufd from a keeper, torch.multiprocessing and CuPy IPC.

    python3 attach.py [--gib 1,16,64] [--rounds 20]

One process has the memory, another takes it, reads its first and last bytes and lets go; the
time is that until the memory is in hand, in the process that takes it. The driver is up there.
torch.multiprocessing and CuPy open a handle that their producer still has to hold.
"""

import argparse
import multiprocessing
import time

import keeping


def producer(how, size, conn):
    """Have memory of that size, and send a token for it whenever it is asked."""
    import torch

    t = torch.full((size,), 7, dtype=torch.uint8, device="cuda") if how == "torch" else None
    if how == "cupy":
        import cupy

        cupy.cuda.set_allocator(None)
        t = cupy.full(size, 7, dtype=cupy.uint8)
    torch.cuda.synchronize()
    conn.send("ready")
    while conn.recv() == "more":
        if how == "torch":
            conn.send_bytes(multiprocessing.reduction.ForkingPickler.dumps(t))
        else:
            conn.send_bytes(bytes(cupy.cuda.runtime.ipcGetMemHandle(t.data.ptr)))


def consumer(how, size, rounds, conn, socket, answer):
    import pickle

    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    if how == "cupy":
        import cupy

        cupy.cuda.Device(0).use()
    if how == "gpufd":
        import gpufd.torch
    times = []
    for _ in range(rounds):
        token = None
        begin = time.perf_counter()
        if how == "gpufd":
            held = gpufd.torch.load(socket, "model")
            t = held["t"]
        else:
            conn.send("more")
            token = conn.recv_bytes()
            if how == "torch":
                t = held = pickle.loads(token)
            else:
                at = cupy.cuda.runtime.ipcOpenMemHandle(token)
                held = cupy.ndarray((size,), cupy.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(at, size, None), 0))
                t = held
        times.append(time.perf_counter() - begin)
        good = int(t[0]) == 7 and int(t[-1]) == 7
        if not good:
            raise SystemExit("the bytes are others")
        del held, t
        if how == "cupy":
            cupy.cuda.runtime.ipcCloseMemHandle(at)
        elif how == "torch":
            torch.cuda.ipc_collect()
    answer.send(times)


def measure(how, size, rounds, socket):
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    answer, out = spawn.Pipe(False)
    p = None
    if how == "gpufd":
        put = spawn.Process(target=keep, args=(size, socket), daemon=True)
        put.start()
        put.join()
        if put.exitcode:
            raise SystemExit("put failed")
    else:
        p = spawn.Process(target=producer, args=(how, size, there), daemon=True)
        p.start()
        here.recv()
    c = spawn.Process(target=consumer, args=(how, size, rounds, here, socket, out), daemon=True)
    c.start()
    out.close()  # so that the end of the consumer shows
    if not answer.poll(300):
        raise SystemExit(f"{how}: no answer")
    try:
        times = answer.recv()
    except EOFError:
        c.join()
        raise SystemExit(f"{how}: the consumer ended with {c.exitcode}") from None
    c.join()
    if p:
        here.send("enough")
        p.join()
    return times


def keep(size, socket):
    import gpufd.torch
    import torch

    t = {"t": torch.full((size,), 7, dtype=torch.uint8, device="cuda")}
    gpufd.torch.put(socket, "model", t)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gib", default="1,16,64")
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--rivals", default="gpufd,torch,cupy")
    o = p.parse_args()
    for gib in o.gib.split(","):
        size, medians = int(float(gib) * (1 << 30)), {}
        for how in o.rivals.split(","):
            with keeping.keeper() as socket:
                times = measure(how, size, o.rounds, socket)
            medians[how] = keeping.median(times)
            keeping.say(how=how, gib=float(gib), median_ms=1e3 * medians[how], first_ms=1e3 * times[0], least_ms=1e3 * min(times), rounds=len(times))


if __name__ == "__main__":
    main()
