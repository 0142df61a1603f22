"""Rooms keep to their import contracts, files stay short, and modules without input or output have tests."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_house import ROOT, our_files

CODE = ("peer_agent", "platform", "frontend/src", "frontend/tests", "scripts", "tests")
PURE = ("peer_agent/protocol", "peer_agent/averaging")
SOURCES = {".py", ".ts", ".html"}
MOST_LINES = 800  # a longer file contains more than one idea


def code() -> Iterator[Path]:
    for folder in CODE:
        yield from (path for path in our_files(ROOT / folder) if path.suffix in SOURCES)


def test_no_file_is_longer_than_eight_hundred_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in code() if path.parent.name != "migrations"}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > MOST_LINES} == {}


def decides(path: Path) -> bool:
    """Return True if any function of the module contains more than a docstring and one statement."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return any(len([part for part in function.body if not is_docstring(part)]) > 1 for function in functions)


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize("room", PURE)
def test_every_module_of_a_pure_room_that_decides_has_its_tests(room: str) -> None:
    modules = [path.relative_to(ROOT / "peer_agent") for path in our_files(ROOT / room) if decides(path)]
    wanted = {
        path: ROOT / "tests" / path.parent / f"test_{path.stem}.py" for path in modules if path.stem != "__init__"
    }
    assert [str(path) for path, test in wanted.items() if not test.exists()] == []


# Imports


def test_every_package_has_a_contract_for_all_its_modules() -> None:
    """import-linter checks the contracts, but ignores a package that has none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    packages = {path.parent.name for path in (ROOT / "platform").glob("*/__init__.py")} | {"peer_agent"}
    contracts = [contract for contract in settings["contracts"] if contract.get("exhaustive")]
    held = {container for contract in contracts for container in contract["containers"]}
    assert packages - held == set()
    assert packages == set(settings["root_packages"])


# Documents

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs")
PATH = re.compile(r"`((?:peer_agent|platform|frontend|tests|scripts|docs)/[\w./-]*\w/?)(?:::[\w:]+)?`")


def documents() -> Iterator[Path]:
    for name in DOCUMENTS:
        yield from our_files(ROOT / name) if (ROOT / name).is_dir() else [ROOT / name]


def test_every_path_that_a_document_names_is_there() -> None:
    named = {(path.name, found) for path in documents() for found in PATH.findall(path.read_text())}
    assert len(named) > 30
    assert sorted(where for where in named if not (ROOT / where[1]).exists()) == []
