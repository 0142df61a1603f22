"""The page on which a person approves or declines a machine that asks to work for them."""

from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from accounts import devices
from accounts.models import DeviceRequest, Machine
from peer_agent.protocol.errors import Fault, Problem
from runs.access import access_run
from runs.models import Run
from web.http import rate_limits
from web.http.faults import status_of
from web.http.requester import person_in

GUESSES = "wrong codes"
ANSWERS = {"approve": True, "decline": False}


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def approve(request: HttpRequest) -> HttpResponse:
    """Ask for a code, show the machine that it belongs to, store the user's answer, and show what happens next."""
    typed = (request.POST if request.method == "POST" else request.GET).get("code", "")
    if not devices.typed_code(typed):
        return render(request, "web/accounts/approve_code.html", {"typed": ""})
    try:
        asked = _request_behind(request, typed)
        if request.method == "POST":
            return _take_answer(request, asked, timezone.now())
        devices.require_answerable(request=asked, person=person_in(request), now=timezone.now())
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    except Problem as problem:
        facts = {"fault": problem.fault, "typed": typed[:20]}
        return render(request, "web/accounts/approve_code.html", facts, status=status_of(problem.fault.code))
    return render(request, "web/accounts/approve.html", _facts(request, asked))


def _request_behind(request: HttpRequest, typed: str) -> DeviceRequest:
    """Return the request that a typed code belongs to.

    Raises Problem E224 if no request has this code, or E223 if the user has typed too many wrong codes.
    """
    who = rate_limits.person(request)
    rate_limits.spend(GUESSES, who)
    asked = devices.find_request(typed)
    if asked is None:
        raise Problem.of("E224", shown=typed[:20])
    rate_limits.forgive(GUESSES, who)
    return asked


def _take_answer(request: HttpRequest, asked: DeviceRequest, now: datetime) -> HttpResponse:
    """Store the user's answer to a machine's request, and show the result.

    Raises Problem E225 if the request has expired, E226 if someone else has answered it, or E127 if only an operator
    may approve it.
    """
    answer = ANSWERS.get(request.POST.get("answer", ""))
    if answer is not None:
        devices.answer_request(request=asked, person=person_in(request), approve=answer, now=now)
    return redirect(f"{reverse('web:approve')}?{urlencode({'code': asked.shown_code})}")


def _facts(request: HttpRequest, asked: DeviceRequest) -> dict[str, Any]:
    run, fault = _run_asked_for(request, asked)
    return {
        "asked": asked,
        "run": run,
        "run_fault": fault,
        "is_relay": asked.kind == Machine.Kind.RELAY,
        "may_approve": devices.may_approve(request=asked, person=person_in(request)),
        "is_waiting": asked.state == DeviceRequest.State.WAITING,
        "is_approved": asked.state in (DeviceRequest.State.APPROVED, DeviceRequest.State.USED),
    }


def _run_asked_for(request: HttpRequest, asked: DeviceRequest) -> tuple[Run | None, Fault | None]:
    if not asked.run:
        return None, None
    try:
        return access_run(slug=asked.run, viewer=request.user), None
    except Problem as problem:
        return None, problem.fault
