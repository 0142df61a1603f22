"""The recipe as fields of a form: bounds, choices and defaults come from its types, words from here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Model, Optimizer, Recipe, checked

MODEL, STEPS, DETAILS = "Model", "Steps", "Details"
STRUCTS: dict[str, type[msgspec.Struct]] = {"": Recipe, "model": Model, "optimizer": Optimizer}
SMALLEST_POSITIVE = 1e-12  # stands for an open lower bound of zero


class RecipeField(NamedTuple):
    """One value. `path` leads from the recipe to it."""

    name: str
    path: tuple[str, ...]
    group: str
    label: str
    help: str
    default: Any
    choices: tuple[str, ...]
    is_whole: bool
    least: float
    most: float


WORDS: tuple[tuple[str, str, str, str, str], ...] = (
    ("family", "model.family", MODEL, "Family", "GPT-2 is the simplest; Llama is what most tools expect today."),
    ("layers", "model.layers", MODEL, "Layers", "2 to 4 learn on laptops within the hour."),
    ("width", "model.width", MODEL, "Width", "A multiple of the heads."),
    ("heads", "model.heads", MODEL, "Heads", ""),
    ("context", "model.context", MODEL, "Context", "Tokens in a sample: how far the model looks back."),
    ("vocab", "vocab", MODEL, "Vocabulary", "Pieces that words are cut into; fewer suit a small text."),
    ("target_steps", "target_steps", STEPS, "Steps", "The run is finished after these."),
    ("target_batch", "target_batch", STEPS, "Target batch", "Samples in a step, from all machines together."),
    ("micro_batch", "micro_batch", STEPS, "Micro batch", "Samples that one machine takes at a time."),
    ("minimum_trainers", "minimum_trainers", STEPS, "Machines to begin", "The first round waits for that many."),
    ("learning_rate", "optimizer.learning_rate", STEPS, "Learning rate", "At its peak, after the warm-up."),
    ("warmup_steps", "optimizer.warmup_steps", STEPS, "Warm-up", "Steps until the learning rate is at its peak."),
    ("optimizer", "optimizer.name", DETAILS, "Optimizer", "LAMB is made for large batches."),
    ("decay", "optimizer.decay", DETAILS, "Decay", "How the learning rate falls."),
    (
        "final_ratio",
        "optimizer.final_ratio",
        DETAILS,
        "Final ratio",
        "Learning rate at the end, as a part of the peak.",
    ),
    ("beta1", "optimizer.beta1", DETAILS, "Beta 1", ""),
    ("beta2", "optimizer.beta2", DETAILS, "Beta 2", ""),
    ("epsilon", "optimizer.epsilon", DETAILS, "Epsilon", "Below 1e-6 AdamW moves rare tokens by rounding noise."),
    ("weight_decay", "optimizer.weight_decay", DETAILS, "Weight decay", ""),
    ("clip_norm", "optimizer.clip_norm", DETAILS, "Clip norm", "Of the averaged gradient; 0 means never."),
    ("snapshot_every", "snapshot_every", DETAILS, "Snapshot every", "Steps between states that a newcomer loads."),
    ("codec_up", "codec_up", DETAILS, "Codec up", "How gradients travel: fewer bits, less traffic."),
    ("codec_down", "codec_down", DETAILS, "Codec down", "How averages travel."),
    (
        "staleness",
        "staleness",
        DETAILS,
        "Staleness",
        "1: machines compute on while averages travel. Faster where links are slow, a little less exact.",
    ),
    (
        "contributors",
        "contributors",
        DETAILS,
        "Contributors",
        "With fast, a machine whose link is too slow sits out every other round; its work is kept for the next.",
    ),
    (
        "codecs",
        "codecs",
        DETAILS,
        "Codecs",
        "With plan, slow links send fewer bits than is said above; with stated, everybody sends as said.",
    ),
    ("seed", "seed", DETAILS, "Seed", "Fixes the first parameters."),
)


def recipe_from(values: Mapping[str, Any]) -> Recipe:
    """The recipe of a filled-in form; what was left empty has its default. Raises Problem E301."""
    tree: dict[str, Any] = {}
    for field in FIELDS:
        *parents, leaf = field.path
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        value = values.get(field.name)
        branch[leaf] = field.default if value in (None, "") else _typed(field, value)
    try:
        return checked(msgspec.convert(tree, Recipe))
    except msgspec.ValidationError as error:
        raise Problem.of("E301", reason=error) from error


def _typed(field: RecipeField, value: Any) -> Any:
    """A form's choice is text, also where it is a number."""
    return type(field.default)(value) if field.choices else value


def _described(name: str, path: str, group: str, label: str, help_text: str) -> RecipeField:
    *parents, leaf = path.split(".")
    struct = STRUCTS[".".join(parents)]
    field = next(field for field in msgspec.structs.fields(struct) if field.name == leaf)
    kind = inspect.type_info(field.type)
    choices = tuple(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else ()
    least, most = _bounds(kind)
    return RecipeField(
        name=name,
        path=(*parents, leaf),
        group=group,
        label=label,
        help=help_text,
        default=field.default,
        choices=choices,
        is_whole=isinstance(kind, inspect.IntType),
        least=least,
        most=most,
    )


def _bounds(kind: inspect.Type) -> tuple[float, float]:
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return 0, 0
    least = kind.ge if kind.ge is not None else SMALLEST_POSITIVE
    most = kind.le if kind.le is not None else 1 - 1e-9  # an open upper bound of one
    return least, most


FIELDS: tuple[RecipeField, ...] = tuple(_described(*words) for words in WORDS)
