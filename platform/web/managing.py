"""What an organizer does to a run: its doors, its length, its people. Drafts are changed in `draft_pages`."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Fault, Problem
from runs import endings, membership, services
from runs.access import access_managed_run
from runs.models import Dataset, Run
from web.organizing_forms import ExtendForm, InvitationForm, MemberForm
from web.runs_pages import REFRESH_S, found, run_facts

ACTIONS = {"open": services.open_run, "pause": services.pause_run, "resume": services.resume_run}


@login_required
@require_http_methods(["GET", "POST"])
def manage_run(request: HttpRequest, slug: str) -> HttpResponse:
    """The page; POST opens, pauses, resumes."""
    run = found(access_managed_run, request, slug)
    if request.method != "POST":
        return manage_page(request, run)
    action = ACTIONS.get(request.POST.get("action", ""))
    if action is None:
        raise Http404
    try:
        action(run=run)
    except Problem as problem:
        return manage_page(request, run, fault=problem.fault)
    return redirect("web:manage", slug=slug)


@login_required
@require_POST
def extend_run(request: HttpRequest, slug: str) -> HttpResponse:
    """More steps."""
    run, form = found(access_managed_run, request, slug), ExtendForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, extend_form=form)
    try:
        endings.extend_run(run=run, target_steps=form.cleaned_data["target_steps"])
    except Problem as problem:
        return manage_page(request, run, fault=problem.fault)
    return redirect("web:manage", slug=slug)


@login_required
@require_http_methods(["GET", "POST"])
def end_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask once more, then end the run where it is."""
    run = found(access_managed_run, request, slug)
    fault = None
    if request.method == "POST":
        try:
            endings.end_run(run=run)
        except Problem as problem:
            fault = problem.fault
        else:
            return redirect("web:manage", slug=slug)
    return render(request, "web/end_run.html", {"run": run, "fault": fault}, status=409 if fault else 200)


# People


@login_required
@require_POST
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    """Let somebody in by name."""
    run, form = found(access_managed_run, request, slug), MemberForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, member_form=form)
    try:
        membership.add_member(run=run, name=form.cleaned_data["name"])
    except Problem as problem:
        form.add_error("name", str(problem.fault))
        return manage_page(request, run, member_form=form)
    return redirect("web:manage", slug=slug)


@login_required
@require_POST
def remove_member(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Shut somebody out."""
    run = found(access_managed_run, request, slug)
    membership.remove_member(member=get_object_or_404(membership.members_of(run), pk=member_id))
    return redirect("web:manage", slug=slug)


@never_cache
@login_required
@require_POST
def create_invitation(request: HttpRequest, slug: str) -> HttpResponse:
    """A new link; it stands in this answer and nowhere else."""
    run, form = found(access_managed_run, request, slug), InvitationForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, invitation_form=form)
    secret = membership.create_invitation(run=run, **form.cleaned_data).secret
    link = request.build_absolute_uri(f"/runs/{run.slug}/join/{secret}/")
    return manage_page(request, run, link=link)


@login_required
@require_POST
def revoke_invitation(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    """Take a link back."""
    run = found(access_managed_run, request, slug)
    membership.revoke_invitation(invitation=get_object_or_404(run.invitations, pk=invitation_id))
    return redirect("web:manage", slug=slug)


# The page


def manage_page(
    request: HttpRequest,
    run: Run,
    *,
    fault: Fault | None = None,
    extend_form: ExtendForm | None = None,
    member_form: MemberForm | None = None,
    invitation_form: InvitationForm | None = None,
    link: str = "",
) -> HttpResponse:
    """The page with what went wrong, or with a link that is shown once."""
    forms = (extend_form, member_form, invitation_form)
    facts = run_facts(request, run) | {
        "fault": fault,
        "extend_form": extend_form or ExtendForm(initial={"target_steps": run.parsed_recipe.target_steps}),
        "member_form": member_form or MemberForm(),
        "invitation_form": invitation_form or InvitationForm(),
        "link": link,
        "members": membership.members_of(run),
        "invitations": membership.open_invitations(run),
        "refresh_s": REFRESH_S if not link and is_getting_ready(run) else None,
        **possible(run),
    }
    status = 400 if fault or any(forms) else 200
    return render(request, "web/manage.html", facts, status=status)


def possible(run: Run) -> dict[str, Any]:
    """What can be done in the run's state."""
    is_ending = run.wanted == Run.Wanted.FINISHED
    is_live = run.state in endings.LIVE and not is_ending
    return {
        "is_draft": run.state == Run.State.DRAFT,
        "is_live": is_live,
        "is_ending": is_ending and run.state in endings.LIVE,
        "can_end": is_live and run.head.step > 0,
    }


def is_getting_ready(run: Run) -> bool:
    """Whether the page changes by itself soon. Until then it shows no form that a reload would empty."""
    is_prepared = run.dataset.state in (Dataset.State.READY, Dataset.State.FAILED)
    return run.state in (Run.State.PREPARING, Run.State.FINISHING) or (run.state == Run.State.DRAFT and not is_prepared)
