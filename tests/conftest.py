"""Fixtures for all tests. Every process started here ends with the test process, even if a signal kills that
process."""

import gc
import os
import sys

# Two test workers share two cores, so more threads would only wait for each other. The variables must be set before
# torch and numpy load.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MANYHANDS_LANGUAGE"] = "en"  # the developer's own language must not affect tests

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation
from hypothesis import HealthCheck, settings

from tests.coordination.engines import migrated_sqlite
from tests.servers import PrivateS3, private_postgres, private_redis, private_s3
from tests.warm.client import Warm

__all__ = ["migrated_sqlite", "postgres_url", "redis_url"]

# Use the same examples in every run, so that a failure comes from the change. For new examples: pytest
# --hypothesis-profile=explore. A busy machine must not fail a test, so no example has a time limit.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", UNTIMED)
settings.register_profile("steady", UNTIMED, derandomize=True)
settings.load_profile("steady")


# Folders and files that only `make check` runs. Single tests and cases have the marker `check` instead.
ONLY_IN_CHECK = ("benchmarks", "emulation", "examples", "test_docker.py", "test_servers.py")
SERVERS = ("postgres", "redis")  # tests that use a fixture or case with such a name start a server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that only `make check` runs: the folders above, and tests that use a server."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).parts[0]
        if place in ONLY_IN_CHECK or any(server in name for name in engines_of(item) for server in SERVERS):
            item.add_marker(pytest.mark.check)


def pytest_collection_finish() -> None:
    """Exempt all objects loaded so far from garbage collection, which would otherwise take a tenth of the time."""
    gc.collect()
    gc.freeze()


def engines_of(item: pytest.Item) -> list[str]:
    """Return the names of a test's fixtures, and the values of its string parameters."""
    cases = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [*getattr(item, "fixturenames", ()), *(case for case in cases if isinstance(case, str))]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore a warning of Python 3.11.2 (Debian 12). That version ends a test's event loop before it closes a socket
    that was cut."""
    if sys.version_info < (3, 11, 7):  # 3.11.7 is the first version without that warning
        config.addinivalue_line("filterwarnings", "ignore:unclosed (transport|<socket):ResourceWarning")


@pytest.fixture(autouse=True)
def _english() -> None:
    """Reset the language, because an earlier test's request may have changed it for this thread."""
    translation.activate("en")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server for tests, or DATABASE_URL if that is set."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    with private_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Yield the URL of a Redis server for tests, or REDIS_URL if that is set."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with private_redis() as url:
        yield url


@pytest.fixture(scope="module")
def s3() -> Iterator[PrivateS3]:
    """Yield an S3 server, which starts within two seconds."""
    with private_s3() as server:
        yield server


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm | None]:
    """Yield a process that has loaded torch and forks for each request, or None on systems other than Linux."""
    if sys.platform != "linux":
        yield None
        return
    found = Warm()
    yield found
    found.end()
