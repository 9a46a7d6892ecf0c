"""How long it takes to hand a trainer's weights to an engine in another process, as after every step of a training:

    python3 weights.py [--size 16GiB] [--in-place 2GiB] [--bucket 1GiB] [--rounds 20]

gpufd.weights and what PyTorch offers take turns in the same two processes. An update begins when the weights are ready on the
device. It ends when the engine has them in storage of its own, and its device is idle. Each tensor gets other values for each update. After
the clock has stopped, the receiver of every way compares all bytes with what was to be written. A difference fails the run.

    two copies      the yardstick, in one process: to a bucket, and from there to storage, bucket by bucket
    one copy        the trainer's own write, in one process
    gpufd           a Publisher with four buckets, and a Subscriber
    bucket          one bucket, whose IPC handle was sent beforehand; names and acknowledgements go through queues
    queue           a torch.multiprocessing queue, in which reduce_tensor pickles all tensors for each update

In place the engine computes on the trainer's memory. The time in which the trainer writes all of that is not counted: with the queue it writes
before the clock starts, with gpufd within the update. The engine uses as well what the queue has sent as it is.
"blocked" is how long the trainer's thread is busy with the update, "free" when the trainer may change the weights again.
A ratio is taken in each round; its p50 has a bound.

With two GPUs, a pair of processes on each GPU does the same at the same time, and then an engine on the second GPU takes the weights of the
first, beside a bare copy. Without CUDA the script tries itself on the software driver. With it, it exits with 1 if a ratio is larger than wanted.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
import traceback

import weights_ways as ways
from weights_ways import CUDA, WAYS

WANTED = {  # the most that a way may take, as a multiple of another one; None if no bound is known
    "one pair": {
        ("gpufd", "two copies"): 1.25,
        ("gpufd", "bucket"): 0.8,
        ("gpufd", "queue"): None,
        # The trainer's thread waits for buckets: it is as long as the engine's half, without what is in the buckets at the end.
        ("gpufd, blocked", "gpufd"): None,
        ("gpufd, blocked", "one copy"): None,
        ("gpufd in place", "queue in place"): 0.1,
    },
    "GPU 0": {("gpufd", "two copies"): 1.25},
    "GPU 1": {("gpufd", "two copies"): 1.25},
    "to the other GPU": {("gpufd", "one copy"): 1 / 0.9},
}
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
WARM, PATIENCE = 3, 60.0  # rounds that are not counted; seconds that the engine has for an answer
READY, DONE, OVER = -1, -2, -3  # answers of the engine that are no time


# The engine.


def engine(o, device, link, names, conn):
    """Join, and take updates of each way, when told to. The target of the engine's process."""
    ways.use(device)
    memory = ways.Memory(o)
    sides = {name: WAYS[name](memory, link, link["queues"][name]) for name in names}
    while (told := conn.recv()) is not None:
        conn.send(answer(sides, *told, conn))
    for side in sides.values():
        side.leave()


def answer(sides, name, what, value, conn):
    """Do what was asked, and return when it was done and what is wrong with it."""
    try:
        if what == "join":
            sides[name].join()
        elif what == "take":
            conn.send((READY, ""))  # the clock may begin
            sides[name].take()
            ways.synchronize()
            end = time.monotonic_ns()
            wrong = sides[name].wrong(value)
            return end, f"{wrong} tensors are not those of the update" if wrong else ""
        return OVER if what == "over" else DONE, ""
    except Exception:
        return DONE, traceback.format_exc()


# The trainer.


class Pair:
    """A trainer, which is this process, and its engine."""

    def __init__(self, o, names, device=0, there=None):
        """there is the engine's device, if it is another one."""
        ways.use(device)
        self.memory, self.value, self.lacking = ways.Memory(o, None if there is None else f"cuda:{there}"), 0, {}
        context = ways.torch.multiprocessing.get_context("spawn")
        link = {"queues": {name: (context.Queue(), context.Queue()) for name in names}}
        if there is not None:
            link["publisher"] = ways.uuid(device)
        self.sides = {name: WAYS[name](self.memory, link, link["queues"][name]) for name in names}
        self.conn, other = context.Pipe()
        shared = [name for name in names if not WAYS[name].alone]
        self.process = context.Process(target=engine, args=(o, device if there is None else there, link, shared, other), daemon=True)
        self.process.start()
        other.close()
        for name in names:
            self.begin(name)

    def begin(self, name):
        """Have both sides ready, and try one update: a way that fails is left out."""
        side = self.sides[name]
        if side.needs_cuda and not CUDA:
            self.lacking[name] = "needs CUDA"
            return
        try:
            side.offer()
            if not side.alone:
                self.conn.send((name, "join", 0))
                side.meet()
                self.hear()
            self.update(name)
        except Exception as e:
            self.lacking[name] = str(e)
            self.conn.send((name, "over", 0))
            while self.hear(any_answer=True) != (OVER, ""):
                pass

    def hear(self, any_answer=False):
        if not self.conn.poll(PATIENCE):
            raise RuntimeError(f"no answer from the engine within {PATIENCE:g} s")
        told = self.conn.recv()
        if told[1] and not any_answer:
            raise RuntimeError(told[1])
        return told if any_answer else told[0]

    def update(self, name):
        """Make one update. Returns the nanoseconds until the engine has it, the trainer's thread goes on, and the weights may change."""
        side = self.sides[name]
        self.value += 1
        side.prepare(self.value)
        if not side.alone:
            self.conn.send((name, "take", self.value))
            self.hear()
        ways.synchronize()
        begin = time.monotonic_ns()
        side.update(self.value)
        blocked = time.monotonic_ns()
        ways.synchronize()
        free = time.monotonic_ns()
        if not side.alone:
            end = self.hear()
        elif wrong := side.wrong(self.value):
            raise RuntimeError(f"{wrong} copies are not those of the update")
        else:
            end = free
        begin += side.writing
        return end - begin, blocked - begin, free - begin

    def rounds(self, count, barrier):
        """Have the ways take turns. Returns the updates of each."""
        times = {name: [] for name in self.sides if name not in self.lacking}
        for n in range(WARM + count):
            order = list(times)
            for name in order[n % len(order) :] + order[: n % len(order)]:
                if barrier:
                    barrier.wait(PATIENCE)
                taken = self.update(name)
                times[name] += [taken] if n >= WARM else []
        return times

    def end(self):
        self.conn.send(None)
        self.process.join(PATIENCE)
        for name, side in self.sides.items():
            if name not in self.lacking:
                side.leave()


def measure(o, names, device=0, there=None, barrier=None):
    """Run a pair of processes. Returns the updates of each way, its size, and why ways were left out."""
    pair = Pair(o, names, device, there)
    times = pair.rounds(o.rounds, barrier)
    sizes = {name: pair.sides[name].size() for name in times}
    pair.end()
    lacking = pair.lacking
    del pair
    ways.clear()
    return times, sizes, lacking


# Two GPUs.


def rank(o, device, barrier, results):
    results.put((device, measure(o, ("two copies", "gpufd"), device, barrier=barrier)))


def both(o):
    """Measure a pair of processes on each GPU at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    ranks = [context.Process(target=rank, args=(o, device, barrier, results)) for device in range(2)]
    for p in ranks:
        p.start()
    found = dict(results.get(timeout=10 * PATIENCE) for _ in ranks)
    for p in ranks:
        p.join(PATIENCE)
    return [(f"GPU {device}", found[device]) for device in sorted(found)]


# Output.


def quantile(values, percent):
    """The smallest value that so many percent of all do not exceed."""
    return sorted(values)[(len(values) * percent - 1) // 100]


def ms(values, percent=50):
    return f"{quantile(values, percent) / 1e6:.2f}"


def table(title, times, sizes, lacking):
    print(f"\n{title}:")
    rows = [("", "MiB", "p50 ms", "p90", "max", "blocked", "free")]
    for name, taken in times.items():
        whole, blocked, free = zip(*taken)
        rows.append((name, f"{sizes[name] / 2**20:.0f}", ms(whole), ms(whole, 90), ms(whole, 100), ms(blocked), ms(free)))
    for row in rows:
        print(f"{row[0]:16}" + "".join(f"{cell:>10}" for cell in row[1:]))
    for name, why in lacking.items():
        print(f"{name}: left out: {why.strip().splitlines()[-1]}")


def ratios(title, times):
    """Print the ratios that are wanted, and return whether all are there and small enough."""
    good = True
    rounds = {name: [t[0] for t in taken] for name, taken in times.items()}
    rounds |= {f"{name}, {what}": [t[i] for t in taken] for name, taken in times.items() for i, what in ((1, "blocked"), (2, "free"))}
    for (ours, other), most in WANTED[title].items():
        if ours in rounds and other in rounds:
            found = [a / b for a, b in zip(rounds[ours], rounds[other])]
            p50 = quantile(found, 50)
            print(f"{ours} / {other}: p50 {p50:.3f}, p90 {quantile(found, 90):.3f}" + (f" (wanted: p50 {most:.2f} at most)" if most else ""))
            good = good and (most is None or p50 <= most)
        else:
            good = False
    return good


def size(text):
    number, unit = text[:-3], text[-3:]
    if unit not in UNITS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: a whole number and GiB, MiB or KiB")
    return int(number) * UNITS[unit]


def flags():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", type=size, default="16GiB" if CUDA else "16MiB", help="of the weights (%(default)s)")
    p.add_argument("--in-place", type=size, default="2GiB" if CUDA else "2MiB", help="of the weights in place (%(default)s)")
    p.add_argument("--bucket", type=size, default="1GiB" if CUDA else "1MiB", help="(%(default)s)")
    p.add_argument("--rounds", type=int, default=20)
    return p.parse_args()


def main():
    o = flags()
    gpus = ways.torch.cuda.device_count()
    print(f"PyTorch {ways.torch.__version__}, {gpus} GPUs, {ways.torch.cuda.get_device_name(0) if gpus else 'the software driver'}")
    found = [("one pair", measure(o, tuple(WAYS)))]
    if gpus > 1:
        found += both(o)
        found.append(("to the other GPU", measure(o, ("one copy", "gpufd"), there=1)))
    good, ours = True, True
    for title, (times, sizes, lacking) in found:
        table(title, times, sizes, lacking)
        good = ratios(title, times) and good
        ours = ours and not any(name.startswith("gpufd") for name in lacking)
    if gpus < 2:
        print("\nfewer than two GPUs: nothing was measured between two")
    sys.exit(0 if ours and (good or not CUDA) else 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="gpufd-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory  # where publishers listen
        main()
