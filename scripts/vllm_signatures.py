#!/usr/bin/env python3
"""Writes python/tests/vllm-signatures.json: the signatures of vLLM that gpufd.vllm relies on. vLLM is read, not imported.

    scripts/vllm_signatures.py DIRECTORY SOURCE

DIRECTORY has the package vllm. SOURCE says where it is from, as vllm-project/vllm@COMMIT; or it is a file that says so for each file
of the package: lines of path, a tab, and source. The test python/tests/test_vllmsignatures.py holds gpufd.vllm against the result.
"""

import ast
import json
import pathlib
import sys

USED = {  # the names that gpufd.vllm has of each module; of a class all methods count
    "vllm.version": ["__version__"],
    "vllm.config": ["get_current_vllm_config"],
    "vllm.config.weight_transfer": ["WeightTransferConfig"],
    "vllm.distributed": ["get_pp_group", "get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"],
    "vllm.distributed.weight_transfer.base": [
        "ParamMeta", "TrainerInitInfo", "TrainerWeightTransferEngine", "WeightSource", "WeightTransferEngine", "WeightTransferInitInfo",
        "WeightTransferUpdateInfo", "VLLMWeightSyncClient",
    ],
    "vllm.distributed.weight_transfer.factory": ["WeightTransferEngineFactory", "WeightTransferTrainerFactory"],
    "vllm.device_allocator.sleep_mode_backend": ["CuMemBackend", "SleepModeBackend", "SleepModeBackendFactory"],
    "vllm.model_executor.layers.rotary_embedding": ["_ROPE_DICT"],
    "vllm.model_executor.model_loader": ["register_model_loader"],
    "vllm.model_executor.model_loader.base_loader": ["BaseModelLoader"],
    "vllm.model_executor.model_loader.default_loader": ["DefaultModelLoader"],
    "vllm.model_executor.model_loader.reload": ["finalize_layerwise_reload", "initialize_layerwise_reload"],
    "vllm.model_executor.model_loader.utils": ["initialize_model", "process_weights_after_loading"],
    "vllm.model_executor.utils": ["weights_already_processed"],
    "vllm.utils.torch_utils": ["set_default_torch_dtype"],
    "vllm.v1.worker.gpu_worker": ["request_memory"],
}  # fmt: skip


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class Package:
    """The sources of vLLM."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def path_of(self, module):
        """The file of a module, relative to the directory, or None."""
        base = pathlib.Path(*module.split("."))
        return next((p for p in (base / "__init__.py", base.with_suffix(".py")) if (self.directory / p).is_file()), None)

    def find(self, module, name):
        """Return the file that defines a name, and its node. Imports are followed; where they lead out of the sources, the node is the import."""
        path = self.path_of(module)
        if path is None:
            return None, None
        for node in ast.parse((self.directory / path).read_text()).body:
            if isinstance(node, (*FUNCTION, ast.ClassDef)) and node.name == name:
                return path, node
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return path, node
            if isinstance(node, ast.ImportFrom) and any(alias.name in (name, "*") for alias in node.names):
                there, found = self.find(_absolute(module, path, node), name)
                if found is not None:
                    return there, found
                if not any(alias.name == "*" for alias in node.names):
                    return path, node
        return None, None


def _absolute(module, path, node):
    """The module that an import names."""
    if not node.level:
        return node.module
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *(node.module or "").split(".")]).rstrip(".")


def parameters(f):
    """A function's parameters: names, "=" behind those that have a default, "/" and "*" as in the source."""
    a = f.args
    plain = [p.arg for p in (*a.posonlyargs, *a.args)]
    said = [name + "=" * (i >= len(plain) - len(a.defaults)) for i, name in enumerate(plain)]
    if a.posonlyargs:
        said.insert(len(a.posonlyargs), "/")
    if a.vararg or a.kwonlyargs:
        said.append("*" + (a.vararg.arg if a.vararg else ""))
    said += [p.arg + "=" * (default is not None) for p, default in zip(a.kwonlyargs, a.kw_defaults)]
    return said + (["**" + a.kwarg.arg] if a.kwarg else [])


def described(node):
    """Return the part of a definition that is written."""
    if isinstance(node, FUNCTION):
        return {"parameters": parameters(node)} | ({"async": True} if isinstance(node, ast.AsyncFunctionDef) else {})
    if isinstance(node, ast.ClassDef):
        methods = {}
        for f in (n for n in node.body if isinstance(n, FUNCTION)):
            decorators = [ast.unparse(d) for d in f.decorator_list]
            methods[f.name] = described(f) | {d: True for d in ("abstractmethod", "classmethod", "staticmethod", "property") if d in decorators}
        fields = {n.target.id: n.value is not None for n in node.body if isinstance(n, ast.AnnAssign)}
        return {"bases": [ast.unparse(b) for b in node.bases], "fields": fields, "methods": methods}
    return {}


def main(directory, source):
    package, listed = Package(directory), None
    if pathlib.Path(source).is_file():
        listed = dict(line.split("\t") for line in pathlib.Path(source).read_text().splitlines())
    found, missing = {}, []
    for module, names in USED.items():
        for name in names:
            path, node = package.find(module, name)
            if node is None:
                missing.append(f"{module}.{name} in {directory}")
            elif listed is not None and str(path) not in listed:
                missing.append(f"{path} in {source}")
            else:
                found[f"{module}.{name}"] = {"file": str(path), "source": listed[str(path)] if listed else source} | described(node)
    if missing:
        sys.exit(f"missing: {', '.join(dict.fromkeys(missing))}")
    target = pathlib.Path(__file__).resolve().parent.parent / "python/tests/vllm-signatures.json"
    target.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(said)}" for name, said in found.items()) + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
