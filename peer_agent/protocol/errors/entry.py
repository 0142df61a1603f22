"""What is said of one error."""

from enum import StrEnum

from msgspec import Struct

NOTHING_LOST = "Nothing was lost."
NOTHING_BEGUN = "Nothing was started."
NOTHING_CHANGED = "Nothing was changed."
NOTHING_KEPT = "Nothing was kept."
STAYS = "Credit already earned is kept."


class Severity(StrEnum):
    """How much an error stops, from the least to the most."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


SAYS = {
    Severity.LOW: "work goes on, and nothing has to be done at once",
    Severity.MEDIUM: "work goes on less well or may stop, or one request was refused and nothing else",
    Severity.HIGH: "nothing can be done until it is mended",
}


class Entry(Struct, frozen=True):
    """One error: its title, what happened, what to do, and between them what it means for somebody's work.

    `cause`, `remedy` and `means` are format strings. `depends_on`: the codes of errors that explain this one; while one
    of them is shown, this one is not. `shown_after_s`: how long it may last before anybody is told.
    """

    title: str
    severity: Severity
    cause: str
    remedy: str
    means: str = ""
    depends_on: tuple[str, ...] = ()
    shown_after_s: float = 0.0
