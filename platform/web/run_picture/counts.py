"""Numbers with their nouns, in the reader's language. Pure functions."""

from collections.abc import Callable

from django.utils.translation import gettext as _
from django.utils.translation import ngettext


def people(number: int) -> str:
    return with_number(ngettext("%(number)s person", "%(number)s people", number), number)


def machines(number: int) -> str:
    return with_number(ngettext("%(number)s machine", "%(number)s machines", number), number)


def samples(number: int) -> str:
    return with_number(ngettext("%(number)s sample", "%(number)s samples", number), number)


def steps(number: int) -> str:
    return with_number(ngettext("%(number)s step", "%(number)s steps", number), number)


def models(number: int) -> str:
    return with_number(ngettext("%(number)s AI model", "%(number)s AI models", number), number)


def with_number(message: str, number: int) -> str:
    """Insert a number, with digits in groups of three, into a message chosen by `ngettext`."""
    return message % {"number": f"{number:,}"}


def duration(seconds: float) -> str:
    """Return a duration as rounded text, such as “4.5 s”, “88 min”, “2 h 5 min” or “3 days”."""
    if seconds < 10:
        return _("%(seconds)s s") % {"seconds": f"{seconds:.1f}".removesuffix(".0")}
    if seconds < 90:
        return _("%(seconds)s s") % {"seconds": f"{seconds:.0f}"}
    minutes = round(seconds / 60)
    if minutes < 90:
        return _("%(minutes)s min") % {"minutes": minutes}
    hours, rest = divmod(minutes, 60)
    if hours < 24:
        return _("%(hours)s h %(minutes)s min") % {"hours": hours, "minutes": rest}
    days = round(minutes / 60 / 24)
    return with_number(ngettext("%(number)s day", "%(number)s days", days), days)


def ordinal(number: int) -> str:
    """Return an ordinal number, such as 1st, 2nd, 3rd or 11th."""
    ending = number % 10 if number % 100 not in (11, 12, 13) else 0
    return ORDINALS.get(ending, _nth)(f"{number:,}")


def _first(number: str) -> str:
    return _("%(number)sst") % {"number": number}


def _second(number: str) -> str:
    return _("%(number)snd") % {"number": number}


def _third(number: str) -> str:
    return _("%(number)srd") % {"number": number}


def _nth(number: str) -> str:
    return _("%(number)sth") % {"number": number}


ORDINALS: dict[int, Callable[[str], str]] = {1: _first, 2: _second, 3: _third}
