"""Pages about the site: help, installation of the agent, style guide, health, theme and language."""

from collections.abc import Container
from typing import NamedTuple

from django import forms
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import get_language, get_language_bidi, gettext_lazy, pgettext_lazy
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from peer_agent.protocol.errors import Fault
from runs.models import Run
from web import strokes
from web.agent_package import current_wheel, install_lines
from web.http.faults import status_of
from web.http.files import send_file
from web.http.requester import missing, site_of
from web.run_picture.picture import TINTS

COLOURS = (  # each colour's role, and its use
    ("paper", "behind everything"),
    ("sheet", "menus, fields, the reader's own card"),
    ("wash", "a finished run's stage, the reader's own row"),
    ("ink", "text"),
    ("soft", "secondary text, outlines of fields"),
    ("line", "separators"),
    ("accent", "what is alive, or can be done"),
    ("done", "what is done"),
    ("bad", "what is broken"),
)
TYPE = (  # each class of text, and its use
    ("opening", "the first words of the front page"),
    ("matter", "the sentence that says why"),
    ("large", "titles of sections"),
    ("said", "what a model wrote"),
    ("big", "the one figure of a card"),
    ("sentence", "the sentence of truth at the top of a page"),
    ("lead", "the first paragraph"),
    ("text", "text"),
    ("quiet", "secondary text"),
)
STAGES = ("running", "waiting", "paused", "failed", "finished")
EXAMPLE = [(step, 3 + 4 * 0.2 ** (step / 40)) for step in range(1, 61)]  # steps and losses of a drawn run
SHARES: list[strokes.Part] = [(6, 30), (0, 24), (4, 14), (1, 10), (2, 8), (3, 6), (5, 5), (7, 3)]
SPACES = (4, 8, 16, 24, 32, 64)
WHEEL_TYPE = "application/zip"
COOKIE = "theme"
THEMES = {
    "": pgettext_lazy("theme", "System"),
    "light": pgettext_lazy("theme", "Light"),
    "dark": pgettext_lazy("theme", "Dark"),
}
YEAR_S = 365 * 86_400


class Topic(NamedTuple):
    slug: str
    question: str | Promise
    short: str | Promise  # shown in the footer


TOPICS = (
    Topic("privacy", gettext_lazy("What data leaves my machine?"), gettext_lazy("What data leaves your machine")),
    Topic("credit", gettext_lazy("What does credit mean?"), gettext_lazy("What credit means")),
    Topic("stopping", gettext_lazy("How do I stop?"), gettext_lazy("How to stop")),
    Topic("organizers", gettext_lazy("What can an organizer see and do?"), gettext_lazy("What an organizer can see")),
    Topic("class", gettext_lazy("How do I run a site for a class?"), gettext_lazy("A site for a class")),
)


@require_safe
def help_index(request: HttpRequest) -> HttpResponse:
    return render(request, "web/site/help/index.html", {"topics": TOPICS})


@require_safe
def help_page(request: HttpRequest, topic: str) -> HttpResponse:
    found = next((known for known in TOPICS if known.slug == topic), None)
    if found is None:
        raise Http404
    facts = {"topic": found, "topics": TOPICS, "site": site_of(request)}
    return render(request, f"web/site/help/{found.slug}.html", facts)


class Sample(forms.Form):
    title = forms.CharField(help_text="A sentence that helps.")
    kind = forms.ChoiceField(choices=[("one", "One"), ("other", "Other")])
    agreed = forms.BooleanField(label="I agree", help_text="To what this says.")


@require_safe
def styleguide(request: HttpRequest) -> HttpResponse:
    """Show each component of the design once. Raises Http404 outside debug mode."""
    if not settings.DEBUG:
        raise Http404
    facts = {
        "colours": COLOURS,
        "type": TYPE,
        "spaces": SPACES,
        "form": Sample(),
        "wrong": Sample({}),
        "fault": Fault.of("E303"),
        "states": Run.State.choices,
        "tints": range(TINTS),
        "drawings": _drawings(),
    }
    return render(request, "web/site/styleguide.html", facts)


def _drawings() -> list[tuple[str, str]]:
    """Return each drawing of strokes with its name."""
    return [
        ("strip", strokes.strip(SHARES, 40, "strip")),
        *((f"hero, {stage}", _hero(stage)) for stage in STAGES),
        ("band", strokes.band(0.13, EXAMPLE, "band")),
        ("days", strokes.days([day * 7 % 11 for day in range(150)], 1, "days")),
        ("art", strokes.art()),
        ("art, lost", strokes.art("lost")),
        ("bundle", strokes.bundle(10)),
    ]


def _hero(stage: str) -> str:
    points = [] if stage == "waiting" else EXAMPLE
    last = EXAMPLE[-1][0] if stage == "finished" else 100
    return strokes.hero(points, last, SHARES, f"hero, {stage}", state=stage)


@require_safe
def alive(_: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "alive"})


@require_safe
def ready(_: HttpRequest) -> JsonResponse:
    """Return 200 if the database answers, else 503."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return JsonResponse({"status": "the database does not answer"}, status=503)
    return JsonResponse({"status": "ready"})


@require_safe
def download_page(request: HttpRequest) -> HttpResponse:
    """Show how to install the agent. If there is no wheel, show what the operator should do."""
    install = install_lines(request)
    if install is None:
        fault = Fault.of("E321")
        return render(request, "web/site/install.html", {"fault": fault}, status=status_of(fault.code))
    return render(request, "web/site/install.html", {"install": install, "site": site_of(request)})


@require_safe
def wheel_file(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return the wheel, but only under its current name. pip checks it against the digest in the command line."""
    wheel = current_wheel()
    if wheel is None or wheel.name != name:
        raise missing(Fault.of("E321") if wheel is None else Fault.of("E322", name=name))
    return send_file(request, wheel.path, sha256=wheel.sha256, name=wheel.name, kind=WHEEL_TYPE)


def preferences(request: HttpRequest) -> dict[str, object]:
    chosen, language = request.COOKIES.get(COOKIE, ""), get_language() or settings.LANGUAGE_CODE
    chosen = chosen if chosen in THEMES else ""
    return {
        "theme": chosen,
        "themes": [(name, title, name == chosen) for name, title in THEMES.items()],
        "language": language,
        "direction": "rtl" if get_language_bidi() else "ltr",
        "languages": [(name, title, name == language) for name, title in settings.LANGUAGES],
    }


@csrf_exempt  # it only changes how pages look for this reader
@require_POST
def choose_theme(request: HttpRequest) -> HttpResponse:
    return _kept(request, COOKIE, request.POST.get("theme", ""), THEMES)


@csrf_exempt  # it only changes the language for this reader
@require_POST
def choose_language(request: HttpRequest) -> HttpResponse:
    return _kept(request, settings.LANGUAGE_COOKIE_NAME, request.POST.get("language", ""), dict(settings.LANGUAGES))


def _kept(request: HttpRequest, cookie: str, chosen: str, known: Container[str]) -> HttpResponse:
    back = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    if not is_ours or not back.startswith("/"):
        back = "/"
    answer = HttpResponseRedirect(back)
    if chosen and chosen in known:
        answer.set_cookie(cookie, chosen, max_age=YEAR_S, samesite="Lax", secure=request.is_secure(), httponly=True)
    else:
        answer.delete_cookie(cookie)
    return answer
