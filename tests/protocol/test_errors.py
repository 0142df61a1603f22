"""The error catalogue, and every use of it."""

import ast
import re
from collections import Counter
from pathlib import Path
from string import Formatter

import msgspec
import pytest

from peer_agent.protocol.errors import CATALOGUE, Fault, Problem, titled
from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.errors.entry import STAYS, Severity
from peer_agent.protocol.errors.links import LINKS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(p for room in ("peer_agent", "platform", "scripts") for p in (ROOT / room).rglob("*.py"))


OF_PAGES = {"E224", "E225", "E226"}  # errors shown on the page where a code is entered
# errors of the site that agents show too
AGENTS_TOO = {"E305", "E306", "E308", "E310", "E348", "E353", "E401", "E402", "E407"}


def fields_of(code: str) -> set[str]:
    entry = CATALOGUE[code]
    parts = (entry.cause, entry.means, entry.remedy)
    return {field for text in parts for _, field, _, _ in Formatter().parse(text) if field}


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_error_has_a_cause_and_a_remedy_to_fill_in(code: str) -> None:
    entry = CATALOGUE[code]
    assert re.fullmatch(r"E[1-4]\d\d", code)
    assert entry.cause
    assert entry.remedy
    assert entry.cause.endswith((".", "?", "!"))
    if (code in AGENT or code in LINKS or code in AGENTS_TOO) and code not in OF_PAGES:
        assert entry.means, "whoever reads it in a terminal asks what became of the work"
    details = {name: f"<{name}>" for name in fields_of(code)}
    fault = Fault.of(code, **details)
    assert str(fault).startswith(f"{code}: ")
    assert all(value in fault.text for value in details.values())
    assert "{" not in fault.text
    assert str(Problem.of(code, **details)) == str(fault)


def test_the_parts_are_kept_apart_and_read_as_one() -> None:
    fault = Fault.of("E106", path="/a", reason="full")
    assert (fault.cause, fault.means) == ("The disk that holds /a is full or cannot be written to (full).", STAYS)
    assert fault.text == f"{fault.cause} {fault.means} {fault.remedy}"
    assert (fault.title, fault.severity) == ("Disk full or not writable", Severity.HIGH)
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


def test_what_was_written_into_a_row_is_read_back() -> None:
    fault = Fault.of("E312", reason="no room: 0 bytes")
    read = Fault.read(str(fault))
    assert (read.code, read.text, read.title) == (fault.code, fault.text, fault.title)
    assert str(read) == str(fault)
    assert titled(read.title, read.code, read.text) == f"Release failed (E312). {fault.text}"


def test_an_error_of_another_version_has_its_number_for_a_title() -> None:
    strange = Fault("E999", "Something newer.")
    assert (strange.text, strange.title, strange.severity) == ("Something newer.", "Error E999", Severity.MEDIUM)


def test_codes_are_in_order() -> None:
    assert list(CATALOGUE) == sorted(CATALOGUE)


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_error_has_a_short_title(code: str) -> None:
    title = CATALOGUE[code].title
    assert 2 <= len(title.split()) <= 6
    assert title[0].isupper()
    assert not title.endswith((".", "!", "?"))
    assert "{" not in title


def test_no_two_errors_have_one_title() -> None:
    titles = Counter(entry.title.lower() for entry in CATALOGUE.values())
    assert [title for title, count in titles.items() if count > 1] == []


def causes(code: str) -> set[str]:
    """Return all the errors that can lead to this one, as the catalogue declares them."""
    found = set(CATALOGUE[code].depends_on)
    while more := {cause for one in found for cause in CATALOGUE[one].depends_on} - found:
        found |= more
    return found


@pytest.mark.parametrize("code", [code for code, entry in CATALOGUE.items() if entry.depends_on])
def test_what_an_error_follows_from_is_known_and_never_itself(code: str) -> None:
    assert set(CATALOGUE[code].depends_on) <= set(CATALOGUE)
    assert code not in causes(code), "a circle would hide all of it"


@pytest.mark.parametrize("code", CATALOGUE)
def test_what_follows_is_not_shown_before_its_cause(code: str) -> None:
    entry = CATALOGUE[code]
    assert entry.shown_after_s >= max((CATALOGUE[cause].shown_after_s for cause in causes(code)), default=0.0) >= 0.0


OF_THE_WORK = re.compile(r"(^|[.;] )(Nothing (was|is|else)|What was|Training goes on)")


@pytest.mark.parametrize("code", CATALOGUE)
def test_what_became_of_the_work_stands_apart_from_what_to_do(code: str) -> None:
    assert not OF_THE_WORK.search(CATALOGUE[code].remedy)


def test_a_missing_detail_is_an_error_and_a_brace_in_one_is_not() -> None:
    with pytest.raises(KeyError):
        Fault.of("E104", url="x")
    assert "{0}" in Fault.of("E104", url="{0}", reason="{x}").text


def uses(path: Path) -> list[tuple[str, set[str], int]]:
    """Return the calls `….of("E…", detail=…)` in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "of":
            continue
        if node.args and isinstance(node.args[0], ast.Constant) and re.fullmatch(r"E\d\d\d", str(node.args[0].value)):
            names = {keyword.arg for keyword in node.keywords if keyword.arg}
            if all(keyword.arg for keyword in node.keywords):
                found.append((str(node.args[0].value), names, node.lineno))
    return found


def test_every_use_names_a_known_error_and_fills_in_all_of_it() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {code} {sorted(names)}"
        for path in SOURCES
        for code, names, line in uses(path)
        if code not in CATALOGUE or names != fields_of(code)
    ]
    assert wrong == []


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert [code for code, entry in CATALOGUE.items() if f"### {code}: {entry.title}\n" not in page] == []
    assert "Severity: *high*, shown after 10 s. Follows from E134.\n" in page
