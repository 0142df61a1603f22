"""The sentence at the top of a run's page: what it is doing, or what it is waiting for. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, assert_never

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext, pgettext_lazy

from coordination.presence import TRAINER, OnlinePeer
from peer_agent.plot import perplexity_text
from runs import selectors
from runs.datasets.services import lacks_base
from runs.ledger.standings import Place
from runs.models import Dataset, Release, Run
from runs.selectors import Measured, Point, RunPicture, RunProgress
from web.run_picture.counts import duration, machines, ordinal, people, samples, steps
from web.words import reason_in_words_of_page

RUNNING = "running"  # the state of a run that is advancing
STUCK = "stuck"  # the state of a run that makes no step although machines are training
WITHOUT_PACE_S = 3600.0
AVERAGING = ("offer", "reduce", "commit")  # a step's phases once its samples are there
SOON_S = 3.0  # shorter waits are not shown, because the page may be a second old
# If the last step is older than AGO, the text does not say “in the last hour”.
HOUR, AGO = timedelta(hours=1), timedelta(minutes=10)
PERPLEXITY = "perplexity"  # perplexity's name among a snapshot's figures
STARTS = gettext_lazy("Starts {when}, {left}. {ready}")
FEW = 5  # with fewer steps in an hour, no hourly trend is shown
LABELS = {
    Run.State.DRAFT.value: pgettext_lazy("state of a run", "Draft"),
    Run.State.PREPARING.value: pgettext_lazy("state of a run", "Preparing"),
    "waiting": pgettext_lazy("state of a run", "Waiting"),
    RUNNING: pgettext_lazy("state of a run", "Running"),
    STUCK: pgettext_lazy("state of a run", "Stuck"),
    Run.State.PAUSED.value: pgettext_lazy("state of a run", "Paused"),
    Run.State.FINISHING.value: pgettext_lazy("state of a run", "Finishing"),
    Run.State.FINISHED.value: pgettext_lazy("state of a run", "Finished"),
    "failed": pgettext_lazy("state of a run", "Failed"),
}


def run_sentence(picture: RunPicture, peers: Sequence[OnlinePeer], now: datetime | None = None) -> str:
    match state := Run.State(picture.run.state):
        case Run.State.DRAFT:
            return draft_sentence(picture)
        case Run.State.PREPARING:
            return preparing_sentence(picture)
        case Run.State.OPEN:
            return open_sentence(picture, [peer for peer in peers if peer.role == TRAINER], now)
        case Run.State.PAUSED:
            if not picture.step:
                return _("Paused before the first step.")
            if picture.run.is_halted:
                facts = at_step(picture) | {"reason": reason_in_words_of_page(picture.run.waiting_for)}
                return _("Paused by the site at step %(step)s: %(reason)s.") % facts
            return _("Paused at step %(step)s. Nothing is lost.") % at_step(picture)
        case Run.State.FINISHING:
            return finishing_sentence(picture)
        case Run.State.FINISHED:
            given = {"steps": steps(picture.step), "people": people(picture.people)}
            return _("Finished: %(steps)s by %(people)s. The model is ready to download.") % given
        case _:
            assert_never(state)


def stuck_sentence(
    picture: RunPicture, since: datetime, now: datetime, trainers: Sequence[OnlinePeer], phase: str
) -> str:
    """Return since when a run has been stuck, with the day if this was not today, and what is missing if known."""
    at = date_format(since, "H:i" if since.date() == now.date() else "j F, H:i")
    done, target = sum(peer.done for peer in trainers), picture.target_batch
    facts = {"step": f"{picture.step + 1:,}", "at": at, "done": f"{done:,}", "target": f"{target:,}"}
    if not trainers or not phase:
        return _("Stuck at step %(step)s since %(at)s UTC.") % facts
    if phase in AVERAGING or done >= target:
        message = _("Stuck at step %(step)s since %(at)s UTC: the samples have not been averaged yet.")
    else:
        message = ngettext(
            "Stuck at step %(step)s since %(at)s UTC: only %(done)s of %(target)s sample has arrived. "
            "Another machine would help.",
            "Stuck at step %(step)s since %(at)s UTC: only %(done)s of %(target)s samples have arrived. "
            "Another machine would help.",
            target,
        )
    return message % facts


def at_step(picture: RunPicture) -> dict[str, str]:
    return {"step": f"{picture.step:,}"}


def finishing_sentence(picture: RunPicture) -> str:
    if picture.release is not None and picture.release.state == Release.State.FAILED:
        # The page says why.
        message = ngettext(
            "%(step)s step is done, but the model could not be prepared for download.",
            "%(step)s steps are done, but the model could not be prepared for download.",
            picture.step,
        )
        return message % at_step(picture)
    if picture.run.waiting_for:
        return reason_in_words_of_page(picture.run.waiting_for)
    if picture.step >= picture.target_steps:
        return _("All %(step)s steps are done. The model is being checked and packaged.") % at_step(picture)
    message = ngettext(
        "%(step)s step is done. The model is being checked and packaged.",
        "%(step)s steps are done. The model is being checked and packaged.",
        picture.step,
    )
    return message % at_step(picture)


def draft_sentence(picture: RunPicture) -> str:
    if picture.dataset.state == Dataset.State.FAILED:
        return _("The dataset could not be prepared.")  # the page shows the error, which says what to do
    if picture.run.waiting_for:
        return _("This run could not be published. %(reason)s") % {
            "reason": reason_in_words_of_page(picture.run.waiting_for)
        }
    if lacks_base(picture.dataset):
        return _("Draft: the model to adapt is still missing.")
    if picture.dataset.state != Dataset.State.READY:
        return _("Draft: the dataset is being prepared. This takes up to a few minutes.")
    return _("Draft: volunteers can join once %(organizer)s publishes it.") % {"organizer": picture.run.organizer}


def preparing_sentence(picture: RunPicture) -> str:
    if picture.dataset.state != Dataset.State.READY:
        return _("Preparing the dataset. The run will start automatically.")
    return _("Preparing the initial model. Joining opens when it is ready.")


def open_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer], now: datetime | None = None) -> str:
    """Return a sentence about an open run: how many people work on which step, or what the run is waiting for."""
    if picture.run.wanted == Run.Wanted.FINISHED:
        return ending_sentence(picture, trainers)
    if (start := start_of(picture.run, trainers, now)) is not None:
        return str(STARTS).format(when=start.when, left=start.left, ready=start.ready)
    if picture.step >= picture.target_steps:
        return _("All %(step)s steps are done. The final model is being uploaded.") % at_step(picture)
    if not trainers:
        return empty_sentence(picture)
    if picture.run.waiting_for:
        return waiting_sentence(picture, trainers)
    return making_sentence(picture, trainers)


class Start(NamedTuple):
    """The start of a waiting run: its time, also as text, and texts about the time left and the people ready."""

    at: datetime
    when: str
    left: str
    ready: str


def start_of(run: Run, trainers: Sequence[OnlinePeer], now: datetime | None = None) -> Start | None:
    """Return the start of an open run that is waiting for its start time, or None for any other run."""
    now = now or timezone.now()
    at = run.later_start(now) if run.state == Run.State.OPEN and run.wanted != Run.Wanted.FINISHED else None
    if at is None:
        return None
    number, facts = company(trainers)
    ready = ngettext("%(people)s is ready.", "%(people)s are ready.", number) % facts
    left = _("in %(duration)s") % {"duration": duration((at - now).total_seconds())}
    return Start(at, start_words(at, now), left, ready if number else _("Nobody is ready yet."))


def start_words(at: datetime, now: datetime) -> str:
    """Return text such as “Saturday 5 December, 18:00 UTC”, including the year if it is not this one."""
    return f"{date_format(at, 'l j F, H:i' if at.year == now.year else 'l j F Y, H:i')} UTC"


def start_label(run: Run, now: datetime | None = None) -> str:
    """Return text such as “Starts Saturday 5 December, 18:00 UTC”, or "" unless an open run is waiting to start."""
    now = now or timezone.now()
    at = run.later_start(now) if run.state == Run.State.OPEN else None
    return _("Starts %(when)s") % {"when": start_words(at, now)} if at else ""


def empty_sentence(picture: RunPicture) -> str:
    if not picture.step and picture.minimum_trainers > 1:
        least = machines(picture.minimum_trainers)
        return _("Nobody is training right now. The run starts once %(machines)s have joined.") % {"machines": least}
    if not picture.step:
        return _("Nobody is training right now. The first machine that joins starts the run.")
    return _(
        "Nobody is training right now. The run is at step %(step)s and will continue as soon as a machine joins."
    ) % at_step(picture)


def next_commit(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """Return a sentence saying when the next step is due or, if steps are very short, how long they take."""
    if not picture.pace_s:
        return ""
    if picture.pace_s < SOON_S:
        return _("A step takes about %(duration)s.") % {"duration": duration(picture.pace_s)}
    rate = sum(peer.samples_per_s for peer in trainers)
    left = picture.target_batch - sum(peer.done for peer in trainers)
    gathering_s = picture.target_batch / rate if rate else picture.pace_s
    averaging_s = max(0.0, picture.pace_s - gathering_s)
    wait_s = averaging_s + (max(0, left) / rate if rate else gathering_s)
    return _("Next step in about %(duration)s.") % {"duration": duration(max(1, round(wait_s)))}


def ending_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    if trainers:
        return _("The run is ending at step %(step)s. The model is being uploaded.") % at_step(picture)
    return _("The run was ended at step %(step)s. It is waiting for a machine to upload the model.") % at_step(picture)


def making_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """Return a sentence such as “3 people on 4 machines are working on step 413. Next step in about 4 s.”"""
    number, facts = company(trainers)
    made = ngettext(
        "%(people)s on %(machines)s is working on step %(step)s.",
        "%(people)s on %(machines)s are working on step %(step)s.",
        number,
    ) % {**facts, "step": f"{picture.step + 1:,}"}
    return f"{made} {next_commit(picture, trainers)}".rstrip()


def waiting_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    number, facts = company(trainers)
    here = ngettext("%(people)s on %(machines)s is online.", "%(people)s on %(machines)s are online.", number) % facts
    return f"{here} {sentence(reason_in_words_of_page(picture.run.waiting_for))}"


def company(trainers: Sequence[OnlinePeer]) -> tuple[int, dict[str, str]]:
    """Return how many people the trainers belong to, and phrases such as “3 people” and “4 machines” for a sentence."""
    number = len({peer.name for peer in trainers})
    return number, {"people": people(number), "machines": machines(len(trainers))}


def sentence(text: str) -> str:
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "!", "?", "।")) else _("%(text)s.") % {"text": text}


def to_go(picture: RunPicture) -> str:
    """Return text such as “about 2 h 5 min to go”, or "" if the run is not advancing."""
    left = picture.target_steps - picture.step
    if picture.run.wanted == Run.Wanted.FINISHED:
        return ""
    if picture.run.state != Run.State.OPEN or not picture.pace_s or left <= 0 or picture.pace_s > WITHOUT_PACE_S:
        return ""
    return _("about %(duration)s to go") % {"duration": duration(left * picture.pace_s)}


def trend(points: Sequence[Point], now: datetime, steps: int = 100) -> str:
    """Return text such as “down 0.11 in the last hour” or, for a young or slow run, “down 0.11 in 100 steps”."""
    if len(points) < 2:
        return ""
    last, places = points[-1], range(len(points) - 1, -1, -1)
    hour_ago = _before_hour(points)
    before = next((place for place in places if points[place].step <= last.step - steps), 0)
    moved = selectors.change(points, before if hour_ago is None else hour_ago)
    if moved is None:
        return ""
    loss = (_("down %(loss)s") if moved.loss < 0 else _("up %(loss)s")) % {"loss": f"{abs(moved.loss):.2f}"}
    if hour_ago is None:
        many = ngettext("%(loss)s in %(number)s step", "%(loss)s in %(number)s steps", moved.steps)
        return many % {"loss": loss, "number": f"{moved.steps:,}"}
    if last.at and now - last.at < AGO:
        return _("%(loss)s in the last hour") % {"loss": loss}
    return _("%(loss)s in its last hour") % {"loss": loss}


def _before_hour(points: Sequence[Point]) -> int | None:
    """Return the index of the latest point an hour or more before the last, or None if it is under `FEW` steps away."""
    last = points[-1]
    if last.at is None:
        return None
    earlier = (place for place, point in enumerate(points) if point.at and point.at <= last.at - HOUR)
    before = max(earlier, default=None)
    return before if before is not None and last.step - points[before].step >= FEW else None


def standing(place: Place) -> str:
    """Return text such as “you: 14th, 212 samples short of 13th”."""
    if place.short is None:
        return _("you: %(rank)s") % {"rank": ordinal(place.rank)}
    facts = {"rank": ordinal(place.rank), "samples": samples(place.short), "next_rank": ordinal(place.next_rank)}
    return _("you: %(rank)s, %(samples)s short of %(next_rank)s") % facts


def training_in(run: Run, peers: Iterable[OnlinePeer]) -> list[OnlinePeer]:
    """Return the machines that are training now.

    In a paused or finishing run there are none, although trainers may stay connected.
    """
    return (
        [] if run.state in (Run.State.PAUSED, Run.State.FINISHING) else [peer for peer in peers if peer.role == TRAINER]
    )


def state_word(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    return word_of(picture.run, picture.dataset, trainers, release=picture.release)


def word_of(run: Run, dataset: Dataset, trainers: Sequence[OnlinePeer], *, release: Release | None = None) -> str:
    """Return a run's state in one word, which is also its CSS class.

    “failed” is the word for a draft whose data or publication failed, and for a finishing run whose `release` failed.
    """
    if run.state == Run.State.OPEN:
        return RUNNING if trainers and not run.waiting_for else "waiting"
    has_failed = release is not None and release.state == Release.State.FAILED and run.state == Run.State.FINISHING
    if run.state == Run.State.DRAFT:
        has_failed = bool(run.waiting_for) or dataset.state == Dataset.State.FAILED
    return "failed" if has_failed else run.state


def state_label(word: str, trainers: Sequence[OnlinePeer]) -> str:
    if word == "waiting" and not trainers:
        return pgettext("state of a run", "Waiting for volunteers")
    return str(LABELS[word])


def held_out_note(measured: Sequence[Measured], said: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return a note on held-out losses, such as “at step 500 · best 3.30 at step 400”. `said` formats a loss."""
    if not measured:
        return ""
    newest, best = measured[-1], min(measured, key=lambda point: point.loss)
    if len(measured) < 2:
        return _("at step %(step)s") % {"step": f"{newest.step:,}"}
    if best is newest:
        return _("the lowest, at step %(step)s") % {"step": f"{best.step:,}"}
    facts = {"step": f"{newest.step:,}", "best": said(best.loss), "best_step": f"{best.step:,}"}
    return _("at step %(step)s · best %(best)s at step %(best_step)s") % facts


def perplexity_words(measured: Sequence[Measured]) -> tuple[str, str]:
    """Return the latest perplexity and its accompanying note, or empty strings for a model without that figure."""
    if not measured or PERPLEXITY not in measured[-1].figures:
        return "", ""
    return perplexity_text(measured[-1].loss), held_out_note(measured, perplexity_text)


def passes_note(passes: float | None) -> str:
    """Return text such as “42 passes through the dataset (epochs)”, or "" if unknown."""
    if not passes:
        return ""
    if passes < 0.1:
        return _("less than 0.1 passes through the dataset (epochs)")
    number = f"{passes:,.0f}" if passes >= 10 else f"{passes:.1f}"
    return ngettext(
        "%(number)s pass through the dataset (epoch)",
        "%(number)s passes through the dataset (epochs)",
        1 if number == "1.0" else 2,
    ) % {"number": number}


def overfitting_sentence(seen: RunProgress) -> str:
    """Return a warning if the model is overfitting, otherwise an empty string."""
    found = selectors.overfitting(seen.points, seen.heldout)
    if found is None:
        return ""
    best, newest = found
    facts = {
        "best": f"{best.loss:.2f}",
        "best_step": f"{best.step:,}",
        "newest": f"{newest.loss:.2f}",
        "newest_step": f"{newest.step:,}",
    }
    if seen.run.state == Run.State.FINISHED:
        return (
            _(
                "The model overfitted: held-out loss rose from %(best)s at step %(best_step)s to %(newest)s at step "
                "%(newest_step)s while training loss fell. The snapshot of step %(best_step)s is the best."
            )
            % facts
        )
    return (
        _(
            "The model is overfitting: held-out loss rose from %(best)s at step %(best_step)s to %(newest)s at step "
            "%(newest_step)s while training loss fell. The snapshot of step %(best_step)s is the best so far."
        )
        % facts
    )
