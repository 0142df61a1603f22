"""Compute another machine's contribution again, between this machine's own units, and make its sketch."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from peer_agent.averaging.sketches import sketch_again
from peer_agent.protocol import messages as m
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import Unit
from peer_agent.trainer.shards import Shards
from peer_agent.training.units import Computed, NonFinite, Taken

if TYPE_CHECKING:  # torch is loaded only for training
    from peer_agent.training.loop import Elsewhere

PATIENCE = 20  # steps after which the coordinator no longer waits for an answer
Compute = Callable[["Elsewhere", Unit], Awaitable[Computed | NonFinite]]

log = logging.getLogger(__name__)


async def audited(
    asked: m.Audit,
    grid: Grid,
    shards: Shards,
    elsewhere: "Elsewhere",
    *,
    compute: Compute,
    is_wanted: Callable[[], bool],
) -> m.Audited:
    """Return the answer to an audit, without a sketch if this machine fails to compute it or `is_wanted` turns false.

    `elsewhere`: the parameters of the audited step, those of the step before if there are stale units, and memory for
    the gradient. `compute` adds one unit's gradient.
    """
    try:
        taken = await _computed(asked, shards, elsewhere, compute, is_wanted)
        if taken is not None:
            sketch = await asyncio.to_thread(sketch_for, asked, grid, taken)
            return m.Audited(
                run=asked.run,
                number=asked.number,
                sketch=sketch,
                loss_sum=taken.loss_sum,
                loss_tokens=taken.loss_tokens,
            )
    except Exception as error:  # noqa: BLE001 (whatever happens here must not end this machine's own work)
        log.warning("audit %s: %s", asked.number, error)
    return m.Audited(run=asked.run, number=asked.number)


async def _computed(
    asked: m.Audit, shards: Shards, elsewhere: "Elsewhere", compute: Compute, is_wanted: Callable[[], bool]
) -> Taken | None:
    """Return the gradient sum of the audited units, or None if it is not finite."""
    if not await shards.ready([unit.shard for unit in (*asked.units, *asked.stale)], is_wanted):
        return None
    loss_sum, loss_tokens = 0.0, 0
    for number, unit in enumerate((*asked.units, *asked.stale)):
        if number == len(asked.units):
            await asyncio.to_thread(elsewhere.go_back)
        result = await compute(elsewhere, unit)
        if not isinstance(result, Computed) or not is_wanted():
            return None
        loss_sum, loss_tokens = loss_sum + result.loss_sum, loss_tokens + sum(result.loss_tokens)
    return Taken(elsewhere.take_sum(), loss_tokens, loss_sum, ())


def sketch_for(asked: m.Audit, grid: Grid, taken: Taken) -> bytes:
    """Return the sketch that an audit asks for. Raises NotFinite if the gradient is not finite, or ValueError if the
    site's request does not fit the model.
    """
    if asked.chunk_elements != grid.chunk_elements or any(part.stop > grid.chunks for part in asked.parts):
        raise ValueError("the audit is of another model")
    return sketch_again(
        taken.gradient_sum, taken.loss_tokens, codec=asked.codec, grid=grid, parts=asked.parts, seed=asked.seed
    )
