"""Attaching to memory that another process offers: :func:`attach`, :func:`attach_parts`."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .. import arguments, log
from ..errors import Error, LostError, NotFoundError, RefusedError, TimedOutError, UsageError, enough_files, suppress
from ..memory.base import Memory
from ..memory.device import Device
from ..memory.drivers import driver_kind, ordinal_of
from ..memory.reservation import Reservation
from ..objects import NoArray, called, human
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, check_path
from ..wire.peer import Peer, Policy
from ..wire.records import READ_ONLY, Offer
from ..wire.sockets import offer_socket, sockets_of
from .attaching import Attaching, Options
from .attachment import Attachment
from .kept import check_labels


@enough_files()
def attach(
    name: str = "",
    *,
    socket: str | os.PathLike[str] | None = None,
    access: int = READ_ONLY,
    device: Device | None = None,
    driver: str | int | None = None,
    part: int | None = None,
    labels: Mapping[str, str] | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    within: float | None = None,
    policy: Policy = Policy(),
    max_chunks: int = wire.MAX_CHUNKS,
    max_size: int | None = None,
    max_data: int = wire.MAX_LARGE_DATA,
    max_cursors: int = 0,
    newer_than: int = 0,
    wait: bool = False,
    legacy: bool = False,
    reoffer: bool = False,
    at: Reservation | None = None,
    connected: Callable[[Peer], None] = lambda peer: None,
    opener: Callable[[Offer], Memory] | None = None,
) -> Attachment:
    """Map the memory that a producer offers under a name.

    The caller closes the attachment, best by ``with``. Arrays made of it keep it alive.

    name            name of the offer; "" takes the only one
    socket          path of the producer's socket; by default that of an offer of this name which gpufd.offer
                    or a channel's Writer made without one, or else the keeper's
    access          READ_ONLY or READ_WRITE
    device          that the memory must be on: an ordinal, "cuda:0", a torch.device or a UUID
                    ("GPU-…"); by default any
    driver          "cuda", "soft" or "auto"; by default that of GPUFD_DRIVER, else "auto"
    part, labels    of a keeper's version: which part to take, and the labels it must have
    timeout         seconds for each step; None for no bound
    within          seconds for all of it; by default no bound
    policy          whose offers to take
    max_chunks, max_size, max_data
                    the largest offer to take: chunks, bytes, bytes of application data
    max_cursors     take up to so many bytes of memory of this lease's own, as channels do
    newer_than      take only memory of a larger generation
    wait            have the producer wait until it has that
    legacy          take memory that is shared by a handle of legacy IPC, too
    opener          is called to open such memory
    reoffer         keep the descriptors, so that the memory can be offered on
    at              map the memory at the beginning of this reservation: gpufd.reserve. Raises MismatchError
                    (too-large) if it does not fit, and InUseError if other memory is mapped there
    connected       is called with the Peer before anything is asked of it

    Raises NotFoundError, LostError, RefusedError, MismatchError, WireError, TimedOutError.
    """
    if part is not None:
        arguments.number("part", part)
    wanted = arguments.labels(labels)
    if within is not None:
        within = arguments.seconds("within", within, zero=False)
    kind = driver_kind(driver)
    paths = [check_path(socket)] if socket is not None else sockets_of(arguments.text("a name", name))
    options = Options(paths[0], name, access, ordinal_of(device, kind), kind, arguments.step(timeout), within, policy, max_chunks,
                       max_size, max_data, max_cursors, newer_than, wait, legacy, reoffer, at, wanted, connected, opener)  # fmt: skip
    options.check()
    try:
        att = _attach_at(options, paths, part)
    except LostError as e:
        if e.reason != "nobody-listens" or socket is not None:
            raise
        own = ""
        with suppress(UsageError, "usage"):  # a name that is too long for a socket of its own
            own = f"nobody offers {name!r} at {offer_socket(name)}, and " if name else ""
        raise LostError(f"{own}no keeper listens at {paths[-1]}: start the producer, or gpufd keeper, or say socket=", reason=e.reason) from e
    try:
        if wanted:
            check_labels(att.kept.name, att.kept.labels, wanted)
        return att
    except BaseException:
        att.close()
        raise


def _attach_at(options: Options, paths: list[str], part: int | None) -> Attachment:
    """Attach at the first of the sockets where somebody listens."""
    for path in paths[:-1]:
        with suppress(LostError, "nobody-listens"):  # a producer that was killed has left it
            return _attach_at(options, [path], part)
        log.debug("nobody listens at %s any more", path)
    options = replace(options, path=paths[-1])
    att = _attach_part(options, part) if part is not None else _attach(options)
    log.debug("attached to %s at %s: %d bytes in %d chunks, generation %d", att.name, options.path, att.size, att.offer.chunks, att.generation)
    return att


def _attach(options: Options) -> Attachment:
    done = Attaching(options)
    offer, memory = done.run()
    return Attachment(options, done, offer, memory)


def _attach_part(options: Options, part: int) -> Attachment:
    """The part of a keeper's version: NAME if it is the only one, or else NAME/PART."""
    of_many = replace(options, name=f"{options.name}/{part}")
    if part:
        return _attach(of_many)
    for of_one in (True, False):  # most versions have one part
        with contextlib.suppress(NotFoundError):
            return _attach(options if of_one else of_many)
    return _attach(options)  # a version of one part may have come meanwhile; or there is none


class Parts(list[Attachment], NoArray):
    """The attachments to all parts of a version. The end of ``with`` closes them."""

    _array_of = "view(dtype, shape) of a part"

    def __repr__(self) -> str:
        sizes = [att.size for att in self]
        return f"<gpufd.Parts {called(self[0].name) if self else ''}: {len(self)} part{'s' if len(self) != 1 else ''}, {human(sum(sizes))}>"

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with contextlib.ExitStack() as stack:
            for att in self:
                stack.push(att)

    def close(self, force: bool = False) -> None:
        """Close all of them: Attachment.close."""
        for att in self:
            att.close(force)


def attach_parts(
    name: str,
    *,
    socket: str | os.PathLike[str] | None = None,
    access: int = READ_ONLY,
    device: Device | None = None,
    driver: str | int | None = None,
    labels: Mapping[str, str] | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    within: float | None = None,
    policy: Policy = Policy(),
    max_chunks: int = wire.MAX_CHUNKS,
    max_size: int | None = None,
    max_data: int = wire.MAX_LARGE_DATA,
    reoffer: bool = False,
    at: Reservation | Sequence[Reservation] | None = None,
    connected: Callable[[Peer], None] = lambda peer: None,
) -> Parts:
    """Attach to all parts of what a keeper keeps under a name.

    All parts are of the same version, even if another one is committed meanwhile. The options
    are those of attach; at is a reservation for each part, in their order. Raises TimedOutError if new versions kept coming until the timeout.
    """
    places = [at] if isinstance(at, Reservation) else at
    if not isinstance(places, (Sequence, type(None))):
        raise UsageError(f"at is a gpufd.Reservation, or a sequence of them, not {arguments.short(at)}")
    one = functools.partial(
        attach, name, socket=socket, access=access, device=device, driver=driver, labels=labels, timeout=timeout, within=within, policy=policy,
        max_chunks=max_chunks, max_size=max_size, max_data=max_data, reoffer=reoffer, connected=connected,
    )  # fmt: skip
    deadline = time.monotonic() + arguments.seconds("a timeout", timeout if within is None else within)
    refused = 0  # the version of which a part was refused
    while True:
        parts = Parts([one(part=0, at=places[0] if places else None)])
        try:
            first = parts[0].kept
            if places and len(places) != first.parts:
                raise UsageError(f"{name}, version {first.version}, has {first.parts} parts, and at has reservations for {len(places)}")
            for part in range(1, first.parts):
                try:
                    parts.append(one(part=part, at=places[part] if places else None))
                except RefusedError:
                    if first.version == refused or time.monotonic() > deadline:
                        raise
                    refused = first.version  # which another one may have followed, with fewer parts: look again
                    break
                kept = parts[-1].kept
                if kept.version != first.version:
                    break
                if (kept.part, kept.parts) != (part, first.parts):
                    raise Error(f"part {part} of {first.parts} of {name} was asked for, and the offer says part {kept.part} of {kept.parts}")
            else:
                return parts
        except BaseException:
            parts.close()
            raise
        parts.close()
        log.debug("a new version of %s came meanwhile: attaching to its parts", name)
        if time.monotonic() > deadline:
            raise TimedOutError(f"{name} got a new version whenever its parts were attached to")
