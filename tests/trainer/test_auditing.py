"""A machine computes another's contribution again, on the parameters of that step, beside its own work."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from peer_agent.averaging.codecs import decode
from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.sketches import BUCKETS, Signs
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.round.audits import agreement
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.records import ChunkRange, Unit
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.trainer import events as e
from peer_agent.trainer.auditing import audited
from peer_agent.trainer.jobs import Accumulation, Jobs
from peer_agent.trainer.shards import Shards
from peer_agent.training.loop import Elsewhere, Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, NonFinite
from tests.protocol.trainer.stage import cut
from tests.training.commits import RUN, record_after, small_recipe, some_shards

UNITS = tuple(Unit(0, 0, start, start + 4) for start in (0, 4, 8))
OTHERS = tuple(Unit(0, 1, start, start + 4) for start in (0, 4, 8))
SEED = 77


class Ready:
    """Shards that are all there."""

    async def ready(self, shards: Iterable[int], is_wanted: Callable[[], bool]) -> bool:
        del shards
        return is_wanted()


SHARDS = cast("Shards", Ready())


def accumulation() -> Accumulation:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    return Accumulation(trainer, grid_of(trainer.replica.layout.elements), asyncio.Lock())


async def contributed(codec: Codec, units: tuple[Unit, ...] = UNITS) -> tuple[Sending, float]:
    """Return what a contributor sends for these units, and its summed loss."""
    work, tokens, loss = accumulation(), 0, 0.0
    for unit in units:
        result = await work.compute(e.Compute(1, (unit,)), lambda _: True)
        assert isinstance(result, e.Computed)
        work.keep()
        tokens, loss = tokens + sum(result.loss_tokens), loss + result.loss_sum
    work.close()
    sending = work.freeze(e.Freeze(2, cut(codec=codec), (m.Weight(0, work.grid.chunks, tokens),)))
    assert sending is not None
    return sending, loss


async def computed(work: Accumulation, units: tuple[Unit, ...]) -> None:
    for unit in units:
        assert isinstance(await work.compute(e.Compute(1, (unit,)), lambda _: True), e.Computed)
        work.keep()


def jumped(replica: Replica) -> None:
    """Apply an update, then move the parameters far."""
    moved(replica)
    replica.parameters.add_(torch.randn(replica.layout.elements, generator=torch.Generator().manual_seed(1)))


def sketch_by_reducers(sending: Sending, chunks: range, elements: int) -> "np.ndarray[Any, Any]":
    grid = grid_of(elements)
    signs, sketch = Signs(SEED, grid.chunk_elements), np.zeros(BUCKETS, np.float32)
    for chunk in chunks:
        signs.add(chunk, decode(sending.codec, sending.payloads[chunk], grid.length(chunk)), sketch)
    return sketch


def asked_of(work: Accumulation, codec: Codec, **facts: Any) -> m.Audit:
    usual = {"step": 0, "units": UNITS, "parts": (ChunkRange(0, work.grid.chunks),)}
    return m.Audit(
        run=RUN, number=3, codec=codec, chunk_elements=work.grid.chunk_elements, seed=SEED, **{**usual, **facts}
    )


async def answered(work: Accumulation, asked: m.Audit, elsewhere: Elsewhere) -> m.Audited:
    return await audited(asked, work.grid, SHARDS, elsewhere, compute=work.compute_elsewhere, is_wanted=lambda: True)


def moved(replica: Replica) -> None:
    average = np.full(replica.layout.elements, 0.01, np.float32)
    replica.apply(record_after(replica, average), "d" * 64, average)


@pytest.mark.parametrize(("codec", "least"), [("fp32", 0.99999), ("fp16", 0.9999), ("int8", 0.999), ("int4", 0.98)])
async def test_an_honest_contribution_is_found_the_same_after_an_update(codec: Codec, least: float) -> None:
    sending, loss = await contributed(codec)
    work = accumulation()
    elsewhere = Elsewhere(work.trainer)
    moved(work.trainer.replica)
    digest = work.trainer.replica.digest()
    said = await answered(work, asked_of(work, codec), elsewhere)
    work.close()
    theirs = sketch_by_reducers(sending, range(work.grid.chunks), work.grid.elements)
    cosine, norm = agreement(theirs.astype(np.float64), np.frombuffer(said.sketch, "<f4").astype(np.float64))
    assert cosine > least
    assert norm == pytest.approx(1, abs=0.02)
    assert said.loss_sum == pytest.approx(loss, rel=1e-5)
    assert said.loss_tokens == sending.weights[0].tokens
    assert work.trainer.replica.digest() == digest


@pytest.mark.parametrize("knows", [True, False], ids=["both steps", "one step"])
async def test_stale_units_are_computed_with_the_parameters_of_the_step_before(*, knows: bool) -> None:
    """With staleness 1, a contributor goes on with the old parameters while gradients are averaged."""
    theirs, work = accumulation(), accumulation()
    await computed(theirs, UNITS[:2])
    for each in (theirs, work):
        each.trainer.replica.keeps_before = True
        jumped(each.trainer.replica)
    await computed(theirs, UNITS[2:])
    elsewhere = Elsewhere(work.trainer, work.trainer.replica.before)
    stale = UNITS[:2] if knows else ()
    said = await answered(work, asked_of(work, "fp16", step=1, units=UNITS[len(stale) :], stale=stale), elsewhere)
    sending = theirs.freeze(e.Freeze(2, cut(codec="fp16"), (m.Weight(0, work.grid.chunks, said.loss_tokens),)))
    theirs.close()
    work.close()
    assert sending is not None
    sketch = sketch_by_reducers(sending, range(work.grid.chunks), work.grid.elements)
    cosine, _ = agreement(sketch.astype(np.float64), np.frombuffer(said.sketch, "<f4").astype(np.float64))
    assert (cosine > 0.9999) == knows


@pytest.mark.parametrize("kind", ["other units", "flipped", "part", "other parameters"])
async def test_other_gradients_are_found_different(kind: str) -> None:
    sending, _ = await contributed("fp16", OTHERS if kind == "other units" else UNITS[:1] if kind == "part" else UNITS)
    work = accumulation()
    if kind == "other parameters":
        work.trainer.replica.parameters.add_(
            torch.randn(work.grid.elements, generator=torch.Generator().manual_seed(1))
        )
    elsewhere = Elsewhere(work.trainer)
    said = await answered(work, asked_of(work, "fp16"), elsewhere)
    work.close()
    theirs = sketch_by_reducers(sending, range(work.grid.chunks), work.grid.elements)
    cosine, _ = agreement(
        (-theirs if kind == "flipped" else theirs).astype(np.float64),
        np.frombuffer(said.sketch, "<f4").astype(np.float64),
    )
    assert cosine < 0.95


async def test_own_work_goes_on_between_audited_units_and_is_unchanged() -> None:
    alone, _ = await contributed("fp32", OTHERS)
    work, tokens = accumulation(), 0
    auditing = asyncio.create_task(answered(work, asked_of(work, "fp32"), Elsewhere(work.trainer)))
    for unit in OTHERS:
        result = await work.compute(e.Compute(1, (unit,)), lambda _: True)
        assert isinstance(result, e.Computed)
        assert result.base == 0
        work.keep()
        tokens += sum(result.loss_tokens)
    said = await auditing
    work.close()
    sending = work.freeze(e.Freeze(2, cut(codec="fp32"), (m.Weight(0, work.grid.chunks, tokens),)))
    assert sending is not None
    assert sending.root == alone.root
    assert said.sketch


async def test_own_gradient_that_is_kept_late_is_not_that_of_an_audit() -> None:
    """A job keeps it. By then, an audited unit may already be computed."""
    alone, _ = await contributed("fp32", OTHERS[:1])
    work = accumulation()
    elsewhere = Elsewhere(work.trainer)
    result = await work.compute(e.Compute(1, OTHERS[:1]), lambda _: True)
    await work.compute_elsewhere(elsewhere, UNITS[0])
    work.keep()
    work.close()
    assert isinstance(result, e.Computed)
    weights = (m.Weight(0, work.grid.chunks, sum(result.loss_tokens)),)
    sending = work.freeze(e.Freeze(2, cut(codec="fp32"), weights))
    assert sending is not None
    assert sending.root == alone.root


async def test_audit_that_nobody_waits_for_ends() -> None:
    work = accumulation()
    asked, computed = asked_of(work, "fp16"), []

    async def compute(elsewhere: Elsewhere, unit: Unit) -> Computed | NonFinite:
        computed.append(unit)
        return await work.compute_elsewhere(elsewhere, unit)

    said = await audited(
        asked, work.grid, SHARDS, Elsewhere(work.trainer), compute=compute, is_wanted=lambda: not computed
    )
    work.close()
    assert computed == [UNITS[0]]
    assert not said.sketch


async def test_only_the_asked_chunks_are_in_the_sketch() -> None:
    sending, _ = await contributed("fp32")
    work = accumulation()
    assert work.grid.chunks > 1, "the model has several chunks"
    asked = asked_of(work, "fp32", parts=(ChunkRange(1, work.grid.chunks),))
    said = await answered(work, asked, Elsewhere(work.trainer))
    work.close()
    theirs = sketch_by_reducers(sending, range(1, work.grid.chunks), work.grid.elements)
    np.testing.assert_allclose(np.frombuffer(said.sketch, "<f4"), theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "facts",
    [{"chunk_elements": 7}, {"parts": (ChunkRange(0, 10**6),)}, {"units": (Unit(0, 0, 10**6, 10**6 + 1),)}],
    ids=["another grid", "no such chunk", "no such samples"],
)
async def test_what_cannot_be_computed_is_answered_without_a_sketch(facts: dict[str, Any]) -> None:
    work = accumulation()
    asked = asked_of(work, "fp16")
    asked = m.Audit(**{**{name: getattr(asked, name) for name in asked.__struct_fields__}, **facts})
    said = await answered(work, asked, Elsewhere(work.trainer))
    result = await work.compute(e.Compute(1, UNITS[:1]), lambda _: True)
    work.close()
    assert said == m.Audited(run=RUN, number=3)
    assert isinstance(result, e.Computed), "own work goes on"


async def test_gradient_that_is_not_finite_is_answered_without_a_sketch() -> None:
    work = accumulation()
    elsewhere = Elsewhere(work.trainer)
    with elsewhere.used():
        parameters = next(work.trainer.replica.model.parameters())
        parameters.data.fill_(float("nan"))
    said = await answered(work, asked_of(work, "fp16"), elsewhere)
    work.close()
    assert not said.sketch
    assert isinstance(work.trainer.compute(UNITS[0]), Computed), "the replica's own parameters are as before"


@pytest.mark.parametrize(
    ("step", "stale", "has_answer"),
    [(1, (), True), (1, UNITS[:1], True), (2, (), False), (2, UNITS[:1], False)],
    ids=["this step", "this step and the one before", "a later step", "a later step and this one"],
)
async def test_machine_keeps_the_step_before_from_the_first_audit_that_needs_it(
    step: int, stale: tuple[Unit, ...], *, has_answer: bool
) -> None:
    said, started = list[m.Audited](), list[asyncio.Task[None]]()

    def start(part: Any) -> asyncio.Task[None]:
        started.append(asyncio.create_task(part))
        return started[-1]

    work = accumulation()
    jobs = Jobs(cast("Any", SimpleNamespace(say=said.append, start=start)))
    jobs.follower, jobs.accumulation, jobs.shards = cast("Any", object()), work, SHARDS
    await jobs.audit(asked_of(work, "fp16", step=0, units=(), stale=UNITS[:1]))
    assert not said.pop().sketch, "the step before is not there yet"
    moved(work.trainer.replica)
    await jobs.audit(asked_of(work, "fp16", step=step, units=UNITS[1:], stale=stale))
    await asyncio.gather(*started)
    work.close()
    assert bool(said.pop().sketch) == has_answer
