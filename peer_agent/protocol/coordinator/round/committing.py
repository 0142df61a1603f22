"""Finish a round: request the record, process the database's answer, and send the commit message."""

from peer_agent.protocol.codec_sizes import ERROR
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.agreement.digests import call_voters
from peer_agent.protocol.coordinator.agreement.snapshots import elect, is_due
from peer_agent.protocol.coordinator.loss_guard import watch_loss
from peer_agent.protocol.coordinator.phases import Why, enter
from peer_agent.protocol.coordinator.round.attempt import norm_limit
from peer_agent.protocol.coordinator.round.audits import compare
from peer_agent.protocol.coordinator.round.choosing import settle_choice
from peer_agent.protocol.coordinator.round.outlining import end_outline
from peer_agent.protocol.coordinator.round.recording import record_of
from peer_agent.protocol.coordinator.round.replicas import await_replicas
from peer_agent.protocol.coordinator.round.screening import loss_of_people
from peer_agent.protocol.coordinator.round.voiding import void
from peer_agent.protocol.coordinator.state import Phase, RunState
from peer_agent.protocol.coordinator.typical import remember_norm
from peer_agent.protocol.coordinator.workers.counts import look_soon, recount_all
from peer_agent.protocol.coordinator.workers.settlement import close_round, grace, settle_leases
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record, digest_of
from peer_agent.protocol.sealed import SealedCommit

PERSIST_PAUSE_S = 1.0  # seconds before sending the record to the database again, doubling each time
PERSIST_PAUSES_S = 30.0  # the longest pause before sending the record again


def commit(state: RunState) -> list[e.Command]:
    """Ask the database to write the record once every span is stored. Only the database decides on commits (rule 3)."""
    round_ = state.round
    assert round_ is not None
    round_.record = record_of(state, round_)
    end_outline(state)
    enter(state, Why.HELD)
    return [e.Persist(round_.record, state.now - state.accumulating_since, round_.attempts)]


def take_persisted(state: RunState, event: e.Persisted, seed: int) -> list[e.Command]:
    """Process the database's answer to the record. If nothing was written, try again after a pause."""
    round_ = state.round
    if state.phase is not Phase.COMMIT or round_ is None or round_.record is None:
        return []
    match event.outcome:
        case "stale":
            return [e.Abdicate()]
        case "failed":
            round_.persist_pause_s = min(2 * round_.persist_pause_s or PERSIST_PAUSE_S, PERSIST_PAUSES_S)
            round_.persist_at = state.now + round_.persist_pause_s
            return []
        case "refused":
            return void(state, Why.UNWRITABLE, "its record could not be saved")
        case "committed":
            return _committed(state, event, seed)


def persist_again(state: RunState) -> list[e.Command]:
    """Send the record to the database again after a failed write."""
    round_ = state.round
    assert round_ is not None
    assert round_.record is not None
    round_.persist_at = None
    enter(state, Why.UNWRITTEN)
    return [e.Persist(round_.record, state.now - state.accumulating_since, round_.attempts)]


def _committed(state: RunState, event: e.Persisted, seed: int) -> list[e.Command]:
    round_ = state.round
    assert round_ is not None
    assert round_.record is not None
    assert event.sealed is not None
    record = round_.record
    before = state.index
    settle_leases(state, record, round_.offers)
    close_round(state, round_)
    limit = norm_limit(round_, (part for done in round_.done.values() for part in done.included))
    state.feedback_norm = ERROR[record.codec] * (limit + state.feedback_norm)
    state.contributed.update({part.person for part in record.contributions})
    remember_norm(state, record)
    judged = compare(state, round_, record)
    settle_choice(state, round_)
    state.index, state.step = record.index, record.step
    state.digest = digest_of(event.sealed)
    state.sealed, state.override.failures = event.sealed, 0
    state.timings.failures.clear()
    state.loss = record.loss
    enter(state, Why.WRITTEN)
    # void rounds do not count: their work was only claimed
    state.timings.batches.append(round_.cut_at - state.batch_since)
    state.batch_since = round_.cut_at if state.recipe.staleness else state.now
    await_replicas(state, round_)
    state.round, state.attempt, state.accumulating_since = None, 0, state.now
    state.non_finite, state.moved_at = {}, state.now
    state.returned.clear()
    recount_all(state)
    call_voters(state)
    look_soon(state)
    said = [e.Note("step", _sentence(record)), *watch_loss(state, loss_of_people(state, round_))]
    return [*said, *_tell(state, record, before, seed), *grace(state), *judged]


def _tell(state: RunState, record: Record, before: int, seed: int) -> list[e.Command]:
    """Send the commit to all members. At a snapshot step, all trainers hash their state and one of them uploads it."""
    assert state.sealed is not None
    is_snapshot = is_due(state)
    commands, keeper = elect(state, seed) if is_snapshot else ([], None)
    sealed, whole = SealedCommit(state.sealed, record), list[PeerId]()
    for member in state.members.values():
        if before == member.log_index:
            member.resent_at = state.now
        if before in {member.log_index, member.resent_to}:
            member.resent_to = state.index
        asked = {"snapshot": member.peer == keeper, "hash_state": is_snapshot and member.trains}
        if not member.takes_all:
            commands.append(e.Send((member.peer,), sealed.to(member.peer, state.fence, **asked)))
        elif any(asked.values()):
            commands.append(e.Send((member.peer,), sealed.whole(state.fence, **asked)))
        else:
            whole.append(member.peer)
    return [*commands, e.Send(tuple(whole), sealed.whole(state.fence))] if whole else commands


def _sentence(record: Record) -> str:
    count = len(record.contributions)
    machines = f"{count:,} machine{'s' * (count != 1)}"
    return f"step {record.step:,}: {machines}, {record.samples:,} samples, loss {record.loss:.3f}"
