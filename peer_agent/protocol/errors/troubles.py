"""Ongoing errors: when they began, when they ended, and which ones to show. The caller supplies the time."""

from collections.abc import Collection, Iterable

from msgspec import Struct

from peer_agent.protocol.errors import CATALOGUE, Fault
from peer_agent.protocol.errors.entry import Severity

MOST_TROUBLES = 32
_WORST_FIRST = tuple(reversed(Severity))


class Trouble(Struct, frozen=True):
    """An ongoing error, and when it began by the caller's clock (in seconds)."""

    fault: Fault
    since: float


class Troubles:
    """The ongoing errors by number, each with its latest details and the time when it began."""

    def __init__(self) -> None:
        self._lasting: dict[str, Trouble] = {}

    def began(self, fault: Fault, now: float) -> None:
        """Record an ongoing error. It began `now` unless an earlier call recorded it.

        If there are more than `MOST_TROUBLES`, drop the least urgent one.
        """
        known = self._lasting.get(fault.code)
        self._lasting[fault.code] = Trouble(fault, now if known is None else known.since)
        if len(self._lasting) > MOST_TROUBLES:
            del self._lasting[max(self._lasting.values(), key=_rank).fault.code]

    def ended(self, code: str) -> None:
        self._lasting.pop(code, None)

    def lasts(self, code: str) -> bool:
        return code in self._lasting

    def shown(self, now: float) -> list[Trouble]:
        """Return the errors that have lasted long enough, worst first. Omit any explained by another such error."""
        old = {code: trouble for code, trouble in self._lasting.items() if _is_old(trouble, now)}
        told = [trouble for code, trouble in old.items() if not explained_by(code, old)]
        return sorted(told, key=_rank)


def first_causes(faults: Iterable[Fault]) -> list[Fault]:
    """Return the faults that no other fault in the list explains, worst first."""
    present = {fault.code: fault for fault in faults}
    told = [fault for code, fault in present.items() if not explained_by(code, present)]
    return sorted(told, key=lambda fault: (_WORST_FIRST.index(fault.severity), fault.code))


def explained_by(code: str, present: Collection[str]) -> str:
    """Return the error in `present` that is the root cause of the error `code`, or '' if none of them is."""
    causes = [cause for cause in _causes(code) if cause in present]
    return next((cause for cause in causes if not set(_causes(cause)) & set(present)), "")


def _causes(code: str) -> list[str]:
    """Return all errors that may cause the error `code`, nearest first."""
    found = [code]
    for one in found:
        entry = CATALOGUE.get(one)
        found += [cause for cause in (entry.depends_on if entry is not None else ()) if cause not in found]
    return found[1:]


def _is_old(trouble: Trouble, now: float) -> bool:
    entry = CATALOGUE.get(trouble.fault.code)
    return now - trouble.since >= (entry.shown_after_s if entry is not None else 0.0)


def _rank(trouble: Trouble) -> tuple[int, float, str]:
    return _WORST_FIRST.index(trouble.fault.severity), trouble.since, trouble.fault.code
