"""The transitions between a trainer's phases, and the causes that each phase ignores. Only `move` changes the phase."""

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
PRESENT = (*BEHIND, P.ACCUMULATE, *ROUND)  # the trainer has a model state
ALIVE = (*BEFORE, *PRESENT)
FREE = (P.ACCUMULATE, P.FOLLOWING)  # outside a round: at the latest entry or behind
AFTERWARDS = (P.ACCUMULATE, P.FOLLOWING, P.APPLYING)  # possible phases after the model state changes


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
    **_same(Cause.PLANNED, P.ACCUMULATE),  # in a round that did not ask this trainer to contribute
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
    Cause.GREETED: (P.LOADING, *PRESENT),  # the trainer already has a model state or is loading one
    Cause.LOADED: (P.ABSENT, *PRESENT),  # the result of an abandoned job
    Cause.SNAPSHOT_GONE: (P.ABSENT, *PRESENT),
    Cause.RELOAD: BEFORE,
    Cause.FELL_BEHIND: (*BEFORE, *BEHIND, *ROUND),  # the commit will end the round
    Cause.NEXT_RECORD: (*BEFORE, P.APPLYING, P.LACKING),  # the record waits among the pending ones
    Cause.APPLIED: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, *ROUND),
    Cause.BYTES_MISSING: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, *ROUND),
    Cause.RETRY: (*BEFORE, P.FOLLOWING, P.APPLYING, P.ACCUMULATE, *ROUND),
    Cause.NEWER_SNAPSHOT: (*BEFORE, P.FOLLOWING, P.APPLYING, P.ACCUMULATE, *ROUND),  # the replica can follow the log
    Cause.LEASED: BEFORE,  # without a state, a trainer holds no units; its hello after loading says so
    Cause.RESULT: BEFORE,  # no unit is being computed
    Cause.CUT: (*BEFORE, *BEHIND),  # the round goes on without this trainer
    Cause.LEFT_OUT: (*BEFORE, *BEHIND),
    Cause.FROZEN: (*BEFORE, *BEHIND, P.ACCUMULATE, P.OFFER, P.REDUCE),  # the encoded gradient is too late for the plan
    Cause.OVERFLOWED: (*BEFORE, *BEHIND, P.ACCUMULATE),  # the next freeze reports the overflow again
    Cause.PLANNED: (*BEFORE, *BEHIND),  # this trainer offered nothing and will get the update from the log
    Cause.OPENED: (*BEFORE, *BEHIND, P.ACCUMULATE),
    # The attempt is over.
    Cause.GATHERED: (*BEFORE, P.FOLLOWING, P.LACKING, P.ACCUMULATE, P.FREEZE, P.OFFER),
    Cause.ROUND_OVER: (*BEFORE, *BEHIND, P.ACCUMULATE),
    Cause.REVOKED: BEFORE,  # no unit is leased to this trainer
    Cause.SPOKE: (),
    Cause.LEFT: (),
}


class IllegalMove(RuntimeError):
    """Raised for a phase change that is not in the table."""


def ignores(state: TrainerState, cause: Cause) -> bool:
    """Return True if the current phase ignores the cause. Raises IllegalMove if no table lists this phase and cause."""
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
