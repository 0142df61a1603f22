"""Rounds without the averaging engine and the coordinator: gradient sums go in, and a sealed record comes out."""

from collections.abc import Sequence

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Entry,
    Record,
    SpanEntry,
    Unit,
    digest_of,
    seal,
    whole,
)
from peer_agent.protocol.recipe import Optimizer
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.text.tokens import Tokens
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, Taken

RUN = RunId("ab" * 16)
SITE_KEY = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)
Vector = NDArray[np.float32]


def small_recipe(family: str = "gpt2", **optimizer: object) -> CausalLM:
    """Return a recipe whose two-layer model takes milliseconds."""
    return CausalLM(
        model=msgspec.convert({"family": family, "layers": 2, "width": 32, "heads": 4, "context": 24}, Model),
        optimizer=msgspec.convert({"warmup_steps": 5, **optimizer}, Optimizer),
        vocab=300,
        target_batch=24,
        target_steps=100,
        seed=7,
    )


def some_shards(lengths: Sequence[int] = (5000, 3011)) -> list[Tokens]:
    """Return learnable tokens, most of which follow from the one before. The second shard ends in a short sample."""
    shards = []
    for number, length in enumerate(lengths):
        noise = np.random.Generator(np.random.Philox(number)).integers(0, 12, length)
        shards.append(((np.arange(length) * 7 + np.cumsum(noise == 0) * 31) % 300).astype(np.uint16))
    return shards


def weighted_mean(takings: Sequence[Taken]) -> Vector:
    """Return the average as reducers compute it: the contributors' means, weighted by each one's loss tokens."""
    total = np.zeros_like(takings[0].gradient_sum)
    for taken in takings:
        mean = taken.gradient_sum * np.float32(1 / taken.loss_tokens)
        total += mean * np.float32(taken.loss_tokens)
    return total * np.float32(1 / sum(taken.loss_tokens for taken in takings))


def unweighted_mean(takings: Sequence[Taken]) -> Vector:
    """Return the average that rule 32 forbids."""
    means = [taken.gradient_sum * np.float32(1 / taken.loss_tokens) for taken in takings]
    mean: Vector = np.mean(means, axis=0, dtype=np.float32)
    return mean


def contribution_of(slot: int, taken: Taken, chunks: int, step: int) -> Contribution:
    stale = tuple(done.unit for done in taken.units if done.base < step)
    return Contribution(
        peer=PeerId(f"{slot:032x}"),
        person=f"person {slot}",
        machine=f"machine {slot}",
        slot=slot,
        accumulator=AccumulatorId(f"{slot:032x}"),
        units=tuple(done.unit for done in taken.units),
        weight=taken.loss_tokens,
        credit=taken.loss_tokens,
        samples=sum(done.unit.samples for done in taken.units),
        tokens=taken.loss_tokens,
        included=(ChunkRange(0, chunks),),
        codec="fp16",
        stale=stale,
    )


def record_after(replica: Replica, average: Vector, takings: Sequence[Taken] = (), *, exact: bool = True) -> Record:
    grid = grid_of(average.size)
    tokens = sum(taken.loss_tokens for taken in takings) or 1
    sum_squares = float(np.dot(average.astype(np.float64), average.astype(np.float64)))
    span = SpanEntry(
        span=0,
        first=0,
        stop=grid.chunks,
        attempt=1,
        reducer=PeerId("0" * 32),
        root="0" * 64,
        sum_squares=sum_squares,
    )
    return whole(
        run=RUN,
        index=replica.index + 1,
        step=replica.step + 1,
        fence=1,
        attempt=1,
        round=replica.step + 1,
        previous=replica.log_digest,
        elements=average.size,
        chunk_elements=grid.chunk_elements,
        codec="fp32",
        spans=(span,),
        scalars=scalars_of(replica.recipe, step=replica.step + 1, sum_squares=sum_squares, tokens=tokens),
        contributions=tuple(
            contribution_of(slot, taken, grid.chunks, replica.step) for slot, taken in enumerate(takings)
        ),
        loss=sum(taken.loss_sum for taken in takings) / tokens,
        tokens=tokens,
        samples=sum(done.unit.samples for taken in takings for done in taken.units),
        exact=exact,
    )


def commit(replica: Replica, average: Vector, takings: Sequence[Taken] = (), *, exact: bool = True) -> Entry:
    record = record_after(replica, average, takings, exact=exact)
    signed = seal(SITE_KEY, record)
    replica.apply(record, digest_of(signed), average)
    return signed


def take_units(trainer: Trainer, units: Sequence[Unit]) -> Taken:
    for unit in units:
        done = trainer.compute(unit)
        assert isinstance(done, Computed)
        trainer.keep(done)
    return trainer.take_sum()
