"""The averages that a record names: those that came in the round, and what is lacking from a relay's log. No torch."""

import asyncio
import logging
from functools import partial

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.codecs import Floats
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.round import OpenRound

log = logging.getLogger(__name__)

SETTLE_S = 1.0  # averaged chunks may still be on their way when the commit is here; then the log is asked
FETCH_TRIES = 8
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


async def assembly_of(record: RecordHead, round_: OpenRound | None) -> Assembly:
    """Where the record's averages have come, where they came in this round; else an empty one."""
    if round_ is not None and round_.is_of(record):
        await round_.wait_for_chunks(record, SETTLE_S)
        return round_.assembly
    return Assembly(Grid(record.elements, record.chunk_elements), record.codec)


async def gather(links: DataLinks, record: RecordHead, assembly: Assembly, *, patient: bool) -> Floats | None:
    """[P], with what has not come fetched from a relay's log. None where nobody has these bytes."""
    for attempt in range(FETCH_TRIES if patient else 1):
        for entry in assembly.missing(record):
            await links.fetch(record, entry, partial(_fill, assembly, entry))
        gradient = assembly.gradient(record)
        if not isinstance(gradient, list):
            return gradient
        await asyncio.sleep(min(PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
    return None


async def _fill(assembly: Assembly, entry: SpanEntry, payloads: list[bytes]) -> bool:
    """Whether these are the bytes that the record names."""
    try:
        await asyncio.to_thread(assembly.fill, entry, payloads)
    except Problem as problem:
        log.warning("%s", problem)
        return False
    return True
