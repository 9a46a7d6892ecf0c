"""Say what there is here: python -m gpufd"""

from __future__ import annotations

import sys

from . import Client, Error, __version__
from .memory import libcuda
from .memory.device import device_name
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
    print(f"offers and channels: {directory()}/offers")
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
