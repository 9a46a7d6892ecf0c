"""The errors of this package. All are :class:`Error`.

Each has ``reason``, a word for programs: the table of a class lists those that it has. ``exit`` is the code that
gpufd's programs end with for it: 1 failed, 2 wrong usage, 3 this machine cannot, 4 timed out or the peer was lost.
"""

from __future__ import annotations

import contextlib
import errno
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol


class Error(Exception):
    """The base of all errors of this package. Its text is one line, safe to print."""

    _reason: ClassVar[str] = "failed"  # of one that is made without
    _exit: ClassVar[int] = 1
    _exits: ClassVar[dict[str, int]] = {}  # the codes of reasons that have another
    _retryable: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, text: str = "", *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or self._reason  #: a word for programs

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__ == __name__:
            cls.__module__ = "gpufd"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__

    def __str__(self) -> str:
        return printable(Exception.__str__(self))

    @property
    def exit(self) -> int:
        """The exit code of a program that ends for this error."""
        return self._exits.get(self.reason, self._exit)

    @property
    def retryable(self) -> bool:
        """Whether attaching may succeed later; :func:`gpufd.follow` waits then."""
        return self.reason in self._retryable


Error.__module__ = "gpufd"


@contextlib.contextmanager
def suppress(kind: type[Error], *reasons: str) -> Iterator[None]:
    """Suppress errors of a class that have one of the reasons."""
    try:
        yield
    except kind as e:
        if e.reason not in reasons:
            raise


def printable(text: str) -> str:
    """Return a stranger's text with escapes for what would steer a terminal, or turn and hide what
    stands beside it."""
    return "".join(c if c.isprintable() or c.isspace() and unicodedata.category(c) == "Zs" else _escape(ord(c)) for c in text)


def _escape(c: int) -> str:
    return f"\\x{c:02x}" if c < 0x80 else f"\\u{c:04x}" if c < 0x10000 else f"\\U{c:08x}"


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Turn EMFILE and ENFILE into an error that says what to do."""
    try:
        yield
    except OSError as e:
        if isinstance(e, Error) or e.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        what = "the machine has too many open files: raise fs.file-max (sysctl)"
        if e.errno == errno.EMFILE:
            import resource

            limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            what = f"this process has too many open files: ulimit -n allows {limit}, and may be raised to {hard}; each chunk of memory is one"
        raise UnavailableError(what, reason="too-many-files") from e


# Calls and objects.


class UsageError(Error, ValueError):
    """An argument makes no sense."""

    _reason, _exit = "usage", 2


class UnavailableError(Error):
    """This machine, or this process, lacks what is needed.

    unavailable     a driver, a device, or something that they can do
    too-many-files  each chunk of memory is an open file, and each connection
    no-streams      the software driver has no streams for Python
    """

    _reason, _exit = "unavailable", 3


class DriverError(Error):
    """A call of the driver failed: ``function`` is the call, ``number`` and ``name`` its result.

    driver          it failed
    unavailable     this machine cannot do that
    not-imported    the descriptor that came was not imported or mapped
    """

    _reason, _exits = "driver", {"unavailable": 3}
    _offer: Any = None  # what described the memory

    def __init__(self, function: str, number: int, name: str, text: str, *, reason: str = "") -> None:
        super().__init__(f"{function}: {name} ({number}): {text}", reason=reason)
        self.function, self.number, self.name, self.text = function, number, name, text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, self.number, self.name, self.text), {"reason": self.reason}


class ClosedError(Error):
    """The object cannot be used any more.

    closed      it was closed
    detached    the memory is detached: reattach first
    forked      it was made before a fork, and belongs to the parent process
    given-up    a wait for a counter was given up, so its slot cannot be used
    """

    _reason, _exits = "closed", {"given-up": 4}


class InUseError(Error, BufferError):
    """Something still uses the memory, or the name: ``views`` says what.

    in-use      views of the memory are alive, or it is offered
    name-taken  the server has an offer of that name
    """

    _reason = "in-use"

    def __init__(self, text: str, views: Sequence[str] = (), *, reason: str = "") -> None:
        super().__init__(text, reason=reason)
        self.views = tuple(views)


class ReadOnlyError(Error, BufferError):
    """The memory was attached read-only."""

    _reason = "read-only"


class ExportError(Error, BufferError):
    """The array cannot be exported as was asked for."""

    _reason = "export"


class MismatchError(Error):
    """The memory is not the memory that was asked for, or that was described.

    descriptor  what came is not what the offer describes
    device      it is on another device, or its device is not visible here
    labels      a keeper's version has other labels
    tensors     the tensors do not fit the model
    layout      the tensors lie in another way than those whose address they are to get
    stale       it is not newer than what is known
    too-large   it is larger than this side accepts
    handle      it is shared by another type of handle
    cut-off     somebody has made a file of the software driver shorter
    """

    _reason = "descriptor"
    _retryable = frozenset({"stale"})
    _offer: Any = None


class FormatError(Error, ValueError):
    """A file, or the table of what a keeper keeps, makes no sense."""

    _reason = "format"


# The peer.


class LostError(Error, ConnectionError):
    """The peer is not there.

    lost            it was killed, or failed: it is gone without a farewell
    left            it left in order
    nobody-listens  there is nobody at the socket

    ``last`` is the sequence of the last whole frame if it wrote a channel, or 0.
    """

    _reason, _exit = "lost", 4
    _exits = {"nobody-listens": 1}
    _retryable = frozenset({"lost", "nobody-listens"})

    def __init__(self, text: str = "the peer hung up", died: Callable[[], bool] | None = None, *, last: int = 0, reason: str = "") -> None:
        super().__init__(text, reason=reason)
        self.last = last
        self._died = died

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"reason": self.reason, "last": self.last}  # another process cannot watch the peer

    def died(self) -> bool:
        """Return whether the peer's process has died, and not only hung up.

        It waits half a second at most. False if that cannot be known.
        """
        return self._died() if self._died else False


class TimedOutError(Error, TimeoutError):
    """Something took too long.

    timed-out       a step
    no-consumer     no consumer came in time
    """

    _reason, _exit = "timed-out", 4
    _retryable = frozenset({"timed-out", "no-consumer"})


class LeaseEndedError(Error):
    """The lease has ended, for one of these reasons.

    withdrawn       the producer has ended the offer, and given its name up
    superseded      it offers newer memory, and the time for this one is over
    revoked         it took this lease back; its words follow
    restarting      it ends for a successor: the memory stays good, and the name comes back
    """

    _reason, _exit = "revoked", 4
    _retryable = frozenset({"withdrawn", "superseded", "revoked", "restarting"})


class VerdictError(Error):
    """A consumer's end is not the one that its producer wants.

    bad-verdict     the consumer reported an error
    no-verdict      it left without the verdict that was demanded
    still-open      it did not close legacy memory in time, and may still use it
    """

    _reason, _exits = "bad-verdict", {"no-verdict": 4, "still-open": 4}


class RefusedError(Error):
    """The peer refused, or this side's policy refused the peer. ``text`` has the peer's words.

    access          more access was asked for than the offer gives
    driver          the drivers are of different kinds
    busy            there is no room for another connection
    too-late        this side took too long for a step
    denied          the peer does not admit this process
    not-admitted    the policy does not admit the peer, or the socket does not admit this process
    rate            this side sent more records a second than the peer takes
    not-understood  this side uses a part of the wire format that the peer does not know
    other-memory    the name stands for other memory than what was to be resumed or reattached
    """

    _reason = "refused"
    _exits = {"too-late": 4}
    _retryable = frozenset({"busy", "too-late", "rate", "other-memory"})

    def __init__(self, text: str = "", *, reason: str = "", said: str = "") -> None:
        super().__init__(text, reason=reason)
        self.text = said or text  #: the peer's words


class NotFoundError(RefusedError, LookupError):
    """There is nothing of that name.

    not-found   the producer, or the keeper, has nothing of that name
    parts       what has that name is kept in parts, and none was asked for
    """

    _reason = "not-found"
    _retryable = frozenset({"not-found"})


class WireError(Error):
    """The peer sent what docs/wire.md does not allow: reason malformed, version, unsupported, protocol or rate."""

    _reason = "malformed"
    _codes: ClassVar[dict[str, int]] = {"version": 5, "unsupported": 10, "rate": 9}

    @property
    def code(self) -> int:
        """The code of the REFUSE that says so."""
        return self._codes.get(self.reason, 6)


class _PeerLike(Protocol):
    @property
    def pid(self) -> int: ...


class FenceError(Error):
    """It is not known whether the work of ``peers`` on the memory has ended.

    pending     not yet
    unknown     it cannot be known, so waiting is no use
    """

    _reason, _exit = "pending", 4

    def __init__(self, text: str, peers: Sequence[_PeerLike] = (), *, reason: str = "") -> None:
        super().__init__(text, reason=reason)
        self.peers = tuple(peers)


class KeeperError(Error):
    """A keeper refused: ``reason`` is a code of docs/wire.md, or no-room. ``holders`` are the processes in the way."""

    def __init__(self, reason: str, message: str, holders: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(f"{message} ({reason})", reason=reason)
        self.message, self.holders = message, tuple(holders)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.message, self.holders)


class ChannelError(Error):
    """Something is wrong with a channel.

    ended           the writer has ended in order, and there are no more frames
    dropped         the writer has dropped this reader
    turned-away     the writer does not admit this reader: for its policy, the number of readers, or its cursor
    passed          the writer took a frame's slot while the reader had it: what was read may be of two frames
    stalled         a reader did not give a slot back in time
    not-offered     the channel is not offered any more: its server was closed, or another offer has its name
    no-channel      the offer is no channel
    cursor          a peer wrote nonsense into its cursor
    order           calls came out of order, or the host and a stream of the same side mixed them
    policy          the channel, or the reader's policy, does not allow the call
    """

    _exits = {"dropped": 4, "stalled": 4, "turned-away": 4}


class WeightsError(Error):
    """Something is wrong with weights that are published.

    torn        an update did not end whole, so the weights here may be of two steps: ``step`` names it
    not-loaded  fewer subscribers than were wanted have loaded an update
    ended       the trainer has ended in order; the next call waits for another one
    layout      the tensors lie in another way than those whose address they are to get
    in-place    the publisher's weights are, or are not, used in place
    over        the update is over, or was loaded
    malformed   the publisher wrote what docs/wire.md does not allow
    """

    _reason = "torn"
    _retryable = frozenset({"torn"})

    def __init__(self, text: str = "", *, step: int | None = None, reason: str = "") -> None:
        super().__init__(text, reason=reason)
        self.step = step  #: the trainer's number of the update, if there is one


_REFUSALS = {2: "access", 3: "driver", 4: "busy", 7: "too-late", 8: "denied", 9: "rate", 10: "not-understood", 11: "other-memory"}


def refusal(code: int, text: str) -> RefusedError:
    """Return the error for a REFUSE of that code."""
    whole = f"refused: {text or 'no reason given'} (code {code})"
    if code in (1, 12):
        return NotFoundError(whole, reason="parts" if code == 12 else "not-found", said=text)
    return RefusedError(whole, reason=_REFUSALS.get(code, "refused"), said=text)


def keeper_error(code: str, message: str, holders: Sequence[dict[str, Any]] = ()) -> KeeperError | NotFoundError:
    """Return the error for a keeper's refusal: a missing name is the same error everywhere."""
    if code == "not-found":
        return NotFoundError(f"{message} ({code}); gpufd ls lists what is kept", said=message)
    return KeeperError(code, message, holders)
