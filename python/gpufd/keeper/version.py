"""A version of what a keeper keeps, mapped here: its parts, and what they hold, by name."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO, overload

from .. import arguments
from ..errors import (
    ClosedError, Error, FormatError, KeeperError, MismatchError, NotFoundError, RefusedError, TimedOutError, UnavailableError, UsageError, enough_files,
)  # fmt: skip
from ..memory.array import Array
from ..memory.base import Memory
from ..objects import NoArray, called, human
from ..progress import Progress, reporting
from ..share.attach import Parts
from ..share.attachment import Attachment
from ..share.kept import Kept, kept_of
from ..wire.records import Offer, access_name
from .tables import ALIGN, Table, Tensor, check_layout, header_of, quote, table_of

PIECE = 16 << 20  # bytes that are copied to the host at a time


class Arrays(dict[str, Array]):
    """Arrays by name, in the order in which they were put.

    lacking     by name, why there is no Array of a tensor: one of a type that Array does not have. Such
                a tensor is not among the others, and raises UnavailableError when it is asked for.
    """

    def __init__(self, made: Mapping[str, Array], lacking: Mapping[str, str]) -> None:
        super().__init__(made)
        self.lacking = dict(lacking)

    def __missing__(self, name: str) -> Array:
        if name in self.lacking:
            raise UnavailableError(self.lacking[name])
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the array of that name, or the default if there is none."""
        return self[name] if name in self.lacking else super().get(name, default)

    def __repr__(self) -> str:
        return f"<gpufd.Arrays: {len(self)} of {len(self) + len(self.lacking)} tensors, {human(sum(a.nbytes for a in self.values()))}>"


class Attached(NoArray):
    """A part of a version that is mapped here. ``part["w"]`` is the Array of a tensor in it.

    It is closed with its Version, by close, or when nothing refers to it or to its arrays.
    """

    _array_of = "part[name], attachment.view(dtype, shape, offset), or gpufd.torch.tensors,"

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self._described = attachment.generation, attachment.kept
        self._table: Table | None = None
        self._tensors: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        d, a = self.data, self.attachment
        return f"<gpufd.Attached {called(d.name)} version {d.version}, part {d.part} of {d.parts}, {human(a.size)}, {_state(a)}>"

    @property
    def memory(self) -> Memory:
        return self.attachment.memory

    @property
    def data(self) -> Kept:
        """The keeper's description of the part: another one after reattach(newest=True)."""
        generation = self.attachment.generation
        if generation != self._described[0]:
            self._described = generation, self.attachment.kept
            self._table = self._tensors = None
        return self._described[1]

    @property
    def table(self) -> Table:
        """The writer's table of what the part holds. Raises FormatError if that makes no sense."""
        data = self.data  # which forgets the table of a version that was there before
        if self._table is None:
            self._table = table_of(data, self.attachment.size)
        return self._table

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that its writer put beside the data."""
        return dict(self.table.metadata)

    # By name.

    @property
    def _by_name(self) -> dict[str, Tensor]:
        table = self.table  # which is another one after reattach
        if self._tensors is None:
            self._tensors = {t.name: t for t in table.in_order()}
        return self._tensors

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tensors."""
        return iter(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Array:
        try:
            tensor = self._by_name[name]
        except KeyError:
            raise _no_tensor(name, [self]) from None
        return self._array(tensor)

    def _array(self, t: Tensor) -> Array:
        try:
            return Array(self.memory, t.dtype, t.shape, t.offset, owner=self.attachment, strides=t.stride)
        except UsageError as e:
            raise UnavailableError(f"tensor {quote(t.name)} of {t.dtype} cannot be an Array: {e}; attachment.view() has its bytes, from {t.offset} on") from None

    def arrays(self) -> Arrays:
        """Return an Array of each tensor, without a copy. Raises FormatError if the part holds none."""
        return _arrays_of([self])

    def tensors(self) -> dict[str, Any]:
        """Return PyTorch's tensors, without a copy: gpufd.torch.tensors."""
        return _tensors_of(self)

    # All of it.

    def digest(self, *, progress: Progress = None) -> str:
        """Compute the digest of the part's bytes, on their device."""
        with reporting(progress, self.attachment.size, f"digest of {self.data.name}") as add:
            return self._digest(add)

    def _digest(self, add: Callable[[int], object]) -> str:
        from .deposit import memory_digest

        return memory_digest(self.memory, self.attachment.size, add)

    def save(self, path: str | os.PathLike[str], *, progress: Progress = None) -> None:
        """Write the part to a file, which appears when it is whole.

        Tensors are written as safetensors, without those that the format cannot express. All
        else is written as bytes. A link of this user stays; one of another user's is an Error.
        """
        with reporting(progress, self._bytes(), f"save {self.data.name}") as add:
            self._save(path, add)

    @enough_files()
    def _save(self, path: str | os.PathLike[str], add: Callable[[int], object]) -> None:
        from .output import replacing

        with replacing(path) as f:
            self._write(f, add)

    def _bytes(self) -> int:
        """The bytes that save copies."""
        if self.table.format == "safetensors":
            return sum(t.bytes for t in self.table.tensors)
        return self.attachment.size

    def _write(self, f: BinaryIO, add: Callable[[int], object] = lambda n: None) -> None:
        ranges = [(0, self.attachment.size)]
        if self.table.format == "safetensors":
            header, tensors = header_of(self.table.tensors, self.table.metadata)
            f.write(header)
            ranges = [(t.offset, t.bytes) for t in tensors]
        for begin, end, some in _together(ranges):
            for at in range(begin, end, PIECE):
                piece = memoryview(self.memory.read(at, min(PIECE, end - at)))
                f.writelines(piece[max(a - at, 0) : b - at] for a, b in some if a < at + PIECE and b > at)
                add(len(piece))

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


def _state(a: Attachment) -> str:
    return "closed" if a.memory.closed else "detached" if a.detached else access_name(a.access)


# Tensors by name, of several parts.


def _no_tensor(name: object, parts: Sequence[Attached]) -> KeyError:
    d = parts[0].data
    return KeyError(f"there is no tensor {quote(name)} in {d.name}, version {d.version}")


def _arrays_of(parts: Sequence[Attached]) -> Arrays:
    """The arrays of parts whose tensors have different names."""
    need_apart(parts)
    made: dict[str, Array] = {}
    lacking: dict[str, str] = {}
    for part in parts:
        for t in part.table.in_order():
            try:
                made[t.name] = part._array(t)
            except UnavailableError as e:
                lacking[t.name] = str(e)
    return Arrays(made, lacking)


def need_apart(parts: Sequence[Attached]) -> None:
    """Raise FormatError unless parts have tensors, each name in one part alone."""
    d = parts[0].data
    if all(part.table.format != "safetensors" for part in parts):
        raise FormatError(f"{d.name}, version {d.version}, holds no tensors but bytes: attachment.view() of a part has them")
    seen: dict[str, Attached] = {}
    for part in parts:
        for name in part:
            if seen.setdefault(name, part) is not part:
                raise _ambiguous(name, [seen[name], part])


def _ambiguous(name: str, parts: Iterable[Attached]) -> FormatError:
    numbers = [part.data.part for part in parts]
    return FormatError(
        f"tensor {quote(name)} is in parts {' and '.join(map(str, numbers[:8]))}: ask one of them, such as version[{numbers[0]}][{quote(name)}]"
    )


def _tensors_of(source: Attached | Version) -> dict[str, Any]:
    """gpufd.torch.tensors. That package is above this one, so it is looked up by name when it is called."""
    try:
        there = importlib.import_module("gpufd.torch")
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        raise UnavailableError(f"tensors() wants PyTorch, which cannot be imported: {e}; arrays() does not") from e
    made: dict[str, Any] = there.tensors(source)
    return made


@contextlib.contextmanager
def _undone(attachments: Sequence[Attachment], undo: Callable[[Attachment], object], otherwise: str) -> Iterator[None]:
    """Undo what was done to attachments if the block fails. Where that fails, too, the error says so."""
    try:
        yield
    except Error as e:
        failed = []
        for att in attachments:
            try:
                undo(att)
            except Error as why:
                failed.append(f"{att.name} {otherwise}: {why}")
        if failed:
            raise Error(f"{e}; and {'; '.join(failed)}", reason=e.reason) from e
        raise


class Version(NoArray):
    """Parts of one version of a name, mapped here. The end of ``with`` closes them.

    ``version["w"]`` is the Array of a tensor, in whichever part it is; ``version[0]`` is a part.

    parts       those that were asked for, in their order
    name, version, labels
                what the keeper says
    """

    _array_of = "version[name], or arrays(),"

    def __init__(self, client_of: str, timeout: float | None, parts: Parts) -> None:
        self._socket, self._timeout = client_of, timeout
        self._kept_until = 0.0  # until when the leases are wanted while it is detached; 0 is no bound
        self.parts = [Attached(att) for att in parts]
        first = self.parts[0].data
        self.name, self.version, self.labels = first.name, first.version, first.labels

    def __repr__(self) -> str:
        n, sizes = len(self.parts), [part.attachment.size for part in self.parts]
        detached = ", detached" if any(part.attachment.detached for part in self.parts) else ""
        state = f"{n} part{'s' if n != 1 else ''}, {human(sum(sizes))}{detached}" if n else "closed"
        return f"<gpufd.Version {called(self.name)} version {self.version}: {state}>"

    def __enter__(self) -> Version:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        parts, self.parts = self.parts, []
        with contextlib.ExitStack() as stack:
            for part in parts:  # which a traceback may keep alive
                stack.callback(part.attachment.__exit__, kind, error, trace)

    def __iter__(self) -> Iterator[Attached]:
        """Iterate over the parts."""
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, i: int) -> Attached: ...
    @overload
    def __getitem__(self, i: str) -> Array: ...
    def __getitem__(self, i: int | str) -> Attached | Array:
        if not isinstance(i, str):
            return self.parts[i]
        there = [part for part in self._open() if i in part]
        if not there:
            raise _no_tensor(i, self.parts)
        if len(there) > 1:
            raise _ambiguous(i, there)
        return there[0][i]

    def __contains__(self, what: object) -> bool:
        """Return whether one of the parts has a tensor of that name, or is that part."""
        return any(what in part for part in self._open()) if isinstance(what, str) else what in self.parts

    def _open(self) -> list[Attached]:
        if not self.parts:
            raise ClosedError(f"version {self.version} of {self.name} was closed, or its parts were taken")
        return self.parts

    def arrays(self) -> Arrays:
        """Return an Array of each tensor by name, of all parts, without a copy.

        Raises FormatError if a name is in two parts, or if there are no tensors.
        """
        return _arrays_of(self._open())

    def tensors(self) -> dict[str, Any]:
        """Return PyTorch's tensors by name, of all parts, without a copy: gpufd.torch.tensors."""
        self._open()
        return _tensors_of(self)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of all parts. Raises FormatError if a key has two values."""
        merged: dict[str, str] = {}
        for part in self._open():
            for key, value in part.table.metadata.items():
                if merged.setdefault(key, value) != value:
                    raise FormatError(f"parts of {self.name} have two values for the metadata {quote(key)}: version[{part.data.part}].metadata has one")
        return merged

    @property
    def superseded(self) -> bool:
        """Whether there is a newer version under the name by now."""
        return any(part.attachment.superseded for part in self.parts)

    def wait_superseded(self, timeout: float | None = None) -> bool:
        """Wait until there is a newer version, or the first part's lease has ended. Return superseded."""
        first = self._open()[0].attachment
        first.wait(timeout, superseded=True)
        return first.superseded

    def take(self) -> list[Attached]:
        """Return the parts. The caller owns them from here on."""
        parts, self.parts = self.parts, []
        return parts

    # Addresses that stay, without memory.

    def detach(self, keep: float | None = None, *, force: bool = False) -> bool:
        """Detach all parts: Attachment.detach. Return whether all leases are kept.

        After an error the parts are mapped that were; where that could not be, the error says so.
        """
        parts = [part.attachment for part in self._open()]
        self._kept_until = 0.0 if keep is None else time.monotonic() + arguments.seconds("keep", keep, zero=False)
        mapped = [att for att in parts if not att.detached]
        with _undone(mapped, lambda att: att.detached and att.reattach(), "is detached, and stays so"):
            return all([att.detach(keep, force=force) for att in parts])

    def reattach(self, *, newest: bool = False, timeout: float | None = None) -> bool:
        """Map all parts again where they were: Attachment.reattach. Return whether they are of the same version.

        They are of one version, also if another one is committed meanwhile; self.version says which. Raises MismatchError
        (layout) if a tensor of the newest lies elsewhere, or (tensors) if it has more or fewer parts, KeeperError if the name is drained
        or damaged, and what Attachment.reattach raises. After an error all parts are detached that were; those that had been
        reattached have then the version that they got.
        """
        before, parts = self.version, self._open()
        detached = [part.attachment for part in parts if part.attachment.detached]
        if not detached:
            raise UsageError(f"version {before} of {self.name} is not detached")
        deadline = time.monotonic() + arguments.seconds("a timeout", timeout)
        with _undone(detached, lambda att: att.detached or self._detach_again(att), "could not be detached again"):
            for part in [part for part in parts if part.attachment in detached]:
                self._reattach(part, newest, timeout)
            while newest and len({part.data.version for part in parts}) > 1:  # one was committed meanwhile
                last = max(part.data.version for part in parts)
                for part in [part for part in parts if part.data.version < last]:
                    self._detach_again(part.attachment)
                    self._reattach(part, True, timeout)
                if time.monotonic() > deadline:
                    raise TimedOutError(f"{self.name} got a new version whenever its parts were reattached")
            self._check_reattached()
        first = parts[0].data
        self.version, self.labels = first.version, first.labels
        return self.version == before

    def _detach_again(self, att: Attachment) -> bool:
        """Detach what was reattached. The time for which its lease is wanted does not begin anew."""
        return att.detach(max(0.001, self._kept_until - time.monotonic()) if self._kept_until else None)

    def _reattach(self, part: Attached, newest: bool, timeout: float | None) -> None:
        """Reattach a part to memory whose tensors lie as those that were there. What the keeper says is explained."""
        before = part.data

        def fits(offer: Offer) -> None:
            if offer.generation == part.attachment.generation:
                return
            if len(self.parts) > 1 and kept_of(offer).parts != before.parts:
                raise self._other_parts(before)
            check_layout(before, part.table, offer)

        try:
            part.attachment._reattach(newest, timeout, fits)
        except RefusedError as e:
            from .refusals import explained

            why = explained(self._socket, self.name, None, self._timeout, e)
            if newest and why is e and isinstance(e, NotFoundError):  # the name of a part says whether it is one of several
                raise self._other_parts(before) from e
            raise why from e

    def _other_parts(self, before: Kept) -> MismatchError:
        return MismatchError(f"the newest version of {self.name} has more or fewer parts than version {before.version}, which has {before.parts}", reason="tensors")

    def _check_reattached(self) -> None:
        if len(versions := sorted({part.data.version for part in self.parts})) > 1:
            raise MismatchError(f"parts of {self.name} are of the versions {' and '.join(map(str, versions))}: reattach(newest=True)", reason="stale")

    def close(self, force: bool = False) -> None:
        """Close the attachments to the parts: Attachment.close."""
        while self.parts:
            self.parts[-1].close(force)
            self.parts.pop()

    def verify(self, *, progress: Progress = None) -> None:
        """Compute the digests of the parts, and compare them with what the writer said.

        If one is different, tell the keeper and raise KeeperError, reason damaged. The keeper stops
        serving the part if this user may write or remove the name. progress is that of put.
        """
        damaged = []
        parts = self._open()
        with reporting(progress, sum(part.attachment.size for part in parts), f"verify {self.name}") as add:
            for part in parts:
                d, got = part.data, part._digest(add)
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

    def save(self, directory: str | os.PathLike[str], *, progress: Progress = None) -> list[str]:
        """Write all parts to a directory, and return their paths.

        The files are part-0, part-1…, of tensors part-0.safetensors, part-1.safetensors…
        progress is that of put.
        """
        from .output import output_path

        self._open()
        os.makedirs(output_path(directory), exist_ok=True)
        paths = []
        with reporting(progress, sum(part._bytes() for part in self.parts), f"save {self.name}") as add:
            for part in self.parts:
                suffix = ".safetensors" if part.table.format == "safetensors" else ""
                paths.append(os.path.join(directory, f"part-{part.data.part}{suffix}"))
                part._save(paths[-1], add)
        return paths
