"""The loss curve as a table to take along: evenly thinned, so never more than some 1,400 rows."""

import csv
import io
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from runs import selectors
from runs.access import access_run
from web.http.requester import run_or_404

# Nats per token; seconds of UTC in ISO 8601; what the further charts show.
COLUMNS = ("step", "loss", "heldout_loss", "at", "samples_per_s", "machines", "learning_rate", "bytes_averaged")


@require_safe
def curve_table(request: HttpRequest, slug: str) -> HttpResponse:
    """One row a point, in order; a held-out loss has a row of its own."""
    run = run_or_404(access_run, request, slug)
    points = selectors.loss_points(run, most=selectors.LONG)
    rows: list[tuple[Any, ...]] = [(point.step, f"{point.loss:.5f}", "", *_others(point)) for point in points]
    held = selectors.heldout_points(run)
    rows += [(point.step, "", f"{point.loss:.5f}", point.at, "", "", "", "") for point in held]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step, loss, heldout, at, *others in sorted(rows, key=lambda row: row[0]):
        writer.writerow((step, loss, heldout, at.isoformat(timespec="seconds") if at else "", *others))
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}-loss.csv"', "Cache-Control": "no-cache"}
    return HttpResponse(table.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


def _others(point: selectors.Point) -> tuple[Any, ...]:
    """Empty where unknown."""
    speed = "" if point.samples_per_s is None else f"{point.samples_per_s:.4g}"
    return point.at, speed, point.machines, point.learning_rate, point.bytes_averaged
