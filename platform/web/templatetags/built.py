"""`{% built "src/run.ts" %}`: the built script of a page and its styles; nothing where nothing was built."""

from functools import lru_cache

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, to_locale

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
    shared = format_html_join("\n", '<link rel="modulepreload" href="{}">', ((static(name),) for name in entry.shared))
    return format_html("{}\n{}{}", styles, shared, script)


@register.simple_tag
def script_words() -> SafeString:
    """What scripts say, on pages in another language than English; a browser executes nothing of it."""
    language = get_language() or settings.LANGUAGE_CODE
    return SafeString() if language == settings.LANGUAGE_CODE else _words_in(to_locale(language))


@lru_cache(maxsize=8)  # as many languages as there are; setup writes them before the site starts
def _words_in(locale: str) -> SafeString:
    path = settings.LOCALE_PATHS[0] / locale / "LC_MESSAGES" / "words.json"
    words = path.read_text("utf-8") if path.exists() else "{}"
    escaped = words.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return mark_safe(f'<script type="application/json" id="words">{escaped}</script>')  # noqa: S308 (from our catalogue)
