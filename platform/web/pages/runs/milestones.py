"""A run's milestones: events that people will want to tell others about, such as the first step or the best loss."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Min, OuterRef, Subquery
from django.utils.translation import gettext as _

from accounts.models import FORMER
from runs import selectors
from runs.models import IN_MODEL, LedgerEntry, Run
from web.run_picture import card_sentences

NEWEST = 200  # most people whose first samples are milestones
NAMED = 4  # most people named in a milestone
KINDS = ("opened", "finished", "release", "published")  # kinds of timeline line that are also milestones


class Milestone(NamedTuple):
    """A milestone as text. `names` are the people whom the text is about."""

    at: datetime
    text: str
    names: tuple[str, ...] = ()
    more: str = ""  # such as “and 4 more”, if there are too many people to name
    step: int = 0


def milestones_of(run: Run) -> list[Milestone]:
    """Return the milestones, newest first, in five queries."""
    beginners, parts = _beginners(run), _parts_done(run)
    steps = run.log.filter(IN_MODEL, step__in={*beginners, *parts})
    times: dict[int, datetime] = dict(steps.values_list("step", "at"))
    found = [
        Milestone(times[step], text, step=step)
        for step, text in parts.items()
        if step in times and not (step == 1 and 1 in beginners)
    ]
    found += [_first_samples(step, times[step], names) for step, names in beginners.items() if step in times]
    return sorted([*found, *_losses(run)], key=lambda each: each.at, reverse=True)


def _parts_done(run: Run) -> dict[int, str]:
    """Return the texts about the first step and about each quarter of the run, by the step that completes it."""
    target = run.parsed_recipe.target_steps
    facts = {"target": f"{target:,}"}
    texts = {
        0.25: _("A quarter of all %(target)s steps is done."),
        0.5: _("Half of all %(target)s steps are done."),
        0.75: _("Three quarters of all %(target)s steps are done."),
        1.0: _("All %(target)s steps are done."),
    }
    done = {round(part * target): text % facts for part, text in texts.items() if round(part * target) > 1}
    return {1: _("The first step is done."), **done}


def _beginners(run: Run) -> dict[int, list[str]]:
    """Return, for each step, the names of the people whose first samples are in it.

    Only the `NEWEST` people who joined last are included.
    """
    first = LedgerEntry.objects.filter(run=run, person=OuterRef("person")).order_by("step").values("step")[:1]
    people = run.totals.order_by().values("person").annotate(begin=Min("pk"), first=Subquery(first))
    found: dict[int, list[str]] = {}
    for name, step in people.order_by("-begin").values_list("person__username", "first")[:NEWEST]:
        if step is not None and not name.startswith(FORMER):
            found.setdefault(step, []).insert(0, name)
    return found


def _first_samples(step: int, at: datetime, names: list[str]) -> Milestone:
    text = _("The first step is done. First samples:") if step == 1 else _("First samples:")
    return Milestone(at, text, tuple(names[:NAMED]), card_sentences.more_people(max(0, len(names) - NAMED)), step)


def _losses(run: Run) -> Iterator[Milestone]:
    """Yield milestones about the best held-out loss, and about the first held-out loss below the baseline."""
    measured, baseline = selectors.heldout_points(run), run.dataset.unigram_entropy
    if len(measured) > 1:
        best = min(measured, key=lambda point: point.loss)
        facts = {"loss": f"{best.loss:.2f}", "step": f"{best.step:,}"}
        is_over = run.state == Run.State.FINISHED
        over, so_far = (
            _("Best held-out loss: %(loss)s, at step %(step)s"),
            _("Best held-out loss so far: %(loss)s, at step %(step)s"),
        )
        yield Milestone(best.at, (over if is_over else so_far) % facts, step=best.step)
    if baseline:
        below = run.snapshots.filter(is_undone=False, step__gt=0, heldout_loss__lt=baseline).order_by("index")
        for at, loss, step in below.values_list("created_at", "heldout_loss", "step")[:1]:
            text = _("Better than guessing by frequency: held-out loss %(loss)s, baseline %(baseline)s")
            yield Milestone(at, text % {"loss": f"{loss:.2f}", "baseline": f"{baseline:.2f}"}, step=step)
