"""`{{ release.fault|as_fault }}`: a fault that stands in a row as `str` wrote it, with its title again."""

from django import template

from peer_agent.protocol.errors import Fault

register = template.Library()


@register.filter
def as_fault(written: str) -> Fault:
    """What `web/parts/fault.html` shows."""
    return Fault.read(written)
