"""The page for managing a run: visibility, length, people. Moderators see only part of it.

The pages for creating and editing a run are in `drafts`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from coordination.presence import RELAY
from peer_agent.protocol.errors import Fault, Problem
from runs import quotas
from runs.access import MANAGING, access_managed_run, access_moderated_run, access_own_run, outranks, role_of
from runs.datasets.hub_sources import arrived
from runs.datasets.services import SourceLine, lacks_base
from runs.lifecycle import drafts, joining, membership, roles, services
from runs.lifecycle.repair import repair_run
from runs.lifecycle.services import ask_rollback, rollback_facts
from runs.models import Dataset, Member, Run
from runs.releases.trials import set_allowed
from runs.states import LIVE
from runs.storage import pictures_of
from web.http.parts import Part, part_of
from web.http.requester import person_in, run_or_404
from web.pages.runs.forms.organizer import (
    AlertForm,
    AnnouncementForm,
    ExtendForm,
    GatherForm,
    InvitationForm,
    MemberForm,
    RoleForm,
    StartForm,
    WeightsForm,
)
from web.pages.runs.forms.recipe import estimate_of, headline_of
from web.pages.runs.run import REFRESH_S, head_facts, repair_facts
from web.pages.runs.trials import switch_facts
from web.run_picture.loading import head_of, troubles_of
from web.run_picture.own import Own
from web.words import (
    in_words_of_page,
    material_in_words_of_page,
    title_of_page,
    titled_in_words_of_page,
    verdict_in_words_of_page,
)

MOST_DIGITS = 18  # most digits of a row's id in an address
ACTIONS: dict[str, Callable[..., object]] = {
    "pause": services.pause_run,
    "resume": services.resume_run,
    "start_now": partial(drafts.schedule, starts_at=None),
    "take_back": drafts.take_back,
    "allow_trials": partial(set_allowed, allowed=True),
    "forbid_trials": partial(set_allowed, allowed=False),
}


@login_required
@require_http_methods(["GET", "POST"])
def manage_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the manage page. A POST carries out an action on the run.

    It opens, starts, pauses or resumes the run, turns it back into a draft, or allows or forbids trials of its model.
    """
    if request.method != "POST":
        return manage_page(request, run_or_404(access_moderated_run, request, slug))
    run = run_or_404(access_managed_run, request, slug)
    asked, person = request.POST.get("action", ""), person_in(request)
    if asked == "open":
        return managed(request, run, lambda: services.open_run(run=run, seen=request.POST.get("seen", ""), by=person))
    action = ACTIONS.get(asked)
    if action is None:
        raise Http404
    return managed(request, run, lambda: action(run=run, by=person))


@login_required
@require_POST
def extend_run(request: HttpRequest, slug: str) -> HttpResponse:
    run, form = run_or_404(access_managed_run, request, slug), ExtendForm(request.POST)
    return submitted(request, run, "extend_form", form, partial(services.extend_run, run=run))


@login_required
@require_POST
def set_start(request: HttpRequest, slug: str) -> HttpResponse:
    run, form = run_or_404(access_managed_run, request, slug), StartForm(request.POST)
    return submitted(request, run, "start_form", form, partial(drafts.schedule, run=run))


@login_required
@require_POST
def gather(request: HttpRequest, slug: str) -> HttpResponse:
    """Set how many people the organizer hopes for, and the address of their chat."""
    run, form = run_or_404(access_managed_run, request, slug), GatherForm(request.POST)
    return submitted(request, run, "gather_form", form, partial(drafts.gather, run=run))


@login_required
@require_http_methods(["GET", "POST"])
def end_run(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask for confirmation. A POST ends the run at its current step."""
    run = run_or_404(access_managed_run, request, slug)
    answer = redirect("web:manage", slug=slug)
    person = person_in(request)
    return asked_once_more(request, run, "web/runs/end_run.html", lambda: services.end_run(run=run, by=person), answer)


@login_required
@require_http_methods(["GET", "POST"])
def delete_run(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_own_run, request, slug)
    return asked_once_more(
        request, run, "web/runs/delete_run.html", lambda: drafts.delete_draft(run=run), redirect("web:runs")
    )


@login_required
@require_POST
def announce(request: HttpRequest, slug: str) -> HttpResponse:
    run, form = run_or_404(access_moderated_run, request, slug), AnnouncementForm(request.POST)
    return submitted(request, run, "announcement_form", form, partial(drafts.announce, run=run))


@login_required
@require_POST
def set_alerts(request: HttpRequest, slug: str) -> HttpResponse:
    run, form = run_or_404(access_managed_run, request, slug), AlertForm(request.POST)
    return submitted(request, run, "alert_form", form, partial(drafts.warn_below, run=run))


# Members


@login_required
@require_POST
def add_member(request: HttpRequest, slug: str) -> HttpResponse:
    run, form = run_or_404(access_managed_run, request, slug), MemberForm(request.POST)
    return named(request, run, form, membership.add_member, wrong="member_form")


@login_required
@require_POST
def remove_member(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    """Remove a member. The next page offers to undo this."""
    run = run_or_404(access_moderated_run, request, slug)
    member = get_object_or_404(membership.members_of(run), pk=member_id)
    try:
        membership.remove_member(member=member, by=person_in(request))
    except Problem as problem:
        return manage_page(request, run, fault=problem.fault)
    return redirect(_place(request, run, member))


@login_required
@require_POST
def remove_person(request: HttpRequest, slug: str) -> HttpResponse:
    """Remove a person by name, through the form on the manage page or on the leaderboard."""
    run, form = run_or_404(access_moderated_run, request, slug), MemberForm(request.POST, prefix="remove")
    return named(request, run, form, membership.remove_person, wrong="removal_form")


@login_required
@require_POST
def let_back(request: HttpRequest, slug: str, member_id: int) -> HttpResponse:
    run = run_or_404(access_moderated_run, request, slug)
    member = get_object_or_404(membership.removed_from(run), pk=member_id)
    membership.let_back(member=member, by=person_in(request))
    return redirect(_place(request, run))


def _place(request: HttpRequest, run: Run, removed: Member | None = None) -> str:
    """Return the address of the page that the request came from: the manage page or the leaderboard.

    If `removed` is given, that page will offer to undo this removal.
    """
    name = "web:standings" if request.POST.get("back") == "leaderboard" else "web:manage"
    return reverse(name, args=[run.slug]) + (f"?undo={removed.pk}" if removed is not None else "")


def just_removed(request: HttpRequest, run: Run) -> Member | None:
    """Return the removed member that `?undo=` names, or None. The page offers to undo their removal."""
    said = request.GET.get("undo", "")
    is_number = said.isascii() and said.isdigit() and len(said) < MOST_DIGITS
    return membership.removed_from(run).filter(pk=int(said)).first() if is_number else None


@never_cache
@login_required
@require_POST
def create_invitation(request: HttpRequest, slug: str) -> HttpResponse:
    """Create a new invitation link and show it only in this response."""
    run, form = run_or_404(access_managed_run, request, slug), InvitationForm(request.POST)
    if not form.is_valid():
        return manage_page(request, run, wrong={"invitation_form": form})
    secret = membership.create_invitation(run=run, **form.cleaned_data, by=person_in(request)).secret
    link = request.build_absolute_uri(f"/runs/{run.slug}/join/{secret}/")
    return manage_page(request, run, link=link)


@login_required
@require_POST
def revoke_invitation(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    invitation = get_object_or_404(run.invitations, pk=invitation_id)
    membership.revoke_invitation(invitation=invitation, by=person_in(request))
    return redirect("web:manage", slug=slug)


# Responses


def managed(request: HttpRequest, run: Run, action: Callable[[], object]) -> HttpResponse:
    """Carry out an action on the run. If it raises Problem, show the error at the top of the manage page."""
    try:
        action()
    except Problem as problem:
        return manage_page(request, run, fault=problem.fault)
    return redirect("web:manage", slug=run.slug)


def submitted(
    request: HttpRequest, run: Run, name: str, form: forms.Form, action: Callable[..., object]
) -> HttpResponse:
    """Carry out an action with a form's values. If they are invalid, show the form again on the manage page.

    `name` is the form's name in the template.
    """
    if not form.is_valid():
        return manage_page(request, run, wrong={name: form})
    return managed(request, run, lambda: action(**form.cleaned_data, by=person_in(request)))


def named(
    request: HttpRequest, run: Run, form: MemberForm, action: Callable[..., Member], *, wrong: str
) -> HttpResponse:
    """Carry out an action on the person named in a form. If it raises Problem, show the error next to the name.

    `wrong` is the form's name in the template.
    """
    if form.is_valid():
        try:
            member = action(run=run, name=form.cleaned_data["name"], by=person_in(request))
        except Problem as problem:
            if wrong == "removal_form" and run.members_only:  # the form was sent from the leaderboard
                return manage_page(request, run, fault=problem.fault)
            form.add_error("name", titled_in_words_of_page(problem.fault))
        else:
            return redirect(_place(request, run, member if member.removed_at else None))
    return manage_page(request, run, wrong={wrong: form})


def asked_once_more(
    request: HttpRequest, run: Run, page: str, action: Callable[[], object], answer: HttpResponse, **facts: Any
) -> HttpResponse:
    """Show a page that asks for confirmation. On POST, carry out the action or show why it failed."""
    fault = None
    if request.method == "POST":
        try:
            action()
        except Problem as problem:
            fault = problem.fault
        else:
            return answer
    return render(request, page, {"run": run, "fault": fault, **facts}, status=409 if fault else 200)


def manage_page(
    request: HttpRequest,
    run: Run,
    *,
    fault: Fault | None = None,
    link: str = "",
    wrong: dict[str, forms.Form] | None = None,
) -> HttpResponse:
    """Show the manage page, optionally with an error (`fault`), forms to correct (`wrong`), or a new invitation link.

    The link is shown only in this response.
    """
    facts, page = head_facts(request, run, head_of(run), Own(run, request.user)), reverse("web:manage", args=[run.slug])
    own = role_of(run, request.user)
    facts |= {
        "fault": fault,
        "role": own,
        "manages": own in MANAGING,
        "just_removed": just_removed(request, run),
        "troubles": [trouble for trouble in troubles_of(facts["seen"]) if trouble != fault],
        "start_form": StartForm(initial={"starts_at": run.later_start()}),
        "gather_form": GatherForm(initial={"people": run.people_goal, "chat": run.chat_url}),
        "extend_form": ExtendForm(initial={"target_steps": run.parsed_recipe.target_steps}),
        "announcement_form": AnnouncementForm(initial={"text": run.announcement}),
        "alert_form": AlertForm(initial={"machines": run.least_machines}),
        "member_form": MemberForm(),
        "removal_form": MemberForm(prefix="remove"),
        "invitation_form": InvitationForm(),
        "link": link,
        **people_facts(run, own, part_of(membership.members_of(run), request, "members", page)),
        "takes_requests": joining.takes_requests(run),
        "requests": part_of(joining.waiting_in(run), request, "requests", page),
        "online_names": {peer.name for peer in facts["seen"].peers if peer.role != RELAY},
        "removed": part_of(membership.removed_from(run), request, "removed", page),
        "invitations": part_of(membership.open_invitations(run), request, "links", page) if own in MANAGING else (),
        "refresh_s": REFRESH_S if not link and is_getting_ready(run) else None,
        **source_facts(run, facts["sources"]),
        "use": quotas.use_of(run.organizer),
        **verdict_facts(run.dataset),
        **switch_facts(run),
        **possible(run),
        "is_gathering": run.state == Run.State.OPEN
        and run.wanted != Run.Wanted.FINISHED
        and (run.later_start() is not None or not facts["picture"].machines),
        "headline": headline_for(run),
        **(rollback_facts(run) if own in MANAGING else {}),
        **(wrong or {}),
    }
    facts["is_asked"] = facts["is_draft"] and bool(facts["verdict"] and facts["verdict"]["asked"])
    facts["groups"] = groups_of(run, own, facts)
    return render(request, "web/runs/manage.html", facts, status=400 if fault or wrong else 200)


def groups_of(run: Run, own: Run.Role | None, facts: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return the groups of settings that a person with the role `own` sees: anchor, title and templates of each."""
    manages, is_draft, is_over = own in MANAGING, facts["is_draft"], run.state == Run.State.FINISHED
    can_delete = is_draft and own == Run.Role.ORGANIZER
    people = [
        (not is_over or run.members_only, "people"),
        (manages and not is_over, "gather"),
        (True, "roles"),
        (not is_draft, "announce"),
    ]
    model = [
        (is_over, "publish"),
        (is_over, "details"),
        (not facts["is_asked"], "verdict"),
        (True, "text"),
        (not is_over and run.dataset.state != Dataset.State.FAILED, "publish"),
    ]
    groups = [
        ("training", _("Training"), [(not is_over, "details"), (not is_over, "training")]),
        ("everyone", _("People"), people),
        ("danger", _("Delete draft") if is_draft else _("End run"), [(facts["can_end"] or can_delete, "danger")]),
    ]
    groups.insert(0 if is_draft or is_over else 2, ("material", _("Model and data"), model))
    shown = groups if manages else [each for each in groups if each[0] == "everyone"]
    found = [(name, title, [part for is_there, part in parts if is_there]) for name, title, parts in shown]
    return [
        (name, title, [f"web/runs/manage_parts/{part}.html" for part in parts]) for name, title, parts in found if parts
    ]


def people_facts(run: Run, own: Run.Role | None, members: Part) -> dict[str, Any]:
    """Return the members and roles, and whether a person with the role `own` outranks each of them."""
    given = list(roles.roles_in(run))
    held = {each.person_id: Run.Role(each.role) for each in given if each.accepted_at}
    return {
        "roles": [(each, outranks(own, Run.Role(each.role))) for each in given],
        "role_form": RoleForm(own=own),
        "members": members,
        "people": [
            (member, held.get(member.person_id), outranks(own, held.get(member.person_id))) for member in members.rows
        ],
    }


def source_facts(run: Run, lines: Sequence[SourceLine]) -> dict[str, Any]:
    recipe = run.parsed_recipe
    can_change = run.state == Run.State.DRAFT and not is_getting_ready(run)
    facts: dict[str, Any] = {
        "can_add_source": can_change,
        "brought": material_in_words_of_page(recipe.material).brought,
        "can_set_base": can_change and recipe.material.brought is not None,
        "lacks_base": lacks_base(run.dataset),
        "fetched": fetched(run.dataset),
    }
    if len(lines) > 1 and (can_change or possible(run)["is_live"]):
        facts["weights_form"] = WeightsForm(lines=lines, mix=recipe.mix)
    return facts


def fetched(dataset: Dataset) -> tuple[int, int] | None:
    """Return the bytes fetched from the Hub so far and the bytes in all, or None if nothing is being fetched."""
    coming = [each for each in dataset.parts() if each.origin]
    if dataset.state not in (Dataset.State.UPLOADED, Dataset.State.PREPARING) or all(e.is_fetched for e in coming):
        return None
    return sum(map(arrived, coming)), sum(each.size for each in coming)


def headline_for(run: Run) -> str:
    """Return text on how long a draft's training will take with the people hoped for, or "" for other runs."""
    recipe = run.parsed_recipe
    is_draft = run.state == Run.State.DRAFT
    return headline_of(estimate_of(recipe, run.people_goal or 0), recipe.target_steps) if is_draft else ""


def possible(run: Run) -> dict[str, Any]:
    is_ending = run.wanted == Run.Wanted.FINISHED
    is_live = run.state in LIVE and not is_ending
    return {
        "can_schedule": drafts.can_schedule(run) and not is_getting_ready(run),
        "starts_at": run.later_start(),
        "is_draft": run.state == Run.State.DRAFT,
        "is_live": is_live,
        "is_ending": is_ending and run.state in LIVE,
        "can_end": is_live and run.head.step > 0,
        "can_take_back": is_live and run.head.index == 0,
    }


def is_getting_ready(run: Run) -> bool:
    """Return True while the site prepares or finishes the run, so that the manage page will soon change by itself.

    The page then omits the forms for data and start time, because a reload would clear what people have typed.
    """
    is_prepared = run.dataset.state in (Dataset.State.READY, Dataset.State.FAILED) or lacks_base(run.dataset)
    return run.state in (Run.State.PREPARING, Run.State.FINISHING) or (run.state == Run.State.DRAFT and not is_prepared)


MOST_FIELDS, MOST_CLASSES = 12, 40  # most fields and classes shown with a verdict


def verdict_facts(dataset: Dataset) -> dict[str, Any]:
    """Return the verdict on a dataset, as the manage page shows it, and its mark.

    The verdict is None until the data is prepared.
    """
    is_failed = dataset.state == Dataset.State.FAILED and bool(dataset.field)  # another field can still be chosen
    if dataset.verdict is None or not (dataset.state == Dataset.State.READY or is_failed):
        return {"mark": dataset.mark, "verdict": None}
    verdict: dict[str, Any] = dataset.verdict
    classes = sorted(verdict["classes"].items(), key=lambda each: (-each[1], each[0]))
    findings = [_finding(each) for each in verdict["findings"]]
    return {
        "mark": dataset.mark,
        "is_outdated": is_failed,
        "heldout_size": (dataset.heldout or {}).get("size"),
        "verdict": {
            **verdict,
            "format": verdict_in_words_of_page(verdict["format"]),
            "fields": verdict["fields"][:MOST_FIELDS],
            "asked": [each for each in findings if each["severity"] != "note"],
            "noted": [each for each in findings if each["severity"] == "note"],
            "overlap_percent": f"{100 * verdict['heldout_overlap']:.1f}".removesuffix(".0"),
            "texts": [piece for piece in verdict["pieces"] if isinstance(piece, str)],
            "shown_classes": classes[:MOST_CLASSES],
            "more_classes": max(0, len(classes) - MOST_CLASSES),
            "reasons": [
                (verdict_in_words_of_page(reason), count, verdict["examples"].get(reason, ()))
                for reason, count in verdict["left_out"].items()
            ],
            "pictures": [{"number": number, "name": name} for number, name, _ in pictures_of(dataset)],
        },
    }


def _finding(said: dict[str, str]) -> dict[str, str]:
    fault = Fault(said["code"], said["text"])
    return {**said, "title": title_of_page(fault.title), "text": in_words_of_page(fault).text}


@login_required
@require_http_methods(["GET", "POST"])
def repair(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask for confirmation. A POST undoes the false contributions that the site found after the loss rose."""
    run = run_or_404(access_managed_run, request, slug)
    found = repair_facts(run).get("repair")
    if found is None:
        raise Http404
    person = person_in(request)

    def action() -> None:
        repair_run(run=run, by=person)

    page = "web/runs/manage_parts/repair.html"
    return asked_once_more(request, run, page, action, redirect("web:run", slug=slug), repair=found)


LARGEST = 2**63 - 1


@login_required
@require_http_methods(["GET", "POST"])
def roll_back(request: HttpRequest, slug: str, index: int) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    target = run.snapshots.filter(index=index, is_undone=False).first() if index <= LARGEST else None
    if target is None:
        raise Http404
    facts = {"target": target, "undone": max(run.head.step - target.step, 0)}
    answer, person = redirect("web:manage", slug=slug), person_in(request)

    def action() -> None:
        ask_rollback(run=run, index=index, by=person)

    return asked_once_more(request, run, "web/runs/manage_parts/roll_back.html", action, answer, **facts)
