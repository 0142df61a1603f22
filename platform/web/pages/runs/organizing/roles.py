"""Who has which role in a run: invited by name, accepted or declined by who was invited."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Problem
from runs.access import access_managed_run, may_see, role_of
from runs.lifecycle import roles
from runs.models import Run
from web.http.requester import missing, person_in, run_or_404
from web.pages.runs.forms.organizer import RoleForm
from web.pages.runs.organizing.manage import manage_page
from web.words import titled_in_words_of_page


@login_required
@require_POST
def invite(request: HttpRequest, slug: str) -> HttpResponse:
    """Invite somebody to a role; what is wrong with the name stands beside it."""
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
    """End a role, or withdraw the invitation to one."""
    run = run_or_404(access_managed_run, request, slug)
    roles.take_back(given=get_object_or_404(run.roles.select_related("person"), pk=role_id), by=person_in(request))
    return redirect("web:manage", slug=slug)


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def own_role(request: HttpRequest, slug: str) -> HttpResponse:
    """One's own role in a run, or the invitation to one: what it allows, and the answer to it."""
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
