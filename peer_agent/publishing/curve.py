"""The loss curve that stands on a release's card."""

from collections.abc import Sequence

from peer_agent.plot.layout import Frame, lay_out
from peer_agent.plot.scales import Loss
from peer_agent.plot.svg import standing_svg

FRAME = Frame(720, 300, left=44, right=16, top=28, bottom=32)


def loss_curve(points: Sequence[Loss], unigram: float | None, *, unit: str = "token") -> str:
    """An SVG file. `points` in the order of their steps, one finite at least; `unigram` is drawn as a dotted line.

    `unit`: what a loss is a mean over.
    """
    layout = lay_out(points, unigram, FRAME, note="token frequencies alone:")
    assert layout is not None, "a curve has a loss that is a number"
    (first, begin), (last, end) = layout.points[0], layout.points[-1]
    summary = f"Loss from {begin:.2f} at step {first} to {end:.2f} at step {last}."
    return standing_svg(layout, summary, f"Loss in nats per {unit}, by step")
