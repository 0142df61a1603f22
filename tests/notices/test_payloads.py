"""What is posted: each service's own form, and nothing in a name that means something there."""

import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notices.models import Event, Webhook
from notices.payloads import LONGEST, MARKDOWN, SIGNATURE, Facts, payload
from notices.words import words_of
from tests.notices.test_words import NAMES

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
ADDRESS = "https://hands.example/runs/proverbs/"


def body_of(service: str, title: str) -> dict[str, object]:
    facts = Facts(7, Event.FINISHED, title, "", ADDRESS, NOW)
    made = payload(service, words_of(Event.FINISHED, title=title), facts, secret="mhs_secret", now=NOW)
    found: dict[str, object] = json.loads(made.body)
    return found


@given(NAMES)
def test_discord_mentions_nobody_and_formats_nothing(title: str) -> None:
    body = body_of(Webhook.Service.DISCORD, title)
    assert body["allowed_mentions"] == {"parse": []}
    content = str(body["content"])
    assert len(content) <= LONGEST
    headline, _, address = content.split("\n")
    inner = headline.removeprefix("**").removesuffix("**")
    plain = inner.replace("\\\\", "").replace("\\", "\x00")
    assert not [place for place in MARKDOWN.finditer(plain) if plain[place.start() - 1 : place.start()] != "\x00"]
    assert address == f"<{ADDRESS}>"


@given(NAMES)
def test_slack_reads_no_control_sequence_in_a_name(title: str) -> None:
    body = body_of(Webhook.Service.SLACK, title)
    text = str(body["text"])
    assert "<" not in text
    assert ">" not in text
    assert body["mrkdwn"] is False
    assert len(text.split("\n")) == 3


def test_slack_shows_what_was_written() -> None:
    assert "“&lt;!channel&gt; &amp;amp;” is finished" in str(body_of(Webhook.Service.SLACK, "<!channel> &amp;")["text"])


def test_a_program_gets_facts() -> None:
    assert body_of(Webhook.Service.GENERIC, "A <b>model</b>\u202e") == {
        "id": 7,
        "event": "finished",
        "run": "A <b>model</b>",
        "machine": None,
        "headline": "“A <b>model</b>” is finished",
        "text": "Its model can be downloaded.",
        "address": ADDRESS,
        "at": "2026-11-27T12:00:00Z",
    }


@pytest.mark.parametrize("service", Webhook.Service)
def test_only_a_program_gets_a_signature_and_it_can_be_checked(service: Webhook.Service) -> None:
    facts = Facts(7, Event.TEST, "", "", ADDRESS, NOW)
    made = payload(service, words_of(Event.TEST), facts, secret="mhs_secret", now=NOW)
    if service != Webhook.Service.GENERIC:
        assert made.headers == {}
        return
    parts = dict(part.split("=") for part in made.headers[SIGNATURE].split(","))
    assert int(parts["t"]) == NOW.timestamp()
    expected = hmac.new(b"mhs_secret", parts["t"].encode() + b"." + made.body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(parts["v1"], expected)


@given(st.sampled_from(list(Webhook.Service)), NAMES)
def test_a_body_is_json_in_utf_8(service: Webhook.Service, title: str) -> None:
    assert body_of(service, title)
