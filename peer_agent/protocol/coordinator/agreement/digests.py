"""Decide which state of the model is correct (rule 17). People vote; if the vote stays split, the site replays the log.

Every person with work in one of the last ten commits has a vote, and a majority decides. A person whose machines
disagree abstains. So no single machine can decide alone, and neither can one person with many machines. In an open run,
only audited people vote, once three of them are present: a stranger may have any number of accounts.
"""

from collections import Counter

from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator.events import Agreed, Command, Note, Replay, Replayed, Send
from peer_agent.protocol.coordinator.facts import LATELY
from peer_agent.protocol.coordinator.state import Ballot, Member, RunState
from peer_agent.protocol.coordinator.workers.counts import recount
from peer_agent.protocol.identifiers import PeerId

DIGESTS_KEPT = 16
# With this many audited people, including a trusted one, only they vote. Strangers alone may have cleared each other,
# so without a trusted person, everyone with work in the last commits votes.
JURY = 3
REPLAY_AGAIN_S = 600.0  # seconds before asking the site for another replay


# --- ballots


def cast(ballot: Ballot, peer: PeerId, person: str, value: str) -> None:
    """Record a machine's vote, replacing any earlier one."""
    withdraw_vote(ballot, peer)
    _change(ballot, person, value, 1)
    ballot.votes[peer] = person, value


def withdraw_vote(ballot: Ballot, peer: PeerId) -> None:
    before = ballot.votes.pop(peer, None)
    if before is not None:
        _change(ballot, *before, -1)


def _change(ballot: Ballot, person: str, value: str, by: int) -> None:
    values = ballot.persons.setdefault(person, Counter())
    _count_person(ballot, values, -1)
    _add(values, value, by)
    _add(ballot.machines, value, by)
    _count_person(ballot, values, 1)
    if not values:
        del ballot.persons[person]


def _count_person(ballot: Ballot, values: Counter[str], by: int) -> None:
    if len(values) == 1:
        _add(ballot.counts, next(iter(values)), by)
    elif values:
        ballot.abstaining += by


def _add(counter: Counter[str], value: str, by: int) -> None:
    counter[value] += by
    if not counter[value]:
        del counter[value]


def has_majority(state: RunState, ballot: Ballot, value: str) -> bool:
    """Return True if more than half of the voters chose `value`.

    People who have not voted yet count as voters. People who abstain do not. In an open run, a new host decides nothing
    until machines had time to come back. Otherwise, a stranger that reports first would decide alone.
    """
    if not state.voters or (state.trusted is not None and state.now < state.recover_until):
        return False
    voting = max(len(ballot.persons), state.voters) - ballot.abstaining
    return 2 * ballot.counts.get(value, 0) > voting


def look_at_split(ballot: Ballot, now: float) -> None:
    """Record since when a ballot has had several values and no majority. Called on clock ticks."""
    if ballot.value or len(ballot.machines) < 2:
        ballot.split_since = None
    elif ballot.split_since is None:
        ballot.split_since = now


def may_vote(state: RunState, person: str) -> bool:
    if state.jury is not None and person not in state.jury:
        return False
    return state.recent.get(person, -LATELY) > state.index - LATELY


def call_voters(state: RunState) -> None:
    """Determine who votes: people with work in the last ten commits and at least one trainer that is not silent.

    Once three audited people are among them, withdraw the votes of the others.
    """
    state.recent = {person: index for person, index in state.recent.items() if index > state.index - LATELY}
    present = [member for member in state.members.values() if member.trains and not member.reliability.is_silent]
    voters = state.recent.keys() & {member.person for member in present}
    audited = voters & {member.person for member in present if state.is_audited(member)}
    is_jury = state.trusted is not None and len(audited) >= JURY and not audited.isdisjoint(state.trusted)
    before, state.jury = state.jury, audited if is_jury else None
    state.voters = len(voters if state.jury is None else state.jury)
    if state.jury is None or state.jury == before:
        return
    for ballot in [*state.digests.values(), *([state.hashes[2]] if state.hashes is not None else [])]:
        for peer in [peer for peer, (person, _) in ballot.votes.items() if person not in state.jury]:
            withdraw_vote(ballot, peer)


# --- digests of each step


def take_digest(state: RunState, member: Member, report: m.Report) -> list[Command]:
    """Record the state digest that a replica reports for a step. Tell the replica to reload if another digest won."""
    if not report.digest or state.is_undone(report.index):
        return []
    if not state.step - DIGESTS_KEPT < report.step <= state.step:
        return []
    ballot = state.digests.get(report.step) or state.digests.setdefault(report.step, Ballot())
    if ballot.value:
        return _reload(state, member.peer, report.step) if report.digest != ballot.value else []
    if not may_vote(state, member.person) or ballot.votes.get(member.peer) == (member.person, report.digest):
        return []
    cast(ballot, member.peer, member.person, report.digest)
    return _decide(state, report.step, report.digest) if has_majority(state, ballot, report.digest) else []


def _decide(state: RunState, step: int, digest: str) -> list[Command]:
    ballot = state.digests[step]
    ballot.value = digest
    if state.replay is None or state.replay[1] <= step:
        state.split_since, state.replay = None, None  # the majority agrees on this newer step
    differ = [peer for peer, (_, value) in sorted(ballot.votes.items()) if value != digest]
    return [Agreed(step, digest), *(command for peer in differ for command in _reload(state, peer, step))]


def _reload(state: RunState, peer: PeerId, step: int) -> list[Command]:
    withdraw_vote(state.digests[step], peer)
    member = state.members.get(peer)
    if member is None:
        return []
    member.step = -1
    recount(state, member)
    text = f"{member.person}'s copy differed at step {step}; it reloads"
    return [Send((peer,), m.Reload(run=state.run, step=step)), Note("reload", text, (member.person,))]


def look_at_votes(state: RunState) -> list[Command]:
    """Decide each step whose ballot has gained a majority because voters left. Called on clock ticks."""
    call_voters(state)
    for old in [step for step in state.digests if step <= state.step - DIGESTS_KEPT]:
        if state.replay is None or state.replay[1] != old:
            del state.digests[old]
    commands: list[Command] = []
    for step, ballot in sorted(state.digests.items()):
        leading = "" if ballot.value else next((v for v in sorted(ballot.counts) if has_majority(state, ballot, v)), "")
        commands += _decide(state, step, leading) if leading else []
    is_split = bool(_split_steps(state))
    state.split_since = None if not is_split else state.now if state.split_since is None else state.split_since
    return commands


def _split_steps(state: RunState) -> list[int]:
    return [step for step, ballot in state.digests.items() if not ballot.value and len(ballot.machines) > 1]


def replay_for_digest(state: RunState) -> list[Command]:
    """Ask the site to replay the log up to the latest step on which replicas disagree."""
    split = _split_steps(state)
    if not split:  # a majority has agreed since the last sweep
        return []
    step = max(split)
    state.replay = state.index - (state.step - step), step, state.now
    text = reasons.REPLAYED.format(step=step)
    return [Replay(state.replay[0], step), Note("replay", text)]


def take_replayed(state: RunState, event: Replayed) -> list[Command]:
    """Accept the digest that the site computed for a step by replaying the log.

    Replicas that voted for another digest must reload. Their votes on later steps are withdrawn.
    """
    ballot = state.digests.setdefault(event.step, Ballot())
    differ = [peer for peer, (_, value) in ballot.votes.items() if value != event.state_digest]
    commands = _decide(state, event.step, event.state_digest)
    for later in (step for step in state.digests if step > event.step):
        for peer in differ:
            withdraw_vote(state.digests[later], peer)
    state.split_since, state.replay = None, None
    return [Note("replay", f"the log decides: the state of step {event.step} is {event.state_digest}"), *commands]
