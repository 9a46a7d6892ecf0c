"""What is kept beside a model's weights: its classes and its configuration, as texts by name. No code comes from there."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import transformers

from ..errors import FormatError, UnavailableError, UsageError
from ..keeper.tables import Table, layout_difference, quote
from ..torch.assign import some

CONFIG, GENERATION, CLASSES = "config.json", "generation_config.json", "transformers"  # the names of the texts
_CODE = ("attn_implementation", "experts_implementation")  # of a config: a name with a slash is a kernel of the hub
_OF_A_COPY = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")  # of a config, and of no interest to its weights


@dataclass
class Classes:
    """The classes of a model and of its configuration, by their full names, and what config.json lacks.

    implementations     of attention and of experts, by the attribute of the configuration: a name, or names by its parts, "" for itself
    beside              digests of the tensors that are in no state_dict, by their names
    """

    model: str
    config: str
    version: str
    implementations: dict[str, Any]
    beside: dict[str, str]


@dataclass
class Description:
    """A model without its tensors."""

    classes: Classes
    config: str
    generation: str  # or "", of a model that does not generate

    def metadata(self) -> dict[str, str]:
        """Return the texts to keep beside the tensors."""
        texts = {CONFIG: self.config, CLASSES: json.dumps(asdict(self.classes), sort_keys=True)}
        return texts | ({GENERATION: self.generation} if self.generation else {})


def describe(model: Any) -> Description:
    """Return the description of a model, without digests."""
    generation = getattr(model, "generation_config", None)
    implementations = {key: said for key in _CODE if (said := _implementation(model.config, "_" + key))}
    classes = Classes(_full_name(type(model)), _full_name(type(model.config)), transformers.__version__, implementations, {})
    return Description(classes, model.config.to_json_string(), generation.to_json_string() if generation is not None else "")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _implementation(config: Any, attribute: str) -> Any:
    """Return what a configuration says of an implementation, and of its parts, and so on, as transformers takes it: see Classes."""
    own = getattr(config, attribute, None)
    parts = {key: said for key in getattr(config, "sub_configs", ()) if (said := _implementation(getattr(config, key, None), attribute))}
    return ({"": own} if own else {}) | parts if parts else own


def digest(t: Any) -> str:
    """Return the digest of a tensor's bytes."""
    here = t.detach().cpu().contiguous()
    return hashlib.sha256(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()) if here.numel() else b"").hexdigest()[:32]


def description_in(metadata: Mapping[str, str], what: str) -> Description:
    """Return the description in what was kept beside tensors. Raises FormatError if there is none, or it makes no sense."""
    if CLASSES not in metadata or CONFIG not in metadata:
        raise FormatError(f"{what} was not put by gpufd.transformers.put: gpufd.torch.load gives its tensors")
    try:
        classes = Classes(**json.loads(metadata[CLASSES]))
        config = json.loads(metadata[CONFIG])
        for at in (classes.implementations, config):
            _check_no_code(at, what)
        if not all(isinstance(name, str) for name in (classes.model, classes.config)) or not all(isinstance(d, dict) for d in (config, classes.beside)):
            raise TypeError("not the names of two classes, a configuration, and digests by name")
        if not isinstance(classes.implementations, dict) or not all(key in _CODE and isinstance(said, (str, dict)) for key, said in classes.implementations.items()):
            raise TypeError(f"implementations of something else than {' and '.join(_CODE)}")
    except UsageError:
        raise
    except (TypeError, ValueError, RecursionError) as e:
        raise FormatError(f"what is kept beside {what} makes no sense: {e}") from None
    return Description(classes, metadata[CONFIG], metadata.get(GENERATION, ""))


def _check_no_code(at: Any, what: str, code: bool = False) -> None:
    """Raise UsageError if a configuration names a kernel that transformers would download, and run."""
    if isinstance(at, dict):
        for key, value in at.items():
            _check_no_code(value, what, code or str(key).lstrip("_").startswith(_CODE))
    elif isinstance(at, list):
        for value in at:
            _check_no_code(value, what, code)
    elif code and isinstance(at, str) and "/" in at:
        raise UsageError(f"{what} wants the kernel {quote(at)} of the hub, which is code: put it with another attn_implementation, and set that of the loaded model")


def class_of(name: str, base: type, what: str) -> Any:
    """Return a class by its full name: one of transformers, or of a module that is imported already."""
    module, _, own = name.rpartition(".")
    if module.startswith("transformers."):
        try:
            importlib.import_module(module)
        except ImportError as e:
            raise UnavailableError(f"{what} is a {own} of {module}, which transformers {transformers.__version__} here cannot import: {e}") from e
    found = getattr(sys.modules.get(module), own, None)
    if isinstance(found, type) and issubclass(found, base):
        return found
    hint = "of a trust_remote_code model, by transformers.dynamic_module_utils.get_class_from_dynamic_module"
    raise UnavailableError(f"{what} needs the class {own} of {quote(module)}, which is not imported here: import it first ({hint})")


def difference(old: Table, new: Table) -> str:
    """Return what is against a newer version at the address, and under the module, of an older one; "" if nothing is."""
    return layout_difference(old, new) or _other_model(old.metadata, new.metadata)


def _other_model(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return how two versions are of different models, of which only the tensors are alike."""
    before, after = description_in(old, "the old one"), description_in(new, "the new one")
    a, b = (asdict(d.classes) | {"version": "", "beside": ""} for d in (before, after))
    digests = [d.classes.beside for d in (before, after)]
    if unlike := sorted(name for name in {*digests[0], *digests[1]} if digests[0].get(name) != digests[1].get(name)):
        return f"buffers that are in no file have other values: {some(unlike)}: load it as a model of its own"
    for key in a:
        if a[key] != b[key]:
            return f"its {key} is {quote(str(b[key]))}, and was {quote(str(a[key]))}: load it as a model of its own"
    was, now = json.loads(before.config), json.loads(after.config)
    for key in sorted({*was, *now}):
        if key not in _OF_A_COPY and was.get(key) != now.get(key):
            return f"{key} is {quote(str(now.get(key)))} in its config.json, and was {quote(str(was.get(key)))}: load it as a model of its own"
    return ""
