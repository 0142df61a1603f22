"""Template filters for what pages say: errors, recipes, sizes and models' texts, in the page's language."""

from django import template

from peer_agent.protocol.errors import Fault
from web.words import (
    in_bytes,
    in_words_of_page,
    material_in_words_of_page,
    summary_of_page,
    tidied,
    title_of_page,
)

register = template.Library()
register.filter("in_words", in_words_of_page)
register.filter("in_bytes", in_bytes)
register.filter("material_words", material_in_words_of_page)
register.filter("summary_words", summary_of_page)
register.filter("tidied", tidied)


@register.filter
def as_fault(written: str) -> Fault:
    """Return an error that was stored as text, for `web/parts/fault.html`."""
    return Fault.read(written)


@register.filter
def title_of(fault: Fault) -> str:
    return title_of_page(fault.title)
