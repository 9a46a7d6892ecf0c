"""A descriptor that says when a reader may have something: :class:`Ready`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from ..errors import ClosedError, enough_files
from . import cursor as c
from .words import Words


class Ready:
    """A pipe that is readable while a reader's next may find something, and the thread that writes to it.

    Frames are announced by words in shared memory, which no descriptor shows. So a thread waits for them, as
    next does, and says so. It waits only while the descriptor is not readable. The reader that owns this calls
    rearm behind each look for a frame, and close when it has left the channel.

    fd      the end that is readable
    """

    @enough_files()
    def __init__(self, words: Words, is_ready: Callable[[], object], is_closing: Callable[[], bool]) -> None:
        self._words, self._is_ready, self._is_closing = words, is_ready, is_closing
        self.fd, self._other = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._armed = threading.Event()
        self._armed.set()
        self._thread = threading.Thread(target=self._run, name="gpufd-ready", daemon=True)
        self._thread.start()

    def rearm(self) -> None:
        """Make the descriptor unreadable, until there is something again, or still."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        self._armed.set()  # only now: what comes from here on is said anew

    def _run(self) -> None:
        try:
            while not self._is_closing():
                self._armed.wait()
                self._armed.clear()
                self._words.await_(c.READER_BELL, c.WRITER_POLLS, None, self._is_ready)
                self._say()
        except ClosedError:  # the words are not mapped any more
            pass
        finally:
            self._say()  # next says that the reader was closed

    def _say(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._other, b".")

    def close(self) -> None:
        """End the thread, behind the end of the reader, and close the descriptor."""
        self._armed.set()
        self._thread.join()
        os.close(self.fd)
        os.close(self._other)
