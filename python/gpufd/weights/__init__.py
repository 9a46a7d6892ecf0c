"""Weights that change every step, from a trainer to the engines on the same GPU.

    pub = gpufd.weights.Publisher("policy", metadata, bucket=256 << 20)   # the trainer, one for each GPU
    with pub.update(step) as send:
        for name, tensor in named_tensors:
            send(name, tensor)

    sub = gpufd.weights.Subscriber("policy")                              # the engine's worker on that GPU
    for update in sub:
        update.load(load_weights)

Tensors go through buckets in the GPU's memory, which both sides have mapped once. The engine may keep tensors: a bucket is
written again when the last tensor of it is gone. An update that did not end whole, because the trainer was killed or the loading
raised, is never taken for weights: ``Subscriber.step`` raises until another was loaded. In place, the engine computes on the
trainer's memory (``in_place=True``, and ``bind`` on both sides). docs/python.md in gpufd's sources says more.

Its names are Publisher and UpdateWriter, Subscriber, Update and InPlaceUpdate, Meta, Subscribed and WeightsError: help(gpufd.weights.Publisher).
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from ..errors import WeightsError
    from .bound import InPlaceUpdate
    from .meta import Meta
    from .publisher import Publisher, Subscribed
    from .sending import UpdateWriter
    from .subscriber import Subscriber
    from .update import Update
else:
    __getattr__, __dir__, _MODULE_OF = lazy(__name__, {
        ".errors": "WeightsError",
        "bound": "InPlaceUpdate", "meta": "Meta", "publisher": "Publisher Subscribed", "sending": "UpdateWriter", "subscriber": "Subscriber", "update": "Update",
    })  # fmt: skip

__all__ = ["InPlaceUpdate", "Meta", "Publisher", "Subscribed", "Subscriber", "Update", "UpdateWriter", "WeightsError"]
