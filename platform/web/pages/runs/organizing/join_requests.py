"""Requests to join: asked and taken back on the run's page, accepted or declined where it is managed."""

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from peer_agent.protocol.errors import Problem
from runs.access import access_moderated_run, access_run
from runs.lifecycle import joining
from web.http import rate_limits
from web.http.requester import person_in, run_or_404
from web.pages.runs.forms.organizer import RequestForm
from web.pages.runs.run import shown_page

ANSWERS = {"accept": joining.accept, "decline": joining.decline}


@login_required
@rate_limits.limited("requests to join", rate_limits.person)
@require_POST
def own_request(request: HttpRequest, slug: str) -> HttpResponse:
    """Ask to join, or take that back; what went wrong stands at the top of the run's page."""
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
    """Let somebody in or not. What was answered or taken back meanwhile stays as it is."""
    run = run_or_404(access_moderated_run, request, slug)
    deed = ANSWERS.get(request.POST.get("answer", ""))
    if deed is None:
        raise Http404
    asked = joining.waiting_in(run).filter(pk=request_id).first()
    if asked is not None:
        deed(request=asked, by=person_in(request))
    return redirect(f"/runs/{run.slug}/manage/#requests")
