"""Copy what a keeper keeps to the keepers of all ranks: torchrun … -m gpufd.broadcast NAME

Rank 0's keeper has NAME. Afterwards the keeper of every rank serves it, with the same digests and
labels. torch.distributed moves the bytes from mapped memory into booked memory: by NCCL between
GPUs, by Gloo between CPUs with the software driver.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import NoReturn, TextIO

import torch.distributed as dist

from ..errors import Error, UsageError, printable
from ..keeper.client import Client
from ..wire.sockets import default_socket
from .ranks import Broadcast, number
from .watch import first_line

NOT_PROTECTED = """The bytes are not encrypted on their way, and nothing authenticates who connects: neither NCCL
nor Gloo, nor the store of the rendezvous. Anybody who reaches their ports can read the weights,
change them, or end the broadcast. Run it in a network where nobody else is. The digest
finds accidents, not forgeries."""


def duration(text: str) -> float:
    """Seconds: 30, 30s, 5m, 1h."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    value = float(text[:-1]) * unit if unit else float(text)
    if not 1 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text}: want 1 second or more")
    return value


def size(text: str) -> int:
    """Bytes, such as 64MiB: a multiple of 16."""
    for suffix, unit in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)):
        if text.endswith(suffix):
            n = int(text[: len(text) - len(suffix)]) * unit
            break
    if n <= 0 or n % 16:
        raise argparse.ArgumentTypeError(f"{text}: want a multiple of 16")
    return n


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="torchrun … -m gpufd.broadcast", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Copy what rank 0's keeper has under NAME to the keeper of every rank, with the same digests and labels.",
        epilog=f"""Start one rank on each machine. Its keeper is that of --socket or GPUFD_SOCKET. If several ranks
share a keeper, each moves some of the parts: for a version of eight parts on eight GPUs, start
eight. A part goes to the device with the ordinal that it has at rank 0. A rank whose keeper
serves the same digests and labels already receives nothing.

If a rank fails or is killed, all others end within --timeout and name it. Then no keeper has
anything of the version, unless this happens between the first keeper's commit and the last one's:
run the broadcast again, which leaves out keepers that have committed.

{NOT_PROTECTED}""",
    )  # fmt: skip
    p.add_argument("name", metavar="NAME")
    p.add_argument("--socket", help="the keeper's socket; {rank}, {local_rank} and {node} stand for this rank's numbers (default: GPUFD_SOCKET, else the user's)")
    p.add_argument("--label", action="append", default=[], metavar="K=V", help="demand this label of rank 0's version; may come several times")
    p.add_argument("--timeout", type=duration, default=60.0, metavar="D", help="for each step, and for a rank that gives no sign of life (default 60s)")
    p.add_argument("--min-rate", type=float, default=0.0, metavar="GB/s", help="warn where the transport is slower")
    p.add_argument("--backend", choices=["nccl", "gloo"], help="of torch.distributed (default: nccl for GPUs, gloo for the software driver)")
    p.add_argument("--piece", type=size, metavar="SIZE", help="bytes that are sent at a time, such as 64MiB (default 1GiB by NCCL, 16MiB by Gloo)")
    p.add_argument(
        "--device", type=lambda text: int(text) if text.isdecimal() else text, metavar="DEVICE",
        help="the device for all parts of this rank's keeper, by its ordinal or UUID, in place of the source's ordinal",
    )  # fmt: skip
    p.add_argument("--json", action="store_true", help="print an object for each rank")
    return p


def options(args: Sequence[str] | None) -> argparse.Namespace:
    o = parser().parse_args(args)
    o.labels = {}
    for text in o.label:
        key, eq, value = text.partition("=")
        if not key or not eq:
            raise UsageError(f"--label {text!r}: want K=V")
        o.labels[key] = value
    o.socket = o.socket or default_socket()
    places = {"rank": number("RANK"), "local_rank": os.environ.get("LOCAL_RANK", "0"), "node": os.environ.get("GROUP_RANK", "0")}
    for place, value in places.items():
        o.socket = o.socket.replace("{" + place + "}", str(value))
    return o


def human(n: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def _line(text: str, file: TextIO | None = None) -> None:
    """Write a line with its end in one go: ranks share their output."""
    file = file or sys.stdout
    file.write(printable(text) + "\n")
    file.flush()


def show(b: Broadcast) -> None:
    """Say what was done."""
    r, rank = b.result, b.rank
    hint = " (NCCL_DEBUG=INFO says by which way NCCL goes)" if b.backend == "nccl" else ""
    if r.seconds and r.rate < b.o.min_rate:
        r.warnings.append(f"rank {rank} at {r.rate:.2f} GB/s by {b.backend}, slower than {b.o.min_rate:g} GB/s{hint}")
    if b.o.json:
        _line(json.dumps({"event": "result", "ok": True, "exit": 0, "rank": rank, **asdict(r), "rate": r.rate, "backend": b.backend, "socket": b.o.socket}))
        return
    for text in r.warnings:
        _line(f"warning: {text}", sys.stderr)
    if rank == 0:
        way = f", by {b.backend} at {r.rate:.2f} GB/s" if r.seconds else ""
        keepers = "1 keeper has" if r.ranks == 1 else f"{r.ranks} keepers have"
        _line(f"{r.name}: {keepers} received it{way}")
    elif r.received:
        _line(f"rank {rank}: {r.name}, version {r.version}, {human(r.received)} in {r.seconds:.2f} s, {r.rate:.2f} GB/s")
    elif r.skipped:
        _line(f"rank {rank}: {r.name}, version {r.version}, was served already")


_ending = threading.Lock()


def end(b: Broadcast | None, error: BaseException, code: int) -> NoReturn:
    """End this process because of an error, at once: whatever its threads wait for. Its bookings
    and allocations end with it."""
    _ending.acquire()  # for good: the thread that comes first says why
    rank = b.rank if b else os.environ.get("RANK", "?")
    why = str(error) or type(error).__name__
    try:
        if b and b.o.json:
            _line(json.dumps({"event": "result", "ok": False, "exit": code, "rank": rank, "error": {"message": why, "code": getattr(error, "reason", "")}}))
        _line(f"broadcast: rank {rank} on {socket.gethostname()}: {why}", sys.stderr)
        if b and b.watch:
            b.watch.linger()
    finally:  # also where nobody reads what it prints
        os._exit(code)


def main(args: Sequence[str] | None = None) -> int:
    """Be one rank. Returns the exit status."""
    b = None
    try:
        o = options(args)
        b = made = Broadcast(o.name, o)
        watch = b.meet(lambda text: end(made, Error(text), 4))
    except (Error, OSError, RuntimeError) as e:
        end(b, e, getattr(e, "exit", 4))
    try:
        b.connect()
        with Client(o.socket, timeout=o.timeout) as client:
            b.run(client)
            b.gather(0)  # nobody goes before all are done
            watch.stop()
            show(b)
            b.close()
    except RuntimeError as e:  # of torch: who is to blame is for the watch to say
        why = watch.explain(Error(first_line(e)))
        watch.report(f"rank {b.rank} on {socket.gethostname()} failed: {first_line(e)}")
        end(b, why, 4)
    except BaseException as e:
        watch.report(f"rank {b.rank} on {socket.gethostname()} failed: {first_line(e)}")
        end(b, e, getattr(e, "exit", 1))
    dist.destroy_process_group()
    return 0
