"""Snapshots: which trainer uploads the state, which hash an upload must have, and when the run is finished."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.agreement.digests import cast, has_majority, look_at_split, may_vote
from peer_agent.protocol.coordinator.events import (
    Admitted,
    Archived,
    Command,
    Elected,
    Finish,
    Note,
    Replay,
    Send,
    Verified,
)
from peer_agent.protocol.coordinator.state import Ballot, Keeper, Member, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import read_record
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.sealed import SealedCommit
from peer_agent.protocol.timing import LONGEST_S, USUAL_S


def is_due(state: RunState) -> bool:
    due = state.step % state.recipe.snapshot_every == 0 or state.done
    state.snapshot_due = state.snapshot_due or due
    return state.snapshot_due


def elect(state: RunState, seed: int) -> tuple[list[Command], PeerId | None]:
    """Elect a trainer to upload this step's state, and open the vote on the state's hash."""
    state.hashes = state.index, state.step, Ballot()
    peers = sorted(p.peer for p in state.members.values() if p.trains and p.step == state.step - 1)
    if not peers:
        return [], None
    return _choose(state, peers, seed)


def _choose(state: RunState, peers: list[PeerId], seed: int) -> tuple[list[Command], PeerId]:
    keeper = peers[(seed + state.step) % len(peers)]
    state.keeper, state.snapshot_due = Keeper(keeper, state.index, state.step, state.now), False
    return [Elected(keeper, state.index, state.step)], keeper


def take_hash(state: RunState, member: Member, said: m.StateHash) -> list[Command]:
    """Record a replica's vote on the hash of the state to upload. Admit the hash if most people report it."""
    if state.hashes is None or (said.index, said.step) != state.hashes[:2] or state.admitted >= said.index:
        return []
    ballot = state.hashes[2]
    if not may_vote(state, member.person):
        return []
    value = f"{said.sha256} {said.size}"
    cast(ballot, member.peer, member.person, value)
    return _admit(state, value) if has_majority(state, ballot, value) else []


def _admit(state: RunState, value: str) -> list[Command]:
    assert state.hashes is not None
    index, step, ballot = state.hashes
    state.admitted, ballot.value = index, value
    sha256, size = value.split()
    if state.keeper is not None and ballot.votes.get(state.keeper.peer, ("", value))[1] != value:
        state.keeper, state.snapshot_due = None, True
    return [Admitted(index, step, sha256, int(size))]


def look_at_hashes(state: RunState) -> list[Command]:
    """Admit a hash that gained a majority because voters left. Called on clock ticks."""
    if state.hashes is None or state.admitted >= state.hashes[0]:
        return []
    ballot = state.hashes[2]
    value = next((value for value in sorted(ballot.counts) if has_majority(state, ballot, value)), None)
    if value is not None:
        return _admit(state, value)
    look_at_split(ballot, state.now)
    return []


def replay_for_hash(state: RunState) -> list[Command]:
    """Ask the site for a replay, because the vote on the hash of the state to upload stays split."""
    assert state.hashes is not None
    index, step, ballot = state.hashes
    ballot.split_since = state.now  # ask again after the same time if the replay is not done by then
    return [Replay(index, step), Note("replay", f"copies of the model differ at step {step}; the site makes its own")]


def elect_again(state: RunState, seed: int) -> list[Command]:
    """Replace the trainer elected to upload the state.

    The next commit elects another trainer. At the last step, elect one now, because no commit follows.
    """
    state.keeper, state.snapshot_due = None, True
    if not state.done or state.sealed is None:
        return []
    able = _able(state)
    if not able:
        return _replay(state)
    commands, chosen = _choose(state, able, seed + int(state.now))
    return [*commands, *_ask_again(state, chosen)]


def _able(state: RunState) -> list[PeerId]:
    """Return the up-to-date trainers, except any that reported a hash other than the admitted one."""
    value = state.hashes[2].value if state.hashes is not None and state.hashes[0] == state.index else ""
    votes = state.hashes[2].votes if state.hashes is not None and value else {}
    return sorted(p.peer for p in state.ready() if votes.get(p.peer, ("", value))[1] == value)


def _ask_again(state: RunState, keeper: PeerId) -> list[Command]:
    """Resend the last commit to `keeper`, asking it to upload its state.

    Also resend it to the other trainers whose vote is missing, asking them to hash their states.
    """
    assert state.sealed is not None
    if state.hashes is None or state.hashes[0] != state.index:
        state.hashes = state.index, state.step, Ballot()
    others = tuple(p.peer for p in state.ready() if p.peer != keeper and p.peer not in state.hashes[2].votes)
    sealed = SealedCommit(state.sealed, read_record(state.sealed))
    asked = Send((keeper,), sealed.to(keeper, state.fence, snapshot=True, hash_state=True))
    return [asked, *(Send((peer,), sealed.to(peer, state.fence, hash_state=True)) for peer in others)]


def _replay(state: RunState) -> list[Command]:
    """Ask the site to rebuild the last state after `USUAL_S`, and then every `LONGEST_S` until it is stored."""
    if state.replay_at is None:
        state.replay_at = state.now + USUAL_S
    if state.now < state.replay_at:
        return []
    state.replay_at = state.now + LONGEST_S
    return [Replay(state.index, state.step)]


def take_stored(state: RunState, snapshot: Snapshot) -> list[Command]:
    """Process a snapshot that the site has stored: a newer one, or the latest one as rebuilt by a replay."""
    if snapshot.index < state.snapshot.index or snapshot == state.snapshot:
        return []
    if snapshot.index > state.snapshot.index:
        state.covered = state.snapshot.index
    state.snapshot, state.moved_at = snapshot, state.now
    if state.keeper is not None and snapshot.step >= state.keeper.step:
        state.keeper = None
    return [*_tell_of_snapshot(state), *finish(state)]


def take_verified(state: RunState, event: Verified) -> list[Command]:
    """Record that the site has replayed the log up to a snapshot. Relays may then delete averages before it."""
    if event.index <= state.verified:
        return []
    state.verified = event.index
    return _tell_of_snapshot(state)


def take_archived(state: RunState, event: Archived) -> list[Command]:
    """Record how far the site's archive reaches. If averages are lost, ask for a snapshot after the next step.

    Without that snapshot, newcomers could not follow the log, and the site could not verify the next snapshot.
    """
    before, state.archived = keep_after(state), event.index
    if event.gap and not state.has_gap:
        state.snapshot_due = True
    state.has_gap = event.gap
    return _tell_of_snapshot(state) if keep_after(state) > before else []


def keep_after(state: RunState) -> int:
    """Return the log index up to which relays may delete averages.

    Up to there, a verified snapshot covers the averages, and no peer loading the previous snapshot needs them. If the
    site has an archive, it has archived them.
    """
    kept = min(state.verified, state.covered)
    return kept if state.archived is None else min(kept, state.archived)


def _tell_of_snapshot(state: RunState) -> list[Command]:
    message = m.Snapshotted(run=state.run, snapshot=state.snapshot, keep_after=keep_after(state))
    return [Send(state.everyone(), message)]


def finish(state: RunState) -> list[Command]:
    """Finish the run once the final model is stored.

    Also called on clock ticks, in case the previous host died before it could finish the run.
    """
    if not state.done or not _has_model(state) or state.finished:
        return []
    state.finished = True
    return [Finish(), Send(state.everyone(), m.State(run=state.run, state="finished", reason=""))]


def _has_model(state: RunState) -> bool:
    """Return True if the final model is stored. If a run ends early without trainers, its latest snapshot is final."""
    if state.snapshot.step == state.step:
        return True
    is_waited_for = any(p.trains for p in state.members.values()) or state.now - state.ending_since < LONGEST_S
    return state.goal == "finishing" and not is_waited_for and state.snapshot.step > 0
