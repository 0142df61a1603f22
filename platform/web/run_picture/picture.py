"""The content of a run's page as plain values for templates. Pure functions."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from coordination.presence import AUXILIARY, RELAY, TRAINER, Crowd, OnlinePeer
from peer_agent.protocol.plan import Outline
from runs import selectors
from runs.ledger.standings import LeaderboardLine, Period, PeriodLine, Recent, Shares
from runs.ledger.totals import in_words
from runs.models import ActivityLine, Release, Run
from runs.selectors import Measured, Point, RunPicture
from runs.states import LIVE
from web import strokes
from web.run_picture import card_sentences, counts, status_sentence
from web.run_picture.averaging import averaging_of, key_of
from web.run_picture.counts import with_number
from web.run_picture.curves import QUANTITIES, charts_of, key_facts, summary
from web.run_picture.status_sentence import STUCK
from web.words import loss_unit_of_page

Picture = dict[str, Any]

LEADERBOARD_LINES = 10  # most rows; `web.pages.runs.leaderboard` shows all
PERIODS = (Period.WEEK, Period.DAY)  # periods with a board of their own
TALLEST = 16  # height of the tallest bar in the chart of recent work
CHIPS = 12  # most people whose samples in the step are shown; `web.pages.runs.swarm` has all
STALLED_TIMES = 5  # a step is late after this many times its usual duration …
STALLED_S = 600.0  # … and at least this many seconds
FIRST_S = 1800.0  # the limit for the first step, which has no usual duration
STANDING_ON = ("stage", "state", "release", "released_step", "text", "waiting_for")
OWN_BARS = 5  # most bars for the reader's own machines
TINTS = 8  # style sheet classes tint-0 … tint-7, each with a light and a dark shade
WORDS = {
    "accumulate": gettext_lazy("gathering samples"),
    "offer": gettext_lazy("closing the step"),
    "reduce": gettext_lazy("averaging"),
    "commit": gettext_lazy("committing"),
}


class Seen(NamedTuple):
    """Everything about a run, as read at one moment."""

    run: RunPicture
    peers: Sequence[OnlinePeer]
    phase: str
    void_rounds: int
    now: datetime
    outline: Outline | None = None  # of the last plan
    links: Mapping[str, Any] = {}  # each machine's links; the picture omits them (see `web.run_picture.own`)
    by_period: Mapping[Period, Sequence[PeriodLine]] = {}  # top rows of this week's and today's leaderboards
    crowd: Sequence[Crowd] = ()  # recent changes in the number of trainers
    resumed_at: Callable[[], datetime | None] = lambda: None  # when the run was last resumed


def picture_of(seen: Seen) -> Picture:
    """Return the content of a run's page. Each row of a list has a unique `key`, by which the script finds it."""
    averaging = averaging_of(seen.outline, phase=seen.phase, is_over=seen.run.run.state not in LIVE)
    status = status_of(seen)
    values = {**_words(seen, status), **_cards(seen), **_loss(seen), **_step(seen), **_totals(seen.run), **averaging}
    return {**values, **_lists(seen, status)}


class Status(NamedTuple):
    """A run's state in one word, which is also its CSS class, as a label, and as a sentence."""

    word: str
    label: str
    sentence: str


def status_of(seen: Seen) -> Status:
    trainers = _trainers(seen)
    since = None if seen.run.run.waiting_for else stuck_since(seen)
    if since is not None:
        sentence = status_sentence.stuck_sentence(seen.run, since, seen.now, trainers, seen.phase)
        return Status(STUCK, status_sentence.state_label(STUCK, trainers), sentence)
    word = status_sentence.state_word(seen.run, trainers)
    sentence = status_sentence.run_sentence(seen.run, seen.peers, seen.now)
    return Status(word, status_sentence.state_label(word, trainers), sentence)


def _words(seen: Seen, status: Status) -> Picture:
    run, word = seen.run.run, status.word
    to_go = status_sentence.to_go(seen.run) if word == status_sentence.RUNNING else ""
    return {
        "slug": run.slug,
        "state": str(run.state),
        "stage": stage_of(seen.run, word),
        "word": word,
        "label": status.label,
        "visibility": str(run.get_visibility_display()).lower(),
        "waiting_for": run.waiting_for,
        "sentence": status.sentence,
        "start": status_sentence.start_of(run, _trainers(seen), seen.now),
        "goal": _goal(seen),
        "to_go": to_go,
        "progress": card_sentences.progress(seen.run, to_go),
        "can_join": run.state in LIVE,
        "is_joinable": run.state == Run.State.OPEN and run.visibility != Run.Visibility.REQUEST,
        "text": str(seen.run.dataset.state),
        "release": str(seen.run.release.state) if seen.run.release else "",
        "released_step": _released_step(seen.run),
    }


def _goal(seen: Seen) -> Picture | None:
    """Return a drawing and text showing how many machines a run has of those that its start needs.

    If it needs only one, or has started, count the people hoped for. Return None if that number is reached or no one
    can join.
    """
    run, goal, least = seen.run.run, seen.run.run.people_goal, seen.run.minimum_trainers
    if run.state != Run.State.OPEN or run.wanted == Run.Wanted.FINISHED:
        return None
    trainers = _trainers(seen)
    if not seen.run.step and len(trainers) < least and least > 1:
        said = ngettext("%(here)s of %(goal)s machine", "%(here)s of %(goal)s machines", least)
        return {
            "strokes": strokes.places([tint_of(peer.name) for peer in trainers], least),
            "words": said % {"here": f"{len(trainers):,}", "goal": f"{least:,}"},
        }
    if not goal:
        return None
    names = sorted({peer.name for peer in trainers})
    if len(names) >= goal:
        return None
    said = ngettext("%(here)s of the %(goal)s person hoped for", "%(here)s of the %(goal)s people hoped for", goal)
    return {
        "strokes": strokes.places([tint_of(name) for name in names], goal),
        "words": said % {"here": f"{len(names):,}", "goal": f"{goal:,}"},
    }


def stuck_since(seen: Seen) -> datetime | None:
    """Return since when an open run has made no step although machines are training, or None if it is not stuck.

    The time counts from the last step, the run's opening, the last resumption or the arrival of trainers, whichever is
    latest.
    """
    if seen.run.step >= seen.run.target_steps:
        return None
    return still_since(seen.run.run, Pulse(seen.run.points, seen.run.pace_s, seen.crowd, seen.resumed_at), seen.now)


class Pulse(NamedTuple):
    """The signs that a run is advancing. `resumed_at` returns when the run was last resumed."""

    points: Sequence[Point]
    pace_s: float | None
    crowd: Sequence[Crowd]
    resumed_at: Callable[[], datetime | None]


def still_since(run: Run, pulse: Pulse, now: datetime) -> datetime | None:
    """Return since when a run with steps left is stuck (see `stuck_since`), or None."""
    points, pace_s, crowd, resumed_at = pulse
    manned = since_change(crowd, lambda trainers: trainers > 0)
    is_moving = run.state == Run.State.OPEN and run.wanted != Run.Wanted.FINISHED
    if not is_moving or manned is None or run.later_start(now):
        return None
    marks = (points[-1].at if points else None, run.opened_at, manned)
    since = max(mark for mark in marks if mark is not None)
    bound = timedelta(seconds=FIRST_S if pace_s is None else max(STALLED_S, STALLED_TIMES * pace_s))
    if now - since > bound:
        since = max(since, resumed_at() or since)  # called only when needed, because it costs a query
    return since if now - since > bound else None


def since_change(crowd: Sequence[Crowd], holds: Callable[[int], bool]) -> datetime | None:
    """Return when a condition on the number of trainers began to hold, or None if it does not hold now."""
    since = None
    for each in reversed(crowd):
        if not holds(each.trainers):
            break
        since = each.since
    return since


def stage_of(run: RunPicture, word: str) -> str:
    """Return the stage for which the run's page is laid out: `waiting`, `live`, `paused`, `failed` or `finished`."""
    if word in (Run.State.PAUSED, "failed"):
        return str(word)
    if run.run.state == Run.State.FINISHED and run.release and run.release.state == Release.State.READY:
        return "finished"
    return "live" if run.step else "waiting"


def _released_step(run: RunPicture) -> str:
    """Return the step of the released model as text, or "". The page renews itself when it changes."""
    step = run.release.step if run.release else None
    return "" if step is None else str(step)


def _cards(seen: Seen) -> Picture:
    run = seen.run
    return {
        "resting": card_sentences.resting(run),
        "given": card_sentences.given(run.people, run.machines, run.samples),
        "nobody": card_sentences.nobody(run.run, seen.now),
        "nothing": str(card_sentences.NOTHING),
        "without_curve": card_sentences.without_curve(run.dataset.unigram_entropy),
    }


def _loss(seen: Seen) -> Picture:
    points, entropy, heldout = seen.run.points, seen.run.dataset.unigram_entropy, seen.run.heldout
    perplexity, perplexity_note = status_sentence.perplexity_words(heldout)
    return {
        "step": seen.run.step,
        "target_steps": card_sentences.last_step(seen.run.run, seen.run.step, seen.run.target_steps),
        "loss": selectors.typical_loss(points),
        "trend": status_sentence.trend(points, seen.now),
        "heldout_loss": heldout[-1].loss if heldout else None,
        "written": str(seen.run.written[0].step) if seen.run.written else "",
        "heldout_note": status_sentence.held_out_note(heldout),
        "perplexity": perplexity,
        "perplexity_note": perplexity_note,
        "passes": status_sentence.passes_note(seen.run.passes),
        "warning": status_sentence.overfitting_sentence(seen.run),
        "summary": summary(points, entropy, seen.run.heldout, unit=loss_unit_of_page(seen.run.run.parsed_recipe)[0]),
        "unigram": entropy,
        "key": key_facts(points, heldout, entropy),
        "points": [_point(point) for point in points if math.isfinite(point.loss)],
        "charts": charts_of(points),
    }


def _step(seen: Seen) -> Picture:
    trainers, shares = _trainers(seen), _shares_shown(seen)
    sums = step_sums([*trainers, *(peer for peer in seen.peers if peer.role != TRAINER)], phase=seen.phase)
    recipe = seen.run.run.parsed_recipe
    given = dict(shares.given) if shares else samples_by_person(trainers)
    done = shares.samples if shares else sums.done
    target = 0 if shares else seen.run.target_batch  # sums over several steps have no target
    return {
        "step_title": _step_title(shares, seen.run.step + 1),
        "phase": "" if shares or seen.run.run.later_start(seen.now) else sums.phase,
        "done": done,  # may exceed the target
        "target": target,
        "chips": [
            {"key": name, "name": name, "tint": tint_of(name), "done": samples}
            for name, samples in sorted(given.items(), key=lambda each: (-each[1], each[0]))[:CHIPS]
        ],
        "more_people": card_sentences.more_people(max(0, len(given) - CHIPS)),
        "strip": strokes.history([*map(_by_tint, shares.stretches)], counts.samples(done))
        if shares
        else _strip(given, done, target),
        "samples_per_s": round(sums.samples_per_s, 1),
        "tokens_per_s": round(sums.samples_per_s * recipe.loss_units_in(1)[1]),
        "units": loss_unit_of_page(recipe)[1],
        "training": len(trainers),
        "relays": sums.relays,
        "void_rounds": seen.void_rounds,
        "others": card_sentences.others(sums.relays, sums.auxiliaries, seen.void_rounds),
    }


def samples_by_person(trainers: Iterable[OnlinePeer]) -> dict[str, int]:
    given: Counter[str] = Counter()
    for peer in trainers:
        given[peer.name] += peer.done
    return dict(given)


def _strip(given: Mapping[str, int], done: int, target: int) -> str:
    rest: list[strokes.Part] = [("rest", max(0, done - sum(given.values())))]
    label = _("%(done)s of %(target)s samples") % {"done": f"{done:,}", "target": f"{target:,}"}
    return strokes.strip([*_by_tint(given), *rest], max(0, target - done), label)


def _by_tint(given: Mapping[str, int]) -> list[strokes.Part]:
    found: Counter[int] = Counter()
    for name, samples in given.items():
        found[tint_of(name)] += samples
    return [*sorted(found.items())]


def _step_title(shares: Shares | None, step: int) -> str:
    if shares is None:
        return _("Step %(step)s") % {"step": f"{step:,}"}
    return with_number(ngettext("Last %(number)s step", "Last %(number)s steps", shares.steps), shares.steps)


def _totals(run: RunPicture) -> Picture:
    given = {"people": run.people, "machines": run.machines, "samples": run.samples, "tokens": run.tokens}
    return {**given, "recent_steps": run.recent.steps, "averages": bool(run.averaged)}


def _lists(seen: Seen, status: Status) -> Picture:
    here = {peer.name for peer in _trainers(seen)} if status.word != STUCK else set[str]()
    return {
        "leaderboard": _leaderboard(seen.run, here),
        **{str(period): [_period_line(line, here) for line in seen.by_period.get(period, ())] for period in PERIODS},
        "activity": [_activity_line(line) for line in seen.run.activity],
        "heldout": [_measured(point) for point in seen.run.heldout],
    }


def _shares_shown(seen: Seen) -> Shares | None:
    """Return people's shares of the last steps, for a run whose steps are too short to watch.

    Return None if steps are longer or no machine is training. The page then shows the current step.
    """
    return seen.run.shares if seen.run.shares and seen.run.shares.samples and _trainers(seen) else None


def _leaderboard(run: RunPicture, here: Collection[str]) -> list[Picture]:
    """Return rows for people ordered by samples. Unranked people, who have only averaged, come last."""
    averaged = {line.name: in_words(line.bytes_averaged) for line in run.averaged}
    unranked = [LeaderboardLine(0, line.name, 0, 0, 0, 0) for line in run.averaged if not line.is_ranked]
    lines = [*run.leaderboard, *unranked[:LEADERBOARD_LINES]]
    return [{**_leaderboard_line(line, here, run.recent), "averaged": averaged.get(line.name, "")} for line in lines]


def _period_line(line: PeriodLine, here: Collection[str]) -> Picture:
    return {"key": line.name, **line._asdict(), "now": line.name in here}


def _leaderboard_line(line: LeaderboardLine, here: Collection[str], recent: Recent) -> Picture:
    """Return a row of the leaderboard. Rank 0 means no rank. `recent` is in samples.

    `heights` has the bars of recent work, scaled so that the tallest bar on the board is `TALLEST`.
    """
    given = recent.given.get(line.name, [])
    tallest = max((part for parts in recent.given.values() for part in parts), default=0)
    return {
        "key": line.name,
        **line._asdict(),
        "tint": tint_of(line.name),
        "now": line.name in here,
        "recent": sum(given),
        "heights": [-(-TALLEST * part // tallest) if part else 0 for part in given],
    }


def _activity_line(line: ActivityLine) -> Picture:
    return {"key": str(line.pk), "at": line.at.isoformat(timespec="seconds"), "kind": line.kind, "text": line.text}


def _measured(point: Measured) -> Picture:
    """Return a held-out loss. `at` is a Unix time in seconds, and `loss` is in nats per token."""
    at, loss = round(point.at.timestamp(), 1), round(point.loss, 5)
    return {"key": str(point.place), "step": point.step, "at": at, "loss": loss}


def _point(point: Point) -> list[float | None]:
    """Return a point's values: step, loss, Unix time in seconds, and those of `QUANTITIES`. None means unknown."""
    at = round(point.at.timestamp(), 1) if point.at else 0
    return [point.step, round(point.loss, 5), at, *(_figure(point, quantity.field) for quantity in QUANTITIES)]


def _figure(point: Point, name: str) -> float | None:
    """Return a point's value, rounded to four significant digits unless it is an integer."""
    value = getattr(point, name)
    return None if value is None else value if isinstance(value, int) else float(f"{value:.4g}")


def _trainers(seen: Seen) -> list[OnlinePeer]:
    return status_sentence.training_in(seen.run.run, seen.peers)


# The current step, with a thin bar per machine


class StepSums(NamedTuple):
    """Sums over all trainers in a step. Relays and auxiliaries contribute no samples and are counted separately."""

    phase: str
    done: int
    samples_per_s: float
    relays: int
    auxiliaries: int


def step_sums(peers: Sequence[OnlinePeer], *, phase: str) -> StepSums:
    trainers = [peer for peer in peers if peer.role == TRAINER]
    return StepSums(
        phase=str(WORDS.get(phase, phase)),
        done=sum(peer.done for peer in trainers),
        samples_per_s=sum(peer.samples_per_s for peer in trainers),
        relays=sum(peer.role == RELAY for peer in peers),
        auxiliaries=sum(peer.role == AUXILIARY for peer in peers),
    )


def bars_of(trainers: Iterable[OnlinePeer], *, target: int, most: int) -> list[dict[str, Any]]:
    """Return the bars of the first `most` trainers by name. `share` is a percentage of the batch.

    The keys do not reveal the machines' ids.
    """
    return [
        {
            "key": key_of(peer.peer),
            "name": peer.name,
            "tint": tint_of(peer.name),
            "state": peer.state,
            "done": peer.done,
            "target": target,
            "share": round(min(100.0, 100 * peer.done / target), 1),
        }
        for peer in sorted(trainers, key=lambda peer: (peer.name, peer.peer))[:most]
    ]


def board_facts(picture: Picture, board: str = "all") -> dict[str, Any]:
    """Return a run's leaderboards. `board` is the key of the one to show."""
    boards = [
        {
            "key": str(period),
            "name": name,
            "rows": picture.get(period, ()),
            "note": card_sentences.PERIOD_NOTES.get(period, ""),
            "nobody": card_sentences.NOBODY_IN.get(period, ""),
        }
        for period, name in card_sentences.PERIOD_NAMES.items()
    ]
    return {"board": board, "boards": boards}


def standing_of(picture: Picture) -> str:
    """Return a string that changes whenever the page needs different parts, such as a form, a button or files."""
    return "|".join(picture[name] for name in STANDING_ON)


def tint_of(name: str) -> int:
    """Return the number of a person's or team's tint, which is the same on all pages."""
    return hashlib.sha256(name.encode()).digest()[0] % TINTS
