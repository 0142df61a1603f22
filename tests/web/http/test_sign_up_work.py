"""A proof of work for sign-ups: found by trying, accepted once, and only while its challenge is valid."""

import hashlib
import re
import time
from itertools import count
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from accounts.models import Person
from tests.web.browsing import page
from web.http.sign_up_work import VALID_S, challenge, is_done

BITS = 8
NEW = {"username": "Noor", "password": "a long password"}


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    cache.clear()


def solved(text: str, bits: int = BITS) -> str:
    for number in count():
        digest = hashlib.sha256(f"{text}:{number}".encode()).digest()
        if int.from_bytes(digest, "big") >> (256 - bits) == 0:
            return str(number)
    raise AssertionError


def test_an_answer_counts_once() -> None:
    text = challenge()
    assert is_done(text, solved(text), BITS)
    assert not is_done(text, solved(text), BITS)


def test_wrong_answers_and_foreign_challenges_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    text = challenge()
    wrong = next(str(n) for n in count() if hashlib.sha256(f"{text}:{n}".encode()).digest()[0])
    assert not is_done(text, wrong, BITS)
    assert not is_done("mine", solved("mine"), BITS)
    late = time.time() + VALID_S + 1
    monkeypatch.setattr("time.time", lambda: late)
    assert not is_done(text, solved(text), BITS)


@pytest.mark.django_db
def test_form_asks_for_work_only_if_the_operator_wants_it(client: Client, settings: Any) -> None:
    assert "data-bits" not in page(client.get("/signup/"))
    settings.SIGN_UP_BITS = BITS
    text = page(client.get("/signup/"))
    assert f'data-bits="{BITS}"' in text
    (work,) = re.findall('name="work" value="([^"]+)"', text)
    refused = client.post("/signup/", {**NEW, "work": work, "answer": ""})
    assert "has to do some work first" in page(refused)
    assert not Person.objects.filter(username="Noor").exists()
    client.post("/signup/", {**NEW, "work": work, "answer": solved(work)})
    assert Person.objects.filter(username="Noor").exists()
