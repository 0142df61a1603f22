"""All numbered errors that users can see, with cause and remedy. `docs/errors.md` is generated from this catalogue."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from msgspec import Struct

from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.errors.entry import Entry, Severity
from peer_agent.protocol.errors.intake import INTAKE
from peer_agent.protocol.errors.joining import JOINING
from peer_agent.protocol.errors.links import LINKS
from peer_agent.protocol.errors.material import MATERIAL
from peer_agent.protocol.errors.operating import OPERATING
from peer_agent.protocol.errors.site import SITE

CATALOGUE: dict[str, Entry] = dict(sorted((AGENT | LINKS | SITE | MATERIAL | INTAKE | OPERATING | JOINING).items()))


class Fault(Struct, frozen=True, omit_defaults=True):
    """A numbered error with all its details filled in. If it arrived over a link, `cause` contains its whole text."""

    code: str
    cause: str
    means: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        """Return the catalogue's error `code`. Raises KeyError if the number is unknown or a detail is missing."""
        entry = CATALOGUE[code]
        return cls(code, *(part.format(**details) for part in (entry.cause, entry.means, entry.remedy)))

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.cause, self.means, self.remedy) if part)

    @property
    def title(self) -> str:
        """The error's heading, or only its number if this version of the program does not know the error."""
        entry = CATALOGUE.get(self.code)
        return entry.title if entry is not None else f"Error {self.code}"

    @property
    def severity(self) -> Severity:
        entry = CATALOGUE.get(self.code)
        return entry.severity if entry is not None else Severity.MEDIUM

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"

    @classmethod
    def read(cls, written: str) -> Self:
        """Parse a fault that was stored as `str(fault)`. All text after the number becomes `cause`."""
        code, _, text = written.partition(": ")
        return cls(code, text)


def titled(title: str, code: str, text: str) -> str:
    return f"{title} ({code}). {text}"


class Problem(Exception):
    """An exception that carries a numbered error, for the user who can act on it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @classmethod
    def of(cls, code: str, **details: object) -> Self:
        return cls(Fault.of(code, **details))


def disk_fault(path: object, error: OSError) -> Fault:
    """Return E106 for the disk containing `path`, with the operating system's reason."""
    return Fault.of("E106", path=path, reason=error.strerror or error)


@contextmanager
def disk_errors(path: object) -> Iterator[None]:
    """Raise Problem E106 for the disk containing `path` if an OSError occurs inside the block."""
    try:
        yield
    except OSError as error:
        raise Problem(disk_fault(path, error)) from error
