"""Translation of the agent's messages, which are written in English in the code.

They are translated when shown to the user. The language comes from MANYHANDS_LANGUAGE or the system. Output for
programs is never translated.
"""

import codecs
import locale
import logging
import math
import os
import re
import struct
import sys
from collections.abc import Mapping
from gettext import GNUTranslations, NullTranslations
from unicodedata import category, east_asian_width

ENGLISH = "en"
VARIABLES = ("MANYHANDS_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")  # the first variable that is set wins
# Categories of characters without a column of their own, because terminals draw them above or below a letter
STACKED = frozenset({"Mn", "Me", "Cf"})
NAME = re.compile(r"([A-Za-z]{2,3})(?:[_-]([A-Za-z]{2,4}))?(?:[.@].*)?")  # matches bn, bn_BD.UTF-8 or en-XA


class _Reader:
    """The language of this process's output. `catalogue` is opened when the first message is shown."""

    catalogue: NullTranslations | None = None


def gettext(message: str) -> str:
    return _catalogue().gettext(message) if message else ""


def ngettext(one: str, many: str, count: int) -> str:
    return _catalogue().ngettext(one, many, count)


def gettext_noop(message: str) -> str:
    """Mark a constant for translation and return it unchanged. `translated` translates it when it is shown."""
    return message


translated = gettext  # For constants that `gettext_noop` marks. Only literals in `gettext("…")` are extracted.


def speak(language: str) -> None:
    """Switch this process to a language, whatever the environment asks for."""
    _Reader.catalogue = catalogue_of(language)


def is_english() -> bool:
    return not isinstance(_catalogue(), GNUTranslations)


def columns_of(text: str) -> int:
    """Return a text's width in terminal columns.

    Unlike Rich, this counts spacing marks, such as Bengali vowel signs, as one column each.
    """
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text if category(letter) not in STACKED)


def padded(text: str, columns: int) -> str:
    return text + " " * max(columns - columns_of(text), 0)


def has_spacing_marks(text: str) -> bool:
    """Return True if the text has spacing marks, whose width differs between terminals."""
    return any(category(letter) == "Mc" for letter in text)


def _catalogue() -> NullTranslations:
    if _Reader.catalogue is None:
        _Reader.catalogue = catalogue_of(language_of(os.environ) if _writes_all_letters() else ENGLISH)
    return _Reader.catalogue


def language_of(environment: Mapping[str, str]) -> str:
    """Return the requested language, such as `bn_BD`, or English if none is set or the setting is `C`."""
    named = next((environment[name] for name in VARIABLES if environment.get(name)), "") or _of_system()
    found = NAME.fullmatch(named)
    if found is None:
        return ENGLISH
    language, region = found[1].lower(), (found[2] or "").upper()
    return f"{language}_{region}" if region else language


def _of_system() -> str:
    """Return the system's language, or "" if it is unknown.

    This is used if the environment sets no language, as is typical on Windows.
    """
    try:
        if sys.platform == "win32":
            import ctypes

            return locale.windows_locale.get(ctypes.windll.kernel32.GetUserDefaultUILanguage(), "")
        return locale.getlocale()[0] or ""
    except (ValueError, OSError):  # Python does not know the system's language
        return ""


def catalogue_of(language: str) -> NullTranslations:
    """Return the translations for a language and region, or else for the language alone.

    They are empty if there is no catalogue for either.
    """
    from importlib.resources import files

    for name in dict.fromkeys((language, language.partition("_")[0])):
        place = files("peer_agent").joinpath("locale", name, "LC_MESSAGES", "manyhands.mo")
        try:
            with place.open("rb") as file:
                return GNUTranslations(file)
        except (OSError, ValueError, struct.error):  # missing or damaged
            continue
    return NullTranslations()


def _writes_all_letters() -> bool:
    """Return True if the output can encode the characters of every language.

    If not, printing a translated message could raise an error.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(encoding).name.startswith("utf")
    except LookupError:
        return False


def in_bytes(count: float) -> str:
    """Return a size as text, such as “12 kB”, “3.4 MB” or “1.5 GB”."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    if count < 1e6:
        return f"{math.ceil(count / 1e3)} kB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


JOINERS = "\u200c\u200d"  # used in Persian, Hindi and some emoji


def sanitize(text: str) -> str:
    """Make untrusted text safe for a terminal.

    Remove characters that control the cursor, color or text direction.
    """
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " * letter.isspace() for letter in text)


class SanitizingFormatter(logging.Formatter):
    """Formats log lines so that they are safe in a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Sanitize each line of the message, keeping line breaks such as those in tracebacks."""
        return "\n".join(sanitize(line) for line in super().format(record).split("\n"))
