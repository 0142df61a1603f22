"""Fixtures for Hub tests: a Hub in a thread, and no long pauses."""

from collections.abc import Iterator

import pytest

from peer_agent.publishing import hub_client, portions
from peer_agent.site_work import fetching
from tests.publishing.hub_double import Hub, running_hub


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "PAUSES_S", (0.001,) * 4)
    for module in (fetching, portions):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub
