"""The checks that `manyhands doctor` runs: one line for each reason why this machine might be unable to train."""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil
from msgspec import Struct
from msgspec.structs import replace

from peer_agent import __version__
from peer_agent.display.status import last_status
from peer_agent.machine import hardware
from peer_agent.machine.faults import in_readers_words, sanitize_fault
from peer_agent.machine.hardware import gpu_name, install_line, of_packages
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import gettext_noop, in_bytes, ngettext, padded, translated
from peer_agent.machine.limits import usual_limits
from peer_agent.network.link import reach
from peer_agent.network.site import greeting_of, issuer_of
from peer_agent.protocol.errors import Fault, Problem, codes, disk_fault
from peer_agent.protocol.errors.entry import Severity
from peer_agent.protocol.errors.troubles import explained_by
from peer_agent.protocol.session import Link
from peer_agent.site.facts import Offer, difference, offer_of

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
TRIAL_BYTES = 1 << 20
SIDE, TOLERANCE = 64, 1e-2  # the size of the test matrices, and the largest relative error; TF32 has three digits

Verdict = Literal["ok", "warn", "fail"]
VERDICTS: dict[Verdict, str] = {
    "ok": gettext_noop("ok"),
    "warn": gettext_noop("warn"),
    "fail": gettext_noop("fail"),
}
NAMES = (
    *(gettext_noop("versions"), gettext_noop("device"), gettext_noop("memory"), gettext_noop("disk")),
    *(gettext_noop("site"), gettext_noop("agent"), gettext_noop("clock"), gettext_noop("relay")),
)
VERDICT_COLUMNS, NAME_COLUMNS = 5, 9


class Check(Struct, frozen=True):
    """The result of one check. `code`, `title` and `severity` are empty if all is well. `site` is empty for checks on
    this machine. `explained_by`: the code of another error that causes this one.
    """

    name: str
    verdict: Verdict
    text: str
    code: str = ""
    title: str = ""
    severity: Severity | None = None
    site: str = ""
    explained_by: str = ""

    def line(self) -> str:
        text = f"{self.code}: {translated(self.title)}. {self.text}" if self.code else self.text
        verdict = padded(translated(VERDICTS[self.verdict]), VERDICT_COLUMNS)
        return f"{verdict} {padded(translated(self.name), NAME_COLUMNS)} {text}"


def good(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def bad(name: str, fault: Fault) -> Check:
    """Return a check that failed with a numbered error.

    The verdict is "fail" if the error is of high severity. Otherwise, training can continue, and the verdict is "warn".
    """
    fault, severity = sanitize_fault(fault), fault.severity
    verdict: Verdict = "fail" if severity is Severity.HIGH else "warn"
    return Check(name, verdict, in_readers_words(fault).text, fault.code, fault.title, severity)


def found(name: str, fault: Fault | None, text: str) -> Check:
    """Return a failed check if there is a fault, otherwise a passed check with `text`."""
    return good(name, text) if fault is None else bad(name, fault)


async def examine(home: Home, site: str = "") -> list[Check]:
    """Run all checks, starting with those on this machine. `site`: a site's address; "" means all known sites."""
    sites = [site] if site else sorted(home.sites())
    here = await asyncio.gather(*(asyncio.to_thread(check) for check in (check_versions, check_device, check_memory)))
    checks = [*here, await asyncio.to_thread(check_disk, home)]
    for url in sites:
        checks += [replace(check, site=url) for check in await check_site(url)]
    return explained([*checks, *await check_relays(home)])


def explained(checks: list[Check]) -> list[Check]:
    """Set `explained_by` for each check whose error has a known cause among the other checks.

    Such a cause is an error on this machine or at the same site.
    """
    return [replace(check, explained_by=explained_by(check.code, _beside(check, checks))) for check in checks]


def _beside(check: Check, checks: list[Check]) -> set[str]:
    return {other.code for other in checks if other.site in ("", check.site)}


def check_versions() -> Check:
    if fault := of_packages():
        return bad("versions", fault)
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _is_there(name))
    return good("versions", f"manyhands {__version__}, Python {platform.python_version()}, {found}")


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def check_device(seen: Callable[[], str] = gpu_name) -> Check:
    """Check that torch can use the GPU, if there is one. `seen` returns the GPU's name, even if torch cannot use it."""
    gpu, threads = seen(), usual_limits().threads
    cpu = ngettext("the CPU, {threads} thread", "the CPU, {threads} threads", threads).format(threads=threads)
    if not _is_there("torch"):
        return good("device", gpu or cpu)
    import torch

    if torch.cuda.is_available():
        return found("device", fault_of_product("cuda"), torch.cuda.get_device_name())
    if gpu:
        reason = f"torch {torch.__version__}"
        return bad("device", Fault.of("E119", gpu=gpu, reason=reason, line=install_line("torch", again=True)))
    return good("device", cpu)


def fault_of_product(device: str) -> Fault | None:
    """Multiply two small matrices on a device, to check that torch works there.

    Return a fault if the device fails, or if its result differs from the CPU's.
    """
    import torch

    ones = torch.ones(SIDE, SIDE)
    steps = torch.arange(SIDE * SIDE, dtype=torch.float32).reshape(SIDE, SIDE) / SIDE**2
    try:
        got = (steps.to(device) @ ones.to(device)).cpu()
    except RuntimeError as error:
        return Fault.of("E447", build=_build(), device=_card(device), reason=str(error).strip().partition("\n")[0])
    if not torch.allclose(got, steps @ ones, rtol=TOLERANCE):
        return Fault.of("E447", build=_build(), device=_card(device), reason="its result differs from the CPU's")
    return None


def _build() -> str:
    import torch

    kinds = torch.cuda.get_arch_list() if torch.cuda.is_available() else []
    return f"torch {torch.__version__}" + (f", built for {', '.join(kinds)}" if kinds else "")


def _card(device: str) -> str:
    import torch

    if device != "cuda" or not torch.cuda.is_available():
        return device
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"


def check_memory(free: Callable[[], int] = lambda: int(psutil.virtual_memory().available)) -> Check:
    have = free()
    return found("memory", hardware.of_memory(have), _("{size} free").format(size=in_bytes(have)))


def check_disk(home: Home, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> Check:
    """Check that the home folder is writable and has free space."""
    try:
        _write_and_remove(home.folder)
        have = free(home.folder)
    except OSError as error:
        return bad("disk", disk_fault(home.folder, error))
    room = _("{size} free in {folder}").format(size=in_bytes(have), folder=home.folder)
    return found("disk", hardware.of_disk(have, home.folder), room)


def _write_and_remove(folder: Path) -> None:
    """Write a file and delete it. Only writing reveals an exhausted quota or a read-only file system."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(TRIAL_BYTES))
        file.flush()
        os.fsync(file.fileno())


async def check_site(url: str) -> list[Check]:
    """Check that the site responds, that the clocks agree, and that the site accepts this agent's version."""
    began = time.monotonic()
    try:
        theirs = await greeting_of(f"{url}/healthz")
    except Problem as problem:
        fault = problem.fault
        if _is_untrusted(problem) and (issuer := await asyncio.to_thread(issuer_of, url)):
            fault = Fault.of("E449", url=url, issuer=issuer)
        return [bad("site", hardware.not_reached(fault) if fault.code == codes.NOT_REACHED else fault)]
    took_ms = (time.monotonic() - began) * 1000
    reached = good("site", _("{address} answers in {time} ms").format(address=url, time=round(took_ms)))
    agent = check_agent(await offer_of(url), url)
    return [reached, agent] if theirs is None else [reached, check_clock(theirs, time.time()), agent]


def _is_untrusted(problem: Problem) -> bool:
    error: BaseException | None = problem
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def check_agent(offer: Offer | None, site: str) -> Check:
    if offer is None:
        return good("agent", _("{version}; the site doesn't say which version it offers").format(version=__version__))
    words = _("{version}, up to date")
    return found("agent", difference(offer, site), words.format(version=__version__))


def check_clock(theirs: float, ours: float) -> Check:
    """Check that two clocks agree. Both times are UTC seconds."""
    return found("clock", hardware.of_clock(theirs - ours), _("agrees with the site's"))


async def check_relays(home: Home) -> list[Check]:
    """Check that the relays of this machine's last run respond."""
    last = last_status(home)
    if not last.relays:
        return [good("relay", _("checked when you join a run"))]
    return [replace(check, site=last.site) for check in await _dial_relays(last.relays)]


async def _dial_relays(relays: list[str]) -> list[Check]:
    faults = dict(zip(relays, await asyncio.gather(*map(_fault_of_relay, relays)), strict=True))
    answering = [url for url, fault in faults.items() if fault is None]
    missing = [url for url, fault in faults.items() if fault is not None and fault.code == codes.NOT_REACHED]
    others = [bad("relay", fault) for url, fault in faults.items() if fault is not None and url not in missing]
    away = hardware.of_relays(missing, answering)
    there = [good("relay", _("{address} answers").format(address=url)) for url in answering]
    return [*there, *([bad("relay", away)] if away is not None else []), *others]


async def _fault_of_relay(url: str) -> Fault | None:
    try:
        await reach(url, link=Link.DATA)
    except Problem as problem:
        return problem.fault
    return None
