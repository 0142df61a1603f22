"""Charts and sentences that show the loss and other quantities over a run's steps. Pure functions.

`frontend/src/charts.ts` draws the same charts. Its points have step, loss and time, then the values of `QUANTITIES`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from peer_agent.plot import Frame, Layout, amount_text, beyond, chart_svg, lay_out, perplexity_text
from peer_agent.publishing.card import figure
from runs.selectors import Measured, Point

WIDE = Frame(720, 280)
NARROW = Frame(340, 150)
LOSS = "loss"  # the chart shown first
WIDE_FURTHER = Frame(720, 280, left=60)  # labels are longer than for losses
NARROW_FURTHER = Frame(340, 150, left=60)


def laid_out(
    points: Sequence[Point],
    entropy: float | None,
    frame: Frame,
    heldout: Sequence[Measured] = (),
    *,
    as_perplexity: bool = False,
) -> Layout | None:
    """Return the layout of a run's loss curve, or None if there are no points yet. Losses are in nats per token."""
    held = [(point.step, point.loss) for point in heldout]
    losses = [(point.step, point.loss) for point in points]
    return lay_out(losses, entropy, frame, heldout=held, as_perplexity=as_perplexity)


def loss_chart(
    points: Sequence[Point],
    entropy: float | None,
    frame: Frame = WIDE,
    heldout: Sequence[Measured] = (),
    *,
    unit: str = "token",
    as_perplexity: bool = False,
) -> str:
    """Return an `<svg>` of the curve, or "" without points. Unigram entropy is dotted; held-out losses are circles."""
    layout = laid_out(points, entropy, frame, heldout, as_perplexity=as_perplexity)
    return chart_svg(layout, summary(points, entropy, heldout, unit=unit)) if layout else ""


def key_facts(points: Sequence[Point], heldout: Sequence[Measured], entropy: float | None) -> dict[str, Any]:
    """Return what the key above a loss curve names besides the curve.

    `loss` and `perplexity` are those of guessing by frequency, and `beyond` is an arrow if its line is not drawn.
    """
    losses = [
        loss for loss in [*(point.loss for point in points), *(each.loss for each in heldout)] if math.isfinite(loss)
    ]
    if entropy is None or not losses:
        return {"held": bool(heldout)}
    texts = {"loss": f"{entropy:.2f}", "perplexity": perplexity_text(entropy)}
    return {"held": bool(heldout), "beyond": beyond(losses, entropy), **texts}


def summary(
    points: Sequence[Point], entropy: float | None, heldout: Sequence[Measured] = (), *, unit: str = "token"
) -> str:
    """Return a description of the curve for readers who cannot see it.

    `unit` names what the loss is averaged over, such as a token.
    """
    if not points:
        return _("No steps yet.")
    text = _moved(points, unit)
    if entropy is not None:
        guessing = _("Guessing by frequency alone would score %(entropy)s.") % {"entropy": f"{entropy:.2f}"}
        text = f"{text} {guessing}"
    return f"{text} {_judged(heldout)}" if heldout else text


def _moved(points: Sequence[Point], unit: str) -> str:
    first, last = points[0], points[-1]
    facts = {"unit": unit, "first": f"{first.loss:.2f}", "last": f"{last.loss:.2f}"}
    if len(points) == 1:
        return _("Training loss is %(last)s nats per %(unit)s at step %(last_step)s.") % {
            **facts,
            "last_step": f"{last.step:,}",
        }
    told = (
        _("Training loss fell from %(first)s to %(last)s nats per %(unit)s.")
        if last.loss < first.loss
        else _("Training loss rose from %(first)s to %(last)s nats per %(unit)s.")
    )
    return told % facts


def _judged(heldout: Sequence[Measured]) -> str:
    newest, best = heldout[-1], min(heldout, key=lambda point: point.loss)
    figures = ", ".join(f"{name} {figure(name, value)}" for name, value in sorted(newest.figures.items()))
    loss = f"{newest.loss:.2f}{f' ({figures})' if figures else ''}"
    facts = {"loss": loss, "step": f"{newest.step:,}", "best": f"{best.loss:.2f}", "best_step": f"{best.step:,}"}
    if best is not newest:
        return _("On held-out data: %(loss)s at step %(step)s; the best was %(best)s at step %(best_step)s.") % facts
    if len(heldout) > 1:
        return _("On held-out data: %(loss)s at step %(step)s, the best so far.") % facts
    return _("On held-out data: %(loss)s at step %(step)s.") % facts


# Other quantities over the steps: speed, machines, learning rate, bytes


class Quantity(NamedTuple):
    """A quantity that has a chart. `told` is the name that begins the chart's summary."""

    key: str
    name: str
    field: str  # name of the point's field
    told: str
    unit: str = ""


QUANTITIES = (
    Quantity("speed", gettext_noop("Samples per second"), "samples_per_s", gettext_noop("Samples per second")),
    Quantity("machines", gettext_noop("Machines"), "machines", gettext_noop("Machines")),
    Quantity("rate", gettext_noop("Learning rate"), "learning_rate", gettext_noop("Learning rate")),
    Quantity("bytes", gettext_noop("Data per step"), "bytes_averaged", gettext_noop("Gradients averaged"), "B"),
)


def charts_of(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the key, name and summary of each chart that has values to show."""
    found = ((quantity, values_of(points, quantity)) for quantity in QUANTITIES)
    return [
        {"key": each.key, "name": _(each.name), "summary": _summary(each, values)} for each, values in found if values
    ]


def chart_of(points: Sequence[Point], key: str, frame: Frame) -> str:
    """Return an `<svg>` of the chart with this key, or "" if the key is unknown or there are no values."""
    quantity = next((each for each in QUANTITIES if each.key == key), None)
    values = values_of(points, quantity) if quantity else []
    layout = lay_out(values, None, frame, amount=quantity.unit if quantity else "")
    return chart_svg(layout, _summary(quantity, values)) if layout and quantity else ""


def values_of(points: Sequence[Point], quantity: Quantity) -> list[tuple[int, float]]:
    """Return the step and value of each point that has both a value and a finite loss."""
    found = ((point, getattr(point, quantity.field)) for point in points if math.isfinite(point.loss))
    return [(point.step, value) for point, value in found if value is not None and math.isfinite(value)]


def _summary(quantity: Quantity, values: Sequence[tuple[int, float]]) -> str:
    """Return a sentence with a quantity's latest and highest values, for readers who cannot see the chart."""
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
    return f"{value:,}" if isinstance(value, int) and not quantity.unit else amount_text(value, quantity.unit)
