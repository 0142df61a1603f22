"""The choice of a peer to disturb, and round times with and without the disturbance."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Plan
from tests.benchmarks.rig.figures import Figures, median

TENTH = 0.1  # share of its uplink that a slowed peer keeps
LATE = 1.5  # a sender that takes longer than this many times the planned time is late


def chunks_by_reducer(plans: Collection[Plan]) -> Counter[PeerId]:
    counts = Counter[PeerId]()
    for plan in plans:
        for span in plan.spans:
            counts[span.reducer] += span.stop - span.first
    return counts


def a_sender(names: Collection[str], up: Mapping[str, float], wire_bytes: float, plan_s: float) -> str | None:
    """Choose a peer to slow down from among `names`, the peers that do not reduce. Return None if there are none.

    Of the peers that would be late with a tenth of their uplink, choose the one with the widest uplink. If there is no
    such peer, choose the one with the narrowest.
    """
    late = [name for name in names if wire_bytes / (TENTH * up[name]) > LATE * plan_s]
    if late:
        return max(sorted(late), key=lambda name: up[name])
    return min(sorted(names), key=lambda name: up[name], default=None)


def a_reducer(chunks: Mapping[str, int], trainers: Collection[str]) -> str | None:
    """Return the trainer that reduces the most, or the relay that does if no trainer reduces. Return None if no peer
    reduces.
    """
    able = {name: count for name, count in chunks.items() if count}
    chosen = [name for name in able if name in trainers] or list(able)
    return max(sorted(chosen), key=lambda name: able[name], default=None)


def beside_usual(usual: Sequence[float], affected: Sequence[float], without: Sequence[float]) -> Figures:
    """Compare the first and the slowest affected round with the medians of normal rounds and of rounds without the
    affected peer.
    """
    usual_s, without_s = median(usual), median(without) if without else None
    worst_s = max(affected)
    return {
        "usual_s": usual_s,
        "without_s": without_s,
        "first_s": affected[0],
        "after_s": list(affected[1:]),
        "first_ratio": affected[0] / usual_s,
        "worst_ratio": worst_s / usual_s,
        "first_to_without": affected[0] / without_s if without_s else None,
        "worst_to_without": worst_s / without_s if without_s else None,
    }
