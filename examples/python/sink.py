#!/usr/bin/env python3
"""Take what model.py makes of the frames of camera.py, check it, and say how old the frames are."""

import argparse
import contextlib
import os
import time

import torch

import demo  # finds gpufd in this repository
from gpufd import channel


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--directory", default=".", help="of the sockets (.)")
    p.add_argument("--check", type=int, default=50, metavar="N", help="look at the bytes of one frame of N (50)")
    args = p.parse_args()
    there, times = [], os.path.join(args.directory, "cam.times")
    with contextlib.suppress(FileNotFoundError):
        os.remove(times)
    torch.zeros(8, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu").aminmax()  # loads the kernels
    with channel.Reader("model", socket=os.path.join(args.directory, "model.sock"), wait=60) as r:
        for frame in r:  # until the model ends
            there.append(channel.now())
            if frame.pts % args.check == 0:
                want = 255 - frame.pts % 256
                least, most = (int(n) for n in frame.tensor.aminmax())
                if (least, most) != (want, want):
                    raise SystemExit(f"frame {frame.pts} is {least} to {most}, and not {want}")
    end = time.monotonic() + 60
    while not os.path.exists(times) or len(captured := open(times).read().split()) < len(there):
        if time.monotonic() > end:
            raise SystemExit(f"{times} does not say when {len(there)} frames were captured")
        time.sleep(0.01)
    ages = [came - int(taken) for came, taken in zip(there, captured)]
    steady = sorted(ages[len(ages) // 10 :])  # the first ones waited for the sink
    p50, p99 = (steady[int(len(steady) * q)] / 1e6 for q in (0.5, 0.99))
    print(f"{len(ages)} frames of {demo.many(frame.size, 'byte')} ({frame.format.dtype}{list(frame.format.shape)}): p50 {p50:.2f} ms, p99 {p99:.2f} ms, from capture to here")


if __name__ == "__main__":
    main()
