"""Plan an attempt: assign spans to reducers without changing the offers (rule 6)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS
from peer_agent.protocol.bandwidth.learning import budget_bps, hope_of, is_limit
from peer_agent.protocol.bandwidth.links import begin, learn_attempt
from peer_agent.protocol.bandwidth.pairs import limits_of
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.events import Announce, Command, Send
from peer_agent.protocol.coordinator.reach import look_at_reach
from peer_agent.protocol.coordinator.round.lateness import sigma_of
from peer_agent.protocol.coordinator.round.outlining import begin_outline
from peer_agent.protocol.coordinator.state import Member, Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Limit, Limits, Party, Shares, judged, solve, spans_of
from peer_agent.protocol.sealed import plan_of
from peer_agent.protocol.timing import AHEAD_OF_PLAN, EXPIRY_S, FAR_AHEAD, MOST_SIGMA, OTHERS, backoff_s

MOST_OF_VECTOR = 1 / 3  # averaged by one stranger's machines while others can average
LEAST_PART = 1e-3  # of the vector, for people without a share when the shares of others are limited
CHANGED = 0.02  # fraction of a member's rate; smaller changes are not sent

LONGER = 1.02  # times the assumed time; if a round takes longer, its links are slower than assumed
STRAGGLES = 6.0  # a straggler's own link takes more than this many times the contributors' median
START_S = 0.2  # seconds from the plan to the first chunk
FRAMING = 1.01  # factor on the time, for headers, leaves and TLS


def plan(state: RunState) -> list[Command]:
    """Assign all spans that no log keeper has yet to the connected reducers. If there are none, wait for one."""
    round_ = state.round
    assert round_ is not None
    look_at_reach(state)
    reducers = state.reducers()
    if not reducers:
        return []
    learn_links(state)
    round_.plan = make_plan(state, round_, reducers)
    begin(state.links, round_.plan, state.now, round_.hoped)
    round_.planned_at = round_.moved_at = state.now
    round_.deadline = state.now + patience_s(state) + OTHERS * round_.plan.duration_s
    round_.reductions = {}
    round_.gathered, round_.done_at = {}, None
    begin_outline(state, round_)
    drops = [drop_message(state, round_, slot) for slot in sorted(round_.dropped)]
    return [*tell_rates(state), announce(round_.plan, state.members.values()), *drops]


def learn_links(state: RunState) -> None:
    """Learn link speeds from the last attempt before a new plan or choice is made."""
    told = {peer: member.uplink_told for peer, member in state.members.items() if member.uplink_told}
    learn_attempt(state.links, told, state.rounds)


def announce(plan: m.Plan, members: Iterable[Member]) -> Announce:
    """Return the command that sends the whole plan to possible reducers and log keepers. Others get only their slot."""
    whole, parts = list[PeerId](), list[PeerId]()
    for member in members:
        (parts if member.trains and not member.is_reachable else whole).append(member.peer)
    return Announce(tuple(whole), tuple(parts), plan)


def patience_s(state: RunState) -> float:
    """Return how many seconds a reduction may go without progress before its round is voided."""
    return backoff_s(EXPIRY_S, state.timings.failures[Kind.ROUND])


def make_plan(state: RunState, round_: Round, members: Sequence[Member]) -> m.Plan:
    """Make the plan. Keep spans that a log keeper has, and divide the rest by the reducers' measured bandwidth."""
    parties, down_bytes = _parties(state, round_, members), encoded_size(round_.codec_down, state.elements)
    limits, hoped_limits = (Limits(limits_of(state.links.pairs, hopes=hopes)) for hopes in (False, True))
    hoped = _parties(state, round_, members, hopes=True)
    dealt = shares = _divided(state, solve(hoped, down_bytes, hoped_limits), hoped, down_bytes, hoped_limits)
    if (hoped, hoped_limits) != (parties, limits):
        shares = judged(dealt, parties, down_bytes, limits)
    round_.limits = shares.limits
    round_.hoped = dealt.duration_s / shares.duration_s if shares.duration_s else 1.0
    kept = kept_spans(state, round_)
    first_span = max((span.span + 1 for span in (round_.plan.spans if round_.plan else ())), default=0)
    missing = _missing(kept, state.grid.chunks)
    spans = spans_of(shares.reducers, shares.shares, missing, state.grid, attempt=round_.attempt, first_span=first_span)
    return plan_of(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=round_.attempt,
        round=round_.number,
        elements=state.elements,
        chunk_elements=state.grid.chunk_elements,
        slots=round_.slots,
        spans=tuple(kept) + tuple(spans),
        codec_down=round_.codec_down,
        seed=round_.seed,
        rule=round_.rule,
        **_timing(state, shares.duration_s, _limits(dealt, shares), has_straggler=_has_straggler(parties, down_bytes)),
    )


def _divided(state: RunState, shares: Shares, parties: Sequence[Party], down_bytes: float, limits: Limits) -> Shares:
    """Return the shares, of which one stranger's machines together have at most a third while others can average.

    What bandwidth a machine has is a claim of those who measured it. Accomplices could claim that one of them has far
    more than everyone else, and so let one person see and average almost everything.
    """
    if state.trusted is None:
        return shares
    members = {peer: state.members[peer] for peer in shares.reducers}
    owner = {peer: "" if state.is_vouched_for(member) else member.person for peer, member in members.items()}
    own = dict.fromkeys(owner.values(), 0.0)
    for peer, share in zip(shares.reducers, shares.shares, strict=True):
        own[owner[peer]] += share
    part = limited_parts(own, MOST_OF_VECTOR if "" in own else max(MOST_OF_VECTOR, 1 / len(own)))
    if part == own:
        return shares
    several = Counter(owner.values())
    new = tuple(
        share * part[owner[peer]] / own[owner[peer]] if own[owner[peer]] else part[owner[peer]] / several[owner[peer]]
        for peer, share in zip(shares.reducers, shares.shares, strict=True)
    )
    return judged(replace(shares, shares=new), parties, down_bytes, limits)


def limited_parts(own: Mapping[str, float], most: float) -> dict[str, float]:
    """Return parts that sum to 1. Only the person "" may have more than `most`.

    What the others lose goes to the rest in proportion.
    """
    part, full = dict(own), set[str]()
    while over := {person for person, each in part.items() if person and person not in full and each > most}:
        full |= over
        rest = {person: max(own[person], LEAST_PART) for person in own.keys() - full}
        factor = (1 - most * len(full)) / sum(rest.values()) if rest else 0.0
        part = {person: most if person in full else rest[person] * factor for person in own}
    return part


def _has_straggler(parties: Iterable[Party], down_bytes: float) -> bool:
    """Return True if one contributor's own link takes far longer than most contributors' links."""
    own_s = sorted(
        max(party.up_bytes / party.upload_bps, down_bytes * party.receives / party.download_bps)
        for party in parties
        if party.up_bytes and party.upload_bps and party.download_bps
    )
    return bool(own_s) and own_s[-1] > STRAGGLES * own_s[len(own_s) // 2]


def _limits(dealt: Shares, judged: Shares) -> tuple[Limit, ...]:
    """Return the limits of the planned shares. If the estimated links are slower than hoped, add their limits."""
    return dealt.limits + (judged.limits if judged.duration_s > LONGER * dealt.duration_s else ())


def _timing(state: RunState, least_s: float, limits: Iterable[Limit], *, has_straggler: bool) -> dict[str, float]:
    """Return the plan's duration, how long reducers wait for late chunks, and the pace of the senders.

    If a limiting link may be faster than estimated, senders run further ahead of the plan, and reducers wait as long as
    in a first round. If there is a straggler, no sender slows down for it. Reducers average without it after the usual
    wait.
    """
    duration_s = least_s and START_S + FRAMING * least_s
    sigma = sigma_of(state, duration_s)
    limiting = ((limit.peers[0], way) for limit in limits for way in WAYS if way == limit.kind)
    is_known = all(is_limit(state.links.capacities.get(direction)) for direction in limiting)
    if has_straggler:
        return {"duration_s": duration_s, "sigma": sigma, "pace": 0.0}
    if not sigma or is_known:
        return {"duration_s": duration_s, "sigma": sigma, "pace": AHEAD_OF_PLAN if sigma else 0.0}
    return {"duration_s": duration_s, "sigma": MOST_SIGMA, "pace": FAR_AHEAD}


def _parties(state: RunState, round_: Round, reducers: Sequence[Member], *, hopes: bool = False) -> list[Party]:
    up = {slot.peer: encoded_size(slot.codec, state.elements) for slot in round_.slots}
    here = {member.peer: member for member in (*state.trainers(), *reducers)}
    gone = [Party(peer=peer, up_bytes=up[peer], is_volunteer=True) for peer in up.keys() - here.keys()]
    dealt = {member.peer for member in reducers}  # members without a share may still send and receive
    parties = [
        replace(party_of(state, member, up.get(peer, 0), hopes=hopes), may_reduce=peer in dealt)
        for peer, member in here.items()
    ]
    if state.recipe.contributors == "fast":
        parties = [replace(party, is_awaited=party.peer in round_.persons) for party in parties]
    return [*parties, *gone]


def party_of(state: RunState, member: Member, up_bytes: int = 0, *, hopes: bool = False) -> Party:
    """Return a member as a party to the plan. Only trainers receive averages."""
    hope = hope_of(trains=member.trains) if hopes else 1.0
    return Party(
        peer=member.peer,
        up_bytes=up_bytes,
        receives=member.trains,
        may_reduce=state.may_reduce(member),
        is_volunteer=member.trains,
        upload_bps=upload_bps(state, member, hope=hope),
        download_bps=budget_bps(state.links.capacities, (member.peer, "down"), hope=hope),
    )


def holders_of(state: RunState, round_: Round, span: m.PlannedSpan) -> set[PeerId]:
    """Return the connected log keepers that have a span's averages with the root reported by its reducer (rule 5)."""
    done = round_.done.get(span.span)
    if done is None:
        return set()
    said = {span.reducer} | round_.kept.get(span.span, set())
    return {peer for peer in said if peer in state.members and state.members[peer].keeps_log}


def kept_spans(state: RunState, round_: Round) -> list[m.PlannedSpan]:
    """Return the spans from earlier attempts that a connected log keeper has."""
    return [
        m.PlannedSpan(
            span=span.span,
            first=span.first,
            stop=span.stop,
            reducer=span.reducer,
            attempt=span.attempt,
            root=round_.done[span.span].root,
        )
        for span in (round_.plan.spans if round_.plan else ())
        if holders_of(state, round_, span)
    ]


def _missing(kept: Sequence[m.PlannedSpan], chunks: int) -> list[tuple[int, int]]:
    missing, position = [], 0
    for span in sorted(kept, key=lambda span: span.first):
        if span.first > position:
            missing.append((position, span.first))
        position = span.stop
    if position < chunks:
        missing.append((position, chunks))
    return missing


def drop_message(state: RunState, round_: Round, slot: int) -> Send:
    """Return the message telling reducers to continue without a slot, and the slot's sender to stop."""
    told = {round_.slots[slot].peer}
    if round_.plan is not None:
        told |= {span.reducer for span in round_.plan.spans}
    message = m.Drop(run=state.run, step=state.step, fence=state.fence, attempt=round_.attempt, slot=slot)
    return Send(tuple(sorted(told.intersection(state.members))), message)


def upload_bps(state: RunState, member: Member, *, hope: float = 1.0) -> float:
    """Return the upload speed, in bytes per second, that a plan may use for a member. 0 means unknown."""
    return budget_bps(state.links.capacities, (member.peer, "up"), member.reserve, hope=hope)


def tell_rates(state: RunState) -> Iterator[Command]:
    """Send changed upload limits to members that reserve a part of their uplink.

    Do not send mere lower bounds. A link that is limited to such a speed could never prove to be faster.
    """
    for member in state.members.values():
        known = state.links.capacities.get((member.peer, "up"))
        if not member.reserve or known is None or (known.is_floor and not known.is_tried):
            continue
        rate = upload_bps(state, member)
        if abs(rate - member.uplink_told) > CHANGED * rate:
            member.uplink_told = rate
            yield Send((member.peer,), m.Uplink(run=state.run, bytes_per_s=int(rate)))
