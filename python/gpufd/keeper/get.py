"""gpufd.get: attach to what a keeper keeps, verify it, write it to files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from .. import arguments
from ..errors import DriverError, Error, KeeperError, MismatchError, NotFoundError, RefusedError, enough_files, keeper_error
from ..memory.base import Memory
from ..memory.device import Device
from ..objects import NoArray
from ..share.attach import Parts, attach, attach_parts
from ..share.attachment import Attachment
from ..share.kept import Kept, kept_of
from ..wire.records import READ_ONLY
from .control import TIMEOUT, HasSocket, path_of
from .tables import ALIGN, Table, header_of, naming, parse_table

if TYPE_CHECKING:
    from .client import Client


PIECE = 16 << 20  # bytes that are copied to the host at a time


class Attached(NoArray):
    """A part of a version that is mapped here.

    It is closed with its Version, by close, or when nothing refers to it or to its arrays.
    """

    _array_of = "attachment.view(dtype, shape, offset), or gpufd.torch.tensors,"

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.data: Kept = attachment.kept

    @property
    def memory(self) -> Memory:
        return self.attachment.memory

    @cached_property
    def table(self) -> Table:
        """The writer's table of what the part holds. Raises FormatError if that makes no sense."""
        d = self.data
        with naming(f"{d.name}, version {d.version}, part {d.part}"):
            return parse_table(d.table, self.attachment.size)

    def digest(self) -> str:
        """Compute the digest of the part's bytes, on their device."""
        from .deposit import memory_digest

        return memory_digest(self.memory, self.attachment.size)

    @enough_files()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the part to a file, which appears when it is whole.

        Tensors are written as safetensors, without those that the format cannot express. All
        else is written as bytes. A link of this user stays; one of another user's is an Error.
        """
        from .output import replacing

        with replacing(path) as f:
            self._write(f)

    def _write(self, f: BinaryIO) -> None:
        ranges = [(0, self.attachment.size)]
        if self.table.format == "safetensors":
            header, tensors = header_of(self.table.tensors, self.table.metadata)
            f.write(header)
            ranges = [(t.offset, t.bytes) for t in tensors]
        for begin, end, some in _together(ranges):
            for at in range(begin, end, PIECE):
                piece = memoryview(self.memory.read(at, min(PIECE, end - at)))
                f.writelines(piece[max(a - at, 0) : b - at] for a, b in some if a < at + PIECE and b > at)

    def close(self, force: bool = False) -> None:
        """Close the attachment: Attachment.close."""
        self.attachment.close(force)


def _together(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Ranges that are read at once, as begin, end and the (begin, end) of each: small ones that
    follow each other with few bytes between."""
    some: list[tuple[int, int]] = []
    for at, size in ranges:
        if some and (not 0 <= at - some[-1][1] <= ALIGN or at + size - some[0][0] > PIECE):
            yield some[0][0], some[-1][1], some
            some = []
        some.append((at, at + size))
    if some:
        yield some[0][0], some[-1][1], some


class Version:
    """Parts of one version of a name, mapped here. The end of ``with`` closes them.

    parts       those that were asked for, in their order
    name, version, labels
                what the keeper says
    """

    def __init__(self, client_of: str, timeout: float | None, parts: Parts) -> None:
        self._socket, self._timeout = client_of, timeout
        self.parts = [Attached(att) for att in parts]
        first = self.parts[0].data
        self.name, self.version, self.labels = first.name, first.version, first.labels

    def __enter__(self) -> Version:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        parts, self.parts = self.parts, []
        with contextlib.ExitStack() as stack:
            for part in parts:  # which a traceback may keep alive
                stack.callback(part.attachment.__exit__, kind, error, trace)

    def __iter__(self) -> Iterator[Attached]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, i: int) -> Attached:
        return self.parts[i]

    def detach(self) -> list[Attached]:
        """Return the parts. The caller owns them from here on."""
        parts, self.parts = self.parts, []
        return parts

    def close(self, force: bool = False) -> None:
        """Close the attachments to the parts: Attachment.close."""
        while self.parts:
            self.parts[-1].close(force)
            self.parts.pop()

    def verify(self) -> None:
        """Compute the digests of the parts, and compare them with what the writer said.

        If one is different, tell the keeper and raise KeeperError, code damaged. The keeper stops
        serving the part if this user may write or remove the name.
        """
        damaged = []
        for part in self.parts:
            d, got = part.data, part.digest()
            if got != d.digest:
                why = f"its digest is {got}, and was {d.digest}"
                damaged.append(f"{d.name}, version {d.version}, part {d.part} is damaged: {why}; {self._report(d, why)}")
        if damaged:
            raise KeeperError("damaged", "; ".join(damaged))

    def _report(self, d: Kept, why: str) -> str:
        from .client import Client

        try:
            with Client(self._socket, timeout=self._timeout) as client:
                counted = client.report(d.name, d.version, d.part, "damaged", why)
        except (Error, OSError) as e:
            return f"telling the keeper: {e}"
        return "the keeper serves it no more" if counted else "the keeper was told, and does not go by the word of this user"

    def save(self, directory: str | os.PathLike[str]) -> list[str]:
        """Write all parts to a directory, and return their paths.

        The files are part-0, part-1…, of tensors part-0.safetensors, part-1.safetensors…
        """
        from .output import output_path

        os.makedirs(output_path(directory), exist_ok=True)
        paths = []
        for part in self.parts:
            suffix = ".safetensors" if part.table.format == "safetensors" else ""
            paths.append(os.path.join(directory, f"part-{part.data.part}{suffix}"))
            part.save(paths[-1])
        return paths


def get(
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, part: int | None = None, labels: Mapping[str, str] | None = None,
    access: int = READ_ONLY, device: Device | None = None, driver: str | int | None = None, timeout: float | None = TIMEOUT,
) -> Version:  # fmt: skip
    """Attach to the current version of what a keeper keeps under a name.

    The caller closes the Version, best by ``with``. All its parts are of one version, even if
    another one is committed meanwhile.

    socket      the keeper's socket, or a Client; None for the default one
    part        attach to that part alone
    labels      labels that the version must have, or LabelError
    access, device, driver, timeout
                as of attach

    Raises KeeperError, whose code says whether the name is not there, drained or damaged, and
    what attach raises.
    """
    path = path_of(socket)
    arguments.name(name)
    try:
        if part is None:
            parts = attach_parts(name, socket=path, labels=labels, access=access, device=device, driver=driver, timeout=timeout)
        else:
            parts = Parts([attach(name, socket=path, part=part, labels=labels, access=access, device=device, driver=driver, timeout=timeout)])
    except RefusedError as e:
        raise _explained(path, name, part, timeout, e) from e
    except (DriverError, MismatchError) as e:
        if e._offer is None:
            raise
        from .client import Client

        with contextlib.suppress(Error, OSError), Client(path, timeout=timeout) as client:
            kept = kept_of(e._offer)
            client.report(kept.name, kept.version, kept.part, "quarantined", str(e))
        raise
    try:
        return Version(path, timeout, parts)
    except BaseException:
        parts.close()
        raise


def _explained(path: str, name: str, part: int | None, timeout: float | None, refused: RefusedError) -> Error:
    """Why a reader was turned away, where that is the state of the name."""
    from .client import Client

    try:
        with Client(path, timeout=timeout) as client:
            info = client.stat(name)
    except (KeeperError, NotFoundError) as e:
        return e
    except (Error, OSError):
        return refused
    if info.version == 0:
        return keeper_error("not-found", f"{name} has no version yet")
    if part is not None and part >= len(info.parts):
        return keeper_error("not-found", f"{name} has no part {part}: it has {len(info.parts)}")
    for p in info.parts:
        if part in (None, p.part) and p.state != "ok":
            return KeeperError(p.state, f"part {p.part} of version {info.version} of {name} is {p.state} ({p.reason}), and not served")
    if info.state != "ok":
        return KeeperError(info.state, f"{name}, version {info.version}, is {info.state}, and not served")
    return refused
