"""Template filters that show errors, recipes, sizes and models' texts in the page's language."""

import re

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from peer_agent.protocol.errors import Fault
from web.words import (
    cause_of_page,
    in_bytes,
    in_words_of_page,
    material_in_words_of_page,
    summary_of_page,
    tidied,
    title_of_page,
)

IN_BACKTICKS = re.compile(r"`([^`]+)`")
UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h)\b)")
NUMBERED = re.compile(r"\b(?:at step|about) (?=\d)")

register = template.Library()
register.filter("in_words", in_words_of_page)
register.filter("cause", cause_of_page)
register.filter("in_bytes", in_bytes)
register.filter("material_words", material_in_words_of_page)
register.filter("summary_words", summary_of_page)
register.filter("tidied", tidied)


@register.filter(is_safe=True)
def unbroken(text: str) -> str:
    """Join numbers to the words before and the unit after them, so that “at step 300” or “about 14 s” never breaks."""
    text = UNIT.sub("\N{NO-BREAK SPACE}", str(text))
    return NUMBERED.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


@register.filter
def as_fault(written: str) -> Fault:
    """Parse an error that was stored as text, for `web/parts/fault.html`."""
    return Fault.read(written)


@register.filter
def title_of(fault: Fault) -> str:
    return title_of_page(fault.title)


@register.filter
def with_code(text: str) -> SafeString:
    """Return the text as HTML, with what stands in backticks as code."""
    return mark_safe(IN_BACKTICKS.sub(r"<code>\1</code>", escape(text)))  # noqa: S308 (escaped)
