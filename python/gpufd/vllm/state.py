"""A model's tensors after vLLM's own processing: what there is to keep (:func:`state_of`), and a model without memory that gets it (:func:`fill`)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import torch

from ..errors import FormatError, MismatchError, UsageError
from ..keeper.tables import quote
from ..torch.assign import like, some

METADATA = "gpufd.vllm"  # the text beside the tensors that is a Beside
_HELD = "held:"  # begins the names of kept tensors that are attributes
_SMALL = 1 << 20  # bytes of such tensors that are kept; larger ones are made of parameters, and have to be made again


@dataclass
class Beside:
    """A description of a model beside the bytes of its tensors. Names are paths of modules with the name there."""

    buffers: dict[str, bool] = field(default_factory=dict)  # those that are buffers, and whether a state_dict has them
    aliases: dict[str, str] = field(default_factory=dict)  # other names of the same objects
    empty: list[str] = field(default_factory=list)  # parameters and buffers that are None
    host: list[str] = field(default_factory=list)  # buffers in the host's memory
    held: list[str] = field(default_factory=list)  # tensors that are attributes: of modules, and of objects that modules have

    def encode(self) -> dict[str, str]:
        """Return it as metadata."""
        return {METADATA: json.dumps(asdict(self), separators=(",", ":"))}


def beside_of(metadata: Mapping[str, str]) -> Beside:
    """Return what stands beside the tensors. Raises FormatError if they are not an engine's."""
    try:
        found = Beside(**json.loads(metadata[METADATA]))
        lists = [found.empty, found.host, found.held, [*found.aliases, *found.aliases.values()], list(found.buffers.keys())]
        if not all(isinstance(name, str) for names in lists for name in names):
            raise TypeError("a name is no text")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise FormatError(f"the tensors were not put by an engine of vLLM: {METADATA} beside them makes no sense: {e!r}") from None
    return found


def state_of(model: Any, device: str) -> tuple[dict[str, Any], Beside]:
    """Return the tensors of a model that are to be kept, and what stands beside them.

    Parameters are the model's own, which move when they are put; buffers are copies, so that the model goes on with its own. Raises
    UsageError if a parameter is not on a device of that type, because vLLM moves it back and forth.
    """
    tensors: dict[str, Any] = {}
    beside = Beside()
    names: dict[int, str] = {}
    for name, module, leaf, t in _registered(model):
        if t is None:
            beside.empty.append(name)
        elif id(t) in names:
            beside.aliases[name] = names[id(t)]
        else:
            names[id(t)] = name
            tensors[name] = t
            if leaf in module._buffers:
                beside.buffers[name] = leaf not in module._non_persistent_buffers_set
                tensors[name] = _copy(name, t, device, beside)
            elif t.device.type != device:
                raise UsageError(f"parameter {quote(name)} is on {t.device}, and the engine's device is of type {device}: offloaded weights are not kept")
    for name, _, _, t in _held(model):
        beside.held.append(name)
        if t.numel() * t.element_size() <= _SMALL:
            tensors[_HELD + name] = _copy(_HELD + name, t, device, beside)
    return tensors, beside


def _copy(name: str, t: Any, device: str, beside: Beside) -> Any:
    if t.device.type != device:
        beside.host.append(name)
    return t.detach().clone()


def _registered(model: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the parameters and buffers of a model, under all their names: name, module, name there, tensor or None."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = path + "." if path else ""
        for leaf, t in [*module._parameters.items(), *module._buffers.items()]:
            yield prefix + leaf, module, leaf, t


def _held(model: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield tensors that are attributes, of modules and of objects that modules have, such as kernels: name, attributes there, name there, tensor."""
    return ((name, there, key, t) for depth, name, there, key, t in _reached(model) if depth <= 1)


def _reached(model: Any) -> Iterator[tuple[int, str, Any, Any, Any]]:
    """Yield all tensors that are no parameters and buffers, as _held does, from the modules on through objects, dicts, lists and tuples."""
    known, seen = {id(t) for _, _, _, t in _registered(model)}, set[int]()
    todo: deque[tuple[int, str, Any]] = deque((0, path, vars(module)) for path, module in model.named_modules())
    while todo:
        depth, path, there = todo.popleft()
        for key, value in list(there.items() if isinstance(there, dict) else enumerate(there)):
            name = f"{path}.{key}" if path else str(key)
            if isinstance(value, torch.Tensor):
                if id(value) not in known and value.numel():
                    yield depth, name, there, key, value
            elif id(value) not in seen and (inside := _inside(value)):
                seen.add(id(value))
                todo.append((depth + 1 + isinstance(value, (dict, list, tuple)), name, inside))


def _inside(value: Any) -> Any:
    """Return what an object has that is no module and none of PyTorch's: its elements or its attributes."""
    if isinstance(value, (dict, list, tuple)):
        return value
    if isinstance(value, (torch.nn.Module, type, ModuleType)) or type(value).__module__.partition(".")[0] == "torch":
        return None
    inside = getattr(value, "__dict__", None)
    return inside if isinstance(inside, dict) else None


# A model that gets them.


def fill(model: Any, tensors: Mapping[str, Any], beside: Beside, copy: bool) -> None:
    """Make kept tensors the parameters of a model without memory, and copies of them its buffers; with copy, of the parameters, too.

    A parameter keeps its class and its attributes where type and shape are those of the model's. Objects that have a parameter or a buffer
    as an attribute get what takes its place. Raises MismatchError if the model lacks a module, or makes a buffer of another shape.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[str, Any] = {}
    stale: dict[int, tuple[Any, Any]] = {}  # by id, tensors that were replaced, which keeps the ids theirs, and by what
    for name, t in tensors.items():
        if name.startswith(_HELD):
            continue
        module, leaf = _place(modules, name)
        if name in beside.buffers:
            _check_shape(name, module._buffers.get(leaf), t)
            made[name] = _own(name, t, beside)
        else:
            made[name] = _parameter(module._parameters.get(leaf), t.clone() if copy else t)
        stale |= _set(module, leaf, made[name], beside.buffers.get(name, True))
    for name, other in beside.aliases.items():
        if other not in made:
            raise FormatError(f"{quote(name)} is another name of {quote(other)}, which is not there")
        stale |= _set(*_place(modules, name), made[other], beside.buffers.get(other, True))
    for _, _, there, key, t in list(_reached(model)):
        if id(t) in stale and not isinstance(there, tuple):
            there[key] = stale[id(t)][1]


def _check_shape(name: str, old: Any, kept: Any) -> None:
    """Raise MismatchError if the model makes a buffer of another shape, as with other limits of the engine."""
    if old is not None and old.shape != kept.shape:
        raise MismatchError(f"buffer {quote(name)} is kept as {list(kept.shape)}, and this engine's is {list(old.shape)}", reason="tensors")


def _place(modules: Mapping[str, Any], name: str) -> tuple[Any, str]:
    path, _, leaf = name.rpartition(".")
    if path not in modules:
        raise MismatchError(f"the kept weights have {quote(name)}, and the model has no module {quote(path)}", reason="tensors")
    return modules[path], leaf


def _own(name: str, t: Any, beside: Beside) -> Any:
    """Return a copy of a kept tensor, in the memory that the put model had it in."""
    return t.cpu().clone() if name in beside.host else t.clone()


def _parameter(old: Any, new: Any) -> Any:
    if old is not None and old.shape == new.shape and old.dtype == new.dtype:
        return like(old, new)
    return torch.nn.Parameter(new, requires_grad=False)


def _set(module: Any, leaf: str, value: Any, persistent: bool) -> dict[int, tuple[Any, Any]]:
    """Register a parameter or a buffer, in place of whatever has the name. Returns the tensors that had it, by id, with the new one."""
    old = [there.pop(leaf, None) for there in (module._parameters, module._buffers, module.__dict__)]
    if isinstance(value, torch.nn.Parameter):
        module.register_parameter(leaf, value)
    else:
        module.register_buffer(leaf, value, persistent=persistent)
    return {id(t): (t, value) for t in old if isinstance(t, torch.Tensor) and t is not value}


def finish(model: Any, tensors: Mapping[str, Any], beside: Beside, copy: bool) -> None:
    """Remove what the kept model does not have, and raise MismatchError, which names tensors, unless all else is as there.

    Call it when vLLM has rebuilt its Python state: what that has made anew is in place then.
    """
    wanted = {*beside.aliases, *(name for name in tensors if not name.startswith(_HELD))}
    for name, module, leaf, t in list(_registered(model)):
        if t is not None and t.is_meta and name not in wanted:
            _remove(module, leaf, name in beside.empty)
    there = {name: t for name, _, _, t in _registered(model) if t is not None}
    faults = {
        "lacks": [name for name in wanted if name not in there],
        "has more than was kept:": [name for name in there if name not in wanted],
        "has no memory for": [name for name, t in there.items() if t.is_meta],
        "has others than the kept ones:": [n for n in tensors if n in there and n not in beside.buffers and not _same(there[n], tensors[n], copy)],
    }
    for name, attributes, leaf, t in list(_held(model)):
        kept = tensors.get(_HELD + name)
        if t.is_meta and kept is not None and kept.shape == t.shape:
            attributes[leaf] = _own(_HELD + name, kept, beside)
    held = {name for name, _, _, _ in _held(model)}
    faults["lacks attributes:"] = [name for name in beside.held if name not in held]
    faults["has no memory for attributes:"] = [name for _, name, _, _, t in _reached(model) if t.is_meta]
    said = [f"{what} {some(sorted(names))}" for what, names in faults.items() if names]
    if said:
        raise MismatchError(f"vLLM has made another model of the kept weights: it {'; it '.join(said)}", reason="tensors")


def _remove(module: Any, leaf: str, stays: bool) -> None:
    """Remove a parameter or a buffer; where the kept model has None, leave that."""
    there = module._parameters if leaf in module._parameters else module._buffers
    if stays:
        there[leaf] = None
    else:
        delattr(module, leaf)


def _same(t: Any, kept: Any, copy: bool) -> bool:
    """Return whether a parameter is a kept tensor, or a copy of it: all else was processed twice."""
    if t.is_meta or t.numel() == 0:
        return True
    return equal(t, kept.clone()) if copy else bool(t.data_ptr() == kept.data_ptr() and equal(t, kept))


def equal(a: Any, b: Any) -> bool:
    """Return whether two tensors are the same: type, shape, strides and bytes."""
    if (a.dtype, a.shape, _strides(a)) != (b.dtype, b.shape, _strides(b)):
        return False
    return a.data_ptr() == b.data_ptr() or bool(torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))))


def _strides(t: Any) -> list[int]:
    """Return the strides that count: others are anything."""
    return [step for n, step in zip(t.shape, t.stride()) if n > 1]
