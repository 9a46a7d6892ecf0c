"""Programs in Python that begin with their imports done: each is forked from a process that has made them.

PyTorch takes most of a second to import. Popen is subprocess.Popen for ``[sys.executable, FLAG…, FILE or -c TEXT, ARGUMENT…]``.
A forked program ends before Python frees its modules, so test_scripts starts one script with subprocess.Popen to see finalisers
that fail. The servers of test_serve need no such run, because serve.py itself ends by os._exit.
"""

import atexit
import ctypes
import importlib
import itertools
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import types
import unittest

PR_SET_CHILD_SUBREAPER = 36


class Popen(subprocess.Popen):
    """A child of this process: forked, if it is of Python and begin was called."""

    server = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        if not self.server or args[0] != sys.executable:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        assert len(rest) == 16, "this Python's subprocess.Popen has other arguments"
        shell, pipes, start_new_session = rest[2], rest[3:9], rest[14]
        assert not (executable or preexec_fn or pass_fds or cwd or shell or start_new_session), "use subprocess.Popen for these arguments"
        stdin, _, _, stdout, _, stderr = pipes
        files = [own if fd == -1 else fd for own, fd in enumerate((stdin, stdout, stderr))]
        socket.send_fds(self.server, [json.dumps([args, dict(os.environ if env is None else env)]).encode()], files)
        said = self.server.recv(20)
        if not said:
            raise RuntimeError("the process that forks has ended, or cannot fork")
        self.pid = int(said)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(command, timeout, popen=Popen):
    """subprocess.run, without input."""
    with popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        try:
            out, err = p.communicate(timeout=timeout)
        except BaseException:
            p.kill()  # leaving the block waits for it
            raise
    return subprocess.CompletedProcess(command, p.returncode, out, err)


def begin(*modules):
    """Start the process that imports modules, and end it after the tests of the module that calls this."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # forked twice, a program becomes a child of this process
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    with theirs:
        p = subprocess.Popen([sys.executable, "-B", "-u", __file__, str(theirs.fileno()), *modules], pass_fds=[theirs.fileno()],
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"})  # fmt: skip
    Popen.server = ours
    unittest.addModuleCleanup(setattr, Popen, "server", None)
    unittest.addModuleCleanup(libc.prctl, PR_SET_CHILD_SUBREAPER, 0)
    unittest.addModuleCleanup(p.wait)
    unittest.addModuleCleanup(ours.close)


def serve(conn):
    """Fork for each command that comes. Returns the command in the process for it, and None in this one at the end."""
    while True:
        data, fds, *_ = socket.recv_fds(conn, 1 << 20, 3)
        if not data:
            return None
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            pid = os.fork()
            if pid:
                os.write(write, str(pid).encode())
                os._exit(0)
            conn.detach()
            for to, fd in enumerate(fds):
                os.dup2(fd, to)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            command, env = json.loads(data)
            os.environ.clear()
            os.environ.update(env)
            return command
        os.close(write)  # so that read ends if the fork above fails
        os.waitpid(middle, 0)  # now the program is our parent's child
        conn.send(os.read(read, 20))
        for fd in (read, *fds):
            os.close(fd)


def be(command):
    """Do what python3 does with a command."""
    kind, *rest = itertools.dropwhile(lambda word: word in ("-B", "-u"), command[1:])
    if kind == "-c":
        text, *sys.argv[1:] = rest
        sys.argv[0] = sys.path[0] = ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:], sys.path[0] = [kind, *rest], os.path.dirname(kind)
        runpy.run_path(kind, run_name="__main__")


def leave(code):
    """End as Python does, without taking apart what was imported, which takes long."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def main(fd, *modules):
    for module in modules:
        importlib.import_module(module)
    command = serve(socket.socket(fileno=int(fd)))
    try:
        if command:
            be(command)
        leave(0)
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        leave(e.code if isinstance(e.code, int) else int(bool(e.code)))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        leave(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
