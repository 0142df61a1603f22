"""What tests of the Hub share: one in a thread, and no long pauses."""

from collections.abc import Iterator

import pytest

from peer_agent.publishing.hub import fetching, patience, ranges
from tests.publishing.hub.hub_double import Hub, running_hub


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSES_S", (0.001,) * 4)
    for module in (fetching, ranges):
        monkeypatch.setattr(module, "PAUSE_S", 0.001)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub
