"""Attaching again and again: :func:`follow`; and what a producer offers: :func:`list_offers`."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping

from . import _arguments as arguments
from . import _wire as wire
from ._attach import attach
from ._attaching import ending, retryable
from ._attachment import Attachment
from ._conn import DEFAULT_TIMEOUT, dial
from ._device import Device
from ._errors import (
    ClosedError,
    Error,
    InUseError,
    LostError,
    PartsError,
    TimedOutError,
    TooLargeError,
    WireError,
    enough_files,
)
from ._held import LONGEST_PAUSE
from ._memory import Memory
from ._peer import Peer, Policy, check_policy
from ._wire import READ_ONLY, Listing, Offer


def follow(
    socket: str | os.PathLike[str],
    name: str = "",
    *,
    access: int = READ_ONLY,
    device: Device | None = None,
    driver: str | int | None = None,
    part: int | None = None,
    labels: Mapping[str, str] | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    within: float | None = None,
    max_absence: float | None = None,
    policy: Policy = Policy(),
    max_chunks: int = wire.MAX_CHUNKS,
    max_size: int | None = None,
    max_data: int = wire.MAX_LARGE_DATA,
    max_cursors: int = 0,
    legacy: bool = False,
    reoffer: bool = False,
    connected: Callable[[Peer], None] = lambda peer: None,
    opener: Callable[[Offer], Memory] | None = None,
) -> Iterator[Attachment]:
    """Attach to the memory under a name, and again whenever there is newer memory.

        for att in gpufd.follow(path, "weights"):
            serve(att)                      # return when att.done or att.superseded

    Each attachment is to newer memory than the one before. It is not done while the producer is
    lost or restarting: what is mapped stays good, and when a producer offers the same memory
    again, it takes a lease of it. max_absence bounds that, in seconds. It looks for the producer
    when a property is asked for, which may take 50 ms then, and in wait.

    After the loop's body, follow waits until there is newer memory or the lease has ended. Then
    it closes the attachment; if arrays of it are alive, it ends with the last of them. If the
    producer has taken the memory back and offers it again, the body gets the same attachment.
    If the body has closed the attachment or given its verdict, it gets only memory of a larger
    generation.

    follow waits for a producer that does not listen, does not offer the name, has ended, is full
    or is slow. It tries again after pauses of up to half a second. Raises TimedOutError if one of
    these waits takes longer than within seconds, and at once what waiting cannot mend. The
    options are those of attach.
    """
    one = functools.partial(
        attach, socket, name, access=access, device=device, driver=driver, part=part, labels=labels, timeout=timeout, policy=policy,
        max_chunks=max_chunks, max_size=max_size, max_data=max_data, max_cursors=max_cursors, legacy=legacy, reoffer=reoffer,
        connected=connected, opener=opener,
    )  # fmt: skip
    return _follow(one, arguments.seconds("within", within), arguments.seconds("max_absence", max_absence))


def _follow(one: functools.partial[Attachment], within: float, max_absence: float) -> Iterator[Attachment]:
    known = 0
    while True:
        given = _await_next(one, known, within)
        given._max_absence = max_absence
        att: Attachment | None = given
        del given  # an attachment in use ends with the last of its views
        while att is not None:
            try:
                yield att
            except GeneratorExit:
                with contextlib.suppress(InUseError):
                    att.close()
                raise
            known, att = _lend(att)


def _lend(att: Attachment) -> tuple[int, Attachment | None]:
    """Wait until there is something newer than what the body has had. Returns the generation
    that is not wanted again, or 0, and the attachment if its lease was resumed."""
    if att._closed:
        return att.generation, None
    att.wait(superseded=True)
    judged = isinstance(att.err, ClosedError)
    if not judged and att.done and not att.superseded and att.memory.views():
        with contextlib.suppress(Error):
            att.resume()
            return 0, att
    with contextlib.suppress(InUseError):
        att.close()
    return (att.generation if judged else 0), None


def _await_next(one: functools.partial[Attachment], known: int, within: float) -> Attachment:
    deadline = time.monotonic() + within
    pause = 0.002
    while True:
        try:
            return one(newer_than=known, wait=known > 0)
        except Error as e:
            if not retryable(e) or isinstance(e, PartsError) and one.keywords["part"] is None:
                raise
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOutError(f"nothing to attach to within {within:g} s: {e}") from e
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)


def list_offers(socket: str | os.PathLike[str], *, policy: Policy = Policy(), timeout: float | None = DEFAULT_TIMEOUT) -> list[Listing]:
    """Return what the producer at a socket offers, in the order of the names.

    It attaches to nothing. timeout bounds all of it, in seconds; None for no bound.
    """
    timeout = arguments.step(timeout)
    check_policy(policy)
    with enough_files():
        conn, _ = dial(socket, policy, timeout)
    deadline = time.monotonic() + timeout
    offers: list[Listing] = []
    left: int | None = None
    try:
        with contextlib.suppress(LostError):  # it may have said why
            conn.send(wire.List(), deadline=deadline)
        while left != 0:
            record, _ = conn.receive(deadline=deadline)
            error = ending(record)
            if error:
                raise error
            if isinstance(record, wire.Progress):
                continue
            if not isinstance(record, wire.Listed):
                raise wire.unexpected(record, "a list")
            if left is not None and record.left + len(record.offers) != left:
                raise WireError(f"{left} offers were left, and {record.left} are behind {len(record.offers)}")
            left = record.left
            offers += record.offers
            if len(offers) + left > wire.MAX_LISTED:
                raise TooLargeError(f"a list of {len(offers) + left} offers, and {wire.MAX_LISTED} are taken")
        names = [o.name.encode() for o in offers]
        if any(a >= b for a, b in zip(names, names[1:])):
            raise WireError("a list that is not in the order of the names")
        return offers
    except WireError as e:
        conn.farewell(wire.Refuse(e.code, str(e)))
        raise
    finally:
        conn.close()
