"""Models in memory that a keeper keeps: PyTorch tensors over it, without a copy.

    state = gpufd.torch.load("llama")                # a dictionary of tensors
    model.load_state_dict(state, assign=True)         # PyTorch 2.1 and newer
    state.check(model)                                # all of the model lies in kept memory

    gpufd.torch.put("llama", model, labels={"revision": "main"})

Tensors of ``load`` lie in memory that is mapped read-only. A write through one is not refused
by PyTorch: on a GPU it fails the process's CUDA context for good, with the software driver it
kills the process. So what is loaded is for inference; ``clone()`` gives a private copy. The same
holds of a model's tensors after ``put``.

Inside ``with SharedPool():`` tensors are made where put leaves them. Handles for queues and for other
engines' code: reduce_tensor and register_reducer.

A tensor keeps the memory, and the lease of it, until the last one that shares its storage is gone.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .weights import DTYPES, Loaded, load, put, tensors

if TYPE_CHECKING:
    from .handles import rebuild_tensor, reduce_tensor, register_reducer, release
    from .pool import SharedPool
else:
    __getattr__, __dir__, _MODULE_OF = lazy(__name__, {"handles": "rebuild_tensor reduce_tensor register_reducer release", "pool": "SharedPool"})

__all__ = ["DTYPES", "Loaded", "SharedPool", "load", "put", "rebuild_tensor", "reduce_tensor", "register_reducer", "release", "tensors"]
