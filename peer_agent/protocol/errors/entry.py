"""The fields of one error in the catalogue."""

from enum import StrEnum

from msgspec import Struct

NOTHING_LOST = "Nothing was lost."
NOTHING_BEGUN = "Nothing was started."
NOTHING_CHANGED = "Nothing was changed."
NOTHING_KEPT = "Nothing was kept."
STAYS = "Credit already earned is kept."


class Severity(StrEnum):
    """The severity of an error, in ascending order."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


SAYS = {
    Severity.LOW: "work goes on, and nothing has to be done at once",
    Severity.MEDIUM: "work goes on less well or may stop, or one request was refused and nothing else",
    Severity.HIGH: "nothing can be done until it is mended",
}


class Entry(Struct, frozen=True):
    """One error in the catalogue. `cause`, `means` and `remedy` are format strings.

    `depends_on`: the numbers of errors that explain this error and hide it. `shown_after_s`: the error is shown once it
    has lasted this many seconds.
    """

    title: str
    severity: Severity
    cause: str
    remedy: str
    means: str = ""
    depends_on: tuple[str, ...] = ()
    shown_after_s: float = 0.0
