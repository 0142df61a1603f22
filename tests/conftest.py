"""Fixtures for every room. Whatever is started here ends with the tests, also when they are killed."""

import os
import sys

# Two workers share two cores: more threads would only wait for each other. Set before torch and numpy load.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MANYHANDS_LANGUAGE"] = "en"  # whatever the developer speaks

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation
from hypothesis import settings

from tests.coordination.engines import migrated_sqlite
from tests.servers import private_postgres, private_redis
from tests.warm.client import Warm

__all__ = ["migrated_sqlite", "postgres_url", "redis_url"]

# The same examples on every run: a red test is of the change. New ones: pytest --hypothesis-profile=explore
settings.register_profile("explore")
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


# Folders and files that only `make check` runs; a single test or case there has the marker `check` instead.
ONLY_IN_CHECK = ("benchmarks", "emulation", "examples", "test_docker.py", "test_servers.py")
SERVERS = ("postgres", "redis")  # in the names of fixtures and of cases that start one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make check` runs: the folders above, and what asks for a server."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).parts[0]
        if place in ONLY_IN_CHECK or any(server in name for name in engines_of(item) for server in SERVERS):
            item.add_marker(pytest.mark.check)


def engines_of(item: pytest.Item) -> list[str]:
    """Return the names of a test's fixtures, and its cases that are words."""
    cases = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [*getattr(item, "fixturenames", ()), *(case for case in cases if isinstance(case, str))]


def pytest_configure(config: pytest.Config) -> None:
    """Python 3.11.2, as Debian 12 has it, ends a test's loop before it lets go of a socket that was just cut."""
    if sys.version_info < (3, 11, 7):  # the oldest with which that was not seen
        config.addinivalue_line("filterwarnings", "ignore:unclosed (transport|<socket):ResourceWarning")


@pytest.fixture(autouse=True)
def _english() -> None:
    """A language that an earlier test's request chose stays with the thread."""
    translation.activate("en")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL to use as one likes; DATABASE_URL overrides it."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with private_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis to use as one likes; REDIS_URL overrides it."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with private_redis() as url:
        yield url


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm | None]:
    """The process that has loaded torch and forks; None where the system cannot pass it what it needs."""
    if sys.platform != "linux":
        yield None
        return
    found = Warm()
    yield found
    found.end()
