"""The plain-line view reports a problem once when it begins and once when it ends."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.display.status import sentence
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.records import open_head
from tests.agent.scripted_site import commits
from tests.protocol.identities import SITE_PUBLIC

AWAY, NO_RELAY = Fault.of("E134", reason="refused"), Fault.of("E135", relays="ws://r/")


class Clock:
    def __init__(self, view: View) -> None:
        self.view, self.now = view, 0.0
        view.clock = lambda: self.now

    def at(self, now: float) -> list[str]:
        """Set the clock, and return the codes of the problems that the view shows."""
        self.now = now
        self.view.look()
        return [trouble.code for trouble in self.view.now.troubles]


@pytest.fixture
def view() -> View:
    return View(io.StringIO())


def lines(view: View) -> list[str]:
    assert isinstance(view.stream, io.StringIO)
    return [line.partition("  ")[2] for line in view.stream.getvalue().splitlines()]


def test_a_trouble_is_told_once_and_so_is_its_end(view: View) -> None:
    clock = Clock(view)
    for second in range(10):
        view.began(AWAY)
        assert clock.at(second) == (["E134"] if second >= 3 else [])
    view.ended("E134")
    assert clock.at(10.0) == []
    first, last = lines(view)
    assert first == f"Site not reachable (E134). {AWAY.text}"
    assert last == "Solved: Site not reachable."


def test_a_link_that_drops_and_comes_back_is_not_told(view: View) -> None:
    clock = Clock(view)
    view.began(AWAY)
    assert clock.at(2.9) == []
    view.ended("E134")
    assert clock.at(60.0) == []
    assert lines(view) == []


def test_trouble_hidden_by_its_cause_is_not_solved_or_repeated(view: View) -> None:
    clock = Clock(view)
    view.began(NO_RELAY)
    assert clock.at(10.0) == ["E135"]
    view.began(AWAY)
    assert clock.at(20.0) == ["E134"]
    view.ended("E134")
    assert clock.at(21.0) == ["E135"]
    view.ended("E135")
    told = ["No relay reachable", "Site not reachable", "Solved: Site not reachable.", "Solved: No relay reachable."]
    assert [line.partition(" (")[0] for line in lines(view)] == told


def test_what_is_over_at_once_is_told_where_it_needs_no_delay(view: View) -> None:
    view.began(Fault.of("E109", step=3))
    view.ended("E109")
    assert [line.partition(" (")[0] for line in lines(view)] == [
        "Copy of the model differs",
        "Solved: Copy of the model differs.",
    ]


def test_somebody_elses_words_act_no_more(view: View) -> None:
    clock = Clock(view)
    view.began(Fault("E374", "busy\x1b[2J\nvery"))
    assert clock.at(3.0) == ["E374"]
    (trouble,) = view.now.troubles
    assert trouble.text == "busy[2J very"


def test_a_warning_is_told_when_it_begins(view: View) -> None:
    """The figures change with each snapshot. Only a change in wording counts as a new warning."""
    for text in ("", "It rose to 3.40.", "It rose to 3.50.", "", "It rose to 3.60."):
        view.warn(text)
        assert view.now.warning == text
    assert lines(view) == ["It rose to 3.40.", "It rose to 3.60."]


def test_what_kept_a_machine_on_hold_is_no_reason_of_the_run(view: View) -> None:
    view.state("waiting", "waiting for volunteers")
    view.hold("Paused by you.")
    assert sentence(view.now) == "On hold: Paused by you."
    view.state("waiting", "waiting for volunteers")
    assert view.now.reason == "waiting for volunteers"


def test_the_first_credit_is_a_line_of_its_own(view: View) -> None:
    view.first_credit(12, 64)
    view.first_credit(1200, 1)
    assert lines(view) == [
        "Your first 64 samples are in the model: step 12.",
        "Your first 1 sample is in the model: step 1,200.",
    ]


def test_who_leaves_is_told_what_it_took(view: View) -> None:
    view.now.energy_wh, view.now.sent_bytes = 412.0, 2_700_000_000
    view.farewell()
    assert lines(view)[0].endswith("Run the same command to rejoin. About 0.4 kWh and 2.7 GB up so far.")


def test_replayed_steps_are_not_counted_again(view: View) -> None:
    """After a hold the agent loads a snapshot and replays the log. A step made after a rollback has a new entry."""
    one, two, three = (open_head(commit.record, SITE_PUBLIC) for commit in commits(3, 8, 8))
    own: Any = SimpleNamespace(samples=7)
    view.step(one, own)
    view.step(two, own)
    view.hold("Paused by you.")
    for record in (one, two, three):
        view.step(record, own)
    assert view.accepted == 21
    view.step(replace(three, index=5, step=2), own)
    assert view.accepted == 28, "its credit is kept beside that of the step that was undone"
    view.begin()
    view.step(one, own)
    assert view.accepted == 7, "another run"
