"""Recover log entries that the database has lost, from a relay's log (rule 16).

A database that was restored from a backup, or that lost its last commits in a power failure, is behind the machines.
Relays keep all signed records. A relay that is ahead of the database hands in the records that follow the database's
head, and the host appends them again. No round begins in the meantime, because its update would start a second branch
of the log. If every relay is away, such a branch does arise. A relay that returns later moves the older branch out of
its log and hands in those records, so that the site gives credit for them.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Abdicate, Adopt, Adopted, Branch, Command, Note
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.round.voiding import ask_for_hello, void
from peer_agent.protocol.coordinator.state import KEEPING_ROLES, Member, Phase, RunState
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import RecordHead, open_head

WINDOW_S = 10.0  # seconds for which a new host makes trainers that are ahead of the database wait for a relay
HAND_IN_S = 10.0  # seconds in which a relay that is ahead of the database must hand in its records
LOST = "The site was restored to step {step}. {name} was at step {further}; no relay has the steps in between."
WHY = "the database is behind a relay's log"


def awaits_relay(state: RunState, member: Member, hello: m.Hello) -> bool:
    """Record whether a peer is ahead of the database. Return True if its greeting must wait for a relay's records.

    A trainer that is greeted while it is ahead discards its state and loads a snapshot. Anyone can claim to be ahead,
    so the run waits only once for each relay. It waits because of trainers only in a host's first seconds, and only if
    no relay is present or trainers of two people are ahead.
    """
    if hello.log_index <= state.index:
        if member.peer in state.ahead:
            state.ahead[member.peer] = state.now
        return False
    if member.role in KEEPING_ROLES:
        state.ahead.setdefault(member.peer, state.now + HAND_IN_S)
    elif state.now < state.recover_until:
        state.ahead.setdefault(member.peer, state.now)
        trainers = [other for other in state.members.values() if other.trains and other.peer in state.ahead]
        has_relay = any(other.role in KEEPING_ROLES for other in state.listening.values())
        if not has_relay or len({other.person for other in trainers}) > 1:
            state.ahead |= {other.peer: state.recover_until for other in trainers}
    return member.trains and state.is_recovering


def tell_of_loss(state: RunState, member: Member, hello: m.Hello) -> list[Command]:
    """Report on the timeline, once per host, that a machine was ahead of the database and no relay has its steps."""
    if not member.trains or hello.log_index <= state.index or state.has_told_of_loss:
        return []
    state.has_told_of_loss = True
    text = LOST.format(step=f"{state.step:,}", name=member.name, further=f"{hello.step:,}")
    return [Note("lost steps", text, (member.person,))]


def take_records(state: RunState, member: Member, handed_in: m.Records) -> list[Command]:
    """Append the records of a relay that is ahead. Records that do not follow the log may belong to a lost branch.

    Only the site can have signed a record that follows the database's last one, so peers cannot void rounds at will.
    """
    head = _signed(state, handed_in)
    if member.trains or head is None:
        return []
    if (head.index, head.previous) != (state.index + 1, state.digest):
        return [Branch(handed_in.records)]
    if state.phase is Phase.COMMIT or state.rolling is not None:
        return []
    voided = void(state, Why.BEHIND, WHY) if state.round is not None else []
    state.ahead[member.peer] = state.now + HAND_IN_S
    return [*voided, Adopt(member.peer, handed_in.records)]


def _signed(state: RunState, handed_in: m.Records) -> RecordHead | None:
    """Return the head of the first of these records if the site signed it for this run, or else None."""
    try:
        head = open_head(handed_in.records[0].head, state.site_key)
    except (IndexError, Problem):
        return None
    return head if head.run == state.run else None


def take_adopted(state: RunState, event: Adopted) -> list[Command]:
    """Stop driving the run if records were appended, so that the next host starts from them.

    If no record could be appended, stop waiting for records.
    """
    if event.count:
        return [Abdicate()]
    state.ahead = dict.fromkeys(state.ahead, state.now)
    return look_at_recovery(state)


def look_at_recovery(state: RunState) -> list[Command]:
    """When the time for handing in records is over, ask the trainers that wait for a greeting for another hello.

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
    return [ask_for_hello(state, peer) for peer in waiting]
