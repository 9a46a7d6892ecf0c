"""The names of a broker: which offers stand for them, and who waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from .state import Offer, Session


@dataclass(eq=False)
class Name:
    """The offers of a name, and the sessions that wait for it."""

    current: Offer | None = None  # published
    prepared: Offer | None = None  # its descriptors are there
    beside: list[Offer] = field(default_factory=list)  # published, for sessions that resume
    makers: int = 0  # offers that are being made: sessions wait for them, where there is no current offer
    queue: list[Session] = field(default_factory=list)  # in the order of their coming
    done: int = 0  # how far the next offer is
    total: int = 0

    @property
    def stands_for(self) -> Offer | None:
        return self.current or self.prepared

    @property
    def means_nothing(self) -> bool:
        return not self.current and not self.beside and not self.makers


class Names:
    """The names that stand for something, or are expected to."""

    def __init__(self) -> None:
        self.all: dict[str, Name] = {}

    def get(self, text: str) -> Name | None:
        return self.all.get(text)

    def at(self, text: str) -> Name:
        """Return the entry of a name, which is made if there is none."""
        return self.all.setdefault(text, Name())

    def tidy(self, text: str) -> None:
        """Drop the entry of a name that stands for nothing."""
        if (n := self.all.get(text)) and n.means_nothing:
            del self.all[text]

    def there(self) -> dict[str, int]:
        """Return the offers that are published or prepared, by name and in order."""
        return {text: n.stands_for.id for text, n in sorted(self.all.items()) if n.stands_for}

    def is_taken(self, o: Offer) -> bool:
        """Return whether an offer cannot have its name, because of one that it does not replace
        or another that is prepared."""
        n = self.all.get(o.name)
        if not n:
            return False
        return n.current is not None and not o.terms.replaces or n.prepared is not None and n.prepared is not o

    def newer_than(self, o: Offer) -> int:
        """Return the generation of the memory that has the place of an offer's, or 0."""
        n = self.all.get(o.name)
        if n and n.current and n.current is not o and o.published:
            return n.current.generation
        return o.newer

    def is_earlier(self, x: Offer) -> bool:
        """Return whether an offer is over, or is going to be because other memory has its name, so
        that the next offer of its memory has to wait for it."""
        n = self.all.get(x.name)
        return x.over or x.published and (not n or not n.current or n.current.terms.memory != x.terms.memory)

    def meant_by(self, s: Session) -> str:
        """Return the name that a session means: the only one, if it says none. One that has waited
        for that goes on to mean it, unless another offer has been published."""
        if s.want.name:
            return s.want.name
        published = [text for text, n in self.all.items() if n.current]
        expected = [text for text, n in self.all.items() if n.makers]
        if len(published) == 1 and s.waits_for in ("", published[0]):
            return published[0]
        if not published and s.waits_for:
            return s.waits_for
        if not published and len(expected) == 1:
            return expected[0]
        return ""

    def has_again(self, o: Offer, s: Session, text: str) -> bool:
        """Return whether an offer has the memory that a session wants again under a name."""
        n = self.all.get(text)
        there = o.published or n is not None and n.prepared is o
        return o.name == text and not o.over and there and o.is_of(s.want.reattach)

    def find(self, s: Session, text: str) -> Offer | None:
        """Return the offer that a session gets that means a name and does not reattach, or None."""
        n = self.all.get(s.want.name)
        if n and s.want.resume:
            for o in n.beside:
                if o.is_of(s.want.resume):
                    return o
        n = self.all.get(text)
        return n.stands_for if n else None
