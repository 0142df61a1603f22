"""What "Download" shows: the files, how to load them, where they are on the Hub, and who is named on the card."""

import json
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest

from accounts.models import Person
from runs.access import person_of
from runs.models import Publication, Release, Run
from runs.releases.card_facts import how_checked
from runs.releases.card_names import has_given, is_named
from runs.releases.choosing import better_snapshot, is_stale

CARD = "README.md"


def home_facts(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What a run's page says of taking its model home."""
    person = person_of(request.user)
    published = Publication.objects.filter(run=run, private=False).exclude(url="").first()
    return {
        "published": published,
        "load_lines": load_lines(run, published),
        "fetch_line": fetch_line(request, run),
        "may_be_named": person is not None and has_given(run, person),
        "is_named": person is not None and is_named(run, person),
        "card": CARD,
        "checked": how_checked(run),
        **release_choice(run),
        "own": own_share(run, person) if person is not None else None,
    }


def own_share(run: Run, person: Person) -> dict[str, Any] | None:
    """What somebody gave, in samples and as a part of all; None for nothing."""
    given, whole = (rows.aggregate(n=Sum("samples"))["n"] for rows in (run.totals.filter(person=person), run.totals))
    return {"samples": given, "percent": f"{100 * given / whole:.1f} %"} if given else None


def release_choice(run: Run) -> dict[str, Any]:
    """The best snapshot where another one is released, and whether the files are being made again."""
    release = Release.objects.select_related("run__head").filter(run=run, state=Release.State.READY).first()
    if release is None:
        return {"better": None, "is_remade": False}
    better = better_snapshot(run)
    return {
        "better": better if better is not None and better.index != release.index else None,
        "is_remade": is_stale(release),
    }


def load_lines(run: Run, published: Publication | None) -> str:
    """A few lines that load the model: from the Hub where it is there, else from the unpacked archive."""
    where = published.repository if published else run.slug
    return run.parsed_recipe.usage(json.dumps(where))


def fetch_line(request: HttpRequest, run: Run) -> str:
    """Gets the archive; said again after an interruption, it goes on where it was."""
    address = request.build_absolute_uri(f"/api/v1/runs/{run.slug}/release/{run.slug}.zip")
    return f"curl -C - -O {address} && unzip {run.slug}.zip"
