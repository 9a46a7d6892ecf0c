"""Share GPU memory between Linux processes, without a copy.

    with gpufd.attach("weights") as att:                # memory of another process, read-only
        tensor = torch.from_dlpack(att.view("BF16", (4096, 4096)))

Use a keeper        get, put, Client; gpufd.torch, gpufd.transformers for models: load, put, follow, Model; gpufd.vllm
Take memory         attach, attach_parts, follow, list; reserve for an address that stays
Offer memory        allocate, offer, Server
Pass frames         gpufd.channel: Writer, Reader, follow, Format; gpufd.gst for GStreamer
Pass weights        gpufd.weights: Publisher, Subscriber
Take turns, wait    counter; gpufd.aio in asyncio

The name comes first; socket= says where, if it is not the default. help(gpufd.attach) explains a name. All errors
are gpufd.Error, with a reason: NotFoundError, LostError, MismatchError… docs/python.md in gpufd's sources says more.
"""

from typing import TYPE_CHECKING

from .lazy import lazy

__version__ = "0.1.dev0"

if TYPE_CHECKING:  # the same names as below
    from .memory.array import DTYPES, Array, DType
    from .share.attach import Parts, attach, attach_parts
    from .share.attachment import Attachment
    from .share.counter import Counter, IPCEvent, counter
    from .errors import (
        ChannelError,
        ClosedError,
        DriverError,
        Error,
        ExportError,
        FenceError,
        FormatError,
        InUseError,
        KeeperError,
        LeaseEndedError,
        LostError,
        MismatchError,
        NotFoundError,
        ReadOnlyError,
        RefusedError,
        TimedOutError,
        UnavailableError,
        UsageError,
        VerdictError,
        WeightsError,
        WireError,
    )
    from .share.fence import FENCED, RELEASED
    from .share.follow import follow, list_offers
    from .share.kept import Kept
    from .share.lease import Event, Lease
    from .memory.base import Memory
    from .memory.drivers import allocate, reserve
    from .memory.reservation import Reservation
    from .share.offer import offer
    from .share.offering import Cursors, Offering
    from .wire.peer import Peer, Policy
    from .share.server import Server
    from .wire.records import CUDA, READ_ONLY, READ_WRITE, SOFT, Listing, Offer

    # Kept by a keeper.
    from .keeper.deposit import Delivered
    from .keeper.get import get
    from .keeper.version import Arrays, Attached, Version
    from .keeper.put import put
    from .keeper.client import Client
    from . import aio as aio
    from . import broadcast as broadcast
    from . import channel as channel
    from . import keeper as keeper
    from . import torch as torch
    from . import transformers as transformers
    from . import weights as weights

    list = list_offers
else:
    # The names by module: loading a model should not wait for the code that offers and counts.
    _lazy, __dir__, _MODULE_OF = lazy(__name__, {
        "memory.array": "DTYPES Array DType",
        "share.attach": "Parts attach attach_parts",
        "share.attachment": "Attachment",
        "share.counter": "Counter IPCEvent counter",
        "share.fence": "FENCED RELEASED",
        "share.follow": "follow list_offers",
        "share.kept": "Kept",
        "share.lease": "Event Lease",
        "memory.base": "Memory",
        "share.offer": "offer",
        "share.offering": "Cursors Offering",
        "wire.peer": "Peer Policy",
        "share.server": "Server",
        "wire.records": "CUDA READ_ONLY READ_WRITE SOFT Listing Offer",
        "keeper.deposit": "Delivered",
        "keeper.get": "get",
        "keeper.version": "Arrays Attached Version",
        "keeper.put": "put",
        "keeper.client": "Client",
        "errors": (
            "ChannelError ClosedError DriverError Error ExportError FenceError FormatError InUseError KeeperError LeaseEndedError "
            "LostError MismatchError NotFoundError ReadOnlyError RefusedError TimedOutError UnavailableError UsageError VerdictError WeightsError WireError"
        ),
        "memory.drivers": "allocate reserve",
        "memory.reservation": "Reservation",
        "aio": "",
        "broadcast": "",
        "channel": "",
        "keeper": "",
        "torch": "",
        "transformers": "",
        "weights": "",
    })  # fmt: skip

    def __getattr__(name):
        if name == "list":  # the name that Go has
            return _lazy("list_offers")
        try:
            return _lazy(name)
        except ModuleNotFoundError as e:
            wanted = {"torch": "PyTorch", "transformers": "transformers"}.get(e.name)
            if not wanted or name not in ("broadcast", "torch", "transformers"):
                raise
            raise AttributeError(f"gpufd.{name} wants {wanted}, which cannot be imported: {e}") from e


__all__ = [
    "Array",
    "Arrays",
    "Attached",
    "Attachment",
    "CUDA",
    "ChannelError",
    "Client",
    "ClosedError",
    "Counter",
    "Cursors",
    "DTYPES",
    "DType",
    "Delivered",
    "DriverError",
    "Error",
    "Event",
    "ExportError",
    "FENCED",
    "FenceError",
    "FormatError",
    "IPCEvent",
    "InUseError",
    "KeeperError",
    "Kept",
    "Lease",
    "LeaseEndedError",
    "Listing",
    "LostError",
    "Memory",
    "MismatchError",
    "NotFoundError",
    "Offer",
    "Offering",
    "Parts",
    "Peer",
    "Policy",
    "READ_ONLY",
    "READ_WRITE",
    "RELEASED",
    "ReadOnlyError",
    "RefusedError",
    "Reservation",
    "SOFT",
    "Server",
    "TimedOutError",
    "UnavailableError",
    "UsageError",
    "VerdictError",
    "Version",
    "WeightsError",
    "WireError",
    "allocate",
    "attach",
    "attach_parts",
    "counter",
    "follow",
    "get",
    "list_offers",
    "offer",
    "put",
    "reserve",
]
