"""Plans that hope for faster links than measured make full use of an auxiliary, though every peer that measures it is
slower.
"""

from collections.abc import Mapping

import pytest

from peer_agent.protocol.bandwidth.flows import WAYS, Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import budget_bps, hope_of, learn
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Pair, Party, judged, solve
from tests.protocol.bandwidth.fluid import flows_over

TRAINERS = [PeerId(f"trainer-{number:02}") for number in range(16)]
AUXILIARY = PeerId("auxiliary")
VECTOR = 5_000_000
SLOW = 2_500_000.0  # bytes per second
PACE = 4.0  # a plan that rests on lower bounds lets senders go this many times faster


def true_links(auxiliary_bps: float) -> dict[Direction, float]:
    """Return the links of DeDLOC's set-up D: equal links for the trainers, and one for the auxiliary."""
    peers = {**dict.fromkeys(TRAINERS, SLOW), AUXILIARY: auxiliary_bps}
    return {(peer, way): bps for peer, bps in peers.items() for way in WAYS}


def parties(known: Mapping[Direction, Capacity], *, hopes: bool = False) -> list[Party]:
    return [
        Party(
            peer=peer,
            up_bytes=VECTOR if trains else 0,
            receives=trains,
            may_reduce=True,
            is_volunteer=trains,
            upload_bps=budget_bps(known, (peer, "up"), hope=hope_of(trains=trains) if hopes else 1.0),
            download_bps=budget_bps(known, (peer, "down"), hope=hope_of(trains=trains) if hopes else 1.0),
        )
        for peer, trains in ((peer, peer != AUXILIARY) for peer in (*TRAINERS, AUXILIARY))
    ]


def a_round(known: dict[Direction, Capacity], true: Mapping[Direction, float], number: int) -> float:
    """Plan with known and hoped-for rates, send at the true ones, and learn from the flows. Return the seconds
    taken."""
    dealt = solve(parties(known, hopes=True), VECTOR)
    plan = judged(dealt, parties(known), VECTOR)
    shares = dict(zip(plan.reducers, plan.shares, strict=True))
    wanted: dict[Pair, int] = {}
    for reducer, share in shares.items():
        for trainer in TRAINERS:
            if trainer != reducer:
                wanted[trainer, reducer] = wanted.get((trainer, reducer), 0) + int(VECTOR * share)
                wanted[reducer, trainer] = wanted.get((reducer, trainer), 0) + int(VECTOR * share)
    flows = flows_over(true, {pair: size for pair, size in wanted.items() if size}, in_step=True)
    asked_s = plan.duration_s / PACE
    told = [Flow(f.sender, f.receiver, f.received, 0.0, f.last_s, asked_s, True, f.last_s) for f in flows]
    learn(known, {}, told, number, dealt.duration_s)
    return max(flow.last_s for flow in flows)


@pytest.mark.parametrize("times", [1.0, 12.5, 100.0])
def test_auxiliary_too_fast_to_measure_alone_is_used_in_full(times: float) -> None:
    """Each trainer's measurement is limited by its own link. Only all the trainers together reveal the auxiliary's
    rate.
    """
    true = true_links(times * SLOW)
    known = {direction: Capacity(min(bps, SLOW), is_floor=True, measured_at=0) for direction, bps in true.items()}
    best_s = solve(parties({each: Capacity(bps, False, 0) for each, bps in true.items()}), VECTOR).duration_s
    took_s = [a_round(known, true, number) for number in range(6)]
    assert took_s[-1] < 1.1 * best_s
    assert max(took_s) < 2 * best_s
    assert all(known[peer, way].bps == pytest.approx(SLOW, rel=0.1) for peer in TRAINERS for way in WAYS)
