"""A peer's credential is renewed in time, even after a night's sleep. Invalid answers get an error number."""

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from peer_agent.machine.home import Home, KnownSite
from peer_agent.protocol.credentials import Role, Signed
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import Listener
from peer_agent.site import credential as credential_module
from peer_agent.site.credential import RENEW_S, RunAccess, log_in, site_of
from tests.agent.scripted_site import TRAINER
from tests.protocol.identities import RUN, SITE_PUBLIC

SITE = KnownSite("http://127.0.0.1:9", TRAINER, "ann", SITE_PUBLIC.hex())
PIN = "0a" * 32
GOOD = {
    "credential": base64.b64encode(msgspec.msgpack.encode(Signed(b"", bytes(64)))).decode(),
    "site_key": SITE.site_key,
    "control": "ws://127.0.0.1:9/",
    "run": RUN,
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list for the test to fill with answers, which the site gives in order."""
    given: list[dict[str, Any]] = []

    async def post_json(*_: object, **__: object) -> dict[str, Any]:
        return given.pop(0)

    monkeypatch.setattr(credential_module, "post_json", post_json)
    return given


class Clock:
    monotonic_s, wall_s = 1000.0, 1_800_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    fake = SimpleNamespace(monotonic=lambda: own.monotonic_s, time=lambda: own.wall_s)
    monkeypatch.setattr(credential_module, "time", fake)
    return own


@pytest.mark.parametrize(("awake_s", "passed_s"), [(RENEW_S, RENEW_S), (60.0, 8 * 3600.0), (RENEW_S, -3600.0)])
async def test_it_is_renewed_at_half_its_life_by_either_clock(
    tmp_path: Path, answers: list[dict[str, Any]], clock: Clock, awake_s: float, passed_s: float
) -> None:
    """A regression: a monotonic clock stops while a laptop sleeps, so an expired credential stayed in use."""
    access = RunAccess(Home(tmp_path), SITE, Role.TRAINER, "a-run")
    answers += [GOOD, GOOD]
    await access.renew()
    clock.monotonic_s, clock.wall_s = clock.monotonic_s + 60, clock.wall_s + 60
    await access.renew()
    assert len(answers) == 1
    clock.monotonic_s, clock.wall_s = clock.monotonic_s + awake_s, clock.wall_s + passed_s
    await access.renew()
    assert not answers


@pytest.mark.parametrize(
    "answer", [{}, GOOD | {"credential": "?"}, GOOD | {"credential": "AAAA"}, GOOD | {"run": 7}, {"site_key": "00"}]
)
async def test_an_answer_that_is_none_is_an_error_with_a_number(
    tmp_path: Path, answers: list[dict[str, Any]], answer: dict[str, Any]
) -> None:
    answers.append(answer)
    with pytest.raises(Problem, match="E110"):
        await RunAccess(Home(tmp_path), SITE, Role.TRAINER, "a-run").renew()


async def test_another_site_at_the_same_address_is_noticed(tmp_path: Path, answers: list[dict[str, Any]]) -> None:
    answers.append(GOOD | {"site_key": "00" * 32})
    with pytest.raises(Problem, match="E217"):
        await RunAccess(Home(tmp_path), SITE, Role.TRAINER, "a-run").renew()


async def test_logging_in_where_there_is_no_site(tmp_path: Path, answers: list[dict[str, Any]]) -> None:
    answers.append({"hello": "world"})
    with pytest.raises(Problem, match="E110"):
        await log_in(Home(tmp_path), "http://127.0.0.1:9/", "a token")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://[bad/", "E104"),
        ("http://a:b/", "E104"),
        ("a.example", "E112"),
        ("ftp://a/", "E112"),
        ("http:///", "E112"),
    ],
)
def test_addresses_that_are_none(url: str, code: str) -> None:
    with pytest.raises(Problem, match=code):
        site_of(url)


@pytest.mark.parametrize(
    ("site", "url", "fingerprint", "goes"),
    [
        ("https://8.8.8.8", "wss://8.8.4.4:7100/", PIN, True),
        ("https://8.8.8.8", "wss://192.168.1.1:443/", PIN, False),
        ("https://8.8.8.8", "wss://127.0.0.1:443/", PIN, False),
        ("https://8.8.8.8", "wss://169.254.169.254/", PIN, False),
        ("https://8.8.8.8", "wss://[fe80::1]:443/", PIN, False),
        ("https://8.8.8.8", "wss://[::ffff:10.0.0.1]:443/", PIN, False),
        ("https://8.8.8.8", "wss://router.example/", PIN, False),
        ("https://8.8.8.8", "ws://192.168.1.1:7000/", "", True),  # an operator's relay may use plaintext
        ("http://192.168.1.2:8000", "wss://192.168.1.1:443/", PIN, True),
        ("http://127.0.0.1:8000", "wss://127.0.0.1:443/", PIN, True),
    ],
)
async def test_remote_site_cannot_send_a_peer_into_its_own_network(
    tmp_path: Path, site: str, url: str, fingerprint: str, goes: bool
) -> None:
    access = RunAccess(Home(tmp_path), msgspec.structs.replace(SITE, url=site), Role.TRAINER, "a-run")
    assert await access.may_dial(Listener(TRAINER, url, fingerprint)) is goes
