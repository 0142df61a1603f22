"""Functions shared by all parts of a round: match messages to the open attempt, void a round, and request hellos."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Note, Send
from peer_agent.protocol.coordinator.phases import Why, enter
from peer_agent.protocol.coordinator.round.audits import forget_round
from peer_agent.protocol.coordinator.round.outlining import end_outline
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.coordinator.workers.batch import end_override
from peer_agent.protocol.coordinator.workers.counts import recount_all
from peer_agent.protocol.coordinator.workers.settlement import close_round
from peer_agent.protocol.identifiers import PeerId


def is_current(state: RunState, message: m.Attempted) -> bool:
    """Return True if a message belongs to the open attempt (rule 2)."""
    round_ = state.round
    place = (message.run, message.step, message.fence, message.attempt)
    return round_ is not None and place == (state.run, state.step, state.fence, round_.attempt)


def void(state: RunState, why: Why, text: str, names: tuple[str, ...] = ()) -> list[Command]:
    """End the round without an update. Trainers keep their gradients. `names`: the people named in `text`.

    Add `text` to the timeline, unless all the round's trainers have left, which the timeline already shows.
    """
    round_ = state.round
    assert round_ is not None
    message = m.Void(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=round_.attempt if round_.plan is None else round_.plan.attempt,  # the last attempt that the peers know
        round=round_.number,
        reason=text,
    )
    end_outline(state, is_void=True)
    enter(state, why)
    state.round = None
    forget_round(state, round_)
    close_round(state, round_)
    state.void_rounds += 1
    end_override(state)
    state.accumulating_since = state.now
    recount_all(state)
    is_of_interest = not round_.persons.keys().isdisjoint(state.members)
    note = Note("void", f"a step is retried: {text}; nothing was lost", names, why.name.lower())
    return [Send(state.everyone(), message), *([note] if is_of_interest else [])]


def ask_for_hello(state: RunState, peer: PeerId) -> Send:
    """Ask a peer for a hello, which states everything that the peer holds and so reveals lost messages."""
    member = state.members.get(peer)
    if member is not None:
        member.hello_asked_at = state.now
    return Send((peer,), m.Rehello(run=state.run, fence=state.fence))
