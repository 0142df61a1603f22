"""Pages on which an organizer changes a run's words, or a whole draft."""

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from peer_agent.protocol.errors import Problem
from runs.access import access_managed_run
from runs.datasets.hub_sources import OnHub
from runs.lifecycle import drafts
from runs.models import Run
from web.http.access import run_or_404
from web.http.requester import person_in
from web.pages.runs.dataset_text import found_on_hub, stored_text, too_often, upload_facts
from web.pages.runs.forms.new_run import usual_recipe
from web.pages.runs.forms.organizer import DraftForm, WordsForm


@login_required
@require_http_methods(["GET", "POST"])
def edit_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Everything of a draft; of another run its words and who may see it."""
    run = run_or_404(access_managed_run, request, slug)
    if run.state == Run.State.DRAFT:
        return _edit_draft(request, run)
    words = {"title": run.title, "purpose": run.purpose, "visibility": run.visibility}
    form = WordsForm(request.POST or None, initial=words)
    if request.method == "POST" and form.is_valid():
        _change_words(run, form)
        return redirect("web:manage", slug=slug)
    return render(request, "web/runs/edit_words.html", {"run": run, "form": form}, status=400 if form.errors else 200)


def _edit_draft(request: HttpRequest, run: Run) -> HttpResponse:
    person = person_in(request)
    if (refusal := too_often(request)) is not None:
        return refusal
    form = DraftForm(
        request.POST or None,
        request.FILES or None,
        run=run,
        usual=usual_recipe(request, run.parsed_recipe),
        upload_limit_mb=settings.UPLOAD_LIMIT_MB,
    )
    if request.method == "POST" and form.is_valid():
        try:
            _change_draft(request, run, form, found_on_hub(person, form))
        except Problem as problem:
            form.blame(problem)
        else:
            return redirect("web:manage", slug=run.slug)
    facts = upload_facts(person, form) | {"run": run}
    return render(request, "web/runs/edit_draft.html", facts, status=400 if form.errors else 200)


@transaction.atomic
def _change_draft(request: HttpRequest, run: Run, form: DraftForm, found: OnHub | None) -> None:
    """All of it or nothing. Raises Problem."""
    recipe = form.recipe()
    dataset = stored_text(person_in(request), form, found)
    licence = form.cleaned_data["licence"] or (dataset or run.dataset).licence
    drafts.change_draft(run=run, recipe=recipe, licence=licence, dataset=dataset)
    _change_words(run, form)


def _change_words(run: Run, form: WordsForm | DraftForm) -> None:
    given = form.cleaned_data
    drafts.change_words(run=run, title=given["title"], purpose=given["purpose"])
    drafts.change_visibility(run=run, visibility=Run.Visibility(given["visibility"]))
