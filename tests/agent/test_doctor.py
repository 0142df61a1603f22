"""Each of the doctor's checks, tested with a real fault: a full disk, a wrong clock, a closed port, missing torch, too
little memory.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent import __version__, doctor
from peer_agent.display.status import Status, write_status
from peer_agent.doctor import (
    Check,
    bad,
    check_device,
    check_disk,
    check_memory,
    check_relays,
    check_site,
    examine,
    explained,
    good,
)
from peer_agent.machine.home import Home, KnownSite
from peer_agent.protocol.errors import CATALOGUE, Fault
from peer_agent.protocol.errors.entry import Severity
from peer_agent.protocol.messages import PROTOCOL
from tests.agent.program import MANYHANDS, Handler, environment, http_site, manyhands, serving
from tests.agent.scripted_site import RELAY, TRAINER, relaying, site
from tests.network.site_double import make_certificate
from tests.network.site_double import serving as tls_site
from tests.protocol.identities import SITE_PUBLIC


@contextmanager
def clock_site(ahead_s: float) -> Iterator[str]:
    class Ahead(Handler):
        def respond(self, body: bytes) -> None:
            self.reply(200, {"status": "alive"})

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + ahead_s)

    with serving(Ahead) as url:
        yield url


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("ahead_s", "verdict", "code"),
    [(0, "ok", ""), (-20, "ok", ""), (120, "warn", "E139"), (3600, "fail", "E204"), (-86_400, "fail", "E204")],
)
async def test_the_clock(ahead_s: float, verdict: str, code: str) -> None:
    with clock_site(ahead_s) as url:
        reached, clock, agent = await check_site(url)
    assert (agent.name, agent.verdict) == ("agent", "ok")
    assert (reached.name, reached.verdict) == ("site", "ok")
    assert (clock.name, clock.verdict, clock.code) == ("clock", verdict, code)


OFFERS = {"status": "alive", "protocol": PROTOCOL, "upgrade_pip": "pip install that\x1b[2J", "upgrade_uv": None}


@pytest.mark.parametrize(
    ("offer", "verdict", "words"),
    [
        ({"version": __version__}, "ok", f"{__version__}, up to date"),
        ({"version": "0.0.9"}, "ok", "up to date"),
        ({"version": "9.10.0"}, "warn", f"The site offers agent 9.10.0; this machine runs {__version__}."),
        ({"version": "9.10.0", "protocol": PROTOCOL + 1}, "fail", f"This agent uses protocol {PROTOCOL}; the other"),
        ({"version": "9.10.0", "upgrade_pip": None}, "warn", "see the site's download page"),
        ({"version": 7}, "ok", "the site doesn't say which version it offers"),
    ],
)
async def test_the_agent_that_the_site_offers(offer: dict[str, Any], verdict: str, words: str) -> None:
    with http_site(lambda _: (200, OFFERS | offer)) as url:
        (agent,) = [check for check in await check_site(url) if check.name == "agent"]
    assert agent.verdict == verdict
    assert words in agent.text
    assert agent.code == {"ok": "", "warn": "E126", "fail": "E205"}[verdict]
    if verdict != "ok" and "upgrade_pip" not in offer:
        assert agent.text.endswith("-m pip install that[2J"), "a line to copy, and nothing that acts"


async def test_a_site_that_is_not_there() -> None:
    (check,) = await check_site(f"http://127.0.0.1:{closed_port()}")
    assert (check.name, check.verdict, check.code) == ("site", "fail", "E134")
    assert "cannot be reached" in check.text


async def test_log_in_page_of_a_network_is_no_site() -> None:
    with http_site(lambda _: (200, "<html>Room number and surname, please</html>")) as url:
        (check,) = await check_site(url)
    assert (check.name, check.verdict, check.code) == ("site", "fail", "E448")


async def test_issuer_of_an_untrusted_certificate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_certificate(tmp_path / "certificate.pem")
    with tls_site() as server:
        server.scheme = "https"
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        url = server.url("/healthz", lambda handler: handler.reply(200, b'{"status": "alive"}')).removesuffix(
            "/healthz"
        )
        (check,) = await check_site(url)
        assert (check.verdict, check.code) == ("fail", "E449")
        assert "issued by loopback" in check.text
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
        assert (await check_site(url))[0].verdict == "ok", "the remedy works, with the variable of requests too"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    assert (await check_site(url))[0].code == "E450"


def test_device_proves_that_it_can_multiply() -> None:
    assert doctor.fault_of_product("cpu") is None
    fault = doctor.fault_of_product("meta")  # a device that holds no values
    assert fault is not None
    assert fault.code == "E447"
    assert "torch" in fault.cause


async def test_relays(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (unknown,) = await check_relays(home)
    assert (unknown.verdict, unknown.code) == ("ok", "")
    async with site() as script, relaying(script, tmp_path / "relay", RELAY) as relay:
        gone = f"ws://127.0.0.1:{closed_port()}/"
        write_status(home, Status(relays=[relay.url, gone]), 0.0)
        there, some = await check_relays(home)
    write_status(home, Status(relays=[gone, "ws://8.8.8.8:1/"]), 0.0)
    none, strange = await check_relays(home)
    assert (there.verdict, there.code) == ("ok", "")
    assert (some.verdict, some.code) == ("warn", "E136"), "the run goes on over the other one"
    assert (none.verdict, none.code) == ("fail", "E135")
    assert gone in some.text
    assert gone in none.text
    assert strange.code == "E105", "it is told by itself"


def finding(name: str, code: str = "", site: str = "") -> Check:
    return replace(bad(name, Fault(code, "It is so.")) if code else good(name, "it is well"), site=site)


@pytest.mark.parametrize("code", ["E103", "E119", "E126", "E204"])
def test_finding_has_a_title_and_fails_only_at_high_severity(code: str) -> None:
    check = finding("a", code)
    entry = CATALOGUE[code]
    assert (check.title, check.severity) == (entry.title, entry.severity)
    assert check.verdict == ("fail" if entry.severity is Severity.HIGH else "warn")
    assert check.line() == f"{check.verdict:<5} a         {code}: {entry.title}. It is so."
    assert (finding("a").title, finding("a").severity) == ("", None)


def test_what_follows_from_another_finding_names_it() -> None:
    away = [finding("site", "E134", "a"), finding("relay", "E135", "a"), finding("relay", "E105", "a")]
    assert [check.explained_by for check in explained(away)] == ["", "E134", ""]
    some = [finding("site", "E134", "a"), finding("relay", "E136", "a")]
    assert [check.explained_by for check in explained(some)] == ["", "E134"]


@pytest.mark.parametrize("one", [finding("site", "", "b"), finding("site", "E110", "b")])
def test_what_is_wrong_with_one_site_explains_nothing_of_another(one: Check) -> None:
    checks = [one, finding("site", "E134", "a"), finding("relay", "E135", "b"), finding("relay", "E135", "a")]
    assert [check.explained_by for check in explained(checks)] == ["", "", "", "E134"]


def test_people_are_not_told_what_follows_and_programs_are(tmp_path: Path) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    home = Home(tmp_path)
    home.remember(KnownSite(gone, TRAINER, "ann", SITE_PUBLIC.hex()))
    write_status(home, Status(site=gone, relays=[f"ws://127.0.0.1:{closed_port()}/"]), 0.0)
    told, listed = manyhands(tmp_path, "doctor"), manyhands(tmp_path, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(listed.stdout)}
    assert (checks["relay"]["code"], checks["relay"]["explained_by"]) == ("E135", "E134")
    assert (checks["site"]["title"], checks["site"]["severity"]) == ("Site not reachable", "high")
    assert (checks["disk"]["explained_by"], checks["disk"]["site"]) == ("", "")
    assert (checks["site"]["site"], checks["relay"]["site"]) == (gone, gone)
    assert "E134: Site not reachable. " in told.stdout
    assert "E135" not in told.stdout
    assert (told.returncode, listed.returncode) == (1, 1)


def test_memory() -> None:
    found = [check_memory(lambda size=size: size) for size in (10**8, 10**9, 10**10)]  # type: ignore[misc]
    assert [(check.verdict, check.code) for check in found] == [("fail", "E120"), ("warn", "E137"), ("ok", "")]
    assert check_memory().name == "memory"


def test_a_disk_with_too_little_on_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    found = [check_disk(home, lambda _, size=size: size) for size in (10**6, 10**9, 10**11)]  # type: ignore[misc]
    assert [(check.verdict, check.code) for check in found] == [("fail", "E121"), ("warn", "E138"), ("ok", "")]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield the path of a 2 MiB tmpfs. If it cannot be mounted, yield a plain folder, for use with `limited`."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, check=False
    )
    try:
        yield folder
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def limited() -> None:
    """Limit every file that this process writes to 4 KiB, as a quota would. Tests use the limit where tmpfs cannot be
    mounted.
    """
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        is_small = shutil.disk_usage(folder).total <= 2 << 20
        if is_small:
            filler = folder / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        done = subprocess.run(
            [MANYHANDS, "doctor", "--json"],
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            preexec_fn=None if is_small else limited,
        )
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert (done.returncode, checks["disk"]["verdict"], checks["disk"]["code"]) == (1, "fail", "E106")


def test_torch_is_missing_really(tmp_path: Path) -> None:
    """The doctor runs without the training packages. The test symlinks the agent's other dependencies one by one."""
    lent = tmp_path / "lent"
    lent.mkdir()
    packages = Path(sys.modules["msgspec"].__file__ or "").parents[1]
    without = {"torch", "transformers", "tokenizers", "functorch", "torchgen"}
    for path in packages.iterdir():
        if path.name.split("-")[0] not in without and not path.name.endswith(".pth"):
            (lent / path.name).symlink_to(path)
    root = Path(doctor.__file__).parents[1]
    program = "import sys; from peer_agent.cli import main; sys.argv[0] = 'manyhands'; main()"
    own = environment(tmp_path) | {"PYTHONPATH": os.pathsep.join([str(root), str(lent)])}
    done = subprocess.run(
        [sys._base_executable, "-c", program, "doctor"],  # type: ignore[attr-defined]
        env=own,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    line, shown = next(pair for pair in pairwise(done.stdout.splitlines()) if "  versions  " in pair[0])
    assert line.startswith("fail  versions  E103: ")
    assert "torch, transformers" in line
    assert shown.startswith(f"{sys._base_executable} -m pip install tokenizers torch transformers")  # type: ignore[attr-defined]


def test_a_gpu_that_torch_cannot_use(tmp_path: Path) -> None:
    import torch

    seen = check_device(lambda: "NVIDIA RTX 4090")
    if torch.cuda.is_available():
        assert (seen.verdict, seen.text) == ("ok", torch.cuda.get_device_name())
    else:
        assert (seen.verdict, seen.code) == ("warn", "E119")
        assert "NVIDIA RTX 4090" in seen.text
    nothing = check_device(lambda: "")
    assert nothing.verdict == "ok"


async def test_all_of_it_where_all_is_well(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with clock_site(0) as url:
        home.remember(KnownSite(url, TRAINER, "ann", SITE_PUBLIC.hex()))
        async with asyncio.timeout(120):
            checks = await examine(home)
    assert [check.name for check in checks] == [
        "versions",
        "device",
        "memory",
        "disk",
        "site",
        "clock",
        "agent",
        "relay",
    ]
    assert not [check for check in checks if check.verdict == "fail"]
    assert Check("a", "ok", "b").line() == "ok    a         b"
