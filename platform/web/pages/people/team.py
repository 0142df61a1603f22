"""Team pages: contributions, members, and the invitation link."""

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, override
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import teams
from accounts.days import day_of
from accounts.models import Person, Team
from accounts.selectors import names_with_page
from coordination import presence
from peer_agent.protocol.errors import Fault, Problem, codes
from runs.access import listed_runs
from runs.ledger.standings import given_by_day, given_by_member, given_by_run
from runs.selectors import hosted_runs
from web.http import rate_limits
from web.http.parts import part_of
from web.http.requester import address_of, missing, person_in
from web.pages.people.person import days_of, drawn
from web.run_picture import counts
from web.run_picture.image import CARD as PREVIEW
from web.run_picture.picture import tint_of
from web.run_picture.status_sentence import training_in


class TeamForm(forms.Form):
    name = forms.CharField(
        max_length=40, label=gettext_lazy("Name"), help_text=gettext_lazy("Shown on leaderboards. Up to 40 characters.")
    )


looks = rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")


@looks
@require_safe
def team_page(request: HttpRequest, slug: str) -> HttpResponse:
    return _page(request, get_object_or_404(Team.objects.select_related("leader"), slug=slug))


@looks
@require_safe
def preview_image(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the preview image for a team's page, based on runs that everyone may see."""
    del request
    team = get_object_or_404(Team, slug=slug)
    by_run = given_by_run(team, listed_runs(None))
    samples, members = sum(given for _title, _slug, given in by_run), teams.members_of(team).count()
    unit = "samples" if samples != 1 else "sample"
    with override("en"):  # Pillow's own font has only Latin letters
        below = _("by %(people)s") % {"people": counts.people(members)}
        image = drawn(f"{samples:,}", unit, below, team.name)
    return HttpResponse(image, content_type="image/png", headers={"Cache-Control": "max-age=300"})


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
    """Create a new invitation link and show it only in this response."""
    team = _led(request, slug)
    secret = teams.new_link(team=team)
    return _page(request, team, link=request.build_absolute_uri(f"/teams/{team.slug}/join/{secret}/"))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def join(request: HttpRequest, slug: str, secret: str) -> HttpResponse:
    """Explain what joining means. A POST joins the team. Only invalid links count towards the rate limit."""
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
    except ValidationError:  # the user joined two teams at once, and the other request won
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
    """Return the team with this slug. Raises PermissionDenied unless the requester leads it."""
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
    by_run, by_day, today = given_by_run(team, runs), given_by_day(team, runs), day_of(timezone.now())
    facts: dict[str, Any] = {
        "team": team,
        "members": [(name, given.get(name, 0)) for name in shown.rows],
        "part": shown,
        "former": former,
        "runs": by_run,
        "with_page": names_with_page(shown.rows),
        "here": _training_now(request),
        "days": days_of(by_day, today, tint_of(team.name)) if by_day else None,
        "preview": PREVIEW,
        "sentence": _sentence(sum(given.values()), len(by_run), len(names)),
        "is_leader": team.leader == request.user,
        "removes": team.leader == request.user and {*shown.rows} != {team.leader.username},
        "is_member": not isinstance(request.user, AnonymousUser) and request.user.get_username() in names,
        "link": link,
        "address": request.build_absolute_uri(f"/teams/{team.slug}/"),
    }
    return render(request, "web/people/team.html", facts)


def _training_now(request: HttpRequest) -> set[str]:
    """Return the names of the people now training in runs that the viewer may see, in two queries."""
    runs = hosted_runs(request.user)
    here = presence.online_in(runs)
    return {peer.name for run in runs for peer in training_in(run, here.get(run.pk, ()))}


def _sentence(samples: int, runs: int, people: int) -> str:
    """Return a sentence such as “3 people contributed 38,904 samples to 2 AI models.”"""
    facts = {"people": counts.people(people), "samples": counts.samples(samples), "models": counts.models(runs)}
    if not samples:
        return _("%(people)s, no samples yet.") % facts
    return _("%(people)s contributed %(samples)s to %(models)s.") % facts
