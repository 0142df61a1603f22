"""What a run will ask of this machine, before anything is loaded or downloaded: it fits, or a numbered error."""

import asyncio
import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from peer_agent.doctor import in_bytes
from peer_agent.machine.limits import usual_limits
from peer_agent.machine.memory_estimate import WIRE, Needs, needs_of
from peer_agent.network.site import Headers, get_json
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, parse_recipe
from peer_agent.site.credential import Passport
from peer_agent.site.device_login import gpu_memory, gpu_name

SPARE_DISK = 100 * 10**6
RECENT = 20  # steps from which the pace is taken
HOUR_S = 3600


class Facts(Struct, frozen=True):
    """What the site tells of a run. Sizes are in bytes; `pace_s` is seconds a step, None where none was made yet."""

    recipe: Recipe
    parameters: int
    data_bytes: int
    snapshot_bytes: int
    log_bytes: int
    pace_s: float | None


class Room(Struct, frozen=True):
    """What is free here, in bytes. `gpu` is None where the CPU computes."""

    memory: int
    disk: int
    gpu: int | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """What the work takes and what there is, in bytes; None where the site does not tell.

    `at_once` samples are computed at a time, where that is fewer than the recipe's micro-batch; else 0. `up_bytes` and
    `down_bytes` are of an hour at the run's recent pace, or of one step where `pace_s` is None.
    """

    device: str
    at_once: int = 0
    micro_batch: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    gpu_bytes: int | None = None
    gpu_free_bytes: int | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    download_bytes: int | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None
    pace_s: float | None = None

    def lines(self) -> list[str]:
        """For people: one line a resource."""
        lines = [f"device    {self.device}"]
        if self.memory_bytes is None:
            return [*lines, "The site does not tell how large this run is; it is tried."]
        lines.append(f"memory    {_fits(self.memory_bytes, self.memory_free_bytes)}")
        if self.gpu_bytes:
            lines.append(f"GPU       {_fits(self.gpu_bytes, self.gpu_free_bytes)}")
        if self.at_once:
            fewer = f"{self.at_once} at a time instead of {self.micro_batch}"
            lines.append(f"samples   {fewer}, so that it fits; slower, and every one counts")
        lines.append(f"disk      {_fits(self.disk_bytes, self.disk_free_bytes)}")
        lines.append(f"download  {in_bytes(self.download_bytes or 0)} at most, before the first step")
        up, down = in_bytes(self.up_bytes or 0), in_bytes(self.down_bytes or 0)
        if self.pace_s is None:
            return [*lines, f"traffic   {up} up and {down} down in each step; no step tells the pace yet"]
        return [*lines, f"traffic   about {up} up and {down} down in an hour, at the run's recent pace"]


def _fits(needed: int | None, free: int | None) -> str:
    return f"about {in_bytes(needed or 0)} needed, {in_bytes(free or 0)} free: fits"


async def verdict(passport: Passport) -> Verdict:
    """What this run takes here. Raises Problem E123, E124, E125 where it does not fit."""
    url = f"{passport.site.url}/api/v1/runs/{passport.slug}"
    facts = await facts_of(url, passport.headers())
    gpu = await asyncio.to_thread(usable_gpu)
    device = device_in_words(gpu)
    if facts is None:
        return Verdict(device=device)
    folder = passport.home.folder
    return judge(facts, await asyncio.to_thread(room_in, folder, is_on_gpu=bool(gpu)), folder, device)


def judge(facts: Facts, room: Room, folder: Path, device: str) -> Verdict:
    """What fits, with as many samples at a time as do. Raises Problem E123 (memory), E124 (disk), E125 (the GPU's)."""
    recipe = facts.recipe
    at_once, needs = _largest_that_fits(facts, room)
    disk = 2 * facts.snapshot_bytes + facts.data_bytes + SPARE_DISK  # the log is applied as it comes and not kept
    if disk > room.disk:
        raise Problem.of("E124", path=folder, needed=in_bytes(disk), free=in_bytes(room.disk))
    steps = HOUR_S / facts.pace_s if facts.pace_s else 1
    up, down = (int(steps * facts.parameters * WIRE[codec]) for codec in (recipe.codec_up, recipe.codec_down))
    return Verdict(
        device=device,
        at_once=at_once if at_once < recipe.micro_batch else 0,
        micro_batch=recipe.micro_batch,
        memory_bytes=needs.memory,
        memory_free_bytes=room.memory,
        gpu_bytes=None if room.gpu is None else needs.gpu,
        gpu_free_bytes=room.gpu,
        disk_bytes=disk,
        disk_free_bytes=room.disk,
        download_bytes=facts.snapshot_bytes + facts.data_bytes + facts.log_bytes,
        up_bytes=up,
        down_bytes=down,
        pace_s=facts.pace_s,
    )


def _largest_that_fits(facts: Facts, room: Room) -> tuple[int, Needs]:
    """Samples at a time: the whole micro-batch, or half of it, and so on. Raises Problem E123, E125."""
    at_once = facts.recipe.micro_batch
    while True:
        needs = needs_of(facts.recipe, facts.parameters, at_once=at_once, on_gpu=room.gpu is not None)
        if needs.memory <= room.memory and needs.gpu <= (room.gpu or 0):
            return at_once, needs
        if at_once == 1:
            break
        at_once //= 2
    if needs.memory > room.memory:
        raise Problem.of("E123", needed=in_bytes(needs.memory), free=in_bytes(room.memory))
    raise Problem.of("E125", needed=in_bytes(needs.gpu), free=in_bytes(room.gpu or 0))


async def facts_of(url: str, headers: Headers) -> Facts | None:
    """What the API says of the run at `url`; None where it says nothing that is understood."""
    try:
        run = await get_json(url, headers=headers)
        step = int(run["step"])
        steps = await get_json(f"{url}/steps?cursor={max(step - RECENT, 0)}&limit={RECENT}", headers=headers)
        snapshots = await get_json(f"{url}/snapshots?limit=1000", headers=headers)
        return _understood(run, steps["items"], snapshots["items"])
    except (Problem, KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None


def _understood(run: dict[str, Any], steps: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> Facts | None:
    newest = max(snapshots, key=lambda snapshot: int(snapshot["step"]), default={"step": 0, "size": 0})
    behind = max(int(run["step"]) - int(newest["step"]), 0)
    durations = [float(step["duration_s"]) for step in steps]
    recipe = parse_recipe(msgspec.json.encode(run["recipe"]))
    facts = {
        "recipe": recipe,
        "parameters": run["parameters"],
        "data_bytes": run["data_bytes"],
        "snapshot_bytes": newest["size"],
        "log_bytes": behind * int(run["parameters"]) * WIRE[recipe.codec_down],
        "pace_s": sum(durations) / len(durations) if durations else None,
    }
    return msgspec.convert(facts, Facts) if run["parameters"] else None


def room_in(folder: Path, *, is_on_gpu: bool) -> Room:
    """What is free on this machine now."""
    memory = int(psutil.virtual_memory().available)
    return Room(memory, shutil.disk_usage(folder).free, gpu_memory() if is_on_gpu else None)


def usable_gpu() -> str:
    """The GPU's name, where the torch that is installed can use one; empty where not. Does not load torch."""
    try:
        is_for_cpu = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return "" if is_for_cpu else gpu_name()


def device_in_words(gpu: str) -> str:
    """What it will compute on."""
    threads = usual_limits().threads
    cores = os.cpu_count() or threads
    return gpu or f"CPU, {threads} of {cores} threads"
