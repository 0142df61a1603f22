"""What the journeys share: real English, small enough to be prepared in a second."""

import signal
from pathlib import Path

import pytest

from demo.corpus import python_text
from scripts import build_wheel

# A shell that starts tests in the background has them ignore Ctrl-C, and what they start does too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Modules that take minutes: begun last, one would be waited for while the other core has nothing to do.
LONGEST = (
    "test_exactness",
    "test_survival",
    "test_volunteer",
    "test_live_page",
    "test_limits",
    "test_mishaps",
    "test_hub_round_trip",
    "test_overfitting",
    "test_stranger_to_model",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules first; all others stay in their order."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def english() -> str:
    """About 150,000 characters."""
    return python_text()[:150_000]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the agent's wheel, as setup builds it."""
    folder = tmp_path_factory.mktemp("wheel") / "download"
    build_wheel.build(build_wheel.ROOT, folder)
    return folder
