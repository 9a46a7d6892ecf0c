"""The loader of format ``gpufd``: :class:`GpufdModelLoader`."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from .. import arguments
from ..errors import KeeperError, LostError, MismatchError, NotFoundError, UsageError
from ..keeper.client import Client
from ..keeper.control import path_of
from ..keeper.get import get
from ..objects import human
from ..torch.assign import some
from ..torch.guard import WriteGuard
from ..keeper.types import Info
from ..torch.weights import Loaded, put, tensors
from ..wire.records import READ_ONLY
from .agreed import Agreed, agreed, files_of
from .kept import hold, kept_of, leave
from .kinds import check_supported
from .logger import logger
from .state import Beside, beside_of, equal, fill, finish, state_of


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that --model-loader-extra-config has.

    name        begins the name under which weights are kept, by default "vllm/" and the model. Rank and GPU follow
    socket      the keeper's, by default the one of gpufd.get
    copy        give the engine parameters of its own. By default it gets those where vLLM writes to them: with a weight transfer, and
                where it moves experts between GPUs
    fallback    load from disk, and put, what cannot be taken; False makes that an error
    """

    name: str | None = None
    socket: str | None = None
    copy: bool | None = None
    fallback: bool = True

    def copies(self, vllm_config: Any) -> bool:
        """Return whether the engine gets parameters of its own."""
        if self.copy is not None:
            return self.copy
        return vllm_config.weight_transfer_config is not None or bool(vllm_config.parallel_config.enable_eplb)


def options_of(load_config: Any) -> Options:
    """Return the options of a load configuration. Raises UsageError for one that is not known."""
    extra = dict(load_config.model_loader_extra_config or {})
    known = [field.name for field in dataclasses.fields(Options)]
    if unknown := sorted(set(extra) - set(known)):
        raise UsageError(f"load format gpufd has no option {', '.join(unknown)}: there are {', '.join(known)}")
    options = Options(**extra)
    for what in ("name", "socket"):
        if (value := getattr(options, what)) is not None:
            arguments.text(what, value)
    for what in ("copy", "fallback"):
        if (value := getattr(options, what)) is not None:
            arguments.flag(what, value)
    return options


class GpufdModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Takes a model's weights from a keeper. What is not there is loaded from disk, and put there for the next engine."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self.options = options_of(load_config)

    def download_model(self, model_config: Any) -> None:
        """Download the files, as format auto does."""
        self._from_disk().download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Load the files' weights into a model that is there. Raises UsageError if its parameters are kept memory, which is read-only."""
        if kept := kept_of(model):
            where = f"{kept.version.name}, version {kept.version.version}"
            raise UsageError(f"the model's parameters are {where}, which is read-only: start the engine with the option copy")
        with WriteGuard():  # they are kept memory without a lease if the keeper was lost behind the put
            self._from_disk().load_weights(model, model_config)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Return the model, in eval mode, with weights after vLLM's own processing.

        Raises UsageError for a quantisation that is not known to work, and without fallback whatever keeps the weights from being taken.
        """
        if _is_draft(vllm_config, model_config):
            logger.info("%s is a draft model: it is loaded from disk, and not kept", model_config.model)
            return self._from_disk().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        check_supported(vllm_config, model_config)
        copy, there = self.options.copies(vllm_config), None
        try:
            there = agreed(vllm_config, model_config, self.options.name)
            return self._take(there, copy, vllm_config, model_config, prefix)
        except Exception as e:
            if not self.options.fallback:
                raise
            if isinstance(e, NotFoundError):
                logger.info("%s: loading %s from disk, to keep it", e, model_config.model)
            else:
                logger.warning("%s is loaded from disk: %s: %s", model_config.model, type(e).__name__, e)
            keeps = not isinstance(e, LostError)
        gc.collect()  # a model is a cycle, and one that was taken in part may have copies of all weights
        model = self._from_disk().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        if there and keeps:
            self._keep(model, model_config, there, copy, self._device(vllm_config))
        return model

    def _from_disk(self) -> Any:
        return DefaultModelLoader(dataclasses.replace(self.load_config, load_format="auto", model_loader_extra_config={}))

    def _device(self, vllm_config: Any) -> Any:
        return torch.device(vllm_config.device_config.device if self.load_config.device is None else self.load_config.device)

    # Take.

    def _take(self, there: Agreed, copy: bool, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        began, socket = time.monotonic(), path_of(self.options.socket)
        with Client(socket) as client:
            check_kept(client, there)
        version = get(there.name, socket=socket, labels=there.labels, access=READ_ONLY)
        before = _made_before(vllm_config)
        try:
            model = self._made(tensors(version), copy, vllm_config, model_config, prefix)
        except BaseException:
            leave(version)
            _forget_since(before)
            raise
        logger.info("%s is %s, version %d, %s in %.2f s", model_config.model, version.name, version.version, "copied" if copy else "taken", time.monotonic() - began)
        if copy:
            leave(version)
        else:
            hold(model, version, socket)
        return model.eval()

    def _made(self, kept: Loaded, copy: bool, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        """Return the model over kept tensors, with vLLM's Python state."""
        beside = beside_of(kept.metadata)
        with set_default_torch_dtype(model_config.dtype):
            with on_meta():
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            fill(model, kept, beside, copy)
            with weights_already_processed(), WriteGuard():
                process_weights_after_loading(model, model_config, self._device(vllm_config))
        finish(model, kept, beside, copy)
        return model

    # Put.

    def _keep(self, model: Any, model_config: Any, there: Agreed, copy: bool, device: Any) -> None:
        """Put the weights of a model that was loaded from disk, and make its parameters the kept ones. If that fails, the model answers as it did."""
        socket = path_of(self.options.socket)
        try:
            if there.labels["files"] != files_of(model_config):
                raise MismatchError("its files have changed while they were loaded: restart the engine to keep it", reason="labels")
            state, beside = state_of(model, device.type)
            own = {name: t for name, t in state.items() if isinstance(t, torch.nn.Parameter)}
            if copy:
                state.update({name: t.detach().clone() for name, t in own.items()})
            with Client(socket) as client:
                put_here = _put(client, there, state, beside)
            if not copy:
                _attach(model, own, there, socket, put_here)
        except Exception as e:
            logger.warning("%s is not kept: %s: %s", there.labels["model"], type(e).__name__, e)


def _put(client: Client, there: Agreed, state: Mapping[str, Any], beside: Beside) -> int | None:
    """Put weights, and return their version, unless another engine has put the same meanwhile."""
    began, before = time.monotonic(), 0
    try:
        info = check_kept(client, there)
    except NotFoundError:
        pass
    except MismatchError:
        before = client.stat(there.name).version
    else:
        logger.info("%s was put by another engine meanwhile: version %d", there.name, info.version)
        return None
    try:
        delivered = put(there.name, state, socket=client, labels=there.labels, metadata=beside.encode(), expect_version=before)
    except KeeperError as e:
        if e.reason != "conflict":
            raise
        info = check_kept(client, there)
        logger.info("%s was put by another engine at the same time: version %d", there.name, info.version)
        return None
    logger.info("kept %s as %s, version %d, in %.2f s", human(delivered.bytes), there.name, delivered.version, time.monotonic() - began)
    return delivered.version


def _is_draft(vllm_config: Any, model_config: Any) -> bool:
    """Return whether a model is the draft of a speculative engine: vLLM sets attributes of such while it loads the files."""
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    return model_config is not vllm_config.model_config or model_config is draft or getattr(model_config, "runner_type", "") == "draft"


def _made_before(vllm_config: Any) -> list[tuple[Any, Any]]:
    """Return lists of vLLM's in which parts of a model enter themselves when they are made, with a copy of each: layers, and rotary embeddings."""
    lists = [value for key, value in vars(vllm_config.compilation_config).items() if key.startswith("static_") and isinstance(value, (dict, list, set))]
    with contextlib.suppress(ImportError):
        from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

        lists.append(_ROPE_DICT)
    return [(there, there.copy()) for there in lists]


def _forget_since(before: list[tuple[Any, Any]]) -> None:
    """Take what was made since out of the lists: vLLM does not make a layer of a name that is there, and would use an embedding without memory again."""
    for there, was in before:
        there.clear()
        if isinstance(there, list):
            there.extend(was)
        else:
            there.update(was)


def _attach(model: Any, own: Mapping[str, Any], there: Agreed, socket: str, put_here: int | None) -> None:
    """Make the parameters of a model views of what others attach to: such memory can be detached.

    A version that another engine has put is compared first: processed weights of the same names may lie otherwise.
    """
    version = get(there.name, socket=socket, labels=there.labels, access=READ_ONLY)
    kept = tensors(version)
    if unlike := [name for name, t in own.items() if name not in kept or not (version.version == put_here or equal(t, kept[name]))]:
        raise MismatchError(f"version {version.version} of {version.name} has other tensors than this engine: {some(unlike)}", reason="tensors")
    with torch.no_grad():
        for name, t in own.items():
            t.data = kept[name]
    hold(model, version, socket)


def check_kept(client: Client, there: Agreed) -> Info:
    """Return what a keeper says of the weights. Raises NotFoundError if it has none, and MismatchError, which names the labels, if they are others'."""
    info = client.find(there.name)
    if info is None or not info.version:
        raise NotFoundError(f"{there.name} is not kept")
    if unlike := there.differences(info.labels):
        raise MismatchError(f"{there.name}, version {info.version}, was put by another engine: {unlike}", reason="labels")
    return info


def on_meta() -> Any:
    """Return a context in which tensors get no memory."""
    return torch.device("meta")
