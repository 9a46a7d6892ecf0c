#!/usr/bin/env python3
"""Take the frames of camera.py, run a model, and pass on what comes out, with the times of the frames."""

import argparse
import os

import torch

import demo  # finds gpufd in this repository
import gpufd
from gpufd import channel


def model(image):
    return 255 - image  # any module


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--directory", default=".", help="of the sockets (.)")
    args = p.parse_args()
    there, here = (os.path.join(args.directory, name) for name in ("cam.sock", "model.sock"))
    with (
        channel.Reader("cam", socket=there, wait=60) as r,
        channel.Writer("model", socket=here, slots=8, slot_size=r.slot_size, streams=True) as w,
    ):
        stream = torch.cuda.Stream() if w.memory.driver == gpufd.CUDA else None
        with demo.on(stream):
            model(torch.zeros(r.slot_size, dtype=torch.uint8, device="cuda" if stream else "cpu"))  # loads the kernels
        w.await_readers(1, timeout=60)
        for frame in r:  # until the camera ends
            with demo.on(stream):
                out = model(frame.tensor)
            times = channel.Format(captured=frame.format.captured)
            w.send(out, pts=frame.pts, time_base=frame.format.time_base, format=times, stream=stream, timeout=60)
            if stream:
                r.release_on(stream, frame)  # when the model has read it; else the loop releases it


if __name__ == "__main__":
    main()
