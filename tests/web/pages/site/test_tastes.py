"""A theme and a language are kept for a reader, and nothing else is."""

import pytest
from django.test import Client

from accounts.models import Person
from tests.web.browsing import as_


def shown(client: Client) -> str:
    return client.get("/help/").content.decode()


def test_it_follows_the_system_until_one_is_chosen(client: Client, db: None) -> None:
    assert "data-theme" not in shown(client)
    assert 'content="light dark"' in shown(client)
    answer = client.post("/theme/", {"theme": "dark", "back": "/help/"})
    assert answer["Location"] == "/help/"
    assert '<html lang="en" dir="ltr" data-theme="dark">' in shown(client)
    assert 'content="dark"' in shown(client)
    client.post("/theme/", {"theme": "", "back": "/help/"})
    assert "data-theme" not in shown(client)


def test_the_browsers_language_is_spoken_until_another_is_chosen(client: Client, db: None) -> None:
    bengali = client.get("/help/", headers={"Accept-Language": "bn-BD,bn;q=0.9"})
    assert '<html lang="bn" dir="ltr">' in bengali.content.decode()
    assert "Accept-Language" in bengali["Vary"]
    assert '<html lang="en"' in shown(client)
    assert client.post("/language/", {"language": "bn", "back": "/help/"})["Location"] == "/help/"
    assert '<html lang="bn"' in shown(client)
    assert "django_language" not in client.post("/theme/", {"theme": "dark"}).cookies
    answer = client.post("/language/", {"language": "xx"})
    assert answer.cookies["django_language"].value == "", "it is no language here, and is not kept"
    assert '<html lang="en"' in shown(client)


def test_it_needs_no_form_of_ours(db: None) -> None:
    """The menu is on pages that are the same for everybody, and have no secret of a session."""
    assert Client(enforce_csrf_checks=True).post("/theme/", {"theme": "light"}).status_code == 302


ELSEWHERE = ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", "help", "web:help", ""]


@pytest.mark.parametrize("to", ELSEWHERE)
def test_it_leads_nowhere_else(client: Client, db: None, to: str) -> None:
    assert client.post("/theme/", {"theme": "dark", "back": to})["Location"] == "/"


@pytest.mark.parametrize("theme", ["sepia", '"><script>', "x" * 5000])
def test_there_are_two(client: Client, db: None, theme: str) -> None:
    client.post("/theme/", {"theme": theme})
    assert "data-theme" not in shown(client)
    client.cookies["theme"] = theme
    assert "data-theme" not in shown(client)


def test_an_answer_that_shows_a_secret_once_is_not_left_by_a_theme(volunteer: Person) -> None:
    client = as_(volunteer)
    assert 'action="/theme/"' in client.get("/machines/").content.decode()
    assert 'action="/theme/"' not in client.post("/machines/").content.decode()
