"""Names in notices: any name stays on one line and shows only visible characters."""

import hashlib
import hmac
import json
import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notices.models import Event, Webhook
from notices.words import (
    LONGEST,
    LONGEST_ON_DISCORD,
    MARKDOWN,
    MOST_MARKS,
    NAMELESS,
    SIGNATURE,
    Facts,
    one_line,
    payload,
    quoted,
    words_of,
)

HARMFUL = (
    "\u202e\u202d\u2066\u2067\u2068\u2069\u200b\u200e\u200f\u2060\ufeff\u00ad\r\n\x00\x1b\x85\u2028\u2029\U000e0041"
)
NAMES = st.text(
    st.one_of(st.characters(), st.sampled_from(HARMFUL + "\u200c\u200d\u0301\u3164<>&@*_[]()`")), max_size=300
)


@given(NAMES)
def test_a_name_is_one_line_of_what_can_be_seen(name: str) -> None:
    line = one_line(name)
    assert 0 < len(line) <= LONGEST
    assert line == line.strip()
    for place, letter in enumerate(line):
        category = unicodedata.category(letter)
        if letter in "\u200c\u200d":
            assert unicodedata.category(line[place - 1]) in ("Lo", "Mn", "Mc"), "within a word of a joining script"
        else:
            assert category[0] != "C"
            assert category not in ("Zl", "Zp")
            assert letter == " " or not letter.isspace()
    marks = "".join("m" if unicodedata.category(letter) in ("Mn", "Me") else " " for letter in line)
    assert max(map(len, marks.split()), default=0) <= MOST_MARKS


@given(NAMES)
def test_a_name_in_quotes_turns_nothing_around_it(name: str) -> None:
    text = quoted(name)
    assert (text[0], text[-1]) == ("“", "”")
    inside = text[1:-1]
    turns = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in inside)
    isolated = inside.startswith("\u2068") and inside.endswith("\u2069")
    assert isolated == turns
    assert not set(inside.strip("\u2068\u2069")) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@given(st.sampled_from(list(Event)), NAMES, NAMES)
def test_a_headline_is_one_line(event: Event, title: str, machine: str) -> None:
    headline, text = words_of(event, title=title, machine=machine)
    assert "\n" not in headline + text
    assert "\r" not in headline + text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("A model of proverbs", "A model of proverbs"),
        ("  two \t\n lines ", "two lines"),
        ("ক্‌ষ", "ক্‌ষ"),  # Bengali spelling needs the joiner
        ("می‌خواهم", "می‌خواهم"),  # Persian spelling needs the non-joiner
        ("Amina\u200dTeo", "AminaTeo"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u3164\u2800\u200b", NAMELESS),
        ("", NAMELESS),
        ("e" + "\u0301" * 40, "é" + "\u0301" * MOST_MARKS),
        ("a" * 200, "a" * (LONGEST - 1) + "…"),
    ],
)
def test_what_stays_of_a_name(name: str, line: str) -> None:
    assert one_line(name) == line


def test_words_about_a_check_name_no_run() -> None:
    words = words_of(Event.TROUBLE, title="Only 3 GB are free.", machine="Disk")
    assert words == ("Disk needs an operator", "Only 3 GB are free.")
    assert words_of(Event.TROUBLE, machine="Disk").headline == "Disk is in order again"
    facts = Facts(7, Event.TROUBLE, "Only 3 GB are free.", "Disk", "https://hands.example/operator/", datetime.now(UTC))
    body = json.loads(payload(Webhook.Service.GENERIC, words, facts, secret="", now=facts.at).body)
    assert (body["event"], body["run"], body["machine"]) == ("trouble", None, None)


def test_every_event_has_words_of_its_own() -> None:
    assert len({words_of(event, title="Proverbs", machine="kitchen") for event in Event}) == len(Event)


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
    assert len(content) <= LONGEST_ON_DISCORD
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
        "text": "The model is ready to download.",
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
