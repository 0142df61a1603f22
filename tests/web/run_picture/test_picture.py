"""What a run's page shows of those who give no samples."""

from datetime import UTC, datetime

from peer_agent.protocol.recipe import encode_recipe
from runs.ledger.averaged import AveragedLine
from runs.ledger.standings import LeaderboardLine
from tests.runs.factories import RECIPE
from tests.web.run_picture.test_status_sentence import AUXILIARY, NOOR, RELAY, TEO, picture
from web.run_picture.picture import Seen, picture_of


def seen(*averaged: AveragedLine) -> Seen:
    board = [LeaderboardLine(1, "Teo", 12, 96, 3, 1)]
    shown = picture("open", leaderboard=board, averaged=list(averaged))
    shown.run.recipe = encode_recipe(RECIPE).decode()
    return Seen(shown, (TEO, NOOR, AUXILIARY, RELAY), "reduce", 0, datetime(2026, 11, 21, tzinfo=UTC))


def test_auxiliaries_are_counted_apart_and_make_no_step() -> None:
    shown = picture_of(seen())
    assert shown["others"] == "1 relay · 1 auxiliary · 0 void rounds"
    assert (shown["training"], shown["relays"], len(shown["bars"])) == (2, 1, 2)
    assert shown["sentence"].startswith("2 people on 2 machines are")


def test_there_is_a_column_for_what_was_averaged_where_somebody_has() -> None:
    shown = picture_of(seen())
    assert (shown["averages"], [line["averaged"] for line in shown["leaderboard"]]) == (False, [""])
    lines = (AveragedLine("Ida", 2_500_000, is_ranked=False), AveragedLine("Teo", 900_000, is_ranked=True))
    shown = picture_of(seen(*lines))
    assert shown["averages"] is True
    found = [(line["rank"], line["name"], line["samples"], line["averaged"]) for line in shown["leaderboard"]]
    assert found == [(1, "Teo", 12, "900.0 kB"), (0, "Ida", 0, "2.5 MB")], "who only averages has no rank"
