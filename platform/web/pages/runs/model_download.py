"""What "Download" shows: the files, how to load them, where they are on the Hub, and who is named on the card."""

import json
from typing import Any

from django.http import HttpRequest

from runs.models import Publication, Release, Run
from runs.releases.card_facts import how_checked
from runs.releases.making import better_snapshot, is_stale
from web.run_picture.own_place import Own

CARD = "README.md"


def home_facts(request: HttpRequest, run: Run, own: Own, samples: int) -> dict[str, Any]:
    """What a run's page says of taking its model home. `samples`: of all."""
    publication = getattr(run, "publication", None)
    published = publication if publication is not None and publication.url and not publication.private else None
    return {
        "published": published,
        "load_lines": load_lines(run, published),
        "fetch_line": fetch_line(request, run),
        "may_be_named": own.samples is not None,
        "is_named": own.is_named,
        "card": CARD,
        **release_choice(run),
        "own": own.share(samples),
    }


def release_choice(run: Run) -> dict[str, Any]:
    """How it was checked, the best snapshot where another one is released, the last where the best one is.

    And whether files are being made again.
    """
    release = getattr(run, "release", None)
    if release is None or release.state != Release.State.READY:
        return {"checked": "", "better": None, "last": None, "is_remade": False}
    better = better_snapshot(run)
    is_best = better is not None and better.index == release.index
    return {
        "checked": how_checked(),
        "better": None if is_best else better,
        "last": run.snapshots.order_by("-index").first() if is_best else None,
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
