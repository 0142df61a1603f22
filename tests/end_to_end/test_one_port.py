"""A whole collaboration through a site's single port, behind `deploy/Caddyfile` and behind a plain tunnel."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from demo.processes import ROOT
from demo.visitor import Refused, Visitor
from tests.end_to_end.rig.front import front
from tests.end_to_end.rig.swarm import Swarm
from tests.servers import free_port, guarded, short_folder

pytestmark = pytest.mark.check
STEPS = 3


@contextmanager
def caddy(folder: Path, site: int) -> Iterator[str]:
    """Run Caddy with the site's own rules, but without TLS. Yield the address."""
    address = f"http://127.0.0.1:{free_port()}"
    rules = (ROOT / "deploy" / "Caddyfile").read_text()
    rules = rules.replace("train.example.org", address).replace("127.0.0.1:8000", f"127.0.0.1:{site}")
    (folder / "Caddyfile").write_text("{\n\tadmin off\n\tauto_https off\n}\n" + rules)
    program = str(Path(sys.executable).with_name("caddy"))
    command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]

    def answers() -> bool:
        try:
            Visitor(address).read("/healthz")
        except Refused as refused:
            return "502" in str(refused)  # Caddy runs; the site does not yet
        return True

    with short_folder() as home:
        whole = ["env", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}", *command]
        with guarded(whole, home, "", answers):
            yield address


@contextmanager
def tunnel(_: Path, site: int) -> Iterator[str]:
    """Forward connections byte by byte, as `ssh -R` and other tunnels do. Yield the address."""
    with front([site]) as address:
        yield address


@pytest.mark.parametrize("way", [caddy, tunnel])
def test_three_agents_a_page_and_a_release(tmp_path: Path, english: str, way: object) -> None:
    port = free_port()
    (tmp_path / "proxy").mkdir()
    with way(tmp_path / "proxy", port) as address, Swarm(tmp_path) as swarm:  # type: ignore[operator]
        swarm.port = port
        swarm.start_site(MANYHANDS_PUBLIC_URL=address)
        site = psutil.Process(swarm.processes["site"].pid)
        listening = {
            connection.laddr.port
            for process in (site, *site.children(recursive=True))
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {port}, "the relay has no port of its own"
        assert swarm.url == address
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english, trainers=3, steps=STEPS)
        for name in ("a", "b", "c"):
            swarm.start_agent(name, token=swarm.token_of(organizer))
        swarm.wait_finished()
        assert "A run" in Visitor(address).read(f"/runs/{swarm.slug}/")
        assert (swarm.released(tmp_path / "model") / "model.safetensors").exists()
        digests = [swarm.digests(name) for name in ("a", "b", "c")]
        assert len({of[STEPS] for of in digests if STEPS in of}) == 1


def test_rules_are_one_line(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("caddy"))
    command = [program, "adapt", "--validate", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "Caddyfile")]
    own = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
