"""Pages for creating a run, changing a draft, or changing a run's description."""

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import quotas
from runs.access import access_managed_run
from runs.datasets.hub_sources import OnHub
from runs.lifecycle import drafts, services
from runs.models import Run
from web.http import rate_limits
from web.http.requester import person_in, run_or_404
from web.pages.runs.dataset_text import found_on_hub, stored_text, too_often, upload_facts
from web.pages.runs.forms.new_run import NewRunForm, usual_recipe
from web.pages.runs.forms.organizer import DraftForm, WordsForm
from web.pages.runs.forms.recipe import LAPTOPS


@login_required
@rate_limits.limited("uploads", rate_limits.person)
@require_http_methods(["GET", "POST"])
def new_run(request: HttpRequest) -> HttpResponse:
    """Create a draft from a form. The next page shows the verdict on its data and a button for publishing the run."""
    form = NewRunForm(
        request.POST or None,
        request.FILES or None,
        usual=usual_recipe(request),
        initial={"hub": request.GET.get("hub", "")},
        upload_limit_mb=settings.UPLOAD_LIMIT_MB,
    )
    if request.method == "POST" and form.is_valid():
        try:
            run = _create(request, form, found_on_hub(person_in(request), form))
        except Problem as problem:
            form.blame(problem)
        else:
            return redirect("web:manage", slug=run.slug)
    facts = upload_facts(person_in(request), form)
    return render(request, "web/runs/new_run.html", facts, status=400 if form.errors else 200)


@login_required
@require_http_methods(["GET", "POST"])
def edit_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Edit all of a draft or, for any other run, only its title, purpose, prompts and visibility."""
    run = run_or_404(access_managed_run, request, slug)
    if run.state == Run.State.DRAFT:
        return _edit_draft(request, run)
    form = WordsForm(request.POST or None, run=run)
    if request.method == "POST" and form.is_valid():
        _change_words(person_in(request), run, form)
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


def _create(request: HttpRequest, form: NewRunForm, found: OnHub | None) -> Run:
    """Store the form's data and create a draft. Raises Problem if the recipe, the data or a quota forbids it."""
    person, recipe = person_in(request), form.recipe()
    quotas.require_draft_left(person)
    dataset = stored_text(person, form, found)
    assert dataset is not None, "the form wants a text"
    return services.create_run(
        organizer=person,
        dataset=dataset,
        title=form.cleaned_data["title"],
        purpose=form.cleaned_data["purpose"],
        recipe=recipe,
        visibility=Run.Visibility(form.cleaned_data["visibility"]),
        automatic_steps=form.automatic_steps,
        prompts=form.cleaned_data.get("prompts", ""),
        people_goal=LAPTOPS.get(form.size),
    )


def _change_draft(request: HttpRequest, run: Run, form: DraftForm, found: OnHub | None) -> None:
    """Apply all of the form's changes to the draft, or none of them if one raises Problem."""
    recipe, person = form.recipe(), person_in(request)
    dataset = stored_text(person, form, found)
    licence = form.cleaned_data["licence"] or (dataset or run.dataset).licence
    with drafts.used_or_gone(dataset):
        drafts.change_draft(
            run=run, recipe=recipe, licence=licence, dataset=dataset, automatic_steps=form.automatic_steps, by=person
        )
        _change_words(person, run, form)


def _change_words(person: Person, run: Run, form: WordsForm | DraftForm) -> None:
    given = form.cleaned_data
    drafts.change_words(run=run, title=given["title"], purpose=given["purpose"], by=person)
    drafts.change_prompts(run=run, prompts=given.get("prompts", run.prompts), by=person)
    drafts.change_visibility(run=run, visibility=Run.Visibility(given["visibility"]), by=person)
