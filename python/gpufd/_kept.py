"""A keeper's description of the memory that it offers: docs/keeper.md, "Names, versions, parts"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ._errors import Error, LabelError
from ._wire import Offer

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


def kept_of(offer: Offer) -> Kept:
    """The application data of a keeper's offer, decoded; Error if it is not a keeper's."""
    try:
        said = json.loads(offer.data)
        labels = said.get("labels") or {}
        kept = Kept(str(said["name"]), int(said["version"]), int(said.get("part") or 0), int(said.get("parts") or 1),
                    {str(k): str(v) for k, v in labels.items()}, str(said.get("digest") or ""), said.get("table"))  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Error(f"the offer {offer.name!r} is not a keeper's: its data says no version") from None
    if kept.version < 1 or not 0 <= kept.part < kept.parts <= MAX_PARTS:
        raise Error(f"the offer {offer.name!r} says part {kept.part} of {kept.parts} of version {kept.version}, which makes no sense")
    return kept


def check_labels(name: str, has: Mapping[str, str], wanted: Mapping[str, str] | None) -> None:
    """Raise LabelError unless a version has the labels that are demanded."""
    for key, value in (wanted or {}).items():
        if has.get(key) != value:
            raise LabelError(f"{name} has {key}={has.get(key, '')!r}, and {value!r} was asked for")
