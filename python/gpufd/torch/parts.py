"""Versions of a part for each device, that one process puts or loads: all parts, or none."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import arguments
from ..keeper.get import get
from ..memory.device import Device
from ..progress import Progress, check_progress
from ..wire.records import READ_ONLY
from .guard import watch
from .weights import Loaded, client_of, filled, taken

if TYPE_CHECKING:
    from ..keeper.client import Client
    from ..keeper.deposit import Delivered


def put_parts(
    name: str, states: Sequence[Mapping[str, Any]], devices: Sequence[Device | None], *, socket: str | os.PathLike[str] | Client | None,
    labels: Mapping[str, str] | None, expect_version: int | None, driver: str | int | None, chunk: int, metadata: Mapping[str, str] | None,
    timeout: float | None, progress: Progress,
) -> Delivered:  # fmt: skip
    """Put tensors as the parts of one version, each on its device, with the same metadata. The arguments are those of put.

    The keeper gets the first part when all of them have moved and are digested. So a device without room changes nothing for
    readers, and all tensors can be written then. If the keeper refuses a later part, those before it stay read-only. What is
    returned has the bytes of all parts, and the digest of the last.
    """
    check_progress(progress)
    transaction = "put-" + uuid.uuid4().hex  # one of this process alone: the keeper gives up what has come with the rest
    with client_of(socket, timeout) as client, contextlib.ExitStack() as stack:
        deliver = [
            stack.enter_context(filled(
                client, name, state, device, driver, metadata, progress, chunk=chunk, labels=labels, part=i, parts=len(states),
                transaction=transaction, expect=expect_version,
            ))
            for i, (state, device) in enumerate(zip(states, devices))
        ]  # fmt: skip
        done = [give() for give in deliver]
    return replace(done[-1], bytes=sum(d.bytes for d in done))


def load_parts(
    name: str, *, socket: str | os.PathLike[str] | Client | None, labels: Mapping[str, str] | None, timeout: float | None, driver: str | int | None,
    device: Device | None, progress: Progress, debug: bool,
) -> tuple[Loaded, list[int]]:  # fmt: skip
    """Return the tensors of all parts of a version, as load returns those of one, and the ordinal of each part's device."""
    check_progress(progress)
    watch(arguments.flag("debug", debug))
    with get(name, socket=socket, labels=labels, timeout=timeout, driver=driver, device=device, access=READ_ONLY) as version:
        ordinals = [part.memory.ordinal for part in version.parts]
        return taken(version, progress), ordinals
