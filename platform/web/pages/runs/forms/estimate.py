"""What a recipe takes, before there is anything: its size, memory of a machine, bytes and seconds of a step."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from peer_agent.machine.language import in_bytes
from peer_agent.machine.limits import RESERVE_PERCENT
from peer_agent.machine.preflight import ELEMENT, REPLICA, Needs, needs_of
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import KINDS
from web.pages.runs.forms.recipe_fields import fields_of, recipe_from

UPLINKS = (10, 30, 100)  # Mb/s, of homes; downlinks are at least as wide
CROWD = 20  # machines, with the middle one of these uplinks …
SPEEDS = {"laptops": 5e10, "gaming PCs": 5e12}  # … and of so many operations each second: a half of what they could do
SHORT_S = 1.0
NOT_COUNTED = (
    gettext_lazy("Not included"),
    gettext_lazy("plus the base model itself: 4 bytes of memory per parameter, plus its file size on disk"),
)


class Estimate(NamedTuple):
    """Of a machine that computes on its processor, and of one with a GPU. Bytes of a step are one machine's."""

    parameters: int
    on_cpu: Needs
    on_gpu: Needs
    up: int
    down: int
    snapshot: int
    seconds: dict[int, float]  # that averaging takes, by uplink in Mb/s
    crowds: dict[str, float]  # seconds of a step, by who is in it; empty where nobody has counted the operations
    lacks_base: bool = False  # it adapts a model of which nothing is known yet


def estimate_of(recipe: Recipe) -> Estimate:
    """Where codecs are left to the plan, slow links send less than is said here."""
    parameters = recipe.parameters()
    on_cpu, on_gpu = (needs_of(recipe, parameters, at_once=recipe.micro_batch, on_gpu=gpu) for gpu in (False, True))
    up, down = (encoded_size(codec, parameters) for codec in (recipe.codec_up, recipe.codec_down))
    spent = {mbit: seconds(up, down, mbit) for mbit in UPLINKS}
    lacks_base = recipe.material.adapts is not None and not recipe.files()
    crowds = _crowds(recipe, spent[UPLINKS[1]])
    return Estimate(parameters, on_cpu, on_gpu, up, down, REPLICA * ELEMENT * parameters, spent, crowds, lacks_base)


def _crowds(recipe: Recipe, averaging_s: float) -> dict[str, float]:
    """Machines compute one after the other what is averaged, or meanwhile what is averaged next."""
    operations = recipe.operations(recipe.target_batch)
    computing = {who: operations / (CROWD * speed) for who, speed in SPEEDS.items()} if operations else {}
    both = max if recipe.staleness else lambda *parts: sum(parts)
    return {who: both(spent, averaging_s) for who, spent in computing.items()}


def seconds(up: int, down: int, mbit: int) -> float:
    """Of a machine that averages nothing for others: both ways at once, without what its household keeps.

    A downlink as narrow as the uplink: a home's is rarely narrower.
    """
    return 8 * max(up / (1 - RESERVE_PERCENT / 100), down) / (mbit * 1e6)


def rows_of(estimate: Estimate, steps: int | None = None) -> list[tuple[str, str]]:
    """In words, a line each. `steps`: where they are stated, not set from the data."""
    traffic = _("%(up)s up, %(down)s down") % {"up": in_bytes(estimate.up), "down": in_bytes(estimate.down)}
    told = {mbit: _time(spent) for mbit, spent in estimate.seconds.items()}
    first = {words: mbit for mbit, words in reversed(told.items())}  # faster links for which the same is said: left out
    times = _(", ").join(
        _("%(time)s at %(mbit)s Mb/s") % {"time": words, "mbit": mbit}
        for mbit, words in told.items()
        if first[words] == mbit
    )
    return [
        (_("Parameters"), _about(f"{estimate.parameters:,}")),
        (_("Memory per machine"), _about(in_bytes(estimate.on_cpu.memory))),
        (
            _("With a GPU"),
            _("%(gpu)s GPU memory and %(memory)s RAM")
            % {"gpu": in_bytes(estimate.on_gpu.gpu), "memory": in_bytes(estimate.on_gpu.memory)},
        ),
        (_("Traffic per machine and step"), traffic),
        (_("Averaging time, by upload speed"), times),
        *((_who(who), _crowd(spent, steps)) for who, spent in estimate.crowds.items()),
        (_("First download"), _("%(bytes)s plus training data") % {"bytes": in_bytes(estimate.snapshot)}),
        *([(str(NOT_COUNTED[0]), str(NOT_COUNTED[1]))] if estimate.lacks_base else []),
    ]


def _crowd(spent: float, steps: int | None) -> str:
    if not steps:
        return _("%(time)s per step") % {"time": _time(spent)}
    facts = {"time": _time(spent), "steps": f"{steps:,}", "whole": _long(spent * steps)}
    return _("%(time)s per step; %(steps)s steps in %(whole)s") % facts


def _who(crowd: str) -> str:
    named = {"laptops": _("%(number)s laptops"), "gaming PCs": _("%(number)s gaming PCs")}
    return named[crowd] % {"number": CROWD}


def _about(amount: str) -> str:
    return _("about %(amount)s") % {"amount": amount}


def _long(spent: float) -> str:
    """As in `about 3 hours`."""
    for message, length in (
        (_("about %(number)s days"), 86_400),
        (_("about %(number)s hours"), 3600),
        (_("about %(number)s minutes"), 60),
    ):
        if spent >= 2 * length:
            return message % {"number": f"{spent / length:.0f}"}
    return _("less than two minutes")


def _time(spent: float) -> str:
    if spent < SHORT_S:
        return _("less than a second")
    if spent < 120:
        return _("%(seconds)s s") % {"seconds": f"{spent:.0f}"}
    return _("%(minutes)s min") % {"minutes": f"{spent / 60:.0f}"}


def recipe_in(values: Mapping[str, str]) -> Recipe | None:
    """What the fields of a form say, as a browser sends them; None where they say nothing that there can be."""
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
    """The steps that a form states; None where it leaves them to the size of the data."""
    return recipe.target_steps if values.get("target_steps", "").strip() else None


@login_required
@require_safe
def recipe_estimate(request: HttpRequest) -> HttpResponse:
    """The rows of the card, for a form that changes."""
    recipe = recipe_in(request.GET.dict())
    rows = rows_of(estimate_of(recipe), steps_in(request.GET, recipe)) if recipe is not None else []
    return render(request, "web/runs/form_parts/estimate_rows.html", {"rows": rows})
