"""Trusted proxies: those on this machine, and those that the operator lists.

The site believes a trusted proxy's statement of the visitor's address.
"""

import ipaddress
from typing import Any

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parsed(text: str) -> Address | None:
    """Parse an IP address, or return None if it is invalid. An IPv4-mapped IPv6 address becomes plain IPv4."""
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
    """Return the visitor's address: the last address in `forwarded`, followed by `peer`, that is not a trusted proxy's.

    `forwarded` is the X-Forwarded-For header, to which each proxy appends its client's address. A visitor can forge any
    address to the left of the one returned. Return an empty string if an address cannot be parsed.
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
