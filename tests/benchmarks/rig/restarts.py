"""Redis killed and started again twelve times under a run on PostgreSQL: seconds until it goes on, each time.

.venv/bin/python -m pytest -q -n 0 -s -p no:cacheprovider tests/benchmarks/redis_restarts.py
"""

from typing import Any

from channels.layers import get_channel_layer

from coordination.threads import in_thread
from tests.coordination.channel_layer.test_redis import postgresql, redis
from tests.coordination.engines import migrated_sqlite
from tests.coordination.restarting import Redis, a_run_elsewhere, goes_on_after
from tests.coordination.running import assemble_long, require_whole_log
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "migrated_postgres", "migrated_sqlite", "postgresql", "redis"]

RESTARTS = 12
WITHIN_S = 5.0


async def test_redis_restarts(redis: Redis, postgresql: str, settings: Any) -> None:
    """Prints what it took."""
    example = await in_thread(assemble_long)(100_000)
    took = []
    async with a_run_elsewhere(example, postgresql, settings):
        for _ in range(RESTARTS):
            took.append(await goes_on_after(redis, example.run))
            print(f"{took[-1]:.2f} s", flush=True)
    await in_thread(require_whole_log)(example.run)
    layer: Any = get_channel_layer()
    await layer.flush()
    assert max(took) < WITHIN_S
