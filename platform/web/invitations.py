"""Where an invitation link leads: past log-in or sign-up, to one button."""

from django.contrib.auth.models import AnonymousUser
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from peer_agent.protocol.errors import Problem
from runs import membership
from runs.access import may_see
from runs.models import Run
from web import rates
from web.visitors import address_of, person_in


@never_cache
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest, slug: str, secret: str) -> HttpResponse:
    """Says who invites to what; POST accepts. Only links that let nobody in are counted."""
    guess = _guess(request)
    try:
        rates.spend(*guess)
        if request.method == "POST" and not isinstance(request.user, AnonymousUser):
            membership.accept_invitation(slug=slug, secret=secret, person=person_in(request))
            rates.forgive(*guess)
            return redirect("web:run", slug=slug)
        run = membership.invitation_to(slug=slug, secret=secret).run
    except rates.TooOften as problem:
        return rates.refusal(request, problem)
    except Problem as problem:
        return _refused(request, slug, problem, guess)
    rates.forgive(*guess)
    if run.visibility == Run.Visibility.PRIVATE and may_see(run, request.user):
        return redirect("web:run", slug=slug)
    return render(request, "web/invitation.html", {"run": run, "here": request.path})


def _guess(request: HttpRequest) -> tuple[str, str]:
    """What is counted, and of whom: people one by one, all others by where they are."""
    if isinstance(request.user, AnonymousUser):
        return "wrong invitations of one address", address_of(request)
    return "wrong invitations", rates.person(request)


def _refused(request: HttpRequest, slug: str, problem: Problem, guess: tuple[str, str]) -> HttpResponse:
    """A link that is used up still leads those who are in to the run."""
    run = Run.objects.filter(slug=slug).first()
    if run is not None and may_see(run, request.user):
        rates.forgive(*guess)
        return redirect("web:run", slug=slug)
    nothing = Http404()
    nothing.fault = problem.fault  # type: ignore[attr-defined]  # read by web.failures
    raise nothing from problem
