"""A run's states, and the moves allowed between them.

Only `move` writes a state. It uses a single conditional update, so only one of two concurrent moves succeeds.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from runs.models import Run

DRAFT, PREPARING, OPEN = Run.State.DRAFT, Run.State.PREPARING, Run.State.OPEN
PAUSED, FINISHING, FINISHED = Run.State.PAUSED, Run.State.FINISHING, Run.State.FINISHED

NOT_OPEN = (DRAFT, PREPARING)  # not yet open to volunteers
LIVE = (OPEN, PAUSED)  # has a host; a FINISHING run needs only its release
HOSTED = (*LIVE, FINISHING)  # pages may still show the run's machines
UNDER_WAY = (PREPARING, *HOSTED)  # counts towards the organizer's concurrent runs
MOVING = (PREPARING, OPEN, FINISHING)  # the state changes without anyone's action
EXTENDABLE = (DRAFT, *LIVE)


class Why(StrEnum):
    WANTED_OPEN = "its organizer opens it"
    PREPARED = "its first parameters are made"
    NOT_PREPARED = "its text or its parameters could not be made"
    PAUSED = "its organizer pauses it"
    HALTED = "its loss has risen"
    RESUMED = "its organizer resumes it"
    ENDED = "its organizer ends it at the present step"
    LAST_STEP = "its last step is made"
    RELEASED = "its model can be downloaded"
    TAKEN_BACK = "its organizer takes it back, before its first step"


class Move(NamedTuple):
    """A move from any state in `before` to `after`. `wanted` is the organizer's request to store, if it changes."""

    before: tuple[Run.State, ...]
    after: Run.State
    wanted: Run.Wanted | None = None


MOVES: Mapping[Why, Move] = MappingProxyType(
    {
        Why.WANTED_OPEN: Move((DRAFT,), PREPARING, Run.Wanted.OPEN),
        Why.PREPARED: Move((PREPARING,), OPEN),
        Why.NOT_PREPARED: Move(NOT_OPEN, DRAFT),
        Why.PAUSED: Move((OPEN,), PAUSED, Run.Wanted.PAUSED),
        Why.HALTED: Move((OPEN,), PAUSED, Run.Wanted.PAUSED),
        Why.RESUMED: Move((PAUSED,), OPEN, Run.Wanted.OPEN),
        Why.ENDED: Move(LIVE, OPEN, Run.Wanted.FINISHED),
        Why.LAST_STEP: Move(HOSTED, FINISHING),
        Why.RELEASED: Move(HOSTED, FINISHED),
        Why.TAKEN_BACK: Move(LIVE, DRAFT, Run.Wanted.NOTHING),
    }
)


def move(run: Run, why: Why, **values: Any) -> bool:
    """Change a run's state and set `values`, if `MOVES` allows the change. Then refresh `run`.

    If the run is in another state, write nothing and return False. A pause also fails once the organizer has asked to
    end the run.
    """
    step = MOVES[why]
    rows = Run.objects.filter(pk=run.pk, state__in=step.before)
    if why in (Why.PAUSED, Why.HALTED):
        rows = rows.exclude(wanted=Run.Wanted.FINISHED)
    if step.wanted is not None:
        values["wanted"] = step.wanted
    is_moved = bool(rows.update(state=step.after, **values))
    run.refresh_from_db()
    return is_moved


def ending_word(run: Run) -> str:
    """Return the run's state as named in error messages. A run whose organizer is ending it counts as finishing."""
    return "finishing" if run.wanted == Run.Wanted.FINISHED and run.state in LIVE else run.state
