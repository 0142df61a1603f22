"""The loss curve as a picture that needs nothing else: an SVG file of numbers and fixed words alone."""

import math
from collections.abc import Sequence

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 28, 40
INK, SOFT, LINE, ACCENT, PAPER = "#22201d", "#67615a", "#e2ddd5", "#a8431a", "#ffffff"
LINES_AT_MOST = 6  # across the picture
DRAWN = 400  # points: more than the picture has columns to show them in

Point = tuple[int, float]  # step, nats per token


def loss_curve(points: Sequence[Point], unigram: float | None) -> str:
    """The picture. `points` in the order of their steps, two at least; `unigram` is drawn as a dotted line."""
    drawn = thinned([(step, loss) for step, loss in points if math.isfinite(loss)])
    ticks = ticks_of([loss for _, loss in drawn] + ([unigram] if unigram else []))
    first, last = drawn[0][0], drawn[-1][0]

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(last - first, 1)

    def y(loss: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - ticks[0]) / (ticks[-1] - ticks[0])

    parts = [_frame(drawn), *(_tick(y(tick), f"{tick:g}") for tick in ticks)]
    if unigram:
        parts.append(_unigram(y(unigram), unigram))
    line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in drawn)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="2" stroke-linejoin="round"/>')
    parts += [_step(x(first), first, "start"), _step(x(last), last, "end"), "</svg>\n"]
    return "\n".join(parts)


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most `DRAWN` of them, evenly, always with the last."""
    stride = max(1, -(-len(points) // DRAWN))
    return [*points[:-1:stride], points[-1]]


def ticks_of(values: Sequence[float]) -> list[float]:
    """Round numbers from below the smallest to above the largest value."""
    low, high = min(values), max(values)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-3)))
    while (high - low) / step > LINES_AT_MOST - 2:
        step *= 2
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [round(number * step, 6) for number in range(first, last + 1)]


def _frame(points: Sequence[Point]) -> str:
    words = f"Loss from {points[0][1]:.2f} at step {points[0][0]} to {points[-1][1]:.2f} at step {points[-1][0]}."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}" '
        f'font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>\n'
        f'<text x="{LEFT}" y="16" fill="{INK}">Loss, nats per token</text>'
    )


def _tick(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LINE}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{SOFT}">{label}</text>'
    )


def _unigram(y: float, value: float) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{SOFT}" stroke-width="1.5" '
        f'stroke-dasharray="1 5" stroke-linecap="round"/><text x="{WIDTH - RIGHT}" y="{y - 6:.1f}" text-anchor="end" '
        f'fill="{SOFT}">token frequencies alone: {value:.2f}</text>'
    )


def _step(x: float, step: int, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="{anchor}" fill="{SOFT}">step {step:,}</text>'
