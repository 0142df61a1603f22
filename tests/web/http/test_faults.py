"""Numbered errors in answers: the same words for pages and programs."""

import json

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse
from django.test import RequestFactory

from peer_agent.protocol.errors import CATALOGUE, Fault
from tests.web.browsing import page
from web.http.faults import HEADLINES, answer

pytestmark = pytest.mark.django_db
NO_RUN = Fault.of("E305", address="/runs/none/")


def asked(path: str, fault: Fault, status: int | None = None) -> HttpResponse:
    request = RequestFactory().get(path)
    request.user = AnonymousUser()
    return answer(request, fault, status=status)


@pytest.mark.parametrize("path", ["/api/v1/runs", "/uploads/"])
def test_programs_get_code_title_severity_and_text(path: str) -> None:
    said = asked(path, NO_RUN)
    assert said.status_code == 404
    assert json.loads(said.content) == {
        "code": "E305",
        "title": "Run not found",
        "severity": "medium",
        "text": NO_RUN.text,
    }


def test_what_has_no_number_of_ours_is_called_by_its_status() -> None:
    said = json.loads(asked("/api/v1/none", Fault("404", "There is nothing."), 404).content)
    assert (said["code"], said["title"], said["severity"]) == ("404", HEADLINES[404], "medium")


def test_a_page_sets_title_cause_meaning_and_remedy_apart() -> None:
    ended = Fault.of("E306")
    shown = page(asked("/runs/none/", ended))
    assert f"<h1>{CATALOGUE['E306'].title}</h1>" in shown
    for part in (ended.cause, ended.means, ended.remedy):
        assert f">{part}</p>".replace("'", "&#x27;") in shown
    assert "E306" in shown
    assert NO_RUN.means not in page(asked("/runs/none/", NO_RUN)), "a reader of a missing page has started nothing"
    missing = page(asked("/nothing/", Fault("404", "Look elsewhere."), 404))
    assert "<h1>This page has wandered off</h1>" in missing
    assert "Look elsewhere." in missing
    assert "Error code" not in missing, "the operator could not look it up"


@pytest.mark.parametrize("code", ["E340", "E387", "E413"])
def test_what_a_state_forbids_is_a_conflict(code: str) -> None:
    assert asked("/api/v1/me", Fault.of(code, most="7", step="7", reason="it changed")).status_code == 409
