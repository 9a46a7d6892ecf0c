"""Files as parts of tensors: safetensors files, their indexes, directories.

The Go programs decide the same, in internal/safetensors; python/tests/odd_files.py has cases for both.
Files come from strangers. A header is refused unless every byte behind it belongs to exactly one
tensor, of a known type and the size of its shape.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from ..errors import FormatError
from .tables import BITS, HEADER_MOST, Table, Tensor, check_tensors, quote

_U64 = 2**64 - 1
_BLANKS = b" \t\r\n"
_SUFFIX = ".safetensors"
_INDEX = re.compile(r"\.safetensors\.index(\.[^/]+)?\.json$", re.IGNORECASE)  # of variants, too: model.safetensors.index.fp16.json
_SHARD = re.compile(r"(.*?)([0-9]+)-of-([0-9]+)(.*)", re.DOTALL)
_POINTER = b"version https://git-lfs.github.com/spec/"  # git leaves that where LFS has not fetched the content

# The escapes that JSON has, but for half a surrogate pair alone.
_ESCAPES = re.compile(
    rb"\\(?:[^u]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})", re.DOTALL
)


@dataclass(frozen=True)
class Stamp:
    """A file's state before it was read."""

    path: str
    device: int
    inode: int
    size: int
    time: int  # nanoseconds

    @classmethod
    def of(cls, path: str, st: os.stat_result) -> Stamp:
        return cls(path, st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns)

    def check(self, f: BinaryIO) -> None:
        """Raise FormatError if an open file is not that one, as it was."""
        now = Stamp.of(self.path, os.fstat(f.fileno()))
        if now != self:
            raise FormatError(
                f"{self.path} changed while it was read: it had {self.size} bytes, and has {now.size}, of another time; put it when nobody writes it"
            )


@dataclass(frozen=True)
class Segment:
    """bytes bytes at at of a file, which go to offset in the part."""

    file: Stamp
    at: int
    offset: int
    bytes: int


def plan_files(paths: Sequence[str]) -> tuple[Table, list[Segment]]:
    """Plan a part of files, and where its bytes come from: tensors if all files are
    safetensors, indexes of them or directories, and else bytes one behind the other."""
    table, segments = _plan_tensors(paths) if _are_tensors(paths) else _plan_bytes(paths)
    if not table.size:
        raise FormatError(f"{', '.join(paths)}: nothing to keep: it is empty")
    return table, segments


def _plan_bytes(paths: Sequence[str]) -> tuple[Table, list[Segment]]:
    table, segments = Table(), []
    for path in paths:
        file = _regular(path)
        if file.size:
            segments.append(Segment(file, 0, table.size, file.size))
            name = os.fsencode(os.path.basename(path)).decode(errors="replace")  # a name of a file is bytes
            table.files.append((name, table.size, file.size))
            table.size += file.size
    return table, segments


def _regular(path: str) -> Stamp:
    st = os.stat(path)
    if not stat.S_ISREG(st.st_mode):
        raise FormatError(f"{path} is no regular file")
    return Stamp.of(path, st)


# Kinds of files.


def _are_tensors(paths: Sequence[str]) -> bool:
    """Return whether files are tensors: all are, or none."""
    kinds = [_is_tensors(p) for p in paths]
    if len(set(kinds)) > 1:
        yes, no = paths[kinds.index(True)], paths[kinds.index(False)]
        raise FormatError(
            f"{yes} is taken for tensors, and {no} is of another kind: give files of tensors alone, the directory that they are in, "
            "or none of them: what is kept is tensors or bytes"
        )
    return kinds[0]


def _is_tensors(path: str) -> bool:
    """Return whether a path is of tensors: a directory is, a file is by its name or by its content,
    because a cache names its files otherwise."""
    if os.path.isdir(path) or _is_file(path) or _INDEX.search(path):
        return True
    file = _regular(path)
    with open(path, "rb") as f:
        begin = f.read(4096)
        if begin.startswith(_POINTER):
            raise FormatError(f"{path}: {_what(begin)}")
        if path.endswith(".json"):
            return _names_files(f, file.size)
        if _looks(begin):
            return True
        if begin.startswith(b"{") and _names_files(f, file.size):
            raise FormatError(
                f"{path} is the index of a model under another name: give it by a name that ends in .json, beside the files that it names"
            )
    return False


def _is_file(path: str) -> bool:
    return path.lower().endswith(_SUFFIX)


def _looks(begin: bytes) -> bool:
    """Return whether a file begins as safetensors do, with the length of a header and the header."""
    return len(begin) >= 10 and 2 <= int.from_bytes(begin[:8], "little") <= HEADER_MOST and begin[8:9] == b"{" and begin[9] in b'"} \t\r\n'


def _names_files(f: BinaryIO, size: int) -> bool:
    """Return whether JSON is an index."""
    f.seek(0)
    return size <= HEADER_MOST and b'"weight_map"' in f.read()


def _what(begin: bytes) -> str:
    """Name the kind of a file that is not of the format, by its beginning, or return nothing."""
    text = begin.strip().lower()
    if not begin:
        return "it is empty"
    if begin.startswith(_POINTER):
        return "it is a pointer of git LFS, not the file: fetch that with git lfs pull"
    if text.startswith((b"<!doctype html", b"<html")):
        return "it is a page of HTML, such as a server sends instead of a file"
    if begin.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "it is a file of PyTorch's (torch.save), or another archive"
    if begin.startswith(b"GGUF"):
        return "it is a GGUF file"
    if begin.startswith(b"\x00\x05\x16\x07"):
        return "it is what macOS keeps beside a file (AppleDouble)"
    if text.startswith((b"{", b"[")):
        return "it is JSON, such as a server sends instead of a file"
    if not begin.strip(b"\0"):
        return "it begins with zeros, as a file does whose download goes on"
    return ""


# Directories and indexes.


def _model_in(path: str) -> tuple[str, list[str]]:
    """The model in a directory: its index, or else its files. Without an index those are one
    file, or all shards of one model; what else there may be, nobody can tell."""
    indexes: list[str] = []
    names: list[str] = []
    others: list[str] = []
    for name in sorted(os.listdir(path)):
        if name.startswith("."):  # ._NAME is what macOS keeps beside NAME
            continue
        if os.path.isdir(os.path.join(path, name)):
            others.append(name + "/")
        else:
            (indexes if _INDEX.search(name) else names if _is_file(name) else others).append(name)
    if len(indexes) > 1:
        raise FormatError(f"{path} has {len(indexes)} indexes, {_some(indexes)}: give one of them")
    if indexes:
        return os.path.join(path, indexes[0]), []
    if not names:
        what = f"it has {_some(others)}; give what is to be kept" if others else "it is empty"
        raise FormatError(f"there are no *{_SUFFIX} in {path}: {what}")
    _one_model(path, names)
    return "", [os.path.join(path, n) for n in names]


def _one_model(path: str, names: list[str]) -> None:
    """Raise FormatError unless files of a directory are one model by their names."""
    several = f"{path} has no index, and {_some(names)}, which may be several models or forms of one: give the files of one"
    shards = [_SHARD.fullmatch(n) for n in names]
    first = shards[0]
    if first is None and len(names) == 1:
        return
    if first is None or any(m is None or m.group(1, 3, 4) != first.group(1, 3, 4) for m in shards):
        raise FormatError(several)
    there, of = {int(m[2]) for m in shards if m}, int(first[3])
    begin = 0 if 0 in there else 1
    for n in range(begin, of + begin):
        if n not in there:
            missing = f"{first[1]}{n:0{len(first[2])}d}-of-{first[3]}{first[4]}"
            raise FormatError(f"{path} has no {missing}: a part of the model is missing")
    if len(names) != of:
        raise FormatError(several)


def _some(names: list[str]) -> str:
    more = len(names) - 4
    return ", ".join(quote(n)[1:-1] for n in names[:4]) + (f" and {more} more" if more > 0 else "")


def _read_index(path: str) -> dict[str, str]:
    """The files that an index has tensors in, by the tensors' names."""
    size = _regular(path).size
    if size > HEADER_MOST:
        raise FormatError(f"{path}: an index of {size} bytes")
    with open(path, "rb") as f:
        text = f.read()
    try:
        index = _json(text, strange=True)
        file_of = index.get("weight_map")
        if not isinstance(file_of, dict) or not file_of:
            raise FormatError("its weight_map has no tensors" if file_of == {} else "there is no weight_map")
        for name, file in file_of.items():
            if not isinstance(file, str):
                raise FormatError(f"the file of tensor {quote(name)} is not a string")
            if "\0" in file or len(file.encode()) >= 4096 or any(e in ("", ".", "..") for e in file.split("/")):
                raise FormatError(f"tensor {quote(name)} is in {quote(file)}, which is not the name of a file beside it or below")
    except FormatError as e:
        raise FormatError(f"{path}: the index: {e}") from None
    return file_of


# Tensors.


class _Model:
    """The tensors of files, planned for one buffer."""

    def __init__(self) -> None:
        self.table = Table()
        self.segments: list[Segment] = []
        self.file_of: dict[str, str] = {}  # each tensor's
        self.disputed: set[str] = set()  # keys of metadata with two values

    def add(self, path: str) -> None:
        index, files = (path, []) if path.endswith(".json") else ("", [path])
        if os.path.isdir(path):
            index, files = _model_in(path)
        if index:
            self.add_index(index)
        for file in files:
            self.add_file(file, {})

    def add_index(self, path: str) -> None:
        directory = os.path.dirname(path)
        file_of = {name: os.path.join(directory, file) for name, file in _read_index(path).items()}
        there: dict[str, list[str]] = {}
        for file in sorted(set(file_of.values())):
            for name in self.add_file(file, file_of):
                there.setdefault(name, []).append(file)
        for name in sorted(file_of):
            if file_of[name] not in there.get(name, ()):
                where = f"it is in {os.path.basename(there[name][0])}" if name in there else "it is not there"
                raise FormatError(f"{path}: the index has tensor {quote(name)} in {os.path.basename(file_of[name])}, but {where}")

    def add_file(self, path: str, file_of: dict[str, str]) -> list[str]:
        """Add a file, without the tensors that an index has in others, and return the names of all in it."""
        file = _regular(path)
        tensors, metadata, data_at = read_header(path)
        for t in tensors:
            if file_of.get(t.name, path) != path:
                continue
            if t.name in self.file_of:
                raise FormatError(f"{path}: tensor {quote(t.name)} is there twice, in {self.file_of[t.name]} too")
            self.file_of[t.name] = path
            at = self.table.place(t.bytes)
            self.table.tensors.append(t._replace(offset=at))
            self._load(Segment(file, data_at + t.offset, at, t.bytes))
        self.disputed |= {k for k, v in metadata.items() if self.table.metadata.get(k, v) != v}
        self.table.metadata.update(metadata)
        return [t.name for t in tensors]

    def _load(self, s: Segment) -> None:
        """Add a segment; those that follow each other in file and part are one."""
        before = self.segments[-1] if self.segments else None
        if before and before.file is s.file and before.at + before.bytes == s.at and before.offset + before.bytes == s.offset:
            self.segments[-1] = replace(before, bytes=before.bytes + s.bytes)
        elif s.bytes:
            self.segments.append(s)


def _plan_tensors(paths: Sequence[str]) -> tuple[Table, list[Segment]]:
    model = _Model()
    for path in paths:
        model.add(path)
    for key in model.disputed:
        del model.table.metadata[key]
    check_tensors(model.table.tensors, model.table.size)
    return model.table, model.segments


def read_header(path: str) -> tuple[list[Tensor], dict[str, str], int]:
    """The tensors of a safetensors file in the order of their bytes, its metadata, and
    where its data begins, from which offsets count. Every byte of it is one tensor's."""
    size = _regular(path).size
    with open(path, "rb") as f:
        try:
            return _header(f, size)
        except FormatError as e:
            f.seek(0)
            what = _what(f.read(4096))
            raise FormatError(f"{path}: {e}{what and '; ' + what}") from None


def _header(f: BinaryIO, size: int) -> tuple[list[Tensor], dict[str, str], int]:
    if size < 8:
        raise FormatError(f"{size} bytes are too few for a file")
    length = int.from_bytes(f.read(8), "little")
    if not 0 < length <= min(HEADER_MOST, size - 8):
        raise FormatError(f"a header of {length} bytes in a file of {size}")
    text = f.read(length)
    if not text.startswith(b"{"):
        raise FormatError("the header is not a JSON object")
    header = _json(text)
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError("its metadata are not texts")
    tensors = [_header_tensor(name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda t: (t.offset, t.bytes))
    at = 0
    for t in tensors:
        if t.offset != at:
            raise FormatError(f"tensor {quote(t.name)} begins at {t.offset} and should at {at}: tensors overlap or leave a hole")
        at += t.bytes
    if at != size - 8 - length:
        raise FormatError(f"the tensors have {at} bytes, and the file has {size - 8 - length} behind its header")
    return tensors, metadata, 8 + length


def _header_tensor(name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():  # others are of later versions
        raise FormatError(f"tensor {quote(name)} needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _numbers(shape) or not _numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"tensor {quote(name)} has a shape or data_offsets that make no sense")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise FormatError(f"tensor {quote(name)} is of type {quote(dtype)}, which is unknown")
    begin, size = offsets[0], offsets[1] - offsets[0]
    if (want := _bits(dtype, shape)) != 8 * size:
        each = "does not have a number of bytes" if want < 0 or want % 8 else f"has {size} bytes instead of {want // 8}"
        raise FormatError(f"tensor {quote(name)} of {dtype} {shape[:8]} {each}")
    return Tensor(name, dtype, tuple(shape), begin, size)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _U64 for n in value)


def _bits(dtype: str, shape: list[int]) -> int:
    """The bits of a tensor, or -1 for too many: also, as safetensors has it, before a 0."""
    n = 1
    for d in (*shape, BITS[dtype]):
        n *= d
        if n > _U64:
            return -1
    return n


def _json(text: bytes, strange: bool = False) -> dict[str, Any]:
    """A JSON object, in which no name comes twice; with strange, the NaN and Infinity of Python's are taken."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a name is there twice")
        return value

    def constant(name: str) -> None:
        if not strange:
            raise ValueError(f"{name} is no JSON")

    if b"\\u" in text and b"\\" in _ESCAPES.sub(b"", text):
        raise FormatError("half a surrogate pair, which is no character")
    try:
        value = json.loads(text.rstrip(_BLANKS).decode(), object_pairs_hook=unique, parse_int=_integer, parse_constant=constant)
    except (ValueError, RecursionError) as e:
        raise FormatError(f"the JSON makes no sense: {e}") from None
    if not isinstance(value, dict):
        raise FormatError("it is not a JSON object")
    return value


def _integer(text: str) -> int | None:
    """A number of bytes or elements, or None for what cannot be one."""
    return None if text == "-0" or len(text) > 20 else int(text)
