"""A model's weights, version after version: :func:`follow`."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..errors import ClosedError, Error, UsageError
from ..keeper.control import TIMEOUT, HasSocket, path_of
from ..keeper.version import Attached
from ..memory.device import Device
from ..memory.reservation import Reservation
from ..share.attachment import Attachment
from ..share.follow import Attachments, Following, close_or_leave
from ..share.follow import follow as follow_memory
from ..wire.records import READ_ONLY
from .address import Address, address_of
from .guard import watch
from .weights import Loaded, tensors_of

if TYPE_CHECKING:
    from ..share.kept import Kept


class ModelVersion(Mapping[str, Any]):
    """One version of a model's weights, mapped beside the one before: a mapping from names to tensors.

    Its tensors are views of kept memory, which is read-only. The memory, and the lease of it, end with the
    last of them: nobody has to close a version.

    attachment  the Attachment
    data        the keeper's description: a gpufd.Kept
    """

    def __init__(self, attachment: Attachment, debug: bool = False, address: Address | None = None) -> None:
        self.attachment, self._debug, self._address = attachment, debug, address
        self.data: Kept = attachment.kept
        self.name, self.version, self.part, self.labels = self.data.name, self.data.version, self.data.part, self.data.labels
        self._refused = ""
        self._make: Callable[[ModelVersion], Any] | None = None  # a model of the version's own
        self._keep()

    def _keep(self) -> None:
        """Hold the memory until this object is gone, or lets go."""
        # The end of the loop that gave it closes what nothing uses: this may wait in a queue for another thread.
        memory = self.attachment.memory
        self._hold = weakref.finalize(self, memory.let_go, memory.hold(f"version {self.version} of {self.name}"))
        self._hold.atexit = False

    def __repr__(self) -> str:
        state = ", refused" if self._refused else ", superseded" if self.superseded else ""
        return f"<gpufd.torch.ModelVersion {self.version} of {self.name!r}{state}>"

    __eq__, __hash__ = object.__eq__, object.__hash__  # and not a dictionary's, which compares tensors

    # Its tensors.

    @cached_property
    def tensors(self) -> Loaded:
        """The tensors by name, in the order in which they were put. Raises FormatError if the version holds none."""
        if self._refused:
            raise ClosedError(f"version {self.version} of {self.name} was refused: {self._refused}")
        return tensors_of(self._attached)

    @cached_property
    def _attached(self) -> Attached:
        return Attached(self.attachment)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts by name that were put beside the tensors."""
        return self._attached.table.metadata

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def model(self) -> Any:
        """A model of the version's own, over its tensors: of gpufd.transformers.follow. It is made when it is first asked for."""
        if not self._make:
            raise UsageError(f"version {self.version} of {self.name} has no model of its own: swap makes it that of a module")
        return self._make(self)

    # Its use, and its end.

    def swap(self, model: Any, *, strict: bool = True) -> None:
        """Make the version's tensors the model's parameters and buffers, without a copy: Loaded.apply.

        Call it between two batches, best in the thread that serves them. If a name, shape, type or device does
        not fit, it raises MismatchError ("tensors"), and the model has the old version still. The old
        version's memory is free when nothing else uses a tensor of it. A CUDA graph reads the old addresses,
        so capture it again.

        With follow(at=) the version moves to that address, and the old one goes: tensors of it, and captured graphs,
        read the new version from then on. Raises MismatchError ("layout"), which names a tensor, if the tensors lie
        in another way, and InUseError if something of this version, such as a tensor that a check has made, is alive.
        """
        watch(self._debug)
        if self._address and not self._refused and self._address.there is not self._attached:
            self._move_to(self._address, model, strict)
        self.tensors.apply(model, strict=strict)

    def _move_to(self, address: Address, model: Any, strict: bool) -> None:
        """Move to the address, if the tensors fit there, and the model."""
        address.check(self.attachment.offer)
        self.tensors._fitted(model, strict)
        del self.tensors  # they are elsewhere
        self._hold()
        try:
            address.take(self._attached)
        finally:
            self._keep()

    def refuse(self, why: str | BaseException, *, quarantine: bool = False) -> None:
        """Let go of the version, and tell the keeper why. The next one is a newer version.

        The keeper ends the lease, and serves the version to others still; with quarantine it does not, if this
        user may write or remove the name. A second call does nothing.
        """
        if self._refused:
            return
        self._refused = (str(why) or type(why).__name__)[:1000]
        with contextlib.suppress(Error):  # a keeper that is not there does not hear it
            self.attachment.report(self._refused)
        self._leave()
        if quarantine:
            self._quarantine()

    def _leave(self) -> None:
        """Close the attachment, or leave it to the last view of it."""
        for held in ("model", "tensors", "_attached"):
            self.__dict__.pop(held, None)
        self._hold()
        close_or_leave(self.attachment)

    def _quarantine(self) -> None:
        from ..keeper.client import Client

        with Client(self.attachment.socket) as client:
            client.report(self.name, self.version, self.part, "quarantined", self._refused)

    @property
    def superseded(self) -> bool:
        """Whether there is a newer version under the name by now."""
        return self.attachment.superseded

    def wait_superseded(self, timeout: float | None = None) -> bool:
        """Wait until there is a newer version, or the lease has ended. Return superseded."""
        return self.attachment.wait_superseded(timeout)


def follow(
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, part: int | None = None, labels: Mapping[str, str] | None = None,
    device: Device | None = None, driver: str | int | None = None, at: Reservation | None = None, timeout: float | None = TIMEOUT,
    within: float | None = None, max_absence: float | None = None, on_wait: Callable[[Error], None] | None = None, debug: bool = False,
) -> Iterator[ModelVersion]:  # fmt: skip
    """Iterate over the versions of a model that a keeper keeps: the current one, and each newer one when it is committed.

    A new version is mapped beside the old one, so that a server goes on meanwhile. A thread follows:

        for version in gpufd.torch.follow("llama"):
            newer.put(version)                    # a queue.SimpleQueue

    and the thread that serves swaps between two batches:

        while batch := batches.get():
            while not newer.empty():
                version = newer.get()
                try:
                    check(version)                # what must hold of weights before they are used
                    version.swap(model)
                except (gpufd.Error, ValueError) as e:
                    version.refuse(e)             # the model has the old version still
                del version                       # the model has its tensors
            answer(model(batch))

    A lock that a busy server takes again at once would keep the other thread from swapping.
    Old memory is free when the last tensor of it is gone; nothing is closed by hand. To be able to go back,
    keep the version before, and swap that in again. If the keeper restarts, versions stay as they are.
    After the body, follow waits until there is a newer version. It goes on over versions that are committed
    faster than the body takes them: the body gets the newest.

    With at, a gpufd.reserve, swap gives each version that address. So the parameters keep theirs, and captured graphs
    replay over the new weights. There is no way back to an old version then.

    part        of a version of several parts: which
    labels      labels that each version must have, or MismatchError ("labels")
    within      seconds to wait for the first version, and for one after a refused one, or TimedOutError
    max_absence seconds without a keeper after which the version's lease has ended; None for no bound
    on_wait     called with the error that is in the way of the next version after a second
    debug       raise ReadOnlyError before this thread writes kept memory: WriteGuard
    """
    address = address_of(at)
    found = following_of(
        name, socket=socket, part=part, labels=labels, device=device, driver=driver, timeout=timeout, within=within,
        max_absence=max_absence, on_wait=on_wait, debug=debug,
    )  # fmt: skip
    return _versions(Attachments(found), debug, address)


def following_of(name: str, *, socket: str | os.PathLike[str] | HasSocket | None, debug: bool, **options: Any) -> Following:
    """Return the decisions of follow, of which gpufd.aio makes its own loop. A guard is entered, if it is asked for."""
    following = follow_memory(arguments.name(name), socket=path_of(socket), access=READ_ONLY, overlap=True, **options).following
    watch(arguments.flag("debug", debug))
    return following


def _versions(found: Attachments, debug: bool, address: Address | None) -> Iterator[ModelVersion]:
    with contextlib.closing(found):
        for attachment in found:
            yield ModelVersion(attachment, debug, address)
