"""`{% built "src/run.ts" %}`: the built script of a page and its styles; nothing where nothing was built."""

from django import template
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from web.frontend_build import built_entry

register = template.Library()


@register.simple_tag
def stylesheet() -> str:
    """Where the style of all pages is: under a name that changes with it, where it was built."""
    entry = built_entry("static/manyhands.css")
    return static(entry.script if entry else "manyhands.css")


@register.simple_tag
def built(source: str) -> SafeString:
    """Tags for the page's head. Without them the page stands still and is complete."""
    entry = built_entry(source)
    if entry is None:
        return SafeString()
    styles = format_html_join("\n", '<link rel="stylesheet" href="{}">', ((static(name),) for name in entry.styles))
    script = format_html('<script type="module" src="{}"></script>', static(entry.script))
    return format_html("{}\n{}", styles, script)
