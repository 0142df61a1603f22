"""Asking to join on a run's page, and the answer where it is managed."""

from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from accounts.models import Person
from runs.lifecycle import joining, membership
from runs.models import JoinRequest, Run
from tests.runs.factories import opened
from tests.web.browsing import as_, page

PATH = "/runs/asked/"


@pytest.fixture
def asked(organizer: Person) -> Run:
    """A run by request."""
    return opened(organizer, slug="asked", visibility=Run.Visibility.REQUEST)


def ask(person: Person, message: str = "") -> Any:
    return as_(person).post(f"{PATH}request/", {"message": message})


def answer(person: Person, request: JoinRequest, word: str) -> Any:
    return as_(person).post(f"{PATH}requests/{request.pk}/", {"answer": word})


def test_from_the_button_to_the_line_that_joins(asked: Run, volunteer: Person) -> None:
    shown = page(as_(volunteer).get(PATH))
    assert "Ask to join" in shown
    assert "manyhands join" not in shown, "a machine would be refused"
    assert ask(volunteer, "I have <b>two</b> machines").status_code == 302
    shown = page(as_(volunteer).get(PATH))
    request = JoinRequest.objects.get()
    assert f"You asked to join on {request.asked_at.day} {request.asked_at:%B}." in shown
    assert "Withdraw request" in shown
    managed = page(as_(asked.organizer).get(f"{PATH}manage/"))
    assert "I have &lt;b&gt;two&lt;/b&gt; machines" in managed
    assert 'aria-label="Accept Teo"' in managed
    assert "1 person asked to join this run." in page(as_(asked.organizer).get(PATH))
    assert answer(asked.organizer, request, "accept").status_code == 302
    assert "manyhands join" in page(as_(volunteer).get(PATH))
    managed = page(as_(asked.organizer).get(f"{PATH}manage/"))
    assert "No requests." in managed
    assert 'aria-label="Remove Teo"' in managed


def test_whoever_is_not_logged_in_is_led_there(asked: Run, client: Client) -> None:
    shown = page(client.get(PATH))
    assert f'href="/login/?next={PATH}%23join"' in shown
    assert "manyhands join" not in shown
    assert 'action="/runs/asked/request/"' not in shown


def test_a_request_is_taken_back(asked: Run, volunteer: Person) -> None:
    ask(volunteer)
    assert as_(volunteer).post(f"{PATH}request/", {"take_back": "1"}).status_code == 302
    assert not JoinRequest.objects.exists()
    assert "You asked" not in page(as_(volunteer).get(PATH))


def test_who_was_declined_reads_when_they_may_ask_again(asked: Run, volunteer: Person) -> None:
    ask(volunteer, "Please")
    answer(asked.organizer, JoinRequest.objects.get(), "decline")
    shown = page(as_(volunteer).get(PATH))
    assert "The request was declined on" in shown
    assert "You can ask again from" in shown
    assert 'action="/runs/asked/request/"' not in shown
    refused = ask(volunteer)
    assert refused.status_code == 409
    assert "(E411)" in page(refused)


def test_who_was_removed_is_told_so(asked: Run, volunteer: Person) -> None:
    membership.remove_person(run=asked, name=volunteer.username)
    shown = page(as_(volunteer).get(PATH))
    assert "You were removed from this run" in shown
    assert 'action="/runs/asked/request/"' not in shown
    assert ask(volunteer).status_code == 409


@pytest.mark.parametrize("message", ["x" * 501, "a\0b"])
def test_a_message_has_its_bounds(asked: Run, volunteer: Person, message: str) -> None:
    refused = ask(volunteer, message)
    assert refused.status_code == 400
    assert 'aria-invalid="true"' in page(refused)
    assert not JoinRequest.objects.exists()


def test_an_answer_to_what_is_no_more_does_nothing(asked: Run, volunteer: Person) -> None:
    ask(volunteer)
    request = JoinRequest.objects.get()
    assert answer(asked.organizer, request, "perhaps").status_code == 404
    joining.take_back(run=asked, person=volunteer)
    assert answer(asked.organizer, request, "accept").status_code == 302
    assert not membership.members_of(asked).exists()


def test_requests_are_counted(asked: Run, volunteer: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"requests to join": (1, 60)}
    cache.clear()
    assert [ask(volunteer).status_code for _ in range(2)] == [302, 429]


def test_who_asks_on_a_list_finds_the_run(asked: Run, client: Client) -> None:
    assert "by request" in page(client.get("/"))
    Run.objects.update(visibility="private")
    assert asked.title not in page(client.get("/"))
