"""Checks that a webhook's address is https and on the public internet.

A host name is resolved only once, and the notice is posted to the addresses found then.
"""

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from django.conf import settings

from notices.models import LONGEST_ADDRESS, Webhook

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = ipaddress.ip_network("64:ff9b::/96")
MOST_LOOKED_AT = 16  # most addresses checked per name
DISCORD = frozenset({"discord.com", "discordapp.com", "ptb.discord.com", "canary.discord.com"})
SLACK = frozenset({"hooks.slack.com", "hooks.slack-gov.com"})
PORTS = {"https": 443, "http": 80}


class Refused(Exception):
    """Raised for an address that the site will not post to. The message says why."""


class Target(NamedTuple):
    is_secure: bool
    host: str  # as in certificates: lower-case ASCII
    port: int
    path: str  # including the query


def parse(address: str) -> Target:
    """Split a webhook's address into its parts. Raises Refused, with the reason, if the site cannot use the address."""
    if len(address) > LONGEST_ADDRESS:
        raise Refused(f"The address is longer than {LONGEST_ADDRESS} characters.")
    if not address.isascii() or not address.isprintable() or " " in address or "\\" in address:
        raise Refused("The address has characters that belong in none.")
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise Refused("This is not an address.") from error
    _require_usable(parts)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme == "https", _host(parts), port, path)


def _require_usable(parts: SplitResult) -> None:
    if parts.scheme != "https" and not (settings.DEBUG and parts.scheme == "http"):
        raise Refused("The address has to begin with https://.")
    if not parts.hostname:
        raise Refused("This is not an address.")
    if "@" in parts.netloc:
        raise Refused("The address must not have a name or a password in it.")
    literal = _literal(parts.hostname)
    if literal is not None and not may_reach(literal):
        raise Refused("The address leads into a private network.")


def _host(parts: SplitResult) -> str:
    return (parts.hostname or "").rstrip(".")


def _literal(host: str) -> IP | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def service_of(target: Target) -> Webhook.Service:
    if target.host in DISCORD:
        return Webhook.Service.DISCORD
    return Webhook.Service.SLACK if target.host in SLACK else Webhook.Service.GENERIC


def resolved(target: Target) -> list[IP]:
    """Return the host's IP addresses. Raises OSError if it is not found, or Refused if any address is not public."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except UnicodeError as error:
        raise Refused("This is not an address.") from error
    addresses = list(dict.fromkeys(ipaddress.ip_address(where[4][0]) for where in found[:MOST_LOOKED_AT]))
    if not all(map(may_reach, addresses)):
        raise Refused("The address leads into a private network.")
    return addresses


def may_reach(address: IP) -> bool:
    """Return True if the address is on the public internet or, in debug mode, on this machine."""
    if settings.DEBUG and address.is_loopback:
        return True
    inner = embedded(address)
    if inner is not None:
        return is_public(inner)
    return is_public(address)


def is_public(address: IP) -> bool:
    """Return True if the address is global: not private, local, shared, reserved or multicast."""
    is_local = address.is_private or address.is_loopback or address.is_link_local or address.is_unspecified
    is_site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (is_local or is_site_local or address.is_multicast or address.is_reserved)


def embedded(address: IP) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 one (mapped, 6to4, Teredo, NAT64 or compatible), or None."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64 or address.packed[:12] == bytes(12):
        return ipaddress.IPv4Address(address.packed[12:])
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
