"""Help in plain words: one page for each question that people ask before they lend a machine."""

from typing import NamedTuple

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe


class Topic(NamedTuple):
    """One page. Its words are in `templates/web/site/help/<slug>.html`."""

    slug: str
    question: str
    short: str  # what the footer says


TOPICS = (
    Topic("privacy", "What leaves your machine?", "What leaves your machine"),
    Topic("credit", "What does credit mean?", "What credit means"),
    Topic("stopping", "How do you stop?", "How to stop"),
    Topic("organizers", "What can an organizer see and do?", "What an organizer can see"),
    Topic("class", "How do you run a site for a class?", "A site for a class"),
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
