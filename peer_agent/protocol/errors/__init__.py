"""Every error a person can meet: a number, its cause, and what to do. `docs/errors.md` is printed from this table."""

from typing import Self

from msgspec import Struct

from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.errors.entry import Entry
from peer_agent.protocol.errors.links import LINKS
from peer_agent.protocol.errors.operating import OPERATING
from peer_agent.protocol.errors.site import SITE

CATALOGUE: dict[str, Entry] = AGENT | LINKS | SITE | OPERATING


class Fault(Struct, frozen=True):
    """One numbered error with its details filled in."""

    code: str
    text: str

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        """The fault `code` of the catalogue. Raises KeyError where a detail is missing."""
        return cls(code, CATALOGUE[code].text.format(**details))

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Problem(Exception):
    """A numbered error on its way to the person who can do something about it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        """The problem `code` of the catalogue."""
        return cls(Fault.of(code, **details))
