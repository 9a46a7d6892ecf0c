"""The side that takes weights: :class:`Subscriber`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from .. import arguments, log
from ..channel.reader import Reader
from ..channel.streams import CLOSE_LIMIT
from ..errors import ChannelError, Error, InUseError, LostError, TimedOutError, UsageError, WeightsError, suppress
from ..memory.device import Device, device_name
from ..memory.drivers import device_uuid, driver_kind, place_of
from ..objects import NotCopied, called
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.sockets import offer_socket
from .bound import Bound, InPlaceUpdate
from .claims import release
from .meta import Meta
from .publisher import publisher_name
from .reading import UpdateReader
from .state import SubscriberState, trainer_of
from .update import Update
from .waits import Wait, others_there

_PASSING = ("stale", "ended", "lost", "nobody-listens", "not-found", "not-offered")  # while another publisher may come
_AGAIN = 0.02  # seconds
_SOON = 0.002  # seconds between looks whether another thread has let go of its tensors
_AT_ONCE = 1.0  # seconds for each step of joining a publisher that answers, where nothing is to wait


class Subscriber(NotCopied):
    """Takes the weights of each step from the publisher on this GPU. Its maker closes it, by ``with`` or close.

        sub = gpufd.weights.Subscriber("policy")
        for update in sub:
            update.load(load_weights)             # an iterator of (name, tensor)

    One thread at a time uses it; tensors may go in any. Any thread may close it: what waits for an update raises ClosedError then.

    name            that of Publisher
    publisher       UUID of a GPU ("GPU-…", as nvidia-smi prints it) whose publisher to take, by peer access, instead of this one's
    device, driver  the GPU of this worker: as of gpufd.allocate; by default PyTorch's current device, if it uses CUDA, or else 0
    copy            give tensors in memory of their own, as if load was called with copy
    socket          where the publisher listens, if it says so
    wait            seconds to wait for a publisher, when there is none; None for no bound. Only next and bind wait
    timeout         seconds for each step of joining it
    max_size        bytes of the largest publisher to take
    """

    def __init__(
        self, name: str, *, publisher: str | None = None, device: Device | None = None, copy: bool = False,
        socket: str | os.PathLike[str] | None = None, wait: float | None = None, driver: str | int | None = None,
        timeout: float | None = DEFAULT_TIMEOUT, max_size: int | None = None,
    ) -> None:  # fmt: skip
        self._wait, self._copy = arguments.seconds("wait", wait), arguments.flag("copy", copy)
        kind = driver_kind(driver)
        ordinal = place_of("cuda" if device is None else device, kind)
        uuid = device_uuid(kind, ordinal) if publisher is None else _uuid_of(publisher)
        self.name = arguments.text("a name", name)
        self._state = SubscriberState(ordinal if publisher is not None else None)
        self._offer, self._gpu, self._timeout = publisher_name(name, uuid), device_name(uuid), arguments.step(timeout)
        self._options: dict[str, Any] = {"socket": offer_socket(self._offer) if socket is None else socket, "driver": kind, "max_size": max_size}
        self._known = 0  # the generation of the last publisher
        self._update: Update | None = None  # the last one that was given out
        self._bound: Bound | None = None
        self._left = False  # close has come to its end
        with suppress(Error, *_PASSING, "timed-out"):
            self._join(min(self._timeout, _AT_ONCE))

    def __repr__(self) -> str:
        whole, torn = self._state.whole, self.torn
        state = "closed" if self._state.closed else f"step {whole.step if whole else None}" if torn is None else f"torn at step {torn}"
        return f"<gpufd.weights.Subscriber of {called(self._offer)}, {state}>"

    # Its state.

    @property
    def step(self) -> int | None:
        """The step whose weights were loaded last, or None.

        Raises WeightsError (torn) after an update that did not end whole, until another was loaded.
        """
        self._state.check()
        return self._state.whole.step if self._state.whole else None

    @property
    def torn(self) -> int | None:
        """The step of an update of which tensors were loaded, and which did not end whole, if none was loaded since; else None.

        In place it is the step of the weights that the trainer was writing over.
        """
        return self._state.torn.step if self._state.torn else None

    @property
    def metadata(self) -> Mapping[str, Meta] | None:
        """The tensors of each update, by name, if a publisher is there that says so; else None."""
        return self._state.updates.metadata if self._state.updates else None

    # Updates.

    def __iter__(self) -> Iterator[Update | InPlaceUpdate]:
        """Iterate over updates, of one publisher after the other if one was killed, until one has ended in order. Another loop waits for the next."""
        while True:
            try:
                update = self.next()
            except WeightsError as e:
                if e.reason != "ended":
                    raise
                if not self._state.whole:
                    log.warning("subscriber %r has loaded no update whole: %s", self.name, e)
                return
            yield update
            del update

    def next(self, timeout: float | None = None) -> Update | InPlaceUpdate:
        """Wait for the next update, and return it as soon as it begins. One that was given out and is not loaded by now is left out.

        Raises WeightsError (ended) if the publisher has ended in order: the next call waits for another one. Raises TimedOutError, also
        if no publisher comes within the seconds of wait, and WeightsError (malformed) if it writes nonsense. In place it raises UsageError if
        the last update was not loaded, since the trainer waits for that.
        """
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        self._check()
        self._pass()
        if self._bound:
            self._bound.check_loaded()
        wait = self._waiting(deadline, "next")
        while True:
            updates = self._state.updates or self._joined(deadline)
            try:
                got = self._bound.next(updates, wait.until) if self._bound else self._begun(updates, wait.until)
            except LostError as e:
                self._state.lose(updates, e)
                continue
            except Error as e:
                self._state.lose(updates, e)
                raise
            if got:
                return got
            if wait.is_over():
                raise TimedOutError(f"no update of {self.name!r} came within {timeout:g} s from {self._trainer()}")

    def _waiting(self, deadline: float, who: str) -> Wait:
        """Return a wait for an update."""
        return Wait(deadline, lambda: f"{who}: subscriber {self.name!r} has waited for an update of {self._trainer()}")

    def _trainer(self) -> str:
        there = self._state.updates
        return trainer_of(there.reader) if there else "a trainer"

    def _pass(self) -> None:
        """Leave out the update that was given out last, if it was not loaded, and let go of what tensors do not keep."""
        update, self._update = self._update, None
        if update:
            update.discard()
        self._state.let_go()

    def _begun(self, updates: UpdateReader, deadline: float) -> Update | None:
        """Take a frame. Return the update that it begins."""
        bucket = self._state.take(updates, deadline)
        if not bucket:
            return None
        if not bucket.is_first or bucket.over and not bucket.is_last:
            release(bucket.frame)
            return None
        self._update = Update(self._state, updates, bucket, self._copy)
        return self._update

    # The publisher.

    def _joined(self, deadline: float) -> UpdateReader:
        """Wait for a publisher."""
        end = min(deadline, time.monotonic() + self._wait)
        wait = Wait(end, lambda: f"subscriber {self.name!r} has waited for a publisher on {self._gpu}")
        while True:
            self._check()
            step = max(_AT_ONCE, end - time.monotonic())
            try:
                with suppress(Error, *_PASSING):
                    return self._join(min(self._timeout, step))
            except TimedOutError:
                raise TimedOutError(f"the publisher of {self.name!r} on {self._gpu} does not answer: its process is stopped, or busy") from None
            if wait.is_over():
                raise TimedOutError(
                    f"no publisher of {self.name!r} on {self._gpu} came in time{others_there(self._offer)}: start the trainer, or say how long to wait (wait)"
                )
            time.sleep(min(_AGAIN, max(0.0, wait.until - time.monotonic())))

    def _join(self, timeout: float) -> UpdateReader:
        try:
            reader = Reader(self._offer, join="newest", newer_than=self._known, timeout=timeout, **self._options)
        except ChannelError as e:
            if e.reason != "turned-away":
                raise
            raise ChannelError(f"the trainer has refused subscriber {self.name!r}: it has no room for another one, or was told not to admit it", reason=e.reason) from None
        try:
            updates = UpdateReader(reader)
        except BaseException:
            reader.close()
            raise
        self._known, self._state.updates = reader.attachment.generation, updates
        self._state.claims.join(reader)
        if self._state.closed:  # meanwhile
            self._state.leave(updates)
            self._check()
        return updates

    # In place.

    def bind(self, model: Any, timeout: float | None = None, *, strict: bool = True) -> None:
        """Make the model's parameters views of the memory that the trainer writes in place, and wait for the first whole update.

        So are buffers that the weights have; others stay the model's own. With strict the model has a place for each tensor of the trainer's.
        From here on the model has the weights of step, without a copy. An update of the loop says that the trainer waits to write.
        Its load waits for the work on the device, and returns when the next weights are there, at the same addresses, so captured graphs
        replay. Raises MismatchError (tensors) if the weights do not fit the model, and WeightsError (in-place) if the publisher is not in place.
        """
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        self._check()
        if not callable(getattr(model, "named_modules", None)):
            raise UsageError(f"bind takes a module of PyTorch's, not {arguments.short(model)}")
        if self._bound:
            raise UsageError("a model is bound already")
        self._pass()
        bound, wait = Bound(self._state, model, arguments.flag("strict", strict)), self._waiting(deadline, "bind")
        while not self._bound:
            updates = self._state.updates or self._joined(deadline)
            try:
                bound.begin(updates, wait.until)
            except LostError as e:
                self._state.lose(updates, e)
            finally:
                self._bound = bound if self._state.mapped else None
            if not self._bound and wait.is_over():
                raise TimedOutError(f"no whole update of {self.name!r} came within {timeout:g} s from {self._trainer()}")

    # The end.

    def _check(self) -> None:
        self._state.check_open()

    def close(self) -> None:
        """Leave. Raises InUseError while tensors of buckets are alive; close can be called again then, and nothing else.

        A load in another thread raises ClosedError at its next tensor. Close waits for a second at most until that has let go of its tensors.
        A bound model is left without memory (device meta) where it had the publisher's.
        """
        if self._left:
            return
        self._state.closed = True
        loads = self._update is not None and self._update.is_loaded_elsewhere()
        self._pass()
        if self._bound:
            self._bound.close()
            self._bound = None
        state = self._state
        state.claims.settle(CLOSE_LIMIT)
        if state.updates:
            state.leave(state.updates)
        failed, end = state.let_go(), time.monotonic() + CLOSE_LIMIT
        while loads and state.left and not failed and time.monotonic() < end:
            time.sleep(_SOON)
            failed = state.let_go()
        if failed:
            raise failed
        if state.left:
            busy = state.left[0].attachment.memory.in_use()
            raise InUseError(f"tensors of {self.name!r} that were not copied are alive: del them, then close again, or load with copy=True", busy.views if busy else ())
        self._left = True
        state.claims.end()

    def __enter__(self) -> Subscriber:
        self._check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.nullcontext() if error is None else contextlib.suppress(Error):
            self.close()


def _uuid_of(text: str) -> bytes:
    """Return the UUID of a GPU as nvidia-smi prints it."""
    plain = arguments.text("a publisher", text).lower().removeprefix("gpu-").removeprefix("mig-").replace("-", "")
    if len(plain) != 32 or any(digit not in "0123456789abcdef" for digit in plain):
        raise UsageError(f"publisher={text[:100]!r}: the UUID of a GPU is wanted, as nvidia-smi prints it (GPU-…)")
    return bytes.fromhex(plain)
