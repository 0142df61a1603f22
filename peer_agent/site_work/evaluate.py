"""The held-out loss of a snapshot: what the model makes of data that nobody trains on."""

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

MOST_UNITS = 200_000  # loss units, from the beginning of what is held out: it lies in random order
TRIES = 2  # of a batch: the first one also loads what torch needs
BUDGET_S = 600.0  # that the loss may take, and about as long again what else a model is judged by


class Evaluated(Struct, frozen=True, kw_only=True):
    """Mean nats over so many loss units, and what else the recipe judges a model by."""

    loss: float
    units: int
    figures: dict[str, float]
    written: list[str] = []  # after each prompt, for as many as there was time


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
    """The held-out loss, with the objective of training. Raises Problem E107, E111, E310, E360, E361.

    `data`: the folder of what was prepared, for a recipe that writes: with its tokenizer it continues the prompts.
    Of a model that is too large for this processor, fewer samples are looked at: a half of them, a quarter.
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
    """What it writes; nothing where that fails: the loss is known by then."""
    try:
        return training_of(recipe).written(recipe, model, data, prompts)
    except (OSError, RuntimeError, ValueError):
        log.warning("the model wrote nothing", exc_info=True)
        return []


def affordable(model: torch.nn.Module, recipe: Recipe, shard: Shard) -> tuple[int, float]:
    """How many samples may be looked at in the budget, and about how many loss units they have; without end if all.

    Raises ValueError where there are none.
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


# A released model continues what a visitor has written, within bounds of time and memory.


class Written(Struct, frozen=True, kw_only=True):
    """What comes after a prompt. `is_whole`: the model has read all of that, and not its end alone."""

    text: str
    is_whole: bool


def write(folder: Path, prompt: str, *, tokens: int, seconds: float, seed: int, memory: int = 0) -> Written:
    """By the model of a release's folder, of at most so many tokens. Raises Problem E327.

    `memory`: bytes that this process may have, where the system can hold it to that; 0 for any number.
    """
    bound_memory(memory)
    try:
        from peer_agent.recipes.text.next_token import continuation  # takes memory too

        text, is_whole = continuation(folder, prompt, most=tokens, seconds=seconds, seed=seed)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        raise Problem.of("E327", reason=type(error).__name__) from error  # its words may name folders
    return Written(text=text, is_whole=is_whole)


def bound_memory(size: int) -> None:
    """Hold this process to so many bytes of its own from now on, where the system can."""
    if not size:
        return
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a system that knows no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
