"""Help in plain words: one page for each question that people ask before they lend a machine."""

from typing import NamedTuple

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe


class Topic(NamedTuple):
    """One page. Its words are in `templates/web/site/help/<slug>.html`."""

    slug: str
    question: str | Promise
    short: str | Promise  # what the footer says


TOPICS = (
    Topic("privacy", gettext_lazy("What data leaves my machine?"), gettext_lazy("What data leaves your machine")),
    Topic("credit", gettext_lazy("What does credit mean?"), gettext_lazy("What credit means")),
    Topic("stopping", gettext_lazy("How do I stop?"), gettext_lazy("How to stop")),
    Topic("organizers", gettext_lazy("What can an organizer see and do?"), gettext_lazy("What an organizer can see")),
    Topic("class", gettext_lazy("How do I run a site for a class?"), gettext_lazy("A site for a class")),
)


@require_safe
def help_index(request: HttpRequest) -> HttpResponse:
    """All questions."""
    return render(request, "web/site/help/index.html", {"topics": TOPICS})


@require_safe
def help_page(request: HttpRequest, topic: str) -> HttpResponse:
    """One answer."""
    found = next((known for known in TOPICS if known.slug == topic), None)
    if found is None:
        raise Http404
    facts = {"topic": found, "topics": TOPICS, "site": request.build_absolute_uri("/").rstrip("/")}
    return render(request, f"web/site/help/{found.slug}.html", facts)
