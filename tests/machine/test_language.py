"""The reader's language, and how an error is recognized from its translated text."""

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer_agent.display.lines import View
from peer_agent.machine import language
from peer_agent.machine.faults import in_readers_words, sanitize_fault
from peer_agent.machine.hardware import not_reached
from peer_agent.machine.language import (
    SanitizingFormatter,
    columns_of,
    gettext,
    in_bytes,
    ngettext,
    padded,
    sanitize,
    speak,
)
from peer_agent.machine.resting import Rest, in_words
from peer_agent.protocol.errors import CATALOGUE, Fault
from peer_agent.protocol.messages.machine import Why
from tests.agent.program import complaint, http_site, known_at


@pytest.fixture(autouse=True)
def _english_afterwards() -> Iterator[None]:
    yield
    speak("en")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"MANYHANDS_LANGUAGE": "bn", "LC_ALL": "de_DE.UTF-8"}, "bn"),
        ({"LC_ALL": "", "LC_MESSAGES": "bn_BD.UTF-8", "LANG": "de_DE.UTF-8"}, "bn_BD"),
        ({"LANG": "bn_IN"}, "bn_IN"),
        ({"LANG": "sr_RS.UTF-8@latin"}, "sr_RS"),
        ({"MANYHANDS_LANGUAGE": "en-xa"}, "en_XA"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LC_ALL": "POSIX", "LANG": "bn"}, "en"),
        ({"MANYHANDS_LANGUAGE": "../../etc"}, "en"),
    ],
)
def test_the_first_variable_that_is_set_counts(environment: dict[str, str], wanted: str) -> None:
    assert language.language_of(environment) == wanted


@pytest.mark.parametrize("unknown", ["xx", "xx_YY", "en_GB", "C"])
def test_a_language_without_a_catalogue_is_english(unknown: str) -> None:
    speak(unknown)
    assert gettext("Loading the model.") == "Loading the model."
    assert ngettext("{count} sample", "{count} samples", 2) == "{count} samples"


@pytest.mark.parametrize("name", ["bn", "bn_BD"])
def test_a_region_has_the_catalogue_of_its_language(name: str) -> None:
    speak(name)
    assert gettext("Loading the model.") == "মডেল লোড হচ্ছে।"
    assert gettext("") == "", "a catalogue has its own description there"


@pytest.mark.parametrize(("encoding", "wanted"), [("utf-8", "মডেল লোড হচ্ছে।"), ("cp1252", "Loading the model.")])
def test_terminal_that_cannot_encode_the_letters_gets_english(
    monkeypatch: pytest.MonkeyPatch, encoding: str, wanted: str
) -> None:
    monkeypatch.setenv("MANYHANDS_LANGUAGE", "bn")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    monkeypatch.setattr(language._Reader, "catalogue", None)
    assert gettext("Loading the model.") == wanted


def test_letters_that_stand_above_or_below_others_take_no_column() -> None:
    """A vowel sign beside its letter takes a column of its own, as in the C library's `wcwidth`."""
    assert [columns_of(text) for text in ("disk", "ডিস্ক", "ধাপ", "磁盘", "e\u0301")] == [4, 4, 3, 4, 1]
    assert padded("ডিস্ক", 8) == "ডিস্ক    "
    assert padded("longer than that", 4) == "longer than that"


# Errors


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_error_is_found_again_in_its_text(code: str) -> None:
    """The pseudo-locale alters every part of the text except the details."""
    entry = CATALOGUE[code]
    details = Details()
    fault = Fault(code, *(part.format_map(details) for part in (entry.cause, entry.means, entry.remedy)))
    speak("en_XA")
    for one in (fault, Fault.read(str(fault)), Fault(code, fault.text.replace("\n", " "))):
        told = in_readers_words(one)
        assert told.cause.startswith("⟦")
        assert all(f"<{name}>" in told.text for name in details.asked)
        assert told.text.count("⟦") == sum(map(bool, (entry.cause, entry.means, entry.remedy)))


class Details(dict[str, str]):
    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __missing__(self, name: str) -> str:
        self.asked.add(name)
        return f"<{name}>"


def test_what_follows_stays_and_what_is_not_known_stays_english() -> None:
    speak("bn")
    longer = Fault.of("E121", free="1 MB", path="/a", needed="9 MB")
    told = in_readers_words(Fault("E121", f"{longer.text}\npip install it")).text
    assert told == "/a-এর ডিস্কে 1 MB খালি; অন্তত 9 MB লাগে। কিছুই হারায়নি। জায়গা খালি করুন।\npip install it"
    for strange in (Fault("E121", "of another version"), Fault("E999", "new")):
        assert in_readers_words(strange) is strange


def test_reason_for_an_unreachable_site_is_translated() -> None:
    speak("bn")
    away = not_reached(Fault.of("E104", url="https://a", reason="timed out"))
    assert in_readers_words(away).cause == "সাইট সাড়া দিচ্ছে না: https://a-এ পৌঁছানো যাচ্ছে না (timed out)।"


# Why a machine rests


def test_why_a_machine_rests() -> None:
    rest = Rest(Why.HOURS, "Monday 08:00")
    assert in_words(rest) == "Outside its hours. Next: Monday 08:00."
    speak("bn")
    assert in_words(rest, gettext) == "আপনার ঠিক করা সময়ের বাইরে। পরের সময়: সোমবার 08:00।"
    assert in_words(rest) == "Outside its hours. Next: Monday 08:00.", "a page of the site, whoever runs it"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("A small model", "A small model"),
        ("Ọ̀rọ̀ Yorùbá · 诗 · شعر", "Ọ̀rọ̀ Yorùbá · 诗 · شعر"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\x1b]0;owned\x07\x1b[2Jgone", "]0;owned[2Jgone"),
        ("one\r\ntwo\tthree", "one  two three"),
        ("good\u202elive\u2066", "goodlive"),
    ],
)
def test_words_stay_and_what_acts_goes(given: str, shown: str) -> None:
    assert sanitize(given) == shown


def test_a_line_of_the_agent_is_one_line() -> None:
    stream = io.StringIO()
    View(stream).say("Joining “A\x1b[2J\nrun”.")
    assert stream.getvalue().endswith("  Joining “A[2J run”.\n")
    assert stream.getvalue().count("\n") == 1


ACTS = "\x1b]0;owned\x07\x1b[2J\u202eback\r"


def test_error_in_foreign_words_is_sanitized_and_keeps_its_lines() -> None:
    shown = sanitize_fault(Fault(f"E999{ACTS}", f"one{ACTS}\ntwo"))
    assert (shown.code, shown.text) == ("E999]0;owned[2Jback ", "one]0;owned[2Jback \ntwo")


def test_a_line_of_the_log_acts_no_more() -> None:
    said = SanitizingFormatter().format(
        logging.makeLogRecord({"msg": "%s", "args": (ACTS,), "name": "peer_agent.trainer.agent"})
    )
    assert said.endswith("peer_agent.trainer.agent: ]0;owned[2Jback ")


@pytest.mark.parametrize("command", ["join", "login", "relay"])
def test_a_sites_error_ends_a_command_without_acting(tmp_path: Path, command: str) -> None:
    with http_site(lambda _: (409, {"code": "E306", "text": f"The run {ACTS} is finished."})) as url:
        known_at(tmp_path, url)
        said = complaint(tmp_path, command, f"{url}/runs/a/")
    assert said == "E306: The run ]0;owned[2Jback  is finished."


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 kB"),
        (1, "1 kB"),
        (8192, "9 kB"),
        (301_560, "302 kB"),
        (2_500_000, "2.5 MB"),
        (4e7, "40 MB"),
        (3e9, "3.0 GB"),
    ],
)
def test_sizes_have_one_unit_from_thousand_to_thousand(count: float, words: str) -> None:
    """Uploads use the same units in `frontend/src/uploads/answers.ts`."""
    assert in_bytes(count) == words
