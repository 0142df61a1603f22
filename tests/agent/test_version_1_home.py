"""An agent's home as version 1 left it when it was killed: the same machine goes on in it, with the files it has."""

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from peer_agent import __version__
from peer_agent.display.lines import View
from peer_agent.display.status import read_status, sentence, status_facts
from peer_agent.doctor import examine
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.log.records import GENESIS
from peer_agent.protocol.messages import PROTOCOL
from peer_agent.recipes import parse_recipe
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer import files as site_files
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.files import fetch_snapshot
from peer_agent.trainer.shards import Shards
from peer_agent.training.replica import Replica
from tests.agent.program import http_site, manyhands
from tests.agent.scripted_site import TRAINER, OwnAccess, greeting, site
from tests.averaging.rounds import RUN
from tests.golden import version_1
from tests.protocol.identities import SITE_PUBLIC, key

SITE = "http://127.0.0.1:9"


@pytest.fixture
def facts(tmp_path: Path) -> Any:
    return version_1(tmp_path)


@pytest.fixture
def home(facts: Any, tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
async def access(home: Home) -> RunAccess:
    return OwnAccess(home.folder, TRAINER, Role.TRAINER, "")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that is asked for no file."""

    async def download(url: str, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{url} is here already")

    monkeypatch.setattr(site_files, "download", download)


def snapshot_of(facts: Any) -> m.Snapshot:
    """Of step 0."""
    place = {"index": 0, "step": 0, "digest": GENESIS, "state_digest": facts["state_digest"]}
    return m.Snapshot(**place, file=facts["file"], size=facts["size"])


def test_it_is_the_same_machine(home: Home) -> None:
    assert home.key().private_bytes_raw() == key(5).private_bytes_raw()
    assert home.known(SITE) == KnownSite(SITE, TRAINER, "ann", SITE_PUBLIC.hex())
    assert home.holder() is None, "the number in its lock is of a process that is gone"
    with home.locked():
        assert home.holder() == os.getpid()


async def test_a_shard_that_it_has_is_used(home: Home, access: RunAccess, facts: Any, nobody: None) -> None:
    known = (m.Shard(digest=facts["shard"], tokens=facts["tokens"]),)
    shards = Shards(home, access, CausalLM(), known, asyncio.get_running_loop(), disk_bytes=10**9)
    tokens = await asyncio.to_thread(shards.__getitem__, 0)
    assert tokens.tolist() == [number * 7 % 257 for number in range(600)]


async def test_a_snapshot_that_it_has_is_used_and_half_of_another_is_put_aside(
    home: Home, access: RunAccess, facts: Any, tmp_path: Path, nobody: None
) -> None:
    path = await fetch_snapshot(home, access, snapshot_of(facts))
    replica = Replica(parse_recipe((tmp_path / "recipe.json").read_bytes()))
    replica.load(path)
    assert (replica.digest(), replica.state_hash()) == (facts["state_digest"], (facts["file"], facts["size"]))
    assert list(path.parent.iterdir()) == [path]


async def test_an_agent_begins_with_it(home: Home, facts: Any, tmp_path: Path, nobody: None) -> None:
    """It enters the run with the state of that file."""
    recipe = (tmp_path / "recipe.json").read_bytes()
    elements = Replica(parse_recipe(recipe)).layout.elements
    async with site() as script:
        access = OwnAccess(home.folder, TRAINER, Role.TRAINER, script.url)
        owner = MachineControl(home, Limits(threads=1))
        running = asyncio.create_task(Agent(home, access, owner, View(io.StringIO())).run())
        try:
            await script.linked()
            await script.says(m.Rehello(run=RUN, fence=1))
            assert (await script.hears(m.Hello)).step == -1
            await script.says(greeting(snapshot_of(facts), recipe=recipe, elements=elements, reconciled=False))
            hello = await script.hears(m.Hello)
            assert (hello.step, hello.digest) == (0, facts["state_digest"])
        finally:
            running.cancel()
            await asyncio.wait([running])


def test_what_it_said_is_read_while_it_still_works(home: Home) -> None:
    """The package was replaced under it."""
    assert status_facts(home, 0.0) == {"running": False, "pid": None}
    path = home.folder / "status.json"
    with home.locked():
        path.write_bytes(path.read_bytes().replace(b'"pid":4242', f'"pid":{os.getpid()}'.encode()))
        status = read_status(home)
    assert status is not None
    assert (status.title, status.accepted, sentence(status)) == ("Proverbs", 640, "Training step 5.")


async def test_the_doctor_looks_at_it(home: Home) -> None:
    offered = {"protocol": PROTOCOL, "version": __version__, "upgrade_pip": "pip install that", "upgrade_uv": None}
    with http_site(lambda _: (200, offered)) as url:
        found = {check.name: check for check in await examine(home, url)}
    assert [found[name].verdict for name in ("versions", "site", "agent")] == ["ok", "ok", "ok"]
    assert found["disk"].code in {"", "E121", "E138"}, (
        "the home can be written; how much is free there is this machine's"
    )
    assert (found["relay"].code, SITE.replace("http", "ws") in found["relay"].text) == ("E135", True)


def test_forgetting_takes_all_of_it(home: Home) -> None:
    said = manyhands(home.folder, "status", "--json")
    assert json.loads(said.stdout)["running"] is False
    done = manyhands(home.folder, "forget", f"{SITE}/runs/proverbs/", "--yes", "--json")
    assert (done.returncode, json.loads(done.stdout)["freed_bytes"] > 90_000) == (0, True), done
    left = {path.name for path in home.folder.rglob("*") if path.is_file()}
    assert left <= {"agent.lock", "sites.json"}
