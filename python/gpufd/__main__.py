"""Say what there is here: python -m gpufd"""

from __future__ import annotations

import os
import sys

from . import Client, __version__
from .errors import Error
from .memory import libcuda
from .memory.device import device_name
from .memory.drivers import driver_kind
from .wire.records import CUDA
from .wire.sockets import default_socket, directory


def main() -> int:
    """Print version, driver, devices, default sockets, and what the keeper keeps."""
    print(f"gpufd {__version__}, Python {sys.version.split()[0]}")
    try:
        lib = libcuda.load()
        for ordinal, uuid in enumerate(lib.uuids()):
            print(f"device {ordinal}: {lib.device_name(lib.device(ordinal))}, {device_name(uuid)}")
    except Error as e:
        print(f"no GPU: {e}")
    print(f"driver: {'cuda' if driver_kind() == CUDA else 'soft'}")
    offers = f"{directory()}/offers"
    names = sorted(n.removesuffix(".sock") for n in os.listdir(offers) if n.endswith(".sock")) if os.path.isdir(offers) else []
    print(f"offers and channels: {offers}: {', '.join(names) or 'none'}")
    print(f"keeper: {default_socket()}")
    try:
        with Client(timeout=2) as client:
            for info in client.list():
                labels = "".join(f" {k}={v}" for k, v in sorted(info.labels.items()))
                print(f"  {info.name}: version {info.version}, {info.bytes} bytes, {info.state}{labels}")
    except Error as e:
        print(f"  {e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
