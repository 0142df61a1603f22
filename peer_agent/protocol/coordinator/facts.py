"""Restore a run's state from facts in the database, for both the site and the simulator."""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from peer_agent.protocol.codec_sizes import ERROR
from peer_agent.protocol.coordinator import leases
from peer_agent.protocol.coordinator.events import Goal, Mark
from peer_agent.protocol.coordinator.reliability import Reliability
from peer_agent.protocol.coordinator.state import LOSSES_KEPT, RECORDS_WALKED, Inclusion, RunState
from peer_agent.protocol.coordinator.typical import remember_norm
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, Entry, Record, Unit, digest_of, is_everywhere, read_record
from peer_agent.protocol.messages import Shard, Snapshot
from peer_agent.protocol.recipe import Recipe

GRACE_ROUNDS = 3  # leases outlast a peer's session by this many rounds, or their host by this many commits
LATELY = 10  # people with work in at least one of the latest `LATELY` commits may vote (rule 17)


class StoredFacts(Struct, frozen=True, kw_only=True):
    """Everything that a host needs to take over a run. `index`, `step` and `digest` are those of the last record."""

    run: RunId
    slug: str
    title: str
    fence: int
    recipe: Recipe
    recipe_bytes: bytes
    elements: int
    shards: tuple[Shard, ...]
    sources: tuple[int, ...] = ()  # each shard's source number; empty if there is only one source
    site_key: bytes
    index: int = 0
    step: int = 0
    digest: str = GENESIS
    goal: Goal = "running"
    pause_reason: str = ""
    losses: Sequence[float] = ()  # of the latest updates that were not undone, oldest first, in nats
    trusted: frozenset[str] | None = None
    contributed: Mapping[str, int] = {}  # person -> number of updates with their work
    checks: Mapping[PeerId, tuple[int, int]] = {}  # machine -> audits passed, and the last checked index
    snapshot: Snapshot  # the latest admitted snapshot
    verified: int = 0  # index of the latest snapshot that the site has replayed
    archived: int | None = None  # the site has archived averages up to this index; None: no archive
    rolled_back: int = 0  # index of the last rollback
    marks: Iterable[Mark] = ()
    settled: Iterable[Unit] = ()  # sample ranges in updates, of any length and from all epochs
    left_out: Sequence[Unit] = ()  # sample ranges that no update will include
    last: Sequence[Entry] = ()  # the latest records, oldest first; only the last RECORDS_WALKED are used


def restored(facts: StoredFacts) -> RunState:
    """Return a run's state between two rounds, without members. An open round is not stored, so it becomes void."""
    sizes = [facts.recipe.samples_in(shard.tokens) for shard in facts.shards]
    state = RunState(
        run=facts.run,
        slug=facts.slug,
        title=facts.title,
        fence=facts.fence,
        recipe=facts.recipe,
        recipe_bytes=facts.recipe_bytes,
        elements=facts.elements,
        shards=facts.shards,
        site_key=facts.site_key,
        snapshot=facts.snapshot,
        verified=facts.verified,
        archived=facts.archived,
        rolled_back=facts.rolled_back,
        leases=leases.restored(
            sizes, facts.recipe.micro_batch, facts.marks, facts.settled, facts.left_out, sources=_sources(facts)
        ),
        index=facts.index,
        step=facts.step,
        digest=facts.digest,
        goal=facts.goal,
        pause_reason=facts.pause_reason,
        losses=deque(facts.losses, LOSSES_KEPT),
        trusted=facts.trusted,
        contributed=Counter(facts.contributed),
        started=facts.step > 0,
        orphans_until=facts.step + GRACE_ROUNDS,
    )
    for peer, (passed, index) in facts.checks.items():
        state.reliabilities[peer] = Reliability(audits_passed=passed, checked_index=index)
    for sealed in facts.last[-RECORDS_WALKED:]:
        _remember(state, sealed)
    return state


def _sources(facts: StoredFacts) -> list[leases.Source]:
    """Return the data sources that the recipe mixes. Without weights, return none: all shards form one source."""
    weights = facts.recipe.mix
    if not weights or len(facts.sources) != len(facts.shards) or max(facts.sources, default=0) >= len(weights):
        return []
    shards = [[shard for shard, of in enumerate(facts.sources) if of == number] for number in range(len(weights))]
    return [leases.Source(tuple(found), weight) for found, weight in zip(shards, weights, strict=True)]


def _remember(state: RunState, sealed: Entry) -> None:
    record = read_record(sealed)
    if record.kind == "rollback":
        state.inclusions.clear()  # no accumulator carries tokens over a rollback
    else:
        state.inclusions.append(inclusions_of(record))
        remember_norm(state, record)
    for entry in record.contributions:
        state.recent[entry.person] = record.index
    if digest_of(sealed) == state.digest:
        state.sealed, state.loss = sealed, record.loss if record.kind == "update" else None
        error = ERROR[record.codec]
        state.feedback_norm = error / (1 - error) * math.sqrt(sum(span.sum_squares for span in record.spans))
        state.replicas.peers = {entry.peer for entry in record.contributions} if state.recipe.staleness else set()


def inclusions_of(record: Record) -> dict[AccumulatorId, Inclusion]:
    """Return how much of each accumulator's gradient an update includes."""
    return {
        entry.accumulator: Inclusion(
            is_everywhere(entry, record), entry.weight, sum(unit.samples for unit in entry.units)
        )
        for entry in record.contributions
    }


def carried_of(state: RunState, accumulator: AccumulatorId) -> tuple[int, float]:
    """Return how many of an accumulator's tokens the latest updates may have left out, and its samples per token.

    These tokens are carried over to the next update (rule 9).
    """
    tokens, ratio = 0, 0.0
    for inclusions in state.inclusions:
        entry = inclusions.get(accumulator)
        if entry is not None:
            tokens = 0 if entry.is_whole else tokens + entry.weight
            ratio = entry.samples / entry.weight if entry.samples else ratio
    return tokens, ratio
