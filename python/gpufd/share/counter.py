"""Two processes take turns on memory that they share.

A :class:`Counter` is a number in a control chunk, docs/wire.md "Counters": the counterpart
of gpufd's counter.Counter, on either driver and between containers too. An :class:`IPCEvent`
is an event of CUDA's legacy IPC, the counterpart of cu.IPCOrder, for a GPU alone. Both wait
on the host, with a deadline: what comes behind a wait, by whichever stream, comes behind
what the other side did before it signalled.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from .. import arguments
from ..errors import ClosedError, ReadOnlyError, TimedOutError, UnavailableError, UsageError
from ..memory import libcuda as cu
from ..memory.base import Memory
from ..memory.cuda import EVENT_DISABLE_TIMING, CudaMemory
from ..objects import NotCopied, human
from ..wire.records import READ_WRITE

STREAM_NON_BLOCKING = 1
WAIT_GEQ = 0
EVENT_INTERPROCESS = 4
STRIDE = 128  # bytes of a slot
GIVEN_UP = (1 << 63) - 1  # what a waiter writes that waits no longer
SPOILED_AT = 8  # of a slot: a word that is not 0 if nobody may rely on the number


def poll(done: Callable[[], bool], timeout: float, what: str) -> None:
    """Wait until done says so, with growing pauses."""
    deadline, pause = time.monotonic() + timeout, 1e-5
    while not done():
        if time.monotonic() > deadline:
            raise TimedOutError(f"{what} took longer than {timeout:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)


def reached(number: int, n: int) -> bool:
    """As a GPU compares: by the sign of the difference."""
    return (number - n) % (1 << 64) < 1 << 63


class Counter(NotCopied):
    """A number in memory that two processes share: docs/wire.md, "Counters".

    One side signals numbers that grow from 1; the other waits for them. A wait that fails gives
    the slot up: then nobody can use it any more. Its maker closes it, by ``with`` or close,
    before the memory.
    """

    def __init__(self, memory: Memory, slot: int) -> None:
        if memory.access != READ_WRITE:
            raise ReadOnlyError("a counter in memory that is read-only here: attach to it read-write")
        if not isinstance(slot, int) or not 0 <= slot < memory.size // STRIDE:
            raise UsageError(f"counter {slot} in a buffer of {memory.size} bytes, which has room for {memory.size // STRIDE}")
        self.memory, self.slot, self.broken, self.closed = memory, slot, False, False
        self._token = memory.hold(f"counter {slot}", pins=True)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "given up" if self.broken else "open"
        return f"<gpufd.Counter {self.slot} in {human(self.memory.size)} on device {self.memory.ordinal}, {state}>"

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the memory, so that it can be closed."""
        if not self.closed:
            self.closed = True
            self._close()
            self.memory.let_go(self._token)

    def _close(self) -> None:
        raise NotImplementedError

    def _check(self, n: int) -> None:
        if self.closed:
            raise ClosedError(f"counter {self.slot} was closed")
        if self.broken:
            raise ClosedError(f"counter {self.slot} was given up", reason="given-up")
        if not isinstance(n, int) or not 0 < n < GIVEN_UP:
            raise UsageError(f"a counter counts from 1 to {GIVEN_UP - 1}, and not to {n}")

    def signal(self, n: int) -> None:
        """Set the number, behind all that was done with the memory before."""
        raise NotImplementedError

    def wait(self, n: int, timeout: float | None) -> None:
        """Wait until the number is n or more; at the deadline give the slot up. None is no bound."""
        self._check(n)
        wait = arguments.seconds("a timeout", timeout)
        try:
            self._await(n, wait)
            self._rely()
        except BaseException:  # by a signal, too: it is not waited for any more
            self.broken = True
            raise

    def _await(self, n: int, timeout: float) -> None:
        raise NotImplementedError

    def _words(self) -> tuple[int, int]:
        """The number, and the word behind it."""
        raise NotImplementedError

    def _rely(self) -> None:
        """Raise unless the number that has come is one to rely on."""
        number, spoiled = self._words()
        if spoiled:
            raise ClosedError(f"counter {self.slot} was signalled behind a wait that was given up: nobody may rely on it", reason="given-up")
        if number == GIVEN_UP:
            raise ClosedError(f"counter {self.slot} was given up by another waiter", reason="given-up")


class WordCounter(Counter):
    """A counter of the software driver, whose memory is a file: a word of that, which is loaded and
    stored at once. Python has no fences; amd64 wants none for this."""

    def __init__(self, memory: Memory, slot: int) -> None:
        super().__init__(memory, slot)
        self.word, self.spoiled = (ctypes.c_uint64.from_address(memory.ptr + slot * STRIDE + at) for at in (0, SPOILED_AT))

    def signal(self, n: int) -> None:
        self._check(n)
        self.word.value = n

    def _await(self, n: int, timeout: float) -> None:
        try:
            poll(lambda: reached(self.word.value, n), timeout, f"counter {self.slot}")
        except BaseException:
            self.word.value = GIVEN_UP
            raise

    def _words(self) -> tuple[int, int]:
        return self.word.value, self.spoiled.value

    def _close(self) -> None:
        del self.word, self.spoiled


class StreamCounter(Counter):
    """A counter of a GPU: stream waits for the number and writes it, behind all that was done with the
    memory before. Another stream frees it if its wait does not end. Libraries may give stream,
    a CUstream, work of theirs."""

    def __init__(self, memory: CudaMemory, slot: int) -> None:
        super().__init__(memory, slot)
        self._cuda, self.at = memory, memory.ptr + slot * STRIDE
        self.streams: list[int] = []
        try:
            with memory.current() as lib:
                for _ in range(2):
                    self.streams.append(lib.made("cuStreamCreate", STREAM_NON_BLOCKING))
        except BaseException:
            self.close()
            raise
        self.stream, self.rescue = self.streams

    def signal(self, n: int) -> None:
        self._check(n)
        self._cuda.finish()
        with self._cuda.current() as lib:
            lib.call("cuStreamWriteValue64_v2", self.stream, self.at, n, 0)
            lib.call("cuStreamSynchronize", self.stream)

    def _await(self, n: int, timeout: float) -> None:
        with self._cuda.current() as lib:
            lib.call("cuStreamWaitValue64_v2", self.stream, self.at, n, WAIT_GEQ)
            try:
                poll(lambda: is_done(lib, "cuStreamQuery", self.stream), timeout, f"counter {self.slot}")
            except BaseException:
                lib.call("cuStreamWriteValue64_v2", self.rescue, self.at, GIVEN_UP, 0)
                lib.call("cuStreamSynchronize", self.stream)
                raise

    def _words(self) -> tuple[int, int]:
        words = (ctypes.c_uint64 * 2)()
        with self._cuda.current() as lib:
            lib.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(words), self.at, ctypes.sizeof(words), self.rescue)
            lib.call("cuStreamSynchronize", self.rescue)
        return words[0], words[1]

    def _close(self) -> None:
        with self._cuda.current() as lib:
            while self.streams:
                lib.call("cuStreamDestroy_v2", self.streams.pop())


def is_done(lib: cu.Libcuda, query: str, thing: int) -> bool:
    """Return whether a stream or an event has come to its end."""
    code = lib.code(query, thing)
    if code == cu.NOT_READY:
        return False
    lib.check(query, code)
    return True


def counter(memory: Memory, slot: int) -> Counter:
    """Return the Counter in a slot of memory that both sides have mapped read-write."""
    return StreamCounter(memory, slot) if isinstance(memory, CudaMemory) else WordCounter(memory, slot)


class IPCEvent(NotCopied):
    """An event of CUDA's legacy IPC that two processes have. A GPU alone has it.

    One process makes it; the other makes its own of the handle. Either may record it, and then
    tells the other so. The latest record counts.
    """

    def __init__(self, memory: Memory, handle: bytes = b"") -> None:
        if not isinstance(memory, CudaMemory):
            raise UnavailableError("IPC events of the software driver are for its own processes; order by a counter")
        self.memory, self.handle, self.event = memory, handle, 0
        with memory.current() as lib:
            if handle:
                self.event = lib.made("cuIpcOpenEventHandle", cu.IpcHandle.from_buffer_copy(handle))
                return
            self.event = lib.made("cuEventCreate", EVENT_DISABLE_TIMING | EVENT_INTERPROCESS)
            try:
                raw = cu.IpcHandle()
                lib.call("cuIpcGetEventHandle", ctypes.byref(raw), self.event)
                self.handle = bytes(raw)
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return f"<gpufd.IPCEvent on device {self.memory.ordinal}, {'open' if self.event else 'closed'}>"

    def __enter__(self) -> IPCEvent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self) -> None:
        """Record the event behind all that the default stream was given before."""
        with self.memory.current() as lib:
            lib.call("cuEventRecord", self.event, None)

    def wait(self, timeout: float | None) -> None:
        """Wait until the work before the latest record is done. Raises TimedOutError."""
        wait = arguments.seconds("a timeout", timeout)
        with self.memory.current() as lib:
            poll(lambda: is_done(lib, "cuEventQuery", self.event), wait, "the event of the other process")

    def close(self) -> None:
        event, self.event = self.event, 0
        if event:
            with self.memory.current() as lib:
                lib.call("cuEventDestroy_v2", event)
