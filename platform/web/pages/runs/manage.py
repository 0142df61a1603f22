"""What an organizer does to a run: who sees it, its length, its people. Drafts are changed in `drafts`."""

from collections.abc import Callable, Sequence
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Fault, Problem
from runs import quotas
from runs.access import access_managed_run
from runs.datasets.hub_sources import arrived
from runs.datasets.services import lacks_base
from runs.datasets.sources import SourceLine
from runs.lifecycle import drafts, ending, membership, services
from runs.models import Dataset, Run
from runs.states import LIVE
from web.http.access import run_or_404
from web.http.parts import part_of
from web.pages.runs.forms.organizer import AnnouncementForm, ExtendForm, InvitationForm, MemberForm
from web.pages.runs.forms.sources import WeightsForm
from web.pages.runs.run import REFRESH_S, STANDING_ON, head_facts, standing_facts
from web.run_picture.loading import head_of, troubled_rows
from web.run_picture.own_place import Own
from web.run_picture.presence import RELAY
from web.run_picture.troubles import run_troubles

ACTIONS = {
    "open": services.open_run,
    "pause": services.pause_run,
    "resume": services.resume_run,
    "take_back": drafts.take_back,
}


@login_required
@require_http_methods(["GET", "POST"])
def manage_run(request: HttpRequest, slug: str) -> HttpResponse:
    """The page; POST opens, pauses, resumes, and takes back to a draft."""
    run = run_or_404(access_managed_run, request, slug)
    if request.method != "POST":
        return manage_page(request, run)
    action = ACTIONS.get(request.POST.get("action", ""))
    if action is None:
        raise Http404
    return managed(request, run, lambda: action(run=run))


@login_required
@require_POST
def extend_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Let the run make more steps."""
    run, form = run_or_404(access_managed_run, request, slug), ExtendForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, wrong={"extend_form": form})
    return managed(request, run, lambda: ending.extend_run(run=run, target_steps=form.cleaned_data["target_steps"]))


@login_required
@require_http_methods(["GET", "POST"])
def end_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask once more, then end the run where it is."""
    run = run_or_404(access_managed_run, request, slug)
    answer = redirect("web:manage", slug=slug)
    return asked_once_more(request, run, "web/runs/end_run.html", lambda: ending.end_run(run=run), answer)


@login_required
@require_http_methods(["GET", "POST"])
def delete_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask once more, then forget a draft."""
    run = run_or_404(access_managed_run, request, slug)
    return asked_once_more(
        request, run, "web/runs/delete_run.html", lambda: drafts.delete_draft(run=run), redirect("web:runs")
    )


@login_required
@require_POST
def announce(request: HttpRequest, slug: str) -> HttpResponse:
    """Tell everybody something."""
    run, form = run_or_404(access_managed_run, request, slug), AnnouncementForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, wrong={"announcement_form": form})
    return managed(request, run, lambda: drafts.announce(run=run, text=form.cleaned_data["text"]))


# People


@login_required
@require_POST
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    """Let somebody in by name."""
    run, form = run_or_404(access_managed_run, request, slug), MemberForm(request.POST)
    return named(request, run, form, membership.add_member, wrong="member_form")


@login_required
@require_POST
def remove_member(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Shut a member out."""
    run = run_or_404(access_managed_run, request, slug)
    membership.remove_member(member=get_object_or_404(membership.members_of(run), pk=member_id))
    return redirect("web:manage", slug=slug)


@login_required
@require_POST
def remove_person(request: HttpRequest, slug: str) -> HttpResponse:
    """Shut somebody out by name."""
    run, form = run_or_404(access_managed_run, request, slug), MemberForm(request.POST, prefix="remove")
    return named(request, run, form, membership.remove_person, wrong="removal_form")


@login_required
@require_POST
def let_back(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Let somebody back in who was removed."""
    run = run_or_404(access_managed_run, request, slug)
    membership.let_back(member=get_object_or_404(membership.removed_from(run), pk=member_id))
    return redirect("web:manage", slug=slug)


@never_cache
@login_required
@require_POST
def create_invitation(request: HttpRequest, slug: str) -> HttpResponse:
    """A new link; it stands in this answer and nowhere else."""
    run, form = run_or_404(access_managed_run, request, slug), InvitationForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, wrong={"invitation_form": form})
    secret = membership.create_invitation(run=run, **form.cleaned_data).secret
    link = request.build_absolute_uri(f"/runs/{run.slug}/join/{secret}/")
    return manage_page(request, run, link=link)


@login_required
@require_POST
def revoke_invitation(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    """Take a link back."""
    run = run_or_404(access_managed_run, request, slug)
    membership.revoke_invitation(invitation=get_object_or_404(run.invitations, pk=invitation_id))
    return redirect("web:manage", slug=slug)


# What they answer


def managed(request: HttpRequest, run: Run, deed: Callable[[], object]) -> HttpResponse:
    """Do it; what went wrong stands at the top of the page."""
    try:
        deed()
    except Problem as problem:
        return manage_page(request, run, fault=problem.fault)
    return redirect("web:manage", slug=run.slug)


def named(request: HttpRequest, run: Run, form: MemberForm, deed: Callable[..., object], *, wrong: str) -> HttpResponse:
    """Do it to whom the form names; what went wrong stands beside the name, in the page's form called `wrong`."""
    if form.is_valid():
        try:
            deed(run=run, name=form.cleaned_data["name"])
        except Problem as problem:
            form.add_error("name", problem.fault.titled)
        else:
            return redirect("web:manage", slug=run.slug)
    return manage_page(request, run, wrong={wrong: form})


def asked_once_more(
    request: HttpRequest, run: Run, page: str, deed: Callable[[], object], answer: HttpResponse
) -> HttpResponse:
    """A page that asks, and does it when it is posted; what went wrong stands on it."""
    fault = None
    if request.method == "POST":
        try:
            deed()
        except Problem as problem:
            fault = problem.fault
        else:
            return answer
    return render(request, page, {"run": run, "fault": fault}, status=409 if fault else 200)


def manage_page(
    request: HttpRequest,
    run: Run,
    *,
    fault: Fault | None = None,
    link: str = "",
    wrong: dict[str, forms.Form] | None = None,
) -> HttpResponse:
    """The page with what went wrong (`wrong`: forms that were filled in), or with a link that is shown once."""
    facts, page = head_facts(request, run, head_of(run), Own(run, request.user)), reverse("web:manage", args=[run.slug])
    facts |= {
        "fault": fault,
        "troubles": [trouble for trouble in run_troubles(facts["seen"], *troubled_rows(run)) if trouble != fault],
        **standing_facts(facts["live"], (*STANDING_ON, "waiting_for")),
        "extend_form": ExtendForm(initial={"target_steps": run.parsed_recipe.target_steps}),
        "announcement_form": AnnouncementForm(initial={"text": run.announcement}),
        "member_form": MemberForm(),
        "removal_form": MemberForm(prefix="remove"),
        "invitation_form": InvitationForm(),
        "link": link,
        "members": part_of(membership.members_of(run), request, "members", page),
        "online_names": {peer.name for peer in facts["seen"].peers if peer.role != RELAY},
        "removed": part_of(membership.removed_from(run), request, "removed", page),
        "invitations": part_of(membership.open_invitations(run), request, "links", page),
        "refresh_s": REFRESH_S if not link and is_getting_ready(run) else None,
        **source_facts(run, facts["sources"]),
        "use": quotas.use_of(run.organizer),
        **possible(run),
        **(wrong or {}),
    }
    return render(request, "web/runs/manage.html", facts, status=400 if fault or wrong else 200)


def source_facts(run: Run, lines: Sequence[SourceLine]) -> dict[str, Any]:
    """What can be changed of the texts that it mixes."""
    recipe = run.parsed_recipe
    can_change = run.state == Run.State.DRAFT and not is_getting_ready(run)
    facts: dict[str, Any] = {
        "can_add_source": can_change,
        "brought": recipe.material.brought,
        "can_set_base": can_change and recipe.material.brought is not None,
        "lacks_base": lacks_base(run.dataset),
        "fetched": fetched(run.dataset),
        "named": recipe.material.named(len(lines)),
    }
    if len(lines) > 1 and (can_change or possible(run)["is_live"]):
        facts["weights_form"] = WeightsForm(lines=lines, mix=recipe.mix)
    return facts


def fetched(dataset: Dataset) -> tuple[int, int] | None:
    """Bytes that have come from the Hub, and all that will; None where nothing is awaited from there."""
    coming = [each for each in dataset.parts() if each.origin]
    if dataset.state not in (Dataset.State.UPLOADED, Dataset.State.PREPARING) or all(e.is_fetched for e in coming):
        return None
    return sum(map(arrived, coming)), sum(each.size for each in coming)


def possible(run: Run) -> dict[str, Any]:
    """What can be done in the run's state."""
    is_ending = run.wanted == Run.Wanted.FINISHED
    is_live = run.state in LIVE and not is_ending
    return {
        "is_draft": run.state == Run.State.DRAFT,
        "is_live": is_live,
        "is_ending": is_ending and run.state in LIVE,
        "can_end": is_live and run.head.step > 0,
        "can_take_back": is_live and run.head.step == 0,
    }


def is_getting_ready(run: Run) -> bool:
    """Whether the page changes by itself soon. Until then it shows no form that a reload would empty."""
    is_prepared = run.dataset.state in (Dataset.State.READY, Dataset.State.FAILED) or lacks_base(run.dataset)
    return run.state in (Run.State.PREPARING, Run.State.FINISHING) or (run.state == Run.State.DRAFT and not is_prepared)
