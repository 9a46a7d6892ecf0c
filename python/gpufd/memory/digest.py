"""The digest gpufd-d1, computed on the host. The Go package kernels specifies it.

The data is words of 64 bits, w[0], w[1]… The digest is made of two sums over them, modulo 2**64:

    k[i] = (i + 1) * g                        the key of a word
    x[i] = mix(w[i] ^ k[i])                   the word, mixed
    A    = the sum of x[i]
    B    = the sum of x[i] * (k[i] | 1)

B is computed another way here. g is odd, so k[i] is even exactly where i is odd, and there
k[i] | 1 is k[i] + 1:

    B    = g * (the sum of (i + 1) * x[i]) + (the sum of x[i] where i is odd)

That takes no product of two numbers of 64 bits each, so Python's large numbers can do it, too.
"""

from __future__ import annotations

import importlib
from typing import Any

ALGORITHM = "gpufd-d1"
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # what mix multiplies by
MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x ^ x >> 30) * FIRST & MASK
    x = (x ^ x >> 27) * SECOND & MASK
    return x ^ x >> 31


class Digester:
    """Makes a digest of data that comes in parts, in any order. Each part begins at a
    multiple of 8 bytes, and all but the last have a size that is one."""

    def __init__(self) -> None:
        self.a = self.b = self.bytes = 0

    def add(self, offset: int, data: Any) -> None:
        """Add what lies at offset bytes of the data: bytes, or another contiguous buffer."""
        if offset % 8:
            raise ValueError(f"a part of a digest begins at {offset}, no multiple of 8")
        view = memoryview(data).cast("B")
        whole = len(view) // 8 * 8
        sums = _with_numpy if numpy() is not None else _with_integers
        self.add_sums(*sums(offset // 8, view[:whole]), offset + len(view))
        if whole < len(view):
            last = bytes(view[whole:]).ljust(8, b"\0")
            self.add_sums(*_with_integers((offset + whole) // 8, memoryview(last)), 0)

    def add_sums(self, a: int, b: int, end: int) -> None:
        """Add the sums of a part that ends at end bytes, as the kernel makes them."""
        self.a, self.b, self.bytes = self.a + a & MASK, self.b + b & MASK, max(self.bytes, end)

    def digest(self) -> str:
        """The digest of all that was added, as a keeper writes it."""
        first = mix(self.a + (self.bytes + 1) * GOLDEN & MASK)
        both = first.to_bytes(8, "little") + mix(self.b ^ first).to_bytes(8, "little")
        return f"{ALGORITHM}:{both.hex()}"


def digest_of(data: Any) -> str:
    """The digest of bytes, computed on the host."""
    d = Digester()
    d.add(0, data)
    return d.digest()


_numpy: Any = ()


def numpy() -> Any:
    """numpy, or None where there is none."""
    global _numpy
    if _numpy == ():
        try:
            _numpy = importlib.import_module("numpy")
        except ImportError:
            _numpy = None
    return _numpy


def _combine(first: int, plain: int, weighted: int, odd: int) -> tuple[int, int]:
    """A and B of a part that begins with word number first of the data. j counts the words of
    the part from 0, so i is first + j. plain is the sum of x, weighted that of j * x, and odd
    that of x where i is odd."""
    return plain & MASK, (GOLDEN * (weighted + (first + 1) * plain) + odd) & MASK


_WORDS = 1 << 15  # that numpy takes at a time: as many as stay in a core's cache


def _with_numpy(first: int, data: memoryview) -> tuple[int, int]:
    """A and B of a part that begins with word number first of the data."""
    np, a, b = numpy(), 0, 0
    words = np.frombuffer(data, dtype="<u8")
    steps = np.arange(min(_WORDS, len(words)), dtype=np.uint64)
    keys, x, t = steps * np.uint64(GOLDEN), np.empty_like(steps), np.empty_like(steps)
    for at in range(0, len(words), _WORDS):
        n = min(_WORDS, len(words) - at)
        xs, ts = x[:n], t[:n]
        np.add(keys[:n], np.uint64((first + at + 1) * GOLDEN & MASK), out=xs)
        np.bitwise_xor(words[at : at + n], xs, out=xs)
        for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
            np.right_shift(xs, np.uint64(shift), out=ts)
            np.bitwise_xor(xs, ts, out=xs)
            if factor > 1:
                np.multiply(xs, np.uint64(factor), out=xs)
        np.multiply(xs, steps[:n], out=ts)
        odd = xs[(first + at + 1) % 2 :: 2].sum(dtype=np.uint64)
        sums = _combine(first + at, int(xs.sum(dtype=np.uint64)), int(ts.sum(dtype=np.uint64)), int(odd))
        a, b = a + sums[0], b + sums[1]
    return a & MASK, b & MASK


# Without numpy, one large integer holds many words and computes with all at once. Each word has
# a lane of 128 bits, because the product of two numbers of 64 bits needs as many. Words of 64
# bits lie without gaps in the data, so a block is taken as two such integers: one has its words
# 0, 2, 4…, the other its words 1, 3, 5…

_LANES = 1 << 10  # in a number; a power of two


def _lanes(n: int, word: int) -> int:
    """A number of n lanes with the same word in each."""
    return int.from_bytes(word.to_bytes(16, "little") * n, "little")


_ones = _lanes(_LANES, 1)
_mask = _lanes(_LANES, MASK)
_keys = int.from_bytes(b"".join((2 * j * GOLDEN & MASK).to_bytes(16, "little") for j in range(_LANES)), "little")


def _with_integers(first: int, data: memoryview) -> tuple[int, int]:
    """The same as _with_numpy."""
    a = b = 0
    for at in range(0, len(data), 16 * _LANES):
        block = int.from_bytes(data[at : at + 16 * _LANES], "little")
        count = min(2 * _LANES, (len(data) - at) // 8)
        index = first + at // 8
        for half in (0, 1):  # its words 0, 2, 4…, then 1, 3, 5…
            n = (count + 1 - half) // 2
            plain, weighted = _half(index + half, block >> (64 * half) & _mask, n)  # by lane, of which each stands for two words
            odd = plain if (index + half) % 2 else 0
            sums = _combine(index + half, plain, 2 * weighted, odd)
            a, b = a + sums[0], b + sums[1]
    return a & MASK, b & MASK


def _half(index: int, x: int, n: int) -> tuple[int, int]:
    """The sum of x, and the sum of x times the number of its lane.

    x has n lanes with a word in each. The word in lane j is word number index + 2 * j of the data.
    """
    mask = _mask if n == _LANES else _mask & ((1 << 128 * n) - 1)
    x ^= (_keys + ((index + 1) * GOLDEN & MASK) * _ones) & mask
    x = (x ^ (x >> 30 & mask)) * FIRST & mask  # the mask drops what the shift brings from the lane above
    x = (x ^ (x >> 27 & mask)) * SECOND & mask
    x ^= x >> 31 & mask
    # Fold the upper half of the lanes onto the lower until one lane is left. A lane that moves
    # down by width has width times its value added to the weighted sum.
    weighted, width = 0, _LANES
    while width > 1:
        width //= 2
        low = (1 << 128 * width) - 1
        upper = x >> 128 * width
        weighted = (weighted & low) + (weighted >> 128 * width) + width * upper
        x = (x & low) + upper
    return x, weighted
