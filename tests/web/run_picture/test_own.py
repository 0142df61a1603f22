"""Measured link rates: who may see them on the page, in the polled data, and in the API."""

import re
from typing import Any

import msgspec
import pytest
from django.test import Client

from accounts.models import Machine, Person
from coordination.models import Presence
from coordination.presence import Carried, Link
from runs.lifecycle.membership import add_member
from runs.models import Run
from tests.coordination.example_plan import outline, shown
from tests.runs.factories import Owned, owned
from tests.web.browsing import as_, page
from web.run_picture import own
from web.run_picture.own import in_words, links_for, rate

pytestmark = pytest.mark.django_db

UP, DOWN, RELAYS = (
    Carried(2_141_000, is_floor=False),
    Carried(40_375_000, is_floor=True),
    Carried(54_250_000, is_floor=False),
)
FIGURES = ("Mb/s", "megabits", "2141000", "40375000", "54250000", "bps")


@pytest.fixture
def relay(operator: Person) -> Machine:
    return owned(operator, "srv-17.example.org", Machine.Kind.RELAY).machine


@pytest.fixture
def spare(stranger: Person) -> Machine:
    return owned(stranger, "attic").machine


@pytest.fixture(autouse=True)
def measured(run: Run, laptop: Owned, relay: Machine, spare: Machine) -> None:
    """Show link rates: Teo's laptop limits the averaging at the relay, and the stranger's machine is not measured."""
    links = {
        laptop.machine.peer_id: Link("trainer", UP, DOWN),
        relay.peer_id: Link("relay", RELAYS, None),
        spare.peer_id: Link("trainer", None, None),
    }
    shown(run, outline(laptop.machine.peer_id, relay.peer_id), links)


def machines(run: Run, person: Person | None) -> list[str]:
    return [each.machine for each in links_for(run, person)]


def read(run: Run, client: Client) -> dict[str, str]:
    addresses = {
        "page": f"/runs/{run.slug}/",
        "own": f"/runs/{run.slug}/own/",
        "feed": f"/runs/{run.slug}/feed.json",
        "plan": f"/api/v1/runs/{run.slug}/plan",
        "run": f"/api/v1/runs/{run.slug}",
        "links": f"/api/v1/runs/{run.slug}/links",
    }
    return {name: client.get(address).content.decode() for name, address in addresses.items()}


def test_owner_sees_own_links_and_the_organizer_sees_all(
    run: Run, volunteer: Person, organizer: Person, stranger: Person, operator: Person
) -> None:
    assert machines(run, volunteer) == ["laptop"]
    assert machines(run, stranger) == ["attic"]
    assert machines(run, organizer) == ["attic", "laptop", ""], "what a relay is called is not the organizer's"
    assert machines(run, operator) == ["srv-17.example.org"]
    assert machines(run, None) == []


def test_figures_are_on_no_page_of_others(run: Run, stranger: Person) -> None:
    member = Person.objects.create_user("Mara", "seven calm otters")
    add_member(run=run, name="Mara")
    for client in (Client(), as_(stranger), as_(member)):
        for place, text in read(run, client).items():
            assert [figure for figure in FIGURES if figure in text] == [], place
            assert "srv-17" not in text, place


def test_the_picture_names_who_limits_it_for_everybody(run: Run, client: Client) -> None:
    text = page(client.get(f"/runs/{run.slug}/"))
    assert "Averaging is limited by the upload speed of Teo&#x27;s laptop." in text
    assert "Averaging step 5 took 2.5 s (planned: 2 s)." in text
    assert "2 machines send" in text
    assert text.count("<path d=") == 2
    assert text.count('class="limits"') == 2, "Teo's line and its link"


def test_an_owners_page_says_what_is_measured_and_what_only_seen(run: Run, volunteer: Person) -> None:
    text = page(as_(volunteer).get(f"/runs/{run.slug}/"))
    assert "Your connections, as measured" in text
    assert '<td class="number" data-label="Upload"><span><span class="now">limits</span> 17 Mb/s</span></td>' in text
    assert '<td class="number" data-label="Download"><span>at least 323 Mb/s</span></td>' in text
    assert "434 Mb/s" not in text
    assert '<div id="part-mine" class="mine-card" data-follow>' in text


def test_what_is_not_measured_any_more_is_not_marked(run: Run, laptop: Owned, volunteer: Person) -> None:
    forgotten = {laptop.machine.peer_id: Link("trainer", None, DOWN)}
    Presence.objects.update(links=msgspec.to_builtins(forgotten))
    text = page(as_(volunteer).get(f"/runs/{run.slug}/"))
    assert "Averaging is limited by the upload speed of Teo&#x27;s laptop." in text, "of the last plan this is true"
    assert 'class="now">limits' not in text


def test_organizers_page_has_all_and_names_unmeasured_links(run: Run, organizer: Person) -> None:
    text = page(as_(organizer).get(f"/runs/{run.slug}/"))
    assert "Measured connections" in text
    for figure in ("17 Mb/s", "at least 323 Mb/s", "434 Mb/s", "not measured yet"):
        assert figure in text
    assert "srv-17" not in text


def test_what_a_page_asks_for_is_what_it_had(run: Run, organizer: Person, volunteer: Person) -> None:
    for person in (organizer, volunteer):
        client = as_(person)
        found = re.search(r'<div id="part-links">.*?</div>', page(client.get(f"/runs/{run.slug}/own/")))
        assert found is not None
        assert "Mb/s" in found[0]
        assert found[0] in page(client.get(f"/runs/{run.slug}/"))


def test_a_page_with_many_machines_says_where_the_rest_is(
    run: Run, organizer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "LINES", 2)
    text = page(as_(organizer).get(f"/runs/{run.slug}/"))
    assert "The API lists all machines." in text
    assert "434 Mb/s" not in text


def items(run: Run, client: Client, query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/api/v1/runs/{run.slug}/links{query}").json()
    return answer


def test_the_api_has_the_same_in_megabits(run: Run, volunteer: Person, organizer: Person) -> None:
    assert items(run, as_(volunteer)) == {
        "items": [
            {
                "person": "Teo",
                "machine": "laptop",
                "role": "trainer",
                "up": {"megabits_per_s": 17.128, "is_floor": False},
                "down": {"megabits_per_s": 323.0, "is_floor": True},
            }
        ],
        "next": None,
    }
    first = items(run, as_(organizer), "?limit=2")
    assert [each["machine"] for each in first["items"]] == ["attic", "laptop"]
    assert [each["up"] for each in items(run, as_(organizer), f"?cursor={first['next']}")["items"]] == [
        {"megabits_per_s": 434.0, "is_floor": False}
    ]
    assert first["items"][0]["up"] is None


def test_the_api_has_the_plan_for_everybody(run: Run, client: Client) -> None:
    plan = client.get(f"/api/v1/runs/{run.slug}/plan").json()["plan"]
    teo = {"person": "Teo", "machine": "laptop", "role": "trainer"}
    assert plan == {
        "step": 5,
        "planned_s": 2.0,
        "took_s": 2.5,
        "is_void": False,
        "senders": [teo],
        "other_senders": 1,
        "averagers": [{"person": "relay", "machine": "", "role": "relay", "part": 1.0}],
        "other_averagers": 0,
        "limits": [{"kind": "up", "machines": [teo], "part": 1.0}],
    }
    Presence.objects.update(plan=None)
    assert client.get(f"/api/v1/runs/{run.slug}/plan").json() == {"plan": None}


def test_a_run_that_is_over_shows_its_last_plan_and_no_links(run: Run, organizer: Person) -> None:
    Run.objects.update(state="finished")
    text = page(as_(organizer).get(f"/runs/{run.slug}/"))
    assert "Averaging was limited by the upload speed of Teo&#x27;s laptop." in text
    assert "Mb/s" not in text


@pytest.mark.parametrize(
    ("carried", "words"),
    [
        (None, "not measured yet"),
        (Carried(2_125_000, is_floor=False), "17 Mb/s"),
        (Carried(5_000_000, is_floor=True), "at least 40 Mb/s"),
    ],
)
def test_measured_seen_and_unknown_are_told_apart(carried: Carried | None, words: str) -> None:
    assert in_words(carried) == words


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (1e3, "0.1 Mb/s"), (900e3, "0.9 Mb/s"), (9.94e6, "9.9 Mb/s"), (9.96e6, "10 Mb/s"), (321.6e6, "322 Mb/s"),
        (999.4e6, "999 Mb/s"), (2.46e9, "2.5 Gb/s"),
    ],
)  # fmt: skip
def test_speeds_are_as_connections_are_sold(bits: float, words: str) -> None:
    assert rate(bits / 8) == words
