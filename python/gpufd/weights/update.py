"""One update, on the side that takes it: :class:`Update`."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

from .. import arguments, log
from ..errors import Error, TimedOutError, UsageError, WeightsError
from ..keeper.tables import quote
from ..memory.array import DTYPES, Array
from ..wire.records import CUDA
from .claims import release
from .frames import Entry
from .meta import Meta
from .reading import Bucket, UpdateReader, torn
from .source import stream_of
from .state import SubscriberState, trainer_of
from .views import AssembledTensor, Views
from .waits import Wait

Pair = tuple[str, Any]
_T = TypeVar("_T")
_LOOK = 0.05  # seconds between looks whether the subscriber was closed, while no bucket comes


class Update:
    """The weights of a step, which may still be coming: Subscriber.next.

    number      the publisher's, from 1
    step        the trainer's own
    metadata    the tensors that each update has, by name, if the publisher says so; else None
    """

    def __init__(self, state: SubscriberState, updates: UpdateReader, first: Bucket, copies: bool) -> None:
        self.number, self.step = first.head.number, first.head.step
        self.metadata: Mapping[str, Meta] | None = updates.metadata
        self._state, self._updates, self._copies = state, updates, copies
        self._first: Bucket | None = first  # until somebody takes it
        self._streams: list[Any] = []  # behind whose work its buckets are given back
        self._handed = self._over = False  # tensors were handed out; it was loaded, or is not to be
        self._last: Bucket | None = None  # once all tensors were handed out
        self._why = ""  # it is torn
        self._thread: int | None = None  # that loads it, or iterates over its tensors
        self._assembled: AssembledTensor | None = None

    def __repr__(self) -> str:
        return f"<gpufd.weights.Update {self.number} of step {self.step}>"

    def load(self, fn: Callable[[Iterator[Pair]], _T] | None = None, copy: bool | None = None, *, timeout: float | None = None) -> _T:
        """Call a function with an iterator of (name, tensor), which comes to its end when the update is whole. Return what it returns.

        A tensor is a view of the bucket that it came in, which is not written until the last tensor of it is gone: a function may
        keep tensors. Do not write to them. A tensor has memory of its own with copy, if it came in pieces, and while
        others keep all buckets but one. On a GPU a bucket is given back behind the work of the streams that were current when the
        iterator was asked for tensors, and of those of used_on.

        If the update does not end whole, or the function raises or leaves tensors, the weights may be of two steps, if the function
        got any: then Subscriber.step raises until another update was loaded. Raises WeightsError (torn), TimedOutError if the update
        is not whole within the timeout, ClosedError if another thread closes the subscriber, and what the function raises.
        """
        if not callable(fn):
            raise UsageError(f"load takes a function of an iterator, not {arguments.short(fn)}: without one there is tensors, or Subscriber.bind")
        with contextlib.closing(self._begun(copy, timeout)) as pairs:
            try:
                result = fn(pairs)
                self._check_taken(pairs)
                self._end()
            except BaseException as e:
                self._fail(self._why or f"loading raised {type(e).__name__}: {e}")
                raise
            finally:
                self._thread = None
        return result

    def tensors(self, copy: bool | None = None, *, timeout: float | None = None) -> Iterator[Pair]:
        """Return the iterator that load gives to its function. The update counts as loaded when it has come to its end.

        It has not when the last tensor was taken: in zip it comes first, so that zip asks it for one more.
        """
        return self._begun(copy, timeout, ends=True)

    def used_on(self, stream: Any) -> None:
        """Give the buckets of this update back behind the work of another stream of PyTorch's, too.

        Call it, before the tensors go, for each stream that uses them and was not the current one when they came.
        """
        if stream not in self._streams:
            self._streams.append(stream)

    def is_loaded_elsewhere(self) -> bool:
        """Return whether another thread loads it."""
        return self._thread not in (None, threading.get_ident())

    def _begun(self, copy: bool | None, timeout: float | None, ends: bool = False) -> Generator[Pair, None, None]:
        self._check()
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        return self._pairs(self._copies if copy is None else arguments.flag("copy", copy), deadline, ends)

    def _check(self) -> None:
        if not self._first:
            raise WeightsError(f"update {self.number} is over, or was loaded", step=self.step, reason="over")

    def _check_taken(self, pairs: Iterator[Pair]) -> None:
        """Raise WeightsError (torn) if the function has left tensors."""
        handed = self._handed
        for name, _ in pairs:
            self._handed = handed
            raise self._torn(f"the function that loads it has left tensor {quote(name)}, and what is behind it")
        if not self._last:  # the function went on behind what the iterator raised
            raise self._torn(self._why)

    # Its end.

    def _end(self) -> None:
        """Note that it was loaded whole. Raises WeightsError (torn) if the publisher has taken the buckets meanwhile."""
        self._check_left()
        assert self._last
        try:
            self._updates.check(self._last)
        except Error as e:
            raise self._lost(e) from e
        self._state.loaded(self._updates, self.number, self.step)
        self._over = True

    def discard(self) -> None:
        """Note that the update is not to be loaded any more. What was taken of it is half of one."""
        self._fail("the subscriber was closed" if self._state.closed else "it was left for the next one")

    def _fail(self, why: str) -> None:
        """Note that it was not loaded whole, unless its end was noted before."""
        if self._over:
            return
        self._over = True
        first, self._first = self._first, None
        if self._handed:
            self._state.poison(self._updates, self.number, self.step, why)
        if first:
            release(first.frame)
        self._state.fail(self._updates, self.number)

    def _torn(self, why: str) -> WeightsError:
        self._why = self._why or why
        if self._handed:
            return torn(self.step, why)
        return WeightsError(f"the update of step {self.step} is torn, and nothing of it was taken: {why}", step=self.step)

    def _check_left(self) -> None:
        if self._over:
            self._state.check_open()
            raise self._torn("it was left for the next one")

    # The tensors.

    def _pairs(self, copies: bool, deadline: float, ends: bool) -> Generator[Pair, None, None]:
        """Iterate over the tensors. With ends, the update counts as loaded behind the last."""
        self._check()
        bucket, self._first = self._first, None
        assert bucket
        self._thread = threading.get_ident()
        try:
            while True:
                yield from self._pairs_of(bucket, copies)
                self._state.claims.collect()
                if bucket.over:
                    break
                bucket = self._next(deadline)
            if not bucket.is_last:
                raise self._torn("the publisher has given it up")
            self._last = bucket
            if ends:
                self._end()
        except GeneratorExit:
            self._why = self._why or "its tensors were left: ask the iterator until it ends, which zip, for one, does not"
            self._fail(self._why)
            raise
        except BaseException as e:
            self._why = self._why or f"loading raised {type(e).__name__}: {e}"
            self._fail(self._why)
            raise
        finally:
            if ends:  # otherwise load does not end here
                self._thread = None

    def _pairs_of(self, bucket: Bucket, copies: bool) -> Iterator[Pair]:
        """Iterate over the tensors that are whole with a bucket."""
        reader, claims = self._updates.reader, self._state.claims
        memory = reader.attachment.memory
        views = Views(memory, bucket.frame, claims.claim(reader, bucket.frame, self._streams), self._state.copies_to)
        try:
            crowded = True
            for e in bucket.entries:
                self._check_left()
                if memory.driver == CUDA:
                    self.used_on(stream_of(memory))
                crowded = crowded and claims.are_all(reader)  # or the publisher would wait for ever
                if e.meta.dtype not in DTYPES:
                    raise self._torn(f"tensor {quote(e.name)} has the type {e.meta.dtype}, for which there are no arrays")
                tensor = self._tensor(views, e, copies or crowded)
                if tensor is None:
                    continue
                pair, tensor, self._handed = [(e.name, tensor)], None, True
                yield pair.pop()  # nothing here keeps the tensor
        finally:
            del views  # from here on tensors alone keep the bucket, also behind an exception that somebody keeps

    def _tensor(self, views: Views, e: Entry, copies: bool) -> Any:
        """Return the tensor that is whole with an entry, or None."""
        try:
            if e.is_whole:
                return self._copy(views, e) if copies else views.view(e)
            if not self._add(views, e) or not self._assembled:
                return None
            assembled, self._assembled = self._assembled, None
            return assembled.tensor()
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they have views, which would keep the bucket for as long as somebody keeps the exception
            del views
            raise

    def _copy(self, views: Views, e: Entry) -> Any:
        copied = views.copy(e)
        if isinstance(copied, Array):
            self.used_on(None)  # its copy is no work of PyTorch's streams
        return copied

    def _add(self, views: Views, e: Entry) -> bool:
        """Add a piece to the tensor that is assembled. Return whether that is complete."""
        if not e.begin or not self._assembled:
            self._assembled = views.assembled(e.meta)
        views.piece(e, self._assembled)
        return e.ends

    def _next(self, deadline: float) -> Bucket:
        """Wait for the next bucket. Raises WeightsError (torn) if there is none."""
        trainer = trainer_of(self._updates.reader)
        wait = Wait(deadline, lambda: f"load: update {self.number} (step {self.step}) has waited for its next bucket of {trainer}", log.warning)
        while True:
            self._check_left()
            try:
                bucket = self._state.take(self._updates, min(wait.until, time.monotonic() + _LOOK))
            except Error as e:
                raise self._lost(e) from e
            if bucket and not bucket.is_first:
                return bucket
            if bucket:
                self._updates.push_back(bucket)
            if bucket or self._updates.torn:
                raise self._torn("the publisher went on with another update")
            if wait.is_over():
                raise TimedOutError(f"the update of step {self.step} has not come whole in time: {trainer} may stand still, or wait for another subscriber")

    def _lost(self, why: Error) -> WeightsError:
        self._state.lose(self._updates, why)
        self._state.check_open()
        return self._torn(str(why))
