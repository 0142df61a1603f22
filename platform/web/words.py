"""Translate texts from the agent's packages, using the agent's and the site's catalogues. Also write sizes as text."""

from functools import cache
from gettext import NullTranslations

from django.utils.translation import get_language, gettext, to_locale

from peer_agent.machine.language import catalogue_of
from peer_agent.machine.language import in_bytes as in_bytes_of_terminal
from peer_agent.protocol import reasons
from peer_agent.protocol.errors import CATALOGUE, Fault, titled
from peer_agent.protocol.errors.translation import cause_of, in_words, refilled
from peer_agent.protocol.recipe import Material, Recipe
from peer_agent.site_work.intake import verdict

BROKEN = "\N{REPLACEMENT CHARACTER}"  # stands for bytes in a text that do not form a whole character


def in_words_of_page(fault: Fault) -> Fault:
    """Return an error in the active language, or unchanged if there is no translation."""
    return in_words(fault, _translated)


def cause_of_page(fault: Fault) -> str:
    """Return only what happened, in the active language, for people who cannot do anything about it."""
    return cause_of(fault, _translated)


def title_of_page(title: str) -> str:
    return _translated(title)


def titled_in_words_of_page(fault: Fault) -> str:
    """Return an error as one paragraph: title, number and full text."""
    return titled(title_of_page(fault.title), fault.code, in_words_of_page(fault).text)


def reason_in_words_of_page(reason: str) -> str:
    """Return the reason why a run is waiting, in the active language. The reason may be a numbered error."""
    fault = Fault.read(reason)
    return str(in_words_of_page(fault)) if fault.code in CATALOGUE else reasons.in_words(reason, _translated)


def verdict_in_words_of_page(words: str) -> str:
    """Return a text from a verdict on data, such as a format or a reason to leave rows out, in the active language."""
    return "; ".join(verdict.in_words(each, _translated) for each in words.split("; "))


def material_in_words_of_page(material: Material) -> Material:
    """Return the material with its texts in the active language."""
    return material._replace(
        name=gettext(material.name),
        unit=gettext(material.unit),
        file=gettext(material.file),
        more=material.more and gettext(material.more),
        shown=(gettext(material.shown[0]), gettext(material.shown[1])),
        adapts=material.adapts and material_in_words_of_page(material.adapts),
        takes=material.takes and material_in_words_of_page(material.takes),
    )


def summary_of_page(recipe: Recipe) -> str:
    return refilled(recipe.summaries, recipe.summary(), gettext)


def loss_unit_of_page(recipe: Recipe) -> tuple[str, str]:
    """Return the name of the unit over which a loss is averaged, such as “token”, and its plural."""
    one, many = recipe.loss_unit
    return gettext(one), gettext(many)


def in_bytes(count: float) -> str:
    """Return a size as text, such as “3.4 MB”, with a no-break space before the unit."""
    return in_bytes_of_terminal(count).replace(" ", "\N{NO-BREAK SPACE}")


def tidied(text: str) -> str:
    """Return a model's text without blank lines and without the characters that stand for broken bytes."""
    lines = text.replace(BROKEN, "").splitlines()
    begins = "\n" if lines and not lines[0].strip() else ""  # keeps the text apart from its prompt
    return begins + "\n".join(line.rstrip() for line in lines if line.strip())


def _translated(message: str) -> str:
    return _catalogue(to_locale(get_language() or "en")).gettext(message) if message else ""


@cache
def _catalogue(locale: str) -> NullTranslations:
    return catalogue_of(locale)
