"""Restart, suspend and end the Redis of a run on PostgreSQL. This benchmark is written as a test, because it needs test
fixtures.

`tests.benchmarks.redis_restarts` runs this module. RESTARTS gives the number of restarts, SECONDS the length of the
other faults, and FIGURES the output file.
"""

import asyncio
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from channels.layers import get_channel_layer

from coordination.threads import in_thread
from runs.models import LogEntry
from tests.coordination.channel_layer.test_redis import postgresql, redis
from tests.coordination.restarting import Redis, a_run_elsewhere, goes_on_after
from tests.coordination.running import assemble_long, require_whole_log
from tests.runs.factories import data_folder, migrated_postgres

__all__ = ["data_folder", "migrated_postgres", "postgresql", "redis"]

AFTER_S = 8.0  # seconds to watch after a fault, in which messages go over Redis again


async def test_redis_restarts(redis: Redis, postgresql: str, settings: Any) -> None:
    example = await in_thread(assemble_long)(100_000)
    seconds = float(os.environ["SECONDS"])
    async with a_run_elsewhere(example, postgresql, settings):
        took = [await goes_on_after(redis, example.run) for _ in range(int(os.environ["RESTARTS"]))]
        await asyncio.sleep(AFTER_S)
        began = time.time()
        with redis.hanging():
            await asyncio.sleep(seconds)
        hung_s = await longest_gap(began)
        began = time.time()
        await in_thread(redis.end)()
        await asyncio.sleep(seconds)
        await in_thread(redis.start)()
        down_s = await longest_gap(began)
    await in_thread(require_whole_log)(example.run)
    layer: Any = get_channel_layer()
    await layer.flush()
    figures = {"took": took, "gap_while_hung_s": hung_s, "gap_while_down_s": down_s}
    await in_thread(Path(os.environ["FIGURES"]).write_text)(json.dumps(figures))


async def longest_gap(began: float) -> float:
    """Return the longest time between two commits since shortly before `began`, and until some time from now."""
    await asyncio.sleep(AFTER_S)
    commits = [at.timestamp() for at in await in_thread(list)(LogEntry.objects.values_list("at", flat=True))]
    moments = [at for at in sorted(commits) if at > began - 1.0]
    return max(after - before for before, after in pairwise([began - 1.0, *moments, time.time()]))
