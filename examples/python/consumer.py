#!/usr/bin/env python3
"""Attaches to the memory that a producer offers, and verifies it.

The counterpart of gpufd's producer, or of producer.py. Exit codes: 0 done and verified,
1 failed, 2 wrong usage, 3 this machine cannot, 4 timed out or the peer was lost.
"""

import sys

import demo
import gpufd
import memory


def main():
    p, flag = demo.parser(__doc__)
    flag("device", type=int, default=None, metavar="N", help="device that the memory has to be on; without it, whichever it is on")
    flag("expect-salt", type=demo.salt, default=None, metavar="NUMBER", help="check against this number instead of the offer's salt")
    args = p.parse_args()
    access = gpufd.READ_WRITE if args.access == "rw" else gpufd.READ_ONLY
    driver = memory.choose(args.driver)
    policy = gpufd.Policy(uids=args.allow_uid)
    connected = lambda peer: print(f"Connected to producer {peer}")  # noqa: E731
    legacy = driver.takes_legacy
    with gpufd.attach(args.socket, demo.NAME, driver.driver, access, policy, args.timeout, connected=connected, legacy=legacy) as att:
        what = "an IPC handle" if att.offer.legacy else f"{len(att.fds)} descriptors"
        print(f"Received {what}, size: {att.offer.size} bytes")
        salt = demo.unpack_data(att.offer)
        if args.expect_salt is not None:
            salt = args.expect_salt
        with driver.take(att.offer, att.fds, access, args.device, demo.opener_of(args)) as buffer:
            att.drop_fds()  # the mapping keeps the memory
            print(f"Mapped the memory {'read-only' if buffer.access == gpufd.READ_ONLY else 'read-write'} ({buffer.about})")
            att.wait_published()
            att.mapped()
            wrong = verify(args, att, buffer, salt)
        att.report(not wrong, wrong)
        print("Sent acknowledgment to producer")
    if wrong:
        raise gpufd.Error(wrong)


def verify(args, att, buffer, salt):
    """What is wrong with the data, or "". What is done on the GPU is over then."""
    library = demo.library_of(args, buffer)
    how = (demo.gpu_compare, library) if library else (demo.compare,)
    wrong = how[0](*how[1:], buffer, salt, att.progress)
    print(f"Data verification {'FAILED' if wrong else 'PASSED'} ({demo.count(buffer.size)} integers)")
    return wrong


if __name__ == "__main__":
    sys.exit(demo.run("consumer.py", main))
