"""Pages for publishing a run's model on the Hub, choosing the snapshot to release, and naming people on the card."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Fault, Problem
from runs.access import access_managed_run, access_run
from runs.hub_access import account_of
from runs.models import Publication, Release, Run
from runs.releases import card_facts, checkpoints, making, publishing
from web.http.faults import answer
from web.http.requester import person_in, run_or_404

REFRESH_S = 3
MOVING = (Publication.State.WAITING, Publication.State.SENDING)


class HubTokenForm(forms.Form):
    """A token for the Hub. The field never shows what was typed."""

    token = forms.CharField(
        max_length=300,
        label=gettext_lazy("Access token"),
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "placeholder": "hf_…"}),
    )


class PublishForm(forms.Form):
    repository = forms.CharField(
        max_length=200, label=gettext_lazy("Repository"), help_text=gettext_lazy("As NAMESPACE/NAME.")
    )
    private = forms.BooleanField(
        required=False,
        label=gettext_lazy("Private repository"),
        help_text=gettext_lazy("Applies only when the repository is created."),
    )
    replace = forms.BooleanField(required=False, label=gettext_lazy("Overwrite existing files"))
    checkpoint_every = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=10_000_000,
        label=gettext_lazy("Steps between checkpoints"),
        help_text=gettext_lazy(
            "During training, the newest verified snapshot is published this often. 0: only the finished model."
        ),
    )
    in_branches = forms.BooleanField(
        required=False,
        label=gettext_lazy("Each checkpoint in its own branch"),
        help_text=gettext_lazy("For example step-1000. Otherwise each replaces the last."),
    )

    def __init__(self, *arguments: Any, is_made: bool, **more: Any) -> None:
        """Create the form. `is_made` means that the model is finished, so the fields for checkpoints are omitted."""
        super().__init__(*arguments, **more)
        for name in ("checkpoint_every", "in_branches") if is_made else ():
            del self.fields[name]

    def clean_checkpoint_every(self) -> int:
        every: int | None = self.cleaned_data["checkpoint_every"]
        return every or 0


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def publish_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the user's Hub account and the state of the model on the Hub.

    A POST saves or removes the user's token, or publishes the model.
    """
    run = run_or_404(access_managed_run, request, slug)
    if request.method == "GET":
        return _page(request, run)
    act = ACTIONS.get(request.POST.get("action", ""))
    if act is None:
        raise Http404
    try:
        form = act(request, run)
    except Problem as problem:
        form = PublishForm(request.POST, is_made=_is_made(run))
        return _page(request, run, fault=problem.fault, form=form, status=400)
    return _page(request, run, form=form, status=400) if form else redirect("web:publish", slug=slug)


@login_required
@require_POST
def name_me(request: HttpRequest, slug: str) -> HttpResponse:
    """Agree to be named on the model card, or withdraw this consent."""
    run = run_or_404(access_run, request, slug)
    card_facts.set_named(run=run, person=person_in(request), agreed="agreed" in request.POST)
    return redirect(f"/runs/{slug}/#home")


@login_required
@require_POST
def choose_release(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    try:
        making.release_best(run=run, best=request.POST.get("snapshot") == "best", by=person_in(request))
    except Problem as problem:
        return answer(request, problem.fault, status=409)
    return redirect(f"/runs/{slug}/#home")


def _save_token(request: HttpRequest, run: Run) -> None:  # noqa: ARG001 (the actions look alike)
    form = HubTokenForm(request.POST)
    if not form.is_valid():
        raise Problem.of("E351")
    publishing.save_token(person=person_in(request), token=form.cleaned_data["token"])


def _remove_token(request: HttpRequest, run: Run) -> None:  # noqa: ARG001
    publishing.remove_token(person=person_in(request))


def _publish(request: HttpRequest, run: Run) -> PublishForm | None:
    form = PublishForm(request.POST, is_made=_is_made(run))
    if not form.is_valid():
        return form
    publishing.ask_to_publish(run=run, **form.cleaned_data, by=person_in(request))
    return None


ACTIONS: dict[str, Any] = {"save": _save_token, "remove": _remove_token, "publish": _publish}


def _page(
    request: HttpRequest, run: Run, *, fault: Fault | None = None, form: PublishForm | None = None, status: int = 200
) -> HttpResponse:
    publication = Publication.objects.filter(run=run).first()
    account = account_of(person_in(request))
    progress = publishing.progress_of(run) if publication and publication.state == Publication.State.SENDING else None
    release = Release.objects.filter(run=run, state=Release.State.READY).first()
    is_moving = publication is not None and release is not None and publication.state in MOVING
    facts = {
        "run": run,
        "account": account,
        "publication": publication,
        "progress": progress,
        "release": release,
        "files": [file for file in release.files if file["name"] != release.archive] if release else [],
        "fault": fault,
        "token_form": HubTokenForm(),
        "form": form or PublishForm(initial=_wanted(run, publication, account), is_made=release is not None),
        "is_checkpoint_due": publication is not None and checkpoints.due(publication) is not None,
        "hub": settings.HUB_ENDPOINT,
        "refresh_s": REFRESH_S if is_moving and request.method == "GET" else None,
    }
    return render(request, "web/runs/publish.html", facts, status=status)


def _is_made(run: Run) -> bool:
    return Release.objects.filter(run=run, state=Release.State.READY).exists()


def _wanted(run: Run, publication: Publication | None, account: Any) -> dict[str, Any]:
    if publication is not None:
        names = ("repository", "private", "checkpoint_every", "in_branches")
        return {name: getattr(publication, name) for name in names}
    return {"repository": f"{account.namespaces[0]}/{run.slug}" if account else "", "checkpoint_every": 0}
