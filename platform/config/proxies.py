"""Whose word about the visitor's address is taken: proxies on this machine, and those that the operator names."""

import ipaddress
from typing import Any

from django.conf import settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parsed(text: str) -> Address | None:
    """An IP address; a socket that listens for both kinds shows IPv4 in the clothes of IPv6."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_trusted(ip: str) -> bool:
    """Whether this is a proxy of the site's own."""
    address = parsed(ip)
    if address is None:
        return False
    return address.is_loopback or any(address in network for network in settings.TRUSTED_PROXIES)


def visitor_of(peer: str, forwarded: str) -> str:
    """Who is behind the proxies: of `forwarded` (X-Forwarded-For) and the connection's `peer`, the last untrusted one.

    Each proxy appends whom it was called by, so what stands left of the first untrusted hop is that visitor's claim.
    Empty where no address is known.
    """
    hop = parsed(peer)
    hops = forwarded.split(",") if forwarded else []
    while hop is not None and hops and is_trusted(str(hop)):
        hop = parsed(hops.pop())
    return str(hop) if hop is not None else ""


def visitor_in(scope: dict[str, Any]) -> str:
    """The same for a socket, by its ASGI scope."""
    peer = str(scope["client"][0]) if scope.get("client") else ""
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return visitor_of(peer, ",".join(headers))
