"""When a framework, in C, calls a deleter or drops a capsule: at the end of the process, while
an exception is on its way, and never."""

import contextlib
import copy
import ctypes
import gc
import io
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

import common
import gpufd
from gpufd.memory import dlpack as _dlpack
from test_arrays import Taken

HERE = pathlib.Path(__file__).resolve().parent
AT = _dlpack._ManagedVersioned.deleter.offset


class InC(common.Scene):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("cc"):
            common.missing("cc", "there is no C compiler here")
        directory = tempfile.TemporaryDirectory(prefix="gpufd-")
        cls.addClassCleanup(directory.cleanup)
        cls.library = os.path.join(directory.name, "framework.so")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", cls.library, HERE / "framework.c"], check=True)

    def test_deleter_when_the_interpreter_has_gone(self):
        text = f"""
import ctypes, atexit
lib = ctypes.CDLL({self.library!r})
lib.keep.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def take():
    from test_arrays import Taken
    t = Taken(memory.view("F32", 4).__dlpack__(max_version=(1, 0)))
    lib.keep(t.address, {AT})
memory = gpufd.allocate(4096)
if sys.argv[1] == "late":
    atexit._run_exitfuncs()  # what was exported behind that is safe, too
    memory = gpufd.allocate(4096)
take()
print("taken")
"""
        for when in ("early", "late"):
            with self.subTest(when):
                self.assertEqual(self.ends(self.python(text, when), 0), "taken\n")

    def test_deleter_while_an_exception_is_on_its_way(self):
        """PyTorch frees the arguments of a call that has failed: the view goes, and what failed is said."""
        lib = ctypes.PyDLL(self.library)
        lib.fail.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        with gpufd.allocate(4096) as memory:
            for _ in range(3):
                t = Taken(memory.view("F32", 4).__dlpack__(max_version=(1, 0)))
                with self.unraisable() as said:
                    self.assertEqual(lib.fail(t.address, AT), 0)
                self.assertEqual([repr(e) for e in said], ["ValueError('of the call')"])
                self.assertEqual((memory.views(), len(_dlpack._out)), ([], 0))

    @contextlib.contextmanager
    def unraisable(self):
        said = []
        before, sys.unraisablehook = sys.unraisablehook, lambda u: said.append(u.exc_value)
        try:
            yield said
        finally:
            sys.unraisablehook = before


class Dropped(common.Scene):
    def test_numpy_does_not_know_the_type(self):
        """What NumPy says of that arrives, and no view is left."""
        numpy = common.need_numpy()
        with gpufd.allocate(4096) as memory, contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaisesRegex((RuntimeError, BufferError), "(?i)unsupported dtype"):
                numpy.from_dlpack(memory.view("BF16"))
            self.assertEqual(memory.views(), [])
        self.assertEqual(said.getvalue(), "")

    def test_collection_finds_it(self):
        memory = gpufd.allocate(4096)
        capsule = memory.view().__dlpack__(max_version=(1, 0))
        gc.collect()
        self.assertEqual(len(_dlpack._out), 1, "it is somebody's")
        del capsule
        gc.collect()
        self.assertEqual((_dlpack._out, _dlpack._fresh), ({}, {}))
        memory.close()


class Copies(common.Scene):
    def test_nothing_that_owns_is_copied(self):
        """A copy of an attachment would end its lease, and one of an array let its memory go."""
        with gpufd.allocate(4096) as memory, gpufd.Server(self.path) as server:
            server.offer("x", memory, gpufd.READ_WRITE)
            with gpufd.attach(socket=self.path, access=gpufd.READ_WRITE) as att, gpufd.counter(att.memory, 0) as counter:
                for thing in (memory, server, att, att.view(), counter, server.leases("x")[0]):
                    for way in (copy.copy, copy.deepcopy, pickle.dumps):
                        with self.subTest(f"{type(thing).__name__} {way.__name__}"), self.assertRaisesRegex(TypeError, "this process alone"):
                            way(thing)
                counter.close()
                self.assertEqual(att.memory.views(), [])
                self.assertFalse(att.done)

    def test_errors_are_pickled(self):
        lost = gpufd.LostError("gone", lambda: True)
        back = pickle.loads(pickle.dumps(lost))
        self.assertEqual((str(back), back.died()), ("gone", False))
        busy = pickle.loads(pickle.dumps(gpufd.InUseError("busy", ["a"])))
        self.assertEqual(busy.views, ("a",))


if __name__ == "__main__":
    unittest.main()
