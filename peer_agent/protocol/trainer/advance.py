"""The trainer's state machine, `advance(state, event, now, seed) -> actions`.

The agent, simulator, tests and benchmarks all use it. The function changes the given state. The program that calls it,
the shell, carries out the actions in order; it handles sockets, threads, files, floats and displays. `transitions`
lists the phases.
"""

from typing import assert_never

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import open_commit, open_plan
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer import following, rounds, speaking, work
from peer_agent.protocol.trainer.events import CommitHeard, Event, Heard, PlanHeard
from peer_agent.protocol.trainer.state import Phase, TrainerState
from peer_agent.protocol.trainer.transitions import Cause, ignores, move


def advance(state: TrainerState, event: e.Event, now: float, seed: int) -> list[e.Action]:  # noqa: C901, PLR0912
    """Process one event. `now`: monotonic seconds. `seed`: 128 fresh random bits, for naming an accumulator."""
    state.now = max(now, state.now)
    if state.phase is Phase.GONE:
        return []
    match event:
        case e.Linked():
            state.unanswered, state.hello_wait_s = 0, 0.0
            return []
        case e.Heard():
            return _hear(state, event.message, seed)
        case e.PlanHeard():
            return rounds.take_plan(state, event.plan) if _is_of_now(state, event.plan.plan.fence) else []
        case e.CommitHeard():
            return following.take_record(state, event.record, seed)
        case e.OpenHeard():
            return rounds.take_open(state, event)
        case e.Computed() | e.NotFinite():
            return work.take_result(state, event)
        case e.Frozen():
            return rounds.take_frozen(state, event)
        case e.Overflowed():
            return rounds.take_overflow(state, event, seed)
        case e.Applied() | e.BytesMissing() | e.Loaded() | e.LoadFailed() | e.Hashed():
            return _of_the_replica(state, event, seed)
        case e.Gathered():
            return rounds.take_gathered(state, event)
        case e.Reached() | e.Unlistened():
            return _of_the_links(state, event)
        case e.GaveBack():
            return work.give_back(state)
        case e.Left():
            return _leave(state)
        case e.Ticked():
            return following.retry(state) + speaking.tick(state)
    assert_never(event)


def _of_the_replica(
    state: TrainerState, event: e.Applied | e.BytesMissing | e.Loaded | e.LoadFailed | e.Hashed, seed: int
) -> list[e.Action]:
    """Process the result of a job that changes or reads the replica."""
    match event:
        case e.Applied():
            return following.take_applied(state, event, seed)
        case e.BytesMissing():
            return following.take_missing(state, event, seed)
        case e.Loaded():
            return following.take_loaded(state, event)
        case e.LoadFailed():
            return following.take_load_failed(state, event)
        case e.Hashed():
            return following.say_hash(state, event)
    assert_never(event)


def _of_the_links(state: TrainerState, event: e.Reached | e.Unlistened) -> list[e.Action]:
    """Report that the set of listeners this machine can reach has changed, or that peers can no longer dial it."""
    if isinstance(event, e.Reached):
        return speaking.take_reached(state, event.listeners)
    state.url = state.fingerprint = ""
    return speaking.hello(state)


def _leave(state: TrainerState) -> list[e.Action]:
    move(state, Cause.LEFT, Phase.GONE)
    return speaking.say(state, m.Leave(run=state.run))


def _is_of_now(state: TrainerState, fence: int) -> bool:
    """Return True if the message is from the newest known host. Messages from older hosts are dropped (rule 2)."""
    if fence < state.fence:
        return False
    state.fence = fence
    return True


def _hear(state: TrainerState, message: m.TO_PEER, seed: int) -> list[e.Action]:
    match message:
        case m.Greeting() | m.Lease() | m.Cut() | m.SitOut() | m.Void():
            return _hear_host(state, message, seed) if _is_of_now(state, message.fence) else []
        case m.Rehello() | m.AccumulatorRevoked() | m.Snapshotted() | m.Reload() | m.Listeners():
            return _hear_standing(state, message, seed)
        case m.State():
            shown = e.Show(message.state, message.reason)
            return [shown, e.Quit()] if message.state == "finished" else [shown]
        case m.Notice():
            return [e.Warn(Fault(message.code, message.text))]
        case m.Drop():
            return rounds.take_drop(state, message)
        case m.Probe() | m.Uplink() | m.Audit():
            return []  # these messages are for the shell and do not change the trainer
        case m.Planned() | m.Commit():
            raise TypeError("plans and commits are opened before they are taken")
    assert_never(message)


def _hear_host(
    state: TrainerState, message: m.Greeting | m.Lease | m.Cut | m.SitOut | m.Void, seed: int
) -> list[e.Action]:
    match message:
        case m.Greeting():
            return following.take_greeting(state, message, seed)
        case m.Lease():
            return work.take_lease(state, message)
        case m.Cut():
            return rounds.take_cut(state, message)
        case m.SitOut():
            return rounds.take_sit_out(state, message)
        case m.Void():
            return rounds.take_void(state, message)
    assert_never(message)


def _hear_standing(
    state: TrainerState,
    message: m.Rehello | m.AccumulatorRevoked | m.Snapshotted | m.Reload | m.Listeners,
    seed: int,
) -> list[e.Action]:
    match message:
        case m.Rehello():
            return _ask(state, message)
        case m.AccumulatorRevoked():
            return _revoked(state, message, seed)
        case m.Snapshotted():
            return following.take_snapshot(state, message.snapshot, seed)
        case m.Reload():
            return following.take_reload(state, message, seed)
        case m.Listeners():
            return [e.Dial(message.listeners)]
    assert_never(message)


def _ask(state: TrainerState, message: m.Rehello) -> list[e.Action]:
    """Answer a host's request with a hello. If the host has been replaced, the hello tells it the newer fence."""
    if ignores(state, Cause.ASKED):
        return []
    move(state, Cause.ASKED, state.phase)
    state.fence = max(state.fence, message.fence)
    state.unanswered = 0  # messages sent on another link or to another host get no answer
    return speaking.hello(state)


def _revoked(state: TrainerState, message: m.AccumulatorRevoked, seed: int) -> list[e.Action]:
    if message.accumulator != state.accumulator or ignores(state, Cause.REVOKED):
        return []
    told = e.Tell("The site took back work assigned to this machine: {reason}", {"reason": message.reason})
    return [told, *rounds.start_over(state, Cause.REVOKED, seed)]


def heard(message: m.TO_PEER, site_key: bytes, me: PeerId) -> Event:
    """Convert a message from the site into an event.

    Raises Problem E218 if the site did not sign a plan or commit, or E206 if a signed plan is malformed.
    """
    match message:
        case m.Planned():
            return PlanHeard(open_plan(message, site_key, me))
        case m.Commit():
            return CommitHeard(open_commit(message, site_key, me))
        case _:
            return Heard(message)
