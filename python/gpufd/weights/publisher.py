"""The side that has the weights: :class:`Publisher`."""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, SupportsIndex

from .. import arguments
from ..channel.member import MemberStats
from ..channel.writer import Writer
from ..errors import Error, InUseError, TimedOutError, UsageError, WeightsError
from ..keeper.client import Client
from ..keeper.control import TIMEOUT
from ..keeper.deposit import Delivered
from ..keeper.tables import quote
from ..memory.device import Device
from ..memory.drivers import device_uuid, driver_kind, place_of
from ..objects import NotCopied, called, human
from ..share.server import Server
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer, Policy
from ..wire.records import Offer
from ..wire.sockets import make_offer_socket
from .frames import FAILED
from .keeping import KeeperCopy
from .meta import Meta, Metadata, encode_metadata, metadata_of
from .sending import PublisherState, UpdateWriter, room_for
from .trained import InPlaceLayout
from .waits import Wait, listener

BUCKET = 256 << 20
MAX_BUCKETS = 384
_BUCKETS = 4
_PAUSE = 0.0002, 0.01  # seconds between looks at what subscribers have loaded: the first and the longest
_REAPED = 2.0  # seconds until the kernel has let go of the socket of a process that was killed, at most
_FAREWELL = 0.1  # seconds for subscribers to hang up; those that are busy find all that they need in the memory


class Subscribed(NamedTuple):
    """A subscriber that is there."""

    pid: int
    loaded: int  #: number of the last update that it is done with, if it has loaded that whole; else 0
    torn: bool = False  #: it has not loaded that whole: it has the weights that it had before, if it took nothing, or weights of two steps


class Publisher(NotCopied):
    """Weights that change every step, for engines on the same GPU. Its maker closes it, by ``with`` or close.

        pub = gpufd.weights.Publisher("policy", model.state_dict())
        with pub.update(step) as send:
            for name, tensor in model.state_dict().items():
                send(name, tensor)

    name            for Subscriber; each GPU has one publisher of a name
    metadata        the tensors of each update, if they are known: a mapping, or pairs, from names to tensors or to Meta.
                    Then send converts to its types, and an update that lacks one is given up
    bucket          bytes of a bucket, in which tensors are sent. Larger tensors come in pieces. It is smaller if all tensors of
                    metadata need less
    buckets         how many there are. One is filled while others are loaded, or kept by tensors
    in_place        subscribers compute on this memory: there is one bucket with all tensors of metadata, and bind
    socket          path to listen at, or a gpufd.Server, which stays the caller's; by default Subscriber finds it
    device, driver  where the weights are: as of gpufd.allocate; by default PyTorch's current device, if it uses CUDA, or else 0
    stall           seconds that subscribers may keep all buckets; then update raises ChannelError (stalled), which names their
                    processes. The logger "gpufd" has a warning that names them for each 10 seconds of waiting
    policy, mode, authorize, timeout
                    of the server at a path: as of gpufd.Server
    """

    def __init__(
        self, name: str, metadata: Metadata | None = None, *, bucket: int = BUCKET, buckets: int = _BUCKETS, in_place: bool = False,
        socket: str | os.PathLike[str] | Server | None = None, device: Device | None = None, driver: str | int | None = None,
        stall: float | None = None, policy: Policy = Policy(), mode: int = 0o600, authorize: Callable[[Peer, Offer], None] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:  # fmt: skip
        if not arguments.text("a name", name):
            raise UsageError("the name of a publisher is empty: subscribers look for it by that name")
        if arguments.number("buckets", buckets) not in range(2, MAX_BUCKETS + 1):
            raise UsageError(f"buckets={arguments.short(buckets)}: 2 to {MAX_BUCKETS} are allowed, since one is loaded while another one is filled; in_place=True has one")
        arguments.number("bucket", bucket, 512)
        stall = arguments.seconds("stall", stall, zero=False)
        self.metadata: Mapping[str, Meta] | None = metadata_of(metadata)
        self._layout: InPlaceLayout | None = None
        if arguments.flag("in_place", in_place):
            if not self.metadata:
                raise UsageError("in_place wants metadata: the tensors of all updates lie side by side")
            if (bucket, buckets) != (BUCKET, _BUCKETS):
                raise UsageError("in_place goes without bucket= and buckets=: it has one, which is as large as all tensors")
            self._layout = InPlaceLayout(self.metadata)
            bucket, buckets = self._layout.size, 1
        elif self.metadata:
            bucket = min(bucket, room_for(self.metadata))
        kind = driver_kind(driver)
        ordinal = place_of("cuda" if device is None else device, kind)
        self.name = name
        offer, data = publisher_name(name, device_uuid(kind, ordinal)), encode_metadata(self.metadata, in_place)
        with contextlib.ExitStack() as undo:
            self._server: Server | None = None
            if not isinstance(socket, Server):
                self._server = undo.enter_context(_listening(name, offer, socket, policy=policy, mode=mode, authorize=authorize, timeout=timeout))
                socket = self._server
            self._writer = Writer(offer, slots=buckets, slot_size=bucket, socket=socket, any_order=True, data=data, device=ordinal, driver=kind)
            undo.pop_all()
        self._state = PublisherState(self._writer, self.metadata, self._layout, stall)
        _all.add(self)

    def __repr__(self) -> str:
        w = self._writer
        return f"<gpufd.weights.Publisher of {called(self.name)}, {w.slots} bucket{'s' if w.slots > 1 else ''} of {human(w.slot_size)}, step {self.step}>"

    # Updates.

    def update(self, step: SupportsIndex) -> UpdateWriter:
        """Return what sends the weights of a step, for ``with``. If the block raises, the update is given up, and the exception goes on.

        Subscribers load while it is being sent. In place the with waits until all of them pause, and the block may write; it need
        send nothing that bind has bound.
        """
        if not isinstance(step, bool):
            with contextlib.suppress(TypeError, ValueError):  # which number says
                step = operator.index(step)  # of NumPy's numbers, and of tensors
        return UpdateWriter(self._state, arguments.number("step", step, -(1 << 63), (1 << 63) - 1))

    @property
    def step(self) -> int | None:
        """The step of the last update that has ended whole, or None."""
        return self._state.step

    @property
    def number(self) -> int:
        """The number of the last update, from 1, or 0."""
        return self._state.number

    @property
    def kept(self) -> Delivered | None:
        """The version that keep has made last, or None."""
        return self._state.kept

    def bind(self, model: Any) -> None:
        """Make the model's parameters, and the buffers that the metadata names, views of the memory that subscribers compute on.

        It copies what they have there. They stay the same objects, so an optimiser goes on with them; from here on it writes
        only within update, and never to memory of their own: update raises MismatchError (tensors) if a parameter was replaced or converted.
        It waits, within stall, for subscribers that compute on the memory. Raises MismatchError (tensors) if one does not fit the metadata.
        """
        if not self._layout:
            raise UsageError("bind is for a publisher in place: in_place=True")
        self._state.check()
        self._layout.check_unbound()
        self._state.check_idle("bind")
        self._layout.check_fits(model, self._writer.memory)  # or subscribers would pause for nothing
        self._layout.bind(model, self._state.acquire())

    def keep(
        self, name: str, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None, part: int = 0,
        parts: int = 1, transaction: str = "", expect_version: int | None = None, chunk: int = 0, metadata: Mapping[str, str] | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:  # fmt: skip
        """Have a keeper keep the next update that ends whole, too, as a version of a name, with the metadata {"step": "7"}.

        It wants metadata. The room is booked at once; update copies what it sends, and returns when the keeper has it: then kept
        says which version that is. The options are those of gpufd.put.
        """
        if self.metadata is None:
            raise UsageError("keep wants a publisher with metadata, which says how much there is to keep")
        self._state.check_idle("keep")
        if self._state.keeping:
            raise UsageError("keep was called for the next update: once for each")
        self._state.keeping = KeeperCopy(
            name, self.metadata, self._writer.memory, socket=socket, labels=labels, part=part, parts=parts, transaction=transaction,
            expect_version=expect_version, chunk=chunk, metadata=metadata, timeout=timeout,
        )  # fmt: skip

    # Subscribers.

    @property
    def subscribers(self) -> list[Subscribed]:
        """Those who are there now."""
        return [Subscribed(m.peer.pid, m.noted if m.noted < FAILED else 0, m.noted >= FAILED) for m in self._writer.members]

    def await_subscribers(self, n: int, timeout: float | None = None) -> None:
        """Wait until n subscribers are there. Raises TimedOutError."""
        self._state.check()
        wait = Wait(time.monotonic() + arguments.seconds("a timeout", timeout), lambda: f"await_subscribers: {there()}")

        def there() -> str:
            return f"{len(self.subscribers)} of {n} subscriber{'' if n == 1 else 's'} of {quote(self.name)} have come"

        while True:
            try:
                return self._writer.await_readers(n, max(0.0, wait.until - time.monotonic()))
            except TimedOutError:
                if wait.is_over():
                    raise TimedOutError(f"{there()} within {timeout:g} s") from None

    def await_loaded(self, timeout: float | None = None, *, n: int = 1) -> int:
        """Wait until each subscriber that is there, and was when the last update began, has loaded that. Return how many have.

        One that has left, or was killed, is neither waited for nor counted. Raises TimedOutError, and WeightsError: not-loaded if fewer than n
        have loaded it and nobody is there who still may, torn if one could not load it whole, or if it was given up.
        """
        arguments.number("n", n)
        s, (pause, longest), behind = self._state, _PAUSE, list[MemberStats]()
        wait = Wait(time.monotonic() + arguments.seconds("a timeout", timeout), lambda: f"await_loaded: {_have(behind)} not loaded update {s.whole} (step {s.step})")
        while True:
            s.check()
            if s.given_up is not None:
                raise WeightsError(f"the update of step {s.given_up} was given up, so subscribers may have weights of two steps: send another one", step=s.given_up)
            loaded, behind = self._by_loaded(n)
            if not behind:
                return loaded
            if wait.is_over():
                raise TimedOutError(f"{_have(behind)} not loaded update {s.whole} (step {s.step}) within {timeout:g} s")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _by_loaded(self, n: int) -> tuple[int, list[MemberStats]]:
        """Return how many subscribers have loaded the last whole update, and which are waited for. Raises WeightsError."""
        s, members = self._state, self._writer.members
        if n and not s.whole:
            raise WeightsError(f"no update has ended whole yet, so {n} cannot have loaded one", reason="not-loaded")
        there, what = [m for m in members if m.lease in s.there], f"update {s.whole} (step {s.step})"
        if failed := [m for m in there if m.noted >= FAILED + s.whole]:
            number = failed[0].noted - FAILED
            raise WeightsError(f"{_have(failed)} not loaded {what if number == s.whole else f'update {number}'} whole, and says why: it has the weights that it had before, or weights of two steps", step=s.step)
        loaded = sum(s.whole <= m.noted < FAILED for m in members)
        behind = [m for m in there if m.noted % FAILED < s.whole]
        if not behind and loaded < n:
            behind = [m for m in members if s.in_one and not m.noted]  # who came later, and get it, too
        if not behind and loaded < n:
            raise WeightsError(f"{loaded} of {n} wanted subscribers are there with {what} loaded, and nobody else is there who gets it", step=s.step, reason="not-loaded")
        return loaded, behind

    # The end.

    def close(self) -> None:
        """End in order: subscribers get what was published, and their loop ends. What the model is bound to stays its own.

        Raises InUseError while tensors are alive over the memory that bind gave the model; close can be called again then.
        """
        self._state.check_idle("close")
        keeping, self._state.keeping = self._state.keeping, None
        if keeping:
            keeping.close()
        if self._layout:
            self._layout.release()
        self._state.tensors.close()
        try:
            self._leave()
        except InUseError as e:
            if e.views:
                alive = f"{e.views[0]}{f' and {len(e.views) - 1} more' if len(e.views) > 1 else ''}"
                raise InUseError(f"the memory of publisher {self.name!r} is in use, for tensors over it are alive: {alive}: del them, then close again", e.views) from None
            raise

    def _leave(self) -> None:
        """End the channel, and let subscribers go."""
        self._writer.close()
        if self._server:
            self._server.close(timeout=_FAREWELL)

    def __enter__(self) -> Publisher:
        self._state.check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise


def _listening(name: str, offer: str, path: str | os.PathLike[str] | None, **options: Any) -> Server:
    """Return a server for a publisher. It waits until the kernel has reaped one that was killed, and had the socket. Raises InUseError."""
    end = time.monotonic() + _REAPED
    while True:
        try:
            return Server(make_offer_socket(offer) if path is None else path, **options)
        except InUseError as e:
            if time.monotonic() >= end:
                raise InUseError(f"publisher {quote(name)} is there already{listener(make_offer_socket(offer) if path is None else path)}: {e}", reason=e.reason) from None
        time.sleep(_PAUSE[1])


def _have(members: list[MemberStats]) -> str:
    """Return the beginning of what is said of subscribers."""
    pids, one = ", ".join(str(m.peer.pid) for m in members[:5]), len(members) == 1
    return f"{len(members)} subscriber{'' if one else 's'} (process {pids}) {'has' if one else 'have'}"


def publisher_name(name: str, uuid: bytes) -> str:
    """Return the name of the offer of a publisher on the device of a UUID."""
    return f"{name}@{uuid.hex()}"


_all: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _at_exit() -> None:
    for publisher in list(_all):
        with contextlib.suppress(Exception):
            publisher._leave()


atexit.register(_at_exit)
