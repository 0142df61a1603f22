"""Trusted proxies, whose word about a visitor's address counts: those on this machine, and the operator's."""

import ipaddress
from typing import Any

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parsed(text: str) -> Address | None:
    """Return an IP address; sockets for both kinds show IPv4 mapped into IPv6, which is undone."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_trusted(ip: str) -> bool:
    address = parsed(ip)
    if address is None:
        return False
    return address.is_loopback or any(address in network for network in settings.TRUSTED_PROXIES)


def visitor_of(peer: str, forwarded: str) -> str:
    """Return the visitor's address: the last untrusted one of `forwarded` (X-Forwarded-For) and the `peer`.

    Each proxy appends its client's address, so addresses left of the first untrusted hop are only claims. Empty if no
    address is known.
    """
    hop = parsed(peer)
    hops = forwarded.split(",") if forwarded else []
    while hop is not None and hops and is_trusted(str(hop)):
        hop = parsed(hops.pop())
    return str(hop) if hop is not None else ""


def visitor_in(scope: dict[str, Any]) -> str:
    peer = str(scope["client"][0]) if scope.get("client") else ""
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return visitor_of(peer, ",".join(headers))
