"""Who is to be troubled, and how long rounds take with a trouble beside those without it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Plan
from tests.benchmarks.rig.figures import Figures, median

TENTH = 0.1  # of its uplink, that a slow peer has left
LATE = 1.5  # times the plan's time: who needs so long to send is late


def chunks_by_reducer(plans: Collection[Plan]) -> Counter[PeerId]:
    """How many chunks each has reduced in these."""
    counts = Counter[PeerId]()
    for plan in plans:
        for span in plan.spans:
            counts[span.reducer] += span.stop - span.first
    return counts


def a_sender(names: Collection[str], up: Mapping[str, float], wire_bytes: float, plan_s: float) -> str | None:
    """Of those who reduce nothing the one with the widest uplink of which a tenth is too little, for others do not wait
    for it as it is; where a tenth is enough for all, the narrowest. None where there is nobody."""
    late = [name for name in names if wire_bytes / (TENTH * up[name]) > LATE * plan_s]
    if late:
        return max(sorted(late), key=lambda name: up[name])
    return min(sorted(names), key=lambda name: up[name], default=None)


def a_reducer(chunks: Mapping[str, int], trainers: Collection[str]) -> str | None:
    """A trainer, where trainers reduce, or else a relay: the one that reduces most. None where there is nobody."""
    able = {name: count for name, count in chunks.items() if count}
    chosen = [name for name in able if name in trainers] or list(able)
    return max(sorted(chosen), key=lambda name: able[name], default=None)


def beside_usual(usual: Sequence[float], affected: Sequence[float], without: Sequence[float]) -> Figures:
    """Seconds of rounds, the first affected and the worst of them to the medians of others: with everybody, and
    without the one in trouble."""
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
