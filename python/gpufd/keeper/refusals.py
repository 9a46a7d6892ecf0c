"""Why a keeper serves a name to nobody: a refusal does not say that."""

from __future__ import annotations

from ..errors import Error, KeeperError, NotFoundError, RefusedError, keeper_error


def explained(path: str, name: str, part: int | None, timeout: float | None, refused: RefusedError) -> Error:
    """Return why a reader was turned away, where that is the state of the name, and otherwise what it was told."""
    if refused.reason == "other-memory":
        return refused
    from .client import Client

    try:
        with Client(path, timeout=timeout) as client:
            info = client.stat(name)
    except (KeeperError, NotFoundError) as e:
        return e
    except (Error, OSError):
        return refused
    if info.version == 0:
        return keeper_error("not-found", f"{name} has no version yet")
    if part is not None and part >= len(info.parts):
        return keeper_error("not-found", f"{name} has no part {part}: it has {len(info.parts)}")
    for p in info.parts:
        if part in (None, p.part) and p.state != "ok":
            return KeeperError(p.state, f"part {p.part} of version {info.version} of {name} is {p.state} ({p.reason}), and not served")
    if info.state != "ok":
        return KeeperError(info.state, f"{name}, version {info.version}, is {info.state}, and not served")
    return refused
