"""The transitions between phases, and the causes that each phase ignores. Only `move` changes the phase."""

from enum import StrEnum

from peer_agent.protocol.trainer.state import ROUND, Phase, TrainerState

P = Phase


class Cause(StrEnum):
    ASKED = "the site asks for a hello"
    GREETED = "the site names a snapshot to begin from"
    LOADED = "the snapshot is loaded"
    SNAPSHOT_GONE = "the snapshot is gone from the site"
    RELOAD = "the site finds this replica wrong, or knows less than it"
    FELL_BEHIND = "a newer entry is heard of"
    NEXT_RECORD = "the next record is here"
    APPLIED = "the record is applied"
    BYTES_MISSING = "no relay has the record's bytes"
    RETRY = "time to ask the relays again"
    NEWER_SNAPSHOT = "a newer snapshot is heard of"
    LEASED = "units are leased"
    RESULT = "a unit is computed"
    CUT = "a cut at this step"
    LEFT_OUT = "a round at this step is made without us"
    FROZEN = "what is held is encoded"
    OVERFLOWED = "what is held is not finite"
    PLANNED = "a plan of this round"
    OPENED = "a reducer opens"
    GATHERED = "all averages of the attempt have come"
    ROUND_OVER = "the round is over without an update"
    REVOKED = "the leases have ended"
    SPOKE = "time to say something"
    LEFT = "the process ends"


BEFORE = (P.ABSENT, P.LOADING)
BEHIND = (P.FOLLOWING, P.APPLYING, P.LACKING)
PRESENT = (*BEHIND, P.ACCUMULATE, *ROUND)  # it has a state
ALIVE = (*BEFORE, *PRESENT)
FREE = (P.ACCUMULATE, P.FOLLOWING)  # in no round: at the head or behind it
AFTERWARDS = (P.ACCUMULATE, P.FOLLOWING, P.APPLYING)  # of a state that has changed


def _same(cause: Cause, *phases: Phase) -> dict[tuple[Phase, Cause], tuple[Phase, ...]]:
    return {(phase, cause): (phase,) for phase in phases}


def _to(cause: Cause, phases: tuple[Phase, ...], *after: Phase) -> dict[tuple[Phase, Cause], tuple[Phase, ...]]:
    return {(phase, cause): after for phase in phases}


TRANSITIONS: dict[tuple[Phase, Cause], tuple[Phase, ...]] = {
    **_same(Cause.ASKED, *ALIVE),
    **_to(Cause.GREETED, (P.ABSENT,), P.LOADING),
    **_to(Cause.LOADED, (P.LOADING,), *AFTERWARDS),
    **_to(Cause.SNAPSHOT_GONE, (P.LOADING,), P.ABSENT),
    **_to(Cause.RELOAD, PRESENT, P.LOADING),
    **_to(Cause.FELL_BEHIND, (P.ACCUMULATE,), P.FOLLOWING),
    **_to(Cause.NEXT_RECORD, (P.FOLLOWING, P.ACCUMULATE, *ROUND), P.APPLYING),
    **_to(Cause.APPLIED, (P.APPLYING,), *AFTERWARDS),
    **_to(Cause.BYTES_MISSING, (P.APPLYING,), P.LACKING),
    **_to(Cause.RETRY, (P.LACKING,), P.APPLYING),
    **_to(Cause.NEWER_SNAPSHOT, (P.LACKING,), P.LOADING),
    **_same(Cause.LEASED, *PRESENT),
    **_same(Cause.RESULT, *PRESENT),
    **_to(Cause.CUT, (P.ACCUMULATE, *ROUND), P.FREEZE),
    **_to(Cause.LEFT_OUT, (P.ACCUMULATE, *ROUND), P.OFFER),
    **_to(Cause.FROZEN, (P.FREEZE,), P.OFFER),
    **_to(Cause.OVERFLOWED, ROUND, *FREE),
    **_to(Cause.PLANNED, ROUND, P.REDUCE),
    **_same(Cause.PLANNED, P.ACCUMULATE),  # of a round that did not ask us
    **_same(Cause.OPENED, *ROUND),
    **_same(Cause.GATHERED, P.REDUCE, P.APPLYING),
    **_to(Cause.ROUND_OVER, ROUND, *FREE),
    **_same(Cause.REVOKED, *BEHIND, P.ACCUMULATE),
    **_to(Cause.REVOKED, ROUND, *FREE),
    **_same(Cause.SPOKE, *ALIVE),
    **_to(Cause.LEFT, ALIVE, P.GONE),
}

# A trainer that is GONE ignores everything.
IGNORED: dict[Cause, tuple[Phase, ...]] = {
    Cause.ASKED: (),
    Cause.GREETED: (P.LOADING, *PRESENT),  # it has a state, or loads it
    Cause.LOADED: (P.ABSENT, *PRESENT),  # of an abandoned job
    Cause.SNAPSHOT_GONE: (P.ABSENT, *PRESENT),
    Cause.RELOAD: BEFORE,
    Cause.FELL_BEHIND: (*BEFORE, *BEHIND, *ROUND),  # the commit will end the round
    Cause.NEXT_RECORD: (*BEFORE, P.APPLYING, P.LACKING),  # it waits its turn among the pending ones
    Cause.APPLIED: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, *ROUND),
    Cause.BYTES_MISSING: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, *ROUND),
    Cause.RETRY: (*BEFORE, P.FOLLOWING, P.APPLYING, P.ACCUMULATE, *ROUND),
    Cause.NEWER_SNAPSHOT: (*BEFORE, P.FOLLOWING, P.APPLYING, P.ACCUMULATE, *ROUND),  # records lead on from here
    Cause.LEASED: BEFORE,  # without a state it holds nothing, as the hello after loading says
    Cause.RESULT: BEFORE,  # nothing is in hand
    Cause.CUT: (*BEFORE, *BEHIND),  # the round goes on without us
    Cause.LEFT_OUT: (*BEFORE, *BEHIND),
    Cause.FROZEN: (*BEFORE, *BEHIND, P.ACCUMULATE, P.OFFER, P.REDUCE),  # too late for the plan
    Cause.OVERFLOWED: (*BEFORE, *BEHIND, P.ACCUMULATE),  # the next freeze finds it again
    Cause.PLANNED: (*BEFORE, *BEHIND),  # we offered nothing; the log will have it
    Cause.OPENED: (*BEFORE, *BEHIND, P.ACCUMULATE),
    # The attempt is over.
    Cause.GATHERED: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, P.FREEZE, P.OFFER),
    Cause.ROUND_OVER: (*BEFORE, *BEHIND, P.ACCUMULATE),
    Cause.REVOKED: BEFORE,  # nothing is leased to it
    Cause.SPOKE: (),
    Cause.LEFT: (),
}


class IllegalMove(RuntimeError):
    """A change of phase that is not in the table."""


def ignores(state: TrainerState, cause: Cause) -> bool:
    """Return True if the phase ignores the cause. Raises IllegalMove if the tables do not say."""
    if state.phase is Phase.GONE or state.phase in IGNORED[cause]:
        return True
    if (state.phase, cause) not in TRANSITIONS:
        raise IllegalMove(f"{state.phase}: {cause}")
    return False


def move(state: TrainerState, cause: Cause, after: Phase) -> None:
    """Change the phase. Raises IllegalMove if the table has no such transition."""
    if after not in TRANSITIONS.get((state.phase, cause), ()):
        raise IllegalMove(f"{state.phase} to {after}: {cause}")
    state.phase = after
