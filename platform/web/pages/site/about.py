"""Pages about the site: help, installing the agent, style guide, health and checks, theme and language."""

from collections.abc import Container
from typing import NamedTuple

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import get_language, get_language_bidi, gettext_lazy, pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from config.metrics import may_read
from config.proxies import parsed
from notices.selectors import mailbox_of
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.releases import LARGEST
from web import health, metrics, strokes
from web.agent_package import current_bundles, current_wheel, install_lines
from web.http.faults import status_of
from web.http.files import send_file
from web.http.requester import ip_of, missing, person_in, site_of
from web.pages.site.jobs import jobs_shown
from web.run_picture.picture import TINTS
from web.run_picture.status_sentence import LABELS

COLOURS = (  # each colour's role, and where it is used
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
TYPE = (  # each class of text, and where it is used
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
EXAMPLE = [(step, 3 + 4 * 0.2 ** (step / 40)) for step in range(1, 61)]  # steps and losses of a run to draw
SHARES: list[strokes.Part] = [(6, 30), (0, 24), (4, 14), (1, 10), (2, 8), (3, 6), (5, 5), (7, 3)]
SPACES = (4, 8, 16, 24, 32, 64)
ZIP_TYPE, BUNDLE_TYPE = "application/zip", "application/gzip"  # a wheel is also a zip file
COOKIE = "theme"
THEMES = {
    "": pgettext_lazy("theme", "System"),
    "light": pgettext_lazy("theme", "Light"),
    "dark": pgettext_lazy("theme", "Dark"),
}
YEAR_S = 365 * 86_400
READY_KEPT_S, READY_PATIENCE_S = 3.0, 0.8  # load balancers poll often and expect a response within a second


class Topic(NamedTuple):
    slug: str
    readers: str | Promise
    question: str | Promise
    answer: str | Promise  # one or two sentences that begin the question's page


VOLUNTEERS = gettext_lazy("For volunteers")
TOPICS = (
    Topic(
        "privacy",
        VOLUNTEERS,
        gettext_lazy("What data leaves my machine?"),
        gettext_lazy(
            "Only gradients (computed from the run's dataset), your machine's speed, and the names you chose. "
            "None of your files."
        ),
    ),
    Topic(
        "credit",
        VOLUNTEERS,
        gettext_lazy("What does credit mean?"),
        gettext_lazy(
            "Credit counts the samples that became part of the model. It is recorded once and cannot be edited."
        ),
    ),
    Topic(
        "stopping",
        VOLUNTEERS,
        gettext_lazy("How do I stop?"),
        gettext_lazy(
            "Press Ctrl-C in the agent's terminal. You keep your credit, and the others continue without you."
        ),
    ),
    Topic(
        "organizers",
        gettext_lazy("For organizers"),
        gettext_lazy("What can an organizer see and do?"),
        gettext_lazy("An organizer controls the run but nothing on your machine."),
    ),
    Topic(
        "class",
        gettext_lazy("For schools"),
        gettext_lazy("How do I run a site for a class?"),
        gettext_lazy(
            "One computer runs the site, and all the others train. "
            "Allow fifteen minutes; once everything is installed, no internet is needed."
        ),
    ),
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
        "states": LABELS.items(),
        "tints": range(TINTS),
        "drawings": _drawings(),
    }
    return render(request, "web/site/styleguide.html", facts)


def _drawings() -> list[tuple[str, str]]:
    """Return each stroke drawing with its name."""
    return [
        ("strip", strokes.strip(SHARES, 40, "strip")),
        *((f"hero, {stage}", _hero(stage)) for stage in STAGES),
        ("shares", strokes.shares(SHARES, "shares")),
        ("band", strokes.band(strokes.marked(1, 0.13), EXAMPLE, "band")),
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
def alive(request: HttpRequest) -> JsonResponse:
    """Return status 200, which shows that this process is up.

    If the request has a nonce, also return a code that proves that the response comes from this site.
    """
    nonce = request.GET.get("nonce", "")
    return JsonResponse({"status": "alive", **({"proof": health.proof_of(nonce)} if nonce else {})})


@require_safe
def ready(_: HttpRequest) -> JsonResponse:
    """Return status 200 if the site can do its work, otherwise 503 with the names of the parts that are down.

    `degraded` names the parts that need an operator's attention while the site carries on.
    """
    found = health.look(health.OF_READINESS, kept_s=READY_KEPT_S, patience_s=READY_PATIENCE_S)
    down = [each.name for each in found if each.finding.is_down]
    degraded = [each.name for each in found if each.finding.state == health.State.LOOK and each.name not in down]
    answer = {"status": "not ready" if down else "ready", **({"down": down} if down else {})}
    return JsonResponse(answer | ({"degraded": degraded} if degraded else {}), status=503 if down else 200)


@never_cache
@require_safe
def figures(request: HttpRequest) -> HttpResponse:
    """Return the site's metrics for Prometheus. Raises Http404 if the requester is not allowed to read them."""
    if not may_read(request.META.get("REMOTE_ADDR", ""), request.headers):
        raise Http404
    return HttpResponse(metrics.exposition(), content_type=CONTENT_TYPE_LATEST)


@never_cache
@login_required
@require_safe
def checklist(request: HttpRequest) -> HttpResponse:
    """Show an operator the results of all checks, beginning with those that need attention. Wait for slow checks."""
    person = person_in(request)
    if not person.is_superuser:
        raise PermissionDenied("This page is for the operators of this site.")
    found = health.look(health.CHECKS, patience_s=health.LIMIT_S)
    visitor, is_public_address = parsed(ip_of(request)), site_of(request) == settings.PUBLIC_URL
    mailbox = mailbox_of(person)
    facts = {
        "checked": sorted(found, key=lambda each: not each.finding.needs_someone),
        "came_from_outside": is_public_address and visitor is not None and visitor.is_global,
        "may_test_mail": settings.SENDS_MAIL and mailbox is not None and mailbox.confirmed_at is not None,
        "sends_mail": settings.SENDS_MAIL,
        "jobs": jobs_shown(),
    }
    return render(request, "web/site/checklist.html", facts)


@require_safe
def download_page(request: HttpRequest) -> HttpResponse:
    """Show how to install the agent. If there is no wheel, show what the operator needs to do."""
    install = install_lines(request)
    if install is None:
        fault = Fault.of("E321")
        return render(request, "web/site/install.html", {"fault": fault}, status=status_of(fault.code))
    bundles = current_bundles(install.wheel)
    own = next((bundle for bundle in bundles if bundle.system == install.likely), None)
    facts = {"install": install, "site": site_of(request), "files": [install.wheel, *bundles], "own": own}
    others = {bundle.system: bundle for bundle in bundles if own and bundle.system != own.system}
    return render(request, "web/site/install.html", facts | {"others": others.values()})


@require_safe
def wheel_file(request: HttpRequest, name: str) -> HttpResponseBase:
    """Return the current wheel, its signature, or a bundle with this file name. Raises Http404 for any other name.

    pip compares the wheel with the digest in the command line that it was given.
    """
    wheel = current_wheel()
    if wheel is None:
        raise missing(Fault.of("E321"))
    if wheel.signature is not None and name == wheel.signature.name:
        return HttpResponse(wheel.signature.read_bytes()[:LARGEST], content_type="application/json")
    file = next((file for file in (wheel, *current_bundles(wheel)) if file.name == name), None)
    if file is None:
        raise missing(Fault.of("E322", name=name))
    kind = BUNDLE_TYPE if name.endswith(".gz") else ZIP_TYPE
    return send_file(request, file.path, sha256=file.sha256, name=file.name, kind=kind)


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


@csrf_exempt  # no token needed: this changes only how pages look for this reader
@require_POST
def choose_theme(request: HttpRequest) -> HttpResponse:
    return _kept(request, COOKIE, request.POST.get("theme", ""), THEMES)


@csrf_exempt  # no token needed: this changes only the reader's language
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
