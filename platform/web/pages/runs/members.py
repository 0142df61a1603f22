"""Pages about membership of a run: invitations, requests to join, and roles."""

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Problem
from runs.access import access_managed_run, access_moderated_run, access_run, may_see, person_of, role_of, takes_part
from runs.lifecycle import joining, membership, roles
from runs.models import Run
from web.http import rate_limits
from web.http.requester import missing, person_in, run_or_404
from web.pages.runs.forms.organizer import RequestForm, RoleForm
from web.pages.runs.manage import manage_page
from web.pages.runs.run import shown_page
from web.words import titled_in_words_of_page

ANSWERS = {"accept": joining.accept, "decline": joining.decline}


@login_required
@require_POST
def invite(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    form = RoleForm(request.POST, own=role_of(run, request.user))
    if form.is_valid():
        given = form.cleaned_data
        try:
            roles.invite(run=run, name=given["name"], role=Run.Role(given["role"]), by=person_in(request))
        except Problem as problem:
            form.add_error("name", titled_in_words_of_page(problem.fault))
        else:
            return redirect("web:manage", slug=slug)
    return manage_page(request, run, wrong={"role_form": form})


@login_required
@require_POST
def take_back(request: HttpRequest, slug: str, role_id: int) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    roles.take_back(given=get_object_or_404(run.roles.select_related("person"), pk=role_id), by=person_in(request))
    return redirect("web:manage", slug=slug)


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def own_role(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the reader's role in a run, or an invitation to one. A POST accepts the role or gives it up."""
    person = person_in(request)
    try:
        offered = roles.role_offered(slug=slug, person=person)
        if request.method != "POST":
            return render(request, "web/runs/role.html", {"run": offered.run, "offered": offered})
        answer = request.POST.get("answer", "")
        if answer == "accept":
            roles.accept(offered=offered)
            return redirect("web:manage", slug=slug)
    except Problem as problem:
        raise missing(problem.fault) from problem
    if answer != "give_up":
        raise Http404
    roles.give_up(offered=offered)
    return redirect("web:run", slug=slug) if may_see(offered.run, person) else redirect("web:account")


@never_cache
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest, slug: str, secret: str) -> HttpResponse:
    """Show an invitation and its run. A POST accepts it. Only invalid links count towards the rate limit."""
    guess = rate_limits.invitation_guess(request)
    try:
        rate_limits.spend(*guess)
        if request.method == "POST" and not isinstance(request.user, AnonymousUser):
            membership.accept_invitation(slug=slug, secret=secret, person=person_in(request))
            rate_limits.forgive(*guess)
            return redirect("web:run", slug=slug)
        run = membership.invitation_to(slug=slug, secret=secret).run
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    except Problem as problem:
        return _refused(request, slug, problem, guess)
    rate_limits.forgive(*guess)
    person = person_of(request.user)
    if run.members_only and person is not None and takes_part(run, person):
        return redirect("web:run", slug=slug)
    return render(request, "web/runs/invitation.html", {"run": run, "here": request.path})


def _refused(request: HttpRequest, slug: str, problem: Problem, guess: tuple[str, str]) -> HttpResponse:
    """Redirect people who may see the run to its page, even if their link is used up. Raises Http404 for others."""
    run = Run.objects.filter(slug=slug).first()
    if run is not None and may_see(run, request.user):
        rate_limits.forgive(*guess)
        return redirect("web:run", slug=slug)
    raise missing(problem.fault) from problem


@login_required
@rate_limits.limited("requests to join", rate_limits.person)
@require_POST
def own_request(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask to join the run, or withdraw the request. If this fails, show the error on the run's page."""
    run, person = run_or_404(access_run, request, slug), person_in(request)
    form = RequestForm(request.POST)
    if "take_back" in request.POST:
        joining.take_back(run=run, person=person)
    elif not form.is_valid():
        return shown_page(request, run, form=form)
    else:
        try:
            joining.ask(run=run, person=person, message=form.cleaned_data["message"])
        except Problem as problem:
            return shown_page(request, run, fault=problem.fault)
    return redirect(f"/runs/{run.slug}/#join")


@login_required
@require_POST
def answer(request: HttpRequest, slug: str, request_id: int) -> HttpResponse:
    """Accept or decline a request to join. Do nothing if it has already been answered or withdrawn."""
    run = run_or_404(access_moderated_run, request, slug)
    action = ANSWERS.get(request.POST.get("answer", ""))
    if action is None:
        raise Http404
    asked = joining.waiting_in(run).filter(pk=request_id).first()
    if asked is not None:
        action(request=asked, by=person_in(request))
    return redirect(f"/runs/{run.slug}/manage/#requests")
