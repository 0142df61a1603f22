"""Refusals by the Hub as numbered errors. A local server answers as the Hub does, over HTTP."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import hub_client
from peer_agent.publishing.hub_client import api_of, check_token, held_files, in_words
from tests.network.site_double import Site, serving

REPOSITORY = "amina/words"


@pytest.fixture
def hub() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("peer_agent.publishing.hub_client.time", SimpleNamespace(sleep=waited.append))
    return waited


def address(hub: Site) -> str:
    return f"http://127.0.0.1:{hub.server_port}"


def refuse(hub: Site, path: str, status: int, message: str = "", **headers: str) -> None:
    body = b'{"error": "%s"}' % message.encode()
    hub.url(
        path,
        lambda handler: handler.reply(status, body, Content_Type="application/json", Connection="close", **headers),
    )


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Private repository storage limit reached, please upgrade your plan", "E451"),
        ("Your storage patterns tripped our internal systems!", "E451"),
        ("This token does not have the permission repo.write", "E343"),
        ("You are not a member of this organization", "E344"),
    ],
)
def test_refused_repository_is_told_by_its_reason(hub: Site, message: str, code: str) -> None:
    refuse(hub, "/api/repos/create", 403, message)
    with pytest.raises(Problem, match=f"{code}.*{message[:20]}"), in_words(address(hub), REPOSITORY):
        api_of("secret", address(hub)).create_repo(REPOSITORY)


def test_restricted_dataset_says_what_to_accept(hub: Site) -> None:
    tree = f"/api/datasets/{REPOSITORY}/tree/main?recursive=true&expand=false"
    refuse(hub, tree, 403, "Access to dataset is restricted", X_Error_Code="GatedRepo")
    with (
        pytest.raises(Problem, match=f"E453.*{address(hub)}/{REPOSITORY}"),
        in_words(address(hub), REPOSITORY, reading="dataset"),
    ):
        held_files(api_of("", address(hub)), REPOSITORY, "main", kind="dataset")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"RateLimit": '"api";r=0;t=55'}, 55), ({"Retry_After": "7"}, 7), ({}, None)],
)
def test_rate_limit_is_obeyed(hub: Site, waits: list[float], headers: dict[str, str], seconds: float | None) -> None:
    answers = iter([429, 200])
    good = b'{"name": "amina", "auth": {"accessToken": {"role": "write"}}}'
    hub.url("/api/whoami-v2", lambda handler: handler.reply(next(answers), good, Connection="close", **headers))
    assert check_token("secret", address(hub)).name == "amina"
    assert waits == [hub_client.PAUSES_S[0] if seconds is None else seconds]


def test_rate_limit_that_lasts_is_told_with_its_time(hub: Site, waits: list[float]) -> None:
    refuse(hub, "/api/whoami-v2", 429, "slow down", RateLimit='"api";r=0;t=55')
    with pytest.raises(Problem, match=r"E346.*asks to wait 55 seconds"):
        check_token("secret", address(hub))
    assert waits == [55.0] * len(hub_client.PAUSES_S)
