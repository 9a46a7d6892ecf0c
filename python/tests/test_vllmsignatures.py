"""gpufd.vllm, and the stand-in that its other tests have, held against signatures of vLLM: scripts/vllm_signatures.py."""

import ast
import importlib
import importlib.util
import inspect
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import common
import vllm_engines

PACKAGE = common.PACKAGE / "gpufd/vllm"
DATA = json.loads((common.PACKAGE / "tests/vllm-signatures.json").read_text())
P = inspect.Parameter


def signature(said):
    """The signature that data has."""
    made, kind = [], P.POSITIONAL_OR_KEYWORD
    for name in said:
        if name == "/":
            made = [p.replace(kind=P.POSITIONAL_ONLY) for p in made]
        elif name == "*":
            kind = P.KEYWORD_ONLY
        elif name.startswith("**"):
            made.append(P(name[2:], P.VAR_KEYWORD))
        elif name.startswith("*"):
            made.append(P(name[1:], P.VAR_POSITIONAL))
            kind = P.KEYWORD_ONLY
        else:
            made.append(P(name.rstrip("="), kind, default=None if name.endswith("=") else P.empty))
    return inspect.Signature(made)


def shape(sig):
    """Return the part of a signature that has to agree: types are free, and so is the value of a default."""
    return [(p.name, p.kind, p.default is P.empty) for p in sig.parameters.values()]


def classes(name):
    """A class of vLLM's, and those of the same module that it inherits from, as data has them."""
    module, _, _ = name.rpartition(".")
    while name in DATA:
        yield name, DATA[name]
        bases = [f"{module}.{base.partition('[')[0]}" for base in DATA[name]["bases"]]
        name = next((b for b in bases if b in DATA), "")


def methods(name):
    """The methods of a class, with those that it inherits."""
    found = {}
    for _, said in reversed(list(classes(name))):
        found |= said["methods"]
    return found


def trees():
    return {path.name: ast.parse(path.read_text()) for path in PACKAGE.glob("*.py")}


def imported(tree):
    """The names of vLLM that a module of ours imports, by what it calls them."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level and node.module.partition(".")[0] == "vllm"
        for alias in node.names
    }  # fmt: skip


class Signatures(unittest.TestCase):
    def test_the_data_says_where_it_is_from(self):
        self.assertGreater(len(DATA), 25)
        for name, said in DATA.items():
            self.assertRegex(said["source"], "^vllm-project/vllm[@,]", name)
            self.assertTrue(said["file"].startswith("vllm/"), name)

    def test_names_that_are_imported_are_there(self):
        names = [name for tree in trees().values() for name in imported(tree).values()]
        self.assertGreater(len(names), 15)
        self.assertEqual([name for name in names if name not in DATA], [])

    def test_modules_that_register_waits_for_are_there(self):
        """And what it asks of them."""
        import gpufd.vllm as plugin

        tree = trees()["__init__.py"]
        modules = {n.args[0].value: n.args[1].id for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "when_imported"}
        functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.assertEqual(len(modules), 4)
        for module, then in modules.items():
            asked = {n.attr for n in ast.walk(functions[then]) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "there"}
            self.assertTrue(asked, then)
            for name in asked:
                self.assertIn(f"{module}.{name}", DATA)
            for call in (n for n in ast.walk(functions[then]) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr.startswith("register_")):
                owner = call.func.value.attr if isinstance(call.func.value, ast.Attribute) else ""
                said = DATA[f"{module}.{owner}"]["methods"][call.func.attr] if owner else DATA[f"{module}.{call.func.attr}"]
                self.assertBinds(call, said["parameters"], bool(owner))
        self.assertTrue(callable(plugin.register))

    def assertBinds(self, call, said, bound):
        """A call's arguments fit a signature."""
        args = [None] * (len(call.args) + bound)
        keywords = {k.arg: None for k in call.keywords}
        try:
            signature(said).bind(*args, **keywords)
        except TypeError as e:
            self.fail(f"{ast.unparse(call)}: {e}, of {said}")

    def test_calls_fit(self):
        """Those of functions, of classes that are made, and of methods of such objects."""
        made = 0
        for file, tree in trees().items():
            names = imported(tree)
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
                name = names.get(getattr(call.func, "id", ""), "")
                if "parameters" in DATA.get(name, {}):
                    self.assertBinds(call, DATA[name]["parameters"], False)
                elif "__init__" in (methods(name) if "methods" in DATA.get(name, {}) else {}):
                    self.assertBinds(call, methods(name)["__init__"]["parameters"], True)
                else:
                    continue
                made += 1
            loader = "vllm.model_executor.model_loader.base_loader.BaseModelLoader"
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("self._from_disk()")):
                self.assertBinds(call, methods(loader)[call.func.attr]["parameters"], True)
                made += 1
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("self._cumem.")):
                self.assertBinds(call, methods("vllm.device_allocator.sleep_mode_backend.CuMemBackend")[call.func.attr]["parameters"], True)
                made += 1
            told = ("client.init_weight_transfer_engine", "self.client.start_weight_update", "self.client.finish_weight_update")
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in told):
                self.assertBinds(call, methods("vllm.distributed.weight_transfer.base.VLLMWeightSyncClient")[call.func.attr]["parameters"], True)
                made += 1
        self.assertGreaterEqual(made, 17)


class Classes(unittest.TestCase):
    def setUp(self):
        vllm_engines.need_torch()
        vllm_engines.registered()

    def ours(self):
        """Our classes, each with vLLM's that it is a kind of."""
        from gpufd.vllm import loader, sleep, transfer

        for module in (loader, sleep, transfer):
            names = imported(trees()[module.__name__.rpartition(".")[2] + ".py"])
            for node in (n for n in trees()[module.__name__.rpartition(".")[2] + ".py"].body if isinstance(n, ast.ClassDef)):
                bases = [names[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in names]
                if bases:
                    yield getattr(module, node.name), bases[0]

    def test_all_that_is_abstract_is_there_and_takes_what_vllm_passes(self):
        found = dict((cls.__name__, base) for cls, base in self.ours())
        self.assertEqual(len(found), 7, found)
        for cls, base in self.ours():
            for name, said in methods(base).items():
                own = cls.__dict__.get(name)
                with self.subTest(f"{cls.__name__}.{name}"):
                    self.assertFalse(said.get("abstractmethod") and own is None, "it is abstract")
                    if own is None or name == "__init__" and cls.__name__ == "GpufdTrainerWeightTransferEngine":  # which only its own trainer_init makes
                        continue
                    for kind, of in (("classmethod", classmethod), ("staticmethod", staticmethod)):
                        self.assertEqual(isinstance(own, of), bool(said.get(kind)))
                    self.assertEqual(shape(inspect.signature(getattr(own, "__func__", own))), shape(signature(said["parameters"])))

    def test_methods_of_ours_that_vllm_does_not_know_are_not_public(self):
        for cls, base in self.ours():
            public = {name for name, value in vars(cls).items() if callable(value) and not isinstance(value, type) and not name.startswith("_")}
            self.assertLessEqual(public, set(methods(base)), cls)

    def test_what_workers_are_told_has_the_types_for_it(self):
        from gpufd.vllm.transfer import GpufdTrainerWeightTransferEngine, GpufdWeightTransferEngine

        base = DATA["vllm.distributed.weight_transfer.base.WeightTransferEngine"]["fields"]
        self.assertTrue({"init_info_cls", "update_info_cls"} <= set(base) and all(hasattr(GpufdWeightTransferEngine, name) for name in base if not base[name]))
        base = DATA["vllm.distributed.weight_transfer.base.TrainerWeightTransferEngine"]["fields"]
        self.assertTrue(base and all(hasattr(GpufdTrainerWeightTransferEngine, name) for name in base))


class StandIn(unittest.TestCase):
    """The stand-in is as the data says, where it has something."""

    def setUp(self):
        vllm_engines.need_torch()

    def test_names_and_signatures(self):
        compared = 0
        for name, said in DATA.items():
            module, _, leaf = name.rpartition(".")
            if leaf == "VLLMWeightSyncClient":
                continue
            there = getattr(importlib.import_module(module), leaf)
            with self.subTest(name):
                if "parameters" in said:
                    there = getattr(there, "__wrapped__", there)
                    self.assertEqual(shape(inspect.signature(there)), shape(signature(said["parameters"])))
                    compared += 1
                for method, of in said.get("methods", {}).items():
                    own = there.__dict__.get(method, next((vars(base)[method] for base in there.__mro__ if method in vars(base)), None))
                    if own is None or isinstance(own, property) or own is object.__init__:
                        continue
                    with self.subTest(method):
                        own_function = getattr(own, "__func__", own)
                        self.assertEqual(bool(getattr(own_function, "__isabstractmethod__", False)), bool(of.get("abstractmethod")))
                        self.assertEqual(shape(inspect.signature(own_function)), shape(signature(of["parameters"])))
                        compared += 1
        self.assertGreater(compared, 45)

    def test_it_is_the_stand_in(self):
        import vllm

        self.assertIn("vllmstandin", vllm.__file__ or "")
        self.assertIn(str(vllm_engines.STANDIN), sys.path)


class Script(unittest.TestCase):
    """scripts/vllm_signatures.py, over a made-up vLLM."""

    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for there in ("scripts", "python/tests"):
            (self.dir / there).mkdir(parents=True)
        copy = shutil.copy(common.ROOT / "scripts/vllm_signatures.py", self.dir / "scripts")
        spec = importlib.util.spec_from_file_location("vllm_signatures", copy)
        self.script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.script)
        for module, names in self.script.USED.items():
            self.write(module, "".join(f"def {name}(): ...\n" for name in names))
        self.files = [f"{module.replace('.', '/')}/__init__.py" for module in self.script.USED]

    def write(self, module, text):
        path = self.dir.joinpath("sources", *module.split("."), "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def written(self, source):
        """Run the script, and return what it has written."""
        self.script.main(str(self.dir / "sources"), source)
        return json.loads((self.dir / "python/tests/vllm-signatures.json").read_text())

    def test_functions_that_are_async(self):
        self.write("vllm.v1.worker.gpu_worker", "async def request_memory(a, b=1): ...\n")
        body = "    @abstractmethod\n    async def sleep(self, level): ...\n    def wake(self): ...\n"
        self.write("vllm.model_executor.model_loader.base_loader", "class BaseModelLoader:\n" + body)
        data = self.written("vllm-project/vllm@1")
        self.assertEqual({key: data["vllm.v1.worker.gpu_worker.request_memory"].get(key) for key in ("parameters", "async")}, {"parameters": ["a", "b="], "async": True})
        methods = data["vllm.model_executor.model_loader.base_loader.BaseModelLoader"]["methods"]
        self.assertEqual(methods, {"sleep": {"parameters": ["self", "level"], "async": True, "abstractmethod": True}, "wake": {"parameters": ["self"]}})

    def test_a_file_that_the_list_of_sources_lacks(self):
        """The list's own path is of this machine, and does not go into the data."""
        sources = self.dir / "sources.txt"
        sources.write_text("".join(f"{file}\tvllm-project/vllm@2\n" for file in self.files))
        self.assertEqual({said["source"] for said in self.written(str(sources)).values()}, {"vllm-project/vllm@2"})
        (self.dir / "python/tests/vllm-signatures.json").unlink()
        sources.write_text("".join(f"{file}\tvllm-project/vllm@2\n" for file in self.files[1:]))
        with self.assertRaisesRegex(SystemExit, f"^missing: vllm/version/__init__.py in {sources}$"):
            self.written(str(sources))
        self.assertFalse((self.dir / "python/tests/vllm-signatures.json").exists())


if __name__ == "__main__":
    unittest.main()
