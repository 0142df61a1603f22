"""A remedy can be carried out: the commands, options, variables and buttons that it names exist."""

import re

import pytest
from django.core.management import get_commands, load_command_class
from typer.main import get_command

from peer_agent.cli import app
from peer_agent.protocol.errors import CATALOGUE
from peer_agent.protocol.recipe import KINDS
from tests.test_house import ROOT

REMEDIES = {code: entry.remedy for code, entry in CATALOGUE.items()}
PROGRAMS = get_command(app).commands  # type: ignore[attr-defined] # Typer's group has them
TEMPLATES = "".join(path.read_text() for path in (ROOT / "platform" / "web").rglob("*.html"))
LABELS = "".join(path.read_text() for path in (ROOT / "platform" / "web" / "pages").rglob("*.py"))


def named(pattern: str) -> list[tuple[str, str]]:
    return [(code, found) for code, remedy in REMEDIES.items() for found in re.findall(pattern, remedy)]


@pytest.mark.parametrize(("code", "line"), named(r"`manyhands ([^`]+)`"))
def test_agent_understands_the_command(code: str, line: str) -> None:
    name, *words = line.split()
    if name != "--help":
        PROGRAMS[name].make_context(name, words)  # fails if an argument is missing or an option unknown


@pytest.mark.parametrize(("code", "line"), named(r"`manage\.py ([^`]+)`"))
def test_site_understands_the_command(code: str, line: str) -> None:
    name, *words = line.split()
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(words)


@pytest.mark.parametrize(("code", "goal"), named(r"`make ([a-z-]+)`"))
def test_makefile_has_the_goal(code: str, goal: str) -> None:
    assert re.search(rf"^{goal}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("code", "option"), named(r"(--[a-z-]+)"))
def test_a_program_has_the_option(code: str, option: str) -> None:
    serve = load_command_class(get_commands()["serve"], "serve").create_parser("manage.py", "serve")
    known = {name for command in PROGRAMS.values() for part in command.params for name in part.opts}
    assert option in {*known, *serve._option_string_actions, "--help"}


@pytest.mark.parametrize(("code", "variable"), named(r"\b(MANYHANDS_[A-Z0-9_]+)"))
def test_variable_is_documented(code: str, variable: str) -> None:
    assert f"`{variable}`" in (ROOT / "docs" / "reference" / "settings.md").read_text()


@pytest.mark.parametrize(("code", "label"), named(r"“([A-Z][^”]+)”"))
def test_pages_have_the_button(code: str, label: str) -> None:
    recipes = {kind.title for kind in KINDS.values()}
    assert label in recipes or f'translate "{label}' in TEMPLATES or f'("{label}")' in LABELS
