"""The errors of this package. All are :class:`Error`.

Each has ``exit``, the exit code that gpufd's programs end with for it: 1 failed, 2 wrong
usage, 3 this machine cannot, 4 timed out or the peer was lost.
"""

from __future__ import annotations

import contextlib
import errno
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol


class Error(Exception):
    """The base of all errors of this package. Its text is one line, safe to print."""

    exit: ClassVar[int] = 1
    retryable: ClassVar[bool] = False  #: whether attaching may succeed later; :func:`gpufd.follow` waits then

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """A stranger's text with escapes for what would steer a terminal, or turn and hide what
    stands beside it."""
    return "".join(c if c.isprintable() or c.isspace() and unicodedata.category(c) == "Zs" else _escape(ord(c)) for c in text)


def _escape(c: int) -> str:
    return f"\\x{c:02x}" if c < 0x80 else f"\\u{c:04x}" if c < 0x10000 else f"\\U{c:08x}"


class UsageError(Error, ValueError):
    """An argument makes no sense."""

    exit = 2


class UnavailableError(Error):
    """This machine lacks what is needed: a driver, a device, or something they can do."""

    exit = 3


class TooManyFilesError(UnavailableError, OSError):
    """This process, or the machine, has as many open files as it may have. Each chunk of memory
    is one, and each connection."""

    exit = 3


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Have EMFILE and ENFILE say in words what to do."""
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
        raise TooManyFilesError(e.errno, what) from e


class ClosedError(Error):
    """The object was closed."""


class ForkedError(Error):
    """The object was made before a fork, and is of the parent process alone."""


# The driver, and memory.


class DriverError(Error):
    """A call of the driver failed: ``function`` is the call, ``number`` and ``name`` its result."""

    def __init__(self, function: str, number: int, name: str, text: str) -> None:
        super().__init__(f"{function}: {name} ({number}): {text}")
        self.function, self.number, self.name, self.text = function, number, name, text

    def __reduce__(self) -> tuple[type[DriverError], tuple[str, int, str, str]]:
        return type(self), (self.function, self.number, self.name, self.text)


class DriverUnavailableError(DriverError, UnavailableError):
    """A call of the driver failed because this machine cannot do that."""

    exit = 3


class DescriptorError(Error):
    """The descriptors that came are not the memory that the offer describes."""

    _offer: Any = None  # that offer


class NotImportedError(DriverError, DescriptorError):
    """The driver did not import or map a descriptor that came."""


class DeviceError(Error):
    """The memory is on another device than was asked for, or its device is not visible here."""


class CutOffError(Error, OSError):
    """A process that has the descriptor has made a file of the software driver shorter."""


class ReadOnlyError(Error, BufferError):
    """The memory was attached read-only."""


class ExportError(Error, BufferError):
    """The array cannot be exported as was asked for."""


class InUseError(Error, BufferError):
    """The memory cannot be closed, because something still uses it: ``views`` says what."""

    def __init__(self, text: str, views: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.views = tuple(views)


class GivenUpError(Error):
    """A wait for a counter was given up, so its slot cannot be used any more."""

    exit = 4


# The conversation.


class NoProducerError(Error):
    """Nobody listens at the socket."""

    retryable = True


class NotAdmittedError(Error, PermissionError):
    """The policy does not admit the peer, or the socket does not admit this process."""


class LostError(Error):
    """The peer is gone without a farewell: it was killed, or it failed."""

    exit = 4
    retryable = True

    def __init__(self, text: str = "the peer hung up", died: Callable[[], bool] | None = None) -> None:
        super().__init__(text)
        self._died = died

    def __reduce__(self) -> tuple[type[LostError], tuple[str]]:
        return type(self), (str(self),)  # another process cannot watch the peer

    def died(self) -> bool:
        """Return whether the peer's process has died, and not only hung up.

        It waits half a second at most. False if that cannot be known.
        """
        return self._died() if self._died else False


class LeftError(Error):
    """The peer left in order."""

    exit = 4


class TimedOutError(Error, TimeoutError):
    """A step took too long."""

    exit = 4
    retryable = True


class NoConsumerError(TimedOutError):
    """No consumer came in time."""


class LeaseEndedError(Error):
    """The producer has ended the lease, for one of the reasons below."""

    exit = 4
    retryable = True


class WithdrawnError(LeaseEndedError):
    """The producer has ended the offer, and given its name up."""


class SupersededError(LeaseEndedError):
    """The producer offers newer memory, and the time for this one is over."""


class RevokedError(LeaseEndedError):
    """The producer took this lease back. Its words follow."""


class RestartingError(LeaseEndedError):
    """The producer ends for a successor: the memory stays good, and the name comes back."""


class StillOpenError(Error):
    """A consumer did not close legacy memory in time. It may be freed while the consumer uses it."""

    exit = 4


class VerdictError(Error):
    """The consumer reported an error."""


class NoVerdictError(Error):
    """A consumer left without giving the verdict that was demanded."""

    exit = 4


class StaleError(Error):
    """The offer is not newer than what is known already, or not the memory that is mapped."""

    retryable = True


class TooLargeError(Error):
    """An offer, or a list of offers, is larger than this side accepts."""


class HandleError(Error):
    """The memory is shared by another type of handle than is taken."""


class NameTakenError(Error):
    """The server has an offer of that name already."""


class LabelError(Error):
    """A keeper's version has other labels than were asked for."""


class _PeerLike(Protocol):
    @property
    def pid(self) -> int: ...


class FenceError(Error):
    """It is not known whether the work of ``peers`` on the memory has ended."""

    exit = 4

    def __init__(self, text: str, peers: Sequence[_PeerLike] = ()) -> None:
        super().__init__(text)
        self.peers = tuple(peers)


class NoFenceError(FenceError):
    """It cannot be known when a peer's work on the memory has ended, so waiting is no use."""


# What is wrong with records. The code is what REFUSE says of it.


class WireError(Error):
    """The peer sent what docs/wire.md does not allow."""

    code: int = 6

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        if code is not None:
            self.code = code


class VersionError(WireError):
    """The peer speaks another version of the wire format."""

    code = 5


class UnsupportedError(WireError):
    """The peer uses a part of the wire format that this side has to know, and does not."""

    code = 10


class ProtocolError(WireError):
    """The peer sent a record where another one belongs."""


class RateError(WireError):
    """The peer sent more records a second than this side takes."""

    code = 9


# A peer's no.


class RefusedError(Error):
    """The peer refused: ``code`` is one of docs/wire.md, ``text`` the peer's words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"refused: {text or 'no reason given'} (code {code})")
        self.code, self.text = code, text

    def __reduce__(self) -> tuple[type[RefusedError], tuple[int, str]]:
        return type(self), (self.code, self.text)


class NotFoundError(RefusedError):
    """There is no offer of that name."""

    retryable = True


class AccessError(RefusedError):
    """More access was asked for than the offer gives."""


class KindError(RefusedError):
    """The drivers are of different kinds."""


class BusyError(RefusedError):
    """The peer has no room for another connection, or too many descriptors are in flight."""

    retryable = True


class TooLateError(RefusedError):
    """The peer says that this side took too long for a step."""

    exit = 4
    retryable = True


class DeniedError(RefusedError):
    """The peer does not admit this process, or does not admit it to this offer."""


class RefusedRateError(RefusedError):
    """The peer takes fewer records a second than this side sent."""

    retryable = True


class NotUnderstoodError(RefusedError, UnsupportedError):
    """This side uses a part of the wire format that the peer does not know."""


class OtherMemoryError(RefusedError, StaleError):
    """The name stands for other memory than the lease that was to be resumed."""


class PartsError(NotFoundError):
    """What has that name is offered in parts, which the text names: attach with part, or attach_parts."""

    retryable = False


# Channels.


class ChannelError(Error):
    """The base of the errors of channels: gpufd.channel."""


class EndedError(ChannelError):
    """The writer has ended in order. There are no more frames."""


class WriterLostError(ChannelError, LostError):
    """The writer died, or hung up without ending the channel.

    ``last`` is the sequence of the last whole frame, or 0.
    """

    exit = 4

    def __init__(self, text: str, last: int = 0, died: Callable[[], bool] | None = None) -> None:
        super().__init__(text, died)
        self.last = last


class DroppedError(ChannelError):
    """The writer has dropped this reader."""

    exit = 4


class StalledError(ChannelError):
    """A reader did not give a slot back in time."""

    exit = 4


class NoOfferError(ChannelError):
    """The writer's channel is not offered any more: its server was closed, or another offer has its name."""


class PassedError(ChannelError):
    """The writer took a frame's slot while the reader had it: what was read may be of two frames."""


class CursorError(ChannelError):
    """A peer wrote nonsense into its cursor."""


class OrderError(ChannelError):
    """Calls came out of order, or the host and a stream of the same side mixed them."""


class ChannelPolicyError(ChannelError):
    """The channel, or the reader's policy, does not allow the call."""


class TurnedAwayError(DroppedError, ChannelPolicyError):
    """The writer does not admit this reader: for its policy, the number of readers, or its cursor."""


class NoChannelError(ChannelError):
    """The offer is no channel."""


class NoStreamsError(ChannelError, UnavailableError):
    """The software driver has no streams for Python: take the calls without _on."""

    exit = 3


_REFUSALS: dict[int, type[RefusedError]] = {
    1: NotFoundError,
    2: AccessError,
    3: KindError,
    4: BusyError,
    7: TooLateError,
    8: DeniedError,
    9: RefusedRateError,
    10: NotUnderstoodError,
    11: OtherMemoryError,
    12: PartsError,
}


def refusal(code: int, text: str) -> RefusedError:
    """The error for a REFUSE of that code."""
    return _REFUSALS.get(code, RefusedError)(code, text)
