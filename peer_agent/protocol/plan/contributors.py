"""Choose a round's contributors and their codecs (rule 30).

Each additional contributor shortens the wait for the batch but may lengthen the exchange. A slow contributor can send a
smaller encoding or be left out. If left out, it keeps its gradients for the next round and catches up from the log.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan.comparison import Candidate, Codecs, Comparison
from peer_agent.protocol.plan.parties import NO_LIMITS, Limits, Party, Vector
from peer_agent.protocol.plan.solve import Shares, solve

PATIENCE = 1  # most rounds in a row that may leave a peer out: gradients can be carried over only once (rule 10)
MOST_CELLS = 1 << 13  # choices times peers compared at once; of more choices, only an evenly spaced sample is compared
MOST_SOLVED = 4  # choices solved again with the limits shared by several links
ALIKE = 1.01  # choices that take at most this many times the fastest one's time count as equally fast


class Choice(Struct, frozen=True):
    """A choice of contributors with their codec numbers, the peers left out, and the resulting shares and step time."""

    codecs: dict[PeerId, int]
    left_out: tuple[PeerId, ...]
    cannot_follow: tuple[PeerId, ...]  # left-out peers that receive averages more slowly than steps happen
    shares: Shares
    step_s: float


def choose(
    candidates: Sequence[Candidate],
    others: Sequence[Party],
    down_bytes: float,
    *,
    batch: int,
    staleness: int,
    limits: Limits = NO_LIMITS,
) -> Choice:
    """Choose the contributors that make steps of `batch` samples as fast as possible.

    With staleness 1, samples are computed during the exchange. `others` only reduce or receive. A candidate left out of
    the last round must contribute. If only the parties' own links limit the round, the choice is within 10 % of the
    best. Raises ValueError if there are no candidates, if a candidate has no codecs, or if no party may reduce. Also
    raises ValueError for duplicate ids and invalid numbers, as `Table` does.
    """
    if not candidates or not all(candidate.up_bytes for candidate in candidates):
        raise ValueError("nobody may contribute")
    if not any(party.may_reduce for party in (*(c.party for c in candidates), *others)):
        raise ValueError("nobody may reduce")
    comparison = Comparison(candidates, others, down_bytes, batch, staleness)
    comparison.narrow(limits)
    found = scanned(comparison)
    order = _order(comparison, found, comparison.steps(found, comparison.durations(found)))
    # If no limits are shared by several links, the comparison is already exact.
    looked_at = found[order[: 1 if limits == NO_LIMITS else MOST_SOLVED]]
    return min((_choice(comparison, others, codecs, limits) for codecs in looked_at), key=lambda choice: choice.step_s)


def _order(comparison: Comparison, found: Codecs, steps: Vector) -> NDArray[np.int64]:
    """Return the order of preference: first the choices about as fast as the fastest, then the others by time.

    Among the first, prefer more samples per second, and then codecs nearer the start of each candidate's list.
    """
    is_alike = steps <= ALIKE * steps.min()
    samples = np.where(is_alike, comparison.samples_per_s(found), 0.0)
    return np.lexsort((steps, np.where(is_alike, found.sum(axis=1), 0), -samples))


def scanned(comparison: Comparison) -> Codecs:
    """List choices: for each time limit, the candidates whose own links meet it, each with its first codec that does.

    More choices follow without each candidate's first codec, without its first two, and so on. The list also contains
    each candidate alone, because a lone contributor that reduces everything sends its gradient over no link.
    """
    candidates, codecs, own = comparison.candidates, np.arange(comparison.codecs), comparison.own_times()
    last = np.array([[len(candidate.up_bytes) - 1] for candidate in candidates])
    quickest = own.argmin(axis=1)
    is_overdue = [candidate.rounds_left_out >= PATIENCE for candidate in candidates]  # these must not be left out again
    otherwise = np.where(is_overdue, quickest, -1)
    cells = (1 + len(codecs)) * len(comparison.table.peers)  # each list gets an equal part of MOST_CELLS
    found = [np.where(_few(np.eye(len(candidates), dtype=bool), cells), quickest, otherwise)]
    for level in codecs:
        allowed = np.where(codecs >= np.minimum(level, last), own, np.inf)
        within = _few(np.unique(allowed[np.isfinite(allowed)])[::-1], cells)
        is_quick = allowed <= within[:, None, None]
        found.append(np.where(is_quick.any(axis=-1), is_quick.argmax(axis=-1), otherwise))
    return np.asarray(np.unique(np.concatenate(found), axis=0))


def _few(values: NDArray[Any], cells: int) -> NDArray[Any]:
    """Return evenly spaced values, as many as fit into MOST_CELLS with `cells` cells per value."""
    return values[:: max(1, -(-len(values) * cells // MOST_CELLS))]


def _choice(comparison: Comparison, others: Sequence[Party], codecs: Codecs, limits: Limits) -> Choice:
    used = {c.party.peer: n for c, n in zip(comparison.candidates, codecs.tolist(), strict=True) if n >= 0}
    parties = [_as_chosen(candidate, used.get(candidate.party.peer)) for candidate in comparison.candidates]
    shares = solve([*parties, *others], comparison.down_bytes, limits)
    (step_s,) = comparison.steps(codecs[None], np.array([shares.duration_s])).tolist()
    arrives_s = dict(zip(comparison.table.peers, comparison.arrival_times().tolist(), strict=True))
    left_out = tuple(party.peer for party in parties if party.peer not in used)
    return Choice(used, left_out, tuple(peer for peer in left_out if arrives_s[peer] > step_s), shares, step_s)


def _as_chosen(candidate: Candidate, codec: int | None) -> Party:
    if codec is None:
        return replace(candidate.party, up_bytes=0.0, is_awaited=False)
    return replace(candidate.party, up_bytes=candidate.up_bytes[codec])
