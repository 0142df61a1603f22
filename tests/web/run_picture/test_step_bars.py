"""The bars of a step: of the first machines to everybody, below them of the reader's own, and how many others train."""

import json
import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from accounts.models import Person
from coordination.models import Presence
from runs.models import Run
from tests.golden import golden
from tests.web.browsing import as_, page
from web.run_picture.averaging import key_of
from web.run_picture.step_bars import BARS, OWN_BARS, machines_without_bar, with_own

VECTORS: list[dict[str, Any]] = golden("feed")["own_bars"]
LINE = "and {} more machines</a>"


def training(run: Run, *names: str) -> None:
    """These people's machines train, each a sample further than the one before; two others only average."""
    shown = {"state": "ready", "samples_per_s": 1.0}
    members = [
        {"peer": f"{at:032}", "name": name, "role": "trainer", "done": at, **shown} for at, name in enumerate(names, 1)
    ]
    rest = [
        {"peer": f"{at:032}", "name": "Teo", "role": role, "done": 0, **shown}
        for at, role in ((8000, "auxiliary"), (9000, "relay"))
    ]
    Presence.objects.update_or_create(run=run, defaults={"phase": "accumulate", "target": 4, "members": members + rest})


def crowd(count: int) -> list[str]:
    """Names that come before those of the cast, in disorder."""
    return [f"A{at:03}" for at in reversed(range(count))]


def bars(text: str) -> list[tuple[str, int]]:
    """Names and samples that a page shows."""
    found = re.findall(r'<li><span class="who">([^<]+)</span><span class="figure">([\d,]+)</span> <svg', text)
    return [(name, int(done)) for name, done in found]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["why"])
def test_own_bars_stand_below_the_others(vector: dict[str, Any]) -> None:
    shown = with_own(vector["picture"], vector["own"])
    assert [bar["key"] for bar in shown["bars"]] == vector["shown"]
    assert machines_without_bar(shown) == vector["without_bar"]
    first = vector["picture"]["bars"]
    assert shown == {**vector["picture"], "bars": [*first, *shown["bars"][len(first) :]]}, "the feed's are the newer"


def test_everybody_gets_the_first_by_name(run: Run, client: Client) -> None:
    training(run, *crowd(BARS + 10))
    shown = client.get(f"/runs/{run.slug}/feed.json").json()["run"]
    assert [bar["name"] for bar in shown["bars"]] == sorted(crowd(BARS + 10))[:BARS]
    assert (shown["training"], shown["done"]) == (BARS + 10, shown["target"]), "others work too"
    text = page(client.get(f"/runs/{run.slug}/"))
    assert bars(text) == [(bar["name"], bar["done"]) for bar in shown["bars"]]
    assert f'<a href="/runs/{run.slug}/swarm/">{LINE.format(10)}' in text
    assert 'data-bars="[]"' in text
    assert page(client.get(f"/runs/{run.slug}/swarm/")).count("<tr") == 1 + BARS + 10 + 2, "all are there"


def test_the_readers_own_are_below_them(run: Run, volunteer: Person) -> None:
    training(run, "Teo", *crowd(BARS + 10), "Teo")
    own = [("Teo", 1), ("Teo", BARS + 12)]
    text = page(as_(volunteer).get(f"/runs/{run.slug}/"))
    assert bars(text)[BARS:] == own
    assert LINE.format(10) in text
    asked = as_(volunteer).get(f"/runs/{run.slug}/you.json").json()["bars"]
    assert [(bar["name"], bar["done"]) for bar in asked] == own
    assert [bar["key"] for bar in asked] == [key_of(f"{at:032}") for at in (1, BARS + 12)]
    told = re.search(r'data-bars="([^"]*)"', text)
    assert told is not None
    assert json.loads(unescape(told[1])) == asked


def test_nobody_has_more_than_a_few_of_their_own(run: Run, volunteer: Person) -> None:
    training(run, *crowd(BARS), *["Teo"] * (OWN_BARS + 3))
    text = page(as_(volunteer).get(f"/runs/{run.slug}/"))
    assert len(bars(text)) == BARS + OWN_BARS
    assert LINE.format(3) in text
    assert len(as_(volunteer).get(f"/runs/{run.slug}/you.json").json()["bars"]) == OWN_BARS


def test_nobody_gets_those_of_others(run: Run, volunteer: Person, organizer: Person) -> None:
    training(run, *crowd(BARS), "Teo")
    for reader in (Client(), as_(organizer)):
        assert len(bars(page(reader.get(f"/runs/{run.slug}/")))) == BARS
        assert reader.get(f"/runs/{run.slug}/you.json").json() == {"you": "", "bars": []}


def test_one_more_is_told_in_the_singular_and_none_not_at_all(run: Run, client: Client) -> None:
    for count, words in ((BARS + 1, "and 1 more machine</a>"), (BARS, "")):
        training(run, *crowd(count))
        text = page(client.get(f"/runs/{run.slug}/"))
        assert len(bars(text)) == BARS
        assert words in text
        assert (" more machine" in text.split('class="machines-now"')[1].split("</section>")[0]) == bool(words)
