"""Rules for people's names. Two names that look alike would let one person pass for another.

The rules are those of Unicode Technical Standard 39: letters of one script, digits of one system, and no name with the
same skeleton as another. A name's skeleton has, in place of each character, the simplest one that looks like it.
confusable-homoglyphs carries Unicode's tables of scripts and of characters that look alike.
"""

import unicodedata
from functools import cache

from confusable_homoglyphs import categories, confusables
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy

SHORTEST, LONGEST = 2, 30  # characters
MARKS = 4  # accents and vowel signs in a row; more would be drawn over the neighbouring lines (UTS 39, section 5.4)
SEPARATORS = "._-"
JOINERS = "\u200c\u200d"  # invisible; they select the shape of a letter in Arabic and Indic scripts
# Scripts that are written together: UTS 39, section 5.2, "highly restrictive".
TOGETHER = ({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}, {"LATIN", "HAN", "BOPOMOFO"}, {"LATIN", "HAN", "HANGUL"})
NO_SCRIPT = {"COMMON", "INHERITED"}
NO_JOINERS = {"LATIN", "CYRILLIC", "GREEK", *NO_SCRIPT}
# Names by which a stranger could pass for those who run the site.
RESERVED = (
    "admin",
    "administrator",
    "manyhands",
    "moderator",
    "official",
    "operator",
    "root",
    "security",
    "staff",
    "support",
    "system",
)


def validate_name(name: str) -> None:
    """Raise ValidationError if people may not have names of this form."""
    if not SHORTEST <= len(name) <= LONGEST or not _is_letter(name[0]) or not _has_only_letters(name):
        text = gettext_lazy(
            "Use 2 to 30 letters, digits, dots, dashes or underscores, and begin with a letter or digit."
        )
        raise ValidationError(text)
    scripts = {categories.alias(each) for each in name} - NO_SCRIPT
    systems = {ord(each) - unicodedata.decimal(each) for each in name if unicodedata.category(each) == "Nd"}
    if len(systems) > 1 or (len(scripts) > 1 and not any(scripts <= together for together in TOGETHER)):
        raise ValidationError(gettext_lazy("Use letters and digits of one script: those of others can look the same."))


def is_reserved(name: str, prefix: str) -> bool:
    """Return whether the site keeps this name, or all names that look as if they began with `prefix`, for itself."""
    look = look_of(name)
    plain = look_of("".join(each for each in name if each not in SEPARATORS))
    return look.startswith(look_of(prefix)) or plain in {look_of(word) for word in RESERVED}


def look_of(name: str) -> str:
    """Return the name's skeleton. Two names with the same skeleton look alike in upper or lower case."""
    return _skeleton(_skeleton(name).casefold())


def is_mark(character: str) -> bool:
    """Return whether this is an accent or a vowel sign, which belongs to the letter before it."""
    return unicodedata.category(character)[0] == "M"


def _has_only_letters(name: str) -> bool:
    marks = 0
    for at, each in enumerate(name):
        marks = marks + 1 if is_mark(each) else 0
        is_allowed = _is_letter(each) or is_mark(each) or each in SEPARATORS
        if marks > MARKS or not (is_allowed or (each in JOINERS and _may_join(name[at - 1], name[at + 1 :]))):
            return False
    return True


def _may_join(before: str, after: str) -> bool:
    return bool(after) and all(
        (_is_letter(each) or is_mark(each)) and categories.alias(each) not in NO_JOINERS for each in (before, after[0])
    )


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] == "L" or unicodedata.category(character) == "Nd"


def _skeleton(text: str) -> str:
    plain = unicodedata.normalize("NFD", text)
    looks = "".join(_prototype(each) for each in plain if each not in JOINERS)
    return unicodedata.normalize("NFD", looks)


def _prototype(character: str) -> str:
    """Return the one text that stands for all characters that look like this one.

    Unicode maps each of them to the same prototype, and the table lists every pair in both directions. So the prototype
    is the member of the group with several characters, or otherwise the one with the most neighbours.
    """
    alike = _alike()
    group: list[str] = [character, *alike.get(character, ())]
    return max(group, key=lambda each: (len(each) > 1, len(alike.get(each, ())), -ord(each[0])))


@cache
def _alike() -> dict[str, list[str]]:
    """Map each text of Unicode's table to those that look like it, without the table's marks of direction."""
    return {
        each.strip("\u200e"): [other["c"].strip("\u200e") for other in others]
        for each, others in confusables.confusables_data.items()
    }
