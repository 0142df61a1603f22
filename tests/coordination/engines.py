"""The engines that a site may run on: SQLite or PostgreSQL, with messages in memory or over Redis.

Tests actually commit their rows, so every thread can see them. Each test therefore gets its own database.
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

PATIENCE_S = 120.0  # longest wait for an expected event; a passing test takes much less


@contextmanager
def everywhere(described: dict[str, Any]) -> Iterator[None]:
    """Make this database the `default` in every thread until the block ends."""
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
    path = tmp_path_factory.mktemp("sqlite") / "db.sqlite3"
    with django_db_blocker.unblock(), everywhere(sqlite(str(path))):
        call_command("migrate", verbosity=0)
    return path


@contextmanager
def postgres_copy(template: str) -> Iterator[str]:
    """Create a copy of an idle PostgreSQL database, yield its URL, and drop the copy."""
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
    """Create a database of this kind with empty tables, make it the `default`, and yield its URL."""
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
    """Run the test once on each database engine, and yield the database's URL."""
    with fresh_database(request.param, request, tmp_path) as url:
        yield url


def use_layer(kind: str, request: pytest.FixtureRequest, settings: Any) -> None:
    """Send messages through memory, or through Redis with a prefix that only this test uses."""
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
    use_layer(request.param, request, settings)
    found: Any = get_channel_layer()
    yield found
    await found.flush()


def in_other_thread(work: Callable[[], Any]) -> "Aside":
    aside = Aside(work)
    aside.start()
    return aside


class Aside(threading.Thread):
    """A thread that does some work. `outcome()` waits for the work and returns its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - `outcome` raises it
            self.error = error
        finally:
            connection.close()

    def outcome(self) -> Any:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "it did not end"
        if self.error is not None:
            raise self.error
        return self.result
