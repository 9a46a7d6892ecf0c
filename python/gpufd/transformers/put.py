"""put: has a keeper keep a model of transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch
import transformers

from .. import arguments
from ..errors import MismatchError, UsageError
from ..keeper.control import TIMEOUT
from ..keeper.tables import quote
from ..memory.device import Device
from ..progress import Progress
from ..torch.assign import Place, beside, fitted, some
from ..torch.parts import put_parts
from .build import without_memory
from .description import describe, description_in, digest
from .devices import PARTS, device_map_of

if TYPE_CHECKING:
    from ..keeper.client import Client
    from ..keeper.deposit import Delivered


def put(
    name: str, model: Any, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None,
    expect_version: int | None = None, device: Device | None = None, driver: str | int | None = None, chunk: int = 0,
    metadata: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT, progress: Progress = None,
) -> Delivered:  # fmt: skip
    """Put a model of transformers into a keeper: its weights, its configuration, and the buffers that are in no file.

    The model's weights move, and are read-only when the version is committed, as with gpufd.torch.put; its other tensors stay its own.
    The arguments are those of gpufd.torch.put, for a version of one part. A model that device_map has put on several GPUs becomes a part for
    each, of one version: what is returned has the bytes of all, and the digest of the last.

    Raises UsageError, before anything is changed, for a model that cannot be made anew from its configuration: a quantised one,
    one with adapters or replaced modules, one that is offloaded in part. UnavailableError if its class cannot be found by its name.
    """
    model = getattr(model, "_orig_mod", model)  # that of torch.compile
    what = f"{quote(name)}, a {type(model).__name__}"
    _check(model, what)
    state = dict(model.state_dict(keep_vars=True))
    device_map = device_map_of(model, state, driver, what)
    if device_map and device is not None:
        raise UsageError(f"{what}, is on {len(device_map.devices)} devices, and device={device} is one: leave it out")
    texts, others = _texts(model, state, what)
    if device_map:
        texts[PARTS] = json.dumps(device_map.parts)
    if taken := [key for key in arguments.labels(metadata, "metadata text") if key in texts]:
        raise UsageError(f"metadata {quote(taken[0])} is the model's own: choose another name")
    parts, home = (device_map.split(state), device_map.part_of) if device_map else ([state], lambda name: 0)
    devices: list[Device | None] = [*device_map.devices] if device_map else [device]
    if device_map:  # attributes that are no buffers are where they were made: accelerate does not move them
        _move(others, parts, home)
    for place in others:
        parts[home(place.name)][place.name] = place.tensor.detach()
    for t in {id(place.tensor): place.tensor for place in others}.values():
        t.data = t.clone()  # what was there until now may lie in a SharedPool, which goes to the keeper
    delivered = put_parts(
        name, parts, devices, socket=socket, labels=labels, expect_version=expect_version, driver=driver, chunk=chunk,
        metadata={**(metadata or {}), **texts}, timeout=timeout, progress=progress,
    )  # fmt: skip
    _move(others, parts, home)  # weights of the CPU have moved
    return delivered


def _move(places: list[Place], parts: list[dict[str, Any]], home: Callable[[str], int]) -> None:
    """Move tensors to where the first one of their part is."""
    for place, part in [(place, parts[home(place.name)]) for place in places]:  # all are found before one is moved
        place.tensor.data = place.tensor.data.to(next(iter(part.values())).device)


def _texts(model: Any, state: Mapping[str, Any], what: str) -> tuple[dict[str, str], list[Place]]:
    """Return what is kept beside a model's tensors, and the places of those to keep that its state_dict lacks.

    Raises UsageError unless a reader can make the model anew.
    """
    description = describe(model)
    description_in(description.metadata(), what)  # as a reader checks it
    made = without_memory(description, state, what)
    places, names = beside(model), {place.name for place in beside(made)}
    if absent := sorted(names - {place.name for place in places}):
        raise UsageError(f"{what}, lacks buffers that its configuration makes: {some(absent)}")
    _check_same(model, made, state, what)
    others = [place for place in places if place.name in names]  # and not what a forward has left
    description.classes.beside = {place.name: digest(place.tensor) for place in others}
    return description.metadata(), others


def _check(model: Any, what: str) -> None:
    """Raise UsageError for what is no model of transformers, or one whose tensors are more than their bytes."""
    if not isinstance(model, transformers.PreTrainedModel):
        raise UsageError(f"{what}, is no transformers.PreTrainedModel: gpufd.torch.put keeps the tensors of any module")
    said = getattr(model.config, "quantization_config", None)
    if said or getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        method = said.get("quant_method") if isinstance(said, dict) else getattr(said, "quant_method", None)
        kind = getattr(method, "value", method) or "a method without a name"
        raise UsageError(f"{what}, is quantised ({kind}), and has state besides its tensors: put the model that it was made of, or call dequantize() before")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise UsageError(f"{what}, has adapters of PEFT: merge them, or put them as a name of their own by gpufd.torch.put")


def _check_same(model: Any, made: Any, state: Mapping[str, Any], what: str) -> None:
    """Raise UsageError unless a model's configuration makes the same modules, and room for the same tensors."""
    for (path, mine), (other, its) in zip_longest(model.named_modules(), made.named_modules(), fillvalue=("", None)):
        if path != other or type(mine).__qualname__ != type(its).__qualname__:
            raise UsageError(f"{what}, has a {type(mine).__name__} at {quote(path)} where its configuration makes a {type(its).__name__} at {quote(other)}: "
                             "modules that were replaced or added cannot be made anew")  # fmt: skip
    if hidden := [f"{path}.{key}" for path, module in made.named_modules() for key, value in vars(module).items() if _has_tensors(key, value)]:
        raise UsageError(f"{what}, has tensors in lists or dictionaries, which cannot be kept: {some(hidden)}")
    try:
        fitted(made, state, "what it has", strict=True)
    except MismatchError as e:
        raise UsageError(f"{what}, is not what its configuration makes: {e}") from e


def _has_tensors(key: str, value: Any) -> bool:
    """Return whether an attribute of a module, which is none of PyTorch's own, is a list or a dictionary of tensors."""
    if key in ("_parameters", "_buffers"):
        return False
    inner = value.values() if type(value) is dict else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(t, torch.Tensor) for t in inner)
