"""The fields of one error in the catalogue."""

from enum import StrEnum

from msgspec import Struct

NOTHING_LOST = "Nothing was lost."
NOTHING_BEGUN = "Nothing was started."
NOTHING_CHANGED = "Nothing was changed."
NOTHING_KEPT = "Nothing was kept."
STAYS = "Credit already earned is kept."


class Severity(StrEnum):
    """An error's severity, in ascending order."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


SAYS = {
    Severity.LOW: "Work continues; no immediate action is needed.",
    Severity.MEDIUM: "Work is degraded or may stop, or a single request was refused.",
    Severity.HIGH: "Work stops until this is fixed.",
}


class Entry(Struct, frozen=True):
    """One error in the catalogue. `cause`, `means` and `remedy` are format strings.

    `depends_on`: the numbers of errors that explain this one and hide it. `shown_after_s`: the error is shown once it
    has lasted this many seconds.
    """

    title: str
    severity: Severity
    cause: str
    remedy: str
    means: str = ""
    depends_on: tuple[str, ...] = ()
    shown_after_s: float = 0.0
