"""Where an invitation link leads: past log-in or sign-up, to one button."""

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from peer_agent.protocol.errors import Problem
from runs.access import may_see, person_of, takes_part
from runs.lifecycle import membership
from runs.models import Run
from web.http import rate_limits
from web.http.requester import missing, person_in


@never_cache
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest, slug: str, secret: str) -> HttpResponse:
    """Says who invites to what; POST accepts. Only links that let nobody in are counted."""
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
    """A link that is used up still leads those who are in to the run."""
    run = Run.objects.filter(slug=slug).first()
    if run is not None and may_see(run, request.user):
        rate_limits.forgive(*guess)
        return redirect("web:run", slug=slug)
    raise missing(problem.fault) from problem
