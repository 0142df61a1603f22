"""Sentences on the cards of a run's page, used by both the rendered page and the live feed. Pure functions."""

from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from runs.ledger.standings import Period
from runs.models import Run
from runs.selectors import RunPicture
from web.run_picture import counts

NOBODY = gettext_lazy("No samples yet. The first volunteers will appear here within a minute of joining.")
NO_SAMPLES_BEFORE_START = gettext_lazy("No samples yet. The leaderboard starts with the first step.")
NO_SAMPLES_BEFORE_PAUSE = gettext_lazy("No samples yet. Training starts when the organizer resumes the run.")
PERIOD_NAMES = {
    Period.ALL: gettext_lazy("All time"),
    Period.WEEK: gettext_lazy("This week"),
    Period.DAY: gettext_lazy("Today"),
}
PERIOD_NOTES = {
    Period.WEEK: gettext_lazy("Recent work counts more: a sample's weight halves every week."),
    Period.DAY: gettext_lazy("Samples since midnight, UTC."),
}
NOBODY_IN = {
    Period.WEEK: gettext_lazy("No samples in recent weeks."),
    Period.DAY: gettext_lazy("No samples today."),
}
NOTHING = gettext_lazy("No activity yet.")


def nobody(run: Run, now: datetime | None = None) -> str:
    """Return the text shown in place of a leaderboard without people."""
    if run.state == Run.State.PAUSED:
        return str(NO_SAMPLES_BEFORE_PAUSE)
    if run.state == Run.State.PREPARING or run.later_start(now) is not None:
        return str(NO_SAMPLES_BEFORE_START)
    return str(NOBODY)


def progress(picture: RunPicture, to_go: str) -> str:
    """Return text such as “step 12 of 100 · about 88 min to go”. `to_go` is empty if the run is not advancing."""
    return " · ".join(filter(None, [step_of(picture.run, picture.step, picture.target_steps), to_go]))


def step_of(run: Run, step: int, target: int) -> str:
    """Return text such as “step 12 of 100” or, for a run that was ended early, “ended at step 12”."""
    is_early = last_step(run, step, target) < target
    message = _("ended at step %(step)s") if is_early else _("step %(step)s of %(target)s")
    return message % {"step": f"{step:,}", "target": f"{target:,}"}


def last_step(run: Run, step: int, target: int) -> int:
    """Return the step at which a run's progress bar is full: the last one made, if the run has stopped for good."""
    return step if run.state in (Run.State.FINISHING, Run.State.FINISHED) else target


def resting(picture: RunPicture) -> str:
    """Return the text shown in place of the step's bars while no machine is connected."""
    if picture.run.state == Run.State.FINISHED:
        return _("Training finished after %(samples)s.") % {"samples": counts.samples(picture.samples)}
    if picture.run.state == Run.State.PAUSED:
        return _("Training is paused.")
    return _("No machines are training right now. A step needs %(samples)s from all machines together.") % {
        "samples": counts.samples(picture.target_batch)
    }


def others(relays: int, auxiliaries: int, void_rounds: int) -> str:
    """Return text such as “1 relay · 1 auxiliary · 2 retried steps”, or "" if there are none."""
    parts = [
        counts.with_number(ngettext("%(number)s relay", "%(number)s relays", relays), relays) if relays else "",
        counts.with_number(ngettext("%(number)s auxiliary", "%(number)s auxiliaries", auxiliaries), auxiliaries)
        if auxiliaries
        else "",
        counts.with_number(ngettext("%(number)s retried step", "%(number)s retried steps", void_rounds), void_rounds)
        if void_rounds
        else "",
    ]
    return " · ".join(filter(None, parts))


def more_people(number: int) -> str:
    """Return text such as “and 4 more”, to follow a list of names, or "" for 0."""
    return _("and %(number)s more") % {"number": f"{number:,}"} if number else ""


def given(people: int, machines: int, samples: int) -> str:
    """Return text such as “1,204 samples from 3 people on 4 machines”, to go below a leaderboard."""
    parts = {"samples": counts.samples(samples), "people": counts.people(people), "machines": counts.machines(machines)}
    return _("%(samples)s from %(people)s on %(machines)s") % parts


def given_by(people: int, machines: int) -> str:
    """Return text such as “3 people on 4 machines”."""
    return _("%(people)s on %(machines)s") % {"people": counts.people(people), "machines": counts.machines(machines)}


def without_curve(unigram: float | None) -> str:
    """Return the text shown before the curve begins. `unigram` is the data's entropy in nats per token."""
    begins = _("The curve will start with the first step.")
    if not unigram:
        return begins
    to_beat = _("Baseline: %(loss)s nats per token (guessing by frequency alone).")
    return f"{begins} {to_beat % {'loss': f'{unigram:.2f}'}}"


def percent(part: float) -> str:
    """Return a fraction as text, such as “12%”, “0.4%” or “under 0.1%”, or "" for 0."""
    if part >= 0.0995:
        return f"{100 * part:.0f}%"
    return f"{100 * part:.1f}%" if part >= 0.0005 else (_("under 0.1%%") % {} if part else "")
