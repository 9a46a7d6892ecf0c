"""Types and shapes of tensors that are to be sent: :class:`Meta`, and the data of a publisher's offer."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from .. import arguments
from ..errors import FormatError, UsageError, WeightsError
from ..keeper.tables import BITS, Tensor, compact, quote
from ..memory.foreign import Foreign
from ..memory.tensor import NAMES

MAX_NAME = 1024  # bytes of a tensor's
NUMBERS = 1 << 63  # all in a table are below it
MAX_NESTING = 64  # lists and objects within one another
MAX_NUMBER = 64  # characters of a number
_TORCH = {there: name for name, there in NAMES.items()} | {"half": "F16", "float": "F32", "double": "F64"}
Metadata = Mapping[str, Any] | Iterable[tuple[str, Any]]  # from names to tensors, or to Meta


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor. Raises FormatError if it has no number of bytes."""
    if min(shape, default=0) < 0 or max(shape, default=0) >= NUMBERS:
        raise FormatError(f"{list(shape[:8])} is no shape")
    return Tensor("", dtype, shape, 0, 0).span()


class Meta:
    """A tensor's type and shape, and of which larger tensor it is a slice.

    dtype   as safetensors names it ("BF16"), or PyTorch's: torch.bfloat16, or its name
    shape   that of the slice, if it is one
    of      shape of the whole tensor, or None
    begin   where the slice begins in it, along each dimension
    """

    __slots__ = ("dtype", "shape", "of", "begin", "size")

    def __init__(self, dtype: Any, shape: Sequence[int], of: Sequence[int] | None = None, begin: Sequence[int] | None = None) -> None:
        try:
            self.dtype = _dtype_named(dtype)
            self.shape = tuple(operator.index(n) for n in shape)
            self.of = None if of is None else tuple(operator.index(n) for n in of)
            self.begin = None if begin is None else tuple(operator.index(n) for n in begin)
            self.size = size_of(self.dtype, self.shape)  #: bytes
            self._check_slice()
        except FormatError as e:
            raise UsageError(str(e)) from None
        except TypeError:
            raise UsageError(f"a shape is of whole numbers, not {arguments.short(shape)}") from None

    def _check_slice(self) -> None:
        if (self.of is None) != (self.begin is None):
            raise FormatError("of and begin go together: the whole shape, and where the slice begins")
        if self.of is None or self.begin is None:
            return
        for what, there in (("of", self.of), ("begin", self.begin)):
            if len(there) != len(self.shape):
                raise FormatError(f"{what} has {len(there)} dimension{'' if len(there) == 1 else 's'}, shape has {len(self.shape)}")
        if not all(0 <= b and b + n <= whole for b, n, whole in zip(self.begin, self.shape, self.of)):
            raise FormatError(f"{list(self.shape[:8])} from {list(self.begin[:8])} on is no slice of {list(self.of[:8])}")

    def _key(self) -> tuple[Any, ...]:
        return self.dtype, self.shape, self.of, self.begin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Meta) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        part = f" from {list(self.begin)} of {list(self.of)}" if self.of is not None and self.begin is not None else ""
        return f"<gpufd.weights.Meta {self.dtype} {list(self.shape)}{part}>"

    def to_json(self) -> dict[str, Any]:
        """Return the members of a table's entry."""
        there: dict[str, Any] = {"dtype": self.dtype, "shape": self.shape}
        return there if self.of is None else {**there, "of": {"shape": self.of, "begin": self.begin}}


def _dtype_named(dtype: Any) -> str:
    """Return the name in safetensors of a type that the caller names. Raises FormatError."""
    name = str(dtype).removeprefix("torch.")  # also of a type of PyTorch's, or of NumPy's
    known = _TORCH.get(name) or name.upper()
    if known not in BITS:
        raise FormatError(f"type {quote(str(dtype))} is unknown: name it as safetensors does ({', '.join(BITS)}), or as PyTorch does")
    return known


def meta_of_json(t: Any) -> tuple[str, Meta]:
    """Return the name and what is said of a tensor. Raises FormatError, or what odd JSON raises."""
    name, dtype = t["name"], t["dtype"]
    if type(name) is not str or not 0 < len(name.encode()) <= MAX_NAME or type(dtype) is not str:  # half of a surrogate pair has no UTF-8
        raise FormatError(f"{quote(name)} of {quote(dtype)} is no tensor")
    if dtype not in BITS:
        raise FormatError(f"tensor {quote(name)}: type {quote(dtype)} is unknown")
    whole = begin = None
    if "of" in t:
        whole, begin = (_numbers(t["of"][what], what) for what in ("shape", "begin"))
    try:
        return name, Meta(dtype, _numbers(t["shape"], "shape"), whole, begin)
    except UsageError as e:
        raise FormatError(f"tensor {quote(name)}: {e}") from None


def _numbers(value: Any, what: str) -> list[int]:
    if type(value) is not list:
        raise FormatError(f"{what} is {quote(value)}, which is no list")
    return [number_of(n, what) for n in value]


def number_of(n: Any, what: str) -> int:
    """A number of JSON, of 63 bits."""
    if type(n) is not int or not 0 <= n < NUMBERS:
        raise FormatError(f"{what} is {quote(n)}, which is no number from 0 to 2^63 - 1")
    return n


# JSON of tables and metadata.


def parse(text: bytes) -> Any:
    """Return what JSON says. Raises FormatError or ValueError, also for what other languages' decoders read otherwise."""
    outside = b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])  # of strings; in linear time
    brackets = outside.translate(_DEPTHS, _NO_BRACKETS)
    if max(accumulate((1 if b == 1 else -1) for b in brackets), default=0) > MAX_NESTING:
        raise FormatError(f"more than {MAX_NESTING} lists and objects lie within one another")
    return json.loads(text.decode(), object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_no_number)


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTHS = bytes.maketrans(b"[{]}", b"\1\1\2\2")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise FormatError("a member comes twice in an object")
    for name in made:
        name.encode()  # raises ValueError for half of a surrogate pair
    return made


def _integer(text: str) -> int | float:
    return _fraction(text) if text[0] == "-" or len(text) > MAX_NUMBER else int(text)  # -0 is no number of a table


def _fraction(text: str) -> float:
    if len(text) > MAX_NUMBER:
        raise FormatError(f"a number has {len(text)} characters; at most {MAX_NUMBER} are allowed")
    return float(text)


def _no_number(text: str) -> None:
    raise FormatError(f"{text} is no number")


# The metadata of a publisher.


def metadata_of(metadata: Metadata | None) -> dict[str, Meta] | None:
    """Return what the caller says of the tensors that each update has. Raises UsageError."""
    if metadata is None:
        return None
    pairs = metadata.items() if isinstance(metadata, Mapping) else metadata
    made: dict[str, Meta] = {}
    try:
        for name, value in pairs:
            check_name(name)
            if name in made:
                raise UsageError(f"a tensor named {quote(name)}, which is in the metadata twice")
            made[name] = value if isinstance(value, Meta) else described(name, value)
    except (TypeError, ValueError) as e:
        if isinstance(e, UsageError):
            raise
        raise UsageError(f"metadata is a mapping, or an iterable of pairs, from names to tensors or gpufd.weights.Meta: {e}") from None
    return made


def check_name(name: Any) -> None:
    """Raise UsageError if a tensor cannot have this name."""
    if not 0 < len(arguments.text("the name of a tensor", name).encode()) <= MAX_NAME:
        raise UsageError(f"the name {quote(name)}: 1 to {MAX_NAME} bytes are allowed")


def described(name: str, value: Any) -> Meta:
    """Return the Meta of a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise UsageError(f"tensor {quote(name)} is sparse ({value.layout}), and so more than its elements: call to_dense()")
        try:
            return Meta(value.dtype, value.shape)
        except UsageError as e:
            raise UsageError(f"tensor {quote(name)}: {e}") from None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):  # of whatever strides
        return Meta(Foreign.of(numpy.empty(0, value.dtype), f"tensor {quote(name)}: ").dtype or "U8", value.shape)
    array = Foreign.of(value, f"tensor {quote(name)}: ")
    return Meta(array.dtype or "U8", array.shape)


def encode_metadata(tensors: Mapping[str, Meta] | None, in_place: bool) -> bytes:
    """Return the data of a publisher's offer."""
    if tensors is None:
        return b""
    said: dict[str, Any] = {"tensors": [{"name": name, **meta.to_json()} for name, meta in tensors.items()]}
    return compact(said | {"in_place": True} if in_place else said)


def decode_metadata(data: bytes) -> tuple[dict[str, Meta] | None, bool]:
    """Return the tensors that a publisher's offer names, or None, and whether it is in place. Raises WeightsError ("malformed")."""
    if not data:
        return None, False
    try:
        said = parse(data)
        listed, in_place = said.get("tensors", ()), said.get("in_place", False)
        if type(listed) is not list and "tensors" in said or type(in_place) is not bool:
            raise FormatError("there is no list of tensors, or in_place is no truth")
        tensors = dict([meta_of_json(t) for t in listed])
        if len(tensors) != len(listed):
            raise FormatError("a tensor is there twice")
        return tensors if "tensors" in said else None, in_place
    except (FormatError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise WeightsError(f"the metadata of a publisher makes no sense: {str(e) or type(e).__name__}", reason="malformed") from None
