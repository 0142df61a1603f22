"""The last plan, in words and as a drawing, for any number of machines and without bandwidths."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Bottleneck, Kind, Outline, Participant
from peer_agent.protocol.plan.outline import Averager
from web.run_picture.averaging import NO_BREAK, ROW, averaging_of, drawn, limit_sentence, time_sentence


def who(person: str, machine: str = "laptop", role: str = "trainer") -> Participant:
    return Participant(person, machine, PeerId(f"{person}{machine}".encode().hex().ljust(32, "0")[:32]), role)


ANA, TEO, IDA = who("Ana"), who("Teo", "desk"), who("Ida", "box", "auxiliary")
RELAY = who("operator", "srv-17.example.org", "relay")


def outline(*bottlenecks: Bottleneck, **changes: Any) -> Outline:
    facts: dict[str, Any] = {
        "step": 413, "planned_s": 12.3, "senders": (ANA, TEO), "other_senders": 0, "averagers": (Averager(RELAY, 1.0),),
        "other_averagers": 0, "other_part": 0.0, "bottlenecks": bottlenecks, "began_at": 0.0,
    }  # fmt: skip
    return Outline(**{**facts, **changes})


def limit(kind: str, *whose: Participant, part: float = 1.0) -> Bottleneck:
    return Bottleneck(Kind(kind), whose, part)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ([limit("up", ANA)], "Averaging is limited by the upload speed of Ana's laptop."),
        ([limit("down", TEO)], "Averaging is limited by the download speed of Teo's desk."),
        ([limit("duplex", ANA)], "Averaging is limited by the connection of Ana's laptop."),
        ([limit("household")], "Averaging is limited by a connection shared by several machines."),
        ([limit("pair", ANA, TEO)], "Averaging is limited by the connection from Ana's laptop to Teo's desk."),
        (
            [limit("up", RELAY)],
            "Averaging is limited by the upload speed of a relay. More averaging machines would speed it up.",
        ),
        (
            [limit("down", IDA, part=0.8), limit("up", ANA, part=0.2)],
            "Averaging is limited by the download speed of Ida's box. More averaging machines would speed it up.",
        ),
        (
            [limit("up", ANA, part=0.5), limit("up", TEO, part=0.5)],
            "Averaging is limited by the upload speeds of Ana's laptop and Teo's desk.",
        ),
        (
            [limit("down", ANA, part=0.5), limit("down", TEO, part=0.5)],
            "Averaging is limited by the download speeds of Ana's laptop and Teo's desk.",
        ),
        (
            [limit("up", ANA, part=0.4), limit("down", RELAY, part=0.3), limit("up", TEO, part=0.3)],
            "Averaging is limited by the upload speed of Ana's laptop, the download speed of a relay and others.",
        ),
        (
            [limit("up", ANA, part=0.4), limit("up", TEO, part=0.3), limit("up", IDA, part=0.3)],
            "Averaging is limited by the upload speeds of Ana's laptop, Teo's desk and others.",
        ),
        ([], "Measuring connection speeds takes a few steps."),
    ],
)
def test_one_sentence_says_what_limits_it(limits: Sequence[Bottleneck], words: str) -> None:
    assert limit_sentence(outline(*limits)) == words


def test_finished_plan_is_told_in_the_past_without_asking_help() -> None:
    over = limit_sentence(outline(limit("up", RELAY)), is_over=True)
    assert over == "Averaging was limited by the upload speed of a relay."
    both = outline(limit("up", ANA, part=0.5), limit("up", TEO, part=0.5))
    assert "Teo's desk." in limit_sentence(both, is_over=True)


def test_one_alone_has_nothing_to_send() -> None:
    alone = outline(senders=(ANA,), averagers=(Averager(ANA, 1.0),), planned_s=0.0)
    assert limit_sentence(alone) == "Only one machine is training, so nothing has to be sent."
    assert "Measuring" in limit_sentence(outline(senders=(ANA,), planned_s=0.0)), "its relay is somewhere else"


@pytest.mark.parametrize(
    ("changes", "phase", "words"),
    [
        ({"took_s": 13.1}, "accumulate", "Averaging step 413 took 13 s (planned: 12 s)."),
        (
            {"took_s": 0.02, "planned_s": 0.01},
            "",
            "Averaging step 413 took less than 0.1 s (planned: less than 0.1 s).",
        ),
        ({"took_s": 1.3, "planned_s": 0.0}, "", "Averaging step 413 took 1.3 s."),
        ({}, "reduce", "Averaging step 413 (planned: 12 s)."),
        ({"planned_s": 0.0}, "reduce", "Averaging step 413."),
        ({"took_s": 13.1}, "commit", "Averaging step 413 took 13 s (planned: 12 s)."),
        ({}, "", "The latest plan is for step 413 (planned: 12 s)."),
        ({"is_void": True}, "accumulate", "Step 413 could not be averaged and is being retried. Nothing was lost."),
    ],
)
def test_what_was_planned_stands_beside_what_it_took(changes: dict[str, Any], phase: str, words: str) -> None:
    assert time_sentence(outline(**changes), phase).replace(NO_BREAK, " ") == words


def test_both_sides_have_lines_and_the_shorter_is_centred() -> None:
    shown = drawn(outline(limit("up", ANA)))
    assert (shown["height"], shown["sending"], shown["averaging"]) == (2 * ROW, "2 machines send", "1 machine averages")
    assert [(line["name"], line["machine"], line["y"], line["limits"]) for line in shown["senders"]] == [
        ("Ana", "laptop", ROW // 2, True),
        ("Teo", "desk", ROW + ROW // 2, False),
    ]
    (relay,) = shown["averagers"]
    assert (relay["name"], relay["machine"], relay["y"]) == ("relay", "", ROW)
    assert (relay["share"], relay["percent"], relay["width"]) == (100.0, "100%", 12.0)


def test_who_sends_and_averages_has_one_key_on_both_sides() -> None:
    shown = drawn(outline(averagers=(Averager(ANA, 0.75), Averager(TEO, 0.25))))
    assert [line["key"] for line in shown["senders"]] == [line["key"] for line in shown["averagers"]]
    assert ANA.peer not in json.dumps(shown), "what a machine is called on the wire is not told"


def test_of_a_thousand_the_most_are_counted() -> None:
    senders = tuple(who(f"person {i}") for i in range(7))
    many = outline(
        senders=senders, other_senders=993, averagers=(Averager(RELAY, 0.9),), other_averagers=12, other_part=0.1
    )
    shown = drawn(many)
    assert (shown["sending"], shown["averaging"]) == ("1,000 machines send", "13 machines average")
    assert (len(shown["senders"]), shown["senders"][-1]["name"]) == (8, "993 others")
    assert [(line["name"], line["percent"]) for line in shown["averagers"]] == [
        ("relay", "90%"),
        ("12 others", "10%"),
    ]
    assert drawn(replace(many, other_part=0.001))["averagers"][-1]["percent"] == "under 1%"
    assert len(json.dumps(shown)) < 5000


def test_whom_the_sentence_does_not_name_is_not_marked() -> None:
    alike = [limit("up", each, part=1 / 3) for each in (ANA, TEO, IDA)]
    shown = drawn(outline(*alike, senders=(ANA, TEO, IDA)))
    assert [line["limits"] for line in shown["senders"]] == [True, True, False]


def test_sentence_replaces_the_drawing_before_the_first_plan() -> None:
    shown = averaging_of(None, phase="accumulate")
    assert (shown["plan"], shown["planned"]) == (None, "")
    assert shown["limit"].startswith("No step has been averaged yet.")


def ends(plan: dict[str, Any]) -> list[str]:
    return [f"{one['name']}-{other['name']}" for one, other in plan["links"]]


def test_links_join_all_but_themselves_with_limiting_ones_on_top() -> None:
    both = outline(limit("up", ANA), averagers=(Averager(RELAY, 0.75), Averager(TEO, 0.25)))
    assert ends(drawn(both)) == ["Teo-relay", "Ana-relay", "Ana-Teo"]
    crowd = outline(senders=(), other_senders=9, averagers=(), other_averagers=4, other_part=1.0)
    assert ends(drawn(crowd)) == ["9 others-4 others"], "others are several, so they send to one another"
