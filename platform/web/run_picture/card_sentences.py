"""The sentences on the cards of a run's page, the same for the page as it comes and for the one that is live. Pure."""

from runs.models import Run
from runs.selectors import RunPicture
from web.run_picture.status_sentence import counted

NOBODY = "No samples yet. The first volunteers appear here within a minute of joining."
NOTHING = "No activity yet."


def progress(picture: RunPicture, to_go: str) -> str:
    """“step 12 of 100 · about 88 min to go”. `to_go` is empty where nothing moves."""
    return " · ".join(filter(None, [f"step {picture.step:,} of {picture.target_steps:,}", to_go]))


def resting(picture: RunPicture) -> str:
    """What stands in place of the step's bars while no machine is here."""
    if picture.run.state == Run.State.FINISHED:
        return f"Training is finished, after {counted(picture.samples, 'sample', 'samples')}."
    return (
        f"No machines are training right now. A step takes {picture.target_batch:,} samples from all machines together."
    )


def others(relays: int, auxiliaries: int, void_rounds: int) -> str:
    """“1 relay · 1 auxiliary · 2 void rounds”."""
    here = counted(relays, "relay", "relays") if relays else ""
    more = counted(auxiliaries, "auxiliary", "auxiliaries") if auxiliaries else ""
    return " · ".join(filter(None, [here, more, counted(void_rounds, "void round", "void rounds")]))


def given(people: int, machines: int, samples: int) -> str:
    """“1,204 samples from 3 people on 4 machines”, as the last line of a leaderboard."""
    return f"{counted(samples, 'sample', 'samples')} from {given_by(people, machines)}"


def given_by(people: int, machines: int) -> str:
    """“3 people on 4 machines”."""
    return f"{counted(people, 'person', 'people')} on {counted(machines, 'machine', 'machines')}"


def without_curve(unigram: float | None) -> str:
    """What stands in place of the curve. `unigram`: the text's unigram entropy in nats per token."""
    to_beat = f"Baseline: {unigram:.2f} nats per token, the loss of guessing by frequency alone." if unigram else ""
    return f"The curve starts with the first step. {to_beat}".rstrip()


def percent(part: float) -> str:
    """A part of one in words: “12 %”, “0.4 %”, “under 0.1 %”; empty for none."""
    if part >= 0.0995:
        return f"{100 * part:.0f} %"
    return f"{100 * part:.1f} %" if part >= 0.0005 else ("under 0.1 %" if part else "")
