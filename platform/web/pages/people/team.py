"""Pages of teams: contributions, members, and the link for joining."""

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import teams
from accounts.models import Person, Team
from accounts.selectors import names_with_page
from peer_agent.protocol.errors import Fault, Problem, codes
from runs.access import listed_runs
from runs.ledger.standings import given_by_member, given_by_run
from web.http import rate_limits
from web.http.parts import part_of
from web.http.requester import address_of, missing, person_in
from web.run_picture import counts


class TeamForm(forms.Form):
    name = forms.CharField(
        max_length=40, label=gettext_lazy("Name"), help_text=gettext_lazy("Shown on leaderboards. Up to 40 characters.")
    )


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def team_page(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, get_object_or_404(Team.objects.select_related("leader"), slug=slug))


@login_required
@rate_limits.limited("teams", rate_limits.person)
@require_http_methods(["GET", "HEAD", "POST"])
def new_team(request: HttpRequest) -> HttpResponse:
    form = TeamForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            team = teams.make_team(leader=person_in(request), name=form.cleaned_data["name"])
        except ValidationError as error:
            form.add_error("name", [text for texts in error.message_dict.values() for text in texts])
        else:
            return redirect("web:team", slug=team.slug)
    facts = {"form": form, "now_in": teams.team_of(person_in(request))}
    return render(request, "web/people/new_team.html", facts, status=400 if form.errors else 200)


@never_cache
@login_required
@require_POST
def new_link(request: HttpRequest, slug: str) -> HttpResponse:
    """Create a new joining link and show it only in this response."""
    team = _led(request, slug)
    secret = teams.new_link(team=team)
    return _page(request, team, link=request.build_absolute_uri(f"/teams/{team.slug}/join/{secret}/"))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def join(request: HttpRequest, slug: str, secret: str) -> HttpResponse:
    """Explain what joining means; a POST joins the team. Only invalid links count towards the rate limit."""
    guess = rate_limits.invitation_guess(request)
    fault: Fault | None = None
    try:
        rate_limits.spend(*guess)
        team = teams.team_by_link(slug=slug, secret=secret)
        rate_limits.forgive(*guess)
        if request.method == "POST" and not isinstance(request.user, AnonymousUser):
            teams.join_team(slug=slug, secret=secret, person=person_in(request))
            return redirect("web:team", slug=slug)
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    except ValidationError:  # the person joined two teams at once, and the other request was faster
        return redirect("web:account")
    except Problem as problem:
        fault = problem.fault
        if fault.code == codes.TEAM_LINK_OVER:
            raise missing(fault) from problem
    now_in = None if isinstance(request.user, AnonymousUser) else teams.team_of(person_in(request))
    facts = {"team": team, "fault": fault, "now_in": now_in, "here": request.path}
    return render(request, "web/people/join_team.html", facts, status=409 if fault else 200)


@login_required
@require_POST
def leave(request: HttpRequest) -> HttpResponse:
    teams.leave_team(person=person_in(request))
    return redirect("web:account")


@login_required
@require_POST
def remove(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    team = _led(request, slug)
    person = get_object_or_404(Person, username=name)
    if person == request.user:
        raise PermissionDenied(_("To leave the team yourself, use “Leave team”. Nothing was changed."))
    teams.remove_member(team=team, person=person)
    return redirect("web:team", slug=slug)


def _led(request: HttpRequest, slug: str) -> Team:
    """Return the team. Raises PermissionDenied unless the requester leads the team."""
    team = get_object_or_404(Team, slug=slug)
    if team.leader_id != person_in(request).pk:
        raise PermissionDenied(_("Only the team's leader can do this. Nothing was changed."))
    return team


def _page(request: HttpRequest, team: Team, *, link: str = "") -> HttpResponse:
    runs = listed_runs(request.user)
    given, members = given_by_member(team, runs), list(teams.members_of(team))
    names = [member.person.username for member in members]
    ranked = sorted(names, key=lambda name: (-given.get(name, 0), name.lower()))
    shown = part_of(ranked, request, "members", f"/teams/{team.slug}/")
    former = sum(samples for name, samples in given.items() if name not in names)
    by_run = given_by_run(team, runs)
    facts: dict[str, Any] = {
        "team": team,
        "members": [(name, given.get(name, 0)) for name in shown.rows],
        "part": shown,
        "former": former,
        "runs": by_run,
        "with_page": names_with_page(shown.rows),
        "sentence": _sentence(sum(given.values()), len(by_run), len(names)),
        "is_leader": team.leader == request.user,
        "is_member": not isinstance(request.user, AnonymousUser) and request.user.get_username() in names,
        "link": link,
        "address": request.build_absolute_uri(f"/teams/{team.slug}/"),
    }
    return render(request, "web/people/team.html", facts)


def _sentence(samples: int, runs: int, people: int) -> str:
    """Return a sentence such as “3 people contributed 38,904 samples to 2 AI models.”"""
    facts = {"people": counts.people(people), "samples": counts.samples(samples), "models": counts.models(runs)}
    if not samples:
        return _("%(people)s, no samples yet.") % facts
    return _("%(people)s contributed %(samples)s to %(models)s.") % facts
