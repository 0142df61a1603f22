"""Translation of errors. Programs create errors in English; the program that shows an error translates it."""

import string
from collections.abc import Callable, Iterable

from peer_agent.protocol.errors import CATALOGUE, Fault, codes
from peer_agent.protocol.errors.entry import Entry

Translated = Callable[[str], str]  # returns a message in the reader's language
# The reason in these errors may be the text of another error's cause (`not_reached`), which is also translated.
INSIDE = {"E134": (codes.NOT_REACHED, codes.STRANGE_ANSWER)}


def in_words(fault: Fault, translated: Translated) -> Fault:
    """Translate a fault from the catalogue. Its details are parsed from its English text, which may be untrusted."""
    entry = CATALOGUE.get(fault.code)
    if entry is None or translated(entry.cause) == entry.cause:
        return fault
    found = places_in(_whole(entry), fault.text)
    if found is None:
        return fault
    details, rest = found
    details |= {name: _inside(fault.code, value, translated) for name, value in details.items() if fault.code in INSIDE}
    cause, means, remedy = (translated(part).format(**details) for part in (entry.cause, entry.means, entry.remedy))
    return Fault(fault.code, cause, means, remedy + rest)


def cause_of(fault: Fault, translated: Translated) -> str:
    """Return only what happened, translated and without a full stop; for an unknown text, its first sentence."""
    entry = CATALOGUE.get(fault.code)
    found = places_in(_whole(entry), fault.text) if entry is not None else None
    if entry is None or found is None:
        return fault.text.partition(". ")[0]
    return translated(entry.cause).format(**found[0]).rstrip(".।")


def places_in(template: str, text: str) -> tuple[dict[str, str], str] | None:
    """Match `text` against a template. Return the placeholders' values and the text after the match, or None."""
    flat, at, name, details = text.replace("\n", " "), 0, "", dict[str, str]()
    for literal, place, *_ in string.Formatter().parse(template.replace("\n", " ")):
        begin = flat.find(literal, at) if literal or not name else len(flat)
        if begin < 0 or (begin > at and not name):
            return None
        if name:
            details.setdefault(name, text[at:begin])
        at, name = begin + len(literal), place or ""
    if name:
        return details | {name: text[at:]}, ""
    return (details, text[at:]) if at == len(flat) or flat[at] == " " else None


def refilled(templates: Iterable[str], text: str, translated: Translated) -> str:
    """Translate text made from one of the templates, keeping its details. Return any other text unchanged."""
    for english in templates:
        found = places_in(english, text)
        if found is not None and not found[1]:
            return translated(english).format(**found[0])
    return text


def _whole(entry: Entry) -> str:
    return " ".join(part for part in (entry.cause, entry.means, entry.remedy) if part)


def _inside(code: str, value: str, translated: Translated) -> str:
    for cause in (CATALOGUE[other].cause for other in INSIDE[code]):
        found = places_in(cause.rstrip("."), value)
        if found is not None and not found[1]:
            return translated(cause).format(**found[0]).rstrip(".।")
    return value
