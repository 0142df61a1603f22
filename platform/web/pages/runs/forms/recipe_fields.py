"""A recipe as fields of a form: bounds, choices and defaults come from its types, words from its kind and from here."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from django.utils.translation import gettext_noop
from msgspec import inspect

from peer_agent.protocol.recipe import NO_YES, Recipe, Words
from peer_agent.recipes import recipe_of

MODEL, STEPS, DETAILS = gettext_noop("Model"), gettext_noop("Steps"), gettext_noop("Advanced")
SMALLEST_POSITIVE = 1e-12  # stands for an open lower bound of zero


class RecipeField(NamedTuple):
    """One value. `path` leads from the recipe to it."""

    name: str
    path: tuple[str, ...]
    group: str
    label: str
    help: str
    default: Any
    choices: tuple[tuple[str, str], ...]
    is_whole: bool
    least: float
    most: float


COMMON: dict[str, tuple[Words, ...]] = {
    STEPS: (
        Words("target_steps", "target_steps", "Steps", "The run ends after this many steps."),
        Words("target_batch", "target_batch", "Target batch", "Samples per step, from all machines together."),
        Words("micro_batch", "micro_batch", "Micro batch", "Samples a machine computes at a time."),
        Words(
            "minimum_trainers", "minimum_trainers", "Machines to start", "The first step waits for this many machines."
        ),
        Words("learning_rate", "optimizer.learning_rate", "Learning rate", "Peak value, after the warm-up."),
        Words("warmup_steps", "optimizer.warmup_steps", "Warm-up", "Steps until the learning rate peaks."),
    ),
    DETAILS: (
        Words("optimizer", "optimizer.name", "Optimizer", "LAMB for large batches, AdamW for fine-tuning."),
        Words("decay", "optimizer.decay", "Decay", "How the learning rate decreases."),
        Words("final_ratio", "optimizer.final_ratio", "Final ratio", "Final learning rate divided by the peak."),
        Words("beta1", "optimizer.beta1", "Beta 1"),
        Words("beta2", "optimizer.beta2", "Beta 2"),
        Words("epsilon", "optimizer.epsilon", "Epsilon", "Too small a value makes AdamW unstable on rare tokens."),
        Words("weight_decay", "optimizer.weight_decay", "Weight decay"),
        Words(
            "clip_norm",
            "optimizer.clip_norm",
            "Clip norm",
            "Limit for the norm of the averaged gradient. 0 = no clipping.",
        ),
        Words("snapshot_every", "snapshot_every", "Snapshot every", "Steps between snapshots."),
        Words("codec_up", "codec_up", "Codec up", "Format of uploaded gradients: fewer bits, less traffic."),
        Words("codec_down", "codec_down", "Codec down", "Format of downloaded averages."),
        Words(
            "staleness",
            "staleness",
            "Overlap",
            "Keep computing while gradients are averaged: faster on slow connections, slightly less exact.",
            NO_YES,
        ),
        Words(
            "contributors",
            "contributors",
            "Contributors",
            "Work from a skipped step counts in the next one.",
            (("all", "Everyone, every step"), ("fast", "Slow connections every other step")),
        ),
        Words(
            "codecs",
            "codecs",
            "Slow connections",
            "Compress more on slow connections.",
            (("stated", "no"), ("plan", "yes")),
        ),
        Words(
            "precision",
            "precision",
            "Precision",
            "Mixed: GPUs use 16-bit gradients. Faster, slightly less exact.",
            (("fp32", "full"), ("mixed", "mixed")),
        ),
        Words("seed", "seed", "Seed", "Determines the initial parameters."),
    ),
}


@cache
def fields_of(kind: type[Recipe]) -> tuple[RecipeField, ...]:
    """Every value of a kind of recipe that an organizer chooses, in the order of the form."""
    groups = {MODEL: kind.words, **COMMON}
    return tuple(_described(kind, group, words) for group, all_words in groups.items() for words in all_words)


def recipe_from(kind: type[Recipe], values: Mapping[str, Any]) -> Recipe:
    """The recipe of a filled-in form; what was left empty has its default. Raises Problem E301."""
    tree: dict[str, Any] = {"objective": kind().objective}
    for field in fields_of(kind):
        *parents, leaf = field.path
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        value = values.get(field.name)
        branch[leaf] = field.default if value in (None, "") else _typed(field, value)
    return recipe_of(tree)


def values_of(recipe: Recipe) -> dict[str, Any]:
    """The other way round: by field."""
    return {field.name: _at(recipe, field.path) for field in fields_of(type(recipe))}


def _at(struct: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        struct = getattr(struct, part)
    return struct


def _typed(field: RecipeField, value: Any) -> Any:
    """A form's choice is text, also where it is a number."""
    return type(field.default)(value) if field.choices else value


def _described(kind: type[Recipe], group: str, words: Words) -> RecipeField:
    path = tuple(words.path.split("."))
    usual = kind()
    struct = type(_at(usual, path[:-1]))
    field = next(field for field in msgspec.structs.fields(struct) if field.name == path[-1])
    found = inspect.type_info(field.type)
    values = tuple(map(str, found.values)) if isinstance(found, inspect.LiteralType) else ()
    least, most = _bounds(found)
    return RecipeField(
        name=words.name,
        path=path,
        group=group,
        label=words.label,
        help=words.help,
        default=_at(usual, path),
        choices=words.choices or tuple((value, value) for value in values),
        is_whole=isinstance(found, inspect.IntType),
        least=least,
        most=most,
    )


def _bounds(kind: inspect.Type) -> tuple[float, float]:
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return 0, 0
    least = kind.ge if kind.ge is not None else SMALLEST_POSITIVE
    most = kind.le if kind.le is not None else 1 - 1e-9  # an open upper bound of one
    return least, most
