#!/usr/bin/env python3
"""Fill device memory and offer it to consumers, as file descriptors or by a handle of
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


def main():
    p, flag = demo.parser(__doc__)
    flag("size", type=demo.size, default=1 << 20, metavar="BYTES", help="bytes to share, with units KiB, MiB, GiB (1MiB)")
    flag("chunk", type=demo.size, default=0, metavar="BYTES", help="make the buffer of chunks of so many bytes (one chunk)")
    flag("handle", default="vmm", choices=("vmm", "legacy"), help="share memory by file descriptors (vmm), or by the 64 bytes of cuIpcGetMemHandle (legacy) (vmm)")
    flag("salt", type=demo.salt, default=0, metavar="NUMBER", help="XOR the data with this 32-bit number")
    flag("consumers", type=int, default=1, metavar="N", help="end after N consumers; 0 serves until interrupted (1)")
    flag("device", type=int, default=0, metavar="N", help="device to use (0)")
    args = p.parse_args()
    if args.consumers < 0 or args.device < 0:
        raise gpufd.UsageError("--consumers and --device are 0 or more")
    if args.handle == "legacy" and args.chunk:
        raise gpufd.UsageError("--chunk: legacy memory is one allocation; take --handle vmm")
    signals = demo.Signals()
    if args.socket == p.get_default("socket"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(args.socket), 0o700)
    try:
        with make(args) as memory:
            print(f"Made {demo.many(memory.chunks, 'chunk')} of {memory.chunk} bytes ({memory.about})")
            library = demo.library_of(args, memory)
            if library:
                demo.gpu_fill(library, memory, args.salt)
            else:
                demo.fill(memory, args.salt)
            del library  # its array is over the memory, which is closed before this function ends
            print(f"Generated {demo.count(args.size)} test integer{'s' * (demo.count(args.size) != 1)}")
            serve(args, memory, signals)
    except demo.Stopped:
        raise gpufd.Error("interrupted") from None


def make(args):
    """Make the memory: our own, or an array of a library that is shared by a legacy handle."""
    opener = args.library if args.handle == "legacy" and args.library != "bindings" else None
    if opener and demo.driver_of(args) == gpufd.CUDA:
        return demo.allocate(opener, args.size, args.device)
    handle = "legacy" if args.handle == "legacy" else "fd"
    return gpufd.allocate(args.size, chunk=args.chunk, device=args.device, driver=args.driver, handle=handle)


class Results:
    """Print what consumers found, and keep their errors."""

    def __init__(self):
        self.errors = []

    def tell(self, event):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            if event.kind == "sent":
                print(f"Consumer {event.peer} was sent the memory")
            elif event.kind == "refused":
                print(f"  turned a peer away: {event.err}")
            elif event.kind == "ended" and event.err:
                print(f"  consumer: {event.err}")
            elif event.kind == "ended":
                print("Consumer verified data successfully!")
        if event.kind == "ended" and event.err and not isinstance(event.err, gpufd.LeaseEndedError):
            self.errors.append(event.err)


def serve(args, memory, signals):
    access = gpufd.READ_WRITE if args.access == "rw" else gpufd.READ_ONLY
    results = Results()
    signals.noted = True
    server = gpufd.Server(args.socket, policy=gpufd.Policy(uids=args.allow_uid), timeout=args.timeout, on_event=results.tell)
    with server:
        offering = server.offer(demo.NAME, memory, access, data=demo.pack_data(args.size, args.salt), verdict=True, leases=args.consumers)
        print("Waiting for consumer connection...")
        wanted = f"{demo.many(args.consumers, 'consumer')}; ends after {args.timeout:g} s without one"
        print(f"  at {args.socket} for {wanted if args.consumers else 'consumers; ends when interrupted'}")
        while not signals.asked and not offering.wait(0.1, idle=args.timeout if args.consumers else None):
            pass
    if results.errors:
        raise results.errors[0]


if __name__ == "__main__":
    sys.exit(demo.run("producer.py", main))
