#!/usr/bin/env python3
"""Takes turns with another process on memory that both have.

	turns.py attach    takes the offers "data" and "control" of a socket
	turns.py offer     makes and offers them, "control" at the socket's path and .control

In turn n the side that offers writes the demo's data with the salt 2n-1, and the other one
checks that and writes it with 2n, which is checked in turn. By counters, slot 0 is where the
side waits that offers, slot 1 the other's. By an event (attach alone, on a GPU) the offer
"data" carries the event of who offers, in its data; ours is printed, as is each turn when it
is recorded, and each turn begins when a line is read. Exit codes as of consumer.py.
"""

import contextlib
import os
import select
import sys
import threading

import demo
import gpufd
import memory
from order import STRIDE, IPCEvent, counter

DATA, CONTROL = "data", "control"
THEIRS, OURS = 0, 1  # the slots, as seen by who attaches


def check(buffer, salt):
    wrong = demo.compare(buffer, salt, lambda done: None)
    if wrong:
        raise gpufd.Error(f"{wrong} (salt {salt})")


def fill(buffer, salt):
    demo.fill(buffer, salt)
    buffer.finish()


@contextlib.contextmanager
def attached(args, driver, name):
    """The memory of an offer, read-write; a good verdict in the end."""
    policy = gpufd.Policy(uids=args.allow_uid)
    with gpufd.attach(args.socket, name, driver.driver, gpufd.READ_WRITE, policy, args.timeout) as att:
        with driver.take(att.offer, att.fds, gpufd.READ_WRITE) as buffer:
            att.drop_fds()
            att.wait_published()
            att.mapped()
            yield att.offer, buffer
        att.report(True)


def attach(args, driver):
    with attached(args, driver, DATA) as (offer, data):
        if args.by == "event":
            return attach_by_event(args, offer, data)
        with attached(args, driver, CONTROL) as (_, control), counter(control, THEIRS) as theirs, counter(control, OURS) as ours:
            print("Attached")
            for n in range(1, args.turns + 1):
                ours.wait(n, args.timeout)
                check(data, 2 * n - 1)
                fill(data, 2 * n)
                theirs.signal(n)


def attach_by_event(args, offer, data):
    with IPCEvent(data) as ours:  # first, so that what cannot be here is said at once
        with IPCEvent(data, offer.data) as theirs:
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
        raise gpufd.TimedOut(f"nobody began a turn for {timeout:g} s")
    if not os.read(0, 100):
        raise gpufd.Lost("nobody begins turns any more")


def offer(args, driver):
    with driver.make(args.size) as data, driver.make(2 * STRIDE) as control:
        control.write(0, bytes(2 * STRIDE))
        control.finish()
        servers = [(gpufd.Server(args.socket, gpufd.Policy(uids=args.allow_uid), args.timeout), DATA, data)]
        try:
            servers.append((gpufd.Server(args.socket + ".control", gpufd.Policy(uids=args.allow_uid), args.timeout), CONTROL, control))
            threads = [threading.Thread(target=serve, args=s, daemon=True) for s in servers]
            for thread in threads:
                thread.start()
            print("Waiting for the other side...")
            with counter(control, 0) as ours, counter(control, 1) as theirs:
                for n in range(1, args.turns + 1):
                    fill(data, 2 * n - 1)
                    theirs.signal(n)
                    ours.wait(n, args.timeout)
                    check(data, 2 * n)
            for thread in threads:
                thread.join(args.timeout)
        finally:
            for server, _, _ in servers:
                server.close()
        for server, name, _ in servers:
            if server.errors or not server.verified:
                raise server.errors[0] if server.errors else gpufd.TimedOut(f"nobody has given a verdict on {name}")


def serve(server, name, buffer):
    """Serve one consumer. What goes wrong is among the server's errors."""
    try:
        server.serve(buffer.offer(name, gpufd.READ_WRITE, b""), buffer.fds, 1)
    except gpufd.Error as e:
        server.errors.append(e)
    except (OSError, ValueError):  # it is being closed
        pass


def main():
    p, flag = demo.parser(__doc__)
    p.add_argument("side", choices=("attach", "offer"))
    flag("by", default="counter", choices=("counter", "event"), help="what orders the turns (counter)")
    flag("turns", type=int, default=20, metavar="N", help="how many (20)")
    flag("size", type=demo.size, default=100003, metavar="BYTES", help="bytes that are written in each (100003)")
    args = p.parse_args()
    if args.turns < 1:
        raise gpufd.Usage("--turns is 1 or more")
    if args.side == "offer" and args.by == "event":
        raise gpufd.Usage("--by event is for attach")
    driver = memory.choose(args.driver)
    (attach if args.side == "attach" else offer)(args, driver)
    print(f"{args.turns} turns")


if __name__ == "__main__":
    sys.exit(demo.run("turns.py", main))
