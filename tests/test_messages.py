"""Messages for translation: only literals and marked constants are looked up, and the catalogues are complete."""

import ast
import re
from collections.abc import Iterator

import pytest
from babel.messages.catalog import Message

from peer_agent.protocol.errors import CATALOGUE
from scripts import messages
from tests.test_house import ROOT, our_files

MESSAGES = {  # how many of the function's first arguments are messages
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop"), 1),
    **dict.fromkeys(("ngettext", "ngettext_lazy", "pgettext", "pgettext_lazy"), 2),
    **dict.fromkeys(("npgettext", "npgettext_lazy"), 3),
}
AGENT = next(domain for domain in messages.DOMAINS if domain.name == "manyhands")
USUAL = (
    *("E101", "E102", "E103", "E104", "E105", "E106", "E107", "E109", "E110", "E115", "E116", "E117", "E121", "E123"),
    *("E124", "E126", "E134", "E135", "E136", "E138", "E204", "E205", "E214"),
)
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
# Words from tables that mark them, or that `scripts.messages.add_recipes` finds.
OF_TABLES = {
    *("field.label", "field.help", "kind.title", "quantity.told", "each.name", "shown"),
    *("material.name", "material.unit", "material.file", "material.more", "material.shown[0]", "material.shown[1]"),
    *("one", "many", "preset"),
}
PLACE = re.compile(r"\{\w+\}")


def faults(source: str, *, of_trainer: bool = False) -> Iterator[str]:
    """Yield the lines that look up anything but a literal or a constant. With `of_trainer`, `Tell` also looks up its
    argument.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        told = of_trainer and name == "Tell"
        # the standard library's functions, which get an argument passed on
        if isinstance(node.func, ast.Attribute) and not told:
            continue
        for argument in node.args[: 1 if told else MESSAGES.get(name, 0)]:
            if not (is_words(argument) or is_constant(argument) or ast.unparse(argument) in OF_TABLES):
                yield f"{node.lineno}: {ast.unparse(argument)}"


def is_words(node: ast.expr) -> bool:
    """Return True if the node is a literal whose placeholders contain only names. Formatting belongs in the arguments
    of `format`.
    """
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value):
        return False
    return "{" not in PLACE.sub("", node.value)


def is_constant(node: ast.expr) -> bool:
    """Return True if the node is a constant that is marked where it is defined: NAME, NAME[key] or module.NAME."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return CONSTANT.fullmatch(name) is not None


@pytest.mark.parametrize("room", ["peer_agent", "platform"])
def test_only_words_are_looked_up(room: str) -> None:
    found = {
        str(path.relative_to(ROOT)): list(
            faults(path.read_text(), of_trainer=path.is_relative_to(ROOT / "peer_agent" / "protocol" / "trainer"))
        )
        for path in our_files(ROOT / room)
        if path.suffix == ".py" and path != ROOT / "peer_agent" / "machine" / "language.py"
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        '_(f"step {step}")',
        '_("step " + step)',
        '_("step {step}".format(step=1))',
        '_("step %s" % step)',
        "_(words)",
        '_("")',
        '_("{step:,} steps")',
        '_("{} steps")',
        'ngettext("a step", f"{n} steps", n)',
        'pgettext("theme", name)',
        "gettext_lazy(status.title)",
        'e.Tell(f"a {round}")',
    ],
)
def test_what_is_missed_is_named(line: str) -> None:
    assert len(list(faults(line, of_trainer=True))) == 1


@pytest.mark.parametrize(
    "line",
    [
        '_("step {step}").format(step=1)',
        '_("one line " "and another")',
        "_(SENTENCES[status.doing])",
        "_(status.HINT)",
        'ngettext("a step", "{n} steps", n)',
        "catalogue.gettext(message)",
        "translated(entry.title)",
        'Tell("a round", {"step": step})',
    ],
)
def test_what_is_found_is_not(line: str) -> None:
    assert list(faults(line, of_trainer=True)) == []


# Catalogues of the agent


@pytest.mark.parametrize("language", messages.LANGUAGES)
@pytest.mark.parametrize("domain", messages.DOMAINS, ids=lambda domain: domain.name)
def test_a_catalogue_has_all_messages_that_there_are(domain: messages.Domain, language: str) -> None:
    """If this test fails, run: python -m scripts.messages."""
    assert domain.catalogue(language).read_bytes() == messages.updated(domain, language)


@pytest.mark.parametrize("domain", messages.DOMAINS, ids=lambda domain: domain.name)
def test_translations_have_the_places_of_their_messages(domain: messages.Domain) -> None:
    for language in messages.LANGUAGES:
        catalogue = messages.read(domain.catalogue(language), language)
        assert [fault for message in catalogue for fault in messages.faults_of(language, message)] == []


@pytest.mark.parametrize(
    ("one", "other", "is_fault"),
    [
        ("step {step}", "ধাপ {step}", False),
        ("step {step}", "ধাপ", True),
        ('<a href="%(url)s">it</a>', "%(url)s", True),
        ("%(number)s of <b>all</b>", "<b>সব</b> %(number)s", False),
    ],
)
def test_a_translation_that_lacks_a_place_is_told(one: str, other: str, is_fault: bool) -> None:
    found = list(messages.faults_of("bn", Message(one, string=other)))
    assert bool(found) is is_fault


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_the_terminal_is_translated(language: str) -> None:
    """Only errors that agents rarely encounter may lack a translation."""
    catalogue = messages.read(AGENT.catalogue(language), language)
    lacking = {message.id for message in catalogue if message.id and not all(messages.as_tuple(message.string))}
    of_errors = {getattr(entry, part) for entry in CATALOGUE.values() for part in ("title", "cause", "means", "remedy")}
    assert lacking <= of_errors
    usual = {getattr(CATALOGUE[code], part) for code in USUAL for part in ("title", "cause", "means", "remedy")}
    assert not lacking & usual
