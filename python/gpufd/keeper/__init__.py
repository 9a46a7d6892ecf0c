"""Talk to a keeper: a process whose GPU memory outlives the processes that filled it.

gpufd.put has a keeper keep files, bytes or arrays. gpufd.get attaches to what it keeps. A Client
does all else. gpufd.torch is for PyTorch's models. See docs/keeper.md in gpufd's sources.
"""

from typing import TYPE_CHECKING

from ..errors import KeeperError
from ..lazy import lazy
from ..wire.sockets import default_socket

if TYPE_CHECKING:
    from .client import Booking, Client
    from .types import Event, Holder, Info, Moved, PartInfo, Pool, Status
else:
    __getattr__, __dir__, _MODULE_OF = lazy(
        __name__,
        {"client": "Booking Client", "types": "Event Holder Info Moved PartInfo Pool Status"},
    )

__all__ = ["Booking", "Client", "Event", "Holder", "Info", "KeeperError", "Moved", "PartInfo", "Pool", "Status", "default_socket"]
