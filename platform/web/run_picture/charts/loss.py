"""The loss curve on a run's page, and in one sentence. Pure: points in, text out. Colours come from the style sheet."""

from collections.abc import Sequence

from django.utils.translation import gettext as _

from peer_agent.plot import Frame, Layout, chart_svg, lay_out
from peer_agent.publishing.card import figure
from runs.selectors import Measured, Point

WIDE = Frame(720, 280)
NARROW = Frame(340, 210)


def laid_out(
    points: Sequence[Point],
    entropy: float | None,
    frame: Frame,
    heldout: Sequence[Measured] = (),
    *,
    as_perplexity: bool = False,
) -> Layout | None:
    """Where a run's curve stands; None before it has one. Losses in nats per token."""
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
    """An `<svg>` of the curve, empty without points. The unigram entropy is dotted, held-out losses are circles."""
    layout = laid_out(points, entropy, frame, heldout, as_perplexity=as_perplexity)
    return chart_svg(layout, summary(points, entropy, heldout, unit=unit)) if layout else ""


def summary(
    points: Sequence[Point], entropy: float | None, heldout: Sequence[Measured] = (), *, unit: str = "token"
) -> str:
    """What the curve says, for those who do not see it. `unit`: what a loss is a mean over."""
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
    """What the newest snapshot that was measured is worth, and which one is worth most."""
    newest, best = heldout[-1], min(heldout, key=lambda point: point.loss)
    figures = ", ".join(f"{name} {figure(name, value)}" for name, value in sorted(newest.figures.items()))
    loss = f"{newest.loss:.2f}{f' ({figures})' if figures else ''}"
    facts = {"loss": loss, "step": f"{newest.step:,}", "best": f"{best.loss:.2f}", "best_step": f"{best.step:,}"}
    if best is not newest:
        return _("On held-out data: %(loss)s at step %(step)s; the best was %(best)s at step %(best_step)s.") % facts
    if len(heldout) > 1:
        return _("On held-out data: %(loss)s at step %(step)s, the best so far.") % facts
    return _("On held-out data: %(loss)s at step %(step)s.") % facts
