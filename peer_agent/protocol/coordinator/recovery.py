"""Recover log entries that the database has lost, from a relay's log (rule 16).

A database that was restored from a backup, or that lost its last commits in a power failure, is behind its machines.
Relays keep all signed records. A relay that is ahead of the database hands in the records that follow the database's
head, and the host appends them again. No round begins in the meantime, because its update would start a second branch
of the log. Such a branch nevertheless arises if every relay was away. Then the relay deletes the older branch from its
disk and hands in those records, so that the site can say what was lost.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Abdicate, Adopt, Adopted, Branch, Command, Note
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.round.voiding import ask_for_hello, void
from peer_agent.protocol.coordinator.state import Member, Phase, RunState

WINDOW_S = 10.0  # after its start, a host keeps trainers that are ahead waiting for this long, until a relay comes
HAND_IN_S = 10.0  # seconds in which a relay that is ahead must hand in its records
GONE = "The site was restored to step {step}. No relay has the later steps of {count} machines; they are lost."
WHY = "the database is behind a relay's log"


def awaits_relay(state: RunState, member: Member, hello: m.Hello) -> bool:
    """Note whether a peer is ahead of the database. Return True if its greeting must wait for a relay's records.

    A trainer that is greeted while ahead discards its state and loads a snapshot.
    """
    if hello.log_index <= state.index:
        state.ahead.pop(member.peer, None)
        return False
    if not member.trains:
        state.ahead.setdefault(member.peer, state.now + HAND_IN_S)
    elif state.now < state.recover_until:
        state.ahead.setdefault(member.peer, state.recover_until)
    return member.trains and state.is_recovering


def take_records(state: RunState, member: Member, handed_in: m.Records) -> list[Command]:
    """Append the records of a relay that is ahead, or report the branch that a relay has deleted."""
    if member.trains or not handed_in.records:
        return []
    if handed_in.first <= state.index:
        return [Branch(handed_in.records)]
    if handed_in.first != state.index + 1 or state.phase is Phase.COMMIT or state.rolling is not None:
        return []
    voided = void(state, Why.BEHIND, WHY) if state.round is not None else []
    state.ahead[member.peer] = state.now + HAND_IN_S
    return [*voided, Adopt(member.peer, handed_in.records)]


def take_adopted(state: RunState, event: Adopted) -> list[Command]:
    """Let the next host start from the recovered entries. If the records were of no use, no longer wait for them."""
    if event.count:
        return [Abdicate()]
    state.ahead = dict.fromkeys(state.ahead, state.now)
    return look_at_recovery(state)


def look_at_recovery(state: RunState) -> list[Command]:
    """When the time for handing in records is over, ask the trainers that wait for a greeting for a hello.

    A relay stays in `ahead`, so that the run waits for it only once.
    """
    if not state.ahead or state.is_recovering:
        return []
    waiting = [peer for peer in state.ahead if peer in state.members and state.members[peer].trains]
    state.recover_until = state.now
    if not waiting:
        return []
    for peer in waiting:
        del state.ahead[peer]
    note = Note("lost steps", GONE.format(step=f"{state.step:,}", count=len(waiting)))
    return [note, *(ask_for_hello(state, peer) for peer in waiting)]
