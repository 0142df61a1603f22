"""The requester: person, address, and the run they may see."""

import ipaddress
from typing import Any, cast

from django.http import Http404, HttpRequest

from accounts.models import Person
from config.proxies import visitor_of
from peer_agent.protocol.errors import Fault, Problem
from runs.models import Run

HOME_BITS = 64  # of an IPv6 address: the network of one household


def person_in(request: HttpRequest) -> Person:
    """Return the person who is logged in; for views behind `login_required`."""
    return cast("Person", request.user)


def ip_of(request: HttpRequest) -> str:
    """Return the address of the requester; empty if unknown."""
    return visitor_of(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def address_of(request: HttpRequest) -> str:
    """Return the address that counts as one requester."""
    return household(ip_of(request))


def household(ip: str) -> str:
    """Return an IPv4 address, or the 64 bits of IPv6 that belong to one household."""
    if ":" not in ip:
        return ip
    return str(ipaddress.ip_network(f"{ip.partition('%')[0]}/{HOME_BITS}", strict=False))


def site_of(request: HttpRequest) -> str:
    """Return the address under which the visitor knows this site."""
    return request.build_absolute_uri("/").rstrip("/")


def run_or_404(access: Any, request: HttpRequest, slug: str) -> Run:
    """Return the run that `access` gives. A run that the viewer may not see raises Http404, as a missing one does."""
    try:
        run: Run = access(slug=slug, viewer=request.user)
    except Problem as problem:
        raise missing(problem.fault) from problem
    return run


def missing(fault: Fault) -> Http404:
    """Return a 404 with its reason, which `web.http.error_responses` shows."""
    nothing = Http404()
    nothing.fault = fault  # type: ignore[attr-defined]
    return nothing
