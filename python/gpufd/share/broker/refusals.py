"""The refusals of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ...wire import records as wire
from .state import Offer

MAX_NAMED = 10  # offers that a refusal names

CLOSED = wire.Refuse(wire.NO_OFFER, "the producer ended before its offer was ready")


def misfit(o: Offer, want: wire.Attach, placed: bool) -> wire.Refuse | None:
    """Return why a consumer, which may have a place already, cannot have an offer, or None."""
    r, name = o.terms.record, quoted(o.name)
    if want.driver != r.driver:
        names = wire.driver_name(r.driver), wire.driver_name(want.driver)
        return wire.Refuse(wire.OTHER_DRIVER, "the producer uses the %s driver and the consumer %s; run both with the same --driver" % names)
    if want.access > r.access:
        names = wire.access_name(r.access), wire.access_name(want.access)
        return wire.Refuse(wire.TOO_MUCH_ACCESS, f"{name} is offered %s, and %s was asked for" % names)
    if want.resume and not o.is_of(want.resume):
        return wire.Refuse(wire.OTHER_MEMORY, f"{name} is not the memory of generation {want.resume} that you have mapped; attach anew")
    if r.legacy and not want.capabilities & wire.TAKES_LEGACY:
        return wire.Refuse(wire.NOT_KNOWN, f"{name} is offered by a legacy handle, and you did not say that you take such")
    if r.data_size and not want.capabilities & wire.TAKES_DATA:
        text = f"{name} has {r.data_size} bytes of application data, and you did not say that you take more than {wire.MAX_DATA}"
        return wire.Refuse(wire.NOT_KNOWN, text)
    if r.cursor_size and not want.capabilities & wire.TAKES_CURSORS:
        text = f"{name} gives each consumer cursors (field 5, a channel's), and you did not say that you take them"
        return wire.Refuse(wire.NOT_KNOWN, text)
    if 0 < o.terms.leases <= o.places and not placed:
        most = "1 consumer" if o.terms.leases == 1 else f"{o.terms.leases} consumers"
        return wire.Refuse(wire.BUSY, f"{name} has all it waits for: {most}")
    return None


def not_any_more(name: str, generation: int) -> wire.Refuse:
    """Refuse a session that wants memory again which is not there."""
    return wire.Refuse(wire.OTHER_MEMORY, f"{quoted(name)} is not the memory of generation {generation} any more; attach anew")


def no_offer(asked: str, there: Iterable[str]) -> wire.Refuse:
    """Refuse a session whose offer is not there. If it asked for the only offer, and there are
    several, the refusal names them."""
    if asked:
        return wire.Refuse(wire.NO_OFFER, f"there is no offer {quoted(asked)} here")
    text, names = "there is not exactly one offer here; ask for one by its name", list(there)
    if names:
        text += ": " + ", ".join(quoted(n) for n in names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        text += f" and {len(names) - MAX_NAMED} more"
    return wire.Refuse(wire.NO_OFFER, text)


def quoted(name: str) -> str:
    """Return a name in quotes, with escapes for what cannot be printed."""
    return json.dumps(name, ensure_ascii=not name.isprintable())
