"""Redis is killed and restarted during a run, and every process recovers by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from channels.layers import get_channel_layer

from coordination.threads import in_thread
from runs import queue
from tests.coordination.engines import fresh_database
from tests.coordination.restarting import Redis, a_run_elsewhere, goes_on_after, settings_of
from tests.coordination.running import assemble_long, require_whole_log

RESTARTS = 2


@pytest.fixture
def redis(settings: Any) -> Iterator[Redis]:
    found = Redis()
    found.start()
    settings.CHANNEL_LAYERS = settings_of(found)
    yield found
    found.end()


@pytest.fixture
def postgresql(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(queue, "enqueue", lambda *_, **__: None)
    with fresh_database("postgresql", request, tmp_path) as url:
        yield url


async def test_a_run_goes_on_each_time(redis: Redis, postgresql: str, settings: Any) -> None:
    example = await in_thread(assemble_long)(10_000)
    async with a_run_elsewhere(example, postgresql, settings):
        for _ in range(RESTARTS):
            await goes_on_after(redis, example.run)
    await in_thread(require_whole_log)(example.run)
    layer: Any = get_channel_layer()
    await layer.flush()
