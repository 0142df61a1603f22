"""The loss curve as a table to take along: evenly thinned, so never more than some 1,400 rows."""

import csv
import io

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from runs import selectors
from runs.access import access_run
from web.http.access import run_or_404

COLUMNS = ("step", "loss", "heldout_loss", "at")  # nats per token; seconds of UTC in ISO 8601


@require_safe
def curve_table(request: HttpRequest, slug: str) -> HttpResponse:
    """One row a point, in order; a held-out loss has a row of its own."""
    run = run_or_404(access_run, request, slug)
    rows = [
        (point.step, f"{point.loss:.5f}", "", point.at) for point in selectors.loss_points(run, most=selectors.LONG)
    ]
    rows += [(point.step, "", f"{point.loss:.5f}", point.at) for point in selectors.heldout_points(run)]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step, loss, held, at in sorted(rows, key=lambda row: row[0]):
        writer.writerow((step, loss, held, at.isoformat(timespec="seconds") if at else ""))
    headers = {"Content-Disposition": f'attachment; filename="{run.slug}-loss.csv"', "Cache-Control": "no-cache"}
    return HttpResponse(table.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)
