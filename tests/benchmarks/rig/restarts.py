"""Kill and restart the Redis of a run on PostgreSQL. This benchmark is written as a test, because it needs test
fixtures.

`tests.benchmarks.redis_restarts` runs this module. RESTARTS gives the number of restarts, and FIGURES the output file.
"""

import json
import os
from pathlib import Path
from typing import Any

from channels.layers import get_channel_layer

from coordination.threads import in_thread
from tests.coordination.channel_layer.test_redis import postgresql, redis
from tests.coordination.restarting import Redis, a_run_elsewhere, goes_on_after
from tests.coordination.running import assemble_long, require_whole_log
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "migrated_postgres", "postgresql", "redis"]


async def test_redis_restarts(redis: Redis, postgresql: str, settings: Any) -> None:
    example = await in_thread(assemble_long)(100_000)
    async with a_run_elsewhere(example, postgresql, settings):
        took = [await goes_on_after(redis, example.run) for _ in range(int(os.environ["RESTARTS"]))]
    await in_thread(require_whole_log)(example.run)
    layer: Any = get_channel_layer()
    await layer.flush()
    await in_thread(Path(os.environ["FIGURES"]).write_text)(json.dumps(took))
