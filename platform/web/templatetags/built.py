"""Template tags such as `{% built "src/run.ts" %}`, which add a page's scripts, styles and font if they were built."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, to_locale

register = template.Library()
FOLDER = Path(__file__).parents[1] / "static" / "built"


class Entry(NamedTuple):
    """The files of one built script, as paths below /static/."""

    script: str
    styles: tuple[str, ...]
    shared: tuple[str, ...] = ()  # files imported by several pages' scripts, such as their texts


def built_entry(source: str, folder: Path = FOLDER) -> Entry | None:
    """Return the files built from a source in `frontend/`, or None if it was not built."""
    path = folder / "manifest.json"
    try:
        changed_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return _manifest(path, changed_ns).get(source)


@lru_cache(maxsize=4)
def _manifest(path: Path, changed_ns: int) -> dict[str, Entry]:
    """Read a build's manifest. The result is cached until the file changes, and with it `changed_ns`."""
    del changed_ns
    chunks: dict[str, Any] = json.loads(path.read_bytes())
    return {
        source: Entry(
            f"built/{chunk['file']}",
            tuple(f"built/{name}" for name in chunk.get("css", ())),
            tuple(f"built/{chunks[name]['file']}" for name in chunk.get("imports", ())),
        )
        for source, chunk in chunks.items()
        if chunk.get("isEntry")
    }


@register.simple_tag
def stylesheet() -> str:
    """Return the URL of the built style sheet or, without a build, of its source.

    A built style sheet's name contains a hash of its content.
    """
    entry = built_entry("static/manyhands.css")
    return static(entry.script if entry else "manyhands.css")


@register.simple_tag
def font() -> SafeString:
    """Return a tag that loads the text font along with the style sheet, so that no text changes its width later."""
    path = FOLDER / "manifest.json"
    name = _text_font(path, path.stat().st_mtime_ns) if path.exists() else ""
    if not name:
        return SafeString()
    return format_html('<link rel="preload" href="{}" as="font" type="font/woff2" crossorigin>', static(name))


@lru_cache(maxsize=4)
def _text_font(path: Path, changed_ns: int) -> str:
    del changed_ns
    files = (chunk["file"] for chunk in json.loads(path.read_bytes()).values())
    return next((f"built/{name}" for name in files if "figtree-latin-wght-normal" in name), "")


@register.simple_tag
def built(source: str) -> SafeString:
    """Return the tags that load a built script, for a page's head. Without them, the page is complete but static."""
    entry = built_entry(source)
    if entry is None:
        return SafeString()
    styles = format_html_join("\n", '<link rel="stylesheet" href="{}">', ((static(name),) for name in entry.styles))
    script = format_html('<script type="module" src="{}"></script>', static(entry.script))
    shared = format_html_join("\n", '<link rel="modulepreload" href="{}">', ((static(name),) for name in entry.shared))
    return format_html("{}\n{}{}", styles, shared, script)


@register.simple_tag
def script_words() -> SafeString:
    """Return the scripts' texts in the page's language, as JSON that browsers do not execute, or "" for English."""
    language = get_language() or settings.LANGUAGE_CODE
    return SafeString() if language == settings.LANGUAGE_CODE else _words_in(to_locale(language))


@lru_cache(maxsize=8)  # one entry per language; setup writes the files before the site starts
def _words_in(locale: str) -> SafeString:
    path = settings.LOCALE_PATHS[0] / locale / "LC_MESSAGES" / "words.json"
    words = path.read_text("utf-8") if path.exists() else "{}"
    escaped = words.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return mark_safe(f'<script type="application/json" id="words">{escaped}</script>')  # noqa: S308 (our own)
