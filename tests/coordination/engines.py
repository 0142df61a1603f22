"""The engines that a site may run on: SQLite or PostgreSQL, messages in memory or over Redis.

Rows are really committed and seen by every thread, so each test has a database of its own.
"""

import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer
from django.core.management import call_command
from django.db import connection, connections
from django.db.utils import load_backend

from config.environment import postgresql, sqlite

PATIENCE_S = 120.0  # for what must happen; never how long a good run takes


@contextmanager
def everywhere(described: dict[str, Any]) -> Iterator[None]:
    """A database under the name `default` in every thread, for a while."""
    handler: Any = connections
    whole = handler.configure_settings({"default": described})["default"]
    before_settings, before = handler.settings["default"], handler["default"]
    other = load_backend(whole["ENGINE"]).DatabaseWrapper(whole, "default")
    handler.settings["default"], handler["default"] = whole, other
    try:
        yield
    finally:
        other.close()
        if whole["ENGINE"].endswith("postgresql"):
            other.close_pool()
        handler.settings["default"], handler["default"] = before_settings, before


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Path:
    """A file with all tables, to be copied into the data folder of a site."""
    path = tmp_path_factory.mktemp("sqlite") / "db.sqlite3"
    with django_db_blocker.unblock(), everywhere(sqlite(str(path))):
        call_command("migrate", verbosity=0)
    return path


@contextmanager
def postgres_copy(template: str) -> Iterator[str]:
    """The URL of a fresh copy of a database that nobody uses now."""
    server, _, rest = template.rpartition("/contract_")
    name, _, options = rest.partition("?")
    copy = f"copy_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(f"{server}/postgres?{options}", autocommit=True) as control:
        control.execute(f"CREATE DATABASE {copy} TEMPLATE contract_{name}".encode())
        try:
            yield f"{server}/{copy}?{options}"
        finally:
            control.execute(f"DROP DATABASE {copy} WITH (FORCE)".encode())


@contextmanager
def fresh_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """An empty database of this kind, in use; its URL."""
    with request.getfixturevalue("django_db_blocker").unblock():
        if kind == "sqlite":
            path = shutil.copy(request.getfixturevalue("migrated_sqlite"), folder / "db.sqlite3")
            with everywhere(sqlite(str(path))):
                yield f"sqlite:///{path}"
            return
        with postgres_copy(request.getfixturevalue("migrated_postgres")) as url, everywhere(postgresql(url)):
            yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The test runs once on each; the database's URL."""
    with fresh_database(request.param, request, tmp_path) as url:
        yield url


def use_layer(kind: str, request: pytest.FixtureRequest, settings: Any) -> None:
    """Messages through memory, or through Redis under names of this test alone."""
    if kind == "memory":
        backend: dict[str, Any] = {"BACKEND": "coordination.channel_layer.process.ProcessLayer", "CONFIG": {}}
    else:
        hosts = [request.getfixturevalue("redis_url")]
        backend = {
            "BACKEND": "coordination.channel_layer.redis.RedisLayer",
            "CONFIG": {"hosts": hosts, "prefix": f"t{uuid.uuid4().hex[:8]}"},
        }
    settings.CHANNEL_LAYERS = {"default": backend}


@pytest.fixture(params=["memory", "redis"])
async def layer(request: pytest.FixtureRequest, settings: Any) -> AsyncIterator[Any]:
    """The test runs once on each channel layer."""
    use_layer(request.param, request, settings)
    found: Any = get_channel_layer()
    yield found
    await found.flush()


def in_other_thread(work: Callable[[], Any]) -> "Aside":
    """Start it with a connection of its own."""
    aside = Aside(work)
    aside.start()
    return aside


class Aside(threading.Thread):
    """One piece of work beside the test; `outcome()` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work, and give the connection back."""
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error
        finally:
            connection.close()

    def outcome(self) -> Any:
        """What it returned or raised."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it did not end"
        if self.error is not None:
            raise self.error
        return self.result
