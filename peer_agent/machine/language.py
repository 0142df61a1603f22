"""What people read at this machine, in their language: messages are English here, and are looked up when shown.

The catalogue is that of MANYHANDS_LANGUAGE, or else of the system's language; where there is none, or it lacks a
message, English is shown. What programs read (`--json`, logs, everything on a link) is never looked up.
"""

import codecs
import locale
import logging
import os
import re
import struct
import sys
from collections.abc import Mapping
from gettext import GNUTranslations, NullTranslations
from unicodedata import category, east_asian_width

ENGLISH = "en"
VARIABLES = ("MANYHANDS_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set counts
STACKED = frozenset({"Mn", "Me", "Cf"})  # kinds of letters that take no column: they stand above or below others
NAME = re.compile(r"([A-Za-z]{2,3})(?:[_-]([A-Za-z]{2,4}))?(?:[.@].*)?")  # as bn, bn_BD.UTF-8, en-XA


class _Reader:
    """Whoever reads what this process shows. Their catalogue is opened with the first message."""

    catalogue: NullTranslations | None = None


def gettext(message: str) -> str:
    """A message in the reader's language."""
    return _catalogue().gettext(message) if message else ""


def ngettext(one: str, many: str, count: int) -> str:
    """The form of a message that belongs to a number."""
    return _catalogue().ngettext(one, many, count)


def gettext_noop(message: str) -> str:
    """Marks a constant, which is looked up by `translated` when it is shown."""
    return message


translated = gettext  # of a constant that is marked elsewhere: what is extracted are the words in `gettext("…")`


def speak(language: str) -> None:
    """From now on in this language, whatever the environment says."""
    _Reader.catalogue = catalogue_of(language)


def is_english() -> bool:
    return not isinstance(_catalogue(), GNUTranslations)


def columns_of(text: str) -> int:
    """How wide a text is in a terminal, as the system's C library and most terminals have it.

    Rich gives marks that stand beside their letter (as Bengali's vowel signs do) no column; here they have one each.
    """
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text if category(letter) not in STACKED)


def padded(text: str, columns: int) -> str:
    return text + " " * max(columns - columns_of(text), 0)


def has_spacing_marks(text: str) -> bool:
    """Whether terminals may differ over how wide it is."""
    return any(category(letter) == "Mc" for letter in text)


def _catalogue() -> NullTranslations:
    if _Reader.catalogue is None:
        _Reader.catalogue = catalogue_of(language_of(os.environ) if _writes_all_letters() else ENGLISH)
    return _Reader.catalogue


def language_of(environment: Mapping[str, str]) -> str:
    """The language that somebody wants, as `bn_BD`; English where none is named, or it is the machine's own (`C`)."""
    named = next((environment[name] for name in VARIABLES if environment.get(name)), "") or _of_system()
    found = NAME.fullmatch(named)
    if found is None:
        return ENGLISH
    language, region = found[1].lower(), (found[2] or "").upper()
    return f"{language}_{region}" if region else language


def _of_system() -> str:
    """Where the environment says nothing. On Windows it never does."""
    try:
        if sys.platform == "win32":
            import ctypes

            return locale.windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")
        return locale.getlocale()[0] or ""
    except (ValueError, OSError):  # of a language that this Python does not know
        return ""


def catalogue_of(language: str) -> NullTranslations:
    """The translations into it, or into its language without a region; none where nobody has compiled any."""
    from importlib.resources import files

    for name in dict.fromkeys((language, language.partition("_")[0])):
        place = files("peer_agent").joinpath("locale", name, "LC_MESSAGES", "manyhands.mo")
        try:
            with place.open("rb") as file:
                return GNUTranslations(file)
        except (OSError, ValueError, struct.error):  # none, or a damaged one
            continue
    return NullTranslations()


def _writes_all_letters() -> bool:
    """A terminal or file of another encoding would stop the agent at the first letter that it lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(encoding).name.startswith("utf")
    except LookupError:
        return False


def in_bytes(count: float) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


JOINERS = "\u200c\u200d"  # part of how Persian, Hindi and some emoji are written


def sanitize(text: str) -> str:
    """Words of other people, made fit for a terminal: they move no cursor, change no colour and turn no line around."""
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " * letter.isspace() for letter in text)


class SanitizingFormatter(logging.Formatter):
    """Lines of the log as they may stand in a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Its own line breaks stay: a traceback has several."""
        return "\n".join(sanitize(line) for line in super().format(record).split("\n"))
