"""Update the translation catalogues: `.venv/bin/python -m scripts.messages`. `--check` only reports faults.

There are two catalogues per language: `django` for the site, and `manyhands` for the agent. People edit the `.po`
files. `--compile`, which setup runs, writes the files that programs read: `.mo` files, the texts of browser scripts
(`words.json`), and two pseudo-languages with accents and brackets (`en-XA`, and `ar-XB` from right to left).
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("bn",)
PSEUDO = ("en_XA", "ar_XB")
KEYWORDS: dict[str, Any] = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop"), None),
    "Tell": (1,),  # used in a trainer's state machine, which does not translate
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), ((1, "c"), 2)),
    **dict.fromkeys(("npgettext", "npgettext_lazy"), ((1, "c"), 2, 3)),
}
TAGS = ("TRANSLATORS:",)
SCRIPTS = "frontend/src/**/*.ts"
QUOTED = r'"((?:[^"\\]|\\.)*)"'
SAID = re.compile(rf"(?<![.\w])say\(\s*{QUOTED}")
WORDS = "words.json"  # the texts that scripts show on translated pages
PARTS = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|<[^>]+>|&\w+;")  # parts of a message that a translation must keep
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
ACCENTS = str.maketrans("aeiouycnsAEIOUYCNS", "àéîõûýçñšÀÉÎÕÛÝÇÑŠ")


class Domain(NamedTuple):
    """The messages of one program: the files that they occur in, and the folder of their catalogues."""

    name: str
    folder: Path
    sources: tuple[str, ...]

    def catalogue(self, language: str) -> Path:
        """Return the path of a language's catalogue, which people edit."""
        return self.folder / language / "LC_MESSAGES" / f"{self.name}.po"


DOMAINS = (
    Domain(
        "django",
        ROOT / "platform" / "web" / "locale",
        ("platform/**/*.py", "platform/web/templates/**/*.html", SCRIPTS),
    ),
    Domain("manyhands", ROOT / "peer_agent" / "locale", ("peer_agent/**/*.py",)),
)


# Messages in the sources


def found_in(domain: Domain) -> Catalog:
    """Return every message of a domain, with the files that it occurs in.

    Line numbers are left out, because every edit would change them.
    """
    found = Catalog(project="Manyhands", charset="utf-8")
    paths = (path for pattern in domain.sources for path in sorted(ROOT.glob(pattern)))
    for path in paths:
        for number, message, comments, context in messages_in(path):
            del number
            place: Any = (path.relative_to(ROOT).as_posix(), None)
            found.add(message, locations=[place], auto_comments=comments, context=context)
    if domain.name == "manyhands":
        add_errors(found)
        add_reasons(found)
    else:
        add_recipes(found)
    return found


def add_recipes(found: Catalog) -> None:
    """Add the texts of all kinds of recipe, which the site shows in the page's language."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from peer_agent.protocol.recipe import KINDS
    from web.pages.runs.forms.recipe import COMMON  # registers all kinds of recipe

    place: Any = ("peer_agent/recipes", None)
    common = [each for words in COMMON.values() for each in words]
    ours = ((name, kind) for name, kind in sorted(KINDS.items()) if kind.__module__.startswith("peer_agent."))
    for name, kind in ours:
        words = (
            part for each in (*common, *kind.words) for part in (each.label, each.help, *dict(each.choices).values())
        )
        said = (
            kind.title,
            kind.about,
            *kind.presets,
            *kind.loss_unit,
            *kind.summaries,
            *words,
            *words_of_material(kind().material),
        )
        for text in filter(None, said):
            found.add(text, locations=[place], auto_comments=[name])


def words_of_material(material: Any) -> Iterator[str]:
    """Yield the texts about a recipe's data, and about any model or tokenizer that accompanies the data."""
    if material is not None:
        yield from (material.name, material.named(2), material.unit, material.file, material.more, *material.shown)
        yield from words_of_material(material.brought)


def add_errors(found: Catalog) -> None:
    """Add all texts of the error catalogue. The code does not mark them for translation."""
    from peer_agent.protocol.errors import CATALOGUE

    place: Any = ("peer_agent/protocol/errors", None)
    for code, entry in CATALOGUE.items():
        for part in ("title", "cause", "means", "remedy"):
            if text := getattr(entry, part):
                found.add(text, locations=[place], auto_comments=[f"{code}: {part}"])


def add_reasons(found: Catalog) -> None:
    from peer_agent.protocol.reasons import REASONS

    for text in REASONS:
        place: Any = ("peer_agent/protocol/reasons", None)
        found.add(text, locations=[place])


def messages_in(path: Path) -> Iterator[tuple[int, Any, list[str], str | None]]:
    """Yield the messages in a file. A template is first converted to Python calls, as in Django's own tool."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".ts":
        yield from ((0, message, [], None) for message in said_in(source))
        return
    if path.suffix == ".html":
        from django.utils.translation.template import templatize

        source = templatize(source, origin=str(path))
    yield from extract("python", BytesIO(source.encode()), KEYWORDS, TAGS, {"encoding": "utf-8"})


def said_in(script: str) -> Iterator[str]:
    """Yield the texts that a TypeScript file passes to `say`."""
    yield from map(unquoted, SAID.findall(script))


def unquoted(text: str) -> str:
    return str(json.loads(f'"{text}"'))


# Catalogues


def updated(domain: Domain, language: str) -> bytes:
    """Return a language's catalogue with the current messages.

    Translations are kept, and obsolete messages are removed.
    """
    path = domain.catalogue(language)
    known = read(path, language) if path.exists() else Catalog(language, project="Manyhands", charset="utf-8")
    known.update(found_in(domain), no_fuzzy_matching=True)
    out = BytesIO()
    write_po(out, known, width=120, sort_output=True, omit_header=False, ignore_obsolete=True)
    return without_dates(out.getvalue())


def read(path: Path, language: str) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, locale=language)


def without_dates(written: bytes) -> bytes:
    """Remove the headers with dates and tool names, so that the same messages always give the same file."""
    return re.sub(rb'"(POT-Creation-Date|PO-Revision-Date|Last-Translator|Generated-By)[^"]*"\n', b"", written)


def compile_all() -> None:
    for domain in DOMAINS:
        for language in LANGUAGES:
            save(read(domain.catalogue(language), language), domain, language)
        found = read(domain.catalogue(LANGUAGES[0]), LANGUAGES[0])
        for language in PSEUDO:
            save(pseudo(found), domain, language)


def save(catalogue: Catalog, domain: Domain, language: str) -> None:
    """Write the compiled form of a catalogue. For the site, also write the texts of its browser scripts."""
    out, path = BytesIO(), domain.catalogue(language)
    catalogue.creation_date = catalogue.revision_date = NEVER  # so that equal messages give equal files
    write_mo(out, catalogue)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".mo").write_bytes(out.getvalue())
    if SCRIPTS in domain.sources:
        path.with_name(WORDS).write_text(json.dumps(words_of(catalogue), ensure_ascii=False, sort_keys=True), "utf-8")


def words_of(catalogue: Catalog) -> dict[str, str]:
    """Return the translations of the texts that browser scripts show, by their English text."""
    found: dict[str, str] = {}
    for path in sorted(ROOT.glob(SCRIPTS)):
        for said in said_in(path.read_text(encoding="utf-8")):
            message = catalogue.get(said)
            if message is not None and message.string:
                found[said] = str(message.string)
    return found


def pseudo(found: Catalog) -> Catalog:
    """Return a pseudo-translation with accents and brackets.

    If a page then shows text without accents, that text was never marked for translation.
    """
    made = Catalog("en", project="Manyhands", charset="utf-8")
    for message in found:
        if message.id:
            accented = tuple(map(accent, as_tuple(message.id)))
            made.add(message.id, accented if len(accented) > 1 else accented[0], context=message.context)
    return made


def accent(text: str) -> str:
    """Return a text with accents, lengthened by a quarter. Placeholders, tags and entities stay as they are."""
    kept = PARTS.findall(text)
    parts = [part.translate(ACCENTS) for part in PARTS.split(text)]
    inside = "".join(part + tail for part, tail in zip(parts, [*kept, ""], strict=True))
    return f"⟦{inside}{'·' * (len(text) // 4)}⟧"


# Faults of translations


def faults_of(language: str, message: Message) -> Iterator[str]:
    """Yield the faults of a translation that would break a page or change its meaning."""
    if not message.id or not message.string:
        return
    ids, strings = as_tuple(message.id), as_tuple(message.string)
    for text in filter(None, strings):
        if sorted(places(text)) not in [sorted(places(each)) for each in ids]:
            yield f"{language}: “{ids[0]}” has other places than “{text}”"


def as_tuple(text: Any) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, (tuple, list)) else (text,)


def places(text: str) -> list[str]:
    return [part for part in PARTS.findall(text) if not part.startswith("&")]


def main() -> int:
    """Update or check the catalogues. Return 1 if there are faults."""
    parser = argparse.ArgumentParser(prog="python -m scripts.messages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a catalogue is not up to date")
    parser.add_argument("--compile", action="store_true", help="write what programs read")
    given = parser.parse_args()
    if given.compile:  # used in container images and during setup; does not search the sources
        compile_all()
        return 0
    faults: list[str] = []
    for domain in DOMAINS:
        for language in LANGUAGES:
            path, wanted = domain.catalogue(language), updated(domain, language)
            if not given.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(wanted)
            elif not path.exists() or path.read_bytes() != wanted:
                faults.append(f"{path.relative_to(ROOT)} is not up to date: python -m scripts.messages")
            for message in read_po(BytesIO(wanted), locale=language):
                faults += faults_of(language, message)
    if not given.check:
        compile_all()
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
