"""Current problems: delay, suppression and order hold for any history of problems beginning and ending."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.errors import CATALOGUE, Fault, troubles
from peer_agent.protocol.errors.entry import Entry, Severity
from peer_agent.protocol.errors.troubles import MOST_TROUBLES, Troubles, explained_by, first_causes

ROOT = Path(__file__).resolve().parents[3]
URGENCY = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}


RELAYS_AWAY = "tests/trainer/test_observer.py::test_relays_that_are_not_reached"
RELEASE = "tests/web/run_picture/test_alerts.py::test_a_release_needs_the_replay_and_its_disk"
MEETING = {  # (code, cause) and a test in which both occur at once
    ("E114", "E135"): RELAYS_AWAY,
    ("E135", "E134"): RELAYS_AWAY,
    ("E136", "E134"): RELAYS_AWAY,
    ("E139", "E204"): "tests/trainer/test_observer.py::test_a_clock_that_is_off_too_far_to_connect_again",
    ("E312", "E328"): RELEASE,
    ("E312", "E341"): RELEASE,
    ("E312", "E342"): RELEASE,
    ("E421", "E409"): "tests/web/run_picture/test_alerts.py::test_a_stalled_step_follows_from_a_missing_relay",
}


def test_what_follows_from_another_is_found_beside_it_somewhere() -> None:
    """An error hides its consequences. Declaring a pair of errors that never occur together would hide nothing."""
    declared = {(code, cause) for code, entry in CATALOGUE.items() for cause in entry.depends_on}
    assert declared == set(MEETING)
    for pair, place in MEETING.items():
        path, _, name = place.partition("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), place
        assert all(code in text for code in pair), place


def begun(*codes: str, at: float = 0.0) -> Troubles:
    kept = Troubles()
    for code in codes:
        kept.began(Fault(code, "It is so."), at)
    return kept


def codes(kept: Troubles, now: float) -> list[str]:
    return [trouble.fault.code for trouble in kept.shown(now)]


def causes(code: str) -> set[str]:
    """Return the error's direct and indirect causes in the catalogue, computed independently of the code under test."""
    direct = set(CATALOGUE[code].depends_on)
    return direct.union(*(causes(cause) for cause in direct))


def test_a_trouble_is_shown_while_it_lasts() -> None:
    kept = Troubles()
    assert kept.shown(0.0) == []
    kept.began(Fault.of("E109", step=3), 1.0)
    (shown,) = kept.shown(1.0)
    assert (shown.fault, shown.since) == (Fault.of("E109", step=3), 1.0)
    kept.ended("E109")
    kept.ended("E109")
    assert kept.shown(2.0) == []


def test_what_lasts_is_known_whether_it_is_shown_or_not() -> None:
    kept = begun("E134", "E135")
    assert [kept.lasts(code) for code in ("E134", "E135", "E136")] == [True, True, False]
    kept.ended("E135")
    assert not kept.lasts("E135")


def test_repeated_trouble_keeps_its_age_and_gets_new_details() -> None:
    kept = Troubles()
    kept.began(Fault.of("E134", reason="one"), 0.0)
    kept.began(Fault.of("E134", reason="two"), 2.9)
    (shown,) = kept.shown(3.0)
    assert "two" in shown.fault.text
    kept.ended("E134")
    kept.began(Fault.of("E134", reason="two"), 4.0)
    assert kept.shown(6.9) == [], "it is young again"


def test_what_comes_back_at_once_is_never_shown() -> None:
    after_s = CATALOGUE["E134"].shown_after_s
    assert after_s > 0
    assert codes(begun("E134"), after_s - 0.01) == []
    assert codes(begun("E134"), after_s) == ["E134"]


def test_what_follows_is_hidden_also_over_one_that_is_not_there() -> None:
    assert codes(begun("E114", "E135", "E134"), 60.0) == ["E134"]
    assert codes(begun("E114", "E134"), 60.0) == ["E134"], "by way of E135, which is not there"
    assert codes(begun("E114", "E135"), 60.0) == ["E135"]
    kept = begun("E114", "E135")
    kept.ended("E135")
    assert codes(kept, 60.0) == ["E114"]


def test_a_cause_that_is_not_shown_yet_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "slow": Entry("Slow cause", Severity.LOW, "a.", "b.", shown_after_s=10.0),
        "fast": Entry("Fast result", Severity.LOW, "a.", "b.", depends_on=("slow",)),
    }
    monkeypatch.setattr(troubles, "CATALOGUE", table)
    assert codes(begun("slow", "fast"), 5.0) == ["fast"]
    assert codes(begun("slow", "fast"), 10.0) == ["slow"]


def test_the_first_cause_explains() -> None:
    assert explained_by("E114", ["E134", "E135", "E114"]) == "E134"
    assert explained_by("E114", ["E135"]) == "E135"
    assert explained_by("E134", ["E134", "E135"]) == ""
    assert explained_by("E999", ["E134"]) == ""


def test_an_error_of_another_version_is_shown_too() -> None:
    assert codes(begun("E999", "E138", "E126"), 0.0) == ["E138", "E999", "E126"]


LASTING = st.lists(st.tuples(st.sampled_from(sorted(CATALOGUE)), st.floats(0.0, 100.0)), max_size=MOST_TROUBLES)


@given(LASTING, st.floats(0.0, 120.0))
def test_delay_suppression_and_order(history: list[tuple[str, float]], now: float) -> None:
    kept, since = Troubles(), dict[str, float]()
    for code, at in history:
        kept.began(Fault(code, "It is so."), at)
        since.setdefault(code, at)
    old = {code for code, at in since.items() if now - at >= CATALOGUE[code].shown_after_s}
    shown = codes(kept, now)
    assert set(shown) == {code for code in old if not causes(code) & old}
    assert all(causes(code) & set(shown) for code in old - set(shown)), "whatever is hidden, its cause is shown"
    ranks = [(URGENCY[CATALOGUE[code].severity], since[code], code) for code in shown]
    assert ranks == sorted(ranks)


@given(st.permutations(sorted(CATALOGUE)))
def test_at_most_so_many_are_kept_and_the_worst_stay(order: list[str]) -> None:
    kept = begun(*order)
    assert len(kept._lasting) == MOST_TROUBLES < len(CATALOGUE)
    high = sum(entry.severity is Severity.HIGH for entry in CATALOGUE.values())
    worst = [code for code in kept._lasting if CATALOGUE[code].severity is Severity.HIGH]
    assert len(worst) == min(high, MOST_TROUBLES)


def test_simultaneous_faults_show_first_causes_worst_first() -> None:
    child = next(code for code, entry in CATALOGUE.items() if entry.depends_on)
    (cause, *_), low = (
        CATALOGUE[child].depends_on,
        next(code for code, entry in CATALOGUE.items() if entry.severity is Severity.LOW and not entry.depends_on),
    )
    told = first_causes([Fault(low, "a"), Fault(child, "b"), Fault(cause, "c"), Fault(child, "b")])
    assert [fault.code for fault in told] == [cause, low]
    assert [fault.code for fault in first_causes([Fault(child, "b")])] == [child]
