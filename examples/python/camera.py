#!/usr/bin/env python3
"""Make frames as a camera does: the first of three processes, camera, model and sink.

    python3 sink.py & python3 model.py & python3 camera.py

On a GPU the frames stay there, and a stream hands them over: this process waits for nobody but the clock.
"""

import argparse
import os
import time

import torch

import demo  # finds gpufd in this repository
import gpufd
from gpufd import channel


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--directory", default=".", help="of the sockets (.)")
    p.add_argument("--width", type=int, default=1920)
    p.add_argument("--height", type=int, default=1080)
    p.add_argument("--frames", type=int, default=300)
    p.add_argument("--rate", type=int, default=100, help="frames a second; 0 for as many as the model takes (100)")
    args = p.parse_args()
    size = 3 * args.height * args.width
    with channel.Writer("cam", socket=os.path.join(args.directory, "cam.sock"), slots=8, slot_size=size, streams=True) as w:
        on_gpu = w.memory.driver == gpufd.CUDA
        stream = torch.cuda.Stream() if on_gpu else None
        shape, captured = (3, args.height, args.width), []
        with demo.on(stream):
            torch.empty(shape, dtype=torch.uint8, device="cuda" if on_gpu else "cpu").fill_(0)  # loads the kernel before the stream waits for anybody
        w.await_readers(1, timeout=60)
        begin = time.monotonic()
        with demo.on(stream):
            for n in range(args.frames):
                slot = w.acquire_on(stream) if stream else w.acquire(timeout=60)
                image = slot.tensor("U8", shape)
                if args.rate:
                    early = begin + n / args.rate - time.monotonic()
                    time.sleep(max(0.0, early))
                    begin -= min(0.0, early)  # what is late is not made up for
                captured.append(channel.now())
                image.fill_(n % 256)
                about = channel.Format("U8", shape, pts=n, time_base=(1, args.rate or 1), captured=captured[-1])
                if stream:
                    w.publish_on(stream, slot, format=about)
                else:
                    w.publish(slot, format=about)
                del image
        del slot
        with open(os.path.join(args.directory, "cam.times"), "w") as f:
            print(*captured, sep="\n", file=f)


if __name__ == "__main__":
    main()
