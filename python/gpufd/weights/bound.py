"""In place, the engine's side: a model whose parameters are the trainer's memory. :class:`Bound`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import arguments, log
from ..errors import DriverError, Error, InUseError, MismatchError, TimedOutError, UsageError, WeightsError
from ..keeper.tables import quote
from ..memory.array import Array
from ..memory.drivers import reserve
from ..memory.reservation import Reservation
from ..memory.tensor import tensor_over
from .claims import release
from .frames import Entry
from .meta import Meta
from .reading import Bucket, UpdateReader, torn
from .state import SubscriberState, told, trainer_of
from .waits import Wait


class InPlaceUpdate:
    """An update in place: the trainer waits to write, or another one has written.

    number, step    of the update, once it was loaded; None before
    metadata        the tensors of it
    """

    def __init__(self, load: Callable[[InPlaceUpdate, float], None], metadata: Mapping[str, Meta] | None, which: str) -> None:
        self.number: int | None = None
        self.step: int | None = None
        self.metadata = metadata
        self._load, self._which = load, which
        self.asked = False  #: load was called

    def __repr__(self) -> str:
        which = f"{self._which}, not loaded" if self.number is None else f"{self.number} of step {self.step}"
        return f"<gpufd.weights.InPlaceUpdate {which}>"

    def load(self, fn: Callable[[Iterator[tuple[str, Any]]], object] | None = None, *, timeout: float | None = None) -> None:
        """Wait for the work on the device, let the trainer write, and wait until the weights are whole.

        There is nothing for a function to load. Raises WeightsError: torn if they do not become whole, and layout if another trainer's lie
        in another way. Raises MismatchError (tensors) if a parameter was replaced or converted since bind. Raises
        TimedOutError if they are not whole within the timeout: then they are torn, and the next update waits for them.
        """
        if fn is not None:
            raise UsageError("the model is bound to the trainer's memory, so there is nothing to load by a function: load()")
        if self.number is not None:
            raise WeightsError(f"update {self.number} was loaded", step=self.step, reason="over")
        self.asked = True
        self._load(self, time.monotonic() + arguments.seconds("a timeout", timeout))


class Bound:
    """A model over the only slot of a publisher in place, at an address that stays."""

    def __init__(self, state: SubscriberState, model: Any, strict: bool) -> None:
        self._state, self._model, self._strict = state, model, strict
        self._at: Reservation | None = None
        self._entries: tuple[Entry, ...] = ()
        self._addresses: dict[str, int] = {}  # of the model's tensors that are views, by name
        self._there: Bucket | None = None  # the weights that the model has, or had before they were torn
        self._holds = False  # the frame of that, so the trainer does not write
        self._ready: tuple[UpdateReader, Bucket] | None = None  # weights that are whole, and not adopted yet
        self._given: InPlaceUpdate | None = None  # by the last next

    def begin(self, updates: UpdateReader, deadline: float) -> None:
        """Bind the model to the first whole update, if it comes in time: then updates are mapped."""
        if not updates.in_place:
            raise WeightsError("bind wants a publisher in place (in_place=True), and this one sends buckets: load copies them", reason="in-place")
        bucket = self._whole(updates, deadline)
        if not bucket:
            return
        try:
            self._bind(updates, bucket)
        except BaseException:
            updates.push_back(bucket)  # for another model, or for load
            raise
        self._hold(updates, bucket)

    def _whole(self, updates: UpdateReader, deadline: float) -> Bucket | None:
        """Take the next frame. Return it if it has whole weights."""
        bucket = self._state.take(updates, deadline)
        if bucket and not (bucket.is_first and bucket.is_last):
            release(bucket.frame)
            return None
        return bucket

    def _bind(self, updates: UpdateReader, bucket: Bucket) -> None:
        from ..torch.assign import replace

        self._fitted(updates, bucket)  # before anything is changed
        memory = updates.reader.attachment.memory
        at = reserve(memory.chunks * memory.chunk, device=memory.ordinal, driver=memory.driver)
        try:
            memory.move(at)
            made = self._fitted(updates, bucket)
            replace(made)
        except BaseException:
            with contextlib.suppress(InUseError):
                at.close()
            raise
        sent = {e.name for e in bucket.entries}
        self._addresses = {place.name: new.data_ptr() for group, new in made for place in group if new.numel() and not sent.isdisjoint(p.name for p in group)}
        self._at, self._entries, self._state.mapped = at, bucket.entries, updates

    def _check_bound(self) -> None:
        """Raise MismatchError if the model has a tensor elsewhere: it would compute on old weights for ever."""
        from ..torch.assign import moved, some

        if gone := moved(self._model, self._addresses):
            raise MismatchError(
                f"the model was bound, and does not have {some(gone)} in the trainer's memory any more, so it would not get what comes: neither replace"
                " nor convert parameters after bind; another Subscriber binds the model again",
                reason="tensors",
            )

    def _fitted(self, updates: UpdateReader, bucket: Bucket) -> Any:
        """Return views of the weights, each with its places in the model. Raises MismatchError if they do not fit."""
        from ..torch.assign import fitted, some, tensors_of

        module = getattr(self._model, "_orig_mod", self._model)  # that of torch.compile
        memory = updates.reader.attachment.memory
        begin = bucket.frame.ptr - memory.ptr
        sent = {e.name: tensor_over(Array(memory, e.meta.dtype, e.meta.shape, begin + e.at, owner=updates)) for e in bucket.entries}
        buffers = dict(module.named_buffers())  # those that the weights do not have stay
        there = tensors_of(self._model)
        more = [name for name in sent if name not in there]
        unfit = "what the trainer has does not fit the model, which is unchanged"
        try:
            made = fitted(self._model, buffers | sent, "what the trainer has", strict=False, passing=sent)
        except MismatchError as e:
            lacks = next((name for name in there if name not in buffers and name not in sent), None)
            if lacks is None or not more:
                raise
            raise MismatchError(f"{unfit}: the model has {quote(lacks)}, where the trainer has {quote(more[0])}", reason=e.reason) from None
        if more and self._strict:
            raise MismatchError(f"{unfit}: it has tensors that the model lacks, and that strict=False leaves out: {some(more)}", reason="tensors")
        return made

    def _hold(self, updates: UpdateReader, bucket: Bucket) -> None:
        """Note that the weights of an update are there, and stay until the trainer may write. Raises WeightsError (torn) if it has taken them back."""
        self._there, self._holds = bucket, True
        try:
            updates.check(bucket)
        except Error as e:
            self._poison(updates, bucket, str(e))
            self._state.lose(updates, e)
            raise torn(bucket.head.step, str(e)) from e
        self._state.loaded(updates, bucket.head.number, bucket.head.step)

    def _poison(self, updates: UpdateReader, bucket: Bucket, why: str) -> None:
        self._state.poison(updates, bucket.head.number, bucket.head.step, why)

    # Updates.

    def check_loaded(self) -> None:
        """Raise UsageError, once, if the last update was not asked to load."""
        given, self._given = self._given, None
        if given and not given.asked:
            raise UsageError(f"{given!r}: each turn of the loop calls its load(), for which the trainer waits")

    def next(self, updates: UpdateReader, deadline: float) -> InPlaceUpdate | None:
        """Wait until the trainer wants to write, or has written. Return None if neither has happened in time."""
        if self._holds and self._state.mapped is updates:
            left = deadline - time.monotonic()
            try:
                updates.reader.await_wanted(None if left == arguments.FOR_EVER else max(0.0, left))
            except TimedOutError:
                return None
            except Error as e:
                raise told(updates.reader, e) from None
            which = f"after step {self._there.head.step}" if self._there else ""
            self._given = InPlaceUpdate(self._let_write, updates.metadata, which)
            return self._given
        if not updates.in_place:
            raise WeightsError("the new trainer sends buckets, and the model is bound to memory that is written in place (in_place=True)", reason="in-place")
        if self._there and self._state.mapped is updates:
            updates.reader.give_back(self._there.frame)  # an interrupt came before its release
        if not self._ready or self._ready[0] is not updates:
            bucket = self._whole(updates, deadline)
            self._ready = (updates, bucket) if bucket else None
        if not self._ready:
            return None
        self._given = InPlaceUpdate(self._adopt, updates.metadata, f"of step {self._ready[1].head.step}")
        return self._given

    def _let_write(self, update: InPlaceUpdate, deadline: float) -> None:
        """Let the trainer write, and wait for what it has written."""
        self._check_bound()
        updates, there = self._state.mapped, self._there
        if not self._holds or not updates or not there:
            raise WeightsError("this update is over", reason="over")
        if err := updates.reader.err:
            gone = told(updates.reader, err)
            self._state.lose(updates, gone)
            raise WeightsError(f"the trainer is gone, and has not written over the weights of step {there.head.step}: {gone}", step=there.head.step, reason="over")
        updates.reader.attachment.memory.finish()
        self._poison(updates, there, "the trainer was writing the next")  # from here on the bytes are not whole
        self._holds = False
        try:
            there.frame.release()
            bucket = self._written(updates, deadline)
        except TimedOutError:
            raise
        except Error as e:
            gone = told(updates.reader, e)
            self._state.lose(updates, gone)
            self._state.check_open()
            raise torn(there.head.step, f"the trainer was writing the next: {gone}") from e
        if not bucket.is_last:
            release(bucket.frame)
            why = f"the trainer has given up step {bucket.head.step}, which came next"
            self._poison(updates, there, why)
            raise torn(there.head.step, why)
        self._took(updates, bucket, update)

    def _written(self, updates: UpdateReader, deadline: float) -> Bucket:
        wait = Wait(deadline, lambda: f"load: the model has waited for {trainer_of(updates.reader)} to write the next weights", log.warning)
        while not (bucket := self._state.take(updates, wait.until)):
            if wait.is_over():
                raise TimedOutError("the trainer has not written the next weights in time, so those here are torn; the next update of the loop waits for them")
        return bucket

    def _adopt(self, update: InPlaceUpdate, deadline: float) -> None:
        """Have the model use weights that are there: of this publisher, or of another one, whose memory comes where the old was."""
        self._check_bound()
        if not self._ready:
            raise WeightsError("this update is over", reason="over")
        updates, bucket = self._ready
        if updates is not self._state.mapped:
            self._swap(updates, bucket)
        self._ready = None
        self._took(updates, bucket, update)

    def _took(self, updates: UpdateReader, bucket: Bucket, update: InPlaceUpdate) -> None:
        self._hold(updates, bucket)
        update.number, update.step = bucket.head.number, bucket.head.step

    def _swap(self, updates: UpdateReader, bucket: Bucket) -> None:
        """Map another publisher's memory where the old one's is."""
        old, at, there, memory = self._state.mapped, self._at, self._there, updates.reader.attachment.memory
        assert old and at and there
        if how := _difference(self._entries, bucket.entries) or ("they have more memory" if memory.chunks * memory.chunk > at.size else ""):
            self._ready = None
            release(bucket.frame)
            self._state.fail(updates, bucket.head.number)
            raise WeightsError(f"the new publisher's tensors lie in another way than those that the model is bound to: {how}", step=bucket.head.step, reason="layout")
        self._poison(old, there, "another trainer's memory was to take its place")  # before it has none
        self._holds = False
        if not old.reader.attachment.memory.detached:  # by a load that failed
            old.reader.attachment.memory.detach()
        memory.move(at)
        self._state.mapped = updates
        self._state.claims.close(old.reader, force=True)

    def close(self) -> None:
        """Wait for the work on the device, leave the model without memory (device meta) where it had the publisher's, and leave that."""
        from ..torch.assign import replace, without_memory

        updates = self._state.mapped
        if not self._at or not updates:
            return
        memory = updates.reader.attachment.memory
        with contextlib.suppress(DriverError):  # nothing runs any more then, and the memory's close says so
            if not memory.detached:
                memory.finish()  # the slot is the trainer's as soon as the reader leaves
        replace(without_memory(self._model, self._at.ptr, self._at.ptr + self._at.size))
        self._state.claims.close(updates.reader)
        self._at.close()
        self._at = self._there = self._state.mapped = None
        if self._state.updates is updates:
            self._state.updates = None


def _difference(old: tuple[Entry, ...], new: tuple[Entry, ...]) -> str:
    """Return how two rows of entries differ, or ""."""
    there, here = ({e.name: e for e in entries} for entries in (old, new))
    for name in [*there, *here]:
        if there.get(name) != here.get(name):
            return f"tensor {quote(name)} is {_place(here.get(name))}, and was {_place(there.get(name))}"
    return ""


def _place(e: Entry | None) -> str:
    return f"{e.meta.dtype} {list(e.meta.shape)} at byte {e.at}" if e else "not there"
