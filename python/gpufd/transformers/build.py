"""A model as its description says it, without memory for its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import transformers

from ..errors import MismatchError, UnavailableError, UsageError
from ..torch.assign import beside, like, places_of, replace, some
from ..torch.weights import Loaded
from .description import Description, class_of, description_in


def model_of(state: Loaded) -> Any:
    """Return the model that was put with these tensors, in eval mode: its weights are without memory yet, for Loaded.apply.

    Tensors that are in no state_dict are copies of the kept ones already.
    """
    what = f"version {state.data.version} of {state.data.name}"
    model = without_memory(description_in(state.metadata, what), state, what)
    places = beside(model)
    if lacking := [place.name for place in places if place.name not in state]:
        raise MismatchError(f"{what} lacks buffers of the model: {some(lacking)} (put with another version of transformers?)", reason="tensors")
    copies: dict[Any, Any] = {}
    for place in places:
        t = state[place.name]
        setattr(place.module, place.key, copies.setdefault(_identity(t, place.name), t.clone()))
    return model


def without_memory(description: Description, state: Mapping[str, Any], what: str) -> Any:
    """Return the model of a description, all on device meta. Its parameters have the types of the state's tensors, and are tied as those are."""
    kind = class_of(description.classes.model, transformers.PreTrainedModel, what)
    config_kind = class_of(description.classes.config, transformers.PretrainedConfig, what)
    try:
        config = config_kind.from_dict(getattr(config_kind, "_decode_special_floats", dict)(json.loads(description.config)))
        model = _built(kind, config, description.classes.implementations)
        _set_generation(model, description.generation)
    except ImportError as e:
        raise UnavailableError(f"{what}, cannot be built here: {e}") from e
    except Exception as e:  # the class's own code raises what it likes
        raise UsageError(f"{what}, cannot be built without memory for its weights: {type(e).__name__}: {e}") from e
    _shape_as(model, state)
    return model.eval()


def _set_generation(model: Any, text: str) -> None:
    """Give a model the configuration with which it generates. One that does not generate may lack the attribute, and lacks it then."""
    if text:
        kind = getattr(model, "generation_config_class", transformers.GenerationConfig)
        model.generation_config = kind.from_dict(json.loads(text))
    elif hasattr(model, "generation_config"):
        model.generation_config = None


def _built(kind: Any, config: Any, implementations: Mapping[str, Any]) -> Any:
    """Build a model on meta, without a change of PyTorch's default type: that is one for all threads."""
    types = [part.dtype for part in _parts(config)]
    with on_meta():
        model = kind._from_config(config, dtype=torch.get_default_dtype(), **implementations)
    for part, dtype in zip(_parts(model.config), types):  # which it has noted there
        part.dtype = dtype
    return model


def _parts(config: Any) -> list[Any]:
    """Return a configuration, and those that it is made of, and so on."""
    parts = [part for key in getattr(config, "sub_configs", ()) if (part := getattr(config, key, None)) is not None]
    return [config, *(inner for part in parts for inner in _parts(part))]


def on_meta() -> AbstractContextManager[Any]:
    """Return the context in which tensors are made without memory."""
    device: AbstractContextManager[Any] = torch.device("meta")
    return device


def _shape_as(model: Any, state: Mapping[str, Any]) -> None:
    """Give a model's parameters the types of tensors, and tie those that are one tensor there, and no others."""
    made: dict[Any, Any] = {}
    fitted = []
    for place in places_of(model):
        if (t := state.get(place.name)) is None:
            continue  # fitted names it
        same = _identity(t, place.name), tuple(place.tensor.shape), type(place.tensor)
        if same not in made:
            made[same] = like(place.tensor, torch.empty_like(place.tensor, dtype=t.dtype, device="meta"))
        fitted.append(([place], made[same]))
    replace(fitted)


def _identity(t: Any, name: str) -> Any:
    """Return what a tensor has in common with its other names."""
    return (t.data_ptr(), t.dtype, tuple(t.shape), tuple(t.stride())) if t.numel() else name
