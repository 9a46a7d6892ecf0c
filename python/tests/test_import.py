"""What an import of the package imports: each module when the first of its names is used."""

import ast
import builtins
import importlib
import inspect
import pathlib
import subprocess
import sys
import unittest

import common
import gpufd

ATTACHING = """arguments errors lazy log memory memory.array memory.base memory.device memory.dlpack memory.drivers memory.reservation objects
share share.attach share.attaching share.attachment share.fence share.kept share.leaseconn
wire wire.aside wire.conn wire.peer wire.quiet wire.records wire.sockets"""

MODELS = "memory.tensor progress torch torch.assign torch.named torch.storages torch.weights"


def loaded(code):
    """The package's modules that a fresh interpreter has after the code, without their package."""
    text = f"import sys\n{code}\nprint(*sorted(m[6:] for m in sys.modules if m.startswith('gpufd.')))"
    return set(subprocess.run([sys.executable, "-B", "-c", text], cwd=common.PACKAGE, check=True, stdout=subprocess.PIPE, text=True).stdout.split())


def imports_for_types():
    """Where __init__.py says to who checks types that the names are."""
    tree = ast.parse(pathlib.Path(gpufd.__file__).read_text())
    (branch,) = (n for n in tree.body if isinstance(n, ast.If))
    return {(a.name, n.module) for n in branch.body if isinstance(n, ast.ImportFrom) and n.module for a in n.names}


MODULES = {"aio", "broadcast", "channel", "keeper", "torch", "transformers", "weights"}


class Imports(unittest.TestCase):
    def test_every_name_is_where_the_table_says(self):
        self.assertEqual(sorted(gpufd.__all__), sorted(set(gpufd.__all__)))
        self.assertEqual(set(gpufd._MODULE_OF) - MODULES, set(gpufd.__all__))
        self.assertEqual({(name, module) for name, module in gpufd._MODULE_OF.items() if name not in MODULES}, imports_for_types())
        for name, module in gpufd._MODULE_OF.items():
            if name in MODULES:
                continue
            with self.subTest(name):
                self.assertIs(getattr(gpufd, name), getattr(importlib.import_module("gpufd." + module), name))
                self.assertIn(name, dir(gpufd))

    def test_modules_are_there_after_the_package(self):
        """gpufd.channel, and the others, without an import of their own, and for mypy too."""
        self.assertEqual(loaded("import gpufd; gpufd.channel.Writer; gpufd.keeper.Client") & {"channel", "keeper"}, {"channel", "keeper"})
        for module in MODULES:
            self.assertIn(module, dir(gpufd))
        for missing, wanted, module in (("torch", "PyTorch", "torch"), ("torch", "PyTorch", "transformers"), ("transformers", "transformers", "transformers")):
            said = loaded(f"sys.modules[{missing!r}] = None\nimport gpufd\ntry: gpufd.{module}.load\nexcept AttributeError as e: assert 'wants {wanted},' in str(e), e\nelse: assert 0")
            self.assertNotIn(module, said)

    def test_options_are_checked_by_name(self):
        """A name that is written wrongly is a TypeError at once, and an error of mypy's."""
        memory = None
        for call in (
            lambda: gpufd.follow(socket="x", acess=1),
            lambda: gpufd.attach(socket="x", acess=1),
            lambda: gpufd.attach_parts("y", socket="x", acess=1),
            lambda: gpufd.offer("y", memory, socket="x", leasses=1),
            lambda: gpufd.Server.replace(None, "y", memory, leasses=1),
            lambda: gpufd.channel.follow(socket="x", polcy="block"),
            lambda: gpufd.channel.Reader(socket="x", acess=1),
            lambda: gpufd.channel.Writer("y", socket="x", slots=2, slot_size=8, tiemout=1),
        ):
            with self.assertRaisesRegex(TypeError, "unexpected keyword argument"):
                call()
        for name in dir(gpufd):
            value = getattr(gpufd, name, None) if name not in ("torch", "broadcast") else None
            if inspect.isroutine(value) and value.__module__.startswith("gpufd"):
                kinds = {p.kind for p in inspect.signature(value).parameters.values()}
                self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds, name)

    def test_names_beside(self):
        self.assertIs(gpufd.list, gpufd.list_offers)
        self.assertIs(gpufd.keeper, sys.modules["gpufd.keeper"])
        self.assertIn("keeper", dir(gpufd))
        with self.assertRaisesRegex(AttributeError, "module 'gpufd' has no attribute 'lits'"):
            gpufd.lits

    def test_all_of_them(self):
        names = {}
        exec("from gpufd import *", names)
        self.assertEqual(set(names) - {"__builtins__"}, set(gpufd.__all__))
        self.assertFalse(set(gpufd.__all__) & set(dir(builtins)), "a name that hides one of Python's")

    def test_nothing_before_it_is_used(self):
        self.assertEqual(loaded("import gpufd"), {"lazy"})
        self.assertEqual(loaded("import gpufd; gpufd.Error"), {"errors", "lazy"})
        self.assertEqual(loaded("import gpufd; gpufd.attach"), set(ATTACHING.split()))
        self.assertEqual(loaded("import gpufd; gpufd.get"), {*ATTACHING.split(), "keeper", "keeper.control", "keeper.get", "keeper.tables", "keeper.version", "progress"})

    def test_models(self):
        """Loading takes no more than attaching does: what only put needs is not imported."""
        try:
            import torch  # noqa: F401
        except ImportError:
            common.missing("python", f"{sys.executable} has no PyTorch")
        models = {*ATTACHING.split(), "keeper", "keeper.control", "keeper.get", "keeper.tables", "keeper.version", *MODELS.split()}
        self.assertEqual(loaded("import gpufd.torch"), models)
        self.assertEqual(loaded("import gpufd.torch; gpufd.torch.follow") - models, {"share.follow", "torch.address", "torch.guard", "torch.versions"})
        self.assertEqual(loaded("import gpufd.torch; gpufd.torch.ModelVersion, gpufd.torch.follow('x')") & {"keeper.client"}, set())


if __name__ == "__main__":
    unittest.main()
