"""A run's files on the site: shards and snapshots. They are named by digest and stored in the cache."""

import asyncio
import contextlib
import logging
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from peer_agent.averaging.assembly import span_sizes
from peer_agent.averaging.update_log import largest_file, parse_span
from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.network.link import PASSING
from peer_agent.network.site import download, get_bytes, upload
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem, codes, disk_errors
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.protocol.recipe import Recipe
from peer_agent.site.credential import RunAccess

if TYPE_CHECKING:  # torch is loaded only for training
    from peer_agent.training.snapshots import State

log = logging.getLogger(__name__)

HAND_IN_TRIES, PAUSE_S, LONGEST_PAUSE_S = 5, 1.0, 30.0
TOKENIZER_LIMIT = 64 << 20  # size limit on a tokenizer's file, in bytes
STRANGE_TRIES = 6  # a restarting site may send this many unexpected responses (E110)


async def fetch_shard(home: Home, access: RunAccess, recipe: Recipe, shard: m.Shard) -> Path:
    path = home.cache / "shards" / f"{shard.digest}.safetensors"
    await _fetch(access, f"shards/{shard.digest}", path, shard.digest, recipe.shard_bytes(shard.tokens))
    return path


async def fetch_tokenizer(home: Home, access: RunAccess, digest: str) -> Path:
    path = home.cache / "tokenizers" / f"{digest}.json"
    await _fetch(access, "tokenizer/tokenizer.json", path, digest, TOKENIZER_LIMIT)
    return path


async def fetch_model_files(home: Home, access: RunAccess, recipe: Recipe) -> Path:
    """Fetch the files of the recipe's model and return their folder. Delete other models from the cache."""
    folder, names = home.cache / "models", set[str]()
    for file in recipe.files():
        path = folder / f"{file.digest}.safetensors"
        await _fetch(access, f"models/{file.digest}", path, file.digest, file.size)
        names.add(path.name)
    for other in folder.iterdir() if folder.exists() else ():
        if other.name not in names:
            other.unlink(missing_ok=True)
    return folder


async def fetch_snapshot(home: Home, access: RunAccess, snapshot: m.Snapshot) -> Path:
    """Return a snapshot's file. Delete other snapshots and partial downloads from the cache."""
    path = home.cache / "snapshots" / f"{snapshot.file}.safetensors"
    await _fetch(access, f"snapshots/{snapshot.file}", path, snapshot.file, snapshot.size)
    for other in path.parent.iterdir():
        if other != path:
            other.unlink(missing_ok=True)
    return path


async def _fetch(access: RunAccess, name: str, path: Path, sha256: str, size_limit: int) -> None:
    """Fetch a file from the site into the cache. Retry while the site restarts."""
    tries: Counter[str] = Counter()
    while not await asyncio.to_thread(path.exists):
        try:
            await access.renew()
            url = f"{access.site.url}/api/v1/files/{name}"
            await download(url, path, sha256=sha256, size_limit=size_limit, headers=access.headers())
        except Problem as problem:
            tries[problem.fault.code] += 1
            if problem.fault.code not in PASSING or tries[codes.STRANGE_ANSWER] >= STRANGE_TRIES:
                raise
            log.info("%s", problem)
            await asyncio.sleep(min(PAUSE_S * 2 ** min(tries.total(), 16), LONGEST_PAUSE_S))


async def fetch_averages(access: RunAccess, record: RecordHead, entry: SpanEntry) -> list[bytes] | None:
    """Fetch a span's averages from the site's archive, after no relay could provide them. Return None on failure.

    The caller must compare the bytes with the span's root in the record.
    """
    url = f"{access.site.url}/api/v1/files/averages/{record.index}/{entry.span}"
    try:
        await access.renew()
        data = await get_bytes(url, limit=largest_file(span_sizes(record, entry)), headers=access.headers())
        return [bytes(payload) for payload in parse_span(memoryview(data)).payloads]
    except (Problem, ValueError, struct.error) as error:
        log.info("span %s of entry %s is not in the site's archive: %s", entry.span, record.index, error)
        return None


async def hand_in(home: Home, access: RunAccess, state: "State", view: View) -> None:
    """Upload this replica's state. The site accepts it once most replicas have reported the same digest."""
    path = home.cache / f"state-{state.step}.safetensors"
    try:
        await asyncio.to_thread(_save, state, path)
        if not await _upload(access, path, state.step):
            words = _("The site did not accept this machine's copy of step {step}; another machine uploads it.")
            view.say(words.format(step=f"{state.step:,}"))
    except Problem as problem:
        view.fault(problem.fault)
        view.say(_("Another machine uploads the copy of step {step}.").format(step=f"{state.step:,}"))
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _save(state: "State", path: Path) -> None:
    """Write the state to a file, after deleting any files left by a killed agent."""
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("state-*"):
            old.unlink(missing_ok=True)
    state.save(path)


async def _upload(access: RunAccess, path: Path, step: int) -> bool:
    for attempt in range(HAND_IN_TRIES):
        try:
            await access.renew()
            await upload(f"{access.site.url}/api/v1/runs/{access.slug}/snapshots/{step}", path, access.headers())
        except Problem as problem:
            log.info("snapshot of step %s: %s", step, problem)
            await asyncio.sleep(PAUSE_S * 2**attempt)
        else:
            return True
    return False
