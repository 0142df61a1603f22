"""A member may listen only at the address that the site sees, encrypted, with a pinned certificate."""

from typing import Any

import pytest

from coordination.sockets.listening import is_dialled, placed, silenced
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import AccumulatorId, RunId
from peer_agent.protocol.messages import Hello

PIN = "0a" * 32
SEEN = "203.0.113.7"


def hello(url: str = "wss://0.0.0.0:7100/", **said: Any) -> Hello:
    usual: dict[str, Any] = {"fingerprint": PIN, "reduces": True, "keeps_log": True}
    return Hello(run=RunId("aa" * 16), accumulator=AccumulatorId("00" * 16), url=url, **{**usual, **said})


@pytest.mark.parametrize(
    ("said", "seen", "told"),
    [
        ("wss://0.0.0.0:7100/", SEEN, "wss://203.0.113.7:7100/"),
        ("wss://victim.example:7100", SEEN, "wss://203.0.113.7:7100/"),
        ("wss://victim.example", SEEN, "wss://203.0.113.7:443/"),
        ("wss://[::]:1/", "2001:db8::7", "wss://[2001:db8::7]:1/"),
        ("wss://localhost:65535/", "127.0.0.1", "wss://127.0.0.1:65535/"),
    ],
)
def test_the_host_is_the_one_that_it_is_seen_at(said: str, seen: str, told: str) -> None:
    assert placed(hello(said), seen) == hello(told)


@pytest.mark.parametrize(
    "url",
    [
        "ws://0.0.0.0:7100/",
        "https://0.0.0.0:7100/",
        "0.0.0.0:7100",
        "wss://",
        "wss://:7100/",
        "wss://0.0.0.0:0/",
        "wss://0.0.0.0:65536/",
        "wss://0.0.0.0:-1/",
        "wss://0.0.0.0:x/",
        "wss://[::/",
        "wss://0.0.0.0:7100/admin",
        "wss://0.0.0.0:7100/?a=b",
        "wss://0.0.0.0:7100/#a",
        "wss://a:b@0.0.0.0:7100/",
    ],
)
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(Problem, match="E376"):
        placed(hello(url), SEEN)


@pytest.mark.parametrize("fingerprint", ["", "0a" * 31, "0a" * 33, "0A" * 32, "zz" * 32, PIN + "\n"])
def test_without_a_certificate_to_pin_nobody_is_sent_there(fingerprint: str) -> None:
    with pytest.raises(Problem, match="E376"):
        placed(hello(fingerprint=fingerprint), SEEN)


@pytest.mark.parametrize("seen", ["", "unknown", "proxy.example", "fe80::1%eth0"])
def test_where_the_site_cannot_see_it_nobody_is_sent_anywhere(seen: str) -> None:
    with pytest.raises(Problem, match="E376"):
        placed(hello(), seen)


def test_who_cannot_be_dialled_neither_reduces_nor_keeps() -> None:
    quiet = hello("", fingerprint="", reduces=False, keeps_log=False)
    assert placed(hello(""), SEEN) == silenced(hello()) == quiet


def test_a_trainer_that_says_nothing_of_it_is_not_looked_at() -> None:
    assert not is_dialled(silenced(hello()))
    for said in ({"reduces": True}, {"keeps_log": True}, {"url": "wss://a/"}):
        quiet: dict[str, Any] = {"url": "", "reduces": False, "keeps_log": False}
        assert is_dialled(hello(**{**quiet, **said}))
