"""Making tensors the parameters and buffers of a module, all or none: :func:`fitted`, then :func:`replace`."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MismatchError
from ..keeper.tables import quote


@dataclass
class Place:
    """A tensor where a module has it."""

    module: Any
    key: str
    name: str  # of the whole module's, as in the state_dict
    tensor: Any


Fitted = list[tuple[list[Place], Any]]  # tensors, each with the places that it is for


def fitted(model: Any, tensors: Mapping[str, Any], of: str, strict: bool, passing: Container[str] = ()) -> Fitted:
    """Return what takes the places of a module's parameters and persistent buffers, and of the non-persistent ones that
    passing names: the tensors of their names, without a copy.

    Parameters that are one object stay one, whether tensors has one of their names or all. Parameters get
    requires_grad=False; they keep their class and attributes. With strict, a tensor that the module has no
    place for is an error; a buffer that is not persistent is such a place, and is left as it is. Raises MismatchError if
    anything does not fit.
    """
    module = getattr(model, "_orig_mod", model)  # that of torch.compile
    buffers = _passing(module)
    places = places_of(module) + [place for place in buffers if place.name in passing]
    tied: dict[int, list[Place]] = {}
    for place in places:
        tied.setdefault(id(place.tensor), []).append(place)
    faults = _Faults(of)
    if strict:
        extra = tensors.keys() - {place.name for place in (*places, *buffers)}
        if extra:
            extra -= {place.name for place in beside(module)}
        faults.unexpected = [name for name in tensors if name in extra]
    made = [(group, new) for group in tied.values() if (new := _new(group, tensors, faults)) is not None]
    faults.check()
    return made


def without_memory(model: Any, begin: int, end: int) -> Fitted:
    """Return tensors without memory (device meta) for the places of those that lie in a range of addresses."""
    tied: dict[int, list[Place]] = {}
    module = getattr(model, "_orig_mod", model)
    for place in places_of(module) + _passing(module):
        if not place.tensor.is_meta and begin <= _address(place.tensor, 0) < end:
            tied.setdefault(id(place.tensor), []).append(place)
    return [(group, like(group[0].tensor, torch.empty_like(group[0].tensor, device="meta"))) for group in tied.values()]


def tensors_of(model: Any) -> dict[str, Any]:
    """Return a module's parameters and buffers, by each of their names."""
    module = getattr(model, "_orig_mod", model)
    return {place.name: place.tensor for place in places_of(module) + _passing(module)}


def moved(model: Any, at: Mapping[str, int]) -> list[str]:
    """Return the names of a module's parameters and buffers that are not at their addresses any more. Other names may be given to them."""
    now = {name: _address(t, at.get(name, 0)) for name, t in tensors_of(model).items()}
    used = set(now.values())
    return [name for name, ptr in at.items() if now.get(name, ptr) != ptr or name not in now and ptr not in used]


def _address(t: Any, empty: int) -> int:
    """Return the address of a tensor: empty if it has no elements, and 0 if it is more than its bytes, and has none."""
    try:
        address: int = t.data_ptr() if t.numel() else empty
    except (RuntimeError, TypeError, ValueError):
        return 0
    return address


def places_of(model: Any) -> list[Place]:
    """Return the places of a module's parameters and persistent buffers, which its state_dict has."""
    return _found(model, lambda m: {**m._parameters, **{k: t for k, t in m._buffers.items() if k not in _passing_in(m)}})


def _passing(model: Any) -> list[Place]:
    """Return the places of a module's buffers that are not persistent."""
    return _found(model, lambda m: {k: t for k, t in m._buffers.items() if k in _passing_in(m)})


def _passing_in(module: Any) -> Container[str]:
    """Return the keys of a module's own buffers that are not persistent."""
    names: Container[str] = getattr(module, "_non_persistent_buffers_set", ())
    return names


def beside(model: Any) -> list[Place]:
    """Return the places of the tensors that a module's state_dict lacks: buffers that are not persistent, and plain attributes."""
    return _passing(model) + _found(model, vars)


def _found(model: Any, named: Callable[[Any], Mapping[str, Any]]) -> list[Place]:
    """Return the places of the tensors that each module of a model has by name, in the same order in each process."""
    modules = model.named_modules(remove_duplicate=False)
    return [Place(m, key, f"{path}.{key}" if path else key, t) for path, m in modules for key, t in named(m).items() if isinstance(t, torch.Tensor)]


class _Faults:
    """Collects why tensors do not fit a module."""

    def __init__(self, of: str) -> None:
        self.of = of
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.unlike: list[str] = []

    def check(self) -> None:
        """Raise MismatchError if there are any."""
        said = list(self.unlike[:5])
        if len(self.unlike) > 5:
            said.append(f"{len(self.unlike) - 5} more do not fit")
        if self.missing:
            said.append(f"it lacks tensors of the model: {some(self.missing)} (tied weights? call tie_weights first)")
        if self.unexpected:
            said.append(f"it has tensors that the model lacks: {some(self.unexpected)}")
        if said:
            raise MismatchError(f"{self.of} does not fit the model, which is unchanged: {'; '.join(said)}", reason="tensors")


def some(names: list[str]) -> str:
    """Return the first of some names, for a message."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(quote(n) for n in names[:5]) + more


def _new(group: list[Place], tensors: Mapping[str, Any], faults: _Faults) -> Any:
    """Return what takes the place of one tensor, under all its names; None if nothing fits."""
    old, names = group[0].tensor, [place.name for place in group if place.name in tensors]
    if not names:
        faults.missing.append(group[0].name)
        return None
    new = tensors[names[0]]
    why = _unlike(old, new)
    if not why and any(not _same(new, tensors[name]) for name in names[1:]):
        why = f"the model ties it to {some(names[1:])}, of which the values are others"
    if why:
        faults.unlike.append(f"{quote(names[0])}: {why}")
        return None
    return like(old, new)


def like(old: Any, new: Any) -> Any:
    """Return a tensor as a parameter of the class and with the attributes of an old one, if that is a parameter."""
    if not isinstance(old, torch.nn.Parameter):
        return new
    made: Any = torch.Tensor._make_subclass(type(old), new, False)  # as Parameter itself is made
    made.__dict__.update(old.__dict__)
    return made


def _unlike(old: Any, new: Any) -> str:
    """Return why a tensor cannot take another one's place, or ""."""
    if hasattr(old, "__tensor_flatten__"):
        return f"the model's is more than its bytes ({type(old).__name__})"
    if torch.nn.parameter.is_lazy(old):
        return "the model's has no shape yet: run the model once"
    if tuple(old.shape) != tuple(new.shape):
        return f"shape {list(new.shape)}, and {list(old.shape)} in the model"
    if old.dtype != new.dtype:
        return f"{new.dtype}, and {old.dtype} in the model"
    if old.device != new.device and not old.is_meta:
        return f"on {new.device}, and on {old.device} in the model"
    return ""


def _same(a: Any, b: Any) -> bool:
    """Return whether two tensors are the same bytes, or equal."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride() or bool(torch.equal(a, b))


def replace(made: Fitted) -> None:
    """Put all in their places, or none."""
    done: list[Place] = []
    try:
        for group, new in made:
            for place in group:
                done.append(place)
                setattr(place.module, place.key, new)
    except BaseException:
        for place in done:
            setattr(place.module, place.key, place.tensor)
        raise
