"""Two processes take turns on memory that they share.

A Counter is a number in a control chunk, docs/wire.md "Counters": the counterpart of
gpufd's share.Counter, on either driver and between containers too. IPCEvent is an event of
CUDA's legacy IPC, the counterpart of cu.IPCOrder, for a GPU alone. Both wait on the host,
with a deadline: what comes behind a wait, by whichever stream, comes behind what the other
side did before it signalled.
"""

import ctypes
import time

from gpufd import CUDA, READ_WRITE, CannotHere, Error, TimedOut

STRIDE = 128  # bytes of a slot
GIVEN_UP = (1 << 63) - 1  # what a waiter writes that waits no longer
NOT_READY = 600


def poll(done, timeout, what):
    """Wait until done says so, with growing pauses."""
    deadline, pause = time.monotonic() + timeout, 1e-5
    while not done():
        if time.monotonic() > deadline:
            raise TimedOut(f"{what} took longer than {timeout:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)


class Counter:
    """A slot of a control chunk. One side signals, with numbers that grow from 1, the other
    waits. Who waits in vain gives the slot up: then nobody can use it any more."""

    def __init__(self, buffer, slot):
        if buffer.access != READ_WRITE:
            raise Error("a counter in memory that is read-only here: attach to it read-write")
        if not 0 <= slot < buffer.size // STRIDE:
            raise Error(f"counter {slot} in a buffer of {buffer.size} bytes, which has room for {buffer.size // STRIDE}")
        self.buffer, self.slot, self.broken = buffer, slot, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def check(self, n):
        if self.broken:
            raise Error(f"counter {self.slot} was given up")
        if not 0 < n < GIVEN_UP:
            raise Error(f"a counter counts from 1 to {GIVEN_UP - 1}, and not to {n}")

    def wait(self, n, timeout):
        """Wait until the number is n or more; at the deadline give the slot up."""
        self.check(n)
        try:
            self.await_number(n, timeout)
        except BaseException:  # by a signal, too: it is not waited for any more
            self.broken = True
            raise


def reached(number, n):
    """As a GPU compares: by the sign of the difference."""
    return (number - n) % (1 << 64) < 1 << 63


class WordCounter(Counter):
    """Of the software driver, whose memory is a file: a word of that, which is loaded and
    stored at once. Python has no fences; amd64 wants none for this."""

    def __init__(self, buffer, slot):
        super().__init__(buffer, slot)
        ((i, at, _),) = buffer.ranges(slot * STRIDE, 8)
        self.word = ctypes.c_uint64.__ctype_le__.from_buffer(buffer.view(i), at)

    def signal(self, n):
        """Set the number, behind all that was written before."""
        self.check(n)
        self.word.value = n

    def await_number(self, n, timeout):
        try:
            poll(lambda: reached(self.word.value, n), timeout, f"counter {self.slot}")
        except BaseException:
            self.word.value = GIVEN_UP
            raise
        if self.word.value == GIVEN_UP:
            raise TimedOut(f"counter {self.slot} was given up by another waiter")

    def close(self):
        """Let go of the memory, which can be closed then."""
        self.word = None


class StreamCounter(Counter):
    """Of a GPU: stream waits for the number and writes it, behind all that was done with the
    buffer before. Another stream frees it when it waits in vain."""

    def __init__(self, buffer, slot):
        super().__init__(buffer, slot)
        self.at, self.streams = buffer.ptr + slot * STRIDE, []
        non_blocking = 1
        try:
            for _ in range(2):
                self.streams.append(buffer.call("cuStreamCreate", non_blocking))
        except BaseException:
            self.close()
            raise
        self.stream, self.rescue = self.streams

    def signal(self, n):
        """Set the number, behind all that was given to the GPU before."""
        self.check(n)
        self.buffer.finish()
        self.buffer.call("cuStreamWriteValue64", self.stream, self.at, n, 0)
        self.buffer.call("cuStreamSynchronize", self.stream)

    def await_number(self, n, timeout):
        greater_or_equal = 0
        self.buffer.call("cuStreamWaitValue64", self.stream, self.at, n, greater_or_equal)
        try:
            poll(lambda: is_done(self.buffer, "cuStreamQuery", self.stream), timeout, f"counter {self.slot}")
        except BaseException:
            self.buffer.call("cuStreamWriteValue64", self.rescue, self.at, GIVEN_UP, 0)
            self.buffer.call("cuStreamSynchronize", self.stream)
            raise

    def close(self):
        while self.streams:
            self.buffer.call("cuStreamDestroy", self.streams.pop())


def is_done(buffer, query, thing):
    """Whether a stream or an event has come to its end."""
    (code,) = getattr(buffer.cu, query)(thing)
    if int(code) == NOT_READY:
        return False
    buffer.check(query, code)
    return True


def counter(buffer, slot):
    """The counter of a slot, as its buffer takes it."""
    return (StreamCounter if buffer.driver == CUDA else WordCounter)(buffer, slot)


class IPCEvent:
    """An event that two processes have. Either records it, and tells the other that it has;
    the latest record counts. handle is what the other opens it by, of one made here."""

    def __init__(self, buffer, handle=None):
        if buffer.driver != CUDA:
            raise CannotHere("IPC events of the software driver are for its own processes; order by a counter")
        self.buffer, self.handle = buffer, handle
        if handle:
            raw = buffer.cu.CUipcEventHandle()
            raw.reserved = handle
            self.event = buffer.call("cuIpcOpenEventHandle", raw)
            return
        disable_timing, interprocess = 2, 4
        self.event = buffer.call("cuEventCreate", disable_timing | interprocess)
        try:
            self.handle = bytes(buffer.call("cuIpcGetEventHandle", self.event).reserved)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def record(self):
        """Mark all that was given to the GPU before."""
        null_stream = 0
        self.buffer.call("cuEventRecord", self.event, null_stream)

    def wait(self, timeout):
        """Wait until what was recorded last has happened."""
        poll(lambda: is_done(self.buffer, "cuEventQuery", self.event), timeout, "the event of the other process")

    def close(self):
        event, self.event = self.event, None
        if event is not None:
            self.buffer.call("cuEventDestroy", event)
