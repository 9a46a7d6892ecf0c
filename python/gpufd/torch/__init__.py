"""Models in memory that a keeper keeps: PyTorch tensors over it, without a copy.

    gpufd.torch.put("llama", model, labels={"revision": "main"})

    state = gpufd.torch.load("llama")                # a dictionary of tensors
    state.apply(model)                                # they are the model's, without a copy

    for version in gpufd.torch.follow("llama"):      # each newer one, beside the one before
        version.swap(model)

Tensors of ``load`` lie in memory that is mapped read-only. A write through one is not refused
by PyTorch: on a GPU it fails the process's CUDA context for good, with the software driver it
kills the process. So what is loaded is for inference; ``clone()`` gives a private copy. The same
holds of a model's tensors after ``put``. ``debug=True`` finds what writes: WriteGuard.

A Model keeps the addresses of its weights, and gives their memory back while it sleeps; ``follow(at=)`` keeps addresses, too.
``checkpoint(pid)`` moves all that a process has on a GPU into its host memory.

Inside ``with SharedPool():`` tensors are made where put leaves them. Handles for queues and for other
engines' code: reduce_tensor and register_reducer.

A tensor keeps the memory, and the lease of it, until the last one that shares its storage is gone.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy
from .weights import DTYPES, Loaded, load, put, tensors

if TYPE_CHECKING:
    from .checkpoints import Checkpoint, checkpoint
    from .guard import WriteGuard
    from .handles import rebuild_tensor, reduce_tensor, register_reducer, release
    from .model import Model
    from .pool import SharedPool
    from .versions import ModelVersion, follow
else:
    __getattr__, __dir__, _MODULE_OF = lazy(__name__, {
        "checkpoints": "Checkpoint checkpoint", "guard": "WriteGuard", "handles": "rebuild_tensor reduce_tensor register_reducer release",
        "model": "Model", "pool": "SharedPool", "versions": "ModelVersion follow",
    })  # fmt: skip

__all__ = [
    "Checkpoint", "DTYPES", "Loaded", "Model", "ModelVersion", "SharedPool", "WriteGuard", "checkpoint", "follow", "load", "put",
    "rebuild_tensor", "reduce_tensor", "register_reducer", "release", "tensors",
]  # fmt: skip
