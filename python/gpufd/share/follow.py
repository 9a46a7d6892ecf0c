"""Attaching again and again: :func:`follow`; and what a producer offers: :func:`list_offers`."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping

from .. import arguments
from ..errors import ClosedError, Error, InUseError, LostError, MismatchError, TimedOutError, WireError, enough_files
from ..memory.base import Memory
from ..memory.device import Device
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT, dial
from ..wire.peer import Peer, Policy, check_policy
from ..wire.records import READ_ONLY, Listing, Offer
from ..wire.sockets import default_socket
from .attach import attach
from .attaching import ending
from .attachment import Attachment
from .held import LONGEST_PAUSE


def follow(
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
    max_absence: float | None = None,
    overlap: bool = False,
    on_wait: Callable[[Error], None] | None = None,
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

        for att in gpufd.follow("weights"):
            serve(att)                      # return when att.done or att.superseded

    Each attachment is to newer memory than the one before. It is not done while the producer is
    lost or restarting: what is mapped stays good, and when a producer offers the same memory
    again, it takes a lease of it. max_absence bounds that, in seconds. It looks for the producer
    when a property is asked for, which may take a quarter of a second then, and in wait.

    After the loop's body, follow waits until there is newer memory or the lease has ended. Then
    it closes the attachment; if arrays of it are alive, it ends with the last of them. If the
    producer has taken the memory back and offers it again, the body gets the same attachment.
    If the body has closed the attachment or given its verdict, it gets only memory of a larger
    generation.

    With overlap each version is mapped beside the one before. The body checks it and takes it
    over, and closes the old one when nothing uses that; or it closes the new one, if that is bad.
    follow closes nothing until the loop ends.

    follow waits for a producer that does not listen, does not offer the name, has ended, is full
    or is slow. It tries again after pauses of up to half a second. Raises TimedOutError if one of
    these waits takes longer than within seconds, and at once what waiting cannot mend (errors that
    are not retryable). on_wait is called with the error that is in the way after a second, and
    again when that changes. The other options are those of attach.
    """
    one = functools.partial(
        attach, name, socket=socket, access=access, device=device, driver=driver, part=part, labels=labels, timeout=timeout, policy=policy,
        max_chunks=max_chunks, max_size=max_size, max_data=max_data, max_cursors=max_cursors, legacy=legacy, reoffer=reoffer,
        connected=connected, opener=opener,
    )  # fmt: skip
    arguments.flag("overlap", overlap)
    arguments.called("on_wait", on_wait)
    return _Follow(one, arguments.seconds("within", within), arguments.seconds("max_absence", max_absence), overlap, on_wait).run()


_SILENCE = 1.0  # seconds that a wait says nothing


class _Follow:
    def __init__(
        self, one: functools.partial[Attachment], within: float, max_absence: float, overlap: bool, on_wait: Callable[[Error], None] | None
    ) -> None:
        self._one, self._within, self._max_absence, self._overlap, self._on_wait = one, within, max_absence, overlap, on_wait
        self._known = 0  # the generation that the body does not want again

    def run(self) -> Iterator[Attachment]:
        lent: list[Attachment] = []  # what the body has, with overlap
        try:
            while True:
                given = self._await_next()
                given._max_absence, given._overlaps = self._max_absence, self._overlap
                if self._overlap:
                    lent = [*(a for a in lent if not a._closed), given]
                att: Attachment | None = given
                del given  # an attachment in use ends with the last of its views
                while att is not None:
                    try:
                        yield att
                    except GeneratorExit:
                        _close(att)
                        raise
                    att = self._lend(att)
        finally:
            for a in lent:
                _close(a)

    def _lend(self, att: Attachment) -> Attachment | None:
        """Wait until there is something newer than what the body has had. Returns the attachment if
        its lease was resumed."""
        self._known = 0
        if not att._closed:
            att.wait(superseded=True)
        judged = isinstance(att._err, ClosedError)
        if judged or att._closed:
            self._known = att.generation
        elif att.done and not att.superseded and att.memory.views():
            with contextlib.suppress(Error):
                att.resume()
                return att
        if not self._overlap:
            _close(att)
        return None

    def _await_next(self) -> Attachment:
        begun, told = time.monotonic(), ""
        deadline = begun + self._within
        pause = 0.002
        while True:
            try:
                return self._one(newer_than=self._known, wait=self._known > 0)
            except Error as e:
                part_of = e.reason == "parts" and self._one.keywords["part"] is not None
                if not e.retryable and not part_of:
                    raise
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOutError(f"nothing to attach to within {self._within:g} s: {e}") from e
                if self._on_wait and time.monotonic() - begun >= _SILENCE and str(e) != told:
                    told = str(e)
                    self._on_wait(e)
                time.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE)


def _close(att: Attachment) -> None:
    """Close, or leave it to the last of the views."""
    with contextlib.suppress(InUseError):
        att.close()


def list_offers(socket: str | os.PathLike[str] | None = None, *, policy: Policy = Policy(), timeout: float | None = DEFAULT_TIMEOUT) -> list[Listing]:
    """Return what the producer at a socket, by default the keeper's, offers, in the order of the names.

    It attaches to nothing. timeout bounds all of it, in seconds; None for no bound.
    """
    timeout = arguments.step(timeout)
    check_policy(policy)
    with enough_files():
        conn, _ = dial(default_socket() if socket is None else socket, policy, timeout)
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
                raise MismatchError(f"a list of {len(offers) + left} offers, and {wire.MAX_LISTED} are taken", reason="too-large")
        names = [o.name.encode() for o in offers]
        if any(a >= b for a, b in zip(names, names[1:])):
            raise WireError("a list that is not in the order of the names")
        return offers
    except WireError as e:
        conn.farewell(wire.Refuse(e.code, str(e)))
        raise
    finally:
        conn.close()
