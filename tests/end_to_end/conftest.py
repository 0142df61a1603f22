"""Shared by the end-to-end tests: their selection and order, an English text, and the agent's wheel."""

import signal
from pathlib import Path

import pytest

from demo.recipes import python_text
from scripts import build_wheel
from tests.end_to_end.rig.swarm import Swarm
from tests.warm.client import Warm

# A shell that starts tests in the background makes them ignore Ctrl-C, and their child processes inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The end-to-end tests that `make test` runs; `make check` runs all. Long modules start first, so that none runs alone
# at the end.
JOURNEYS_OF_TEST = (
    "test_exactness.py::test_uneven_machines_make_what_one_would[lamb]",
    "test_survival.py::",
    "test_live_page.py::test_steps_show",
    "test_demo.py::test_the_result_has_its_shape",
    "test_demo.py::test_the_loss_falls",
    "test_demo.py::test_agents_get_little",
    "test_demo.py::test_the_model_loads",
    "pages/test_few_actions.py::test_from_the_front_page_to_a_run_that_takes_volunteers[desktop]",
    "pages/test_few_actions.py::test_from_a_link_to_credit[desktop]",
)
LONGEST = ("test_exactness", "test_survival", "test_volunteer", "test_live_page", "test_limits", "test_mishaps")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the end-to-end tests first, and mark those that only `make check` runs."""
    folder = Path(__file__).parent
    for item in items:
        journey = item.nodeid.removeprefix("tests/end_to_end/")
        if item.path.is_relative_to(folder) and not journey.startswith(JOURNEYS_OF_TEST):
            item.add_marker(pytest.mark.check)
    items.sort(key=lambda item: rank(item.path, folder))


def rank(path: Path, folder: Path) -> int:
    """Return a module's place in the order: long end-to-end tests, then other end-to-end tests, then all other
    tests."""
    if not path.is_relative_to(folder):
        return len(LONGEST) + 1
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)


@pytest.fixture(scope="session", autouse=True)
def _forked_agents(warm: Warm | None) -> None:
    Swarm.warm = warm


@pytest.fixture(scope="session")
def english() -> str:
    return python_text()[:150_000]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel") / "download"
    build_wheel.build(build_wheel.ROOT, folder)
    return folder
