"""The catalogues of messages: `.venv/bin/python -m scripts.messages` brings them up to date, `--check` tells of faults.

Two domains: `django` of the site, its Python, templates and scripts; `manyhands` of the agent. Translations stand in
`.po` files, which people edit. `--compile`, which setup calls, writes what programs read: `.mo` files, what scripts
of pages say (`words.json`), and two languages that nobody has translated: every message in accents and brackets
(`en-XA`), and the same for pages from right to left (`ar-XB`).
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
    "Tell": (1,),  # of a trainer, whose pure core translates nothing
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
    **dict.fromkeys(("pgettext", "pgettext_lazy"), ((1, "c"), 2)),
    **dict.fromkeys(("npgettext", "npgettext_lazy"), ((1, "c"), 2, 3)),
}
TAGS = ("TRANSLATORS:",)
SCRIPTS = "frontend/src/**/*.ts"
QUOTED = r'"((?:[^"\\]|\\.)*)"'
SAID = re.compile(rf"(?<![.\w])(?:say\(\s*{QUOTED}|sayCount\(\s*{QUOTED},\s*{QUOTED})")
WORDS = "words.json"  # of pages in another language: what scripts say, and nothing else
PARTS = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|<[^>]+>|&\w+;")  # of a message, that stay as they are
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
ACCENTS = str.maketrans("aeiouycnsAEIOUYCNS", "àéîõûýçñšÀÉÎÕÛÝÇÑŠ")


class Domain(NamedTuple):
    """Where messages of one program are, and where their catalogues stand."""

    name: str
    folder: Path
    sources: tuple[str, ...]

    def catalogue(self, language: str) -> Path:
        """What people edit."""
        return self.folder / language / "LC_MESSAGES" / f"{self.name}.po"


DOMAINS = (
    Domain(
        "django",
        ROOT / "platform" / "web" / "locale",
        ("platform/**/*.py", "platform/web/templates/**/*.html", SCRIPTS),
    ),
    Domain("manyhands", ROOT / "peer_agent" / "locale", ("peer_agent/**/*.py",)),
)


# What there is to translate


def found_in(domain: Domain) -> Catalog:
    """Every message of a domain, with the files it is in; line numbers would change with every edit."""
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
    """What kinds of recipes say of themselves is text of theirs, and translated where a page shows it."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from peer_agent.protocol.recipe import KINDS
    from web.pages.runs.forms.recipe import COMMON  # with all kinds that there are

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
    """What a recipe calls the files that it learns from, and what is brought beside them."""
    if material is not None:
        yield from (material.name, material.named(2), material.unit, material.file, material.more, *material.shown)
        yield from words_of_material(material.brought)


def add_errors(found: Catalog) -> None:
    """The catalogue of errors is a table: all of its texts are messages, and none is marked there."""
    from peer_agent.protocol.errors import CATALOGUE

    place: Any = ("peer_agent/protocol/errors", None)
    for code, entry in CATALOGUE.items():
        for part in ("title", "cause", "means", "remedy"):
            if text := getattr(entry, part):
                found.add(text, locations=[place], auto_comments=[f"{code}: {part}"])


def add_reasons(found: Catalog) -> None:
    """Why a run stands still, the same way."""
    from peer_agent.protocol.reasons import REASONS

    for text in REASONS:
        place: Any = ("peer_agent/protocol/reasons", None)
        found.add(text, locations=[place])


def messages_in(path: Path) -> Iterator[tuple[int, Any, list[str], str | None]]:
    """Of one file; a template is turned into calls first, as Django's own tool does."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".ts":
        yield from ((0, message, [], None) for message in said_in(source))
        return
    if path.suffix == ".html":
        from django.utils.translation.template import templatize

        source = templatize(source, origin=str(path))
    yield from extract("python", BytesIO(source.encode()), KEYWORDS, TAGS, {"encoding": "utf-8"})


def said_in(script: str) -> Iterator[str | tuple[str, str]]:
    """What a script gives to `say` and `sayCount`, as it stands there."""
    for single, one, many in SAID.findall(script):
        yield (unquoted(one), unquoted(many)) if one else unquoted(single)


def unquoted(text: str) -> str:
    """What a literal between double quotes is."""
    return str(json.loads(f'"{text}"'))


# Catalogues


def updated(domain: Domain, language: str) -> bytes:
    """The catalogue of one language with all messages that there are now; translations stay, old ones go."""
    path = domain.catalogue(language)
    known = read(path, language) if path.exists() else Catalog(language, project="Manyhands", charset="utf-8")
    known.update(found_in(domain), no_fuzzy_matching=True)
    out = BytesIO()
    write_po(out, known, width=120, sort_output=True, omit_header=False, ignore_obsolete=True)
    return without_dates(out.getvalue())


def read(path: Path, language: str) -> Catalog:
    """A catalogue as it stands."""
    with path.open("rb") as file:
        return read_po(file, locale=language)


def without_dates(written: bytes) -> bytes:
    """The same messages make the same file."""
    return re.sub(rb'"(POT-Creation-Date|PO-Revision-Date|Last-Translator|Generated-By)[^"]*"\n', b"", written)


def compile_all() -> None:
    """What programs read, beside what people edit."""
    for domain in DOMAINS:
        for language in LANGUAGES:
            save(read(domain.catalogue(language), language), domain, language)
        found = read(domain.catalogue(LANGUAGES[0]), LANGUAGES[0])
        for language in PSEUDO:
            save(pseudo(found), domain, language)


def save(catalogue: Catalog, domain: Domain, language: str) -> None:
    """The compiled form of a catalogue, and what the site's scripts need of it."""
    out, path = BytesIO(), domain.catalogue(language)
    catalogue.creation_date = catalogue.revision_date = NEVER  # the same messages make the same file
    write_mo(out, catalogue)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".mo").write_bytes(out.getvalue())
    if SCRIPTS in domain.sources:
        path.with_name(WORDS).write_text(json.dumps(words_of(catalogue), ensure_ascii=False, sort_keys=True), "utf-8")


def words_of(catalogue: Catalog) -> dict[str, str | list[str]]:
    """What scripts say, where it is translated: two forms of what they count."""
    found: dict[str, str | list[str]] = {}
    for path in sorted(ROOT.glob(SCRIPTS)):
        for said in said_in(path.read_text(encoding="utf-8")):
            message = catalogue.get(as_tuple(said)[0])
            if message is not None and all(as_tuple(message.string)):
                forms = list(as_tuple(message.string))
                found[as_tuple(said)[0]] = forms if isinstance(said, tuple) else forms[0]
    return found


def pseudo(found: Catalog) -> Catalog:
    """Every message in accents and brackets: what stands on a page without them was never marked."""
    made = Catalog("en", project="Manyhands", charset="utf-8")
    for message in found:
        if message.id:
            accented = tuple(map(accent, as_tuple(message.id)))
            made.add(message.id, accented if len(accented) > 1 else accented[0], context=message.context)
    return made


def accent(text: str) -> str:
    """Readable, a third longer, and not what it was; places, tags and entities stay."""
    kept = PARTS.findall(text)
    parts = [part.translate(ACCENTS) for part in PARTS.split(text)]
    inside = "".join(part + tail for part, tail in zip(parts, [*kept, ""], strict=True))
    return f"⟦{inside}{'·' * (len(text) // 4)}⟧"


# Faults of translations


def faults_of(language: str, message: Message) -> Iterator[str]:
    """What would break a page or say something else."""
    if not message.id or not message.string:
        return
    ids, strings = as_tuple(message.id), as_tuple(message.string)
    for text in filter(None, strings):
        if sorted(places(text)) not in [sorted(places(each)) for each in ids]:
            yield f"{language}: “{ids[0]}” has other places than “{text}”"


def as_tuple(text: Any) -> tuple[str, ...]:
    return tuple(text) if isinstance(text, (tuple, list)) else (text,)


def places(text: str) -> list[str]:
    """What is filled in, and the tags."""
    return [part for part in PARTS.findall(text) if not part.startswith("&")]


def main() -> int:
    """0 where all is well."""
    parser = argparse.ArgumentParser(prog="python -m scripts.messages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a catalogue is not up to date")
    parser.add_argument("--compile", action="store_true", help="write what programs read")
    given = parser.parse_args()
    if given.compile:  # in images and at setup: nothing is looked for in the sources
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
