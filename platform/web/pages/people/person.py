"""A person's page: contributions by run, day and round. Also a certificate to print."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import unquote

from django.contrib.auth.decorators import login_required
from django.db.models import Max, Min
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, override
from django.views.decorators.http import require_POST, require_safe

from accounts.days import date_of, day_of
from accounts.models import Person
from accounts.selectors import person_with_page
from accounts.teams import team_of
from coordination import presence
from runs import selectors
from runs.ledger.totals import in_words
from runs.models import KEPT, Run
from runs.people import Contributions, Given, contributions, given_to, ledger_of, runs_shown
from web import qr, strokes
from web.http import rate_limits
from web.http.parts import rows_before
from web.http.requester import address_of, person_in
from web.run_picture import counts
from web.run_picture.card_sentences import percent
from web.run_picture.image import CARD as PREVIEW
from web.run_picture.image import figure_png
from web.run_picture.picture import tint_of
from web.run_picture.status_sentence import training_in
from web.words import loss_unit_of_page

looks = rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
WEEKS = 26
ROWS = 25  # steps listed at a time
LISTED = 8  # other runs listed on a certificate
DIGITS, GROUP = 16, 4  # digits shown of a digest, in groups


@looks
@require_safe
def person_page(request: HttpRequest, name: str) -> HttpResponse:
    """Show a person's contributions. The person themselves also sees runs that are not listed for others."""
    person = person_or_404(request, name)
    given, today = contributions(person, request.user), day_of(timezone.now())
    facts = {
        "person": person,
        "sentence": sentence_of(given),
        "rows": [_row(each) for each in given.runs],
        "averages": bool(given.bytes_averaged),
        "milestones": [(each.name, date_of(each.day) if each.day else None) for each in given.reached.milestones],
        "next_one": given.reached.next_one,
        "now_in": _now_in(person, given),
        "days": days_of(given.by_day, today, tint_of(person.username)),
        "is_me": person == request.user,
        "team": team_of(person),
        "address": request.build_absolute_uri(f"/people/{person.username}/"),
        "preview": PREVIEW,
    }
    return render(request, "web/people/person.html", facts)


@looks
@require_safe
def rounds_page(request: HttpRequest, name: str, slug: str) -> HttpResponse:
    """List the steps of a run that include the person's work, and draw the latest ones."""
    person = person_or_404(request, name)
    run = get_object_or_404(runs_shown(person, request.user), slug=slug)
    found = rows_before(ledger_of(person, run), request, ROWS)
    machines = list(run.totals.filter(person=person).order_by("pk").values_list("machine__name", flat=True)[:2])
    kept = ledger_of(person, run).filter(KEPT)
    newest = list(kept.values_list("step", "samples")[: strokes.STRIP])
    by_step = [
        [(tint_of(person.username), sum(given for _, given in of_step))]
        for _, of_step in groupby(newest[::-1], key=itemgetter(0))
    ]
    given = given_to(person, run)
    facts = {
        "person": person,
        "run": run,
        "sentence": _given_words(given),
        "provisional": given.provisional,
        "machine": machines[0] if len(machines) == 1 else "",
        "strip": strokes.history(by_step, "") if by_step else "",
        "drawn": len(by_step),
        "rows": found.rows,
        "older": found.older,
        "is_later": found.is_older,
        "unit": loss_unit_of_page(run.parsed_recipe)[1],
    }
    return render(request, "web/people/rounds.html", facts)


@looks
@require_safe
def certificate(request: HttpRequest, name: str) -> HttpResponse:
    """Show a certificate of a person's work in the run `?run=`, by default their run with the most samples.

    The certificate also lists the person's other runs.
    """
    person = person_or_404(request, name)
    given = contributions(person, request.user)
    if not given.runs:
        raise Http404
    asked = request.GET.get("run", "")
    chosen = next((each for each in given.runs if each.run.slug == asked), given.runs[0])
    others = [each for each in given.runs if each != chosen]
    address = request.build_absolute_uri(reverse("web:rounds", args=[person.username, chosen.run.slug]))
    facts = {
        "person": person,
        **_deed(person, chosen),
        "address": address,
        "address_said": format_html_join(SafeString("/<wbr>"), "{}", ((part,) for part in unquote(address).split("/"))),
        "qr": qr.drawn(address),
        "others": [_row(each) for each in others[:LISTED]],
        "more": len(others) - LISTED,
        "sentence": sentence_of(given),
        "today": timezone.now().date(),
    }
    return render(request, "web/people/certificate.html", facts)


def _deed(person: Person, given: Given) -> dict[str, Any]:
    """Return the facts that a certificate states about the person's work in one run."""
    run, last = given.run, ledger_of(person, given.run).first()
    days = run.daily.filter(person=person).aggregate(first=Min("day"), last=Max("day"))
    points = [(float(point.step), point.loss) for point in selectors.loss_points(run)]
    is_finished = run.state == Run.State.FINISHED
    over = _("The run from its first step to its last; the marked strokes are %(name)s's.")
    so_far = _("The run from its first step so far; the marked strokes are %(name)s's.")
    marked = (over if is_finished else so_far) % {"name": person.username}
    names = strokes.marked(tint_of(person.username), given.part)
    return {
        "row": _row(given),
        "run": run,
        "is_finished": is_finished,
        "others_said": _others_said(run.totals.values("person").distinct().count() - bool(given.samples)),
        "first": None if days["first"] is None else date_of(days["first"]),
        "last": None if days["last"] is None else date_of(days["last"]),
        "steps": run.head.step,
        "band": strokes.band(names, points, marked) if points and given.samples else "",
        "marked": marked,
        "digest": _grouped(last.entry.digest) if last else "",
    }


def _others_said(others: int) -> str:
    """Return text such as “and 30 other people, on the computers they already have.”, or "" for 0."""
    message = ngettext(
        "and %(number)s other person, on the computers they already have.",
        "and %(number)s other people, on the computers they already have.",
        others,
    )
    return counts.with_number(message, others) if others > 0 else ""


def _grouped(digest: str) -> str:
    return " ".join(digest[place : place + GROUP] for place in range(0, min(DIGITS, len(digest)), GROUP))


@looks
@require_safe
def preview_image(request: HttpRequest, name: str) -> HttpResponse:
    """Return the preview image for a person's page: their samples and models, and the name if the font can draw it.

    The figures count only runs that everyone may see.
    """
    person = person_or_404(request, name)
    given = contributions(person, None)
    unit = "samples" if given.samples != 1 else "sample"
    with override("en"):  # Pillow's own font has only Latin letters
        image = drawn(
            f"{given.samples:,}",
            unit,
            _("contributed to %(models)s") % {"models": counts.models(len(given.runs))},
            person.username,
        )
    return HttpResponse(image, content_type="image/png", headers={"Cache-Control": "max-age=300"})


@login_required
@require_POST
def show_page(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    person.has_public_page = request.POST.get("public") == "1"
    person.save(update_fields=["has_public_page"])
    return redirect("/account/?done=page")


def person_or_404(request: HttpRequest, name: str) -> Person:
    """Return the person with this name. Raises Http404 if there is none or the viewer may not see their page."""
    person = person_with_page(name, viewer=request.user)
    if person is None:
        raise Http404
    return person


def sentence_of(given: Contributions) -> str:
    """Return a sentence such as “Contributed 38,904 samples to 3 models. Averaged 1.2 GB for others.”"""
    if not given.runs:
        return _("No contributions yet.")
    sent = in_words(given.bytes_averaged)
    parts = []
    if given.samples:
        facts = {"samples": counts.samples(given.samples), "models": counts.models(len(given.runs))}
        parts.append(_("Contributed %(samples)s to %(models)s.") % facts)
    if sent:
        parts.append(_("Averaged %(bytes)s for others.") % {"bytes": sent})
    return " ".join(parts)


def _given_words(given: Given) -> str:
    """Return a sentence such as “12,339 samples in 364 steps, 32% of all that the run has seen.”"""
    facts = {"samples": counts.samples(given.samples), "steps": counts.steps(given.steps), "part": percent(given.part)}
    if not given.samples:
        return _("No samples yet.")
    return _("%(samples)s in %(steps)s, %(part)s of all that the run has seen.") % facts


def _row(each: Given) -> dict[str, object]:
    confirmed = percent(each.checked / each.samples) if each.checked else ""
    words = {"percent": percent(each.part), "averaged": in_words(each.bytes_averaged), "confirmed": confirmed}
    return {**each._asdict(), **words}


@lru_cache(maxsize=256)
def drawn(figure: str, unit: str, below: str, name: str) -> bytes:
    return figure_png(figure, unit, below, name)


# The last half year, or the first month for a newcomer, day by day


def days_of(by_day: Mapping[int, int], today: int, tint: int) -> dict[str, Any]:
    """Return a drawing of the contributions by day, its first and last date, and a sentence that sums it up."""
    given, words, first = per_day(by_day, today), summary(by_day, today), first_day(by_day, today)
    last = first + max(len(given), strokes.FIRST_DAYS) - 1
    drawing = strokes.days(given, tint, words)
    return {"drawing": drawing, "first": date_of(first), "last": date_of(last), "words": words}


def per_day(by_day: Mapping[int, int], today: int) -> Sequence[int]:
    """Return the samples for each day to draw, oldest first.

    `by_day` maps each day (a UTC day number, counted from 1970-01-01) to the samples contributed that day.
    """
    return [by_day.get(day, 0) for day in range(first_day(by_day, today), today + 1)]


def first_day(by_day: Mapping[int, int], today: int) -> int:
    """Return the first day to draw: a Monday half a year ago or, for a newcomer, the day of their first samples.

    Newcomers are people whose first samples came in the last `FIRST_DAYS` days.
    """
    begun = min(by_day, default=0)
    return begun if today - strokes.FIRST_DAYS < begun <= today else _half_a_year_before(today)


def _half_a_year_before(today: int) -> int:
    return today - date_of(today).weekday() - 7 * (WEEKS - 1)


def summary(by_day: Mapping[int, int], today: int) -> str:
    """Return a sentence such as “Active on 31 of the last 180 days”, about the days drawn."""
    given = per_day(by_day, today)
    if len(given) == 1:
        return _("The first samples came today (UTC).")
    is_new = len(given) < strokes.FIRST_DAYS
    since, last = (
        _("Active on %(active)s of the first %(days)s days (UTC)."),
        _("Active on %(active)s of the last %(days)s days (UTC)."),
    )
    return (since if is_new else last) % {"active": sum(1 for samples in given if samples), "days": len(given)}


def _now_in(person: Person, given: Contributions) -> list[Run]:
    """Return those of the person's runs that their machines are training now, in one query."""
    here = presence.online_in(each.run for each in given.runs)
    return [
        each.run
        for each in given.runs
        if any(peer.name == person.username for peer in training_in(each.run, here.get(each.run.pk, ())))
    ]
