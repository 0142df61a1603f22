"""What is wrong with a run now: each cause alone, and what follows from another is left out."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordination.presence import OnlinePeer
from peer_agent.protocol.errors import Fault
from runs.models import Publication, Release, Verification
from tests.web.run_picture.test_status_sentence import AUXILIARY, RELAY, TEO, picture
from web.run_picture.picture import Seen
from web.run_picture.troubles import run_troubles

NO_ROOM, NO_HUB = Fault.of("E328"), Fault.of("E346", endpoint="https://hub", reason="refused")
FAILED = Release(state="failed", fault=str(Fault.of("E312", reason="no room")))
REPLAY = Verification(fault=str(Fault.of("E341", step=9)))
REPLAY_FAULTS = [Fault.of("E341", step=9), Fault.of("E342", step=9, reason="it differs"), NO_ROOM]


def seen(state: str, *peers: OnlinePeer, phase: str = "", **changes: Any) -> Seen:
    return Seen(picture(state, **changes), peers, phase, 0, datetime(2026, 11, 21, tzinfo=UTC))


def codes(of: Seen, verification: Verification | None = None, publication: Publication | None = None) -> list[str]:
    return [fault.code for fault in run_troubles(of, verification, publication)]


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        (seen("open", TEO, RELAY, phase="accumulate"), []),
        (seen("open", TEO, AUXILIARY, phase="accumulate"), []),
        (seen("open", TEO, phase="accumulate"), ["E409"]),
        (seen("open", phase="accumulate"), ["E409"]),
        (seen("open"), []),  # nobody drives it, so nobody knows
        (seen("paused", TEO, phase="accumulate"), []),
        (seen("draft", dataset="failed"), ["E302"]),
        (seen("draft", dataset="ready"), []),
        (seen("finishing", release=FAILED), ["E312"]),
        (seen("finishing", release=Release(state="preparing", fault="E312: old")), []),
    ],
)
def test_each_cause(of: Seen, wrong: list[str]) -> None:
    assert codes(of) == wrong


def test_a_replay_counts_while_the_run_is_finishing() -> None:
    assert codes(seen("finishing"), REPLAY) == ["E341"]
    assert codes(seen("finished"), REPLAY) == []
    assert codes(seen("finishing"), Verification()) == []


def test_the_hub_counts_until_it_has_the_model() -> None:
    assert codes(seen("finished"), None, Publication(state="waiting", fault=str(NO_HUB))) == ["E346"]
    assert codes(seen("finished"), None, Publication(state="published", fault=str(NO_HUB))) == []


def test_what_has_not_reached_the_hub_for_long_is_told_with_its_time() -> None:
    since = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
    checkpoint = Publication(state="published", checkpoint_fault=str(NO_HUB), failing_since=since)
    assert codes(seen("open"), None, checkpoint) == ["E383", "E346"]
    (told, _) = run_troubles(seen("open"), None, checkpoint)
    assert "since 23:00 on 20 Nov (UTC) (E346)" in str(told)
    checkpoint.failing_since = since + timedelta(seconds=1)
    assert codes(seen("open"), None, checkpoint) == ["E346"]
    (told,) = run_troubles(seen("open"), None, checkpoint)
    assert str(told).endswith("Since 23:00 on 20 Nov (UTC).")
    assert codes(seen("open"), None, Publication(state="published", failing_since=since)) == []
    assert codes(seen("finished"), None, checkpoint) == [], "the release is there"


def test_the_worst_comes_first_and_what_follows_is_left_out() -> None:
    hub = Publication(state="waiting", fault=str(NO_HUB))
    assert codes(seen("finishing", release=FAILED), None, hub) == ["E312", "E346"]


@pytest.mark.parametrize("fault", REPLAY_FAULTS, ids=lambda fault: fault.code)
def test_a_release_needs_the_replay_and_its_disk(fault: Fault) -> None:
    assert codes(seen("finishing", release=FAILED), Verification(fault=str(fault))) == [fault.code]


def test_words_in_rows_keep_their_title() -> None:
    (fault,) = run_troubles(seen("finishing", release=FAILED), None, None)
    assert (fault.title, str(fault)) == ("Release failed", FAILED.fault)
