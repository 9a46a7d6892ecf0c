"""Memory of two processes, a 64-bit word at a time: loads, stores, bells and waits.

Python has no atomic operations. What stands for them here:

- A word is loaded and stored at once. ``array[i]`` of an array of ctypes copies eight aligned
  bytes by one instruction, on x86-64 and on arm64, and what other threads of Python do cannot
  come between, either.
- On x86-64 each load acquires and each store releases, because the processor keeps loads in
  their order, and stores in theirs. Neither the compiler nor the interpreter moves one past
  another: each is a call of its own.
- Elsewhere (arm64) the processor may reorder both. There libatomic's functions load and store,
  or, where that library is not installed, each load and store has a full barrier beside it.
- A store and then a load of another word, as of bells and of claims, is reordered on x86-64 too.
  :meth:`Words.fence` stands between, a full barrier. The barrier is FUTEX_WAKE_OP, in which the kernel changes
  a word of ours atomically, or on x86-64 the locked instruction of a lock of Python's.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import ClosedError, Error


U64 = (1 << 64) - 1
SPIN = 50e-6  # seconds for which a wait looks without pause
POLL_MIN, POLL_MAX = 20e-6, 250e-6  # pauses where a stream writes, which wakes nobody
SLEEP_MAX = 10e-3  # the longest pause in any case
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAKE_OP = 0, 1, 5
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 98)
_SEQ_CST = 5

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Words:
    """A file of memory, mapped, as words at offsets in bytes that are multiples of eight. Its maker
    closes it."""

    def __init__(self, fd: int, size: int) -> None:
        try:
            self._map: mmap.mmap | None = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError) as e:
            raise Error(f"mapping cursors of {size} bytes: {e}") from None
        self.size = size
        self._words: Any = (ctypes.c_uint64 * (size // 8)).from_buffer(self._map)
        self.address = ctypes.addressof(self._words)

    def load(self, at: int) -> int:
        """Return the word there: what is read afterwards is as new."""
        return int(self._words[at >> 3])

    def store(self, at: int, value: int) -> None:
        """Set the word there, behind all that was written before."""
        self._words[at >> 3] = value

    def fence(self) -> None:
        """Order all stores until here before all loads from here on."""
        threading.Lock().acquire()  # of its own: nobody has it, so this is one locked instruction

    def close(self) -> None:
        """Unmap it, when no other thread is about to look there."""
        self._words, mapped = _Closed(), self._map
        self._map = None
        if mapped is not None:
            with contextlib.suppress(BufferError):  # another thread looks: then it goes with that
                mapped.close()

    # Bells: 1 while the other side, or this one, sleeps.

    def ring(self, bell: int) -> None:
        """Wake who sleeps there, if anybody does. What that waits for was stored before."""
        self.fence()
        if self.load(bell) & 0xFFFFFFFF:
            self.store(bell, 0)
            _syscall(_SYS_FUTEX, self.address + bell, _FUTEX_WAKE, 1 << 30, None, None, 0)

    def sleep(self, bell: int, seconds: float, ready: Callable[[], object]) -> None:
        """Wait until the bell rings, so long at most, unless ready says that there is no need."""
        self.store(bell, 1)
        self.fence()
        if ready():
            self.store(bell, 0)
            return
        pause = _Timespec(0, max(1, int(min(seconds, 0.9) * 1e9)))
        _syscall(_SYS_FUTEX, self.address + bell, _FUTEX_WAIT, 1, ctypes.byref(pause), None, 0)

    def await_(self, bell: int, polls: int, deadline: float | None, ready: Callable[[], object], most: float = SLEEP_MAX) -> bool:
        """Wait until ready says so, or the deadline (time.monotonic). polls is the word that
        says that the other side's streams write, which ring no bell, or 0. No pause is
        longer than most seconds."""
        if ready():
            return True
        now = time.monotonic()
        spin, pause = now + SPIN, POLL_MIN
        while True:
            for _ in range(8):
                if ready():
                    return True
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if now < spin:
                continue
            longest = POLL_MAX if polls and self.load(polls) else most
            if deadline is not None:
                longest = max(POLL_MIN, min(longest, deadline - now))
            pause = min(pause, longest)
            self.sleep(bell, pause, ready)
            pause *= 2


class FencedWords(Words):
    """Words for machines that do not order loads and stores, and have no libatomic."""

    def load(self, at: int) -> int:
        value = super().load(at)
        self.fence()
        return value

    def store(self, at: int, value: int) -> None:
        self.fence()
        super().store(at, value)

    def fence(self) -> None:
        _syscall(_SYS_FUTEX, ctypes.addressof(_own), _FUTEX_WAKE_OP, 0, None, ctypes.addressof(_own), _ADD_NOTHING)


class AtomicWords(Words):
    """By libatomic, whose functions need no further fences."""

    def load(self, at: int) -> int:
        self._inside(at)
        return int(_atomic[0](self.address + at, _SEQ_CST))

    def store(self, at: int, value: int) -> None:
        self._inside(at)
        _atomic[1](self.address + at, value, _SEQ_CST)

    def fence(self) -> None:
        _atomic[2](_SEQ_CST)

    def _inside(self, at: int) -> None:
        if self._map is None or not 0 <= at <= self.size - 8:
            raise ClosedError("cursors that are not mapped")


class _Closed:
    """Stands for words that are not mapped any more."""

    def __getitem__(self, i: int) -> int:
        raise ClosedError("this side of the channel was closed")

    def __setitem__(self, i: int, value: int) -> None:
        raise ClosedError("this side of the channel was closed")


def _load_libatomic() -> tuple[Any, Any, Any] | None:
    """Load, store and fence of libatomic, if it is there."""
    try:
        lib = ctypes.CDLL("libatomic.so.1")
        load, store, fence = (getattr(lib, name) for name in ("__atomic_load_8", "__atomic_store_8", "atomic_thread_fence"))
    except (OSError, AttributeError):
        return None
    load.argtypes, load.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_uint64
    store.argtypes, store.restype = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int], None
    fence.argtypes, fence.restype = [ctypes.c_int], None
    return load, store, fence


_own = ctypes.c_uint32()  # that FUTEX_WAKE_OP adds nothing to
_ADD_NOTHING = 1 << 28  # FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0)
_atomic: Any = _load_libatomic()


def map_words(fd: int, size: int) -> Words:
    """Return the words of a file, mapped as this machine needs it."""
    if platform.machine() in ("x86_64", "AMD64"):
        return Words(fd, size)
    return AtomicWords(fd, size) if _atomic else FencedWords(fd, size)
