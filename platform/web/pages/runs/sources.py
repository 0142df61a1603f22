"""Pages on which an organizer mixes several texts: one more, one less, and their weights."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Problem
from runs.access import access_managed_run
from runs.datasets.sources import source_lines
from runs.lifecycle import sources
from runs.models import Run
from web.http import rate_limits
from web.http.access import run_or_404
from web.http.requester import person_in
from web.pages.runs.dataset_text import stored_source, upload_facts
from web.pages.runs.forms.sources import SourceForm, WeightsForm
from web.pages.runs.manage import manage_page, managed


@login_required
@require_http_methods(["GET", "POST"])
def add_source(request: HttpRequest, slug: str) -> HttpResponse:
    """A form for one more text of a draft."""
    run, person = run_or_404(access_managed_run, request, slug), person_in(request)
    if request.FILES:
        try:
            rate_limits.spend("uploads", rate_limits.person(request))
        except rate_limits.TooOften as problem:
            return rate_limits.refusal(request, problem)
    form = SourceForm(request.POST or None, request.FILES or None, material=run.parsed_recipe.material)
    if request.method == "POST" and form.is_valid():
        try:
            _add(request, run, form)
        except Problem as problem:
            form.blame(problem)
        else:
            return redirect("web:manage", slug=slug)
    facts = upload_facts(person, form) | {"run": run}
    return render(request, "web/runs/add_source.html", facts, status=400 if form.errors else 200)


@transaction.atomic
def _add(request: HttpRequest, run: Run, form: SourceForm) -> None:
    sources.add_source(run=run, source=stored_source(person_in(request), form, run))


@login_required
@require_POST
def remove_source(request: HttpRequest, slug: str, source: UUID) -> HttpResponse:
    """Take a further text off a draft."""
    run = run_or_404(access_managed_run, request, slug)
    return managed(request, run, lambda: sources.remove_source(run=run, source=source))


@login_required
@require_POST
def mix_sources(request: HttpRequest, slug: str) -> HttpResponse:
    """Other weights from now on."""
    run = run_or_404(access_managed_run, request, slug)
    form = WeightsForm(request.POST, lines=source_lines(run), mix=run.parsed_recipe.mix)
    if not form.is_valid():
        return manage_page(request, run, wrong={"weights_form": form})
    return managed(request, run, lambda: sources.mix_sources(run=run, weights=form.weights))
