"""Bytes from one rank to others by torch.distributed, piece by piece, with their digest."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from ..errors import TimedOutError
from ..memory import libcuda as _driver
from ..memory.base import Memory
from ..memory.digest import Digester
from ..memory.tensor import bytes_over
from ..wire.records import CUDA

_WHAT = "the broadcast"
IN_FLIGHT = 4  # pieces that NCCL is given ahead of the digest


def transfer(memory: Memory, size: int, source: int, group: Any, piece: int, timeout: float) -> tuple[str, float]:
    """Broadcast the first size bytes of memory from the rank source to all of the group, whose
    memory is of the same size. Returns the digest of what is there then, and the seconds that
    it took, without the first meeting of the ranks."""
    whole = bytes_over(memory, 0, size, _WHAT)
    pieces = [(at, min(piece, size - at)) for at in range(0, size, piece)]
    meet = torch.zeros(1, dtype=torch.uint8, device=whole.device)
    dist.broadcast(meet, source, group=group)  # connects
    send = _by_gpu if memory.driver == CUDA else _by_host
    done = send(memory, whole, pieces, source, group, timeout)
    del whole
    deadline = time.monotonic() + timeout
    while _WHAT in memory.views():  # threads of torch.distributed let go of the last piece a moment later
        if time.monotonic() > deadline:
            raise TimedOutError(f"torch.distributed has not let go of the memory within {timeout:g} s")
        time.sleep(1e-3)
    return done


def _by_host(memory: Memory, whole: Any, pieces: list[tuple[int, int]], source: int, group: Any, timeout: float) -> tuple[str, float]:
    digester = Digester()
    begin = time.monotonic()
    for at, n in pieces:
        dist.broadcast(whole[at : at + n], source, group=group)
        at_piece()
        digester.add(at, memory.read(at, n))
    return digester.digest(), time.monotonic() - begin


def _by_gpu(memory: Memory, whole: Any, pieces: list[tuple[int, int]], source: int, group: Any, timeout: float) -> tuple[str, float]:
    """The kernel of a piece's digest runs behind the piece, on a stream of its own, while the
    next pieces are under way: NCCL begins a piece behind the work of the stream that asks for it,
    so no digest may be there."""
    from ..memory.devicedigest import DeviceDigester

    digester = DeviceDigester(_driver.load(), memory.ordinal)
    with torch.cuda.device(whole.device):
        moves, digests = torch.cuda.Stream(), torch.cuda.Stream()
        dist.all_reduce(torch.zeros(1, device=whole.device), group=group)  # nobody's time has what another still prepares
        torch.cuda.synchronize()
        begin = time.monotonic()
        waiting: deque[tuple[Any, Any]] = deque()
        for at, n in pieces:
            if len(waiting) == IN_FLIGHT:
                _await(*waiting.popleft(), timeout)
            with torch.cuda.stream(moves):
                work = dist.broadcast(whole[at : at + n], source, group=group, async_op=True)
            with torch.cuda.stream(digests):
                work.wait()  # of the stream, not of this thread
                digester.add(memory.ptr + at, at, n, digests.cuda_stream)
                event = torch.cuda.Event()
                event.record()
            waiting.append((work, event))
            at_piece()
        while waiting:
            _await(*waiting.popleft(), timeout)
        took = time.monotonic() - begin
        digest = digester.digest()
    digester.close()  # not where a piece has failed: that would wait for it, and goes with the process
    return digest, took


def _await(work: Any, event: Any, timeout: float) -> None:
    """Wait until the device has come to the event."""
    deadline = time.monotonic() + timeout
    while not event.query():
        if time.monotonic() > deadline:
            raise TimedOutError(f"a piece took longer than {timeout:g} s")
        time.sleep(2e-5)
    del work


def at_piece() -> None:
    """A piece has come. Tests stop a rank here."""
