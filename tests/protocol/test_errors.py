"""The catalogue of errors, and every place that uses it."""

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from peer_agent.protocol.errors import CATALOGUE, Fault, Problem

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(p for room in ("peer_agent", "platform", "scripts") for p in (ROOT / room).rglob("*.py"))


OF_PAGES = {"E224", "E225", "E226"}  # told on the page where a code is entered
AGENTS_TOO = {"E305", "E306", "E308", "E310", "E348", "E353", "E401", "E402", "E407"}  # of those told at a site


def fields_of(code: str) -> set[str]:
    return {field for text in CATALOGUE[code] for _, field, _, _ in Formatter().parse(text) if field}


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_error_has_a_cause_and_a_remedy_that_can_be_filled_in(code: str) -> None:
    cause, remedy, means = CATALOGUE[code]
    assert re.fullmatch(r"E[1-4]\d\d", code)
    assert cause
    assert remedy
    assert cause.endswith((".", "?", "!"))
    if (code[1] in "12" or code in AGENTS_TOO) and code not in OF_PAGES:
        assert means, "whoever reads it in a terminal asks what became of the work"
    details = {name: f"<{name}>" for name in fields_of(code)}
    fault = Fault.of(code, **details)
    assert str(fault).startswith(f"{code}: ")
    assert all(value in fault.text for value in details.values())
    assert "{" not in fault.text
    assert str(Problem.of(code, **details)) == str(fault)


def test_codes_are_in_order() -> None:
    assert list(CATALOGUE) == sorted(CATALOGUE)


def test_a_missing_detail_is_an_error_and_a_brace_in_one_is_not() -> None:
    with pytest.raises(KeyError):
        Fault.of("E104", url="x")
    assert "{0}" in Fault.of("E104", url="{0}", reason="{x}").text


def uses(path: Path) -> list[tuple[str, set[str], int]]:
    """Calls `….of("E…", detail=…)` in a file."""
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
    assert [code for code in CATALOGUE if f"### {code}\n" not in page] == []
