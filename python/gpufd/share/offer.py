"""One offer with a server of its own: :func:`offer`."""

from __future__ import annotations

import os
from collections.abc import Callable

from .. import arguments
from ..memory.base import Memory
from ..wire import records as wire
from ..wire.conn import DEFAULT_TIMEOUT
from ..wire.peer import Peer, Policy
from ..wire.records import READ_ONLY, check_name
from ..wire.sockets import make_offer_socket
from .lease import Event, Lease
from .offering import Cursors, Offering
from .server import Server


class _Offered:
    """An offer with a server of its own, for ``with``, which gives the Offering."""

    def __init__(self, server: Server, offering: Offering) -> None:
        self.server, self.offering = server, offering

    def __repr__(self) -> str:
        return f"<gpufd.offer of {self.offering!r}>"

    def __enter__(self) -> Offering:
        return self.offering

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the offer and its server."""
        try:
            self.offering.close()
        finally:
            self.server.close()


def offer(
    name: str,
    memory: Memory,
    access: int = READ_ONLY,
    *,
    socket: str | os.PathLike[str] | None = None,
    policy: Policy = Policy(),
    timeout: float | None = DEFAULT_TIMEOUT,
    mode: int = 0o600,
    authorize: Callable[[Peer, wire.Offer], None] | None = None,
    data: bytes = b"",
    verdict: bool = False,
    leases: int = 0,
    fence: int | None = None,
    pending: bool = False,
    synchronized: bool = False,
    cursors: Cursors | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_lease: Callable[[Lease], None] | None = None,
) -> _Offered:
    """Offer memory under a name, at once. The end of ``with``, or close, ends that.

        with gpufd.offer("weights", memory) as offering:
            offering.wait()

    socket is where to listen; by default attach finds it by the name. The options are those of Server and
    of Server.offer.
    """
    check_name(arguments.text("a name", name))
    server = Server(make_offer_socket(name) if socket is None else socket, policy=policy, timeout=timeout, mode=mode, authorize=authorize)
    try:
        offering = server.offer(
            name, memory, access, data=data, verdict=verdict, leases=leases, fence=fence, pending=pending, synchronized=synchronized,
            cursors=cursors, on_event=on_event, on_lease=on_lease,
        )  # fmt: skip
        return _Offered(server, offering)
    except BaseException:
        server.close()
        raise
