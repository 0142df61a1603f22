"""The commands and settings of compose.yaml, run as processes on this machine behind the same Caddyfile.

`Here` holds the differences: this machine's ports and folders instead of those inside the containers.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import yaml

from demo.processes import ROOT
from demo.visitor import Refused, Visitor
from tests.end_to_end.rig.swarm import MANYHANDS, Swarm
from tests.servers import free_port, guarded, private_postgres, private_redis, short_folder

FOLDER = ROOT / "docker"
STEPS = 4
SITES, RELAYS = ("site-1", "site-2"), ("relay-1", "relay-2")
CODE = re.compile(r"/approve/\?code=([0-9A-Z-]+)")


class Here(NamedTuple):
    """This machine's ports and folders. In containers, each service has its own."""

    folder: Path
    ports: dict[str, int]

    @property
    def domain(self) -> str:
        return f"localhost:{self.ports['https']}"

    @property
    def certificate(self) -> Path:
        """The root certificate that Caddy creates for its `local_certs` option."""
        return self.folder / "caddy" / "caddy" / "pki" / "authorities" / "local" / "root.crt"

    def services(self) -> dict[str, dict[str, Any]]:
        text = re.sub(r"\$\{MANYHANDS_DOMAIN(:\?[^}]*)?\}", self.domain, (FOLDER / "compose.yaml").read_text())
        found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
        return found

    def command(self, name: str) -> list[str]:
        entry = [MANYHANDS] if name in RELAYS else [sys.executable, str(ROOT / "manage.py")]
        port = str(self.ports.get(name))
        told = {"0.0.0.0": "127.0.0.1", "8000": port, "9000": port}
        return entry + [told.get(word, word) for word in self.services()[name]["command"]]

    def environment(self, name: str) -> dict[str, str]:
        """Return the service's environment variables with this machine's ports and folders."""
        places = {
            **{f"/run/secrets/{name}": str(self.folder / name) for name in ("database_url", "redis_url")},
            "/relay-1:/relay-2": ":".join(str(self.folder / name) for name in RELAYS),
        }
        set_there = self.services()[name].get("environment", {})
        kept = "MANYHANDS_HOME" if name in RELAYS else "MANYHANDS_DATA"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "SSL_CERT_FILE": str(self.certificate),
            kept: str(self.folder / (name if name in RELAYS else "data")),
            **{setting: places.get(value, value) for setting, value in set_there.items()},
        }

    def caddyfile(self) -> str:
        text = (FOLDER / "Caddyfile").read_text()
        for name, port in (*((site, 8000) for site in SITES), *((relay, 9000) for relay in RELAYS)):
            text = text.replace(f"{name}:{port}", f"127.0.0.1:{self.ports[name]}")
        options = (
            f"local_certs\n\tskip_install_trust\n\thttp_port {self.ports['http']}\n\thttps_port {self.ports['https']}\n"
        )
        return text.replace("{\n", "{\n\t" + options, 1).replace(":2020", f":{self.ports['health']}")


@contextmanager
def caddy(here: Here) -> Iterator[None]:
    """Run Caddy in front of the two sites. Yield once one of the sites answers through it."""
    (here.folder / "Caddyfile").write_text(here.caddyfile())
    own = [f"XDG_DATA_HOME={here.folder / 'caddy'}", f"XDG_CONFIG_HOME={here.folder / 'caddy'}"]
    program = str(Path(sys.executable).with_name("caddy"))
    command = [program, "run", "--adapter", "caddyfile", "--config", str(here.folder / "Caddyfile")]

    def answers() -> bool:
        try:
            Visitor(f"https://{here.domain}").read("/readyz")
            Visitor(f"http://127.0.0.1:{here.ports['health']}").read("/")
        except Refused:
            return False
        return True

    with short_folder() as folder:
        whole = ["env", *own, f"MANYHANDS_DOMAIN={here.domain}", *command]
        with guarded(whole, folder, "", answers):
            yield


def start_site(swarm: Swarm, here: Here) -> None:
    subprocess.run(here.command("migrate"), env=here.environment("migrate"), check=True, timeout=300)
    for name in (*SITES, "worker"):
        swarm.start(name, [*here.command(name), "--attached"], here.environment(name), here.folder)
    for name in SITES:
        inner = Visitor(f"http://127.0.0.1:{here.ports[name]}")
        swarm.wait(lambda inner=inner: is_ready(inner), 60, f"{name} is ready")  # type: ignore[misc]
    swarm.wait(lambda: "The worker is ready" in swarm.log("worker"), 60, "the worker is ready")


def is_ready(visitor: Visitor) -> bool:
    try:
        visitor.read("/readyz")
    except Refused:
        return False
    return True


def approve_relays(swarm: Swarm, here: Here) -> None:
    """Sign up the first operator with the link in the site's log, and approve the relays' codes."""
    operator = swarm.operator()
    for name in RELAYS:
        swarm.start(name, [*here.command(name), "--attached"], here.environment(name), here.folder)
        swarm.wait(lambda name=name: CODE.search(swarm.log(name)), 60, f"{name} shows a code")  # type: ignore[misc]
        code = CODE.findall(swarm.log(name))[-1]
        operator.submit(f"/approve/?code={code}", {"code": code, "answer": "approve"}, action="/approve/")


def locked(url: str) -> str:
    """Give a Redis server a password. Return the URL with it."""
    redis.Redis.from_url(url).config_set("requirepass", "word")
    return url.replace("redis://", "redis://:word@", 1)


def test_what_compose_starts_trains_a_run(tmp_path: Path, english: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {name: free_port() for name in (*SITES, *RELAYS, "http", "https", "health")}
    with private_postgres() as database, private_redis() as queue:
        here = Here(tmp_path, ports)
        for name in RELAYS:
            (tmp_path / name).mkdir(mode=0o700)  # in containers the volume exists before the relay starts
        (tmp_path / "database_url").write_text(database)
        (tmp_path / "redis_url").write_text(locked(queue))
        monkeypatch.setenv("SSL_CERT_FILE", str(here.certificate))
        with Swarm(tmp_path, {"DATABASE_URL": database}) as swarm:
            start_site(swarm, here)
            swarm.url = f"https://{here.domain}"
            with caddy(here):
                approve_relays(swarm, here)
                organizer = swarm.sign_up("organizer")
                swarm.open_run(organizer, english, trainers=2, steps=STEPS)
                swarm.wait(lambda: len(swarm.online("relay")) == len(RELAYS), 60, "the relays are there")
                for name in ("a", "b"):
                    token = swarm.token_of(organizer)
                    swarm.start_agent(name, token=token, SSL_CERT_FILE=str(here.certificate))
                swarm.wait_finished()
                check(swarm, here)


def check(swarm: Swarm, here: Here) -> None:
    """Require books that agree, a downloadable release, no other relay, and a clean exit of all the processes."""
    ledger, committed = swarm.books(here.folder / "relay-1")
    assert ledger == committed == sum(step["samples"] for step in swarm.items("steps"))
    assert len(swarm.items("steps")) == STEPS
    archive = f"/api/v1/runs/{swarm.slug}/release/{swarm.slug}.zip"
    swarm.wait(lambda: has(Visitor(swarm.url), archive), 120, "the release")
    assert not list((here.folder / "data").glob("relay*")), "no site process has a relay of its own"
    for name in ("worker", *SITES):
        swarm.processes[name].terminate()
    for name in ("worker", *SITES):
        assert swarm.processes[name].wait(30) == 0, swarm.log(name)


def has(visitor: Visitor, path: str) -> bool:
    try:
        visitor.download(path, Path(os.devnull))
    except Refused:
        return False
    return True
