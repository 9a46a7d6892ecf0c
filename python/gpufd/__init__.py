"""Share GPU memory between Linux processes, without a copy.

    with gpufd.attach(path, "weights") as att:          # memory of another process, read-only
        tensor = torch.from_dlpack(att.view("BF16", (4096, 4096)))

Take memory         attach, attach_parts, follow, list
Offer memory        allocate, offer, Server
Use a keeper        get, put, Client, and gpufd.torch for models
Pass frames         gpufd.channel
Take turns          counter

All errors are gpufd.Error. docs/python.md in gpufd's sources says more, and docs/wire.md says
what goes over the socket.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.dev0"

if TYPE_CHECKING:  # what _PLACES says, for type checkers
    from ._array import DTYPES, Array, DType
    from ._attach import Parts, attach, attach_parts
    from ._attachment import Attachment
    from ._counter import Counter, IPCEvent, counter
    from ._errors import (
        AccessError,
        BusyError,
        ClosedError,
        CutOffError,
        DeniedError,
        DescriptorError,
        DeviceError,
        DriverError,
        DriverUnavailableError,
        Error,
        ExportError,
        FenceError,
        ForkedError,
        GivenUpError,
        HandleError,
        InUseError,
        KindError,
        LabelError,
        LeaseEndedError,
        LeftError,
        LostError,
        NameTakenError,
        NoConsumerError,
        NoFenceError,
        NoProducerError,
        NoVerdictError,
        NotAdmittedError,
        NotFoundError,
        NotImportedError,
        NotUnderstoodError,
        OtherMemoryError,
        PartsError,
        ProtocolError,
        RateError,
        ReadOnlyError,
        RefusedError,
        RefusedRateError,
        RestartingError,
        RevokedError,
        StaleError,
        StillOpenError,
        SupersededError,
        TimedOutError,
        TooLargeError,
        TooLateError,
        TooManyFilesError,
        UnavailableError,
        UnsupportedError,
        UsageError,
        VerdictError,
        VersionError,
        WireError,
        WithdrawnError,
    )
    from ._fence import FENCED, RELEASED
    from ._follow import follow, list_offers
    from ._kept import Kept
    from ._lease import Event, Lease
    from ._memory import Memory, allocate
    from ._offer import offer
    from ._offering import Cursors, Offering
    from ._peer import Peer, Policy
    from ._server import Server
    from ._wire import CUDA, READ_ONLY, READ_WRITE, SOFT, Listing, Offer

    # What a keeper keeps.
    from ._control import KeeperError
    from ._deposit import Delivered
    from ._get import Attached, Version, get
    from ._put import put
    from ._tables import FormatError
    from .keeper import Client
    from . import broadcast as broadcast
    from . import channel as channel
    from . import keeper as keeper
    from . import torch as torch

    list = list_offers
else:
    # Where the names are: a module is imported when the first of its names is used, because who
    # loads a model should not wait for what offers, keeps and counts.
    _PLACES = {
        "_array": "DTYPES Array DType",
        "_attach": "Parts attach attach_parts",
        "_attachment": "Attachment",
        "_counter": "Counter IPCEvent counter",
        "_errors": (
            "AccessError BusyError ClosedError CutOffError DeniedError DescriptorError DeviceError DriverError DriverUnavailableError Error "
            "ExportError FenceError ForkedError GivenUpError HandleError InUseError KindError LabelError LeaseEndedError LeftError LostError NameTakenError "
            "NoConsumerError NoFenceError NoProducerError NoVerdictError NotAdmittedError NotFoundError NotImportedError NotUnderstoodError "
            "OtherMemoryError PartsError ProtocolError RateError ReadOnlyError RefusedError RefusedRateError RestartingError RevokedError StaleError StillOpenError "
            "SupersededError TimedOutError TooLargeError TooLateError TooManyFilesError UnavailableError UnsupportedError UsageError VerdictError VersionError "
            "WireError WithdrawnError"
        ),
        "_fence": "FENCED RELEASED",
        "_follow": "follow list_offers",
        "_kept": "Kept",
        "_lease": "Event Lease",
        "_memory": "Memory allocate",
        "_offer": "offer",
        "_offering": "Cursors Offering",
        "_peer": "Peer Policy",
        "_server": "Server",
        "_wire": "CUDA READ_ONLY READ_WRITE SOFT Listing Offer",
        "_control": "KeeperError",
        "_deposit": "Delivered",
        "_get": "Attached Version get",
        "_put": "put",
        "_tables": "FormatError",
        "keeper": "Client",
    }
    _FROM = {name: (module, name) for module, names in _PLACES.items() for name in names.split()}
    _FROM["list"] = ("_follow", "list_offers")  # as gpufd.list(path), the name that Go has
    _MODULES = ("broadcast", "channel", "keeper", "torch")  # the last and the first want PyTorch

    def __getattr__(name):
        if name in _MODULES:
            try:
                return importlib.import_module("." + name, __name__)
            except ModuleNotFoundError as e:
                if e.name != "torch":
                    raise
                raise AttributeError(f"gpufd.{name} wants PyTorch, which cannot be imported: {e}") from e
        if name not in _FROM:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, there = _FROM[name]
        value = globals()[name] = getattr(importlib.import_module("." + module, __name__), there)
        return value

    def __dir__():
        return sorted({*globals(), *_FROM, *_MODULES})

__all__ = [
    "AccessError",
    "Array",
    "Attachment",
    "BusyError",
    "CUDA",
    "ClosedError",
    "Counter",
    "Cursors",
    "CutOffError",
    "DTYPES",
    "DType",
    "DeniedError",
    "DescriptorError",
    "DeviceError",
    "DriverError",
    "DriverUnavailableError",
    "Error",
    "Event",
    "ExportError",
    "FENCED",
    "FenceError",
    "ForkedError",
    "GivenUpError",
    "HandleError",
    "IPCEvent",
    "InUseError",
    "Kept",
    "KindError",
    "LabelError",
    "LeaseEndedError",
    "Lease",
    "LeftError",
    "Listing",
    "LostError",
    "Memory",
    "NameTakenError",
    "NoConsumerError",
    "NoFenceError",
    "NoProducerError",
    "NoVerdictError",
    "NotAdmittedError",
    "NotFoundError",
    "NotImportedError",
    "NotUnderstoodError",
    "Offer",
    "Offering",
    "OtherMemoryError",
    "PartsError",
    "Parts",
    "Peer",
    "Policy",
    "ProtocolError",
    "READ_ONLY",
    "READ_WRITE",
    "RELEASED",
    "RateError",
    "ReadOnlyError",
    "RefusedError",
    "RefusedRateError",
    "RestartingError",
    "RevokedError",
    "SOFT",
    "Server",
    "StaleError",
    "StillOpenError",
    "SupersededError",
    "TimedOutError",
    "TooLargeError",
    "TooLateError",
    "TooManyFilesError",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "VerdictError",
    "VersionError",
    "WireError",
    "WithdrawnError",
    "allocate",
    "attach",
    "attach_parts",
    "counter",
    "follow",
    "list_offers",
    "offer",
]
__all__ += ["Attached", "Client", "Delivered", "FormatError", "KeeperError", "Version", "get", "put"]
