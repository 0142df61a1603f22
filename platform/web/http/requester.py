"""The requester of a page: the user, their address, and the run that they may see."""

import ipaddress
from typing import Any, cast

from django.http import Http404, HttpRequest

from accounts.models import Person
from config.proxies import visitor_of
from peer_agent.protocol.errors import Fault, Problem
from runs.models import Run

HOME_BITS = 64  # bits of an IPv6 address that identify a household's network


def person_in(request: HttpRequest) -> Person:
    """Return the logged-in user, in views behind `login_required`."""
    return cast("Person", request.user)


def ip_of(request: HttpRequest) -> str:
    """Return the requester's IP address, or "" if it is unknown."""
    return visitor_of(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def address_of(request: HttpRequest) -> str:
    """Return the address that limits are counted by: an IPv4 address, or an IPv6 address's network."""
    return household(ip_of(request))


def household(ip: str) -> str:
    """Return an IPv4 address unchanged, or an IPv6 address's 64-bit network, which stands for one household."""
    if ":" not in ip:
        return ip
    return str(ipaddress.ip_network(f"{ip.partition('%')[0]}/{HOME_BITS}", strict=False))


def site_of(request: HttpRequest) -> str:
    """Return this site's address as used by the visitor's browser."""
    return request.build_absolute_uri("/").rstrip("/")


def run_or_404(access: Any, request: HttpRequest, slug: str) -> Run:
    """Return the run that `access` finds. Raises Http404 if it finds none or the viewer may not see it."""
    try:
        run: Run = access(slug=slug, viewer=request.user)
    except Problem as problem:
        raise missing(problem.fault) from problem
    return run


def missing(fault: Fault) -> Http404:
    """Return an Http404 with a numbered error, for `web.http.error_responses` to show."""
    nothing = Http404()
    nothing.fault = fault  # type: ignore[attr-defined]
    return nothing
