"""What else of a run is drawn over its steps: how fast, on how many machines, at which rate, how many bytes. Pure.

`frontend/src/charts.ts` has the same charts; the order of `QUANTITIES` is that of a point of the picture.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from peer_agent.plot import Frame, amount_text, chart_svg, lay_out
from runs.selectors import Point

LOSS = "loss"  # the chart that everybody sees first
WIDE = Frame(720, 280, left=60)  # labels are longer than those of losses
NARROW = Frame(340, 210, left=60)


class Quantity(NamedTuple):
    """One chart. `told`: what its values are, as the beginning of a sentence."""

    key: str
    name: str
    field: str  # of a point
    told: str
    unit: str = ""


QUANTITIES = (
    Quantity("speed", gettext_noop("Samples per second"), "samples_per_s", gettext_noop("Samples per second")),
    Quantity("machines", gettext_noop("Machines"), "machines", gettext_noop("Machines")),
    Quantity("rate", gettext_noop("Learning rate"), "learning_rate", gettext_noop("Learning rate")),
    Quantity("bytes", gettext_noop("Data per step"), "bytes_averaged", gettext_noop("Gradients averaged"), "B"),
)


def charts_of(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Those there is something to be seen of, and what each says; none where nothing but the loss is known."""
    found = ((quantity, values_of(points, quantity)) for quantity in QUANTITIES)
    return [
        {"key": each.key, "name": _(each.name), "summary": _summary(each, values)} for each, values in found if values
    ]


def chart_of(points: Sequence[Point], key: str, frame: Frame) -> str:
    """An `<svg>` of one; empty where there is none of this name, or nothing to be seen."""
    quantity = next((each for each in QUANTITIES if each.key == key), None)
    values = values_of(points, quantity) if quantity else []
    layout = lay_out(values, None, frame, amount=quantity.unit if quantity else "")
    return chart_svg(layout, _summary(quantity, values)) if layout and quantity else ""


def values_of(points: Sequence[Point], quantity: Quantity) -> list[tuple[int, float]]:
    """Step and value of the points that know it, of those whose loss is drawn too."""
    found = ((point, getattr(point, quantity.field)) for point in points if math.isfinite(point.loss))
    return [(point.step, value) for point, value in found if value is not None and math.isfinite(value)]


def _summary(quantity: Quantity, values: Sequence[tuple[int, float]]) -> str:
    """The newest value and the highest: what the chart says, for those who do not see it."""
    step, value = values[-1]
    highest_step, highest = max(values, key=lambda each: each[1])
    said = {"what": _(quantity.told), "step": f"{step:,}", "value": _amount(value, quantity)}
    if highest == value and len(values) == 1:
        return _("%(what)s in step %(step)s: %(value)s.") % said
    if highest == value:
        return _("%(what)s in step %(step)s: %(value)s, the highest so far.") % said
    said |= {"highest": _amount(highest, quantity), "highest_step": f"{highest_step:,}"}
    return _("%(what)s in step %(step)s: %(value)s; the highest was %(highest)s in step %(highest_step)s.") % said


def _amount(value: float, quantity: Quantity) -> str:
    """“1,204” of what is counted, “35.2”, “12.4 MB”."""
    return f"{value:,}" if isinstance(value, int) and not quantity.unit else amount_text(value, quantity.unit)
