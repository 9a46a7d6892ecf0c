#!/usr/bin/env python3
"""Take the frames of camera.py, run a model, and pass on what comes out.

On a GPU the work for a frame is queued before the frame comes: the stream waits for it, and not this process.
"""

import argparse
import os

import torch

import demo  # finds gpufd in this repository
import gpufd
from gpufd import channel


def model(image, out):
    torch.sub(255, image, out=out)  # any module


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--directory", default=".", help="of the sockets (.)")
    p.add_argument("--width", type=int, default=1920)
    p.add_argument("--height", type=int, default=1080)
    p.add_argument("--frames", type=int, default=300)
    args = p.parse_args()
    there, here = (os.path.join(args.directory, name) for name in ("cam.sock", "model.sock"))
    shape = (3, args.height, args.width)
    with (
        channel.Reader("cam", socket=there, wait=60) as r,
        channel.Writer("model", socket=here, slots=8, slot_size=r.slot_size, streams=True) as w,
    ):
        stream = torch.cuda.Stream() if w.memory.driver == gpufd.CUDA else None
        blank = torch.zeros(shape, dtype=torch.uint8, device="cuda" if stream else "cpu")
        with demo.on(stream):
            model(blank, torch.empty_like(blank))  # loads the kernels before the stream waits for anybody
        w.await_readers(1, timeout=60)
        run = by_stream if stream else by_host
        run(r, w, stream, shape, args.frames)


def by_stream(r, w, stream, shape, frames):
    before = None
    with demo.on(stream):
        for n in range(frames):
            frame, slot = r.next_on(stream), w.acquire_on(stream)
            model(torch.from_dlpack(frame.view("U8", shape)), slot.tensor("U8", shape))
            w.publish_on(stream, slot, format=channel.Format("U8", shape, pts=n))
            r.release_on(stream, frame)
            done = torch.cuda.Event(blocking=True)
            done.record()
            if before:
                came(r, *before)  # one frame is queued ahead
            before = frame, done
        if before:
            came(r, *before)


def came(r, frame, done):
    """Wait until the stream is past a frame, and raise if it has gone on without it."""
    done.synchronize()
    r.check(frame)


def by_host(r, w, stream, shape, frames):
    for frame in r:  # until the camera ends
        slot = w.acquire(timeout=60)
        model(frame.tensor, slot.tensor("U8", shape))
        w.publish(slot, format=channel.Format("U8", shape, pts=frame.pts))


if __name__ == "__main__":
    main()
