"""Models over several devices, by the hf_device_map of accelerate: a part for each device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import FormatError, UnavailableError, UsageError
from ..keeper.tables import quote
from ..memory.drivers import driver_kind, ordinal_of
from ..torch.assign import some
from ..torch.storages import storage_of
from ..wire.records import CUDA

PARTS = "hf_device_map.json"  # the name of the text: module paths, and the numbers of their parts, in the order of hf_device_map


@dataclass
class DeviceMap:
    """Which devices a model is on.

    devices     their ordinals, by the numbers of the parts
    parts       the numbers of the parts, by the paths of modules
    """

    what: str
    devices: list[int]
    parts: dict[str, int]

    def part_of(self, name: str) -> int:
        """Return the part of a tensor: that of the innermost module that has one. Raises UsageError if none has."""
        path = name
        while path and path not in self.parts:
            path = path.rpartition(".")[0]
        if path not in self.parts:
            raise UsageError(f"{self.what}, is on {len(self.devices)} devices, and its hf_device_map has none for {quote(name)}: load it with one that has")
        return self.parts[path]

    def split(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the tensors of each part."""
        parts: list[dict[str, Any]] = [{} for _ in self.devices]
        for name, t in state.items():
            parts[self.part_of(name)][name] = t
        return parts


def device_map_of(model: Any, state: Mapping[str, Any], driver: str | int | None, what: str) -> DeviceMap | None:
    """Return how a model lies on several devices, or None if it is on one.

    Raises UsageError for one that is offloaded, or that is not where its hf_device_map says.
    """
    tensors = {name: t for name, t in state.items() if isinstance(t, torch.Tensor)}
    said: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    there = {str(t.device): name for name, t in tensors.items()}
    named = {str(at): path for path, at in said.items()}
    where = ", ".join(f"{quote(name)} on {at}" for at, name in (named if len(named) > 1 else there).items())
    if "meta" in there or len(named) > 1 and {"cpu", "disk"} & {*named}:
        raise UsageError(f"{what}, is offloaded in part ({where}): load it with device_map={{'': 0}}, or with a device_map of GPUs alone")
    if len(named) > 1:
        kind = CUDA if any(at.startswith("cuda") for at in there) else driver_kind(driver)
        ordinals = {path: ordinal_of(at, kind) or 0 for path, at in said.items()}
        devices = list(dict.fromkeys(ordinals.values()))
        if len(devices) > 1:
            device_map = DeviceMap(what, devices, {path: devices.index(at) for path, at in ordinals.items()})
            _check(device_map, tensors, kind)
            return device_map
    if len(there) > 1:
        raise UsageError(f"{what}, is not on one device ({where}), and no hf_device_map says so: load it with device_map='auto', or on one")
    return None


def _check(device_map: DeviceMap, tensors: Mapping[str, Any], kind: int) -> None:
    """Raise UsageError unless each tensor is on the device that its module computes on, and each device has one.

    accelerate moves a module with all that is in it, and then what the map has elsewhere of that: so no module of the map may be in another.
    """
    parts, first, what = set(), dict[int, str](), device_map.what
    for name, t in tensors.items():
        part = device_map.part_of(name)
        parts.add(part)
        other = first.setdefault(storage_of(t).data_ptr() or id(t), name)
        if device_map.part_of(other) != part:
            raise UsageError(f"{what}, has {quote(other)} and {quote(name)} tied, and its hf_device_map has them on two devices: "
                             "load it with a device_map that has both on one")  # fmt: skip
        want = torch.device("cuda", device_map.devices[part]) if kind == CUDA else torch.device("cpu")  # which has all software devices
        if t.device != want:
            raise UsageError(f"{what}, has {quote(name)} on {t.device}, and by its hf_device_map on {want}: load it anew")
    for path, part in device_map.parts.items():
        if within := [outer for outer, its in device_map.parts.items() if its != part and path != outer and (path + ".").startswith(outer and outer + ".")]:
            raise UsageError(f"{what}, has {quote(path)} on another device than {quote(within[0])}, which it is in, by its hf_device_map: "
                             "accelerate would copy its weights; load it with a device_map of modules that are not in each other")  # fmt: skip
    if empty := [path for path, part in device_map.parts.items() if part not in parts]:
        raise UsageError(f"{what}, has modules on a device that has none of its tensors: {some(empty)}")


def dispatch(model: Any, metadata: Mapping[str, str], ordinals: Sequence[int], what: str) -> None:
    """Have accelerate move what a model computes from device to device, as transformers does in from_pretrained. Its tensors stay."""
    try:
        parts = json.loads(metadata[PARTS])
        device_map = {str(path): ordinals[range(len(ordinals)).index(part)] for path, part in parts.items()}
    except (KeyError, ValueError, AttributeError, RecursionError) as e:
        raise FormatError(f"{what} has {len(ordinals)} parts, and what is kept of the devices makes no sense: {type(e).__name__}: {e}") from None
    try:
        from accelerate import dispatch_model
    except ImportError as e:
        raise UnavailableError(f"{what} is on {len(ordinals)} devices, for which transformers needs accelerate: {e}") from e
    try:
        dispatch_model(model, device_map=device_map, skip_keys=getattr(model, "_skip_keys_device_placement", None))
    except Exception as e:  # it raises what it likes
        raise UsageError(f"{what}, cannot be dispatched to its devices by accelerate: {type(e).__name__}: {e}") from e
