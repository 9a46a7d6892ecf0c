"""A client of a keeper, and its tickets."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from .. import arguments, log
from ..errors import ClosedError, Error, KeeperError, LostError, NotFoundError, TimedOutError, UsageError, enough_files
from ..memory.device import Device, device_name
from ..memory.drivers import device_uuid, driver_kind, place_of
from ..objects import NotCopied, called, shortened
from ..wire.conn import check_path, close_all, data_file, dial
from ..wire.peer import Policy, check_policy
from ..wire.records import MAX_FDS
from ..wire.sockets import default_socket
from .control import SUFFIX, TIMEOUT, Control, encode
from .types import Event, Info, Moved, Status, info_of, moved_of, number_of, sense, status_of, text_of


class Client(NotCopied):
    """A connection to a keeper. Its maker closes it, by ``with`` or close.

    It connects when it is first used. Threads may share it: their requests take turns. If a
    keeper ends before it answers a question, the client asks the next one, for timeout seconds.

    socket      the socket that readers attach at; None for that of GPUFD_SOCKET, or else that of
                the claim's directory, or the user's
    timeout     seconds for each request; None for no bound
    policy      whose keeper to trust
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = TIMEOUT, policy: Policy | None = None) -> None:
        self.socket = check_path(socket if socket is not None else default_socket())
        self.timeout = arguments.step(timeout)
        self._policy = Policy() if policy is None else policy
        check_policy(self._policy)
        self._turn = threading.RLock()
        self._conn: Control | None = None
        self._closed = False
        _all.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._conn is not None else "not connected"
        return f"<gpufd.Client {shortened(self.socket)!r}, {state}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. A second close does nothing.

        A booking that was not delivered is given up when its time is over or this process ends.
        """
        with self._turn:
            self._closed = True
            self._lose()

    def _lose(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def _connect(self, deadline: float) -> Control:
        if self._closed:
            raise ClosedError("the keeper's client was closed")
        if self._conn is None:
            try:
                conn, _ = dial(self.socket + SUFFIX, self._policy, max(1e-3, deadline - time.monotonic()))
            except LostError as e:
                if e.reason != "nobody-listens":
                    raise
                why = str(e).partition("nobody is listening there: ")[2].partition(";")[0] or str(e)
                raise LostError(f"there is no keeper at {self.socket}: {why}; start one with gpufd keeper --socket {self.socket}", reason="nobody-listens") from None
            self._conn = Control(conn.sock)
            log.debug("connected to the keeper at %s", self.socket)
        return self._conn

    def ask(self, message: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Send one request of docs/wire.md, "Keeper", and return the reply."""
        return self._ask(message, time.monotonic() + self.timeout, fds)

    @enough_files()
    def _ask(self, message: dict[str, Any], deadline: float, fds: Sequence[int] = ()) -> dict[str, Any]:
        with self._turn:
            if self._conn is None:
                encode(message)  # which raises for what cannot be sent, before anybody is asked
            conn = self._connect(deadline)
            try:
                return conn.ask(message, deadline, fds)
            except (KeeperError, NotFoundError, UsageError):
                raise
            except BaseException:  # an answer to this may still come there
                self._lose()
                raise

    def _query(self, message: dict[str, Any]) -> dict[str, Any]:
        """ask for what may be asked twice."""
        deadline, pause = time.monotonic() + self.timeout, 0.001
        while True:
            try:
                return self._ask(message, deadline)
            except LostError as e:
                if e.reason == "nobody-listens" or time.monotonic() + pause > deadline:
                    raise
                log.debug("the keeper was lost (%s): asking the next one %s again", e, message["op"])
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def status(self) -> Status:
        """Return the keeper's description of itself."""
        with sense("status"):
            return status_of(self._query({"op": "status"})["status"])

    def list(self) -> list[Info]:
        """Return all names that this user may see."""
        with sense("list"):
            return [info_of(v) for v in self._query({"op": "list"}).get("names") or ()]

    def stat(self, name: str) -> Info:
        """Return what is kept under a name. Raises NotFoundError if there is none."""
        with sense(f"word of {name}"):
            (v,) = self._query({"op": "stat", "name": arguments.name(name)})["names"]
            return info_of(v)

    def find(self, name: str) -> Info | None:
        """Return what is kept under a name, or None if there is no such name."""
        try:
            return self.stat(name)
        except NotFoundError as e:
            if e.reason == "not-found":
                return None
            raise

    def remove(self, name: str, version: int = 0) -> None:
        """Remove a name from the keeper. With a version, only if that is the current one.

        Readers keep what they have mapped. The memory is free when the last one has released it.
        """
        arguments.number("version", version)
        self.ask({"op": "remove", "name": arguments.name(name)} | ({"version": version} if version else {}))

    def drain(self, name: str, on: bool = True) -> None:
        """Serve a name to no new readers; with on false, serve it again."""
        self.ask({"op": "drain", "name": arguments.name(name), "on": arguments.flag("on", on)})

    def drain_device(self, device: Device, on: bool = True) -> None:
        """Do what drain does for all that is kept on a device: its UUID, or what else attach takes as a device."""
        if not isinstance(device, str) or not device.startswith("GPU-"):
            kind = driver_kind()
            device = device_name(device_uuid(kind, place_of(device, kind)))
        self.ask({"op": "drain", "device": device, "on": arguments.flag("on", on)})

    def park(self, name: str, version: int = 0) -> Moved:
        """Move a name to memory of the keeper's host, and free that of its devices.

        Name, version and digest stay the same. The keeper brings it back when a reader attaches, or
        for unpark. With a version, only if that is the current one. Raises KeeperError with the
        reason "conflict" while a process may have the memory mapped: its readers detach, or end,
        first. The keeper needs a pool (gpufd keeper --park-pool).
        """
        return self._move("park", name, version)

    def unpark(self, name: str, version: int = 0) -> Moved:
        """Move a name that is parked back to its devices."""
        return self._move("unpark", name, version)

    def _move(self, op: str, name: str, version: int) -> Moved:
        arguments.number("version", version)
        reply = self.ask({"op": op, "name": arguments.name(name)} | ({"version": version} if version else {}))
        with sense(f"answer to {op}"):
            return moved_of(reply["moved"])

    def report(self, name: str, version: int, part: int, verdict: str, reason: str) -> bool:
        """Tell the keeper that a part is damaged or quarantined: the verdict.

        Return whether the keeper acts on it. It does if this user may write or remove the name.
        """
        arguments.number("version", version)
        arguments.number("part", part)
        arguments.text("a verdict", verdict)
        reason = arguments.text("a reason", reason)[:1000]
        reply = self.ask({"op": "report", "name": arguments.name(name), "version": version, "part": part, "verdict": verdict, "reason": reason})
        return bool(reply.get("counted"))

    def watch(self, name: str = "") -> Iterator[Event]:
        """Iterate over what happens to a name, or to all names.

        The iterator has a connection of its own. Raises LostError when the keeper ends.
        """
        return self._watch(arguments.text("a name", name))

    def _watch(self, name: str) -> Iterator[Event]:
        with Client(self.socket, timeout=self.timeout, policy=self._policy) as other:
            deadline = time.monotonic() + self.timeout
            conn = other._connect(deadline)
            conn.send({"op": "watch", "name": name} if name else {"op": "watch"}, deadline)
            while True:
                reply = conn.receive(float("inf"))
                if isinstance(v := reply.get("event"), dict):
                    with sense("event"):
                        event = Event(text_of(v, "time"), text_of(v, "name"), text_of(v, "event"), number_of(v, "version"), text_of(v, "text"))
                    yield event

    def book(
        self, name: str, size: int, device: str, driver: str, *, part: int = 0, parts: int = 1, transaction: str = "",
        labels: Mapping[str, str] | None = None, expect: int | None = None, lifetime: float = 0.0,
    ) -> Booking:  # fmt: skip
        """Book room for a part, and return the Booking.

        device is a UUID, and driver "cuda" or "soft". If lifetime is not 0, the transaction is
        given up after so many seconds. gpufd.put does all of this. If the keeper is lost meanwhile,
        the next one is asked, for the client's timeout in all.
        """
        wanted = arguments.booking(name, part, parts, transaction, labels, expect, lifetime)
        arguments.number("size", size, 1)
        arguments.text("a device", device)
        arguments.text("a driver", driver)
        message: dict[str, Any] = {"op": "book", "name": name, "parts": parts, "device": device, "driver": driver, "bytes": size}
        more = {"part": part, "transaction": transaction, "labels": wanted, "timeout_ms": milliseconds(lifetime)}
        message |= {key: value for key, value in more.items() if value}
        if expect is not None:
            message["expect"] = expect
        knocks = Knocks(self)
        while True:
            try:
                with sense("ticket"):
                    return Booking(self, str(self.ask(message)["ticket"]), lifetime)
            except LostError as e:
                if e.reason == "nobody-listens":
                    raise
                knocks.meet_next(e)

    def _forked(self) -> None:
        """In a child after a fork: the connection is the parent's, and so may be the turn."""
        self._turn = threading.RLock()
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(OSError):
                conn.sock.close()


_all: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_all):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)


class Knocks:
    """The tries of one request to reach the keeper that comes after one that was lost. All of
    them together have the client's timeout: a keeper may hang up because of the request."""

    def __init__(self, client: Client) -> None:
        self._client, self._end, self._pause = client, 0.0, 0.005

    def meet_next(self, lost: LostError) -> None:
        """Wait for the next keeper."""
        log.debug("the keeper was lost (%s): waiting for the next one", lost)
        self._end = self._end or time.monotonic() + self._client.timeout
        while time.monotonic() < self._end:
            time.sleep(max(0.0, min(self._pause, self._end - time.monotonic())))
            self._pause = min(2 * self._pause, 1.0)
            with contextlib.suppress(LostError, TimedOutError):
                self._client._ask({"op": "status"}, self._end)
                return
        raise LostError(f"the keeper was lost, and none that answers has come within {self._client.timeout:g} s: {lost}") from lost


def milliseconds(lifetime: float) -> int:
    """A lifetime as a keeper is told it: 0 for what it allows."""
    return 0 if lifetime == arguments.FOR_EVER else int(lifetime * 1000)


class Booking(NotCopied):
    """A part that this process is to deliver. Its ticket survives the keeper."""

    def __init__(self, client: Client, ticket: str, lifetime: float) -> None:
        self.client, self.ticket, self.lifetime = client, ticket, lifetime
        self._came: tuple[int, int] | None = None  # what renew heard of a delivery
        self._may_have = False  # the keeper may have taken the part

    def __repr__(self) -> str:
        return f"<gpufd.Booking {called(self.ticket)}>"

    def prepare(self, fds: Sequence[int], table: bytes = b"") -> None:
        """Send the descriptors of all chunks, in their order, and the table for readers, JSON.

        The descriptors stay the caller's.
        """
        if table:
            fd = data_file(table)
            try:
                self.client.ask({"op": "table", "ticket": self.ticket}, [fd])
            finally:
                close_all([fd])
        for at in range(0, len(fds), MAX_FDS):
            self.client.ask({"op": "files", "ticket": self.ticket}, fds[at : at + MAX_FDS])

    def deliver(self, memory: Mapping[str, int], digest: str, fds: Sequence[int], table: bytes = b"", *, layout: str = "", prepared: bool = False) -> tuple[int, int]:
        """Deliver the part. Return the version and how many parts are missing.

        The version is 0 while parts are missing. memory has the members of docs/wire.md,
        "Keeper". layout is told to readers, or "". prepared says that prepare was called over this connection. If the keeper is
        lost meanwhile, the next one gets everything again, or says that the part has come.
        """
        message = {"op": "deliver", "ticket": self.ticket, "memory": dict(memory), "digest": digest} | ({"layout": layout} if layout else {})
        knocks = Knocks(self.client)
        while True:
            try:
                if not prepared:
                    self.prepare(fds, table)
                self._may_have = True
                return _outcome(self.client.ask(message))
            except (KeeperError, NotFoundError) as e:
                self._may_have = e.reason in ("unknown", "store-lost")
                raise
            except LostError as e:
                if e.reason == "nobody-listens":
                    raise
                prepared = False
                knocks.meet_next(e)
                self.renew()
                if self._came:
                    return self._came

    def renew(self) -> None:
        """Go on with the ticket over a new connection, or learn that its part has come."""
        reply = self.client.ask({"op": "renew", "ticket": self.ticket, "timeout_ms": milliseconds(self.lifetime)})
        if reply.get("delivered"):
            self._came = _outcome(reply)

    def cancel(self) -> bool:
        """Give up the booking. Return whether it is sure that the keeper does not take the part.

        It raises nothing: if this fails, the keeper gives it up when this process ends or the
        ticket's time is over.
        """
        with contextlib.suppress(Error, OSError):
            try:
                self.client.ask({"op": "cancel", "ticket": self.ticket})
            except (KeeperError, NotFoundError):
                self.renew()  # it was booked over an earlier connection
                if self._came:
                    return False
                self.client.ask({"op": "cancel", "ticket": self.ticket})
            return True
        return not self._may_have


def _outcome(reply: Mapping[str, Any]) -> tuple[int, int]:
    """The version and how many parts are missing, of the reply to a delivery."""
    with sense("answer to a delivery"):
        return number_of(reply, "version"), number_of(reply, "missing")
