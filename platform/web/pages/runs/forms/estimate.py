"""What a recipe takes, before there is anything: its size, memory of a machine, bytes and seconds of a step."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from peer_agent.machine.limits import RESERVE_PERCENT
from peer_agent.machine.memory_estimate import ELEMENT, REPLICA, Needs, needs_of
from peer_agent.machine.sizes import in_bytes
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import KINDS
from web.pages.runs.forms.recipe_fields import fields_of, recipe_from

UPLINKS = (10, 30, 100)  # Mb/s, of homes; downlinks are at least as wide
SHORT_S = 1.0
NOT_COUNTED = ("Not counted yet", "the model that it adapts: eight bytes of memory for each parameter")


class Estimate(NamedTuple):
    """Of a machine that computes on its processor, and of one with a GPU. Bytes of a step are one machine's."""

    parameters: int
    on_cpu: Needs
    on_gpu: Needs
    up: int
    down: int
    snapshot: int
    seconds: dict[int, float]  # that averaging takes, by uplink in Mb/s
    lacks_base: bool = False  # it adapts a model of which nothing is known yet


def estimate_of(recipe: Recipe) -> Estimate:
    """Where codecs are left to the plan, slow links send less than is said here."""
    parameters = recipe.parameters()
    on_cpu, on_gpu = (needs_of(recipe, parameters, at_once=recipe.micro_batch, on_gpu=gpu) for gpu in (False, True))
    up, down = (encoded_size(codec, parameters) for codec in (recipe.codec_up, recipe.codec_down))
    spent = {mbit: seconds(up, down, mbit) for mbit in UPLINKS}
    lacks_base = recipe.material.adapts is not None and not recipe.files()
    return Estimate(parameters, on_cpu, on_gpu, up, down, REPLICA * ELEMENT * parameters, spent, lacks_base)


def seconds(up: int, down: int, mbit: int) -> float:
    """Of a machine that averages nothing for others: both ways at once, without what its household keeps.

    A downlink as narrow as the uplink: a home's is rarely narrower.
    """
    return 8 * max(up / (1 - RESERVE_PERCENT / 100), down) / (mbit * 1e6)


def rows_of(estimate: Estimate) -> list[tuple[str, str]]:
    """In words, a line each."""
    traffic = f"{in_bytes(estimate.up)} up and {in_bytes(estimate.down)} down"
    times = ", ".join(f"{_time(spent)} at {mbit} Mb/s" for mbit, spent in estimate.seconds.items())
    return [
        ("Parameters", f"about {estimate.parameters:,}"),
        ("Memory of a machine", f"about {in_bytes(estimate.on_cpu.memory)}"),
        ("With a GPU", f"about {in_bytes(estimate.on_gpu.gpu)} on it, {in_bytes(estimate.on_gpu.memory)} beside it"),
        ("A machine's traffic in a step", traffic),
        ("Averaging, by uplink", times),
        ("What a newcomer loads", f"{in_bytes(estimate.snapshot)}, and what it learns from"),
        *([NOT_COUNTED] if estimate.lacks_base else []),
    ]


def _time(spent: float) -> str:
    if spent < SHORT_S:
        return "less than a second"
    return f"{spent:.0f} s" if spent < 120 else f"{spent / 60:.0f} min"


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


@login_required
@require_safe
def recipe_estimate(request: HttpRequest) -> HttpResponse:
    """The rows of the card, for a form that changes."""
    recipe = recipe_in(request.GET.dict())
    rows = rows_of(estimate_of(recipe)) if recipe is not None else []
    return render(request, "web/runs/form_parts/estimate_rows.html", {"rows": rows})
