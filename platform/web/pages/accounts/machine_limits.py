"""What one of my machines may take: a page with a form."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from msgspec.structs import replace

from accounts import machine_control, selectors
from accounts.models import Machine
from peer_agent.machine.resting import WORDS_OF_BLIND
from web.http.requester import person_in
from web.pages.accounts.limits_form import LimitsForm, filled_in


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def machine_limits(request: HttpRequest, machine_id: UUID) -> HttpResponse:
    """The limits of a machine that trains or averages; the site's relays have none."""
    machine = selectors.machine_of(person_in(request), machine_id)
    if machine is None or machine.kind != Machine.Kind.AGENT or machine.revoked_at is not None:
        raise Http404
    control = machine_control.control_of(machine)
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=filled_in(control.wanted.limits))
    if request.method == "POST" and form.is_valid():
        limits = form.limits()
        machine_control.change(machine=machine, to=lambda wanted: replace(wanted, limits=limits))
        return redirect("web:machines")
    blind = [WORDS_OF_BLIND[what] for what in control.report.blind] if control.report is not None else []
    facts = {"machine": machine, "form": form, "blind": blind}
    return render(request, "web/accounts/machine_limits.html", facts, status=400 if form.is_bound else 200)
