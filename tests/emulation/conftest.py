"""One small network, shared by tests that do not change it. Without namespaces, the network runs on loopback."""

from collections.abc import Iterator

import pytest

from tests.emulation.namespaces import anywhere
from tests.emulation.network import Network
from tests.emulation.setups import Setup, peers

SMALL = Setup(
    "small",
    (
        *peers("home", (2, 40, 80), reachable=False),
        *peers("server", (2, 100, 100)),
        *peers("relay", (1, 200, 200), role="relay"),
    ),
    elements=1000,
    keeper="relay-1",
    default_scale=1.0,
)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with anywhere(SMALL) as network:
        yield network
