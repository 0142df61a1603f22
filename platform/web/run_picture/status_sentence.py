"""The one sentence at the top of a run's page: what moves, or why nothing does and what would help. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_never

from runs.datasets.services import lacks_base
from runs.ledger.standings import Place
from runs.models import Dataset, Run
from runs.selectors import Point, RunPicture
from web.run_picture.presence import TRAINER, OnlinePeer

RUNNING = "running"  # the badge of a run that makes steps
WITHOUT_PACE_S = 3600.0
SOON_S = 3.0  # the page is a second old
HOUR, AGO = timedelta(hours=1), timedelta(minutes=10)  # a loss that moved longer ago did not move in the last hour
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
            return f"Paused by {picture.run.organizer} at step {picture.step:,}. Nothing is lost; it goes on from here."
        case Run.State.FINISHING:
            made = f"All {picture.step:,}" if picture.step >= picture.target_steps else f"{picture.step:,}"
            return picture.run.waiting_for or f"{made} steps are made. The model is being checked and packed."
        case Run.State.FINISHED:
            hands = counted(picture.people, "person", "people")
            return f"Finished: {picture.step:,} steps by {hands}. The model is yours to take home."
        case _:
            assert_never(state)


def draft_sentence(picture: RunPicture) -> str:
    """Why nobody can join yet."""
    if picture.run.waiting_for:
        return f"This run could not be opened. {picture.run.waiting_for}"
    if picture.dataset.state == Dataset.State.FAILED:
        return "The text could not be prepared."
    if lacks_base(picture.dataset):
        return "Not open yet: the model that it adapts is still to be brought."
    if picture.dataset.state != Dataset.State.READY:
        return "Not open yet: the text is being prepared. This takes seconds to minutes."
    return "Not open yet: everything is ready, and its organizer can open it."


def preparing_sentence(picture: RunPicture) -> str:
    """What must be there before the first step."""
    if picture.dataset.state != Dataset.State.READY:
        return "Getting ready: the text is being cut into tokens. The run opens by itself."
    return "Getting ready: the first parameters are being made. The run opens by itself."


def open_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """Who makes which step, or whom the run waits for."""
    if picture.run.wanted == Run.Wanted.FINISHED:
        return ending_sentence(picture, trainers)
    if picture.step >= picture.target_steps:
        return f"All {picture.step:,} steps are made. The last state is being handed in."
    if not trainers:
        rest = f"rests at step {picture.step:,}" if picture.step else "is open and waits for its first hands"
        return f"Nobody is training right now. The run {rest} and moves as soon as a machine joins."
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
    return f"Next commit in about {duration(max(1, round(wait_s)))}."


def ending_sentence(picture: RunPicture, trainers: Sequence[OnlinePeer]) -> str:
    """The organizer ended the run before its last step."""
    if trainers:
        return f"{picture.run.organizer} ends the run here, at step {picture.step:,}. The model is being handed in."
    return (
        f"{picture.run.organizer} ends the run at step {picture.step:,}. It waits for a machine to hand in the model."
    )


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
    last = points[-1]
    if before := _before_hour(points):
        span = "in the last hour" if last.at and now - last.at < AGO else "in its last hour"
    else:
        before = next((point for point in reversed(points) if point.step <= last.step - steps), points[0])
        span = f"in {counted(last.step - before.step, 'step', 'steps')}"
    change = last.loss - before.loss
    arrow = "↓" if change < 0 else "↑"
    return f"{arrow} {abs(change):.2f} {span}"


def _before_hour(points: Sequence[Point]) -> Point | None:
    """The newest point from before the last hour of steps; None where there was none, or hardly a step since."""
    last = points[-1]
    if last.at is None:
        return None
    before = next((point for point in reversed(points) if point.at and point.at <= last.at - HOUR), None)
    return before if before and last.step - before.step >= FEW else None


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
    """The run's state in one word, as its badge shows it."""
    if picture.run.state == Run.State.OPEN:
        return RUNNING if trainers and not picture.run.waiting_for else "waiting"
    return picture.run.state
