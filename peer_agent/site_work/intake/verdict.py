"""The verdict on an organizer's data: how it was interpreted, what was left out, and what to check."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from peer_agent.machine.language import gettext_noop
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.translation import places_in

# The names of formats, and the reasons to leave rows or files out. `in_words` tries them in this order.
WORDS = (
    gettext_noop("broken"),
    gettext_noop("too long"),
    gettext_noop("too large"),
    gettext_noop("without text"),
    gettext_noop("with parts that are not text"),
    gettext_noop("with more cells than the header"),
    gettext_noop("refused by the template"),
    gettext_noop("not opened"),
    gettext_noop("links and devices"),
    gettext_noop("damaged or huge images"),
    gettext_noop("images outside the folders of classes"),
    gettext_noop("set aside as a test"),
    gettext_noop("held out of another text"),
    gettext_noop("unnamed files"),
    gettext_noop("plain text"),
    gettext_noop("images in folders"),
    gettext_noop("{reason} in the held-out part"),
    gettext_noop("{format}, packed"),
    gettext_noop("{format}, {count} files"),
    gettext_noop("{kind} files"),
    gettext_noop("{one} and {other}"),
)
EXAMPLES = 3  # examples kept for each reason to leave rows or files out
SHOWN = 160  # most characters of an example or value


class Field(Struct, frozen=True):
    """A field or column with text. `rows`: how many rows have text in it. `example`: the start of one value."""

    name: str
    rows: int
    characters: int
    example: str


class Finding(Struct, frozen=True):
    """A remark on the data for its organizer.

    A question asks the organizer to check something. A refusal stops the preparation.
    """

    code: str
    severity: Literal["note", "question", "refusal"]
    text: str


class Pixels(Struct, frozen=True, rename={"name": "class"}):
    """The mean and standard deviation of a class's pixels, each from 0 to 255."""

    name: str
    mean: float
    deviation: float


class Verdict(Struct, kw_only=True):
    """How an organizer's data was interpreted. For image data, `rows` counts images.

    `left_out`: the number of rows or archived files that are not used, by reason. `examples`: a few of them, by reason.
    `heldout_overlap`: the share of the held-out part that also occurs in the training part, from 0 to 1.
    """

    format: str = ""
    field: str = ""
    fields: list[Field] = []
    rows: int = 0
    left_out: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    repeats: int = 0
    heldout: str = ""
    heldout_overlap: float = 0.0
    tokens: int = 0
    classes: dict[str, int] = {}
    pieces: list[str | Pixels] = []
    findings: list[Finding] = []

    def leave_out(self, reason: str, example: str, count: int = 1) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + count
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES:
            kept.append(shown(example))

    def note(self, code: str, **values: object) -> None:
        self._find("note", code, values)

    def ask(self, code: str, **values: object) -> None:
        self._find("question", code, values)

    def refuse(self, fault: Fault) -> None:
        self.findings.append(Finding(fault.code, "refusal", str(fault)))

    def _find(self, severity: Literal["note", "question"], code: str, values: dict[str, object]) -> None:
        fault = Fault.of(code, **values)
        if not any(finding.code == code for finding in self.findings):  # one finding per code is enough
            self.findings.append(Finding(code, severity, fault.text))

    @property
    def is_plain(self) -> bool:
        """True if the verdict contains neither a refusal nor a question."""
        return all(finding.severity == "note" for finding in self.findings)


def together(verdicts: list[Verdict]) -> Verdict:
    """Merge the verdicts on a run's sources into one.

    Sum the counts, take the largest overlap with the held-out part, and list each distinct finding once.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    left_out: Counter[str] = Counter()
    for each in verdicts:
        left_out.update(each.left_out)
    return Verdict(
        format="; ".join(each.format for each in verdicts),
        field="; ".join(each.field or "–" for each in verdicts) if any(each.field for each in verdicts) else "",
        fields=[field for each in verdicts for field in each.fields],
        rows=sum(each.rows for each in verdicts),
        left_out=dict(left_out),
        examples={reason: found for each in verdicts for reason, found in each.examples.items()},
        repeats=sum(each.repeats for each in verdicts),
        heldout_overlap=max(each.heldout_overlap for each in verdicts),
        heldout="; ".join(dict.fromkeys(each.heldout for each in verdicts if each.heldout)),
        findings=[*dict.fromkeys(finding for each in verdicts for finding in each.findings)],
    )


def shown(text: str, most: int = SHOWN) -> str:
    """Return the start of some text on one line, without characters that could garble a page or a terminal."""
    words = " ".join(text[: 4 * most].split())
    plain = "".join(letter for letter in words if not unicodedata.category(letter).startswith("C"))
    return plain if len(plain) <= most else plain[:most].rstrip() + "…"


def in_words(words: str, translated: Callable[[str], str]) -> str:
    """Translate the name of a format, or a reason to leave rows or files out. Return any other text unchanged."""
    for english in WORDS:
        found = places_in(english, words)
        if found is not None and not found[1]:
            inside = {name: in_words(value, translated) for name, value in found[0].items()}
            return translated(english).format(**inside)
    return words


def counted(number: int, one: str) -> str:
    """Return a number with its noun, as in `3 images`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def encode_verdict(verdict: Verdict) -> bytes:
    return msgspec.json.encode(verdict)
