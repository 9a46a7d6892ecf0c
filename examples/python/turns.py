#!/usr/bin/env python3
"""Takes turns with another process on memory that both have.

	turns.py attach    takes the offers "data" and "control" of a socket
	turns.py offer     makes and offers them, "control" at the socket's path and .control

In turn n the side that offers writes the demo's data with the salt 2n-1, and the other one
checks that and writes it with 2n, which is checked in turn. By counters, the side that offers
waits at slot 0, the other one at slot 1. By an event (attach alone, on a GPU) the offer
"data" carries the event of its producer, in its data; ours is printed, as is each turn when it
is recorded, and each turn begins when a line is read. Exit codes as of consumer.py.
"""

import contextlib
import os
import select
import sys

import demo
import gpufd
from gpufd import IPCEvent, counter

STRIDE = 128  # bytes of a slot: docs/wire.md, "Counters"

DATA, CONTROL = "data", "control"
THEIRS, OURS = 0, 1  # the slots, as the side that attaches sees them


def check(buffer, salt):
    wrong = demo.compare(buffer, salt, lambda done: None)
    if wrong:
        raise gpufd.Error(f"{wrong} (salt {salt})")


def fill(buffer, salt):
    demo.fill(buffer, salt)
    buffer.finish()


@contextlib.contextmanager
def attached(args, name):
    """The memory of an offer, read-write; a good verdict in the end."""
    policy = gpufd.Policy(uids=args.allow_uid)
    with gpufd.attach(name, socket=args.socket, access=gpufd.READ_WRITE, driver=args.driver, policy=policy, timeout=args.timeout) as att:
        yield att
        att.report()


def attach(args):
    with attached(args, DATA) as data:
        if args.by == "event":
            return attach_by_event(args, data)
        with attached(args, CONTROL) as control, counter(control.memory, THEIRS) as theirs, counter(control.memory, OURS) as ours:
            print("Attached")
            for n in range(1, args.turns + 1):
                ours.wait(n, args.timeout)
                check(data.memory, 2 * n - 1)
                fill(data.memory, 2 * n)
                theirs.signal(n)


def attach_by_event(args, att):
    data = att.memory
    with IPCEvent(data) as ours:  # first, so that what cannot be here is said at once
        with IPCEvent(data, att.data) as theirs:
            print(f"Event {ours.handle.hex()}")
            for n in range(1, args.turns + 1):
                read_line(args.timeout)
                theirs.wait(args.timeout)
                check(data, 2 * n - 1)
                demo.fill(data, 2 * n)
                ours.record()
                print(f"Turn {n}")
            read_line(args.timeout)  # the other one has seen the last


def read_line(timeout):
    if not select.select([0], [], [], timeout)[0]:
        raise gpufd.TimedOutError(f"nobody began a turn for {timeout:g} s")
    if not os.read(0, 100):
        raise gpufd.LostError("nobody begins turns any more")


def offer(args):
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(gpufd.allocate(args.size, driver=args.driver))
        control = stack.enter_context(gpufd.allocate(2 * STRIDE, driver=args.driver))
        control.write(0, bytes(2 * STRIDE))
        control.finish()
        offerings = []
        for path, name, memory in ((args.socket, DATA, data), (args.socket + ".control", CONTROL, control)):
            server = gpufd.Server(path, policy=gpufd.Policy(uids=args.allow_uid), timeout=args.timeout)
            stack.enter_context(server)
            offerings.append(server.offer(name, memory, gpufd.READ_WRITE, verdict=True, leases=1, on_event=noted))
        print("Waiting for the other side...")
        with counter(control, 0) as ours, counter(control, 1) as theirs:
            for n in range(1, args.turns + 1):
                fill(data, 2 * n - 1)
                theirs.signal(n)
                ours.wait(n, args.timeout)
                check(data, 2 * n)
        for offering in offerings:
            if not offering.wait(args.timeout):
                raise gpufd.TimedOutError(f"nobody has given a verdict on {offering.name}")
    if faults:
        raise faults[0]


faults = []


def noted(event):
    """What goes wrong with a consumer ends the program in the end."""
    if event.kind == "ended" and event.err:
        faults.append(event.err)


def main():
    p, flag = demo.parser(__doc__)
    p.add_argument("side", choices=("attach", "offer"))
    flag("by", default="counter", choices=("counter", "event"), help="what orders the turns (counter)")
    flag("turns", type=int, default=20, metavar="N", help="how many (20)")
    flag("size", type=demo.size, default=100003, metavar="BYTES", help="bytes that are written in each (100003)")
    args = p.parse_args()
    if args.turns < 1:
        raise gpufd.UsageError("--turns is 1 or more")
    if args.side == "offer" and args.by == "event":
        raise gpufd.UsageError("--by event is for attach")
    (attach if args.side == "attach" else offer)(args)
    print(f"{args.turns} turns")


if __name__ == "__main__":
    sys.exit(demo.run("turns.py", main))
