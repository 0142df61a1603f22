"""The loss curve on a run's page, and in one sentence. Pure: points in, text out. Colours come from the style sheet."""

from collections.abc import Sequence

from peer_agent.plot.layout import Frame, Layout, lay_out
from peer_agent.plot.svg import chart_svg
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
        return "No steps yet."
    first, last = points[0], points[-1]
    if len(points) == 1:
        text = f"Loss is {last.loss:.2f} nats per {unit} at step {last.step:,}."
    else:
        move = "fell" if last.loss < first.loss else "rose"
        text = (
            f"Loss {move} from {first.loss:.2f} nats per {unit} at step {first.step:,} "
            f"to {last.loss:.2f} at step {last.step:,}."
        )
    if entropy is not None:
        side = "below" if last.loss < entropy else "above"
        text = f"{text} That is {side} {entropy:.2f}, what guessing by frequency alone would cost (unigram)."
    return f"{text} {_judged(heldout)}" if heldout else text


def _judged(heldout: Sequence[Measured]) -> str:
    """What the newest snapshot that was measured is worth, and which one is worth most."""
    newest, best = heldout[-1], min(heldout, key=lambda point: point.loss)
    figures = ", ".join(f"{name} {figure(name, value)}" for name, value in sorted(newest.figures.items()))
    told = f"On held-out data: {newest.loss:.2f}{f' ({figures})' if figures else ''} at step {newest.step:,}"
    if best is not newest:
        return f"{told}; the best was {best.loss:.2f} at step {best.step:,}."
    return f"{told}, the best so far." if len(heldout) > 1 else f"{told}."
