"""Template filters that show an error.

`as_fault` reads an error that was stored as text in a row. `in_words` and `title_of` translate it into the page's
language.
"""

from django import template

from peer_agent.protocol.errors import Fault
from web.words import in_words_of_page, title_of_page

register = template.Library()


@register.filter
def as_fault(written: str) -> Fault:
    """Return an error that was stored as text, for `web/parts/fault.html`."""
    return Fault.read(written)


@register.filter
def in_words(fault: Fault) -> Fault:
    return in_words_of_page(fault)


@register.filter
def title_of(fault: Fault) -> str:
    return title_of_page(fault.title)
