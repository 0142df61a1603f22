"""Evaluate a snapshot on held-out data, and generate text with a released model."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.release import model_from
from peer_agent.recipes.training import NO_FILES, Shard, heldout_batches, training_of
from peer_agent.training.loop import mean_loss, memory_or_problem

log = logging.getLogger(__name__)

MOST_UNITS = 200_000  # most loss units used, from the start of the held-out data, which is in random order
TRIES = 2  # timed runs of a batch; the first also loads what torch needs
BUDGET_S = 600.0  # seconds for the loss; the other figures may take about as long again


class Evaluated(Struct, frozen=True, kw_only=True):
    """The mean loss in nats over `units` loss units, and the recipe's other figures."""

    loss: float
    units: int
    figures: dict[str, float]
    written: list[str] = []  # a text for each prompt, or for fewer if time ran out


def evaluate(
    *,
    recipe: Recipe,
    snapshot: Path,
    heldout: Path,
    most: int = MOST_UNITS,
    files: Path = NO_FILES,
    data: Path = NO_FILES,
    prompts: Sequence[str] = (),
) -> Evaluated:
    """Return a snapshot's held-out loss and figures.

    `most`: the maximum number of loss units. `data`: the prepared data, with the tokenizer for the prompts. If the
    model is too slow for this CPU, the number of samples is halved until they fit in the time budget.

    Raises Problem E107 if memory is short, E111 if the held-out file is malformed, or E310 if the snapshot belongs to
    another model. Raises E360 if the loss cannot be measured, or E361 if it is not finite.
    """
    shard = training_of(recipe).load_shard(heldout)
    with memory_or_problem():
        model = model_from(recipe, snapshot, files)
        try:
            samples, units = affordable(model, recipe, shard)
            mean = mean_loss(model, recipe, shard, torch.device("cpu"), most=min(most, units))
        except ValueError as error:
            raise Problem.of("E360", reason=error) from error
        if not math.isfinite(mean.loss):
            raise Problem.of("E361", loss=mean.loss)
        figures = training_of(recipe).figures_of(recipe, model, shard, mean.loss, samples)
        written = _written(recipe, model, data, prompts) if recipe.writes and prompts else []
    return Evaluated(loss=mean.loss, units=mean.units, figures=dict(figures), written=written)


def _written(recipe: Recipe, model: torch.nn.Module, data: Path, prompts: Sequence[str]) -> list[str]:
    """Return the model's continuations of the prompts.

    Return [] after an error, so that the measured loss is not discarded.
    """
    try:
        return training_of(recipe).written(recipe, model, data, prompts)
    except (OSError, RuntimeError, ValueError):
        log.warning("the model wrote nothing", exc_info=True)
        return []


def affordable(model: torch.nn.Module, recipe: Recipe, shard: Shard) -> tuple[int, float]:
    """Return how many samples fit in the time budget, and their loss units (infinity if all fit).

    Raises ValueError if there are no samples.
    """
    kind = training_of(recipe)
    whole, batch = recipe.samples_in(kind.size_of(shard)), next(heldout_batches(recipe, shard), None)
    if batch is None:
        raise ValueError("the data are too little to be evaluated")
    seconds = min(_seconds(lambda: kind.summed_loss(recipe, model, batch, torch.device("cpu"))) for _ in range(TRIES))
    samples, rows = whole, len(batch[0])
    while samples > recipe.micro_batch and seconds * samples / rows > BUDGET_S:
        samples //= 2
    return samples, math.inf if samples == whole else samples * kind.loss_units_in(batch) / rows


def _seconds(compute: Callable[[], object]) -> float:
    began = time.perf_counter()
    with torch.no_grad():
        compute()
    return time.perf_counter() - began


# A released model continues a visitor's prompt, within limits on time and memory.


class Written(Struct, frozen=True, kw_only=True):
    """The text that follows a prompt. `is_whole`: False if the model read only the end of a long prompt."""

    text: str
    is_whole: bool


def write(folder: Path, prompt: str, *, tokens: int, seconds: float, seed: int, memory: int = 0) -> Written:
    """Continue a prompt by up to `tokens` tokens.

    `memory`: limit in bytes; 0 means no limit. Raises Problem E327 if the model cannot be loaded or run within the
    limits.
    """
    bound_memory(memory)
    try:
        from peer_agent.recipes.text.next_token import continuation  # this import needs memory too

        text, is_whole = continuation(folder, prompt, most=tokens, seconds=seconds, seed=seed)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        # The error's text may contain names of folders.
        raise Problem.of("E327", reason=type(error).__name__) from error
    return Written(text=text, is_whole=is_whole)


def bound_memory(size: int) -> None:
    """Limit this process's memory from now on, if the operating system supports that. A `size` of 0 means no limit."""
    if not size:
        return
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows and some other systems lack this limit
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
