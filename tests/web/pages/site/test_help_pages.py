"""Help: every question has a page, the foot of every page leads there, and every link leads somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from typer.testing import CliRunner

from accounts.models import Person
from peer_agent.cli import app
from tests.runs.factories import Owned
from web.http.error_responses import broken
from web.pages.site.help_pages import TOPICS, Topic


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.slug)
def test_every_question_has_its_page_and_leads_to_the_others(client: Client, db: None, topic: Topic) -> None:
    page = client.get(reverse("web:help_page", args=[topic.slug])).content.decode()
    assert f"<h1>{topic.question}</h1>" in page
    for other in TOPICS:
        assert (reverse("web:help_page", args=[other.slug]) in page) or other == topic


def test_an_unknown_question_is_not_there(client: Client, db: None) -> None:
    assert client.get("/help/wealth/").status_code == 404


@pytest.mark.parametrize(
    "path", ["/", "/runs/new/", "/help/", "/nothing/", *(f"/help/{topic.slug}/" for topic in TOPICS)]
)
def test_the_foot_of_every_page_leads_somewhere(db: None, operator: Person, settings: Any, path: str) -> None:
    wheel = Path(settings.DOWNLOADS) / "manyhands-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"a wheel")
    client = Client()
    client.force_login(operator)
    page = client.get(path).content.decode()
    links = set(re.findall(r'href="(/[^"]*)"', page))
    assert {"/help/privacy/", "/help/credit/", "/help/stopping/", "/account/", "/admin/"} <= links
    for link in (link for link in links if not link.startswith("/static/")):
        assert client.get(link).status_code == 200, link


def test_the_page_of_a_broken_site_asks_the_database_nothing(rf: RequestFactory) -> None:
    """No database is allowed here: whoever reads `user` fails the test."""
    request = rf.get("/runs/")
    request.user = SimpleLazyObject(Person.objects.get)  # type: ignore[assignment]
    answer = broken(request)
    assert answer.status_code == 500
    assert "Something went wrong" in answer.content.decode()


def test_only_operators_are_shown_their_door(client: Client, db: None, organizer: Person) -> None:
    client.force_login(organizer)
    assert "/admin/" not in client.get("/").content.decode()


def test_the_machines_page_leads_to_how_a_machine_forgets(client: Client, volunteer: Person, laptop: Owned) -> None:
    client.force_login(volunteer)
    link = re.search(r'href="([^"]+)#forget"', client.get("/machines/").content.decode())
    assert link is not None
    assert '<code id="forget">manyhands forget http://testserver</code>' in client.get(link[1]).content.decode()
    assert CliRunner().invoke(app, ["forget", "--help"]).exit_code == 0, "there is such a command"


def test_what_an_organizer_can_do_is_said(client: Client, db: None) -> None:
    said = client.get("/help/organizers/").content.decode()
    for words in ("members", "remove people", "return it to a draft", "Hugging Face"):
        assert words in said
    assert "--publish" in client.get("/help/privacy/").content.decode()
