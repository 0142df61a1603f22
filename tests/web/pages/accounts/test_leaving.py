"""Exporting a person's data, and deleting an account."""

import json
from typing import Any

import pytest
from django.core.cache import cache
from django.test import AsyncClient

from accounts.models import FORMER, MachineControl, Person
from notices import services as notices
from notices.models import Event, Way
from runs.models import Run
from tests.runs.factories import PASSWORD, Owned, committed, opened
from tests.web.browsing import as_, page
from web.pages.accounts import leaving

DELETE = "/account/delete/"


@pytest.fixture
def run(organizer: Person, laptop: Owned) -> Run:
    run = opened(organizer)
    committed(run, (laptop.machine, 4))
    committed(run, (laptop.machine, 5))
    return run


def test_the_file_has_all_of_it_and_nothing_of_others(run: Run, volunteer: Person, laptop: Owned) -> None:
    client = as_(volunteer)
    client.post("/machines/tokens/", {"label": "notebook"})
    client.post(f"/machines/{laptop.machine.pk}/limits/", {"programs": "steam"})
    notices.choose(person=volunteer, wanted=[(Event.FINISHED, Way.WEBHOOK)])
    secret = notices.save_webhook(person=volunteer, address="https://hook.example/private")
    answer = client.get("/account/export.json")
    assert answer["Content-Disposition"] == 'attachment; filename="manyhands-export.json"'
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    found: dict[str, Any] = json.loads(text)
    assert found["name"] == volunteer.username
    assert [row["samples"] for row in found["ledger"]] == [4, 5]
    assert found["ledger"][0]["run__slug"] == run.slug
    assert [machine["name"] for machine in found["machines"]] == [laptop.machine.name]
    assert found["limits"][0]["limits"]["programs"] == ["steam"]
    assert [token["label"] for token in found["tokens"]] == ["notebook"]
    assert found["totals"][0]["samples"] == 9
    assert "digest" not in found["tokens"][0]
    assert volunteer.password not in text
    assert found["notifications"]["choices"] == [{"event": "finished", "way": "webhook"}]
    assert found["notifications"]["webhook"][0]["host"] == "hook.example"
    for kept in (secret, "hook.example/private", "sealed"):
        assert kept not in text


@pytest.mark.django_db(transaction=True)
async def test_a_site_makes_it_part_by_part_while_it_is_sent(
    run: Run, volunteer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django reads a synchronous iterator to the end before an ASGI server sends the first byte."""
    monkeypatch.setattr(leaving, "AT_ONCE", 1)
    client = AsyncClient()
    await client.aforce_login(volunteer)
    answer: Any = await client.get("/account/export.json")
    assert answer.is_async
    parts = [part.decode() async for part in answer]
    assert [part.count('"samples"') for part in parts[1:]] == [1, 1, 0], "a page of the ledger at a time, then the end"
    assert [row["samples"] for row in json.loads("".join(parts))["ledger"]] == [4, 5]


def test_of_one_who_gave_nothing_it_is_whole_too(volunteer: Person) -> None:
    answer = as_(volunteer).get("/account/export.json")
    assert json.loads(b"".join(answer.streaming_content))["ledger"] == []  # type: ignore[attr-defined]


def test_it_is_made_so_often_and_no_more(volunteer: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"exports": (1, 3600)}
    cache.clear()
    client = as_(volunteer)
    assert client.get("/account/export.json").status_code == 200
    assert client.get("/account/export.json").status_code == 429


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Somebody", "password": PASSWORD}, "That&#x27;s not your name."),
        ({"password": "wrong"}, "That&#x27;s not your password."),
        ({"password": ""}, "That&#x27;s not your password."),
        ({"name": ""}, "This field is required."),
    ],
)
def test_who_does_not_know_both_deletes_nothing(volunteer: Person, fields: dict[str, str], words: str) -> None:
    answer = as_(volunteer).post(DELETE, {"name": volunteer.username, "password": PASSWORD} | fields)
    assert answer.status_code == 400
    assert words in page(answer)
    assert Person.objects.filter(pk=volunteer.pk, is_active=True).exists()


def test_the_account_is_gone_and_so_is_the_session(run: Run, volunteer: Person, laptop: Owned) -> None:
    client = as_(volunteer)
    client.post(f"/machines/{laptop.machine.pk}/limits/", {"programs": "steam"})
    assert volunteer.username in page(client.get(DELETE))
    answer = client.post(DELETE, {"name": volunteer.username, "password": PASSWORD})
    assert answer["Location"] == "/"
    assert client.get("/account/").status_code == 302
    assert not MachineControl.objects.exists(), "what runs on a machine is nobody's business"
    assert client.get(f"/people/{volunteer.username}/").status_code == 404
    assert FORMER in page(client.get(f"/runs/{run.slug}/leaderboard/"))
    assert client.post("/login/", {"username": volunteer.username, "password": PASSWORD}).status_code != 302


def test_whoever_has_no_password_types_the_name(volunteer: Person) -> None:
    client = as_(volunteer)
    volunteer.set_unusable_password()
    volunteer.save()
    client.force_login(volunteer)
    assert 'name="password"' not in page(client.get(DELETE))
    assert client.post(DELETE, {"name": volunteer.username}).status_code == 302
    assert not Person.objects.get(pk=volunteer.pk).is_active


def test_wrong_passwords_are_counted(volunteer: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"log-ins of this name": (2, 900)}
    cache.clear()
    client = as_(volunteer)
    wrong = {"name": volunteer.username, "password": "wrong"}
    assert [client.post(DELETE, wrong).status_code for _ in range(3)] == [400, 400, 429]
