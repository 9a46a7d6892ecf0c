#!/usr/bin/env python3
"""Attach to the memory that a producer offers, and verify it.

The counterpart of gpufd's producer, or of producer.py. Exit codes: 0 done and verified,
1 failed, 2 wrong usage, 3 this machine cannot, 4 timed out or the peer was lost.
"""

import sys
import time

import demo
import gpufd


def main():
    p, flag = demo.parser(__doc__)
    flag("device", type=int, default=None, metavar="N", help="device that the memory has to be on (any)")
    flag("expect-salt", type=demo.salt, default=None, metavar="NUMBER", help="check against this number instead of the offer's salt")
    args = p.parse_args()
    access = gpufd.READ_WRITE if args.access == "rw" else gpufd.READ_ONLY
    on_gpu = demo.driver_of(args) == gpufd.CUDA
    options = dict(
        access=access, device=args.device, driver=args.driver, timeout=args.timeout,
        policy=gpufd.Policy(uids=args.allow_uid), legacy=on_gpu, opener=demo.opener_of(args),
        connected=lambda peer: print(f"Connected to producer {peer}"),
    )  # fmt: skip
    with find(args.socket, args.timeout, options) as att:
        what = "an IPC handle" if att.offer.legacy else demo.many(att.offer.chunks, "descriptor")
        print(f"Received {what}, size: {att.size} bytes")
        print(f"Mapped the memory {'read-only' if att.access == gpufd.READ_ONLY else 'read-write'} ({att.memory.about})")
        wrong = verify(args, att)
        att.report(wrong)
        print("Sent acknowledgment to producer")
    if wrong:
        raise gpufd.Error(wrong)


def find(socket, timeout, options):
    """Attach once a producer is there, which may take as long as timeout."""
    print(f"Connecting to producer at {socket}")
    late, pause = time.monotonic() + timeout, 0.01
    while True:
        try:
            return gpufd.attach(demo.NAME, socket=socket, **options)
        except gpufd.LostError as e:
            if e.reason != "nobody-listens":
                raise
            left = late - time.monotonic()
            if left <= 0:
                raise gpufd.LostError(f"no producer there within {timeout:g} s: {e}", reason="nobody-listens") from None
            if pause == 0.01:
                print(f"  no producer is there yet: waiting for one, for {timeout:g} s at most")
        time.sleep(min(pause, left))
        pause = min(2 * pause, 0.1)


def verify(args, att):
    """Return what is wrong with the data, or "". The work on the GPU is over then."""
    try:
        salt = demo.unpack_data(att.offer)
    except gpufd.WireError as e:
        return str(e)
    if args.expect_salt is not None:
        salt = args.expect_salt
    library = demo.library_of(args, att.memory)
    how = (demo.gpu_compare, library) if library else (demo.compare,)
    wrong = how[0](*how[1:], att.memory, salt, att.progress)
    print(f"Data verification {'FAILED' if wrong else 'PASSED'} ({demo.count(att.size)} integers)")
    return wrong


if __name__ == "__main__":
    sys.exit(demo.run("consumer.py", main))
