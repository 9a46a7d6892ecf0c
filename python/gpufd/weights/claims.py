"""Slots that tensors keep: each is given back when the last tensor of it is gone."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..channel.frame import Frame
from ..channel.reader import Reader
from ..channel.streams import handle_of, need_streams
from ..errors import Error, UsageError, suppress
from ..log import debug
from ..memory.base import Memory
from ..wire.records import CUDA

_SOON, _AGAIN, _LATER = 0.0005, 0.01, 1.0  # seconds

TAKEN = "dropped", "turned-away"  # reasons: the writer has the slots


class Claim:
    """Stands for a bucket in the tensors that keep it. When the last of them is gone, so is this."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False)
class _Kept:
    """A frame that was taken, and is to be given back."""

    reader: Reader
    frame: Frame
    streams: list[Any]  # PyTorch's, behind whose work that is; None among them for all work of the device
    claim: weakref.ref[Claim]


class Claims:
    """The frames that this process keeps.

    A finaliser may run anywhere, so it only wakes a thread. That gives back each frame whose claim is gone, or collect does between two frames.
    A frame stays noted until it was given back. If the subscriber was dropped, the thread goes on until nothing is kept, and leaves the publishers.

    readers     those that were joined, and not closed
    """

    def __init__(self) -> None:
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whose put a finaliser may call
        self.readers: list[Reader] = []
        self._kept: set[_Kept] = set()
        self._turn = threading.Lock()  # held while frames are given back
        self._thread: threading.Thread | None = None
        self._ended = False

    def claim(self, reader: Reader, frame: Frame, streams: list[Any]) -> Claim:
        """Return what keeps a frame. Once it is gone, the frame is given back behind the work of the streams that are in the list by then."""
        claim = Claim()
        self._kept.add(_Kept(reader, frame, streams, weakref.ref(claim)))
        weakref.finalize(claim, self._wake.put, True).atexit = False
        return claim

    def of(self, reader: Reader) -> int:
        """Return how many frames of a reader are kept."""
        return sum(1 for kept in list(self._kept) if kept.reader is reader)

    def keeps(self, frame: Frame) -> bool:
        """Return whether a frame is kept."""
        return any(kept.frame is frame for kept in list(self._kept))

    def are_all(self, reader: Reader) -> bool:
        """Return whether all slots of a reader are kept."""
        self.collect()
        return self.of(reader) >= reader.slots

    def collect(self) -> bool:
        """Give back what is gone. Return whether that succeeded; otherwise the thread tries again."""
        if not self._gone():
            return True
        with self._turn:
            failed = [kept for kept in self._gone() if not self._give_back(kept)]
        if failed and threading.current_thread() is not self._thread:
            self._wake.put(True)
        return not failed

    def settle(self, limit: float) -> None:
        """Wait until all that is gone was given back, by whichever thread, so many seconds at most."""
        end = time.monotonic() + limit
        while not self.collect() and time.monotonic() < end:
            time.sleep(_SOON)

    def join(self, reader: Reader) -> None:
        """Note a reader that was joined, whose frames a thread gives back from here on."""
        self.readers.append(reader)
        if not self._thread:
            self._thread = threading.Thread(target=self._run, name="gpufd-weights", daemon=True)
            self._thread.start()

    def close(self, reader: Reader, force: bool = False) -> None:
        """Close a reader. Raises what its close does."""
        reader.close(force)
        with contextlib.suppress(ValueError):  # another thread has closed it, too
            self.readers.remove(reader)

    def end(self) -> None:
        """Have the thread end, when nothing is kept."""
        self._ended = True
        self._wake.put(True)

    def _gone(self) -> list[_Kept]:
        return [kept for kept in list(self._kept) if kept.claim() is None]

    def _run(self) -> None:
        while self._kept or not self._ended:
            self._wake.get()
            _again(self.collect)
        _again(self._leave)

    def _leave(self) -> bool:
        """Leave the publishers. Return False if memory of one is in use."""
        for reader in list(self.readers):
            try:
                self.close(reader)
            except Error as e:
                debug("%s is not closed yet: %s", reader, e)
        return not self.readers

    def _give_back(self, kept: _Kept) -> bool:
        """Give a frame back. Return False if it is to be tried again, as while its stream is being captured."""
        try:
            with suppress(Error, *TAKEN, "closed", "order"):  # the writer has the slot then; order: an exception came right behind the release
                give_back(kept.reader, kept.frame, kept.streams)
        except BaseException as e:
            if not isinstance(e, Exception) and threading.current_thread() is not self._thread:
                self._wake.put(True)
                raise
            debug("bucket %d cannot be given back yet: %s", kept.frame.index, e)
            return False
        self._kept.discard(kept)
        return True


def _again(succeeds: Callable[[], bool]) -> None:
    """Try something until it succeeds."""
    pause = _AGAIN
    while not succeeds():
        time.sleep(pause)
        pause = min(2 * pause, _LATER)


def give_back(reader: Reader, frame: Frame, streams: list[Any]) -> None:
    """Give a frame back behind the work of all streams, or, with None among them, when the device has done all of its work."""
    memory, used = reader.attachment.memory, list(streams)
    if memory.driver != CUDA:
        return frame.release()
    if not used or None in used:
        memory.finish()
        return frame.release()
    *others, last = used
    if others:
        _check_captured(memory, used)
    for stream in others:
        last.wait_stream(stream)
    return frame.release(last)


def _check_captured(memory: Memory, streams: list[Any]) -> None:
    """Raise UsageError if a stream is being captured: waiting for it would add to its graph."""
    captured = ctypes.c_int()
    for stream in streams:
        with need_streams(memory).current() as lib:
            lib.call("cuStreamIsCapturing", handle_of(stream), ctypes.byref(captured))
        if captured.value:
            raise UsageError("a stream that tensors were used on is being captured")


def release(frame: Frame) -> None:
    """Give back a frame that no tensor was made of."""
    with suppress(Error, *TAKEN, "closed"):
        frame.release()
