"""A keeper's description of the memory that it offers: docs/keeper.md, "Names, versions, parts"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Error, MismatchError
from ..objects import called
from ..wire.records import Offer

MAX_PARTS = 1 << 16  # of a version that is taken


@dataclass(frozen=True)
class Kept:
    """A keeper's description of one part of a version."""

    name: str
    version: int  #: from 1
    part: int  #: from 0
    parts: int  #: how many the version has
    labels: Mapping[str, str]
    digest: str  #: of the part's bytes
    table: Any  #: what its writer says is in the part
    layout: str = ""  #: a digest of where which tensors lie, or "" if its writer gave none

    def __repr__(self) -> str:
        return f"<gpufd.Kept {called(self.name)} version {self.version}, part {self.part} of {self.parts}>"


def kept_of(offer: Offer) -> Kept:
    """The application data of a keeper's offer, decoded; Error if it is not a keeper's."""
    try:
        said = _json(offer.data)
        labels, layout = said.get("labels") or {}, said.get("layout")
        "".join(str(text) for text in (said["name"], *labels, *labels.values())).encode()  # half a surrogate pair has no UTF-8
        kept = Kept(str(said["name"]), int(said["version"]), int(said.get("part") or 0), int(said.get("parts") or 1),
                    {str(k): str(v) for k, v in labels.items()}, str(said.get("digest") or ""), said.get("table"),
                    layout if isinstance(layout, str) else "")  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Error(f"the offer {offer.name!r} is not a keeper's: its data says no version") from None
    if kept.version < 1 or not 0 <= kept.part < kept.parts <= MAX_PARTS:
        raise Error(f"the offer {offer.name!r} says part {kept.part} of {kept.parts} of version {kept.version}, which makes no sense")
    return kept


def _json(data: bytes) -> Any:
    """The JSON of an offer. Python makes no number of more than 4,300 digits: in a writer's
    table it is no number, and no fault of the keeper's."""
    try:
        return json.loads(data)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(data, parse_int=lambda text: int(text) if len(text) <= 20 else math.inf)


def check_labels(name: str, has: Mapping[str, str], wanted: Mapping[str, str] | None) -> None:
    """Raise MismatchError (labels) unless a version has the labels that are demanded."""
    for key, value in (wanted or {}).items():
        if has.get(key) != value:
            there = f"has {key}={has[key]!r}" if key in has else f"has no label {key}"
            raise MismatchError(f"{name} {there}, and {key}={value!r} was asked for", reason="labels")
