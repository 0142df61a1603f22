"""What the site tells of a run before it is joined, and whether that fits this machine."""

import asyncio
from typing import Any

import msgspec

from peer_agent.machine.hardware import device_in_words, free_resources, usable_gpu
from peer_agent.machine.preflight import Preflight, RunFacts, RunSizes, check_fit
from peer_agent.network.site import Headers, get_json
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.recipes import parse_recipe
from peer_agent.site.credential import RunAccess

RECENT = 20  # steps from which the pace is taken


async def run_preflight(access: RunAccess, *, disk_gb: int) -> Preflight:
    """What this run takes here, where so much of its data is kept at most. Raises Problem E123, E124, E125."""
    url = f"{access.site.url}/api/v1/runs/{access.slug}"
    facts = await facts_of(url, access.headers())
    gpu = await asyncio.to_thread(usable_gpu)
    device = device_in_words(gpu)
    if facts is None:
        return Preflight(device=device)
    folder = access.home.folder
    free = await asyncio.to_thread(free_resources, folder, is_on_gpu=bool(gpu))
    return check_fit(facts, free, folder, device, disk_gb=disk_gb)


async def facts_of(url: str, headers: Headers) -> RunFacts | None:
    """What the API says of the run at `url`; None where it says nothing that is understood."""
    try:
        run = await get_json(url, headers=headers)
        step = int(run["step"])
        steps = await get_json(f"{url}/steps?cursor={max(step - RECENT, 0)}&limit={RECENT}", headers=headers)
        snapshots = await get_json(f"{url}/snapshots?limit=1000", headers=headers)
        return _understood(run, steps["items"], snapshots["items"])
    except (Problem, KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None


def _understood(run: dict[str, Any], steps: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> RunFacts | None:
    newest = max(snapshots, key=lambda snapshot: int(snapshot["step"]), default={"step": 0, "size": 0})
    behind = max(int(run["step"]) - int(newest["step"]), 0)
    durations = [float(step["duration_s"]) for step in steps]
    recipe = parse_recipe(msgspec.json.encode(run["recipe"]))
    sizes = {
        "parameters": run["parameters"],
        "data_bytes": run["data_bytes"],
        "snapshot_bytes": newest["size"],
        "log_bytes": behind * encoded_size(recipe.codec_down, int(run["parameters"])),
        "pace_s": sum(durations) / len(durations) if durations else None,
    }
    known = msgspec.structs.asdict(msgspec.convert(sizes, RunSizes))
    return RunFacts(recipe=recipe, **known) if run["parameters"] else None
