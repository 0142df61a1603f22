"""Pages for adding, removing and weighting a run's texts. Also pages for its base model or tokenizer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Material
from runs.access import Viewer, access_managed_run
from runs.datasets.hub_sources import OnHub
from runs.datasets.services import adaptable_releases, bring_release, source_lines
from runs.lifecycle import drafts
from runs.models import Dataset, Release, Run
from runs.storage import pictures_of
from web.http.requester import person_in, run_or_404
from web.pages.runs.dataset_text import found_on_hub, stored_beside, too_often, upload_facts
from web.pages.runs.forms.organizer import SourceForm, WeightsForm
from web.pages.runs.manage import manage_page, managed
from web.words import material_in_words_of_page

LONGEST_FIELD = 200  # characters in a field's name


class Beside(NamedTuple):
    """A page for adding another file, besides the text, to a draft. `lead` explains what the file is for."""

    title: str
    lead: str
    legend: str
    material: Material
    require: Callable[[Run, str, str], object]
    add: Callable[[Run, Dataset, Person], None]
    releases: Sequence[Release] = ()  # releases from this site, one of which may be chosen instead of a file


def text_of(run: Run) -> Beside:
    material = run.parsed_recipe.material
    return Beside(
        title=_("Add %(material)s") % {"material": material_in_words_of_page(material).more},
        lead=_(
            "The run will learn from all files, in proportion to their size or to the weights you set on the next page."
        ),
        legend=_("Additional data"),
        material=material,
        require=drafts.require_source,
        add=lambda run, file, person: drafts.add_source(run=run, source=file, by=person),
    )


def base_of(run: Run, viewer: Viewer) -> Beside:
    recipe = run.parsed_recipe
    own = recipe.material
    if own.adapts is None:
        return Beside(
            title=_("Add a tokenizer"),
            lead=_(
                "Use the tokenizer of a model on the Hub, or upload your own. Otherwise, a tokenizer is "
                "trained on the text itself."
            ),
            legend=_("The tokenizer"),
            material=own.takes or own,
            require=drafts.require_base,
            add=lambda run, file, person: drafts.set_base(run=run, base=file, by=person),
        )
    return Beside(
        title=_("Add the model"),
        lead=_(
            "The run adapts an existing model: one trained here, one from the Hub, or your own (a .zip of its "
            "folder, with config.json, tokenizer.json and the parameters as safetensors)."
        ),
        legend=_("Model to adapt"),
        material=own.adapts,
        require=drafts.require_base,
        add=lambda run, file, person: drafts.set_base(run=run, base=file, by=person),
        releases=adaptable_releases(recipe, viewer),
    )


@login_required
@require_http_methods(["GET", "POST"])
def add_source(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    return bring(request, run, text_of(run))


@login_required
@require_http_methods(["GET", "POST"])
def set_base(request: HttpRequest, slug: str) -> HttpResponse:
    """Set a draft's base model or tokenizer, or remove it."""
    run = run_or_404(access_managed_run, request, slug)
    if request.POST.get("action") == "remove":
        return managed(request, run, lambda: drafts.remove_base(run=run, by=person_in(request)))
    return bring(request, run, base_of(run, request.user))


def bring(request: HttpRequest, run: Run, beside: Beside) -> HttpResponse:
    """Show the page with the form for adding a file. On a valid POST, add the file to the draft."""
    person = person_in(request)
    if (refusal := too_often(request)) is not None:
        return refusal
    form = SourceForm(request.POST or None, request.FILES or None, material=beside.material, releases=beside.releases)
    if request.method == "POST" and form.is_valid():
        try:
            _add(request, run, form, beside, found_on_hub(person, form))
        except Problem as problem:
            form.blame(problem)
        else:
            return redirect("web:manage", slug=run.slug)
    facts = upload_facts(person, form) | {"run": run, "beside": beside}
    return render(request, "web/runs/add_source.html", facts, status=400 if form.errors else 200)


def _add(request: HttpRequest, run: Run, form: SourceForm, beside: Beside, found: OnHub | None) -> None:
    person = person_in(request)
    if (release := form.release) is None:
        file = stored_beside(person, form, run, beside.require, found)
    else:
        beside.require(run, release.archive, "")
        licence = form.cleaned_data["licence"]
        file = bring_release(release, organizer=person, title=run.title, licence=licence)
    with drafts.used_or_gone(file):
        beside.add(run, file, person)


@login_required
@require_POST
def remove_source(request: HttpRequest, slug: str, source: UUID) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    return managed(request, run, lambda: drafts.remove_source(run=run, source=source, by=person_in(request)))


@login_required
@require_POST
def choose_field(request: HttpRequest, slug: str, source: UUID) -> HttpResponse:
    """Choose which field of the rows in a draft's data the model learns from."""
    run, person = run_or_404(access_managed_run, request, slug), person_in(request)
    field = request.POST.get("field", "")[:LONGEST_FIELD]
    return managed(request, run, lambda: drafts.choose_field(run=run, source=source, field=field, by=person))


@login_required
@require_safe
def picture(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Return one of the images showing how the site read a run's data."""
    run = run_or_404(access_managed_run, request, slug)
    shown = {index: path for index, _, path in pictures_of(run.dataset)}
    if number not in shown:
        raise Http404
    return HttpResponse(shown[number].read_bytes(), content_type="image/png")


@login_required
@require_POST
def mix_sources(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    form = WeightsForm(request.POST, lines=source_lines(run), mix=run.parsed_recipe.mix)
    if not form.is_valid():
        return manage_page(request, run, wrong={"weights_form": form})
    return managed(request, run, lambda: drafts.mix_sources(run=run, weights=form.weights, by=person_in(request)))
