"""How vLLM gets gpufd.vllm: by its entry point, in any order of imports, and without harm if something is missing."""

import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest
from unittest import mock

import common
import vllm_engines

VERIFY = common.ROOT / "examples/vllm/verify.py"
SAYS = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
import gpufd.vllm
"""
ALL = "vllm.model_executor.model_loader vllm.v1.worker.gpu_worker vllm.device_allocator.sleep_mode_backend vllm.distributed.weight_transfer.factory"
LOOKS = f"""
import importlib
for name in "{ALL}".split():
    importlib.import_module(name)
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as loaders
from vllm.v1.worker import gpu_worker, utils
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory as sleeps
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as engines, WeightTransferTrainerFactory as trainers
print(loaders["gpufd"].__name__, gpu_worker.request_memory.__wrapped__ is utils.request_memory, *(f._registry["gpufd"]().__name__ for f in (sleeps, engines, trainers)))
"""
THERE = "GpufdModelLoader True GpufdSleepBackend GpufdWeightTransferEngine GpufdTrainerWeightTransferEngine"


class Plugin(unittest.TestCase):
    def setUp(self):
        vllm_engines.need_torch()

    def said(self, program, *paths):
        """Return the output of a program that has the package, and the stand-in for vLLM or other packages."""
        path = os.pathsep.join(map(str, (common.PACKAGE, *(paths or (vllm_engines.STANDIN,)))))
        p = subprocess.run([sys.executable, "-B", "-c", SAYS + program], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(p.returncode, 0, p.stdout)
        return p.stdout.strip()

    def test_the_entry_point(self):
        with open(common.PACKAGE / "pyproject.toml", "rb") as f:
            point = tomllib.load(f)["project"]["entry-points"]["vllm.general_plugins"]["gpufd"]
        module, _, name = point.partition(":")
        self.assertEqual(self.said(f"import {module}\nprint({module}.{name}())"), "None")

    def test_nothing_is_imported_before(self):
        heavy = self.said("before = set(sys.modules); gpufd.vllm.register(); print(*(m for m in sys.modules if m.partition('.')[0] in ('vllm', 'torch', 'numpy')))")
        self.assertEqual(heavy, "")

    def test_before_vllm_and_after_it(self):
        self.assertEqual(self.said("gpufd.vllm.register()" + LOOKS), THERE)
        self.assertEqual(self.said(f"import {ALL.replace(' ', ', ')}\ngpufd.vllm.register()" + LOOKS), THERE)

    def test_again_and_again(self):
        again = "\nfor i in range(3): gpufd.vllm.register()\n"
        self.assertEqual(self.said(again + LOOKS + again + LOOKS), f"{THERE}\n{THERE}")

    def test_no_vllm(self):
        program = f"""
gpufd.vllm.register()
for name in "vllm {ALL}".split():
    try:
        __import__(name)
    except ModuleNotFoundError as e:
        print(e)
"""
        self.assertEqual(set(self.said(program, common.PACKAGE).splitlines()), {"No module named 'vllm'"})

    def test_another_vllm(self):
        """Parts that it does not have are missed with a warning, and its import goes on."""
        with tempfile.TemporaryDirectory() as directory:
            for name in ALL.split():
                at = pathlib.Path(directory, *name.split("."))
                at.mkdir(parents=True)
                (at / "__init__.py").write_text("here = True\n")
            said = self.said(f"gpufd.vllm.register()\nfor name in '{ALL}'.split():\n    print(__import__(name, fromlist=['here']).here)", directory)
        lines = said.splitlines()
        self.assertEqual(lines.count("True"), 4)
        warnings = [line for line in lines if line != "True"]
        self.assertEqual(len(warnings), 4, said)
        for name, line in zip(ALL.split(), warnings):
            self.assertIn(f"WARNING gpufd cannot register with {name}, and vLLM goes on without that: ", line)

    def test_an_import_that_fails_and_then_does_not(self):
        with tempfile.TemporaryDirectory() as directory:
            at = pathlib.Path(directory, "vllm", "device_allocator")
            at.mkdir(parents=True)
            fails = "import os\nif 'FAILS' in os.environ: raise RuntimeError('of vLLM')\n"
            (at / "sleep_mode_backend.py").write_text(fails + "class SleepModeBackendFactory:\n    register_backend = print\n")
            program = """
import os
os.environ["FAILS"] = "1"
gpufd.vllm.register()
try:
    import vllm.device_allocator.sleep_mode_backend
except RuntimeError as e:
    print(e)
del os.environ["FAILS"]
import vllm.device_allocator.sleep_mode_backend
"""
            self.assertEqual(self.said(program, directory), "of vLLM\ngpufd gpufd.vllm.sleep GpufdSleepBackend")

    def test_an_importer_that_does_not_let_it(self):
        """The import goes on."""
        program = """
import importlib.machinery
class Loader(importlib.machinery.SourceFileLoader):
    def __setattr__(self, key, value):
        if key == "exec_module":
            raise AttributeError("it is fixed")
        super().__setattr__(key, value)
class Finder:
    def find_spec(name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and name == "vllm.device_allocator.sleep_mode_backend":
            spec.loader = Loader(name, spec.origin)
        return spec
sys.meta_path.insert(0, Finder)
gpufd.vllm.register()
import vllm.device_allocator.sleep_mode_backend as there
print(list(there.SleepModeBackendFactory._registry))
"""
        why = "WARNING gpufd cannot register with vllm.device_allocator.sleep_mode_backend, and vLLM goes on without that: AttributeError: it is fixed"
        self.assertEqual(self.said(program), why + "\n[]")

    def test_somebody_else_has_the_name(self):
        program = """
import vllm.device_allocator.sleep_mode_backend as there
there.SleepModeBackendFactory.register_backend("gpufd", "a", "b")
gpufd.vllm.register()
"""
        why = "ValueError: Sleep-mode backend 'gpufd' is already registered."
        self.assertRegex(self.said(program), f"^WARNING gpufd cannot register with vllm.device_allocator.sleep_mode_backend, .*: {why}$")

    def test_verify_says_what_fails(self):
        """Inside the stand-in, which has not all that a vLLM has."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.pathsep.join(map(str, (common.PACKAGE, vllm_engines.STANDIN)))
            command = [sys.executable, "-B", VERIFY, "signatures", "plugin"]
            p = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(p.returncode, 1, p.stdout)
            first, second = p.stdout.splitlines()
            self.assertRegex(first, r"^signatures   FAILED  these differ: .*, vllm.distributed.weight_transfer.base.VLLMWeightSyncClient is missing")
            for same in ("get_pp_group", "BaseModelLoader", "WeightTransferUpdateInfo", "request_memory"):
                self.assertNotIn(same, first)
            self.assertNotIn("vllm.version.__version__", first)
            self.assertRegex(second, r"^plugin       FAILED .*verify-plugin.log")
            self.assertIn("No module named 'vllm.plugins'", pathlib.Path(directory, "verify-plugin.log").read_text())


class Verify(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("vllm_verify", VERIFY)
        self.verify = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, {"vllm_verify": self.verify}):  # dataclasses look there
            spec.loader.exec_module(self.verify)

    def test_a_step_that_there_is_not(self):
        p = subprocess.run([sys.executable, "-B", VERIFY, "plugin", "sleeps", "warmer"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(p.returncode, 2, p.stdout)
        self.assertIn("no step sleeps, warmer: there are signatures, plugin, disk, ", p.stdout)

    def test_a_step_that_hangs_has_failed(self):
        a = types.SimpleNamespace(model="none", results="none")
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory), mock.patch.object(self.verify, "LIMIT", 0.001):
            row = self.verify.run(a, self.verify.disk)
            self.assertTrue(pathlib.Path("verify-disk.log").is_file())
        self.assertEqual((row.state, row.text), ("FAILED", "it has not ended within 0.001 s (verify-disk.log)"))

    def test_errors_of_vllm_are_not_taken_for_those_of_gpufd(self):
        vllm_engines.need_torch()
        vllm_engines.registered()
        from gpufd.vllm import agreed, kinds, loader

        def kept():
            client = types.SimpleNamespace(find=lambda name: types.SimpleNamespace(version=1, labels={"dtype": "a"}))
            loader.check_kept(client, agreed.Agreed("name", {"dtype": "b"}))

        def supported():
            kinds.check_supported(None, types.SimpleNamespace(quantization="fp8", hf_config=None))

        def wrapped():
            try:
                supported()
            except Exception as e:
                raise RuntimeError("the engine has not started") from e

        def foreign():
            raise ValueError("the dtype is float32: quantization fp8 is not supported")

        for step, passes, does in (
            ("mismatch", True, kept), ("mismatch", False, foreign), ("mismatch", False, supported), ("mismatch", False, dict),
            ("refused", True, supported), ("refused", True, wrapped), ("refused", False, foreign), ("refused", False, kept), ("refused", False, dict),
        ):  # fmt: skip
            with self.subTest(f"{step} {does.__name__}"), mock.patch.object(self.verify, "engine", lambda *_, **__: contextlib.nullcontext(does())):  # noqa: B023
                with contextlib.nullcontext() if passes else self.assertRaises(self.verify.Failed):
                    getattr(self.verify, step)(types.SimpleNamespace(model="none"), {})


if __name__ == "__main__":
    unittest.main()
