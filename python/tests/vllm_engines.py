"""The stand-in for vLLM, and engines of it, for tests of gpufd.vllm. Run as a program, it is an engine in a process of its own."""

import json
import os
import pathlib
import sys
from unittest import mock

import common

STANDIN = pathlib.Path(__file__).resolve().parent / "vllmstandin"
sys.path.insert(0, str(STANDIN))

try:
    import torch
except ImportError:
    torch = None
else:
    import tiny
    import gpufd.vllm


def need_torch():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")


def registered():
    """Register, as vLLM does when it loads its plug-ins, and import the modules of vLLM. Returns a patch for old versions of PyTorch, which is to be started."""
    gpufd.vllm.register()
    import vllm.device_allocator.sleep_mode_backend
    import vllm.distributed.weight_transfer.factory
    import vllm.model_executor.model_loader
    import vllm.v1.worker.gpu_worker  # noqa: F401
    from gpufd.vllm import loader

    return mock.patch.object(loader, "on_meta", loader.on_meta if hasattr(torch.device, "__enter__") else Meta)


if torch is not None and not hasattr(torch.device, "__enter__"):  # before PyTorch 2.0
    from torch.overrides import TorchFunctionMode

    class Meta(TorchFunctionMode):
        """``with torch.device("meta")``."""

        makes = (torch.empty, torch.ones, torch.zeros, torch.full, torch.arange)

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func in self.makes and kwargs.get("device") is None:
                kwargs["device"] = "meta"
            return func(*args, **kwargs)


def loads():
    """Return how often this process has read weights from disk."""
    from vllm.model_executor.model_loader import DefaultModelLoader

    return DefaultModelLoader.loads


def engine(config):
    """Return the model that an engine with a configuration has loaded."""
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    from vllm.model_executor.model_loader import get_model

    _ROPE_DICT.clear()  # each engine has a process of its own
    return get_model(vllm_config=config)


def addresses(model):
    """Return where a model's parameters are."""
    return {name: p.data_ptr() for name, p in model.named_parameters()}


def main(directory, socket):
    """Load a model, say what it answers, and wait for the end of the input."""
    patched = registered()
    with patched:
        model = engine(tiny.config(directory, {"socket": socket}))
    print(json.dumps({"answer": tiny.answer(model), "loads": loads(), "pid": os.getpid()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
