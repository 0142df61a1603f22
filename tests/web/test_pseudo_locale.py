"""Every page in a pseudo-language that marks each message. Unmarked words cannot be translated."""

import html
import re
from collections.abc import Callable, Iterator

import pytest
from django.conf import LazySettings
from django.test import Client

from accounts.models import Person
from peer_agent.protocol.recipe import KINDS
from scripts.messages import PARTS
from tests.web.browsing import as_
from tests.web.test_queries import PAGES, grow

__all__ = ["grow"]

STRANGERS = ("/", "/login/", "/signup/", "/download/", "/nowhere/")  # requested without a session
OWN = ("/runs/new/", "/account/delete/", "/teams/new/", "/approve/")
# Not translated: words of people, of programs and of the protocol.
ELSEWHERE = re.compile(
    r"<(script|style|svg|code|pre|bdi|textarea|time)\b.*?</\1>|<span class=\"digest\">[^<]*</span>"
    r"|<!--.*?-->|<!doctype[^>]*>",
    re.DOTALL | re.IGNORECASE,
)
MARKED = re.compile(r"⟦[^⟦⟧]*⟧")
ATTRIBUTE = re.compile(r'\b(?:aria-label|placeholder|title|alt|data-label)="([^"]*)"')
WORD = re.compile(r"[A-Za-z]{3,}")
NAMES = re.compile(r"Manyhands|API|UTC|RSS|JSON|CSV|Hub|sha256|English|BCDF-GHJK|https://")
# Stored in one language for all readers: words of people, events, formats of data, and the dates of fixtures.
STORED = re.compile(
    r"helper\d|Ines|Please|words|machine \d|trains|averages|run-\d|CC0|A model of proverbs|Many ·|^a{64}$"
    r"|images in folders|^(created|added) |\d{1,2} [A-Z][a-z]+ 20\d\d"
)
CHOICES = re.compile(r"AdamW|GPT-2|LAMB|LARC|Llama|Qwen|SGD")


def unmarked(page: str) -> Iterator[str]:
    """Yield the visible words that are not in any message."""
    page = ELSEWHERE.sub(" ", page)
    while (inner := MARKED.sub(" ", page)) != page:
        page = inner
    texts = [*re.split(r"<[^>]*>", page), *ATTRIBUTE.findall(page)]
    for text in (" ".join(html.unescape(each).split()) for each in texts):
        is_known = STORED.search(text) or CHOICES.fullmatch(text)
        if WORD.search(NAMES.sub("", PARTS.sub("", text))) and not is_known:
            yield text


@pytest.fixture
def accented(settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in [*KINDS.items()]:
        if not kind.__module__.startswith("peer_agent."):
            monkeypatch.delitem(KINDS, name)  # another test's recipe, which has no translation
    settings.LANGUAGES = [*settings.LANGUAGES, ("en-xa", "⟦⟧"), ("ar-xb", "⟦⟧")]
    settings.LANGUAGE_COOKIE_NAME = "django_language"


def test_all_pages(accented: None, operator: Person, grow: Callable[[int, int], None]) -> None:
    grow(0, 2)
    found: dict[str, list[str]] = {}
    asked = {path: as_(operator) for path in PAGES if "/api/" not in path and "/admin/" not in path and "." not in path}
    asked |= dict.fromkeys(STRANGERS, Client()) | {path: as_(operator) for path in OWN}
    for path, client in asked.items():
        client.cookies["django_language"] = "en-xa"
        answer = client.get(path)
        assert answer.status_code in (200, 404), path
        if words := sorted(set(unmarked(answer.content.decode()))):
            found[path] = words
    assert found == {}


def test_from_right_to_left(accented: None, client: Client, db: None) -> None:
    client.cookies["django_language"] = "ar-xb"
    assert '<html lang="ar-xb" dir="rtl">' in client.get("/login/").content.decode()
