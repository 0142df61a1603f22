"""Choose the next round's contributors and codecs, if the recipe leaves them to the plan (rules 14 and 30).

Choices are compared at the cut, using measured links and delivered work rather than claims. Without measurements, the
recipe's codecs apply.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.round.planning import learn_links, party_of
from peer_agent.protocol.coordinator.state import Chosen, Member, Round, RunState, stated
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import PATIENCE, Candidate, Choice, Party, choose
from peer_agent.protocol.recipe import LADDER, Codec

GAIN = 0.1  # fewer bits must save this fraction of a step's time; otherwise, every measurement would change codecs
ALIKE = 1.01  # return to more bits if a step then takes at most this many times as long

Ladders = Mapping[PeerId, tuple[Codec, ...]]  # possible codecs for each possible contributor, preferred one first


def may_offer(member: Member) -> bool:
    """Return True if a member may have work to offer, which gets a step older if a round starts without the member."""
    return bool(member.done or member.carried or member.reliability.rate)


def choose_at_cut(state: RunState) -> bool:
    """Choose contributors using the latest link measurements. Return True if they have the target batch."""
    if is_free(state):
        learn_links(state)
        choose_anew(state)
    return contributed(state) >= state.recipe.target_batch


def is_free(state: RunState) -> bool:
    return state.recipe.contributors == "fast" or state.recipe.codecs == "plan"


def choose_anew(state: RunState) -> None:
    """Compare the possible contributors and codecs, and keep the best choice.

    Codecs change only if a step gets shorter by more than `GAIN`, or if more bits take about the same time.
    """
    members = [member for member in state.awake() if may_offer(member)]
    before = state.chosen or stated(state.recipe)
    if not members or not state.can_reduce():
        state.chosen = replace(before, left_out={}, cannot_follow=frozenset())
        return
    recipe = state.recipe
    now = {member.peer: before.codecs.get(member.peer, recipe.codec_up) for member in members}
    kept = _compared(state, {peer: (codec,) for peer, codec in now.items()}, (before.codec_down,))
    if recipe.codecs == "plan":
        ladder = recipe.codecs_from(recipe.codec_up)
        found = _compared(state, dict.fromkeys(now, ladder), recipe.codecs_from(recipe.codec_down))
        kept = found if _is_worth(found, kept, now) else kept
    known = {peer: codec for peer, codec in before.codecs.items() if peer in state.members}
    state.chosen = replace(kept, codecs=known | kept.codecs)


def contributed(state: RunState) -> int:
    if state.chosen is None or not state.chosen.left_out:
        return state.awake_samples
    spared = (state.members[peer].counted[2] for peer in state.chosen.left_out if peer in state.members)
    return state.awake_samples - sum(spared)


def settle_choice(state: RunState, round_: Round) -> None:
    """Count how many updates in a row left each peer out. The next choice takes this into account (rule 30)."""
    if not is_free(state):
        return
    for slot in round_.slots:
        if slot.peer in state.members:
            state.members[slot.peer].reliability.skipped_updates = 0
    for peer in round_.left_out:
        if peer in state.members:
            state.members[peer].reliability.skipped_updates += 1
    if state.chosen is not None:
        state.chosen = replace(state.chosen, left_out={}, cannot_follow=frozenset())


def _is_worth(found: Chosen, kept: Chosen, now: Mapping[PeerId, Codec]) -> bool:
    """Return True if the found codecs make steps clearly shorter, or allow more bits in about the same time."""
    if found.step_s < (1 - GAIN) * kept.step_s:
        return True
    pairs = [(codec, now[peer]) for peer, codec in found.codecs.items()] + [(found.codec_down, kept.codec_down)]
    has_more_bits = all(LADDER.index(new) <= LADDER.index(old) for new, old in pairs)
    return has_more_bits and found.step_s <= ALIKE * kept.step_s


def _compared(state: RunState, ladders: Ladders, downs: Sequence[Codec]) -> Chosen:
    """Return the best choice of contributors and codecs. Averages get fewer bits only if that saves enough time."""
    first, *others = (_with(state, ladders, down) for down in downs)
    for found in others:
        if found.step_s < (1 - GAIN) * first.step_s:
            first = found
    return first


def _with(state: RunState, ladders: Ladders, down: Codec) -> Chosen:
    is_fast, down_bytes = state.recipe.contributors == "fast", encoded_size(down, state.elements)
    candidates = [_candidate(state, state.members[peer], ladder) for peer, ladder in ladders.items()]
    others = [
        replace(party_of(state, member), is_awaited=not is_fast)
        for member in state.members.values()
        if member.peer not in ladders
    ]
    choice = _chosen(state, candidates, others, down_bytes)
    own_s = {candidate.party.peer: _link_s(candidate, down_bytes) for candidate in candidates}
    others_s = f"a round that the others make in {choice.shares.duration_s:.1f} s"
    return Chosen(
        codecs={peer: ladders[peer][number] for peer, number in choice.codecs.items()},
        codec_down=down,
        left_out={peer: f"its link needs {own_s[peer]:.1f} s for {others_s}" for peer in choice.left_out},
        cannot_follow=frozenset(choice.cannot_follow),
        step_s=choice.step_s,
    )


def _candidate(state: RunState, member: Member, ladder: tuple[Codec, ...]) -> Candidate:
    sizes = tuple(float(encoded_size(codec, state.elements)) for codec in ladder)
    may_be_left_out = state.recipe.contributors == "fast" and not member.stands_in
    rounds = member.reliability.skipped_updates if may_be_left_out else PATIENCE
    return Candidate(party_of(state, member), member.samples_per_s, sizes, rounds)


def _chosen(state: RunState, candidates: Sequence[Candidate], others: Sequence[Party], down_bytes: float) -> Choice:
    """Choose contributors, leaving out only peers whose own measured links are the bottleneck.

    Otherwise, a slow reducer or a low estimate would make every round seem faster with fewer contributors.
    """
    batch, staleness = state.recipe.target_batch, state.recipe.staleness
    choice = choose(candidates, others, down_bytes, batch=batch, staleness=staleness)
    wait_s = choice.shares.duration_s
    left_out = [candidate for candidate in candidates if candidate.party.peer in choice.left_out]
    innocent = [candidate for candidate in left_out if _link_s(candidate, down_bytes) <= wait_s]
    if not innocent:
        return choice
    forced = [replace(c, rounds_left_out=PATIENCE) if c in innocent else c for c in candidates]
    return _chosen(state, forced, others, down_bytes)


def _link_s(candidate: Candidate, down_bytes: float) -> float:
    """Return how many seconds a candidate's own link needs at least to send its gradient and receive the averages.

    A direction that has not been measured counts as 0 seconds.
    """
    party = candidate.party
    ways = ((min(candidate.up_bytes), party.upload_bps), (down_bytes, party.download_bps))
    return max(size / bps if bps else 0.0 for size, bps in ways)
