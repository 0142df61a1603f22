"""Roll back to a snapshot: record the rollback in the log, and let a new host start from that snapshot (rule 15).

The log entry has the next index but a lower step. This host's rounds, votes and leases belong to undone steps, so it
stops driving the run. The next host restores the run from the database. The undone steps no longer count as credit, but
used samples stay used.
"""

from peer_agent.protocol.coordinator.events import Abdicate, Command, Persist, Persisted, Target
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.round.voiding import void
from peer_agent.protocol.coordinator.state import Phase, RunState
from peer_agent.protocol.log.records import Record, Restored, Scalars, whole

UNMOVED = Scalars(learning_rate=0.0, clip=0.0, inverse_bias_1=0.0, inverse_bias_2=0.0, inverse_tokens=0.0)
WHY = "its organizer rolls the run back"


def roll_back(state: RunState, target: Target | None) -> list[Command]:
    """Begin the rollback that the organizer wants, unless a commit is under way. The host calls this every second."""
    if target is None or state.rolling is not None or state.finished or state.phase is Phase.COMMIT:
        return []
    voided = void(state, Why.ROLLED_BACK, WHY) if state.round is not None else []
    state.rolling = _record_of(state, target)
    return [*voided, Persist(state.rolling, state.now - state.accumulating_since, 0)]


def take_rolled_back(state: RunState, event: Persisted) -> list[Command]:
    """Process the database's answer to the rollback. If nothing was written, the host will request it again."""
    if event.outcome in ("committed", "stale"):
        return [Abdicate()]
    state.rolling = None
    return []


def _record_of(state: RunState, target: Target) -> Record:
    return whole(
        run=state.run,
        index=state.index + 1,
        step=target.step,
        fence=state.fence,
        attempt=0,
        round=state.rounds,
        previous=state.digest,
        kind="rollback",
        elements=state.elements,
        chunk_elements=state.grid.chunk_elements,
        codec=state.recipe.codec_down,
        spans=(),
        scalars=UNMOVED,
        contributions=(),
        loss=0.0,
        tokens=0,
        samples=0,
        exact=True,
        restored=Restored(target.index, target.file),
    )
