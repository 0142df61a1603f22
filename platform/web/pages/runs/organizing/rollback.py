"""Rolling a run back to a snapshot: asked once, with what it means."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from runs.access import access_managed_run
from runs.lifecycle.services import ask_rollback
from web.http.requester import person_in, run_or_404
from web.pages.runs.organizing.manage import asked_once_more

LARGEST = 2**63 - 1


@login_required
@require_http_methods(["GET", "POST"])
def roll_back(request: HttpRequest, slug: str, index: int) -> HttpResponse:
    """Ask once more, then have it done."""
    run = run_or_404(access_managed_run, request, slug)
    target = run.snapshots.filter(index=index, is_undone=False).first() if index <= LARGEST else None
    if target is None:
        raise Http404
    facts = {"target": target, "undone": max(run.head.step - target.step, 0)}
    answer, person = redirect("web:manage", slug=slug), person_in(request)

    def deed() -> None:
        ask_rollback(run=run, index=index, by=person)

    return asked_once_more(request, run, "web/runs/manage_parts/roll_back.html", deed, answer, **facts)
