"""One update, on the side that sends it: :class:`UpdateWriter`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .. import arguments, log
from ..channel.frame import Slot
from ..channel.writer import Writer
from ..errors import ChannelError, Error, MismatchError, TimedOutError, UsageError, WeightsError
from ..keeper.deposit import Delivered
from ..keeper.tables import quote
from .frames import ALIGN, FIRST, GIVEN_UP, LAST, Entry, Head, Packer, table_size
from .keeping import KeeperCopy
from .meta import Meta, check_name
from .source import ArraySource, SlotTensors, TableWriter, TensorSource, source_of, stream_of
from .trained import InPlaceLayout

_GIVE_UP = 1.0  # seconds to wait for a slot that says so
_LONG = 10.0  # seconds of a wait after which it is logged, again and again


_GONE = {
    "closed": "the publisher was closed",
    "forked": "the publisher belongs to the process that this one was forked from: make another one here",
    "not-offered": "the weights are not offered any more: the publisher's server was closed, or something else is offered by its name",
}  # by the reason of a writer's error


class PublisherState:
    """The state of a publisher that its updates share.

    number          of the last update
    whole, step     the last update that has ended whole: its number, and the trainer's own
    there           leases of the subscribers that were there when that began
    in_one          it was one bucket, which those who come later get, too
    given_up        the step of the update that was given up since, or None
    stall           seconds that acquire may wait
    """

    def __init__(self, writer: Writer, metadata: Mapping[str, Meta] | None, layout: InPlaceLayout | None, stall: float) -> None:
        self.writer, self.metadata, self.layout, self.stall = writer, metadata, layout, stall
        self.tensors = SlotTensors()
        self.tables = TableWriter(self.tensors)
        self._packers: list[Packer] = []  # by bucket
        self.keeping: KeeperCopy | None = None
        self.kept: Delivered | None = None
        self.number = self.whole = 0
        self.step: int | None = None
        self.there: set[int] = set()
        self.in_one = False
        self.given_up: int | None = None
        self._came: set[int] = set()
        self._under_way: UpdateWriter | None = None

    def check_idle(self, what: str) -> None:
        """Raise UsageError if an update is under way."""
        if self._under_way:
            raise UsageError(f"{what} while the update of step {self._under_way.step} is not over")

    def check(self) -> None:
        """Raise ClosedError, or ChannelError (not-offered), if nothing can be published any more."""
        if err := self.writer.err:
            raise type(err)(_GONE.get(err.reason) or str(err), reason=err.reason)

    def begin(self, writing: UpdateWriter) -> int:
        """Note that an update begins, and return its number."""
        self.check()
        self.check_idle("another update")
        self._under_way, self.number = writing, self.number + 1
        self._came = {m.lease for m in self.writer.members}
        return self.number

    def acquire(self) -> Slot:
        """Wait for a bucket that no subscriber keeps. Log every 10 seconds how many each of them keeps. Raises ChannelError (stalled)."""
        self.check()
        begin = time.monotonic()
        while True:
            left = self.stall - (time.monotonic() - begin)
            try:
                return self.writer.acquire(min(_LONG, max(0.0, left)))
            except TimedOutError:
                if left <= _LONG:
                    raise ChannelError(self._in_the_way(self.stall), reason="stalled") from None
            log.warning("%s", self._in_the_way(round(time.monotonic() - begin, 2)))

    def _in_the_way(self, seconds: float) -> str:
        """Return which subscribers keep how many buckets, and what is to be done about it."""
        u = self._under_way
        what = f"update {u.number} (step {u.step})" if u else "bind"
        keepers = sorted((m for m in self.writer.members if m.kept), key=lambda m: -m.kept)[:5]
        if self.layout:
            kept = ", ".join(f"process {m.peer.pid} computes on the weights until its next load()" for m in keepers)
            return f"{what}: subscribers have not paused for {seconds:g} s: {kept or 'those that had the weights have left'}"
        kept = ", ".join(f"process {m.peer.pid} keeps {m.kept} of {self.writer.slots}" for m in keepers)
        hint = " (it still loads, or keeps tensors, which copy=True there makes copies)"
        return f"{what}: no bucket has come free for {seconds:g} s: {kept + hint if kept else 'those that kept them have left'}"

    def packer(self, bucket: int) -> Packer:
        """Return what packs a bucket of this update, and has packed that of the last one."""
        while bucket >= len(self._packers):
            self._packers.append(Packer(self.writer.slot_size))
        self._packers[bucket].begin()
        return self._packers[bucket]

    def cancel(self, writing: UpdateWriter) -> None:
        """Note that an update that was under way has not begun to be sent."""
        if self._under_way is writing:
            self._under_way = None

    def over(self, writing: UpdateWriter, whole: bool, buckets: int) -> None:
        """Note that an update of so many buckets is over."""
        self._under_way = None
        self.tables.turn()
        self.given_up = None if whole else writing.step
        if whole:
            self.step, self.whole, self.there, self.in_one = writing.step, writing.number, self._came, buckets == 1
            keeping, self.keeping = self.keeping, None
            if keeping:
                self.kept = keeping.deliver(writing.step)


class UpdateWriter:
    """An update that is being sent: ``with publisher.update(step) as send: send(name, tensor)``."""

    def __init__(self, state: PublisherState, step: int) -> None:
        self._state, self._writer, self._layout = state, state.writer, state.layout
        self.number, self.step = 0, step
        self._names: set[str] = set()
        self._bucket = 0
        self._ends = 0  # sequence of the frame that ends it whole, once that is to be published
        self._slot: Slot | None = None
        self._packer: Packer  # of this bucket, from begin on
        self._stream: Any = None  # that has worked on this update last
        self._open = False
        self._failed = ""  # which tensor could not be sent, and why: so the update does not end whole

    def __repr__(self) -> str:
        return f"<gpufd.weights.UpdateWriter of step {self.step}, {len(self._names)} tensors{'' if self._open else ', over'}>"

    def __enter__(self) -> UpdateWriter:
        if self.number:
            raise UsageError(f"update {self.number} was begun before: each with wants an update of its own")
        try:
            self.number = self._state.begin(self)
            self._packer = self._state.packer(0)
            if self._layout:
                self._layout.check_bound()
                self._room()  # from here on the trainer writes
        except BaseException:
            self._state.cancel(self)
            raise
        self._open = True
        return self

    def __call__(self, name: str, data: Any) -> None:
        """Send a tensor. On a GPU PyTorch's are copied, and converted, by the current stream; the host waits only for a free bucket.

        Raises MismatchError (tensors) for a name or a shape that the metadata does not have, UsageError for a name that was sent, and
        ChannelError (stalled), which names the subscribers that keep the buckets. If a tensor was not sent, the update is given up at the
        end of the with, also if the block goes on: then that raises WeightsError (torn).
        """
        if not self._open:
            raise UsageError(f"the update of step {self.step} is over, or has not begun: send within its with")
        self._check_whole()
        if arguments.text("the name of a tensor", name) in self._names:
            raise UsageError(f"tensor {quote(name)} was sent already in this update")
        try:
            self._send(name, source_of(name, data, self._wanted(name)))
        except BaseException as e:
            self._failed = f"tensor {quote(name)} was not sent: {str(e) or type(e).__name__}"
            raise

    def _check_whole(self) -> None:
        """Raise WeightsError (torn) if a tensor could not be sent."""
        if self._failed:
            raise WeightsError(f"the update of step {self.step} is given up, though its block goes on: {self._failed}", step=self.step)

    def _send(self, name: str, source: TensorSource | ArraySource) -> None:
        self._names.add(name)
        begin = 0
        while True:
            e = self._layout.entries[name] if self._layout else self._place(name, source.meta, begin)
            source.copy(self._room(), e, self._state.tensors)
            if not self._layout:
                self._keep(e)
            if e.ends:
                return
            begin = e.begin + e.size

    def _wanted(self, name: str) -> Meta | None:
        """Return what the metadata says of a tensor."""
        check_name(name)
        metadata = self._state.metadata
        if metadata is None:
            return None
        if name not in metadata:
            raise MismatchError(f"tensor {quote(name)} is none of the {len(metadata)} that the metadata names", reason="tensors")
        return metadata[name]

    def _keep(self, e: Entry) -> None:
        """Have a keeper keep what lies in the slot, if that is asked for."""
        if self._state.keeping:
            self._state.keeping.take(self._room(), e, self._stream, self._state.tensors)

    # Buckets.

    def _room(self) -> Slot:
        """Return the slot of this bucket, ready for the current stream's work."""
        if not self._slot:
            self._slot = self._state.acquire()
        stream = stream_of(self._slot.memory)
        if stream is not None and self._stream not in (None, stream):
            stream.wait_stream(self._stream)  # what another one has copied into this bucket comes along
        self._stream = stream
        return self._slot

    def _place(self, name: str, meta: Meta, begin: int) -> Entry:
        """Place a tensor, or what is left of it, in this bucket or the next."""
        while True:
            packer, size = self._packer, self._writer.slot_size
            e = None if begin else packer.whole(name, meta)
            if not e and (begin or not Packer(size).whole(name, meta)):
                e = packer.piece(name, meta, begin)
            if e:
                return e
            if not packer.count:
                raise UsageError(f"a bucket of {size} bytes has no room for what is to be said of tensor {quote(name)}: make it larger")
            self._publish(0)

    def _publish(self, flags: int) -> None:
        """Give the bucket to the subscribers: when the stream has done its work, or now."""
        slot, layout, tables = self._room(), self._layout, self._state.tables
        if layout and not flags & GIVEN_UP:
            at, table, count = layout.table_at, layout.table, len(layout.entries)
            digest = layout.digest = layout.digest or tables.write(slot, at, table, self._stream)
        else:
            (at, table), count = self._packer.table(), self._packer.count
            digest = tables.write(slot, at, table, self._stream)
        head = Head(flags | (FIRST if self._bucket == 0 else 0), self.number, self.step, self._bucket, count, at, len(table), digest)
        if flags & LAST:
            self._ends = slot.sequence
        slot.publish(stream=self._stream, size=at + len(table), user=head.encode())
        self._slot, self._bucket = None, self._bucket + 1
        self._packer = self._state.packer(self._bucket)

    # The end.

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open, limit = False, None if error is None else _patience(error)
        try:
            if error is None:
                self._finish()
        except BaseException as e:
            limit = _patience(e)
            raise
        finally:
            try:
                self._count_published()
                if limit is not None and not self._is_whole():
                    self._give_up(limit)
            finally:  # also if a second interrupt comes meanwhile
                self._state.over(self, limit is None or self._is_whole(), self._bucket)

    def _is_whole(self) -> bool:
        """Return whether subscribers have all of it, though an exception may have come right behind."""
        return 0 < self._ends <= self._writer.last

    def _count_published(self) -> None:
        """Count the bucket that was published, if an exception came before that was noted."""
        if self._slot and self._slot.sequence <= self._writer.last:
            self._slot, self._bucket = None, self._bucket + 1

    def _finish(self) -> None:
        """Publish the last bucket. Raises WeightsError if a tensor could not be sent, and MismatchError if one of the metadata was not."""
        self._check_whole()
        layout = self._layout
        if layout:
            layout.check_bound(self._names)
        there = self._names | layout.bound.keys() if layout else self._names
        missing = [name for name in self._state.metadata or () if name not in there]
        if missing:
            some = ", ".join(quote(name) for name in missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise MismatchError(f"the update of step {self.step} lacks tensors of the metadata, so it is given up: {some}", reason="tensors")
        for e in layout.entries.values() if layout else ():
            self._keep(e)
        self._publish(LAST)

    def _give_up(self, limit: float) -> None:
        """Tell subscribers that the update does not end whole, if there is room to say so in time. Otherwise the next one, or the end, says it."""
        with contextlib.suppress(Error):
            self._packer = Packer(self._writer.slot_size)
            self._slot = self._slot or self._writer.acquire(limit)
            self._publish(GIVEN_UP)


def _patience(error: BaseException) -> float:
    """Return how long an update that ends by an exception may wait for a slot: not at all if the process is to end."""
    return _GIVE_UP if isinstance(error, Exception) else 0.0


def room_for(metadata: Mapping[str, Meta]) -> int:
    """Return the bytes of a bucket that has room for all tensors, in whatever order they are sent."""
    end = sum(-(-meta.size // ALIGN) * ALIGN for meta in metadata.values())
    return end + table_size(len(metadata), sum(len(Entry(name, meta, end, meta.size).encode()) for name, meta in metadata.items()))
