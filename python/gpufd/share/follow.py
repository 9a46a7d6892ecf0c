"""Attaching again and again: :func:`follow`; and what a producer offers: :func:`list_offers`."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping

from .. import arguments, log
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
from .leaseconn import LONGEST_PAUSE


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
) -> Attachments:
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
    over; or it closes the new one, if that is bad. An old one ends when nothing refers to it or to
    its arrays any more, or when the body closes it. follow closes what is left when the loop ends.

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
    return Attachments(Following(one, within, max_absence, overlap, on_wait))


class Attachments(Iterator[Attachment]):
    """An iterator over attachments, one to each version. close ends it, as the end of its last reference does."""

    def __init__(self, following: Following) -> None:
        self.following = following
        self._run = _run(following)

    def __next__(self) -> Attachment:
        return next(self._run)

    def close(self) -> None:
        """End the loop: close what the body has still."""
        self._run.close()


class Following:
    """The decisions of follow: what to attach to next, how long to pause, and what to do with an attachment behind the body.

    It waits for nothing itself, so that follow and gpufd.aio.follow share it.
    """

    def __init__(
        self, one: functools.partial[Attachment], within: float | None, max_absence: float | None, overlap: bool, on_wait: Callable[[Error], None] | None
    ) -> None:
        arguments.called("on_wait", on_wait)
        self._one, self.overlap, self._on_wait = one, arguments.flag("overlap", overlap), on_wait
        self._within, self._max_absence = arguments.seconds("within", within), arguments.seconds("max_absence", max_absence)
        self.name = one.args[0]
        self._known = 0  # the generation that the body does not want again
        self._lent: weakref.WeakSet[Attachment] = weakref.WeakSet()  # what the body has, with overlap

    def patience(self) -> Patience:
        """Return a new wait for something to attach to."""
        return Patience(self._within, self._one.keywords["part"] is not None, self._on_wait)

    def attach(self, wait: bool = True, within: float = math.inf) -> Attachment:
        """Try once. With wait the producer is asked to answer when there is newer memory, if the body does not want what there was."""
        att = self._one(newer_than=self._known, wait=wait and self._known > 0, within=None if within == math.inf else within)
        att._lease.outlive(self._max_absence, self.overlap)
        if self.overlap:
            self._lent.add(att)
        return att

    def goes_on(self, att: Attachment) -> bool:
        """Return whether the body gets the attachment again: the lease has ended, and was resumed. Else it is closed, unless they overlap."""
        self._known = 0
        judged = isinstance(att._lease.error, ClosedError)
        if judged or att._lease.closed:
            self._known = att.generation
        elif att.done and not att.superseded and att.memory.views():
            with contextlib.suppress(Error):
                att.resume()
                return True
        if not self.overlap:
            close_or_leave(att)
        return False

    def close(self) -> None:
        """Close what the body has still, behind the loop."""
        for att in list(self._lent):
            close_or_leave(att)


class Patience:
    """A wait for something to attach to: how long the pauses are, and when the caller is told."""

    def __init__(self, within: float, of_part: bool, on_wait: Callable[[Error], None] | None) -> None:
        self._within, self._of_part, self._on_wait = within, of_part, on_wait
        self._begun, self._told, self._pause = time.monotonic(), "", 0.002
        self._before = ""  # why the last try that had its time failed

    def left(self) -> float:
        """Return the seconds that are left of the wait."""
        return max(1e-3, self._begun + self._within - time.monotonic())

    def helps(self, e: Error) -> bool:
        """Return whether waiting can mend an error."""
        return e.retryable or e.reason == "labels" or e.reason == "parts" and self._of_part

    def pause_after(self, e: Error) -> float:
        """Return the seconds to pause after an error. Raises TimedOutError when the time is over."""
        now = time.monotonic()
        left = self._begun + self._within - now
        if left <= 0:  # which may have cut the last try short
            before = f"; before that, {self._before}" if self._before and isinstance(e, TimedOutError) else ""
            raise TimedOutError(f"nothing to attach to within {self._within:g} s: {e}{before}") from e
        self._before = str(e)
        if self._on_wait and now - self._begun >= _SILENCE and str(e) != self._told:
            self._told = str(e)
            self._on_wait(e)
        pause, self._pause = min(self._pause, left), min(2 * self._pause, LONGEST_PAUSE)
        return pause


_SILENCE = 1.0  # seconds that a wait says nothing


def _run(following: Following) -> Generator[Attachment, None, None]:
    try:
        while True:
            att: Attachment | None = _await_next(following)
            while att is not None:
                try:
                    yield att
                    if not att._lease.closed:
                        att.wait(superseded=True)
                    again = following.goes_on(att)
                except BaseException:  # GeneratorExit and KeyboardInterrupt, too
                    close_or_leave(att)
                    raise
                if not again:
                    att = None  # an attachment in use ends with the last of its views
    finally:
        following.close()


def _await_next(following: Following) -> Attachment:
    patience = following.patience()
    while True:
        try:
            return following.attach(within=patience.left())
        except Error as e:
            if not patience.helps(e):
                raise
            pause = patience.pause_after(e)
            log.debug("waiting for %s: %s", following.name, e)
        time.sleep(pause)


def close_or_leave(att: Attachment) -> None:
    """Close an attachment, or leave it to the last of its views."""
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
