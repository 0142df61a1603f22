"""The coordinator's table of transitions between phases. Only `enter` changes `state.phase`."""

from enum import StrEnum

from peer_agent.protocol.coordinator.state import Phase, RunState


class Why(StrEnum):
    """The reasons for a transition between phases."""

    FULL = "the target batch is reached"
    OFFERED = "all have offered, or the deadline with a quorum"
    TOO_LITTLE = "too little was offered"
    REPLANNED = "a reducer is lost or stands still: attempt + 1 on the same offers"
    DROPPED = "a trainer is lost, stuck or refused: its slot is dropped"
    TOO_FEW = "too few trainers are left"
    STUCK = "nothing moves until the deadline"
    UNTRUE = "the only reducer's report is false"
    HELD = "every span is held"
    WRITTEN = "the database has it"
    UNWRITTEN = "nothing was written: persist again"
    UNWRITABLE = "the record cannot be written: void"
    ROLLED_BACK = "the organizer rolls the run back: void"
    BEHIND = "a relay has entries that the database lacks: void"


TRANSITIONS: dict[tuple[Phase, Why], Phase] = {
    (Phase.ACCUMULATE, Why.FULL): Phase.OFFER,
    (Phase.OFFER, Why.OFFERED): Phase.REDUCE,
    (Phase.OFFER, Why.TOO_LITTLE): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.REPLANNED): Phase.REDUCE,
    (Phase.REDUCE, Why.DROPPED): Phase.REDUCE,
    (Phase.REDUCE, Why.TOO_FEW): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.STUCK): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.UNTRUE): Phase.ACCUMULATE,
    (Phase.OFFER, Why.ROLLED_BACK): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.ROLLED_BACK): Phase.ACCUMULATE,
    (Phase.OFFER, Why.BEHIND): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.BEHIND): Phase.ACCUMULATE,
    (Phase.REDUCE, Why.HELD): Phase.COMMIT,
    (Phase.COMMIT, Why.WRITTEN): Phase.ACCUMULATE,
    (Phase.COMMIT, Why.UNWRITTEN): Phase.COMMIT,
    (Phase.COMMIT, Why.UNWRITABLE): Phase.ACCUMULATE,
}


class Impossible(AssertionError):
    """Raised for a transition that is not in the table. The state is then corrupt and must no longer be used."""


def enter(state: RunState, why: Why) -> None:
    """Perform a transition. Raises Impossible if the table has none for this phase and reason."""
    following = TRANSITIONS.get((state.phase, why))
    if following is None:
        raise Impossible(f"in phase {state.phase} there is no way on because {why}")
    state.phase = following
