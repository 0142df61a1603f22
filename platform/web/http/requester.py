"""Who is in front of the page, and from where."""

import ipaddress
from typing import cast

from django.http import HttpRequest

from accounts.models import Person
from config.proxies import visitor_of

HOME_BITS = 64  # of an IPv6 address: what one household is given


def person_in(request: HttpRequest) -> Person:
    """The person who is logged in; for views behind `login_required`."""
    return cast("Person", request.user)


def ip_of(request: HttpRequest) -> str:
    """The address that a request comes from; empty where none is known."""
    return visitor_of(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def address_of(request: HttpRequest) -> str:
    """Whom to count as one."""
    return household(ip_of(request))


def household(ip: str) -> str:
    """An IPv4 address, or the 64 bits of IPv6 that belong to one household."""
    if ":" not in ip:
        return ip
    return str(ipaddress.ip_network(f"{ip.partition('%')[0]}/{HOME_BITS}", strict=False))


def site_of(request: HttpRequest) -> str:
    """The address under which the visitor knows this site."""
    return request.build_absolute_uri("/").rstrip("/")
