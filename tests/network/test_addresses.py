"""The classification of addresses: those that allow plaintext, and those that are never contacted."""

import pytest

from peer_agent.network.addresses import check_encrypted, is_local, is_loopback, is_public
from peer_agent.protocol.errors import Problem


@pytest.mark.parametrize(
    "host",
    ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "192.168.1.4", "172.16.0.1", "fe80::1"],
)
def test_this_machine_and_its_network_are_local(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "100.64.0.1", "no.invalid"]
)
def test_everything_else_is_not(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_open_internet(host: str) -> None:
    assert is_public(host)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "10.1.2.3", "100.64.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::ffff:10.0.0.1"),
        *("ff0e::1", "fe80::1", "::1", "fd00::1", "localhost", "site.example", ""),
    ],
)
def test_what_nobody_is_sent_to(host: str) -> None:
    assert not is_public(host)


def test_only_this_machine_is_loopback() -> None:
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("localhost.example")


@pytest.mark.parametrize("url", ["wss://8.8.8.8/", "ws://127.0.0.1:1/", "ws://[::1]:1/", "wss://name.invalid/"])
def test_what_may_be_dialled(url: str) -> None:
    check_encrypted(url, secure="wss", plain="ws")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ws://8.8.8.8/", "E105"),
        ("ws://name.invalid/", "E105"),
        ("http://127.0.0.1/", "E104"),
        ("ws:///", "E104"),
        ("ws://[half/", "E104"),
        ("ws://127.0.0.1:port/", "E104"),
        ("", "E104"),
    ],
)
def test_what_may_not(url: str, code: str) -> None:
    with pytest.raises(Problem, match=code):
        check_encrypted(url, secure="wss", plain="ws")
