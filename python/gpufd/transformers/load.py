"""load, Model and follow: models of transformers over what a keeper keeps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import torch as over
from ..errors import Error, NotFoundError, UsageError
from ..keeper.control import TIMEOUT, HasSocket
from ..memory.device import Device
from ..progress import Progress
from ..torch.parts import load_parts
from .build import model_of
from .description import difference
from .devices import dispatch

if TYPE_CHECKING:
    from ..keeper.client import Client
    from ..torch.versions import ModelVersion


def load(
    name: str, *, socket: str | os.PathLike[str] | Client | None = None, labels: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT,
    driver: str | int | None = None, device: Device | None = None, progress: Progress = None, debug: bool = False,
) -> Any:  # fmt: skip
    """Return the model that put has put under a name, over the kept weights, without a copy of one.

    A model that was on several devices is on them again, whatever their ordinals are here, and accelerate dispatches it as before.
    It is in eval mode, has its configuration, its generation_config, and copies of its own of the buffers that are in no file. Its
    weights are read-only, and keep the lease until the last of them is gone. The arguments are those of gpufd.torch.load; device
    is for a model on one.

    Raises what that raises, FormatError for what gpufd.torch.put has put, UnavailableError for a class that is not to be had
    here, and MismatchError (tensors) if transformers makes another model of the configuration than it did there.
    """
    state, ordinals = load_parts(name, socket=socket, labels=labels, timeout=timeout, driver=driver, device=device, progress=progress, debug=debug)
    model = model_of(state)
    state.apply(model)
    if len(ordinals) > 1:
        dispatch(model, state.metadata, ordinals, f"version {state.data.version} of {state.data.name}")
    state.check(model)
    return model


def Model(  # noqa: N802  # what it returns
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, labels: Mapping[str, str] | None = None, device: Device | None = None,
    timeout: float | None = TIMEOUT, debug: bool = False,
) -> over.Model:  # fmt: skip
    """Return a gpufd.torch.Model whose module is the model that put has put under a name: it sleeps, wakes, and swaps.

        model = gpufd.transformers.Model("llama")
        model.module.generate(tokens)
        model.sleep()
        model.wake()                       # or swap(), of one that is awake

    swap and wake take a version of the same model: of the same classes, config.json and buffers, and put in the same
    layout. Any other is a MismatchError (layout), which says what differs. generation_config stays that of the first version.
    A model on several devices is a UsageError: load takes it.
    """
    return over.Model._made_of(
        name, lambda version: model_of(version.tensors), difference, socket=socket, part=None, labels=labels, device=device, timeout=timeout, debug=debug
    )


def follow(
    name: str, *, socket: str | os.PathLike[str] | HasSocket | None = None, labels: Mapping[str, str] | None = None, device: Device | None = None,
    driver: str | int | None = None, timeout: float | None = TIMEOUT, within: float | None = None, max_absence: float | None = None,
    on_wait: Callable[[Error], None] | None = None, debug: bool = False,
) -> Iterator[ModelVersion]:  # fmt: skip
    """Iterate over the versions of a model: the current one, and each newer one when it is committed.

    version.model is a model of the version's own, as load returns it. It may be another than that of the version before. All
    else is as of gpufd.torch.follow: the memory ends with the last tensor of the version, refuse(why) lets go of one.
    """
    versions = over.follow(
        name, socket=socket, labels=labels, device=device, driver=driver, timeout=timeout, within=within, max_absence=max_absence, on_wait=on_wait,
        debug=debug,
    )  # fmt: skip
    return _with_models(name, versions)


def _with_models(name: str, versions: Any) -> Iterator[ModelVersion]:
    with contextlib.closing(versions):
        try:
            for version in versions:
                version._make = _model_over
                yield version
        except NotFoundError as e:
            if e.reason != "parts":
                raise
            raise UsageError(f"{name} is on several devices: follow is for a model on one, and gpufd.transformers.load takes this one") from e


def _model_over(version: ModelVersion) -> Any:
    model = model_of(version.tensors)
    version.swap(model)
    return model
