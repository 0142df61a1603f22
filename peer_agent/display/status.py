"""The status of an agent, as figures and one sentence. The agent writes it to a small file for other commands."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.machine.energy import Used, used_in_words
from peer_agent.machine.faults import in_readers_words
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import gettext_noop, in_bytes, ngettext, translated
from peer_agent.protocol import reasons
from peer_agent.protocol.errors import Fault, Problem

FILE = "status.json"
STALE_S = 15.0  # agents write about once a second
EVENTS = 3


class ShownTrouble(Struct, frozen=True):
    """A current fault, with its English wording from the error catalogue."""

    code: str
    title: str
    severity: str
    text: str

    @property
    def line(self) -> str:
        """The fault as one paragraph in the reader's language."""
        text = in_readers_words(Fault(self.code, self.text)).text.replace("\n", " ")
        return _("{title} ({code}). {text}").format(title=self.heading, code=self.code, text=text)

    @property
    def heading(self) -> str:
        return translated(self.title)


class Status(Struct, kw_only=True):
    """This machine's status in one run. `step` is the current step. Times are Unix timestamps."""

    pid: int = msgspec.field(default_factory=os.getpid)
    at: float = 0.0
    began: float = msgspec.field(default_factory=time.time)
    site: str = ""
    run: str = ""
    title: str = ""
    person: str = ""
    role: str = "trainer"
    doing: str = "joining"
    reason: str = ""
    step: int = 0
    target_steps: int = 0
    loss: float | None = None  # training loss of the last step
    heldout_loss: float | None = None  # held-out loss of the latest snapshot measured by the site
    warning: str = ""  # the site's warning about training, or ""
    samples: int = 0
    quota: int = 0
    samples_per_s: float = 0.0
    up_mbps: float = 0.0
    down_mbps: float = 0.0
    energy_wh: float = 0.0  # estimated electricity used and bytes sent since this agent joined the run
    sent_bytes: int = 0
    # The user's samples in this run, as reported by the site. Until its first report, those since this agent began.
    accepted: int = 0
    averaged_bytes: int = 0  # bytes averaged by an auxiliary since it began
    rank: int | None = None
    people: int = 0  # people with credit in this run
    events: list[str] = []
    troubles: list[ShownTrouble] = []  # most severe first
    relays: list[str] = []  # addresses of the run's relays


SENTENCES = {
    "joining": gettext_noop("Joining the run."),
    "loading": gettext_noop("Loading the model."),
    "catching up": gettext_noop("Catching up; the others are training step {step}."),
    "training": gettext_noop("Training step {step}."),
    "resting": gettext_noop("Share of step {step} done; waiting for others."),
    "averaging": gettext_noop("Averaging step {step}."),
    "helping": gettext_noop("Averaging for the machines that train step {step}."),
    "waiting": gettext_noop("{reason}."),
    "paused": gettext_noop("The organizer has paused the run."),
    "away": gettext_noop("Waiting for the site."),
    "leaving": gettext_noop("Finishing step {step}, then leaving."),
    "on hold": gettext_noop("On hold: {reason}."),
    "finished": gettext_noop("The run is finished. Thank you! Your work is in the model."),
}


def sentence(status: Status) -> str:
    reason = reasons.in_words(status.reason, translated) or _("waiting, no reason given")
    text = translated(SENTENCES[status.doing]).format(step=f"{status.step:,}", reason=reason)
    return f"{text[:1].upper()}{text[1:]}"


def write_status(home: Home, status: Status, now: float) -> None:
    """Write the status file atomically. Ignore disk errors, which other parts of the agent report."""
    status.at = now
    with contextlib.suppress(Problem):
        home.write(FILE, msgspec.json.encode(status))


def read_status(home: Home) -> Status | None:
    """Return the status of the agent running in this home.

    Return None if no agent is running, or if it has written no readable status.
    """
    holder, status = home.holder(), last_status(home)
    return status if holder is not None and status.pid == holder and status.doing in SENTENCES else None


def last_status(home: Home) -> Status:
    """Return the last status written in this home, even if its agent has left.

    Return an empty status if no agent has written one.
    """
    try:
        return msgspec.json.decode((home.folder / FILE).read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Status(pid=-1)  # no process has this id


def status_facts(home: Home, now: float) -> dict[str, Any]:
    """Return the output of `manyhands status --json`: `running`, and the agent's status if available."""
    holder, status = home.holder(), read_status(home)
    if status is None:
        return {"running": holder is not None, "pid": holder}
    said: dict[str, Any] = msgspec.to_builtins(status)
    more = {"running": True, "stale": is_stale(status, now), "sentence": sentence(status)}
    return said | more


def status_lines(home: Home, facts: dict[str, Any]) -> list[str]:
    if not facts["running"]:
        return [_("No agent is running in {folder}.").format(folder=home.folder)]
    if "sentence" not in facts:
        words = _("Process {pid} is running in {folder} but has reported nothing yet.")
        return [words.format(pid=facts["pid"], folder=home.folder)]
    about = _("{run} at {site}, for {person} (process {pid})")
    lines = [
        about.format(**{name: facts[name] for name in ("site", "person", "pid")}, run=facts["title"] or facts["run"]),
        facts["sentence"],
        *(ShownTrouble(**trouble).line for trouble in facts["troubles"]),
        *filter(None, [facts["warning"]]),
        "; ".join([", ".join(_progress(facts)), *_given(facts)]),
        *filter(None, [used_in_words(Used(facts["energy_wh"], facts["sent_bytes"]))]),
    ]
    silent = _("No update for a few seconds: asleep or very busy.")
    return [*lines, silent] if facts["stale"] else lines


def _progress(facts: Mapping[str, Any]) -> Iterator[str]:
    yield _("step {step} of {steps}").format(step=f"{facts['step']:,}", steps=f"{facts['target_steps']:,}")
    if facts["loss"] is not None:
        yield _("training loss {loss}").format(loss=f"{facts['loss']:.3f}")
    if facts["heldout_loss"] is not None:
        yield _("held-out loss {loss}").format(loss=f"{facts['heldout_loss']:.3f}")


def _given(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["role"] == "trainer":
        yield _("{speed} samples/s").format(speed=f"{facts['samples_per_s']:.1f}")
    yield _("up {up}, down {down} Mb/s").format(up=f"{facts['up_mbps']:.1f}", down=f"{facts['down_mbps']:.1f}")
    if facts["role"] != "trainer":
        yield _("{size} averaged here").format(size=in_bytes(facts["averaged_bytes"]))
        return
    credited = ngettext("{count} sample credited", "{count} samples credited", facts["accepted"])
    count = credited.format(count=f"{facts['accepted']:,}")
    rank = _("rank {rank} of {people}")
    yield count if facts["rank"] is None else f"{count}, {rank.format(rank=facts['rank'], people=facts['people'])}"


def is_stale(status: Status, now: float) -> bool:
    """Return True if the status is so old that its agent must be asleep or very busy."""
    return abs(now - status.at) > STALE_S
