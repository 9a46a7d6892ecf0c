"""In place, the trainer's side: where the tensors lie in the only bucket, and a model that is trained there."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ..channel.frame import Slot
from ..errors import MismatchError, UsageError
from ..keeper.tables import quote
from ..memory.base import Memory
from ..memory.foreign import is_plain
from ..memory.tensor import bytes_over, device_of, dtypes
from .frames import Entry, Packer
from .meta import Meta

_ROOM = 1 << 61  # bytes: no tensors are larger


class InPlaceLayout:
    """The only bucket of a publisher in place.

    entries     by name, where each tensor is
    table_at, table
                the table of them, which never changes
    size        bytes of all
    bound       addresses of the tensors that a model has there, by name
    """

    def __init__(self, metadata: Mapping[str, Meta]) -> None:
        packer = Packer(_ROOM)
        self.entries: dict[str, Entry] = {}
        for name, meta in metadata.items():
            e = packer.whole(name, meta)
            if not e:
                raise UsageError(f"in_place with {len(metadata)} tensors: their table is too large for one bucket")
            self.entries[name] = e
        self.table_at, self.table = packer.table()
        self.size = self.table_at + len(self.table)
        self.digest = b""  # of the table, once it is in the bucket
        self.bound: dict[str, int] = {}
        self._model: Any = None
        self._places: list[Any] = []  # the model's tensors that are views

    def check_fits(self, model: Any, memory: Memory) -> None:
        """Raise MismatchError if a model's tensors cannot lie in the bucket."""
        faults = [why for why in (self._fault(names, t, memory) for names, t in _tensors_of(model)) if why]
        if faults:
            more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
            raise MismatchError(f"the model does not fit the metadata, and is unchanged: {'; '.join(faults[:5])}{more}", reason="tensors")

    def bind(self, model: Any, slot: Slot) -> None:
        """Make the tensors of a model that fits views of the slot."""
        before: list[tuple[Any, Any]] = []
        try:
            for names, t in _tensors_of(model):
                for name in names & self.entries.keys():
                    e = self.entries[name]
                    view = bytes_over(slot.memory, slot.offset + e.at, e.size, quote(name)).view(t.dtype).view(e.meta.shape)
                    view.copy_(t.detach())
                    before.append((t, t.data))
                    t.data = view
                    self.bound[name] = view.data_ptr()
        except BaseException:
            for t, data in before:
                t.data = data
            self.bound.clear()
            raise
        self._places, self._model = [t for t, _ in before], model

    def check_unbound(self) -> None:
        """Raise UsageError if a model is bound."""
        if self._places:
            raise UsageError("a model is bound already")

    def check_bound(self, sent: Container[str] = ()) -> None:
        """Raise MismatchError if the model has a tensor elsewhere, which was not sent: subscribers would never see what is written there."""
        if not self.bound:
            return
        from ..torch.assign import moved, some

        if gone := [name for name in moved(self._model, self.bound) if name not in sent]:
            raise MismatchError(
                f"the model was bound, and does not have {some(gone)} in the publisher's memory any more, so subscribers would not get it: write into"
                " parameters (copy_), and neither replace nor convert them after bind; another publisher binds the model again",
                reason="tensors",
            )

    def _fault(self, names: set[str], t: Any, memory: Memory) -> str:
        """Return why a tensor of the model cannot lie in the bucket, or ""."""
        known = sorted(names & self.entries.keys())
        if not known:
            return f"parameter {quote(min(names))} is not in the metadata" if hasattr(t, "requires_grad_") and _is_parameter(t) else ""
        if len(known) > 1:
            return f"{quote(known[0])} and {quote(known[1])} are one tensor: name one of them in the metadata"
        if not is_plain(t):
            return f"{quote(known[0])} is more than its elements{', a DTensor: bind a model of its full_tensor()' if hasattr(t, 'full_tensor') else ''}"
        meta, device = self.entries[known[0]].meta, device_of(memory)
        if tuple(t.shape) != meta.shape or t.dtype != dtypes().get(meta.dtype):
            return f"{quote(known[0])} is {t.dtype} {list(t.shape)}, and the metadata says {meta.dtype} {list(meta.shape)}"
        return f"{quote(known[0])} is on {t.device}, and the publisher on {device}" if t.device != device else ""

    def release(self) -> None:
        """Give the model tensors of its own."""
        while self._places:
            t = self._places[-1]
            t.data = t.detach().clone()
            self._places.pop()
        self.bound.clear()
        self._model = None


def _is_parameter(t: Any) -> bool:
    import torch

    return isinstance(t, torch.nn.Parameter)


def _tensors_of(model: Any) -> list[tuple[set[str], Any]]:
    """Return the parameters and buffers of a module, each with all its names."""
    module = getattr(model, "_orig_mod", model)  # that of torch.compile
    if not hasattr(module, "state_dict") or not hasattr(module, "named_buffers"):
        raise UsageError(f"{type(model).__name__} is no module of PyTorch's")
    found: dict[int, tuple[set[str], Any]] = {}
    for name, t in [*module.state_dict(keep_vars=True).items(), *module.named_buffers()]:
        found.setdefault(id(t), (set(), t))[0].add(name)
    return list(found.values())
