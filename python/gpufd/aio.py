"""The waits of this package for asyncio, each by the name of the call that it stands for.

    async for att in gpufd.aio.follow("weights"):             # gpufd.follow
        await serve(att)

    async for version in gpufd.aio.follow_model("llama"):    # gpufd.torch.follow
        version.swap(model)

    await gpufd.aio.wait(att, superseded=True)                # att.wait
    news = await gpufd.aio.notices(att)                       # att.notices

    async for frame in gpufd.aio.frames(reader):              # reader.frames
        show(frame.tensor)
    frame = await gpufd.aio.next(reader)                      # reader.next

They wait for descriptors in the running loop, and take no thread meanwhile. A thread of the loop's default executor
is used for what has no descriptor and ends soon: attaching, closing, and looking for a producer that is lost. A
wait that is cancelled leaves nothing in the loop. Threads may wait for the same attachment beside them.

To leave a loop early, close it: ``async with contextlib.aclosing(gpufd.aio.follow("weights")) as versions:``.
Opening a reader blocks: ``await asyncio.to_thread(gpufd.channel.Reader, "cam", wait=30)``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import arguments
from .errors import ChannelError, Error, TimedOutError, UsageError, enough_files
from .keeper.control import TIMEOUT, HasSocket
from .keeper.version import Version
from .memory.device import Device
from .memory.reservation import Reservation
from .share.attachment import Attachment
from .share.follow import Following, close_or_leave
from .share.follow import follow as follow_memory
from .share.leaseconn import LeaseConn

if TYPE_CHECKING:
    from .channel.frame import Frame
    from .channel.reader import Reader
    from .torch.versions import ModelVersion

__all__ = ["follow", "follow_model", "frames", "next", "notices", "wait", "wait_superseded"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


# Attachments.


async def wait(att: Attachment, timeout: float | None = None, *, superseded: bool = False) -> bool:
    """Wait as att.wait does: until the lease has ended, or with superseded also until there is newer memory."""
    lease = att._lease
    return await _await(lease, lambda: lease.over() or superseded and lease.newer != 0, timeout)


async def wait_superseded(of: Attachment | ModelVersion | Version, timeout: float | None = None) -> bool:
    """Wait as wait_superseded of an attachment or a version does. Return whether there is newer memory."""
    attachment = of if isinstance(of, Attachment) else of[0].attachment if isinstance(of, Version) else of.attachment
    await wait(attachment, timeout, superseded=True)
    return attachment._lease.newer != 0


async def notices(att: Attachment, timeout: float | None = None) -> list[bytes]:
    """Wait for notices of the producer, and return them. The list is empty if the lease has ended, or after timeout seconds."""
    lease = att._lease
    await _await(lease, lambda: bool(lease.notices) or lease.over(), timeout)
    return att.notices(0)


async def _await(lease: LeaseConn, over: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until over says so. Return False if it does not within timeout seconds, or the attachment is closed."""
    deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
    await _pump(lease)
    if over() or lease.closed or deadline <= time.monotonic():
        return over()
    with lease.bell() as bell:
        while True:
            await _pump(lease)
            if over():
                return True
            left = deadline - time.monotonic()
            if lease.closed or left <= 0:
                return False
            adrift = lease.adrift()
            with lease.lock:  # nobody closes it, or takes another one, meanwhile
                waits = _readable(*([bell] if adrift else [bell, lease.conn.sock.fileno()]))
            await waits.wait(min(left, lease.next_look()) if adrift else left)
            with contextlib.suppress(BlockingIOError):
                os.read(bell, 4096)


async def _pump(lease: LeaseConn) -> None:
    """Read what has come. A producer that is lost is looked for in a thread, because that can take a while."""
    lease.check_forked()
    if lease.lock.acquire(blocking=False):
        try:
            lease.read()
        finally:
            lease.lock.release()
    else:  # another thread has it, perhaps until the producer answers
        await asyncio.to_thread(lease.read)
    if lease.adrift() and lease.next_look() <= 0:
        await asyncio.to_thread(lease.pump)


class _readable:
    """A wait for one of some descriptors to be readable. It has copies of them, so others may close or wait for theirs."""

    @enough_files()
    def __init__(self, *fds: int) -> None:
        self._copies: list[int] = []
        try:
            for fd in fds:
                if fd >= 0:
                    self._copies.append(os.dup(fd))
        except BaseException:
            self._close()
            raise

    async def wait(self, seconds: float) -> bool:
        """Wait so long at most, once. Return whether one is readable."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        try:
            for copy in self._copies:
                loop.add_reader(copy, came.set)
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await came.wait()
            return True
        except TimeoutError:
            return False
        finally:
            for copy in self._copies:
                loop.remove_reader(copy)
            self._close()

    def _close(self) -> None:
        while self._copies:
            os.close(self._copies.pop())


# Version after version.


def _twin(of: Callable[_P, object]) -> Callable[[Callable[..., AsyncIterator[_T]]], Callable[_P, AsyncIterator[_T]]]:
    """Give a function the signature of the call that it stands for."""

    def decorate(f: Callable[..., AsyncIterator[_T]]) -> Callable[_P, AsyncIterator[_T]]:
        f.__signature__ = inspect.signature(of)  # type: ignore[attr-defined]
        return f

    return decorate


@_twin(follow_memory)
def follow(*args: Any, **options: Any) -> AsyncIterator[Attachment]:
    """Attach to the memory under a name, and again whenever there is newer memory: gpufd.follow, whose options it takes.

    After a version that the body has closed or refused it asks twice a second whether there is a newer one.
    """
    return _follow(follow_memory(*args, **options).following)


async def _follow(following: Following) -> AsyncGenerator[Attachment, None]:
    try:
        while True:
            att: Attachment | None = await _attach_next(following)
            while att is not None:
                try:
                    yield att
                    if not att._lease.closed:
                        await wait(att, superseded=True)
                    again = await asyncio.to_thread(following.goes_on, att)
                except BaseException:  # GeneratorExit and CancelledError, too
                    close_or_leave(att)
                    raise
                if not again:
                    att = None  # an attachment in use ends with the last of its views
    finally:
        following.close()


async def _attach_next(following: Following) -> Attachment:
    patience = following.patience()
    while True:
        try:
            return await _attach(following, patience.left())
        except Error as e:
            if not patience.helps(e):
                raise
            pause = patience.pause_after(e)
        await asyncio.sleep(pause)


async def _attach(following: Following, within: float) -> Attachment:
    """Try once, in a thread. If this is cancelled meanwhile, the attachment is closed as soon as it comes."""
    attaching = asyncio.get_running_loop().run_in_executor(None, following.attach, False, within)
    try:
        return await asyncio.shield(attaching)
    except asyncio.CancelledError:
        attaching.add_done_callback(_discard)
        raise


def _discard(attaching: asyncio.Future[Attachment]) -> None:
    if not attaching.cancelled() and attaching.exception() is None:
        close_or_leave(attaching.result())


async def follow_model(
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, part: int | None = None, labels: Mapping[str, str] | None = None,
    device: Device | None = None, driver: str | int | None = None, at: Reservation | None = None, timeout: float | None = TIMEOUT,
    within: float | None = None, max_absence: float | None = None, on_wait: Callable[[Error], None] | None = None, debug: bool = False,
) -> AsyncIterator[ModelVersion]:  # fmt: skip
    """Iterate over the versions of a model that a keeper keeps: gpufd.torch.follow.

    The body runs in the loop's thread, so a server whose batches run there swaps without a lock:

        async for version in gpufd.aio.follow_model("llama"):
            version.swap(model)
    """
    from .torch.address import address_of
    from .torch.versions import ModelVersion, following_of

    address = address_of(at)
    following = following_of(
        name, socket=socket, part=part, labels=labels, device=device, driver=driver, timeout=timeout, within=within,
        max_absence=max_absence, on_wait=on_wait, debug=debug,
    )  # fmt: skip
    async with contextlib.aclosing(_follow(following)) as found:
        async for attachment in found:
            yield ModelVersion(attachment, debug, address)


# Channels.


async def next(reader: Reader, timeout: float | None = None) -> Frame:
    """Wait for the next frame of a channel, and take it: Reader.next."""
    if not callable(getattr(reader, "fileno", None)):
        raise UsageError(f"a reader of a channel is wanted, whose descriptor can be waited for, not {arguments.short(reader)}: give its next a thread of its own")
    deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
    while True:
        try:
            return reader.next(0)
        except TimedOutError:
            left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOutError(f"no frame came within {timeout:g} s")
        await _readable(reader.fileno()).wait(left)


async def frames(reader: Reader, timeout: float | None = None) -> AsyncIterator[Frame]:
    """Iterate over the frames until the writer ends: Reader.frames. Each is released after the loop's body."""
    while True:
        try:
            frame = await next(reader, timeout)
        except ChannelError as e:
            if e.reason != "ended":
                raise
            return
        try:
            yield frame
        finally:
            reader.give_back(frame)
