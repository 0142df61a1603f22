"""Drawings made of strokes, like the logo. A stroke is one share of the work, in the tint of the person who did it.

Pure functions that return `<svg>` elements. Counts and tints are exact. A stroke's length means something only if the
function's docstring says so.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

Part = tuple[int | str, float]  # a tint or class, and its share of the whole in any unit
Stroke = tuple[float, float, float, int | str]  # x, y at either end, tint or class
Point = tuple[float, float]

GHOST = "ghost"  # class of the strokes for work still to be done
STRIP, HERO, BAND, PLACES = 96, 150, 100, 60  # strokes in a drawing
READY = 20  # most people shown as ready in the drawing of a waiting run
FIRST_DAYS = 30  # a history of fewer days also has places for the coming days
LOWEST = 0.55  # how far a loss curve falls, as a fraction of the drawing's height


def strip(parts: Sequence[Part], left: float, label: str) -> SafeString:
    """Draw the step in progress. `parts` has each person's samples so far; `left` counts the samples still needed."""
    tints = spread([*parts], left, STRIP)
    strokes = [
        (round(4 + place * 952 / (STRIP - 1), 1), 37, 37 if tint == GHOST else round(30 - 24 * noise(place), 1), tint)
        for place, tint in enumerate(tints)
    ]
    low = [(x, a, 34 if tint == GHOST else b, tint) for x, a, b, tint in strokes]
    filled = sum(tint != GHOST for tint in tints)
    last = low.pop(filled - 1) if 0 < filled < STRIP else None
    newest = _path(f"new {_class(last[3])}", [last]) if last else ""
    return _svg("strokes strip", 960, 40, paths(low) + newest, label)


def history(stretches: Sequence[Sequence[Part]], label: str) -> SafeString:
    """Draw the latest steps in stretches, oldest first. A stroke's height shows the samples in its stretch.

    Tints are spread over all stretches. Each tint has as many strokes as its share requires, to within one.
    """
    count = STRIP // max(len(stretches), 1)
    most = max((sum(amount for _, amount in parts) for parts in stretches), default=0) or 1
    owed: dict[int | str, float] = {}
    strokes: list[Stroke] = []
    for parts in stretches:
        whole = sum(amount for _, amount in parts)
        for name, amount in parts:
            owed[name] = owed.get(name, 0.0) + count * amount / (whole or 1)
        for _ in range(count if whole else 0):
            name = max(owed, key=lambda each: owed[each])
            owed[name] -= 1
            x = round(4 + len(strokes) * 952 / max(count * len(stretches) - 1, 1), 1)
            strokes.append((x, 37, round(32 - 26 * whole / most, 1), name))
    newest = _path(f"new {_class(strokes[-1][3])}", strokes[-1:]) if strokes else ""
    return _svg("strokes strip", 960, 40, paths(strokes[:-1]) + newest, label)


def hero(
    points: Sequence[Point],
    last: int,
    parts: Sequence[Part],
    label: str,
    *,
    state: str = "running",
    ready: Sequence[int] = (),
    can_join: bool = True,
) -> SafeString:
    """Draw a run as strokes below its loss curve. `points` has steps and losses; `last` is the run's last step.

    If less than half of the run is done, the drawing ends at twice the current step. Phones show only every other
    stroke. `state` is `running`, `waiting`, `paused`, `failed` or `finished`.

    In a waiting run, the people who are `ready` have a stroke each, in these tints, and readers who `can_join` have a
    dashed one. For readers who cannot join, the drawing is low.
    """
    width, height = 1184, 200
    y = _below(points, height, last)
    done = points[-1][0] if points else 0
    last = min(last, round(2 * done)) if done else last
    filled = min(HERO, round(HERO * done / max(last, 1)))
    tints = spread([*parts], 0, filled) if parts and filled else [0] * filled

    def x(place: int) -> float:
        return round(4 + place * (width - 8) / (HERO - 1), 1)

    strokes: list[Stroke] = []
    for place in range(filled):
        top = min(height - 8, y(last * (place + 0.5) / HERO) + 10 + 30 * noise(place))
        if state == "paused":
            top = height - 8 - 0.22 * noise(place) * (height - 8 - top)
        if state == "failed" and place > filled - 12:
            top = height - 6 - 8 * noise(place)
        name = f"lesser {_class(tints[place])}" if place % 2 else tints[place]
        strokes.append((x(place), height - 3, round(top, 1), name))
    for place, tint in enumerate(ready[:READY]):  # on every other place, so that phones show all of them
        strokes.append((x(2 * place), height - 3, round(36 + 60 * noise(place), 1), tint))
    drawn = paths(strokes) + _curves(points, last, width, height, state)
    is_low = state == "waiting" and not can_join
    if state == "waiting" and can_join:
        drawn += f'<path class="yours" d="M{x(2 * min(len(ready), READY)):g} {height - 3}V36"/>'
    return _svg(f"strokes hero-curve fine{' low' if is_low else ''}", width, height, drawn, label)


def _curves(points: Sequence[Point], last: int, width: int, height: int, state: str) -> str:
    """Return the SVG paths of the loss curve and of its dotted continuation to the last step."""
    y = _below(points, height, last)
    done = points[-1][0] if points else 0

    def ahead(step: float) -> float:
        return y(step) if not done else y(done) + (height - 16 - y(done)) * (1 - 0.3 ** (step / done - 1))

    def line(begin: float, end: float, name: str, y: Callable[[float], float]) -> str:
        steps = [begin + (end - begin) * part / 40 for part in range(41)]
        ends = "L".join(f"{4 + (width - 8) * step / max(last, 1):.1f} {y(step):.1f}" for step in steps)
        return f'<path class="{name}" d="M{ends}"/>'

    through = line(points[0][0], done, "broken" if state == "failed" else "through", y) if len(points) > 1 else ""
    is_coming = done < last and state in ("running", "waiting")
    return through + (line(done, last, "coming", ahead) if is_coming else "")


def shares(parts: Sequence[Part], label: str) -> SafeString:
    """Draw a stroke for each percent of the whole, grouped by part, with gaps between groups."""
    counts = Counter(spread([(place, amount) for place, (_, amount) in enumerate(parts)], 0, 100))
    pitch = 952 / max(99 + len(counts) - 1, 1)
    groups = [(name, counts[place]) for place, (name, _) in enumerate(parts) if counts[place]]
    names = [(gap, name) for gap, (name, count) in enumerate(groups) for _ in range(count)]
    strokes = [(round(4 + (place + gap) * pitch, 1), 37, 6, name) for place, (gap, name) in enumerate(names)]
    return _svg("strokes strip", 960, 40, paths(strokes), label)


def times(seconds: Sequence[float], middle: float, label: str) -> SafeString:
    """Draw a stroke for each step, oldest first, whose height shows its duration, and a dotted line at `middle`."""
    longest = max(seconds, default=0) or 1

    def y(value: float) -> float:
        return round(92 - 88 * value / longest, 1)

    strokes = [
        (round(3 + place * 994 / max(len(seconds) - 1, 1), 1), 93, y(each), 0) for place, each in enumerate(seconds)
    ]
    line = f'<path class="coming" d="M3 {y(middle):g}H997"/>'
    return _svg("strokes times", 1000, 96, paths(strokes) + line, label)


def marked(name: int | str, part: float) -> list[int | str]:
    """Return the names for a `band`: `name` for the given fraction (0 to 1) of its strokes, and `rest` for the others.

    At least one stroke gets `name`.
    """
    part = max(part, 1 / BAND)
    return spread([(name, part), ("rest", 1 - part)], 0, BAND)


def band(names: Sequence[int | str], points: Sequence[Point], label: str) -> SafeString:
    """Draw a whole run as strokes below its loss curve, one for each name in `names`: a tint, or `rest`."""
    width, height, count = 1000, 120, len(names)
    y = _below(points, height, 1)
    last = points[-1][0] if points else 1
    strokes = [
        (
            round(3 + place * (width - 6) / (count - 1), 1),
            height - 3,
            round(min(height - 10, y(last * (place + 0.5) / count) + 20 * noise(place)), 1),
            name,
        )
        for place, name in enumerate(names)
    ]
    return _svg("strokes fine", width, height, paths(strokes), label)


def days(given: Sequence[float], tint: int, label: str) -> SafeString:
    """Draw a stroke per day, whose height shows its samples. `given` has the oldest day first. Future days are dots."""
    most, count = max(given, default=0) or 1, max(len(given), FIRST_DAYS)
    strokes: list[Stroke] = [
        (
            round(3 + place * 994 / (count - 1), 1),
            37,
            round(31 - 25 * (samples / most) ** 0.5, 1) if samples else 34,
            tint if samples else GHOST,
        )
        for place, samples in enumerate(given)
    ]
    strokes += [(round(3 + place * 994 / (count - 1), 1), 37, 37, "rest") for place in range(len(given), count)]
    name = "strokes strip fine" if count == len(given) else "strokes strip fine first"
    return _svg(name, 1000, 40, paths(strokes), label)


def bars(heights: Sequence[int], width: int) -> SafeString:
    """Return the SVG path of a small bar chart standing on y = 0, with a gap of 2 between bars."""
    pitch = width + 2
    drawn = (f"M{place * pitch} 0v-{high}h{width}v{high}z" for place, high in enumerate(heights) if high)
    return SafeString("".join(drawn))


def art(kind: str = "whole", label: str = "") -> SafeString:
    """Draw loose strokes that gather into one curve. In the kind `lost`, one stroke has left its place in the curve."""
    width, height, count = 704, 176, 76

    def y(part: float) -> float:
        return height * float(0.24 + 0.66 * (1 - 0.09**part))

    strokes: list[Stroke] = []
    for place in range(count):
        part = place / (count - 1)
        if kind == "lost" and 0.66 < part < 0.69:
            continue
        loose = max(0.0, 1 - part / 0.62)
        middle = y(part) + (1.62 * noise(place) - 0.62) * loose * height * 0.42
        half = (7 + 26 * noise(place, 1) * (0.35 + 0.65 * loose)) / 2
        middle = min(max(middle, half + 4), height - half - 4)
        strokes.append(
            (round(8 + part * (width - 16), 1), round(middle - half, 1), round(middle + half, 1), place * 5 % 8)
        )

    def line(begin: float, end: float) -> str:
        parts = [begin + (end - begin) * each / 24 for each in range(25)]
        return "M" + "L".join(f"{8 + part * (width - 16):.1f} {y(part):.1f}" for part in parts)

    drawn = paths(strokes)
    if kind == "lost":
        for begin, end in ((0.5, 0.655), (0.7, 1)):
            drawn += f'<path class="through" d="{line(begin, end)}"/>'
        drawn += (
            f'<path class="tint-0" d="M584 20l9 26"/><path class="coming" d="M482 {y(0.685) - 12:.0f}Q507 40 563 36"/>'
        )
    else:
        drawn += (
            f'<path class="through" d="{line(0.5, 1)}"/><circle class="dot" cx="{width - 8}" cy="{y(1):.0f}" r="6"/>'
        )
    return _svg("strokes art", width, height, drawn, label, stretch=False)


def bundle(count: int) -> SafeString:
    """Draw a crowd of machines as one stroke each, in mixed tints."""
    rows = min(4, -(-count // 29))
    a_row, height = -(-count // rows), 40 / rows
    strokes: list[Stroke] = []
    for place in range(count):
        x = round(3 + place % a_row * min(5, 146 / a_row), 1)
        foot = 38 - place // a_row * height
        strokes.append((x, foot, round(foot - (height - 4) * (0.4 + 0.6 * noise(place)), 1), int(8 * noise(place, 1))))
    return _svg("strokes fine", 152, 40, paths(strokes), stretch=False)


KINDS = {  # drawings of what each kind of recipe learns, by objective
    "causal_lm": "M4 6H60M4 16H48M4 26H66M4 36H26",
    "finetune_lora": "M4 8H40M4 18H26M34 28H70M48 38H70",
    "image_classification": "M4 6V14M14 4V12M24 7V15M9 22V30M20 20V28M56 6H68M54 16H66M58 26H70M50 34H62M40 2V38",
    "image_ssl": "M4 20Q20 4 40 4T76 20Q60 36 40 36T4 20M36 14V26M44 14V26",
    "masked_lm": "M4 6H26M44 6H66M4 16H40M4 26H14M32 26H60M4 36H34",
}


def places(tints: Sequence[int], goal: int) -> SafeString:
    """Draw a stroke for each participant, and a dashed outline for each one still needed.

    If there are more than `PLACES` people, each stroke represents several of them.
    """
    people = max(goal, len(tints))
    count = min(people, PLACES)
    names = spread([(tint, 1) for tint in tints], people - len(tints), count) if count < people else [*tints]
    names += [GHOST] * (count - len(names))
    strokes = [
        (4 + 12 * place, 29, round(9 - 6 * noise(place), 1), name) for place, name in enumerate(names) if name != GHOST
    ]
    hollow = (
        f"M{2.5 + 12 * place} 27V9a1.5 1.5 0 0 1 3 0V27a1.5 1.5 0 0 1-3 0z" for place in range(len(strokes), count)
    )
    wanted = f'<path class="wanted" d="{"".join(hollow)}"/>' if len(strokes) < count else ""
    return _svg("strokes places fine", 12 * count - 4, 32, paths(strokes) + wanted, stretch=False)


def sketch(objective: str) -> SafeString:
    """Draw what a kind of recipe learns. An unknown kind gets the drawing for text."""
    return _svg("strokes fine", 152, 40, f'<path d="{KINDS.get(objective, KINDS["causal_lm"])}"/>', stretch=False)


def spread(parts: Sequence[Part], left: float, count: int) -> list[int | str]:
    """Divide `count` strokes among the parts by largest remainders, and mix them in a fixed order.

    The strokes for `left`, the work still to be done, come last.
    """
    whole = sum(amount for _, amount in parts)
    filled = count if left <= 0 else min(count, round(count * whole / (whole + left))) if whole else 0
    if not whole:
        return [GHOST] * count
    exact = [(name, filled * amount / whole) for name, amount in parts]
    numbers = [int(amount) for _, amount in exact]
    for place in sorted(range(len(exact)), key=lambda each: numbers[each] - exact[each][1])[: filled - sum(numbers)]:
        numbers[place] += 1
    names = [name for (name, _), number in zip(exact, numbers, strict=True) for _ in range(number)]
    mixed = sorted(range(filled), key=noise)
    found: list[int | str] = [GHOST] * count
    for name, place in zip(names, mixed, strict=True):
        found[place] = name
    return found


def noise(place: int, salt: int = 0) -> float:
    """Return a number in [0, 1) that looks random but depends only on the arguments."""
    mixed = (place * 2_654_435_761 + salt * 40_503 + 12_345) & 0xFFFF_FFFF
    return ((mixed ^ mixed >> 15) * 2_246_822_519 & 0xFFFF_FFFF) / 2**32


def paths(strokes: Iterable[Stroke]) -> str:
    """Return the strokes' SVG, with one path per tint to keep it small."""
    by_name = sorted(strokes, key=lambda stroke: _class(stroke[3]))
    return "".join(_path(name, list(group)) for name, group in groupby(by_name, key=lambda stroke: _class(stroke[3])))


def _path(name: str, strokes: Sequence[Stroke]) -> str:
    return f'<path class="{name}" d="{"".join(f"M{x:g} {a:g}V{b:g}" for x, a, b, _ in strokes)}"/>'


def _class(tint: int | str) -> str:
    return tint if isinstance(tint, str) else f"tint-{tint}"


def _below(points: Sequence[Point], height: int, last: float) -> Callable[[float], float]:
    """Return a function from a step to the loss curve's y position. Without points, it describes an example curve."""
    if not points:
        return lambda step: 8 + (height - 32) * (1 - 0.2 ** (2 * step / max(last, 1)))
    losses = [loss for _, loss in points]
    low, high = min(losses), max(losses)

    def y(step: float) -> float:
        after = next((place for place, (at, _) in enumerate(points) if at >= step), len(points) - 1)
        (one, loss), (other, next_loss) = points[max(after - 1, 0)], points[after]
        part = min(1.0, max(0.0, (step - one) / (other - one))) if other > one else 1.0
        level = loss + part * (next_loss - loss)
        return 8 + LOWEST * height * ((high - level) / (high - low) if high > low else 0.5)

    return y


def _svg(name: str, width: int, height: int, drawn: str, label: str = "", *, stretch: bool = True) -> SafeString:
    told = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    ratio = mark_safe(' preserveAspectRatio="none"' if stretch else "")  # noqa: S308 (fixed words)
    inside = mark_safe(drawn)  # noqa: S308 (numbers and fixed words)
    return format_html('<svg class="{}" viewBox="0 0 {} {}"{} {}>{}</svg>', name, width, height, ratio, told, inside)
