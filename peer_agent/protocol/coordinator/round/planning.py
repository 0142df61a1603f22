"""The plan of an attempt: which reducer averages which span, on the offers as they are (rule 6)."""

from collections.abc import Iterable, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.learning import WAYS, budget_bps
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.events import Announce, Command, Send
from peer_agent.protocol.coordinator.reach import look_at_reach
from peer_agent.protocol.coordinator.round.lateness import sigma_of
from peer_agent.protocol.coordinator.round.measuring import begin_measuring, learn_links
from peer_agent.protocol.coordinator.state import Member, Round, RunState
from peer_agent.protocol.deadlines import MOST_SIGMA
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.letters import plan_of
from peer_agent.protocol.plan import Party, Shares, solve, spans_of

AHEAD_OF_PLAN = 1.25  # times its pace, at which gradients go: so links show where they carry more than is known
FAR_AHEAD = 4.0  # the same where it rests on links of which only the least is known
START_S = 0.2  # from the plan to the first chunk
FRAMING = 1.01  # times the bytes of chunks: their headers, leaves, TLS
REDUCE_S = 20.0  # beyond the planned time, before a round without progress is void
SLOW_ROUNDS = 5  # doublings of that while rounds are void because nothing moved


def plan(state: RunState) -> list[Command]:
    """Deal every span that is not held among the living reducers. Without any of them: wait."""
    round_ = state.round
    assert round_ is not None
    look_at_reach(state)
    reducers = state.reducers()
    if not reducers:
        return []
    learn_links(state)
    round_.plan = make_plan(state, round_, reducers)
    begin_measuring(state, round_.plan)
    round_.planned_at = round_.moved_at = state.now
    round_.deadline = state.now + patience_s(state) + 4 * round_.plan.duration_s
    round_.progress, round_.reported, round_.repeat_at = {}, {}, 0.0
    round_.gathered, round_.done_at = {}, None
    drops = [drop_message(state, round_, slot) for slot in sorted(round_.dropped)]
    return [announce(round_.plan, state.members.values()), *drops]


def announce(plan: m.Plan, members: Iterable[Member]) -> Announce:
    """The plan whole to those who may reduce it or keep the log, to other trainers their own part."""
    whole, parts = list[PeerId](), list[PeerId]()
    for member in members:
        (parts if member.trains and not member.is_reachable else whole).append(member.peer)
    return Announce(tuple(whole), tuple(parts), plan)


def patience_s(state: RunState) -> float:
    """How long a reduce may stand still before its round is void."""
    return REDUCE_S * 2.0 ** min(state.slow_rounds, SLOW_ROUNDS)


def make_plan(state: RunState, round_: Round, members: Sequence[Member]) -> m.Plan:
    """The plan itself: slots of the offers, kept spans by root, all other chunks dealt by measured bandwidth."""
    shares = _shares(state, round_, members)
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
        codec_down=state.recipe.codec_down,
        **_timing(state, shares),
    )


def _timing(state: RunState, shares: Shares) -> dict[str, float]:
    """The plan's time, and how exactly it is kept to.

    Where a link that limits it may carry more than was seen of it, gradients go further ahead of it, and chunks are
    waited for as long as in a first round.
    """
    duration_s = shares.duration_s and START_S + FRAMING * shares.duration_s
    sigma = sigma_of(state, duration_s)
    known = [
        state.capacities.get((limit.peers[0], way)) for limit in shares.limits for way in WAYS if way == limit.kind
    ]
    is_known = all(each is not None and (each.is_tried or not each.is_floor) for each in known)
    if not sigma or is_known:
        return {"duration_s": duration_s, "sigma": sigma, "pace": AHEAD_OF_PLAN if sigma else 0.0}
    return {"duration_s": duration_s, "sigma": MOST_SIGMA, "pace": FAR_AHEAD}


def _shares(state: RunState, round_: Round, reducers: Sequence[Member]) -> Shares:
    up = encoded_size(state.recipe.codec_up, state.elements)
    contributors = {slot.peer for slot in round_.slots}
    here = {member.peer: member for member in (*state.trainers(), *reducers)}
    sizes = {peer: up if peer in contributors else 0 for peer in contributors | here.keys()}
    parties = [_party(state, peer, here.get(peer), size) for peer, size in sizes.items()]
    return solve(parties, encoded_size(state.recipe.codec_down, state.elements))


def _party(state: RunState, peer: PeerId, member: Member | None, up_bytes: int) -> Party:
    """Relays reduce, trainers receive; who has left sends what it offered, once it is back, and receives nothing."""
    if member is None:
        return Party(peer=peer, up_bytes=up_bytes, is_volunteer=True)
    upload_bps, download_bps = _bps(state, peer)
    return Party(
        peer=peer,
        up_bytes=up_bytes,
        receives=member.trains,
        may_reduce=state.may_reduce(member),
        is_volunteer=member.trains,
        upload_bps=upload_bps,
        download_bps=download_bps,
    )


def _bps(state: RunState, peer: PeerId) -> tuple[float, float]:
    """Bytes per second up and down, 0 where nothing is known."""
    return budget_bps(state.capacities, (peer, "up")), budget_bps(state.capacities, (peer, "down"))


def holders_of(state: RunState, round_: Round, span: m.PlannedSpan) -> set[PeerId]:
    """Living log keepers that have the averages of a span which its reducer has reported (rule 5)."""
    done = round_.done.get(span.span)
    if done is None:
        return set()
    said = {span.reducer} | round_.kept.get(span.span, set())
    return {peer for peer in said if peer in state.members and state.members[peer].keeps_log}


def kept_spans(state: RunState, round_: Round) -> list[m.PlannedSpan]:
    """Spans of the attempts before that a living log keeper has."""
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
    """Tell everybody who reduces to go on without a slot."""
    reducers = {span.reducer for span in round_.plan.spans} if round_.plan is not None else set[PeerId]()
    message = m.Drop(run=state.run, step=state.step, fence=state.fence, attempt=round_.attempt, slot=slot)
    return Send(tuple(sorted(reducers.intersection(state.members))), message)
