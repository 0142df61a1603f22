"""Every cited rule is in docs/rules.md, and every rule and every row of the threat model names tests that exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.test_house import ROOT, our_files

RULES = ROOT / "docs" / "rules.md"
CITING = {".py", ".md", ".ts", ".html", ".js", ".css", ".toml"}
ENTRY = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")
ROW = re.compile(r"^\| (\d+(?:, \d+)*) \|", re.MULTILINE)
# A sentence may be broken anywhere, also in a comment: "rules 2,\n    # 3 and 4".
GAP = r"[\s#*]+"
ONE = re.compile(rf"\brule{GAP}(\d+)\b", re.IGNORECASE)
MANY = re.compile(rf"\brules{GAP}(\d+(?:(?:,?{GAP}and{GAP}|,{GAP}|\s?[-–]\s?)\d+)*)\b", re.IGNORECASE)


def entries(text: str) -> dict[int, str]:
    """Return the text of each rule by number. If two rules have the same number, the last one counts."""
    return {int(number): body for number, _, body in _sections(text)}


def _sections(text: str) -> Iterator[tuple[str, str, str]]:
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    for part in parts[1:]:
        head, _, body = part.partition("\n")
        if found := ENTRY.fullmatch(f"## {head}"):
            yield found[1], found[2], body


def cited(text: str) -> Iterator[int]:
    """Yield the numbers that a text cites: "rule 7", "rules 2, 3 and 4", "rules 28-31"."""
    yield from (int(found[1]) for found in ONE.finditer(text))
    for found in MANY.finditer(text):
        for part in re.split(rf",?{GAP}and{GAP}|,{GAP}", found[1]):
            first, *last = map(int, re.split(r"\s?[-–]\s?", part))
            yield from range(first, (last[0] if last else first) + 1)


@cache
def definitions(file: Path) -> frozenset[str]:
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            found.update(f"{node.name}::{part.name}" for part in inner)
    return frozenset(found)


def is_a_test(named: str, root: Path = ROOT) -> bool:
    file, _, name = named.partition("::")
    is_test = all(part.startswith(("test_", "Test")) for part in name.split("::"))
    return is_test and (root / file).is_file() and name in definitions(root / file)


def test_every_rule_that_is_cited_is_there() -> None:
    known = entries(RULES.read_text())
    files = [path for path in our_files() if path.suffix in CITING and path != Path(__file__).resolve()]
    citations = [(number, path) for path in files for number in cited(path.read_text())]
    assert len(citations) > 100, "the citations were not found"
    assert [(number, str(path.relative_to(ROOT))) for number, path in citations if number not in known] == []


def test_every_rule_names_tests_that_exist() -> None:
    named = {number: NAMED.findall(body) for number, body in entries(RULES.read_text()).items()}
    assert [number for number, tests in named.items() if not tests] == []
    assert [(number, test) for number, tests in named.items() for test in tests if not is_a_test(test)] == []


def test_every_row_of_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| who |")]
    assert len(rows) > 40
    named = [(row, NAMED.findall(row.rsplit("|", 2)[1])) for row in rows]
    assert [row[4:35] for row, tests in named if not tests] == ["to learn members' IP addresses "]
    assert [(row, test) for row, tests in named for test in tests if not is_a_test(test)] == []


def test_numbers_ascend() -> None:
    text = RULES.read_text()
    numbers = [int(number) for number, _, _ in _sections(text)]
    assert [pair for pair in pairwise(numbers) if pair[0] >= pair[1]] == []
    waiting = [[int(number) for number in row.split(", ")] for row in ROW.findall(text)]
    assert [pair for pair in pairwise(row[0] for row in waiting) if pair[0] >= pair[1]] == []
    everything = {*numbers, *(number for row in waiting for number in row)}
    assert everything == set(range(1, max(everything) + 1)), "none is lost"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("by rule 7: a chunk", [7]),
        ("of rule 26's program, 3 times", [26]),
        ("Rule 12, 3 peers", [12]),
        ("rules 13, 32 and 33", [13, 32, 33]),
        ("(rules 2,\n    # 3, and 4)", [2, 3, 4]),
        ("rules 28–31 and 40", [28, 29, 30, 31, 40]),
        ("a rule\n    13", [13]),
        ("rules that wait, 7 of them; overrule 7", []),
    ],
)
def test_how_rules_are_cited(text: str, numbers: list[int]) -> None:
    assert list(cited(text)) == numbers


def test_what_is_no_test_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    code = "def test_one(): ...\ndef helper(): ...\nclass TestTwo:\n    async def test_three(self): ...\n"
    (tmp_path / "tests" / "test_it.py").write_text(code)
    found = {name: is_a_test(f"tests/test_it.py::{name}", tmp_path) for name in ("test_one", "helper", "test_three")}
    assert found == {"test_one": True, "helper": False, "test_three": False}
    assert is_a_test("tests/test_it.py::TestTwo::test_three", tmp_path)
    assert not is_a_test("tests/test_other.py::test_one", tmp_path)
