"""What templates need to show an error.

`{{ release.fault|as_fault }}`: a fault that stands in a row as `str` wrote it, with its title again. `in_words` and
`title_of`: what it says and is called, in the language of the page.
"""

from django import template

from peer_agent.protocol.errors import Fault
from web.words import in_words_of_page, title_of_page

register = template.Library()


@register.filter
def as_fault(written: str) -> Fault:
    """What `web/parts/fault.html` shows."""
    return Fault.read(written)


@register.filter
def in_words(fault: Fault) -> Fault:
    """The same in the language of the page."""
    return in_words_of_page(fault)


@register.filter
def title_of(fault: Fault) -> str:
    """What it is called."""
    return title_of_page(fault.title)
