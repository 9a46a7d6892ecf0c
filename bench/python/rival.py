"""The half of a Python rival that does not depend on the library it shows.

A rival answers one JSON object a line on standard output to each line
"handoff SIZE" on standard input, and ends with it. The process started is
the producer; the consumer is spawned, so both have a driver of their own, and they
talk over one multiprocessing pipe. A script says how its library shares memory by
a class with the methods of Side, of which each process holds one.

The clock runs from the producer's give to the consumer's acknowledgement, when the
consumer has the memory in hand. Imports and the start of the driver come before,
reading the salts and letting go after.
"""

import contextlib
import glob
import importlib
import json
import multiprocessing
import os
import pickle
import secrets
import socket
import struct
import sys
import time
from multiprocessing.reduction import ForkingPickler

START = 300  # seconds the consumer has to import its library and open the device
DEADLINE = 60  # seconds it has for any other answer
UNIT = 2 << 20  # bytes; every size is a multiple of it

dumps, loads = ForkingPickler.dumps, pickle.loads  # as a connection's send and recv do


class Gone(Exception):
    """The other process cannot be talked to any more."""


class Refused(Exception):
    """A handoff failed, and the next may succeed."""


class Side:
    """What a script provides. It holds at most one buffer at a time."""

    name = "none"

    def info(self):
        """The versions to report."""
        return ""

    def make(self, size, salt):
        """Allocate size bytes that were never handed out, write the 8 bytes of salt
        to the first and last, and wait until they are there."""
        raise NotImplementedError

    def give(self, conn):
        """Send what the consumer needs, in a first message and, if need be, more."""
        raise NotImplementedError

    def free(self):
        """Give all of what make took back to the device. Called after a failure too."""
        raise NotImplementedError

    def take(self, conn, data):
        """Map the memory that the first message tells of."""
        raise NotImplementedError

    def read(self):
        """The first and the last 8 bytes, copied from the device."""
        raise NotImplementedError

    def drop(self):
        """Let go of what take mapped. Called after a failure too."""
        raise NotImplementedError


def explain(error):
    """One line about an exception."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def need(module, package):
    """Import a module, or say that its package is missing and exit with 3."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        text = f"{package} is not installed"
    except ImportError as e:
        text = f"{package} cannot be imported: {explain(e)}"
    print(json.dumps({"error": text}), flush=True)
    sys.exit(3)


# The consumer.


def consume(side_class, args, conn):
    """Take memory until the producer goes away. The target of the spawned process."""
    try:
        side = side_class(*args)
    except Exception as e:
        conn.send_bytes(explain(e).encode())
        return
    conn.send_bytes(b"")
    try:
        while True:
            take_one(side, conn)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def take_one(side, conn):
    data = conn.recv_bytes()
    if not data:  # a nudge
        conn.send_bytes(b"")
        return
    try:
        side.take(conn, data)
    except Exception as e:
        trouble = explain(e)
        let_go(side.drop)
        conn.send_bytes(trouble.encode())
        return
    conn.send_bytes(b"")
    trouble, salts = "", None
    try:
        salts = side.read()
    except Exception as e:
        trouble = explain(e)
    left = let_go(side.drop)
    conn.send((trouble or left, salts))


def let_go(release):
    """Call drop or free and return what went wrong, if anything."""
    try:
        release()
    except Exception as e:
        return explain(e)
    return ""


# The producer.


def handoff(side, conn, size):
    """One handoff: the answer as a dictionary."""
    salt = secrets.token_bytes(8)
    try:
        nudge(conn)
        side.make(size, salt)
        took, (consumer_trouble, salts) = exchange(side, conn)
    except BaseException:
        let_go(side.free)
        raise
    trouble = let_go(side.free)
    if consumer_trouble:
        raise Refused(f"consumer: {consumer_trouble}")
    if list(salts) != [salt, salt]:
        read = " and ".join(s.hex() for s in salts)
        raise Refused(f"salt: wrote {salt.hex()}, the consumer read {read}")
    if trouble:
        raise Refused(trouble)
    return {"ns": took}


def nudge(conn):
    """Wake the consumer before the buffer is made, as every rival does."""
    with talking():
        conn.send_bytes(b"")
        conn.recv_bytes()


def exchange(side, conn):
    """Returns the nanoseconds that it took, and the consumer's report."""
    with talking():
        begin = time.monotonic_ns()
        side.give(conn)
        trouble = conn.recv_bytes()
        took = time.monotonic_ns() - begin
        if trouble:
            raise Refused(f"consumer: {trouble.decode()}")
        return took, conn.recv()


@contextlib.contextmanager
def talking():
    """What a consumer that is gone or silent raises, as Gone."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as e:
        raise Gone("the consumer is gone") from e
    except BlockingIOError as e:
        raise Gone(f"no answer from the consumer within {DEADLINE} s") from e


def parse(line):
    """The size in a line "handoff SIZE"."""
    words = line.split()
    if len(words) != 2 or words[0] != "handoff" or not words[1].isdecimal():
        raise Refused("want: handoff SIZE")
    size = int(words[1])
    if size == 0 or size % UNIT:
        raise Refused(f"SIZE is not a multiple of {UNIT}")
    return size


def serve(side, conn, process, lines, out):
    """Answer every line. The exit status: 1 if the consumer was lost."""
    for line in lines:
        gone = False
        try:
            answer = handoff(side, conn, parse(line))
        except Gone as e:
            process.join(1)
            status = "" if process.exitcode is None else f", exit status {process.exitcode}"
            answer, gone = {"error": f"{e}{status}"}, True
        except Refused as e:
            answer = {"error": str(e)}
        except Exception as e:
            answer = {"error": explain(e)}
        print(json.dumps(answer), file=out, flush=True)
        if gone:
            return 1
    return 0


def start(side_class, args):
    """Spawn the consumer, open the producer beside it and wait until both are up."""
    multiprocessing.set_start_method("spawn")  # a driver does not survive a fork
    conn, other = multiprocessing.Pipe()
    process = multiprocessing.Process(target=consume, args=(side_class, args, other), daemon=True)
    process.start()
    other.close()
    side = side_class(*args)
    # A deadline on the socket itself costs nothing in the time, as poll would.
    with socket.socket(fileno=os.dup(conn.fileno())) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", START, 0))
        try:
            trouble = conn.recv_bytes()
        except (EOFError, OSError) as e:
            raise Gone("the consumer did not start") from e
        if trouble:
            raise Gone(f"consumer: {trouble.decode()}")
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", DEADLINE, 0))
    return side, conn, process


def run(side_class, *args):
    """Be the rival, and return the exit status. Standard output is for answers only:
    what libraries print there goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        side, conn, process = start(side_class, args)
    except Exception as e:
        text = str(e) if isinstance(e, Gone) else explain(e)
        print(json.dumps({"error": text}), file=out, flush=True)
        return 1
    ready = {"ready": True, "name": side.name, "info": side.info()}
    print(json.dumps(ready), file=out, flush=True)
    code = serve(side, conn, process, sys.stdin, out)
    conn.close()  # which ends an idle consumer
    process.join(0 if code else 10)
    if process.is_alive():
        process.kill()  # it may be stuck in a call
    sweep(os.getpid(), process.pid)
    return code


def sweep(*pids, directory="/dev/shm"):
    """Remove the files that the driver leaves there for IPC events (PyTorch makes
    one with every tensor it sends) of these processes."""
    for pid in pids:
        for path in glob.glob(os.path.join(directory, f"cuda.shm.*.{pid:x}.*")):
            os.remove(path)
