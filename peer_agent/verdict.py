"""What a run will ask of this machine, before anything is loaded or downloaded: it fits, or a numbered error."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from peer_agent.approval import gpu_name
from peer_agent.config import Home
from peer_agent.doctor import in_bytes
from peer_agent.limits import usual_limits
from peer_agent.network.site import get_json
from peer_agent.passport import Passport
from peer_agent.protocol.errors import Problem

BYTES = {"fp32": 4, "fp16": 2, "int8": 1}  # an element on the wire
# Weights, two moments, the gradient in hand, the sum, what is offered, what comes back, and a copy that is handed in.
COPIES, ELEMENT = 9, 4
PROGRAM_BYTES = 700 * 10**6  # torch, transformers and Python themselves
SPARE_DISK = 100 * 10**6
RECENT = 20  # steps from which the pace is taken
HOUR_S = 3600


class Facts(Struct, frozen=True):
    """What the site tells of a run. Sizes are in bytes; `pace_s` is seconds a step, None where none was made yet."""

    parameters: int
    codec_up: str
    codec_down: str
    data_bytes: int
    snapshot_bytes: int
    log_bytes: int
    pace_s: float | None


class Room(Struct, frozen=True):
    """What is free here, in bytes."""

    memory: int
    disk: int


async def verdict(home: Home, passport: Passport) -> list[str]:
    """Lines for people; none but one where the site does not tell. Raises Problem E123, E124 where it does not fit."""
    facts = await facts_of(f"{passport.site.url}/api/v1/runs/{passport.slug}")
    device = await asyncio.to_thread(device_in_words)
    if facts is None:
        return [f"device    {device}", "The site does not tell how large this run is; it is tried."]
    return [f"device    {device}", *judge(facts, await asyncio.to_thread(room_in, home.folder), home.folder)]


def judge(facts: Facts, room: Room, folder: Path) -> list[str]:
    """One line a resource. Raises Problem E123, E124."""
    memory = PROGRAM_BYTES + COPIES * ELEMENT * facts.parameters
    download = facts.snapshot_bytes + facts.data_bytes + facts.log_bytes
    disk = 2 * facts.snapshot_bytes + facts.data_bytes + SPARE_DISK  # the log is applied as it comes and not kept
    if memory > room.memory:
        raise Problem.of("E123", needed=in_bytes(memory), free=in_bytes(room.memory))
    if disk > room.disk:
        raise Problem.of("E124", path=folder, needed=in_bytes(disk), free=in_bytes(room.disk))
    return [
        f"memory    about {in_bytes(memory)} needed, {in_bytes(room.memory)} free: fits",
        f"disk      about {in_bytes(disk)} needed, {in_bytes(room.disk)} free: fits",
        f"download  {in_bytes(download)} at most, before the first step",
        f"traffic   {_traffic(facts)}",
    ]


def _traffic(facts: Facts) -> str:
    up, down = (facts.parameters * BYTES[codec] for codec in (facts.codec_up, facts.codec_down))
    if not facts.pace_s:
        return f"{in_bytes(up)} up and {in_bytes(down)} down in each step; no step tells the pace yet"
    hourly = HOUR_S / facts.pace_s
    return f"about {in_bytes(up * hourly)} up and {in_bytes(down * hourly)} down in an hour, at the run's recent pace"


async def facts_of(url: str) -> Facts | None:
    """What the public API says of the run at `url`; None where it says nothing that is understood."""
    try:
        run = await get_json(url)
        step = int(run["step"])
        steps = await get_json(f"{url}/steps?cursor={max(step - RECENT, 0)}&limit={RECENT}")
        snapshots = await get_json(f"{url}/snapshots?limit=1000")
        return _understood(run, steps["items"], snapshots["items"])
    except (Problem, KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None


def _understood(run: dict[str, Any], steps: list[dict[str, Any]], snapshots: list[dict[str, Any]]) -> Facts | None:
    newest = max(snapshots, key=lambda snapshot: int(snapshot["step"]), default={"step": 0, "size": 0})
    behind = max(int(run["step"]) - int(newest["step"]), 0)
    durations = [float(step["duration_s"]) for step in steps]
    facts = {
        **{name: run[name] for name in ("parameters", "codec_up", "codec_down", "data_bytes")},
        "snapshot_bytes": newest["size"],
        "log_bytes": behind * int(run["parameters"]) * BYTES[run["codec_down"]],
        "pace_s": sum(durations) / len(durations) if durations else None,
    }
    return msgspec.convert(facts, Facts) if run["parameters"] and run["codec_up"] in BYTES else None


def room_in(
    folder: Path,
    memory: Callable[[], int] = lambda: int(psutil.virtual_memory().available),
    disk: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> Room:
    """What is free on this machine now."""
    return Room(memory(), disk(folder))


def device_in_words() -> str:
    """What it will compute on, without loading torch."""
    threads = usual_limits().threads
    cores = os.cpu_count() or threads
    return gpu_name() or f"CPU, {threads} of {cores} threads"
