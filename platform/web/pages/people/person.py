"""A person's page: contributions by run, day and round. Also a certificate to print."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import override
from django.views.decorators.http import require_POST, require_safe

from accounts.days import date_of, day_of
from accounts.models import Person
from accounts.selectors import person_with_page
from accounts.teams import team_of
from runs.ledger.totals import in_words
from runs.people import Contributions, Given, contributions, ledger_of, runs_shown
from web.http import rate_limits
from web.http.parts import rows_before
from web.http.requester import address_of, person_in
from web.run_picture import counts
from web.run_picture.card_sentences import percent
from web.run_picture.image import CARD as PREVIEW
from web.run_picture.image import figure_png
from web.words import loss_unit_of_page

looks = rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
WEEKS = 26
LEVELS = 4


@looks
@require_safe
def person_page(request: HttpRequest, name: str) -> HttpResponse:
    """Show a person's contributions. The person sees more runs on this page than others do."""
    person = person_or_404(request, name)
    given, today = contributions(person, request.user), day_of(timezone.now())
    facts = {
        "person": person,
        "sentence": sentence_of(given),
        "rows": [_row(each) for each in given.runs],
        "milestones": [(each.name, date_of(each.day) if each.day else None) for each in given.reached.milestones],
        "next_one": given.reached.next_one,
        "squares": squares(given.by_day, today),
        "calendar": summary(given.by_day, today),
        "is_me": person == request.user,
        "team": team_of(person),
        "address": request.build_absolute_uri(f"/people/{person.username}/"),
        "preview": PREVIEW,
    }
    return render(request, "web/people/person.html", facts)


@looks
@require_safe
def rounds_page(request: HttpRequest, name: str, slug: str) -> HttpResponse:
    """Show each round of a run that averaged the person's work, a hundred rounds at a time."""
    person = person_or_404(request, name)
    run = get_object_or_404(runs_shown(person, request.user), slug=slug)
    found = rows_before(ledger_of(person, run), request)
    facts = {
        "person": person,
        "run": run,
        "rows": found.rows,
        "older": found.older,
        "is_later": found.is_older,
        "unit": loss_unit_of_page(run.parsed_recipe)[1],
    }
    return render(request, "web/people/rounds.html", facts)


@looks
@require_safe
def certificate(request: HttpRequest, name: str) -> HttpResponse:
    person = person_or_404(request, name)
    given = contributions(person, request.user)
    if not given.runs:
        raise Http404
    days = sorted(given.by_day)
    facts = {
        "person": person,
        "rows": [_row(each) for each in given.runs],
        "sentence": sentence_of(given),
        "first": date_of(days[0]) if days else None,
        "last": date_of(days[-1]) if days else None,
        "today": timezone.now().date(),
        "address": request.build_absolute_uri(f"/people/{person.username}/"),
    }
    return render(request, "web/people/certificate.html", facts)


@looks
@require_safe
def preview_image(request: HttpRequest, name: str) -> HttpResponse:
    """Return the preview image of a person's page: figures, and the name if the font can draw it."""
    person = person_or_404(request, name)
    given = contributions(person, None)
    unit = "samples" if given.samples != 1 else "sample"
    with override("en"):  # Pillow's own font has only Latin letters
        image = _drawn(
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
    """Return the person whose page this is. Raises Http404 if there is none, or if the viewer may not see the page."""
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


def _row(each: Given) -> dict[str, object]:
    return {**each._asdict(), "percent": percent(each.part), "averaged": in_words(each.bytes_averaged)}


@lru_cache(maxsize=256)
def _drawn(figure: str, unit: str, below: str, name: str) -> bytes:
    return figure_png(figure, unit, below, name)


# The last half year as a calendar with one square a day, darker for more samples


class Square(NamedTuple):
    """A day in the calendar: its week, its weekday (counted from Monday), and its `level` from 0 (no samples) to 4."""

    column: int
    row: int
    level: int
    words: str


def squares(by_day: Mapping[int, int], today: int) -> list[Square]:
    """Return the days of the last weeks, oldest first. `by_day` maps days since 1970 to samples."""
    first = first_day(today)
    most = max((by_day.get(day, 0) for day in range(first, today + 1)), default=0)
    return [
        Square((day - first) // 7, (day - first) % 7, _level(by_day.get(day, 0), most), _words(by_day.get(day, 0), day))
        for day in range(first, today + 1)
    ]


def first_day(today: int) -> int:
    return today - date_of(today).weekday() - 7 * (WEEKS - 1)


def summary(by_day: Mapping[int, int], today: int) -> str:
    """Return a sentence such as “Active on 31 of the last 180 days”, about the days in the calendar."""
    first = first_day(today)
    active = sum(1 for day, samples in by_day.items() if samples and first <= day <= today)
    return _("Active on %(active)s of the last %(days)s days (UTC).") % {"active": active, "days": today - first + 1}


def _level(samples: int, most: int) -> int:
    return -(-LEVELS * samples // most) if samples else 0


def _words(samples: int, day: int) -> str:
    return _("%(date)s: %(samples)s") % {
        "date": date_format(date_of(day), "j F Y"),
        "samples": counts.samples(samples),
    }
