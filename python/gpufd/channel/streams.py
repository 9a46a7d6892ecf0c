"""Channels ordered by CUDA streams: whose streams, and how far they have got."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from ..errors import ChannelError, InUseError, UnavailableError, UsageError
from ..memory import libcuda as cu
from ..memory.base import Memory
from ..memory.cuda import CudaMemory
from .cursor import GIVEN, Cursor
from .words import POLL_MIN, SLEEP_MAX, Words

CLOSE_LIMIT = 1.0  # seconds that close waits for a stream
MAX_BATCH = 255  # operations that one call of the driver takes
_PAGE = 4096
_BELL = _PAGE - 8  # where a host sleeps that waits for a stream; nobody rings
_NON_BLOCKING = 1  # a flag of streams
_NO_TIMING = 2  # of events


def handle_of(stream: Any) -> int:
    """Return the CUstream of torch.cuda.Stream, cupy.cuda.Stream, whatever has __cuda_stream__, or a
    number: 0 and 1 are the legacy default stream, 2 that of the thread."""
    told = getattr(stream, "__cuda_stream__", None)
    if told is not None:
        version, handle = told() if callable(told) else told
        if version != 0:
            raise UsageError(f"__cuda_stream__ of version {version}; this program knows 0")
    elif hasattr(stream, "cuda_stream"):
        handle = stream.cuda_stream
    else:
        handle = getattr(stream, "ptr", stream)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise UsageError(f"{stream!r} is no CUDA stream: want one of torch or CuPy, an object with __cuda_stream__, or a number")
    return handle


def need_streams(memory: Memory) -> CudaMemory:
    """Return the memory as one that streams use. Raises UnavailableError ("no-streams") with the software driver."""
    if not isinstance(memory, CudaMemory):
        raise UnavailableError("the software driver has no streams for Python: use acquire and publish, next and release", reason="no-streams")
    return memory


class Tracker:
    """Knows how far streams have got with what one side of a channel has given them: the last
    operation of each batch writes a number to a word that no other process has.

    In a channel for streams one stream at a time has work. Where slots come back in any order streams may differ: a
    writer's follow each other, by an event, and a reader's write to a word for each slot.
    """

    def __init__(self, memory: CudaMemory) -> None:
        self.memory = memory
        self.queued = 0  # the number that the stream writes last
        self.stream = 0  # that has the latest work
        self._ops = (cu.MemOp * MAX_BATCH)()
        self._n = 0
        self._parts, self._codes = 1, list[int]()  # calls of the driver that give the batch, and what those made returned
        self._own = 0  # a stream that is only asked whether the context is well
        self._event = 0  # behind what the latest stream was given, where streams follow each other
        self._recorded = 0  # the number behind which that is
        self._of_slots: dict[int, int] = {}  # the number that a stream writes last to a slot's word
        self._word = Cursor(-1, _PAGE)
        try:
            self._word.register(memory)
            with memory.current() as lib:
                self._own = lib.made("cuStreamCreate", _NON_BLOCKING)
        except BaseException:
            self.close()
            raise

    def done(self) -> int:
        """Return the number that was written last."""
        return self._word.words.load(0)

    def idle(self) -> bool:
        """Return whether the streams have done all that they were given."""
        return self.done() >= self.queued and not self._late()

    def _late(self) -> int:
        """Return how many slots' words have still to be written."""
        return sum(self._word.words.load(8 + 8 * slot) < number for slot, number in list(self._of_slots.items()))

    def takes(self, stream: int) -> None:
        """Raise if the stream cannot be given more: the words of a side are written in order."""
        self.check_captured(stream)
        if stream != self.stream and not self.idle():
            raise ChannelError("another stream has frames of this side queued; wait for it, or use that one", reason="order")

    def check_captured(self, stream: int) -> None:
        """Raise UsageError if the stream is being captured."""
        captured = ctypes.c_int()
        with self.memory.current() as lib:
            lib.call("cuStreamIsCapturing", stream, ctypes.byref(captured))
        if captured.value:
            raise UsageError("a stream that is captured would do the same frame at every launch of the graph")

    # A batch.

    def begin(self) -> None:
        self._n, self._parts, self._codes = 0, 1, []

    def wait(self, at: int, value: int) -> None:
        """Add a wait until the word there is value or more."""
        self._add(cu.WAIT_64, at, value)

    def write(self, at: int, value: int) -> None:
        """Add that the word there becomes value, behind all writes before."""
        self._add(cu.WRITE_64, at, value)

    def _add(self, operation: int, at: int, value: int) -> None:
        op = self._ops[self._n]
        op.operation, op.address, op.value, op.flags = operation, at, value, 0
        self._n += 1

    def make_room(self, stream: int, n: int) -> None:
        """Give the stream the batch if there is no room for n operations and the tracker's."""
        if self._n + n >= MAX_BATCH:
            self._parts += 1
            self._give(stream)

    def queue(self, stream: int, number: int) -> None:
        """Give the stream the batch, with the number behind."""
        self.write(self._word.device, number)
        before = self.queued, self.stream
        try:
            self.queued, self.stream = number, stream  # nobody takes the stream for idle meanwhile
            self._give(stream)
        except BaseException:
            if not self.took():
                self.queued, self.stream = before
            raise

    def queue_next(self, stream: int, number: int) -> None:
        """Give the stream the batch as queue does, behind what any other stream was given."""
        with self.memory.current() as lib:
            self._event = self._event or lib.made("cuEventCreate", _NO_TIMING)
            if stream != self.stream and not self.idle():
                if self._recorded < self.queued:  # an interrupt came
                    self._record(lib)
                lib.call("cuStreamWaitEvent", stream, self._event, 0)
            self.queue(stream, number)
            self._record(lib)

    def _record(self, lib: cu.Libcuda) -> None:
        lib.call("cuEventRecord", self._event, self.stream)
        self._recorded = self.queued

    def queue_of_slot(self, stream: int, slot: int, number: int) -> None:
        """Give the stream the batch, with the number behind, in the slot's word."""
        self.write(self._word.device + 8 + 8 * slot, number)
        before = self._of_slots.get(slot, 0)
        try:
            self._of_slots[slot] = number
            self._give(stream)
        except BaseException:
            if not self.took():
                self._of_slots[slot] = before
            raise

    def skip(self, number: int) -> None:
        """Note what the host has done in place of the stream, which is idle."""
        self._word.words.store(0, number)
        self.queued = number

    def _give(self, stream: int) -> None:
        n, self._n = self._n, 0
        with self.memory.current() as lib:
            give = lib.function("cuStreamBatchMemOp_v2")
            self._codes.extend(map(give, [stream], [n], [self._ops], [0]))  # one step of Python, so that no interrupt comes between call and code
            lib.check("cuStreamBatchMemOp_v2", self._codes[-1])

    def took(self) -> bool:
        """Return whether the driver has taken the whole batch. Behind an exception, too: an interrupt may come right behind."""
        return self._codes == [0] * self._parts

    # The end.

    def is_lost(self) -> bool:
        """Return whether the context is lost: then no stream of it does anything more."""
        with self.memory.cu.current(self.memory.context):
            return self.memory.cu.code("cuStreamQuery", self._own) not in (0, cu.NOT_READY)

    def check(self) -> None:
        """Raise the driver's error if the context is lost."""
        with self.memory.cu.current(self.memory.context):
            self.memory.cu.call("cuStreamQuery", self._own)

    def await_word(self, deadline: float, ready: Callable[[], object], longest: float) -> bool:
        """Wait until ready, which looks at done, says so, or the deadline."""
        return self._word.words.await_(_BELL, 0, deadline, ready, longest)

    def await_(self, limit: float) -> None:
        """Wait until the stream is idle, or its context is lost."""
        end, pause = time.monotonic() + limit, POLL_MIN
        while not self.idle() and not self.is_lost():
            if time.monotonic() > end:
                raise self.in_use()
            time.sleep(pause)
            pause = min(2 * pause, SLEEP_MAX)

    def in_use(self) -> InUseError:
        """Return the error that the stream has not done what it was given."""
        late = self._late()
        done = f"still to give {late} {'slot' if late == 1 else 'slots'} back" if late else f"done {self.done()} of the {self.queued} steps that the channel gave it"
        return InUseError(f"a stream has {done}; synchronize it, then close again")

    def freed(self, words: Words, at: int, until: int) -> bool:
        """Write what frees the streams here that wait for a word. Whether they are past until:
        if not, it has to be called again, because a dead peer's device still writes for some
        milliseconds."""
        words.store(at, GIVEN)
        return self.is_past(until)

    def is_past(self, until: int) -> bool:
        """Return whether the stream has done what it was given until then, or does nothing any more."""
        return self.done() >= min(until, self.queued) or self.is_lost()  # the driver may refuse a step

    def free(self, words: Words, at: int, limit: float | None = None) -> None:
        """Call freed until it is so, or the limit in seconds is over."""
        end, pause, until = None if limit is None else time.monotonic() + limit, POLL_MIN, self.queued
        while not self.freed(words, at, until) and (end is None or time.monotonic() < end):
            time.sleep(pause)
            pause = min(2 * pause, SLEEP_MAX)

    def close(self) -> None:
        if self._own:
            with self.memory.cu.current(self.memory.context):
                self.memory.cu.call("cuStreamDestroy_v2", self._own)
                if self._event:
                    self.memory.cu.call("cuEventDestroy_v2", self._event)
            self._own = self._event = 0
        self._word.close()
