"""The one sentence at the top of a run's page: what moves, or why nothing does and what would help. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import assert_never

from peer_agent.plot.scales import perplexity_text
from runs import progress
from runs.datasets.services import lacks_base
from runs.ledger.standings import Place
from runs.models import Dataset, Release, Run
from runs.selectors import Measured, Point, RunPicture, RunProgress
from web.run_picture.presence import TRAINER, OnlinePeer

RUNNING = "running"  # the state of a run that makes steps
WITHOUT_PACE_S = 3600.0
SOON_S = 3.0  # the page is a second old
HOUR, AGO = timedelta(hours=1), timedelta(minutes=10)  # a loss that moved longer ago did not move in the last hour
PERPLEXITY = "perplexity"  # as recipes call it among the figures of a snapshot
FEW = 5  # steps in an hour that say nothing of it yet


def run_sentence(picture: RunPicture, peers: Sequence[OnlinePeer]) -> str:
    """What the run does now."""
    match state := Run.State(picture.run.state):
        case Run.State.DRAFT:
            return draft_sentence(picture)
        case Run.State.PREPARING:
            return preparing_sentence(picture)
        case Run.State.OPEN:
            return open_sentence(picture, [peer for peer in peers if peer.role == TRAINER])
        case Run.State.PAUSED:
            return f"Paused at step {picture.step:,}. Nothing is lost; training resumes from here."
        case Run.State.FINISHING:
            made = f"All {picture.step:,}" if picture.step >= picture.target_steps else f"{picture.step:,}"
            return picture.run.waiting_for or f"{made} steps are done. The model is being checked and packaged."
        case Run.State.FINISHED:
            people = counted(picture.people, "person", "people")
            return f"Finished: {picture.step:,} steps by {people}. The model is ready to download."
        case _:
            assert_never(state)


def draft_sentence(picture: RunPicture) -> str:
    """Why nobody can join yet."""
    if picture.run.waiting_for:
        return f"This run could not be published. {picture.run.waiting_for}"
    if picture.dataset.state == Dataset.State.FAILED:
        return "The dataset could not be prepared."
    if lacks_base(picture.dataset):
        return "Draft: the model to adapt is still missing."
    if picture.dataset.state != Dataset.State.READY:
        return "Draft: the dataset is being prepared. This takes seconds to minutes."
    return "Draft: everything is ready for the organizer to publish it."


def preparing_sentence(picture: RunPicture) -> str:
    """What must be there before the first step."""
    if picture.dataset.state != Dataset.State.READY:
        return "Preparing the dataset. The run starts by itself."
    return "Preparing the initial model. The run starts by itself."


def open_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """Who makes which step, or whom the run waits for."""
    if picture.run.wanted == Run.Wanted.FINISHED:
        return ending_sentence(picture, trainers)
    if picture.step >= picture.target_steps:
        return f"All {picture.step:,} steps are done. The final model is being uploaded."
    if not trainers:
        at = f"is at step {picture.step:,} and continues" if picture.step else "starts"
        return f"Nobody is training right now. The run {at} as soon as a machine joins."
    if picture.run.waiting_for:
        return f"{company(trainers)} here. {sentence(picture.run.waiting_for)}"
    return f"{company(trainers)} making step {picture.step + 1:,}. {next_commit(picture, trainers)}".rstrip()


def next_commit(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """When the step will be made; how long steps take where that is too soon to be told."""
    if not picture.pace_s:
        return ""
    if picture.pace_s < SOON_S:
        return f"A step takes about {duration(picture.pace_s)}."
    rate = sum(peer.samples_per_s for peer in trainers)
    left = picture.target_batch - sum(peer.done for peer in trainers)
    gathering_s = picture.target_batch / rate if rate else picture.pace_s
    averaging_s = max(0.0, picture.pace_s - gathering_s)
    wait_s = averaging_s + (max(0, left) / rate if rate else gathering_s)
    return f"Next step in about {duration(max(1, round(wait_s)))}."


def ending_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """The organizer ended the run before its last step."""
    if trainers:
        return f"The run is ending at step {picture.step:,}. The model is being uploaded."
    ended = f"The run was ended at step {picture.step:,}."
    return f"{ended} It is waiting for a machine to upload the model."


def company(trainers: Sequence[OnlinePeer]) -> str:
    """“3 people on 4 machines are”."""
    people = len({peer.name for peer in trainers})
    machines = counted(len(trainers), "machine", "machines")
    return f"{counted(people, 'person', 'people')} on {machines} {'is' if people == 1 else 'are'}"


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many}"


def sentence(text: str) -> str:
    """The text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "!", "?")) else ".")


def duration(seconds: float) -> str:
    """A length of time as people say it, rounded to what is known."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{round(hours / 24)} days"


def to_go(picture: RunPicture) -> str:
    """How long the rest takes at the present pace; empty where nothing moves."""
    left = picture.target_steps - picture.step
    if picture.run.wanted == Run.Wanted.FINISHED:
        return ""
    if picture.run.state != Run.State.OPEN or not picture.pace_s or left <= 0 or picture.pace_s > WITHOUT_PACE_S:
        return ""
    return f"about {duration(left * picture.pace_s)} to go"


def trend(points: Sequence[Point], now: datetime, steps: int = 100) -> str:
    """How the loss moved: “↓ 0.11 in the last hour”, or over the last steps of a run that is younger or slow."""
    if len(points) < 2:
        return ""
    last, places = points[-1], range(len(points) - 1, -1, -1)
    hour_ago = _before_hour(points)
    before = next((place for place in places if points[place].step <= last.step - steps), 0)
    moved = progress.change(points, before if hour_ago is None else hour_ago)
    if moved is None:
        return ""
    hour = "in the last hour" if last.at and now - last.at < AGO else "in its last hour"
    span = f"in {counted(moved.steps, 'step', 'steps')}" if hour_ago is None else hour
    return f"{'↓' if moved.loss < 0 else '↑'} {abs(moved.loss):.2f} {span}"


def _before_hour(points: Sequence[Point]) -> int | None:
    """The place of the newest point from before the last hour of steps; None where there is none, or it is too near."""
    last = points[-1]
    if last.at is None:
        return None
    earlier = (place for place, point in enumerate(points) if point.at and point.at <= last.at - HOUR)
    before = max(earlier, default=None)
    return before if before is not None and last.step - points[before].step >= FEW else None


def standing(place: Place) -> str:
    """“you: 14th, 212 samples short of 13th”."""
    if place.short is None:
        return f"you: {ordinal(place.rank)}"
    short = counted(place.short, "sample", "samples")
    return f"you: {ordinal(place.rank)}, {short} short of {ordinal(place.next_rank)}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def state_word(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """The state of the run on this page."""
    return word_of(picture.run, picture.dataset, trainers, release=picture.release)


def word_of(run: Run, dataset: Dataset, trainers: Sequence[OnlinePeer], *, release: Release | None = None) -> str:
    """A run's state in one word, also a class of the style sheet. `release`: where it may have failed."""
    if run.state == Run.State.OPEN:
        return RUNNING if trainers and not run.waiting_for else "waiting"
    has_failed = release is not None and release.state == Release.State.FAILED and run.state == Run.State.FINISHING
    if run.state == Run.State.DRAFT:
        has_failed = bool(run.waiting_for) or dataset.state == Dataset.State.FAILED
    return "failed" if has_failed else run.state


def state_label(word: str, trainers: Sequence[OnlinePeer]) -> str:
    """The state as people read it, everywhere."""
    return "Waiting for volunteers" if word == "waiting" and not trainers else word.capitalize()


def held_out_note(measured: Sequence[Measured], said: Callable[[float], str] = "{:.2f}".format) -> str:
    """“best 3.30 at step 400”, beside the newest held-out loss. `said`: a loss in figures."""
    if len(measured) < 2:
        return f"at step {measured[-1].step:,}" if measured else ""
    best = min(measured, key=lambda point: point.loss)
    if best is measured[-1]:
        return f"best so far, at step {best.step:,}"
    return f"at step {measured[-1].step:,} · best {said(best.loss)} at step {best.step:,}"


def perplexity_words(measured: Sequence[Measured]) -> tuple[str, str]:
    """The newest one's perplexity, and what stands beside it; empty for a model that is not judged by that."""
    if not measured or PERPLEXITY not in measured[-1].figures:
        return "", ""
    return perplexity_text(measured[-1].loss), held_out_note(measured, perplexity_text)


def passes_note(passes: float | None) -> str:
    """“42 passes over the dataset”; empty where that cannot be said."""
    if not passes:
        return ""
    number = f"{passes:,.0f}" if passes >= 10 else f"{passes:.1f}" if passes >= 0.1 else "less than 0.1"
    return f"{number} {'pass' if number == '1.0' else 'passes'} over the dataset"


def overfitting_sentence(seen: RunProgress) -> str:
    """Whether the model gets worse at what it has not seen; empty where it does not."""
    found = progress.overfitting(seen.points, seen.heldout)
    if found is None:
        return ""
    best, newest = found
    is_over = seen.run.state == Run.State.FINISHED
    return (
        f"The model {'overfitted' if is_over else 'is overfitting'}: held-out loss rose from {best.loss:.2f} at step "
        f"{best.step:,} to {newest.loss:.2f} at step {newest.step:,} while training loss fell. The snapshot of step "
        f"{best.step:,} is the best{'' if is_over else ' so far'}."
    )
