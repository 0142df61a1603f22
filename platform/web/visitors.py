"""Who is in front of the page, and from where."""

import ipaddress
from typing import cast

from django.conf import settings
from django.http import HttpRequest

from accounts.models import Person

HOME_BITS = 64  # of an IPv6 address: what one household is given


def person_in(request: HttpRequest) -> Person:
    """The person who is logged in; for views behind `login_required`."""
    return cast("Person", request.user)


def ip_of(request: HttpRequest) -> str:
    """The address that a request comes from; empty where none is known."""
    return ip_from(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def ip_from(peer: str, forwarded: str) -> str:
    """The same from who is at the other end of the connection, and the header X-Forwarded-For.

    A site at https:// stands behind a proxy that ends TLS, and what that one appends is believed.
    """
    said = (settings.SECURE_PROXY_SSL_HEADER and forwarded.rpartition(",")[2].strip()) or peer
    try:
        address = ipaddress.ip_address(said)
    except ValueError:
        return ""
    # A socket that listens for both kinds shows IPv4 in the clothes of IPv6.
    return str(getattr(address, "ipv4_mapped", None) or address)


def address_of(request: HttpRequest) -> str:
    """Whom to count as one."""
    return household(ip_of(request))


def household(ip: str) -> str:
    """An IPv4 address, or the 64 bits of IPv6 that belong to one household."""
    if ":" not in ip:
        return ip
    return str(ipaddress.ip_network(f"{ip.partition('%')[0]}/{HOME_BITS}", strict=False))
