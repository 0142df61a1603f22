"""Solve a round's share program, and find what limits the round (rules 25 to 29)."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan.closed_form import fill, least_time, lines_of
from peer_agent.protocol.plan.linear_program import coupled_shares
from peer_agent.protocol.plan.parties import NO_LIMITS, Limits, Party, Vector
from peer_agent.protocol.plan.program import Kind, Program, program_of

ROUNDING = 1e-9  # relative; smaller differences between times do not count
MOST_NAMED = 8  # most limits named by a plan


class Limit(Struct, frozen=True):
    """A limit on a round's time. `part`: this limit's fraction of the time that relaxing all limits would save."""

    kind: Kind
    peers: tuple[PeerId, ...]  # one peer; for a pair, sender and receiver; for a household, all members
    part: float


class Shares(Struct, frozen=True):
    """Each reducer's share of the vector, how long the round takes with these shares, and what limits it.

    Reducers are in order of id, and the shares sum to 1.
    """

    reducers: tuple[PeerId, ...]
    shares: tuple[float, ...]
    duration_s: float
    limits: tuple[Limit, ...] = ()  # largest `part` first


def solve(parties: Sequence[Party], down_bytes: float, limits: Limits = NO_LIMITS) -> Shares:
    """Return the share program's optimum. If no links are measured, relays and auxiliaries get equal shares.

    If no row with several shares limits the time, the shares are bit-identical on every platform. Otherwise, they come
    from HiGHS and agree to nine digits across platforms. Raises ValueError if no party may reduce, or if `program_of`
    raises it.
    """
    program = program_of(parties, down_bytes, limits)
    if not program.reducers:
        raise ValueError("nobody may reduce")
    lines = lines_of(program)
    time_s = least_time(lines)
    shares = fill(lines.lower(time_s), lines.upper(time_s), program.is_volunteer)
    if program.duration_s(shares) <= time_s * (1 + ROUNDING):
        parts = _parts(program, shares)
    else:
        shares, parts = coupled_shares(program, lines, float(time_s))
    return Shares(program.reducers, tuple(map(float, shares)), program.duration_s(shares), _named(program, parts))


def judged(shares: Shares, parties: Sequence[Party], down_bytes: float, limits: Limits = NO_LIMITS) -> Shares:
    """Return the same shares with the time that they take over the given links.

    Each limit that determines this time gets an equal part of it.
    """
    program = program_of(parties, down_bytes, limits)
    times = program.times(np.array(shares.shares))
    longest = times.max(initial=0.0)
    parts = ((times >= longest * (1 - ROUNDING)) & (times > 0)).astype(np.float64)
    return replace(shares, duration_s=float(longest), limits=_named(program, parts / max(parts.sum(), 1.0)))


def _parts(program: Program, shares: Vector) -> Vector:
    """Return how much each row limits the time if no row couples shares. The parts sum to 1, or are all 0.

    They are 0 if no row takes any time. Otherwise, only rows that take the longest have a part. If some of them take
    that long whatever the shares are, only these have one. If not, the parts go to two rows that fix one share, or else
    to the rows of all reducers.
    """
    times = program.times(shares)
    longest = times.max(initial=0.0)
    parts = np.zeros(len(times))
    if longest <= 0:
        return parts
    entry = np.full(len(times), -1)
    entry[program.row] = np.arange(len(program.row))
    full: dict[tuple[int, bool], int] = {}
    alone: dict[tuple[PeerId, ...], int] = {}
    for row in np.flatnonzero(times >= longest * (1 - ROUNDING)).tolist():
        if entry[row] < 0 or shares[program.share[entry[row]]] < ROUNDING:
            alone.setdefault(program.rows[row].peers, row)
        else:
            full.setdefault((int(program.share[entry[row]]), bool(program.slope[entry[row]] < 0)), row)
    for row in alone.values() or _squeezed(full) or full.values():
        parts[row] = 1.0 if alone else program.capacity[row] / abs(program.slope[entry[row]])
    return np.asarray(parts / parts.sum())


def _squeezed(full: Mapping[tuple[int, bool], int]) -> list[int]:
    """Return the two rows that fix one share, one from above and one from below, or none if no share is fixed."""
    share = next((share for share, is_less in full if is_less and (share, False) in full), None)
    return [] if share is None else [full[share, False], full[share, True]]


def _named(program: Program, parts: Vector) -> tuple[Limit, ...]:
    order = np.argsort(-parts, kind="stable")[:MOST_NAMED]
    return tuple(Limit(program.rows[i].kind, program.rows[i].peers, float(parts[i])) for i in order if parts[i] > 0)
