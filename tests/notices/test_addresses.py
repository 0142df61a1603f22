"""Rules for webhook addresses, and for the IP addresses that the site may contact."""

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notices.addresses import IP, Refused, is_public, may_reach, parse, service_of
from notices.models import LONGEST_ADDRESS, Webhook

GOOD = "https://hook.example/a/b?c=d"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://hook.example/", "begin with https"),
        ("ftp://hook.example/", "begin with https"),
        ("hook.example", "begin with https"),
        ("https:///path", "not an address"),
        ("https://hook.example:port/", "not an address"),
        ("https://hook.example:99999/", "not an address"),
        ("https://[::1/", "not an address"),
        ("https://me:secret@hook.example/", "name or a password"),
        ("https://hook.example@elsewhere.example/", "name or a password"),
        ("https://hook.example\\@elsewhere.example/", "characters"),
        ("https://hook.example/ HTTP/1.1", "characters"),
        ("https://hook.example/\r\nX-Own: yes", "characters"),
        ("https://hook.example/\x00", "characters"),
        ("https://hооk.example/", "characters"),  # two of the letters are Cyrillic
        ("https://127.0.0.1/", "private"),
        ("https://10.0.0.7/", "private"),
        ("https://[::1]/", "private"),
        ("https://[fe80::1]/", "private"),
        ("https://169.254.169.254/latest/meta-data/", "private"),
        (f"https://hook.example/{'a' * LONGEST_ADDRESS}", "longer"),
    ],
)
def test_what_is_refused_as_it_is_saved(address: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse(address)


def test_an_address_in_parts() -> None:
    assert parse(GOOD) == (True, "hook.example", 443, "/a/b?c=d")
    assert parse("https://HOOK.example.:8443#part") == (True, "hook.example", 8443, "/")


def test_in_debug_mode_this_machine_may_be_reached_and_no_other(settings: Any) -> None:
    settings.DEBUG = True
    assert parse("http://127.0.0.1:8001/hook").port == 8001
    with pytest.raises(Refused, match="private"):
        parse("http://192.168.0.1/")


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1"),
        *("192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::"),
        "2001:0:4136:e378:8000:63bf:80ff:fffe",  # Teredo address that contains 127.0.0.1
    ],
)
def test_addresses_inside_are_not_reached(address: str) -> None:
    assert not may_reach(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_addresses_outside_are(address: str) -> None:
    assert may_reach(ip_address(address))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_is_not_global_is_never_public(address: IP) -> None:
    if is_public(address):
        assert address.is_global
        assert not any((address.is_private, address.is_multicast, address.is_loopback))


@pytest.mark.parametrize(
    ("address", "service"),
    [
        ("https://discord.com/api/webhooks/1/a", Webhook.Service.DISCORD),
        ("https://ptb.discord.com/api/webhooks/1/a", Webhook.Service.DISCORD),
        ("https://hooks.slack.com/services/T/B/x", Webhook.Service.SLACK),
        ("https://notdiscord.com/api/webhooks/1/a", Webhook.Service.GENERIC),
        ("https://discord.com.example/", Webhook.Service.GENERIC),
    ],
)
def test_a_service_is_known_by_its_host(address: str, service: Webhook.Service) -> None:
    assert service_of(parse(address)) == service
