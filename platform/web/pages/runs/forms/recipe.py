"""A recipe as form fields, and an estimate of what it needs: memory per machine, and bytes and seconds per step.

The bounds, choices and defaults come from the recipe's types; the texts come from the kind of recipe and this module.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop
from django.views.decorators.http import require_safe
from msgspec import inspect

from peer_agent.machine.limits import RESERVE_PERCENT
from peer_agent.machine.preflight import ELEMENT, REPLICA, Needs, needs_of
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import NO_YES, Recipe, Words
from peer_agent.recipes import KINDS, recipe_of
from web.run_picture import counts
from web.words import in_bytes

UPLINKS = (10, 30, 100)  # homes' upload speeds in Mb/s; download speeds are assumed to be no lower
CROWD = 20  # number of machines assumed unless a size states it; each has the middle speed in UPLINKS
SPEEDS = {"laptops": 5e10, "gaming PCs": 5e12}  # operations per second assumed for each kind of machine: half its peak
SHORT_S = 1.0
NOT_COUNTED = (
    gettext_lazy("Not included"),
    gettext_lazy("the base model itself: 4 bytes of memory per parameter, plus its file size on disk"),
)
ROUND_S = 0.4  # seconds per step for messages between homes and the site and for applying the update
LAPTOPS = {  # how many laptops each recipe size is meant for
    "Minutes on two laptops": 2,
    "An evening with ten laptops": 10,
    "A week with fifty laptops": 50,
    "A month with two hundred laptops": 200,
}
PER_STEPS = 1000  # steps covered by an estimate if their number depends on the data
MODEL, STEPS, DETAILS = gettext_noop("Model"), gettext_noop("Steps"), gettext_noop("Advanced")
SMALLEST_POSITIVE = 1e-12  # stands for an open lower bound of zero


class RecipeField(NamedTuple):
    """One of a recipe's values as a form field. `path` has the names of the attributes leading to the value."""

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
        Words("micro_batch", "micro_batch", "Micro batch", "Samples a machine processes at a time."),
        Words(
            "minimum_trainers",
            "minimum_trainers",
            "Machines needed to start",
            "The first step waits for this many machines.",
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
        Words("snapshot_every", "snapshot_every", "Snapshot interval", "Steps between snapshots."),
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
            "Slow machines may miss a step; their work counts toward the next one.",
            (("all", "Everyone, every step"), ("fast", "Slow connections every other step")),
        ),
        Words(
            "rule",
            "rule",
            "Averaging",
            "The other rules withstand more false gradients, but learn a little more slowly.",
            (
                ("mean", "Mean"),
                ("geometric median", "Geometric median"),
                ("centered clip", "Centered clipping"),
            ),
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


SHOWN = {  # words for values that are names in a recipe
    "adamw": "AdamW",
    "albert": "ALBERT",
    "all": gettext_noop("all layers"),
    "any": gettext_noop("any language"),
    "attention": gettext_noop("attention only"),
    "bengali": gettext_noop("Bengali"),
    "bert": "BERT",
    "bpe": gettext_noop("byte pairs (BPE)"),
    "constant": gettext_noop("not at all"),
    "cosine": gettext_noop("along a cosine"),
    "fp16": gettext_noop("16 bits"),
    "fp32": gettext_noop("32 bits (exact)"),
    "gpt2": "GPT-2",
    "int4": gettext_noop("4 bits"),
    "int8": gettext_noop("8 bits"),
    "lamb": "LAMB",
    "larc": "LARC",
    "linear": gettext_noop("in a straight line"),
    "llama": "Llama",
    "qwen3": "Qwen",
    "resnet10": "ResNet-10",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "sgd": "SGD",
    "unigram": gettext_noop("unigram"),
}


def help_with(field: RecipeField, recipe: Recipe) -> str:
    """Return a field's help text, or "" if it does not apply to the form's initial values."""
    optimizer = recipe.optimizer
    if field.name == "optimizer":
        return field.help if optimizer.name == "lamb" else ""
    if field.name == "epsilon" and optimizer.epsilon == type(recipe)().optimizer.epsilon:
        return ""
    return field.help


@cache
def fields_of(kind: type[Recipe]) -> tuple[RecipeField, ...]:
    """Return a field for each value that an organizer chooses in a kind of recipe, in the form's order."""
    groups = {MODEL: kind.words, **COMMON}
    return tuple(_described(kind, group, words) for group, all_words in groups.items() for words in all_words)


def recipe_from(kind: type[Recipe], values: Mapping[str, Any]) -> Recipe:
    """Return the recipe described by a form's values, with defaults for empty fields.

    Raises Problem E301 if a value is invalid or two values do not fit together.
    """
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
    return {field.name: _at(recipe, field.path) for field in fields_of(type(recipe))}


def written_values(recipe: Recipe, *, automatic_steps: bool) -> dict[str, str]:
    """Return a recipe's values as shown in a form. If the number of steps is automatic, its field is empty."""
    written = {name: str(value) for name, value in values_of(recipe).items()}
    return written | ({"target_steps": ""} if automatic_steps else {})


def resized(said: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return a form's values after the user has chosen another size. Values that the user has typed are kept.

    `before` has the values that the form was shown with, `after` those of the chosen size. An empty field counts as
    untouched, except the number of steps, which the user may have emptied on purpose.
    """
    kept = {}
    for name, value in after.items():
        typed = said.get(name)
        is_left_empty = typed is None or (not typed.strip() and name != "target_steps")
        kept[name] = value if is_left_empty or typed == before.get(name) else str(typed)
    return kept


def _at(struct: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        struct = getattr(struct, part)
    return struct


def _typed(field: RecipeField, value: Any) -> Any:
    """Convert a field's value to the recipe's type, since forms return choices as text."""
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
        choices=words.choices or tuple((value, SHOWN.get(value, value)) for value in values),
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


class Estimate(NamedTuple):
    """An estimate of what a machine needs, with and without a GPU.

    `up` and `down` are in bytes per step; `snapshot` is in bytes.
    """

    parameters: int
    on_cpu: Needs
    on_gpu: Needs
    up: int
    down: int
    snapshot: int
    seconds: dict[int, float]  # averaging time in seconds, by upload speed in Mb/s
    crowds: dict[str, float]  # seconds per step by kind of machine; empty if the operation count is unknown
    lacks_base: bool = False  # the recipe adapts a model that has not been chosen yet
    writes: bool = False  # the model is trained from scratch to continue texts
    machines: int = CROWD  # number of machines assumed by `crowds`


def estimate_of(recipe: Recipe, machines: int = 0) -> Estimate:
    """Estimate what a recipe needs on this many machines, or on `CROWD` machines if the number is 0.

    If the recipe compresses more on slow connections, machines there send less than estimated.
    """
    machines = machines or CROWD
    parameters = recipe.parameters()
    on_cpu, on_gpu = (needs_of(recipe, parameters, at_once=recipe.micro_batch, on_gpu=gpu) for gpu in (False, True))
    up, down = (encoded_size(codec, parameters) for codec in (recipe.codec_up, recipe.codec_down))
    spent = {mbit: seconds(up, down, mbit) for mbit in UPLINKS}
    lacks_base = recipe.material.adapts is not None and not recipe.files()
    crowds = _crowds(recipe, spent[UPLINKS[1]], machines)
    writes, snapshot = recipe.writes and recipe.material.adapts is None, REPLICA * ELEMENT * parameters
    return Estimate(parameters, on_cpu, on_gpu, up, down, snapshot, spent, crowds, lacks_base, writes, machines)


def _crowds(recipe: Recipe, averaging_s: float, machines: int) -> dict[str, float]:
    """Return the seconds per step, by kind of machine.

    A step takes `ROUND_S` plus the times for computing and averaging or, if these overlap, the longer of the two.
    """
    operations = recipe.operations(recipe.target_batch)
    computing = {who: operations / (machines * speed) for who, speed in SPEEDS.items()} if operations else {}
    both = max if recipe.staleness else lambda *parts: sum(parts)
    return {who: ROUND_S + both(spent, averaging_s) for who, spent in computing.items()}


def seconds(up: int, down: int, mbit: int) -> float:
    """Return the seconds that a machine takes in each step to send `up` bytes and receive `down` bytes, both at once.

    The machine averages nothing for others and leaves the household's share of the upload speed unused. Its download
    is assumed to be as fast as its upload. `mbit` is the speed in Mb/s.
    """
    return 8 * max(up / (1 - RESERVE_PERCENT / 100), down) / (mbit * 1e6)


def rows_of(estimate: Estimate, steps: int | None = None) -> list[tuple[str, str]]:
    """Return the estimate as text, one row per figure.

    `steps` is the number that the organizer entered; None means that it is derived from the data.
    """
    traffic = _("%(up)s up, %(down)s down") % {"up": in_bytes(estimate.up), "down": in_bytes(estimate.down)}
    told = {mbit: _time(spent) for mbit, spent in estimate.seconds.items()}
    first = {words: mbit for mbit, words in reversed(told.items())}  # leaves out faster links with the same text
    times = _(", ").join(
        _("%(time)s at %(mbit)s Mb/s") % {"time": words, "mbit": mbit}
        for mbit, words in told.items()
        if first[words] == mbit
    )
    return [
        (_("Parameters"), _about(f"{estimate.parameters:,}")),
        *([(_("It will write"), _quality(estimate.parameters))] if estimate.writes else []),
        (_("Memory per machine"), _about(in_bytes(estimate.on_cpu.memory))),
        (
            _("With a GPU"),
            _("%(gpu)s GPU memory and %(memory)s RAM")
            % {"gpu": in_bytes(estimate.on_gpu.gpu), "memory": in_bytes(estimate.on_gpu.memory)},
        ),
        (_("Traffic per machine and step"), traffic),
        (_("Averaging time, by upload speed"), times),
        *((_who(who, estimate.machines), _crowd(spent, steps)) for who, spent in estimate.crowds.items()),
        (_("First download"), _("%(bytes)s plus training data") % {"bytes": in_bytes(estimate.snapshot)}),
        *([(str(NOT_COUNTED[0]), str(NOT_COUNTED[1]))] if estimate.lacks_base else []),
    ]


def headline_of(estimate: Estimate, steps: int | None = None) -> str:
    """Return text such as “About 3 hours with 20 laptops”, or "" if the training time cannot be estimated."""
    if "laptops" not in estimate.crowds:
        return ""
    facts = {"time": _long(estimate.crowds["laptops"] * (steps or PER_STEPS)), "number": estimate.machines}
    words = _("%(time)s with %(number)s laptops") % facts
    return words[:1].upper() + words[1:]


def duration_of(estimate: Estimate, steps: int | None = None) -> str:
    """Return text such as “about 3 hours”, or "" if the training time cannot be estimated."""
    if "laptops" not in estimate.crowds:
        return ""
    time = _long(estimate.crowds["laptops"] * (steps or PER_STEPS))
    return time if steps else _("%(time)s for %(steps)s steps") % {"time": time, "steps": f"{PER_STEPS:,}"}


def _crowd(spent: float, steps: int | None) -> str:
    if not steps:
        return _("%(time)s per step") % {"time": _time(spent)}
    facts = {"time": _time(spent), "steps": counts.steps(steps), "whole": _long(spent * steps)}
    return _("%(time)s per step; %(steps)s in %(whole)s") % facts


def _who(crowd: str, machines: int) -> str:
    named = {"laptops": _("%(number)s laptops"), "gaming PCs": _("%(number)s gaming PCs")}
    return named[crowd] % {"number": machines}


def _quality(parameters: int) -> str:
    """Return text on what a model of this size can be expected to write once it has learned from enough text."""
    for most, words in (
        (3e6, _("words and short phrases")),
        (4e7, _("simple sentences")),
        (2e8, _("fluent sentences with few facts")),
    ):
        if parameters < most:
            return words
    return _("fluent paragraphs with some facts")


def _about(amount: str) -> str:
    return _("about %(amount)s") % {"amount": amount}


def _long(spent: float) -> str:
    """Return a duration as text, such as “about 3 hours”."""
    for message, length, least in (
        (_("about %(number)s years"), 365 * 86_400, 2),
        (_("about %(number)s days"), 86_400, 1.5),
        (_("about a day"), 86_400, 1),
        (_("about %(number)s hours"), 3600, 2),
        (_("about %(number)s minutes"), 60, 2),
    ):
        if spent >= least * length:
            return message % {"number": f"{spent / length:.0f}"}
    return _("less than two minutes")


def _time(spent: float) -> str:
    if spent < SHORT_S:
        return _("less than a second")
    if spent < 120:
        return _("%(seconds)s s") % {"seconds": f"{spent:.0f}"}
    return _("%(minutes)s min") % {"minutes": f"{spent / 60:.0f}"}


def recipe_in(values: Mapping[str, str]) -> Recipe | None:
    """Return the recipe from form fields as sent by a browser, or None if a value is invalid."""
    kind = KINDS.get(values.get("objective", ""))
    if kind is None:
        return None
    typed: dict[str, Any] = {}
    try:
        for field in fields_of(kind):
            said = values.get(field.name, "").strip()
            typed[field.name] = said if field.choices or not said else (int if field.is_whole else float)(said)
        return recipe_from(kind, typed)
    except (Problem, ValueError):
        return None


def steps_in(values: Mapping[str, str], recipe: Recipe) -> int | None:
    """Return the number of steps entered in a form, or None if it depends on the size of the data."""
    return recipe.target_steps if values.get("target_steps", "").strip() else None


def shown_estimate(recipe: Recipe | None, steps: int | None, size: str = "") -> dict[str, Any]:
    """Return the estimate to show for a recipe, based on the number of machines that its size is meant for."""
    if recipe is None:
        return {}
    estimate = estimate_of(recipe, LAPTOPS.get(size, 0))
    rows = rows_of(estimate, steps)
    first = [row for row in rows if row[0] in (_("Parameters"), _("It will write"), _("Memory per machine"))]
    return {
        "headline": headline_of(estimate, steps),
        "is_open_ended": not steps,
        "per_steps": PER_STEPS,
        "rows": first,
        "more": [row for row in rows if row not in first],
    }


def card_facts(recipe: Recipe, size: str, *, is_automatic: bool) -> dict[str, Any]:
    """Return the facts on a size's card: the expected quality, and the time, parameters and memory that it needs."""
    estimate = estimate_of(recipe, LAPTOPS.get(size, 0))
    memory = _("%(memory)s of memory") % {"memory": in_bytes(estimate.on_cpu.memory)}
    quality = _("Writes %(quality)s.") % {"quality": _quality(estimate.parameters)} if estimate.writes else ""
    time = duration_of(estimate, None if is_automatic else recipe.target_steps)
    if time and size not in LAPTOPS:
        time = _("%(time)s with %(number)s laptops") % {"time": time, "number": estimate.machines}
    return {"quality": quality, "facts": [each for each in (time, _parameters(estimate.parameters), memory) if each]}


def _parameters(count: int) -> str:
    """Return a number of parameters rounded to three digits."""
    if count >= 1e6:
        return _("%(number)s million parameters") % {"number": f"{count / 1e6:.3g}"}
    return _("%(number)s parameters") % {"number": f"{round(count, 3 - len(str(count))):,}"}


@login_required
@require_safe
def recipe_estimate(request: HttpRequest) -> HttpResponse:
    recipe = recipe_in(request.GET.dict())
    steps = steps_in(request.GET, recipe) if recipe is not None else None
    facts = {"estimate": shown_estimate(recipe, steps, request.GET.get("size", ""))}
    return render(request, "web/runs/form_parts/estimate_rows.html", facts)
