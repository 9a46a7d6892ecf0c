#!/usr/bin/env python3
"""Fills device memory and offers it to consumers, as file descriptors or by a handle of
legacy IPC.

The counterpart of gpufd's consumer, or of consumer.py. Exit codes: 0 done and verified,
or ended by a signal while serving, 1 failed, 2 wrong usage, 3 this machine cannot,
4 timed out or the peer was lost.
"""

import contextlib
import os
import sys

import demo
import gpufd
import memory


def main():
    p, flag = demo.parser(__doc__)
    flag("size", type=demo.size, default=1 << 20, metavar="BYTES", help="bytes to share, with units KiB, MiB, GiB (1MiB)")
    flag("chunk", type=demo.size, default=0, metavar="BYTES", help="build the buffer of chunks of so many bytes; without it, of one")
    flag("handle", default="vmm", choices=("vmm", "legacy"), help="what memory is shared by: file descriptors, or the 64 bytes of cuIpcGetMemHandle (vmm)")
    flag("salt", type=demo.salt, default=0, metavar="NUMBER", help="XOR the data with this 32-bit number")
    flag("consumers", type=int, default=1, metavar="N", help="end after N consumers; 0 serves until interrupted (1)")
    flag("device", type=int, default=0, metavar="N", help="device to use (0)")
    args = p.parse_args()
    if args.consumers < 0 or args.device < 0:
        raise gpufd.Usage("--consumers and --device are 0 or more")
    if args.handle == "legacy" and args.chunk:
        raise gpufd.Usage("--chunk: legacy memory is one allocation; take --handle vmm")
    demo.stop_on_signals()
    if args.socket == p.get_default("socket"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(args.socket), 0o700)
    driver = memory.choose(args.driver)
    try:
        legacy = args.handle == "legacy"
        made = driver.make_legacy(args.size, args.device, demo.opener_of(args)) if legacy else driver.make(args.size, args.chunk, args.device)
        with made as buffer:
            print(f"Made {buffer.chunks} chunks of {buffer.chunk} bytes ({buffer.about})")
            library = demo.library_of(args, buffer)
            if library:
                demo.gpu_fill(library, buffer, args.salt)
            else:
                demo.fill(buffer, args.salt)
            buffer.finish()
            print(f"Generated {demo.count(args.size)} test integers")
            serve(args, buffer)
            del library  # before the memory goes that its array is over
    except demo.Stopped:
        raise gpufd.Error("interrupted") from None


def serve(args, buffer):
    access = gpufd.READ_WRITE if args.access == "rw" else gpufd.READ_ONLY
    offer = buffer.offer(demo.NAME, access, demo.pack_data(args.size, args.salt))
    server = gpufd.Server(args.socket, gpufd.Policy(uids=args.allow_uid), args.timeout, print)
    try:
        print("Waiting for consumer connection...")
        server.serve(offer, buffer.fds, args.consumers)
    except demo.Stopped:
        pass
    finally:
        server.close()
    if server.errors:
        raise server.errors[0]


if __name__ == "__main__":
    sys.exit(demo.run("producer.py", main))
