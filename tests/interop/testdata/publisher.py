"""Publish weights as the arguments say, one after the other, to one subscriber.

update STEP  a whole update, which the subscriber has loaded before the next begins
fail STEP    an update that raises behind its second tensor
hang STEP    one that goes on for ever there
place STEP   a whole update in place
"""

import argparse
import sys

import gpufd

Meta = gpufd.weights.Meta
BUCKETS = {"a": ("B", [1000]), "big": ("f", [250, 100]), "none": ("B", [0]), "last": ("q", [3])}
PLACE = {"a": (Meta("U8", [1000]), "B"), "rows": (Meta("F32", [2, 8], [8, 8], [6, 0]), "f")}


def content(name, step, size):
    return bytes((i * 31 + (i >> 8) * 7 + step * 13 + ord(name[0])) & 255 for i in range(size))


def tensor(name, step, kind, shape):
    n = memoryview(b"").cast(kind).itemsize
    for length in shape:
        n *= length
    return memoryview(content(name, step, n)).cast(kind, shape) if n else b""


class Failed(Exception):
    pass


def update(pub, what, step):
    with pub.update(step) as send:
        if what == "place":
            for name, (meta, kind) in PLACE.items():
                send(name, tensor(name, step, kind, list(meta.shape)))
            return
        for name, (kind, shape) in BUCKETS.items():
            if name == "none" and what == "fail":
                raise Failed
            if name == "none" and what == "hang":
                print("hanging", flush=True)
                sys.stdin.read()
            send(name, tensor(name, step, kind, shape))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("socket")
    p.add_argument("words", nargs="+")
    args = p.parse_args()
    steps = list(zip(args.words[::2], map(int, args.words[1::2])))
    kind = {"in_place": True, "metadata": {name: meta for name, (meta, _) in PLACE.items()}} if steps[0][0] == "place" else {"bucket": 16384, "buckets": 3}
    with gpufd.weights.Publisher("policy", socket=args.socket or None, **kind) as pub:
        pub.await_subscribers(1, 60)
        for what, step in steps:
            try:
                update(pub, what, step)
            except Failed:
                print("failed", pub.number, flush=True)
                continue
            if what == "update":
                pub.await_loaded(60, n=0)  # the reader may have left
                print("loaded", *(s.loaded for s in pub.subscribers), flush=True)


main()
