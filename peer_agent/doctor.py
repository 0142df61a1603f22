"""Looks for what could keep this machine from training: one line each, with a number and what helps."""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import psutil
from msgspec import Struct

from peer_agent import __version__
from peer_agent.display.status import FILE, Status
from peer_agent.machine.faults import sanitize_fault
from peer_agent.machine.hardware import gpu_name, missing_packages
from peer_agent.machine.home import Home
from peer_agent.machine.limits import usual_limits
from peer_agent.machine.sanitize import sanitize
from peer_agent.machine.sizes import in_bytes
from peer_agent.network.link import reach
from peer_agent.network.site import clock_of
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.session import Link
from peer_agent.site.agent_version import Offer, difference, offer_of

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
TRIAL_BYTES = 1 << 20
LEAST_DISK, GOOD_DISK = 200 * 10**6, 2 * 10**9
LEAST_MEMORY, GOOD_MEMORY = 500 * 10**6, 2 * 10**9
CLOCK_WARN_S = 60

Verdict = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """What was looked at and how it stands. `code` is the numbered error, empty where all is well."""

    name: str
    verdict: Verdict
    text: str
    code: str = ""

    def line(self) -> str:
        """For people."""
        number = f"{self.code}: " if self.code else ""
        return f"{self.verdict:<5} {self.name:<9} {number}{self.text}"


def good(name: str, text: str) -> Check:
    """All is well."""
    return Check(name, "ok", text)


def bad(name: str, fault: Fault, verdict: Verdict = "fail") -> Check:
    """A numbered error; a warning where training goes on nevertheless."""
    fault = sanitize_fault(fault)
    return Check(name, verdict, fault.text, fault.code)


async def examine(home: Home, site: str = "") -> list[Check]:
    """All checks, in the order in which they matter. `site`: this one alone; else all that are known."""
    sites = [site] if site else sorted(home.sites())
    here = await asyncio.gather(*(asyncio.to_thread(check) for check in (check_versions, check_device, check_memory)))
    checks = [*here, await asyncio.to_thread(check_disk, home)]
    for url in sites:
        checks += await check_site(url)
    return [*checks, *await check_relays(home)]


def check_versions() -> Check:
    """Python, the agent and the packages it trains with."""
    if missing := missing_packages():
        return bad("versions", Fault.of("E103", missing=", ".join(missing)))
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _is_there(name))
    return good("versions", f"manyhands {__version__}, Python {platform.python_version()}, {found}")


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def check_device(seen: Callable[[], str] = gpu_name) -> Check:
    """What it computes on. `seen`: the GPU that the system has, whatever torch thinks."""
    gpu, threads = seen(), usual_limits().threads
    cpu = f"the CPU, {threads} {'thread' if threads == 1 else 'threads'}"
    if not _is_there("torch"):
        return good("device", gpu or cpu)
    import torch

    if torch.cuda.is_available():
        return good("device", torch.cuda.get_device_name())
    if gpu:
        reason = f"torch {torch.__version__}"
        return bad("device", Fault.of("E119", gpu=gpu, reason=reason), "warn")
    return good("device", cpu)


def check_memory(free: Callable[[], int] = lambda: int(psutil.virtual_memory().available)) -> Check:
    """What is free of the machine's memory."""
    have = free()
    if have < GOOD_MEMORY:
        fault = Fault.of("E120", free=in_bytes(have), needed=in_bytes(LEAST_MEMORY))
        return bad("memory", fault) if have < LEAST_MEMORY else Check("memory", "warn", f"{in_bytes(have)} free")
    return good("memory", f"{in_bytes(have)} free")


def check_disk(home: Home, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> Check:
    """Whether the home can be written, and how much more fits there."""
    try:
        _write_and_remove(home.folder)
        have = free(home.folder)
    except OSError as error:
        return bad("disk", Fault.of("E106", path=home.folder, reason=error.strerror or error))
    if have < LEAST_DISK:
        needed = in_bytes(LEAST_DISK)
        return bad("disk", Fault.of("E121", free=in_bytes(have), path=home.folder, needed=needed))
    return Check("disk", "ok" if have >= GOOD_DISK else "warn", f"{in_bytes(have)} free in {home.folder}")


def _write_and_remove(folder: Path) -> None:
    """A quota, or a file system that is read-only, shows only to those who write."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(TRIAL_BYTES))
        file.flush()
        os.fsync(file.fileno())


async def check_site(url: str) -> list[Check]:
    """Whether a site is reached, whether its clock and this one agree, and whether this agent fits it."""
    began = time.monotonic()
    try:
        theirs = await clock_of(f"{url}/healthz")
    except Problem as problem:
        return [bad("site", problem.fault)]
    took_ms = (time.monotonic() - began) * 1000
    reached = good("site", f"{url} answers in {took_ms:.0f} ms")
    agent = check_agent(await offer_of(url))
    return [reached, agent] if theirs is None else [reached, check_clock(theirs, time.time()), agent]


def check_agent(offer: Offer | None) -> Check:
    """This agent and the one that the site offers."""
    if offer is None:
        return good("agent", f"{__version__}; the site does not say which one it offers")
    fault = difference(offer)
    if fault is None:
        return good("agent", f"{__version__} fits the site, which offers {sanitize(offer.version)}")
    return bad("agent", fault, "fail" if fault.code == "E205" else "warn")


def check_clock(theirs: float, ours: float) -> Check:
    """Two clocks, in seconds of UTC."""
    apart_s = abs(theirs - ours)
    if apart_s > CLOCK_WARN_S:
        fault = Fault.of("E204", minutes=round(apart_s / 60))
        return bad("clock", fault, "fail" if apart_s > CLOCK_TOLERANCE_S else "warn")
    return good("clock", "agrees with the site's")


async def check_relays(home: Home) -> list[Check]:
    """Whether the relays are reached that the last run here had."""
    try:
        relays = msgspec.json.decode((home.folder / FILE).read_bytes(), type=Status).relays
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        relays = []
    if not relays:
        return [Check("relay", "ok", "not known yet; joining a run tells")]
    return list(await asyncio.gather(*(_check_relay(url) for url in relays)))


async def _check_relay(url: str) -> Check:
    try:
        await reach(url, link=Link.DATA)
    except Problem as problem:
        return bad("relay", problem.fault)
    return good("relay", f"{url} answers")
