"""A version of what a keeper keeps, mapped here: its parts, and what they hold, by name."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, BinaryIO, overload

from ..errors import ClosedError, Error, FormatError, KeeperError, UnavailableError, UsageError, enough_files
from ..memory.array import Array
from ..memory.base import Memory
from ..objects import NoArray, called, human
from ..progress import Progress, reporting
from ..share.attach import Parts
from ..share.attachment import Attachment
from ..share.kept import Kept
from ..wire.records import access_name
from .tables import ALIGN, Table, Tensor, header_of, naming, parse_table, quote

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
        self.data: Kept = attachment.kept

    def __repr__(self) -> str:
        d, a = self.data, self.attachment
        return f"<gpufd.Attached {called(d.name)} version {d.version}, part {d.part} of {d.parts}, {human(a.size)}, {_state(a)}>"

    @property
    def memory(self) -> Memory:
        return self.attachment.memory

    @cached_property
    def table(self) -> Table:
        """The writer's table of what the part holds. Raises FormatError if that makes no sense."""
        d = self.data
        with naming(f"{d.name}, version {d.version}, part {d.part}"):
            return parse_table(d.table, self.attachment.size)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that its writer put beside the data."""
        return dict(self.table.metadata)

    # By name.

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.table.in_order()}

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
    return "closed" if a.memory.closed else access_name(a.access)


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
        self.parts = [Attached(att) for att in parts]
        first = self.parts[0].data
        self.name, self.version, self.labels = first.name, first.version, first.labels

    def __repr__(self) -> str:
        n, sizes = len(self.parts), [part.attachment.size for part in self.parts]
        state = f"{n} part{'s' if n != 1 else ''}, {human(sum(sizes))}" if n else "closed"
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
            raise ClosedError(f"version {self.version} of {self.name} was closed, or its parts were detached")
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

    def detach(self) -> list[Attached]:
        """Return the parts. The caller owns them from here on."""
        parts, self.parts = self.parts, []
        return parts

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
