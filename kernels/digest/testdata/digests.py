"""Writes digests.json, by what doc.go says of gpufd-d1 and nothing else:

    python3 testdata/digests.py >testdata/digests.json
"""
import json

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def digest(data):
    a = b = 0
    for i in range(0, len(data), 8):
        key = (i // 8 + 1) * GOLDEN & MASK
        x = mix(int.from_bytes(data[i : i + 8], "little") ^ key)
        a, b = a + x & MASK, b + x * (key | 1) & MASK
    first = mix(a + (len(data) + 1) * GOLDEN & MASK)
    return first.to_bytes(8, "little") + mix(b ^ first).to_bytes(8, "little")


def data(size, seed):
    out = bytearray()
    for _ in range(size):
        seed = (seed * 1664525 + 1013904223) % 2**32
        out.append(seed >> 24)
    return bytes(out)


SIZES = [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 255, 1000, 4095, 4096, 4097, 65537]
print(json.dumps({"algorithm": "gpufd-d1", "vectors": [
    {"bytes": n, "seed": seed, "digest": digest(data(n, seed)).hex()} for n in SIZES for seed in (0, 12345)
]}, indent=1))
