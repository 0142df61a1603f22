"""Fixtures for every room. All processes started here end with the tests, also if these are killed."""

import gc
import os
import sys

# Two workers share two cores: more threads would only wait for each other. Set before torch and numpy load.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MANYHANDS_LANGUAGE"] = "en"  # whatever the developer's language

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation
from hypothesis import settings

from tests.coordination.engines import migrated_sqlite
from tests.servers import private_postgres, private_redis
from tests.warm.client import Warm

__all__ = ["migrated_sqlite", "postgres_url", "redis_url"]

# The same examples on every run, so a failure comes from the change. New ones: pytest --hypothesis-profile=explore
settings.register_profile("explore")
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


# Folders and files for `make check` alone. A single test or case has the marker `check` instead.
ONLY_IN_CHECK = ("benchmarks", "emulation", "examples", "test_docker.py", "test_servers.py")
SERVERS = ("postgres", "redis")  # parts of the names of fixtures and cases that start a server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make check` runs: the folders above, and tests that ask for a server."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).parts[0]
        if place in ONLY_IN_CHECK or any(server in name for name in engines_of(item) for server in SERVERS):
            item.add_marker(pytest.mark.check)


def pytest_collection_finish() -> None:
    """Exempt everything loaded so far from garbage collection, which otherwise takes a tenth of the time."""
    gc.collect()
    gc.freeze()


def engines_of(item: pytest.Item) -> list[str]:
    """Return the names of a test's fixtures, and its cases that are words."""
    cases = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [*getattr(item, "fixturenames", ()), *(case for case in cases if isinstance(case, str))]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore a warning of Python 3.11.2 (Debian 12), which ends a test's loop before it closes a socket that was
    cut."""
    if sys.version_info < (3, 11, 7):  # the oldest without that warning
        config.addinivalue_line("filterwarnings", "ignore:unclosed (transport|<socket):ResourceWarning")


@pytest.fixture(autouse=True)
def _english() -> None:
    """Reset the language: the choice of an earlier test's request stays with the thread."""
    translation.activate("en")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of a PostgreSQL for tests; DATABASE_URL overrides it."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with private_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of a Redis for tests; REDIS_URL overrides it."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with private_redis() as url:
        yield url


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm | None]:
    """Yield the process that has loaded torch and forks; None if the system cannot pass it descriptors."""
    if sys.platform != "linux":
        yield None
        return
    found = Warm()
    yield found
    found.end()
