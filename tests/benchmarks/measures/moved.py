"""The bytes that each peer sends and receives in rounds, compared with the plans."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Plan, PlannedSpan
from peer_agent.protocol.recipe import Codec
from tests.benchmarks.rig.figures import Figures
from tests.benchmarks.rig.tally import AVERAGE, CONTROL, GRADIENT, LOG, PROBE, WORDS, Counts

# rows of the tally that belong to rounds; probes of idle links and control messages do not
OF_ROUNDS = (GRADIENT, AVERAGE, LOG, WORDS)
ON_DATA_LINKS = (*OF_ROUNDS, PROBE)


class Moved(Struct):
    up: float = 0.0
    down: float = 0.0


def planned(plan: Plan, receivers: Collection[PeerId]) -> dict[PeerId, Moved]:
    """Return how many encoded bytes each peer sends and receives under a plan: gradients to reducers, and averages to
    receivers. Transfers within a peer do not count.
    """
    moved = {peer: Moved() for peer in {*receivers, *_reducers(plan), *(slot.peer for slot in plan.slots)}}
    grid = Grid(plan.elements, plan.chunk_elements)
    for span in plan.spans:
        for slot in plan.slots:
            sizes = (
                _size(grid, slot.codec, span, weight.first, weight.stop) for weight in slot.weights if weight.tokens
            )
            _move(moved, slot.peer, span.reducer, sum(sizes))
        average = _size(grid, plan.codec_down, span, span.first, span.stop)
        for receiver in receivers:
            _move(moved, span.reducer, receiver, average)
    return moved


def _reducers(plan: Plan) -> set[PeerId]:
    return {span.reducer for span in plan.spans}


def _size(grid: Grid, codec: Codec, span: PlannedSpan, first: int, stop: int) -> int:
    chunks = range(max(span.first, first), min(span.stop, stop))
    return sum(encoded_size(codec, grid.length(chunk)) for chunk in chunks)


def _move(moved: Mapping[PeerId, Moved], sender: PeerId, receiver: PeerId, size: float) -> None:
    if sender != receiver:
        moved[sender].up += size
        moved[receiver].down += size


def rows_between(before: Mapping[str, Counts], after: Mapping[str, Counts], rows: Iterable[int]) -> dict[str, Moved]:
    """Return how many bytes each process sent and received between the two counts, in the given rows of the tally."""
    chosen = list(rows)
    sums = {name: (after[name] - before[name])[chosen].sum(axis=0) for name in after}
    return {name: Moved(float(sent), float(received)) for name, (sent, received) in sums.items()}


def total(moved: Mapping[str, Moved]) -> float:
    return sum(each.up for each in moved.values())


def beside_plans(
    plans: Sequence[Mapping[PeerId, Moved]],
    before: Mapping[str, Counts],
    after: Mapping[str, Counts],
    kernel_bytes: float,
) -> Figures:
    """Return the mean number of bytes a round transferred, compared with the planned number. `kernel_bytes`: bytes on
    all data links in all rounds.

    The kernel does not distinguish rounds from probes. Its bytes are divided between them in proportion to our own
    counts.
    """
    rounds = len(plans)
    wanted = sum(each.up for plan in plans for each in plan.values())
    counts = {row: total(rows_between(before, after, [row])) for row in (*ON_DATA_LINKS, CONTROL)}
    of_rounds = sum(counts[row] for row in OF_ROUNDS)
    kernel = kernel_bytes * of_rounds / (of_rounds + counts[PROBE])
    return {
        "planned": wanted / rounds,
        "payload_and_framing": of_rounds / rounds,
        "kernel": kernel / rounds,
        "ratio": of_rounds / wanted,
        "kernel_ratio": kernel / wanted,
        "of_the_log": counts[LOG] / rounds,
        "of_probes": counts[PROBE] / rounds,
        "of_control": counts[CONTROL] / rounds,
    }


def in_parts(moved: Mapping[str, Moved], names: Collection[str], whole: float) -> Figures:
    """Return the largest byte counts that any named peer sent and received, as multiples of `whole`, or nothing
    without names.
    """
    if not names:
        return {}
    return {
        "up": max(moved[name].up for name in names) / whole,
        "down": max(moved[name].down for name in names) / whole,
    }


def together(moved: Mapping[str, Moved], names: Collection[str], whole: float) -> Figures:
    """Return the total byte counts that the named peers sent and received, as multiples of `whole`, or nothing without
    names.
    """
    if not names:
        return {}
    return {
        "up": sum(moved[name].up for name in names) / whole,
        "down": sum(moved[name].down for name in names) / whole,
    }
