"""What is said of one error."""

from typing import NamedTuple

NOTHING_LOST = "Nothing was lost."
STAYS = "What was accepted of this machine's work stays counted."


class Entry(NamedTuple):
    """One error: what happened, what to do, and between them what it means for somebody's work. Format strings."""

    cause: str
    remedy: str
    means: str = ""

    @property
    def text(self) -> str:
        """All of it, in the order in which it is read."""
        return " ".join(part for part in (self.cause, self.means, self.remedy) if part)
