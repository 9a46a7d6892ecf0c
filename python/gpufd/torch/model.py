"""A module over kept weights that gives its memory back while nobody needs it: :class:`Model`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal

import torch

from ..errors import ClosedError, FormatError, MismatchError, NotFoundError, RefusedError, UsageError
from ..keeper.control import TIMEOUT, HasSocket
from ..keeper.get import get
from ..keeper.refusals import explained
from ..keeper.tables import Table, layout_difference
from ..memory.device import Device
from ..memory.drivers import reserve
from ..objects import NotCopied, called
from ..share.attach import attach
from ..share.attachment import Attachment
from ..share.follow import close_or_leave
from ..wire.records import READ_ONLY
from .address import Address
from .assign import replace, without_memory
from .versions import ModelVersion


_ROOM = 1 << 30  # bytes of address space, for a version in chunks that are larger than the weights


class Model(NotCopied):
    """A module whose parameters and persistent buffers are kept weights, always at the same addresses.

        model = gpufd.torch.Model(module, "llama")
        answer = model(batch)
        model.sleep()                      # nothing of the weights is mapped; the module and its graphs stay
        model.wake()                       # the newest version is where the old one was: captured graphs replay

    Whoever makes it closes it, by ``with`` or close. Threads may call its methods, one goes after the other; sleep, swap and close
    are for when no thread calls the module. The kept tensors are read-only: see gpufd.torch.

    module      the module
    """

    def __init__(
        self, module: torch.nn.Module, name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, part: int | Literal["here"] | None = None,
        labels: Mapping[str, str] | None = None, device: Device | None = None, timeout: float | None = TIMEOUT, debug: bool = False,
    ) -> None:  # fmt: skip
        """Take the current version of a name: the arguments are those of load. Its tensors have to fit the module (Loaded.apply)."""
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"{type(module).__name__} is no module")
        self._open(lambda version: module, layout_difference, name, socket, part, labels, device, timeout, debug)

    @classmethod
    def _made_of(cls, name: str, make: Callable[[ModelVersion], torch.nn.Module], difference: Callable[[Table, Table], str], **options: Any) -> Model:
        """Return a Model whose module is made of the first version. difference says what is against a newer one, or ""."""
        made = cls.__new__(cls)
        made._open(make, difference, name, **options)
        return made

    def _open(
        self, make: Callable[[ModelVersion], torch.nn.Module], difference: Callable[[Table, Table], str], name: str,
        socket: str | os.PathLike[str] | HasSocket | None, part: int | Literal["here"] | None, labels: Mapping[str, str] | None,
        device: Device | None, timeout: float | None, debug: bool,
    ) -> None:  # fmt: skip
        self._labels, self._timeout, self._debug = labels, timeout, debug
        self._hooks: list[Any] = []
        self._lock = threading.RLock()  # held by what changes which memory is mapped
        with get(name, socket=socket, part=part, labels=labels, timeout=timeout, device=device, access=READ_ONLY) as got:
            if len(got.parts) != 1:
                raise UsageError(f"{name} has {len(got.parts)} parts: say which, or use gpufd.transformers.load, which takes all of a model's")
            (attached,) = got.take()
        memory = attached.memory
        extent = memory.chunks * memory.chunk + max(memory.chunks * memory.chunk, _ROOM)  # one in larger chunks has a part of a chunk more
        self._address = Address(reserve(extent, device=memory.ordinal, driver=memory.driver), difference)
        self._version: ModelVersion | None = None
        self._known = 0  # the generation that swap has taken or refused last
        version = self._of(attached.attachment)
        self.module = make(version)
        version.swap(self.module)
        self._use(version)

    def __repr__(self) -> str:
        state = "closed" if not self._version else f"{called(self._version.name)} version {self.version}{', asleep' if self.asleep else ''}"
        return f"<gpufd.torch.Model {type(self.module).__name__}, {state}>"

    def _of(self, attachment: Attachment) -> ModelVersion:
        """Return the version of an attachment, which gets another lease of it whenever the keeper comes back."""
        attachment._lease.outlive(math.inf, True)
        return ModelVersion(attachment, self._debug, self._address)

    def _use(self, version: ModelVersion) -> None:
        """Note that a version is the one that is mapped."""
        self._version, self._known = version, version.attachment.generation

    # Its use.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        if self.asleep:
            raise _sleeps()
        return self.module(*args, **kwargs)

    @property
    def version(self) -> int:
        """The version that is mapped, or was before the model fell asleep."""
        return self._there.version

    @property
    def asleep(self) -> bool:
        """Whether the weights are unmapped."""
        return self._there.attachment.detached

    @property
    def superseded(self) -> bool:
        """Whether there is a newer version by now. A model that sleeps asks now and then: so it keeps its lease when the keeper restarts."""
        return self._there.superseded

    @property
    def _there(self) -> ModelVersion:
        if not self._version:
            raise ClosedError("the model was closed")
        return self._version

    # Sleep.

    def sleep(self, keep: float | None = None) -> bool:
        """Wait for the work on the device, unmap the weights, and hold no descriptor of them. Return whether the lease is kept.

        With the lease the keeper keeps this version for wake: for keep seconds, by default as long as this process lives.
        Until then a call of the module, or of a module in it, raises ClosedError (detached). Nothing refuses the call of a module
        in it that was compiled in place (``module.compile()``), the replay of a graph, or other uses of the parameters, unless
        a WriteGuard does: they make the process lose its CUDA context.
        """
        with self._lock:
            attachment = self._there.attachment
            try:
                for module in () if self._hooks else self.module.modules():
                    self._hooks.append(module.register_forward_pre_hook(_refuse))
                return attachment.detach(keep)
            finally:
                if not attachment.detached:
                    self._let_calls_pass()

    def wake(self, *, newest: bool = True) -> int:
        """Map the newest version where the weights were, or without newest the same one, and return which it is.

        Raises MismatchError (layout), which names a tensor, if the newest has another layout, RefusedError (other-memory)
        if the same version is not kept any more, and KeeperError if the name is drained or damaged. After an error the
        model sleeps on. Of a model that is awake this only returns the version.
        """
        with self._lock:
            attachment = self._there.attachment
            attachment._lease.check()
            if not self.asleep:
                return self._woken()
            try:
                attachment._reattach(newest, None, self._address.check)
            except RefusedError as e:
                there = self._there
                raise explained(attachment.socket, there.name, there.part, self._timeout, e) from e
            return self._woken()

    def _woken(self) -> int:
        """Let calls pass again, if they do not yet: a wake may have been interrupted. Return the version."""
        if self._hooks:
            version = self._of(self._there.attachment)
            self._address.there = version._attached
            self._use(version)
            self._let_calls_pass()
        return self.version

    def _let_calls_pass(self) -> None:
        while self._hooks:
            self._hooks[-1].remove()
            self._hooks.pop()

    # Newer versions.

    def swap(self, check: Callable[[ModelVersion], object] | None = None) -> int:
        """Take a newer version, if there is one, and return which is in use then.

        It is mapped elsewhere first. check is called with it, and raises what is against it. Then the call waits for the work on
        the device, and maps the new version where the old one is: captured graphs replay over it. If the name was removed, there
        is nothing newer. Raises MismatchError (layout or tensors), and what check raises: then the keeper is told, and the next
        call looks for a newer one. After any other error the next call tries this one again. The old version stays.
        """
        with self._lock:
            if self.asleep:
                raise _sleeps()
            old = self._there.attachment
            if not old.superseded and not old.done:
                return self.version
            try:
                new = attach(
                    old.name, socket=old.socket, access=READ_ONLY, labels=self._labels, device=old.device, driver=old.memory.driver,
                    timeout=self._timeout, newer_than=self._known,
                )  # fmt: skip
            except NotFoundError:
                return self.version
            except MismatchError as e:
                if e.reason != "stale":
                    raise
                return self.version
            self._take(self._of(new), check)
            return self.version

    def _take(self, version: ModelVersion, check: Callable[[ModelVersion], object] | None) -> None:
        faults: tuple[type[Exception], ...] = (Exception,)  # those of the version
        try:
            if check:
                check(version)
            faults = MismatchError, FormatError
            version.swap(self.module)
        except BaseException as e:
            if self._address.has(version._attached):  # the old one is gone
                self._use(version)
            elif isinstance(e, faults) or version._refused:
                self._known = version.attachment.generation
                version.refuse(e)
            else:
                version._leave()
            raise
        self._use(version)

    # The end.

    def close(self) -> None:
        """End the lease, and leave the module without memory (device meta) where it had kept tensors. A second call does nothing.

        The memory is unmapped when the last view of it is gone.
        """
        with self._lock:
            version, self._version = self._version, None
            if not version:
                return
            at, self._address.there = self._address.at, None
            replace(without_memory(self.module, at.ptr, at.ptr + at.size))
            self._let_calls_pass()
            version._hold()
            if version.attachment.detached:
                version.attachment.close(force=True)
            else:
                close_or_leave(version.attachment)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _refuse(module: Any, args: Any) -> None:
    """Stand before the forward of a module that sleeps."""
    raise _sleeps()


def _sleeps() -> ClosedError:
    return ClosedError("the model sleeps: wake() first", reason="detached")
